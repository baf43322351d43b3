"""Commands of the pages, run as a reader would run them, in a copy of the project."""
import concurrent.futures
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "*.py", "*.md", "*.txt", "*.toml", "LICENSE", "gpt2_io", "docs", "tests", "tools", "benchmarks", "models/tales",
    ".ci",
)  # fmt: skip


def copy_project(folder):
    """The files of the project, and nothing that lies beside them, into an empty folder."""
    for path in [path for pattern in COPIED for path in ROOT.glob(pattern)]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, target)


class Shell:
    """Runs commands in a copy of the project, in which `python` is the Python that runs this."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root, tools = Path(self.folder.name) / "project", Path(self.folder.name) / "bin"
        copy_project(self.root)
        tools.mkdir()
        for name, call in {"python": "", "pip": " -m pip --disable-pip-version-check"}.items():
            script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{call} "$@"\n'
            (tools / name).write_text(script, encoding="utf-8")
            (tools / name).chmod(0o755)
        self.environment = {
            **os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "GIT_CONFIG_GLOBAL": os.devnull,
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        self.pool, self.jobs = concurrent.futures.ThreadPoolExecutor(os.cpu_count()), {}

    def begin(self, commands):
        """Run commands that will be asked for, side by side."""
        for command in commands:
            if command not in self.jobs:
                self.jobs[command] = self.pool.submit(self.run, command)

    def result(self, command):
        """As `run`, once for each command."""
        self.begin([command])
        return self.jobs[command].result()

    def run(self, command, timeout=600):
        """-> the exit status, and what a reader would see on a terminal."""
        result = subprocess.run(
            ["bash", "-c", command], cwd=self.root, env=self.environment, timeout=timeout, encoding="utf-8",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return result.returncode, result.stdout

    def close(self):
        self.pool.shutdown(cancel_futures=True)
        self.folder.cleanup()
