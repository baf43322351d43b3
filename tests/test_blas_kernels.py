"""The tests marked `blas` once more, under the kernels that OpenBLAS has for other processors.

`pytest -m kernels`, with the extra test. OpenBLAS chooses its kernels when it is loaded, so each gets a process of its
own. They round differently: what is equal by luck under one is not under the next.
"""
import os
import subprocess
import sys

import pytest
from tiny import ROOT

# Multiplies in both types, so that a processor that lacks the kernel's instructions shows it, and says what ran.
PROBE = """
import numpy as np
import threadpoolctl

for dtype in (np.float32, np.float64):
    np.ones((64, 64), dtype) @ np.ones((64, 64), dtype)
print(*{library["architecture"] for library in threadpoolctl.threadpool_info() if "architecture" in library})
"""


@pytest.mark.kernels
@pytest.mark.parametrize(
    "kernel, threads",
    [
        *((kernel, 1) for kernel in ("SkylakeX", "Cooperlake", "Haswell", "Nehalem", "Zen", "Sandybridge", "Prescott")),
        ("Haswell", 2), ("Haswell", 4),
    ],
)  # fmt: skip
def test_blas_part_under(kernel, threads):
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": str(threads)}

    def python(*arguments):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")

    probe = python("-c", PROBE)
    assert "Error" not in probe.stderr, probe.stderr  # without threadpoolctl nobody knows what runs
    in_use = probe.stdout.strip() or "nothing (it crashed, or NumPy here is without OpenBLAS)"
    if in_use != {"Prescott": "Katmai"}.get(kernel, kernel):  # one table in OpenBLAS, which reports its oldest name
        pytest.skip(f"the kernels for {kernel} do not run on this processor: OpenBLAS used {in_use}")
    # The first three round in three ways; the others only have to keep what v5 promises.
    files = ["tests/test_equivalence.py"] * (kernel in ("SkylakeX", "Haswell", "Nehalem")) + ["tests/test_exact.py"]
    result = python("-m", "pytest", "-n0", "-m", "blas", "-p", "no:cacheprovider", *files)
    assert result.returncode == 0, result.stdout + result.stderr
    print(kernel, threads, result.stdout.splitlines()[-1])
