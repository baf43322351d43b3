"""Kills, Ctrl-C and other faults at random moments of a job and of a download: nothing lost, twice, or half there.

The short forms run by default; fifty of each signal are marked `slow`. Whether two jobs may write to one file, a full
disk, and closed streams are in test_jobs.py, test_downloads.py, test_run.py and test_odd_use.py.

What a signal does: Ctrl-C (SIGINT) ends a command quietly with exit status 130. SIGTERM and SIGKILL end it as they end
any program, with 128 + 15 and 128 + 9 in a shell. After each of them the same command, started again, does the rest.
"""
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from fake_hub import FakeHub
from forks import Process
from model_files import (
    CONFIG,
    assert_one_line,
    make_tensors,
    make_vocab,
    merges_txt,
    safetensors_bytes,
    write_folder,
)
from tiny import ROOT

import gpt2_v4_sampling as v4
import jobs
import utils
from gpt2_io import safetensors
from gpt2_io.downloads import sha256_of
from gpt2_io.hub import find_model, has_weights
from gpt2_io.results import FIRST_LINE

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="signals are a matter of Unix"),
    pytest.mark.usefixtures("clean_environment"),
]

SIGNALS = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: -15}  # what it ends with
each_signal = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)


def attack(start, check, renew, number, n, seed):
    """Start a command and send it a signal at a random moment, until n have found it at work.

    start() -> Process; check(): whatever must hold after each signal; renew(): after a run that came to its end, which
    is then undisturbed by what happened before it.
    """
    rng, n_hits = random.Random(seed), 0
    began = time.monotonic()
    assert start().wait()[::2] == (0, "")
    whole = time.monotonic() - began
    renew()
    while n_hits < n:
        process = start()
        time.sleep(rng.uniform(0, whole))
        process.kill(number)
        status, _, err = process.wait()
        assert err == "" and status in (0, SIGNALS[number], -number)
        check()
        # While Python takes itself down, after all is done, Ctrl-C ends it as any program: 130 in a shell again.
        if status in (0, -signal.SIGINT):
            renew()
        else:
            n_hits += 1
    assert start().wait()[::2] == (0, "")
    renew()


# ---- jobs


def attack_job(server, tmp_path, number, n, n_prompts, seed=0):
    folder, out = write_folder(tmp_path / "model", {**CONFIG, "n_positions": 64}), tmp_path / "out.jsonl"
    part = tmp_path / "out.jsonl.part"
    rng = random.Random(1)
    prompts = [" ".join(rng.choices(["the", "king", "in"], k=rng.randrange(1, 9))) for _ in range(n_prompts)]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
    arguments = ["complete", tmp_path / "prompts.txt", "--model", folder, "--rows", 4, "--seed", 7]
    arguments += ["--temperature", 1, "--n_tokens_to_generate", 12, "--n_samples", 2, "--ignore_eos"]

    def start(out=out):
        return Process(server, tmp_path, "jobs", [*arguments, "--out", out], {})

    assert start(tmp_path / "undisturbed.jsonl").wait() == (0, "", "")
    undisturbed = (tmp_path / "undisturbed.jsonl").read_bytes()
    assert undisturbed.count(b"\n") == 2 * n_prompts
    reached = [0]

    def check():
        """Each whole line is one of an undisturbed run: nothing is lost, twice or otherwise."""
        found = part.read_bytes().splitlines(keepends=True)[1:] if part.exists() else []
        whole = [line for line in found if line.endswith(b"\n")]
        assert len({*whole}) == len(whole) and len(found) - len(whole) <= 1
        assert {*whole} <= {*undisturbed.splitlines(keepends=True)}
        assert out.read_bytes() == undisturbed if out.exists() else len(whole) >= reached[-1]
        reached.append(len(whole))

    def renew():
        assert out.read_bytes() == undisturbed
        out.unlink()
        reached.append(0)

    attack(start, check, renew, number, n, seed)
    return {*reached}


@pytest.mark.slow
def test_a_job_that_gets_ctrl_c(server, tmp_path):
    attack_job(server, tmp_path, signal.SIGINT, n=2, n_prompts=12)


@pytest.mark.slow
@each_signal
def test_a_job_that_gets_fifty_signals(server, tmp_path, number):
    sizes = attack_job(server, tmp_path, number, n=50, n_prompts=60, seed=1)
    assert len(sizes) > 5  # they came at different moments


