"""The same greedy text on machines that are set up in odd ways. What takes longer is marked `slow`.

Prompts and file names with other letters in a C locale, and closed streams, are in test_run.py and test_odd_use.py;
other kernels of OpenBLAS in test_blas_kernels.py, and here with the bundled model.
"""
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from model_files import CONFIG, write_folder
from tiny import ROOT, VERSIONS

import utils

PROMPT, N = "Once upon a time", 8
STRICT = ["-X", "dev", "-W", "error", "-bb"]  # each warning is an error, and so is each mix of bytes and text
unix = pytest.mark.skipif(os.name == "nt", reason="users and mounts of another kind")


@pytest.fixture(scope="module")
def expected():
    """What the versions write after the prompt, with a line break, as bytes."""
    encoder, hparams, params = utils.load_model()
    ids = VERSIONS[0].module.generate(encoder.encode(PROMPT), params, hparams["n_head"], N)
    return encoder.decode(ids).encode() + os.linesep.encode()


def run(script, *arguments, root=ROOT, python=(), unset=(), cwd=None, **variables):
    """A script as a process of its own, with these environment variables -> (exit status, stdout, stderr)."""
    environment = {key: value for key, value in os.environ.items() if key not in unset} | variables
    command = [sys.executable, *python, os.path.join(root, script), *map(str, arguments)]
    result = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, timeout=300)
    return result.returncode, result.stdout, result.stderr


def greedy(version=VERSIONS[4], **options):
    return run(f"{version.name}.py", PROMPT, "--n_tokens_to_generate", N, **options)


@pytest.fixture
def checkout(tmp_path):
    """A copy of the project in a folder with spaces and other letters, and what a shell takes for something else."""
    folder = tmp_path / os.fsdecode("Äpfel & Birnen; 'two' $HOME 猫".encode())  # the tests may run in a C locale
    folder.mkdir()
    for path in ROOT.glob("*.py"):
        shutil.copy(path, folder)
    shutil.copytree(ROOT / "gpt2_io", folder / "gpt2_io")
    shutil.copytree(ROOT / "models" / "tales", folder / "models" / "tales")
    return folder


# ---- by default


def test_an_odd_path_another_directory_no_home_no_locale_and_a_strict_python(expected, checkout, tmp_path):
    """All at once; apart, and in other consoles, below."""
    unset = ("HOME", "USERPROFILE", "LANG", "LC_ALL", "LC_CTYPE", "XDG_CACHE_HOME", "HF_HOME", "PYTHONIOENCODING")
    known = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    python = ["-O", *STRICT]
    assert greedy(root=checkout, python=python, cwd=tmp_path, unset=unset, **known) == (0, expected, b"")


# ---- every version and command


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("flags", [["-O"], ["-OO"], ["-W", "error"], STRICT, ["-E", "-s"]], ids=" ".join)
def test_flags_of_python(expected, version, flags):
    assert greedy(version, python=flags) == (0, expected, b"")


COMMANDS = [
    ["utils.py", "inspect"],
    ["utils.py", "tokenize", "a“b”🤗", "--merges"],
    ["utils.py", "download", "tales"],
    ["utils.py", "--help"],
    ["gpt2_v4_sampling.py", "One day", "The fox", "--temperature", "1", "--seed", "3", "--n_samples", "2"],
    ["gpt2_v5_exact.py", "One day", "--stream", "--stop", "."],
    ["tools/verify.py", "--max_length", "5"],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, command",
    [
        *itertools.product([["-O"], STRICT], COMMANDS),
        *((["-OO"], command) for command in COMMANDS if "--help" not in command),  # help is made of docstrings
    ],
    ids=" ".join,
)
def test_all_commands_with_flags_of_python(command, flags):
    usual = run(*command)
    assert usual[0] == 0
    assert run(*command, python=flags) == usual


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["-O"], STRICT], ids=" ".join)
def test_convert_and_a_job_with_flags_of_python(tmp_path, flags):
    folder = write_folder(tmp_path / "model", {**CONFIG, "n_positions": 64})
    for name in ("a.npz", "b"):
        assert run("utils.py", "convert", folder, tmp_path / name, python=flags)[::2] == (0, b"")
    (tmp_path / "p.txt").write_text("the\nking\né\n", encoding="utf-8")
    results = []
    for model in (folder, tmp_path / "a.npz", tmp_path / "b"):
        out = tmp_path / f"{model.name}.jsonl"
        arguments = ["complete", tmp_path / "p.txt", "--out", out, "--model", model, "--rows", 1]
        assert run("jobs.py", *arguments, python=flags) == (0, b"", b"")
        results.append(out.read_bytes())
    assert results == results[:1] * 3 and results[0].count(b"\n") == 3


# ---- terminals, homes, threads


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_every_version_from_an_odd_path_in_an_odd_console(expected, checkout, tmp_path, version):
    assert greedy(version, root=checkout, cwd=tmp_path, PYTHONIOENCODING="cp1252") == (0, expected, b"")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-16-le", "cp437", "utf-8"])
