"""The rooms of the project: imports run one way, versions see one door, and no file grows too long."""
import ast

import pytest
from tiny import ROOT

import versions

ROOMS = """
    errors files settings
    safetensors npz gguf pickles layouts
    blas cores
    checkpoint params
    text_ends added_tokens tokenizer_files other_tokenizers tokenizer
    streams continuations rules
    downloads hub
    command_line
    prompts results scoring
    folders batches ray_jobs
""".split()  # of gpt2_io, in order: a room imports from those before it
FILES = [f"gpt2_io.{room}" for room in ROOMS] + ["utils"]
FOLDERS = ("tools", "benchmarks", "docs", "tests")  # in order; files of one folder may import each other
ALLOWED = {
    ("fuzz_targets", "torch_files"),
    ("fuzz_targets", "model_files"),  # the fuzzer breaks the files that the tests make
    ("fuzz_targets", "torch_files"),
}


def ranks():
    """Every module of the project, by the name under which it is imported -> its place in the order."""
    places = [[name] for name in FILES] + [[version.file for version in versions.VERSIONS], ["jobs"]]
    places += [[path.stem for path in (ROOT / folder).glob("*.py")] for folder in FOLDERS]
    return {name: rank for rank, names in [*enumerate(places)][::-1] for name in names}  # the first of a name


RANKS = ranks()


def imports(source):
    """The modules that a file imports, also within functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield from (f"gpt2_io.{node.module or alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"gpt2_io.{alias.name}" for alias in node.names if node.module == "gpt2_io")
            yield node.module


def runs_back(module, source):
    """The imports of a module that run against the order -> {(module, imported)}."""
    is_version = module.startswith("gpt2_v")
    wrong = set()
    for name in imports(source):
        in_folder = RANKS[module] > RANKS["jobs"]
        last = RANKS[module] if in_folder else RANKS[module] - 1
        if name in RANKS and (RANKS[name] > last or is_version and name != "utils"):
            wrong.add((module, name))
        if name.startswith("gpt2_io.") and name not in RANKS and (ROOT / f"{name.replace('.', '/')}.py").exists():
            wrong.add((module, name))
    return wrong


def source_of(module):
    paths = [ROOT / f"{module.replace('.', '/')}.py", *(ROOT / folder / f"{module}.py" for folder in FOLDERS)]
    return next((path.read_text(encoding="utf-8") for path in paths if path.exists()), "")


def test_imports_run_one_way():
    """Tests, which come last, may import everything."""
    last = max(RANKS.values())
    assert set().union(*(runs_back(module, source_of(module)) for module in RANKS if RANKS[module] < last)) <= ALLOWED


@pytest.mark.parametrize(
    "module, source, wrong",
    [
        ("gpt2_io.safetensors", "from gpt2_io.checkpoint import tie", "gpt2_io.checkpoint"),
        ("gpt2_io.errors", "def f():\n    from gpt2_io import files", "gpt2_io.files"),
        ("gpt2_io.hub", "from . import results", "gpt2_io.results"),
        ("gpt2_io.hub", "from .results import to_line", "gpt2_io.results"),
        ("gpt2_io.results", "import utils", "utils"),
        ("gpt2_io.results", "import gpt2_v4_sampling", "gpt2_v4_sampling"),
        ("utils", "import gpt2_v0", "gpt2_v0"),
        ("gpt2_v1_batching", "import utils\nfrom gpt2_v0 import gelu", "gpt2_v0"),
        ("gpt2_v0", "from gpt2_io.errors import UserError", "gpt2_io.errors"),
        ("gpt2_v0", "import jobs", "jobs"),
        ("jobs", "import versions", "versions"),
        ("versions", "import bench", "bench"),
        ("bench", "import tiny", "tiny"),
    ],
)
def test_an_import_that_runs_back_is_found(module, source, wrong):
    assert runs_back(module, source) == {(module, wrong)}
    assert runs_back(module, "import os, numpy.linalg\nfrom math import exp") == set()


def test_every_room_has_its_place():
    """A new room is put into ROOMS, behind those that it imports."""
    assert {path.stem for path in (ROOT / "gpt2_io").glob("*.py")} - {"__init__"} == set(ROOMS)


def missing(files, table):
    """Files of versions without an entry, and entries without a file -> what to do, or ""."""
    wrong = sorted(set(files) ^ {version.file for version in table})
    return f"{', '.join(wrong)}: a version is a file and an entry in tools/versions.py" if wrong else ""


def test_every_version_is_in_the_table():
    files = [path.stem for path in ROOT.glob("gpt2_v*.py")]
    assert missing(files, versions.VERSIONS) == ""
    assert [version.name for version in versions.VERSIONS] == [f"v{i}" for i in range(len(files))]
    assert "gpt2_v99_new: " in missing([*files, "gpt2_v99_new"], versions.VERSIONS)
    assert "gpt2_v0: " in missing(files, versions.VERSIONS[1:])
    assert "tools/versions.py" in missing([], versions.VERSIONS)


def test_no_file_of_the_library_is_long():
    lengths = {name: len(source_of(name).splitlines()) for name in FILES}
    assert {name: n for name, n in lengths.items() if n > (200 if name == "utils" else 400)} == {}