# ---- downloads

TENSORS = make_tensors({**CONFIG, "n_embd": 120})
FILES = {
    "config.json": json.dumps({**CONFIG, "n_embd": 120}).encode(),
    "vocab.json": json.dumps(make_vocab()).encode(),
    "merges.txt": merges_txt().encode(),
    "model.safetensors": safetensors_bytes(TENSORS),
}


def attack_download(server, tmp_path, number, n, pieces, seed=0):
    folder, states = tmp_path / "org" / "name", set()
    with FakeHub() as hub:
        hub.add_model("org/name", FILES)
        hub.pieces, hub.pause = pieces, 0.004

        def start():
            for path in hub.files:
                hub.fault(path, *["slowly"] * 10)
            arguments = ["download", "org/name", "--models_dir", tmp_path]
            return Process(server, tmp_path, "utils", arguments, {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"})

        def check():
            """A final name is that of a whole file; what an attempt left is the beginning of one."""
            paths = sorted(folder.iterdir()) if folder.exists() else []
            states.add(tuple((path.name, path.stat().st_size) for path in paths))
            for path in paths:
                if path.suffix == ".part":
                    assert FILES[path.stem].startswith(path.read_bytes())
                elif path.suffix == ".lock":
                    assert path.read_bytes() == b""
                else:
                    assert path.read_bytes() == FILES[path.name]

        def renew():
            # The lock of the last file may stay behind: a killed process removes nothing, and the next one has no need.
            found = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}
            assert found == FILES
            shutil.rmtree(tmp_path / "org")

        attack(start, check, renew, number, n, seed)
    return states


def test_a_download_that_is_killed_in_each_file(server, tmp_path):
    """Half of it has been sent then. The next run goes on, and the last one has all files."""
    with FakeHub() as hub:
        hub.add_model("org/name", FILES)
        for path in hub.files:
            hub.fault(path, "stall")
        for n_runs in range(len(FILES) + 1):
            arguments = ["download", "org/name", "--models_dir", tmp_path]
            address = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
            process = Process(server, tmp_path, "utils", arguments, address)
            if n_runs < len(FILES):
                assert hub.half_way.wait(60)
                process.kill(signal.SIGKILL)
                hub.half_way.clear()
            assert process.wait()[0] == (0 if n_runs == len(FILES) else -signal.SIGKILL)
    folder = tmp_path / "org" / "name"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"} == FILES


@pytest.mark.slow
@each_signal
def test_a_download_that_gets_fifty_signals(server, tmp_path, number):
    states = attack_download(server, tmp_path, number, n=50, pieces=20, seed=1)
    assert len(states) > 5


# ---- Ctrl-C where Python would only report it, and a user's own


def test_ctrl_c_while_a_download_loads_requests(tmp_path):
    """What a command imports on its way is a part of it."""
    waiting = "import time\nprint('x', end='', flush=True)\ntime.sleep(60)"
    (tmp_path / "requests.py").write_text(waiting, encoding="utf-8")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]), "HF_HUB_OFFLINE": "0"}
    arguments = [sys.executable, ROOT / "utils.py", "download", "org/none", "--models_dir", tmp_path]
    assert interrupted(arguments, environment) == (130, b"")


def interrupted(arguments, environment=None, n=1, out=None):
    """Start a command, send Ctrl-C for each of n letters that it prints -> exit status, stderr; out gets the rest."""
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(environment or {})},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a shell's foreground
    )  # fmt: skip
    for _ in range(n):
        assert process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGINT)
    output, err = process.communicate(timeout=60)
    if out is not None:
        out.append(output)
    return process.returncode, err


COMMAND = """
import sys, time
sys.path.insert(0, {root!r})
import utils
def wait():
    print("x", end="", flush=True)
    time.sleep(60)
def main(*prompts):
{body}
utils.run(main)
"""


