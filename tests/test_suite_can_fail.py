"""The suite goes red when the versions are wrong: faults that people make are put into a copy, and the suite run on it.

test_diff.py is not among the tests that are run: it would notice any change to one file, and the point is that
behaviour is tested. Nor is test_command_line.py, which takes its time. Most of it takes a minute and is `slow`.
"""
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys

import pytest
from tiny import ROOT, VERSIONS

FILES = ("reference", "traps", "padding", "cache", "lengths", "equivalence", "exact", "continuous")
SUITE = [f"tests/test_{name}.py" for name in FILES]
NAMES = [version.name for version in VERSIONS]
SLOW_TOO = ["-m", "not reference and not kernels and not extra"]

FAULTS = {  # what is wrong: {the text as it is: the text as it is then}, one of them in each file that can be wrong so
    "position ids that ignore the padding": {
        "np.cumsum(real, axis=1)": "np.cumsum(np.ones_like(real), axis=1)",
    },
    "a causal mask that starts at 0 for a chunk": {
        "np.tri(T, n_past + T, n_past, dtype=bool)": "np.tri(T, n_past + T, 0, dtype=bool)",
        "<= positions[:, None, :, None]": "<= np.arange(positions.shape[1])[None, None, :, None]",
    },
    "pads visible as keys": {
        " & real[:, None, None, :]": " & np.ones_like(real)[:, None, None, :]",
    },
    "one shared position for all rows at decode": {
        "[:, n_past:]  # [B, n_past+T] -> [B, T]": "[:, n_past:] if n_past == 0 else n_past + np.arange(T)[None]",
    },
    "a cache written one slot late": {
        "kv_cache[..., n_k - shape[-2] : n_k, :] = k, v": "kv_cache[..., n_k - shape[-2] + 1 : n_k + 1, :] = k, v",
        "*np.nonzero(new), position_ids[new]": "*np.nonzero(new), position_ids[new] + 1",
    },
    "a cache written one slot late where there is room, so that nothing crashes": {
        "kv_cache[..., n_k - shape[-2] : n_k, :] = k, v": (
            "late = int(n_k < kv_cache.shape[3]); kv_cache[..., n_k - shape[-2] + late : n_k + late, :] = k, v"
        ),
    },
    "a cache that forgets its pads": {
        'np.append(kv_cache["real"], real, axis=1)': 'np.append(np.ones_like(kv_cache["real"]), real, axis=1)',
    },
    "a cache that grows before the logits are there": {
        "    x = x if n_logits": "    kv_cache.update(length=n_past + T, real=real)\n    x = x if n_logits",
    },
    "a prefill that leaves its first chunks when it is broken off": {
        "cache = dict(kv_cache)": "cache = kv_cache",
    },
    "np.sum in softmax": {
        "(x @ np.ones(x.shape[-1], x.dtype))[..., None]": "np.sum(x, axis=-1, keepdims=True)",
        "np.cumsum(sums[..., 0], axis=-1)[..., -1:]": "np.sum(x, axis=-1, keepdims=True)",
    },
    "linear without bias": {
        "@ w + b": "@ w",
        "np.resize(b, (n_tiles, TILE))": "np.zeros((n_tiles, TILE), x.dtype)",
    },
    "layer norm with eps 1e-6": {
        "eps=1e-5": "eps=1e-6",
    },
    "float64 scalars in gelu": {
        "math.sqrt(2 / math.pi)": "np.sqrt(2 / np.pi)",
    },
}


def read(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


def files_with(fault):
    """The versions that can have a fault. None can be left without any: then its texts are out of date."""
    for text in FAULTS[fault]:
        assert any(text in read(name) for name in NAMES), f"no file has: {text}"
    return [name for name in NAMES if any(text in read(name) for text in FAULTS[fault])]


def with_fault(source, fault):
    """The source with a fault, in one place."""
    [(text, instead)] = [(text, instead) for text, instead in FAULTS[fault].items() if text in source]
    assert source.count(text) == 1, f"{source.count(text)} times: {text}"
    return source.replace(text, instead)


def run(folder, tests, fault=None, names=(), choice=()):
    """Copy the versions to a folder, put a fault into these of them, and run tests of this folder on the copy.

    choice: flags of pytest that say which tests.
    """
    folder.mkdir()
    for name in NAMES:
        source = with_fault(read(name), fault) if name in names else read(name)
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    options = ["-x", "-p", "no:cacheprovider", "-o", f"pythonpath={shlex.quote(str(folder))} . tests tools"]
    options += ["-p", "xdist.plugin", "-n0"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins that happen to be there only cost time
    command = [sys.executable, "-m", "pytest", *options, *choice, *tests]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="utf-8", timeout=300)


def assert_red(fault, names, folder, suite=SUITE, choice=()):
    """-> the test that failed."""
    result = run(folder, suite, fault, names, choice)
    # 1: a test failed. Other codes, as for files that cannot be imported, are no finding of the suite.
    assert result.returncode == 1, f"{fault} in {names}: not red\n{result.stdout}{result.stderr}"
    return re.search(r"^FAILED (tests/test_\w+\.py::.+?)( - |$)", result.stdout, re.MULTILINE).group(1)


def assert_all_red(mutants, folder):
    """The suite is red for each of these (fault, names, flags), and what failed there passes without a fault."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [
            pool.submit(assert_red, fault, names, folder / str(i), choice=choice)
            for i, (fault, names, choice) in enumerate(mutants)
        ]
        failed = [job.result() for job in jobs]
    assert len(failed) == len(mutants) > 0
    unchanged = run(folder / "unchanged", sorted(set(failed)), choice=SLOW_TOO)
    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    assert f"{len(set(failed))} passed" in unchanged.stdout


def test_each_fault_can_be_put_into_a_file():
    for fault in FAULTS:
        for name in files_with(fault):
            with_fault(read(name), fault)


def test_a_fault_turns_the_suite_red(tmp_path):
    fault = "a cache that forgets its pads"
    assert_red(fault, files_with(fault), tmp_path / "versions", ["tests/test_cache.py"])


@pytest.mark.slow
def test_a_fault_in_all_files_turns_the_suite_red(tmp_path):
    """All of them are wrong in the same way then, so that comparing them with each other may not help."""
    assert_all_red([(fault, files_with(fault), ()) for fault in FAULTS], tmp_path)


@pytest.mark.slow
def test_a_fault_in_one_file_turns_the_suite_red(tmp_path):
    """By the tests of that file, of which those of versions between the first and the newest are `slow`."""
    mutants = [(fault, [name], [*SLOW_TOO, "-k", name]) for fault in FAULTS for name in files_with(fault)]
    assert_all_red(mutants, tmp_path)
