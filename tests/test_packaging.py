"""There is no wheel, and pip says so in one line; an editable install brings the packages that the project needs."""
import os
import shutil
import subprocess
import sys

import pytest
from tiny import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.extra]  # they need a new setuptools


@pytest.fixture(scope="module")
def pip(tmp_path_factory):
    """pip of a fresh environment that sees the packages of this one: pip(*arguments) -> CompletedProcess."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder / "venv"], check=True)
    python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]  # a venv's sees none
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(*arguments):
        command = [python, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300)

    return run


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy, since pip leaves files beside what it looks at."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "utils.py", "gpt2_v0.py"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "gpt2_io", folder / "gpt2_io")
    return folder


OFFLINE = ("-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation")


def test_a_wheel_is_refused_in_one_line(pip, project):
    result = pip(*OFFLINE, project)
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "nothing to install" in line]
    assert result.returncode != 0 and len(lines) == 1 and "clone the repository" in lines[0], result
    assert "Traceback" not in result.stdout + result.stderr


def test_an_editable_install_passes_and_hides_no_module(pip, project):
    result = pip(*OFFLINE, "-e", f"{project}[test]")
    assert result.returncode == 0, result
    assert pip("-c", "import utils").returncode != 0  # a module of that name may be somebody else's
    shown = pip("-m", "pip", "show", "numpy-gpt2-by-diff").stdout
    assert {"numpy", "tiktoken", "fire"} <= set(shown.partition("Requires: ")[2].splitlines()[0].split(", "))