@pytest.mark.parametrize(
    "body, n",
    [
        ("    try: wait()\n    finally: wait()", 2),  # a second Ctrl-C while the first one is at work
        ("    class Closing:\n        def __del__(self): wait()\n    Closing(); time.sleep(60)", 1),
        pytest.param(
            "    class Made:\n        def __init__(self): wait()\n        def __del__(self): self.not_yet\n    Made()",
            1,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["twice", "where Python drops it", "with something half made"],
)
def test_ctrl_c_at_inconvenient_moments(tmp_path, body, n):
    """Python drops what is raised while an object is removed, and prints it: the command would run on."""
    (tmp_path / "script.py").write_text(COMMAND.format(root=str(ROOT), body=body), encoding="utf-8")
    assert interrupted([sys.executable, tmp_path / "script.py"], n=n) == (130, b"")


OWN_CTRL_C = """
import sys, time
sys.path.insert(0, {root!r})
import utils
try:
    print("x", end="", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("mine", flush=True)
    raise
finally:
    print("closed", flush=True)
"""


def test_a_script_that_imports_utils_keeps_its_own_ctrl_c(tmp_path):
    """Also one that lies beside utils.py."""
    shutil.copy(ROOT / "utils.py", tmp_path)
    shutil.copytree(ROOT / "gpt2_io", tmp_path / "gpt2_io")
    (tmp_path / "script.py").write_text(OWN_CTRL_C.format(root=str(tmp_path)), encoding="utf-8")
    out = []
    status, err = interrupted([sys.executable, tmp_path / "script.py"], out=out)
    assert status == -signal.SIGINT and b"KeyboardInterrupt" in err and out == [b"mine\nclosed\n"]


def test_utils_changes_nothing_in_the_program_that_imports_it():
    code = """
import signal, sys, threading
def state():
    return signal.getsignal(signal.SIGINT), sys.unraisablehook, sys.excepthook
before, failed = state(), []
threading.excepthook = failed.append
thread = threading.Thread(target=lambda: __import__("utils"))
thread.start()
thread.join()
assert "utils" in sys.modules and not failed and state() == before
import utils
for main in (lambda *texts: None, lambda: 1 / 0, lambda: open("no/such/file")):
    sys.argv = ["script"]
    try:
        utils.run(main)
    except (ZeroDivisionError, SystemExit):
        pass
    assert state() == before
thread = threading.Thread(target=utils.run, args=[lambda: None])
thread.start()
thread.join()
assert not failed and state() == before
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


# ---- clocks

# Where small machines without a battery begin.
IN_1971 = """
import time
now, localtime = time.time, time.localtime
began = now()
time.time = lambda: 4e7 + now() - began
time.localtime = lambda seconds=None: localtime(time.time() if seconds is None else seconds)
"""


def test_a_job_goes_on_with_the_clock_set_back(server, edge, tmp_path):
    """Nothing depends on the time of day, nor on the times of files: these are from the future."""
    folder = write_folder(tmp_path / "model")
    (tmp_path / "p.txt").write_text("the\nin\nthe king\na", encoding="utf-8")
    arguments = ["complete", tmp_path / "p.txt", "--out", tmp_path / "o", "--model", folder, "--ignore_eos"]
    arguments += ["--temperature", 1, "--seed", 3, "--n_tokens_to_generate", 4, "--rows", 1]
    assert edge(jobs.COMMANDS, *arguments).returncode == 0
    whole = (tmp_path / "o").read_bytes()
    (tmp_path / "o").unlink()
    (tmp_path / "o.part").write_bytes(FIRST_LINE + whole[: len(whole) // 2])
    for path in (tmp_path / "o.part", tmp_path / "p.txt", *folder.iterdir()):
        os.utime(path, (4e9, 4e9))
    assert Process(server, tmp_path, "jobs", arguments, code=IN_1971).wait() == (0, "", "")
    assert (tmp_path / "o").read_bytes() == whole


def test_a_download_goes_on_with_the_clock_set_back(server, tmp_path):
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    data = FILES["model.safetensors"]
    for name, left in (("model.safetensors.part", data[:1000]), ("model.safetensors.lock", b"")):
        (folder / name).write_bytes(left)
        os.utime(folder / name, (4e9, 4e9))
    with FakeHub() as hub:
        hub.add_model("org/name", FILES)
        environment, arguments = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": ""}, ["org/name", "--models_dir", tmp_path]
        process = Process(server, tmp_path, "utils", ["download", *arguments], environment, IN_1971)
        assert process.wait()[::2] == (0, "")
        assert hub.ranges("model.safetensors") == ["bytes=1000-"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_convert_writes_the_same_bytes_at_any_time(server, tmp_path):
    """A zip file knows no time before 1980."""
    folder = write_folder(tmp_path / "model")
    utils.convert(folder, tmp_path / "now.npz")
    process = Process(server, tmp_path, "utils", ["convert", folder, tmp_path / "then.npz"], code=IN_1971)
    assert process.wait()[::2] == (0, "")
    assert (tmp_path / "now.npz").read_bytes() == (tmp_path / "then.npz").read_bytes()


# ---- a weight file that changes under a model in use


def test_a_weight_file_that_is_replaced_while_it_is_mapped(tmp_path):
    """Replaced as `mv`, download and convert do it: the model in use keeps the old file, the next one gets the new."""
    folder = write_folder(tmp_path / "model")
    _, _, params = utils.load_model(folder)
    expected = v4.generate([[1, 2, 3]], params, CONFIG["n_head"], 8)
    _, _, params = utils.load_model(folder)
    other = write_folder(tmp_path / "other", tensors=make_tensors(seed=1))
    os.replace(other / "model.safetensors", folder / "model.safetensors")
    assert v4.generate([[1, 2, 3]], params, CONFIG["n_head"], 8) == expected
    _, _, params = utils.load_model(folder)
    np.testing.assert_array_equal(params["wte"], make_tensors(seed=1)["wte.weight"])


SHRINK = """
import os, sys
import gpt2_v4_sampling as v4, utils
_, hparams, params = utils.load_model(sys.argv[1])
os.truncate(sys.argv[1] + "/model.safetensors", 4096)
v4.generate([[1, 2, 3]], params, hparams["n_head"], 2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a system does to those who read beyond the end differs")
def test_a_weight_file_that_is_cut_while_it_is_mapped_ends_the_process(tmp_path):
    """No Python program can turn this into a message: the system ends it (SIGBUS). It writes nothing wrong, though."""
    config = {**CONFIG, "n_embd": 48}
    folder = write_folder(tmp_path / "model", config)
    result = subprocess.run([sys.executable, "-c", SHRINK, str(folder)], cwd=ROOT, capture_output=True, timeout=60)
    assert result.returncode == -signal.SIGBUS


def test_a_file_that_grows_shorter_while_it_is_downloaded(tmp_path, monkeypatch):
    """Somebody else cuts the part: the next attempt starts from there, and the checks at the end hold."""
    folder = tmp_path / "org" / "name"
    monkeypatch.setattr("gpt2_io.downloads.RETRY_PAUSES", (0, 0, 0))
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add_model("org/name", FILES)
        cut = []

        def cut_first(part):
            if not cut:
                cut.append(os.truncate(part, 100))
            return sha256_of(part)

        monkeypatch.setattr("gpt2_io.downloads.sha256_of", cut_first)
        hub.fault("/org/name/resolve/main/model.safetensors", "redirect", None, "redirect", None)
        find_model("org/name", tmp_path)
    assert cut and {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


# ---- folders and disks that cannot be written


def refuse(code):
    def call(*_, **__):
        raise OSError(code, os.strerror(code), "somewhere")

    return call


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("out", ["x.npz", "folder"])
def test_convert_on_a_disk_that_takes_nothing(edge, tmp_path, monkeypatch, code, out):
    """The calls are refused here, at the last moment; test_odd_machines.py has folders that are really read-only."""
    folder = write_folder(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse(code))
        assert_one_line(edge(utils.COMMANDS, "convert", folder, tmp_path / out), os.strerror(code))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError], ids=lambda error: error.__name__)
def test_convert_that_is_broken_off_leaves_no_half_folder(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    folder = write_folder(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(safetensors, "write_safetensors", fail)
        with pytest.raises(error):
            utils.convert(folder, tmp_path / "new" / "folder")
    assert not list((tmp_path / "new").iterdir())
    utils.convert(folder, tmp_path / "new" / "folder")
    assert has_weights(tmp_path / "new" / "folder")


def test_what_a_killed_convert_left_is_named(edge, tmp_path):
    folder = write_folder(tmp_path / "model")
    (tmp_path / "x.part").mkdir()
    assert_one_line(edge(utils.COMMANDS, "convert", folder, tmp_path / "x"), tmp_path / "x.part", "remove it")
