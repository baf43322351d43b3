"""Which BLAS NumPy calls."""
import ctypes
from pathlib import Path

import numpy as np


def blas_in_use():
    """The BLAS that NumPy calls and, if it is OpenBLAS, the kernel that it chose for this processor -> text."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    kernel = ""
    for path in Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*"):  # where the wheels have it
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                get_corename = getattr(library, name)
                get_corename.restype = ctypes.c_char_p
                kernel = f", kernel {get_corename().decode()}"
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}{kernel}"
