"""The suite goes red when the versions are wrong: faults that people make are put into a copy, and the suite run on it.

test_diff.py is not among the tests that are run: it would notice any change to one file, and the point is that
behaviour is tested. Nor is test_command_line.py, which takes its time.
"""
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys

import pytest
from tiny import ROOT, VERSIONS

SUITE = [f"tests/test_{name}.py" for name in ("reference", "traps", "padding", "cache", "lengths", "equivalence")]
NAMES = [version.name for version in VERSIONS]

FAULTS = {  # what is wrong: (the text as it is, the text as it is then)
    "position ids that ignore the padding": (
        "np.cumsum(real, axis=1)",
        "np.cumsum(np.ones_like(real), axis=1)",
    ),
    "a causal mask that starts at 0 for a chunk": (
        "np.tri(T, n_past + T, n_past, dtype=bool)",
        "np.tri(T, n_past + T, 0, dtype=bool)",
    ),
    "pads visible as keys": (
        " & real[:, None, None, :]",
        " & np.ones_like(real)[:, None, None, :]",
    ),
    "one shared position for all rows at decode": (
        "[:, n_past:]  # [B, n_past+T] -> [B, T]",
        "[:, n_past:] if n_past == 0 else n_past + np.arange(T)[None]",
    ),
    "a cache written one slot late": (
        "kv_cache[:, :, :, n_k - T : n_k] = k, v",
        "kv_cache[:, :, :, n_k - T + 1 : n_k + 1] = k, v",
    ),
    "a cache written one slot late where there is room, so that nothing crashes": (
        "kv_cache[:, :, :, n_k - T : n_k] = k, v",
        "late = int(n_k < kv_cache.shape[3]); kv_cache[:, :, :, n_k - T + late : n_k + late] = k, v",
    ),
    "np.sum in softmax": (
        "(x @ np.ones(x.shape[-1], x.dtype))[..., None]",
        "np.sum(x, axis=-1, keepdims=True)",
    ),
    "linear without bias": ("@ w + b", "@ w"),
    "layer norm with eps 1e-6": ("eps=1e-5", "eps=1e-6"),
    "float64 scalars in gelu": ("math.sqrt(2 / math.pi)", "np.sqrt(2 / np.pi)"),
}


def files_with(text):
    """The versions that have a text, so that it can be spoilt there. If there is none, the fault is out of date."""
    names = [name for name in NAMES if text in (ROOT / f"{name}.py").read_text(encoding="utf-8")]
    assert names, f"no file has: {text}"
    return names


def run(folder, tests, fault=None, names=()):
    """Copy the versions to a folder, put a fault into these of them, and run tests of this folder on the copy."""
    folder.mkdir()
    for name in NAMES:
        source = (ROOT / f"{name}.py").read_text(encoding="utf-8")
        if name in names:
            text, instead = FAULTS[fault]
            assert source.count(text) == 1, f"{name}.py has it {source.count(text)} times: {text}"
            source = source.replace(text, instead)
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    options = ["-x", "-p", "no:cacheprovider", "-o", f"pythonpath={shlex.quote(str(folder))} . tests"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins that happen to be there only cost time
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="utf-8", timeout=300)


def assert_red(fault, names, folder):
    """-> the test that failed."""
    result = run(folder, SUITE, fault, names)
    # 1: a test failed. Other codes, as for files that cannot be imported, are no finding of the suite.
    assert result.returncode == 1, f"{fault} in {names}: not red\n{result.stdout}{result.stderr}"
    return re.search(r"^FAILED (tests/test_\w+\.py::.+?)( - |$)", result.stdout, re.MULTILINE).group(1)


def assert_all_red(mutants, folder):
    """The suite is red for each of these (fault, names of files), and what failed there passes without a fault."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [pool.submit(assert_red, *mutant, folder / str(i)) for i, mutant in enumerate(mutants)]
        failed = [job.result() for job in jobs]
    assert len(failed) == len(mutants) > 0
    unchanged = run(folder / "unchanged", sorted(set(failed)))
    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    assert f"{len(set(failed))} passed" in unchanged.stdout


def test_a_fault_in_all_files_turns_the_suite_red(tmp_path):
    """All of them are wrong in the same way then, so that comparing them with each other may not help."""
    assert_all_red([(fault, files_with(text)) for fault, (text, _) in FAULTS.items()], tmp_path)


@pytest.mark.slow
def test_a_fault_in_one_file_turns_the_suite_red(tmp_path):
    assert_all_red([(fault, [name]) for fault, (text, _) in FAULTS.items() for name in files_with(text)], tmp_path)