def test_all_of_a_text_in_any_encoding(encoding):
    """What the encoding lacks shows its number; nothing fails, and JSON is the same everywhere."""
    arguments = ("gpt2_v4_sampling.py", "“é” 🤗", "x", "--n_tokens_to_generate", "3")
    status, out, err = run(*arguments, PYTHONIOENCODING=encoding)
    expected = "“é” 🤗".encode(encoding, "backslashreplace")
    assert (status, err) == (0, b"") and out.startswith(expected)
    status, out, err = run(*arguments, "--json", PYTHONIOENCODING=encoding)
    assert (status, out.decode(encoding), err) == (0, run(*arguments, "--json")[1].decode(), b"")


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"])
@pytest.mark.parametrize("n", ["1", "2", "3", "64", "0", "-1", "many", ""])
def test_threads(expected, variable, n):
    unset = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for version in (VERSIONS[3], VERSIONS[5]):
        assert greedy(version, unset=unset, **{variable: n}) == (0, expected, b"")


NONSENSE = [
    {"HOME": ""}, {"HOME": "/dev/null"}, {"HOME": "no/such"}, {"HF_HOME": "/dev/null"}, {"HF_HOME": "~nobody-here/x"},
    {"HF_HUB_CACHE": "~"}, {"HF_ENDPOINT": "nonsense"}, {"HF_HUB_OFFLINE": "maybe"}, {"HF_TOKEN": "\n"},
    {"COLUMNS": "0", "LINES": "0"}, {"COLUMNS": "-5"}, {"COLUMNS": "x"}, {"TERM": "nonsense"}, {"TERM": ""},
    {"PATH": ""}, {"TMPDIR": "/no/such"}, {"TZ": "Nowhere/Never"}, {"LANG": "tlh_KX.UTF-8"}, {"LC_ALL": "nonsense"},
    {"NO_COLOR": "1"}, {"PYTHONHASHSEED": "1"}, {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONUNBUFFERED": "1"},
    {"TQDM_DISABLE": "1"}, {"PAGER": "/no/such"}, {"http_proxy": "nonsense"},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("variables", NONSENSE, ids=str)
def test_variables_with_nonsense(expected, variables):
    assert greedy(**variables) == (0, expected, b"")


AS_NOBODY = """
import os, sys
import encodings.idna, encodings.utf_8_sig, mmap, numpy.random, requests  # while the packages' files can be read
import gpt2_v4_sampling, jobs, utils
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(54321)  # a number without a name
os.environ.pop("HOME", None)
sys.argv[0] = "command"
utils.run({"v4": gpt2_v4_sampling.main, "jobs": jobs.COMMANDS, "utils": utils.COMMANDS}[sys.argv.pop(1)])
"""


@pytest.fixture
def read_only(tmp_path):
    """A folder with a model and prompts, in which nobody but root may write, nor root if the file system allows it."""
    folder = Path(tempfile.mkdtemp())  # tmp_path is for one's own eyes
    write_folder(folder / "model", {**CONFIG, "n_positions": 64})
    (folder / "p.txt").write_text("the\nking\n", encoding="utf-8")
    for path in (folder / "model", folder):
        path.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    (folder / "model").chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(*arguments, **options):
    command = [sys.executable, "-c", AS_NOBODY, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "", "HF_HOME": ""}
    result = subprocess.run(command, env=environment, capture_output=True, timeout=60, encoding="utf-8", **options)
    return result.returncode, result.stdout, result.stderr


@unix
@pytest.mark.slow
def test_a_folder_that_cannot_be_written_and_a_user_without_a_name_or_home(read_only):
    """As in a container: what only reads works, what writes says where it cannot, and leaves nothing."""
    model = ["--model", read_only / "model", "--n_tokens_to_generate", 3]
    status, out, err = as_nobody("v4", "the", *model, cwd=read_only)
    assert (status, err) == (0, "") and out
    denied = "Permission denied"
    for arguments in (
        ["jobs", "complete", "p.txt", "--out", "o.jsonl", *model],
        ["utils", "convert", "model", "o.npz"],
        ["utils", "convert", "model", "o"],
        ["utils", "download", "org/name"],
        ["utils", "download", "org/name", "--models_dir", "m"],
    ):
        status, out, err = as_nobody(*arguments, cwd=read_only)
        assert (status, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1, err
        assert denied in err
    assert sorted(path.name for path in read_only.iterdir()) == ["model", "p.txt"]


@unix
@pytest.mark.slow
def test_a_checkout_that_cannot_be_written(expected, checkout, tmp_path):
    """Mounted read-only, where that is allowed here: no bytecode is stored, and nothing else is tried."""
    place = tmp_path / "mounted"
    place.mkdir()
    mount = 'mount --bind "$0" "$1" && mount -o remount,ro,bind "$1" && ! touch "$1/x" 2>/dev/null && shift && "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, str(checkout), str(place)]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this user may mount nothing read-only here")
    for version in VERSIONS:
        script = [sys.executable, str(place / f"{version.name}.py"), PROMPT, "--n_tokens_to_generate", str(N)]
        result = subprocess.run([*command, *script], capture_output=True, timeout=60)
        assert (result.returncode, result.stdout, result.stderr) == (0, expected, b"")


# ---- kernels of OpenBLAS


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["SkylakeX", "Haswell", "Zen", "Nehalem", "Prescott", "Sandybridge"])
def test_greedy_text_under_the_kernels_of_other_processors(expected, kernel):
    """Where the processor here lacks the instructions of a kernel, OpenBLAS takes another one."""
    for version in VERSIONS:
        assert greedy(version, OPENBLAS_CORETYPE=kernel) == (0, expected, b"")
