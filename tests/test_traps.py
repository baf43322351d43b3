"""Traps in single operations: sums that depend on zeros, scalars that turn float32 into float64, slow powers."""
import ast

import numpy as np
import pytest
from tiny import ROOT, VERSIONS, random_prompts, where_the_model_is_new

every_version = pytest.mark.parametrize("version", where_the_model_is_new(VERSIONS), ids=str)


class Watched(np.ndarray):
    """An array that notes the dtypes of what it is combined with, in each operation that it takes part in."""

    seen = []  # (name of the operation, dtypes of its NumPy arrays and scalars); Python's own floats have none

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        Watched.seen.append((ufunc.__name__, {x.dtype for x in inputs if hasattr(x, "dtype")}))
        inputs = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in inputs]
        if out:
            kwargs["out"] = tuple(x.view(np.ndarray) if isinstance(x, Watched) else x for x in out)
        result = getattr(ufunc, method)(*inputs, **kwargs)
        return out[0] if out else np.asarray(result).view(Watched)


def watched(*shape):
    """A random float32 array that is watched."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32).view(Watched)


PARTS = {  # function: (shapes of its arguments in v0, an operation that it must have been seen to do)
    "gelu": ([(9, 12)], "tanh"),
    "softmax": ([(9, 64)], "exp"),
    "layer_norm": ([(9, 12), (12,), (12,)], "sqrt"),
    "linear": ([(9, 12), (12, 8), (8,)], "matmul"),
    "attention": ([(9, 4), (64, 4), (64, 4), (9, 64)], "divide"),
}


@every_version
@pytest.mark.parametrize("part", PARTS)
def test_no_float64_scalar_takes_part(version, part):
    """np.sqrt(2 / np.pi) is a float64 scalar, and NumPy 2 computes in float64 with it; math.sqrt gives a Python float.

    The result's dtype alone does not tell: in place, as in gelu, it stays float32, and only each step is slower.
    """
    shapes, operation = PARTS[part]
    if version.batches:  # x [B, T, n]; queries, keys, values and mask [B, n_head, T, n]
        axes = {"linear": (1,), "attention": (1, 1)}.get(part, ())
        shapes = [(*axes, *shape) if len(shape) == 2 and shape != (12, 8) else shape for shape in shapes]
    if version.has_one_shape:  # a tile; a mask for each 64 queries
        shapes = [{(12, 8): (1, 1, 12, 64), (1, 1, 9, 64): (1, 1, 1, 9, 64)}.get(shape, shape) for shape in shapes]
    Watched.seen.clear()
    result = getattr(version.module, part)(*(watched(*shape) for shape in shapes))
    assert result.dtype == np.float32
    assert operation in {name for name, _ in Watched.seen}
    wide = [(name, dtypes) for name, dtypes in Watched.seen if dtypes & {np.dtype(np.float64), np.dtype(np.longdouble)}]
    assert wide == []


@every_version
def test_softmax_does_not_see_masked_keys_in_front(version):
    """np.sum adds in blocks from 8 terms on, so zeros in front would regroup them and change the last bits.

    In whole blocks of 64 keys, where there are such, the rest of the last block is masked, too.
    """
    scores = random_prompts([40], n_vocab=1000)[0]

    def softmax(scores):
        rest = -len(scores) % 64 if version.has_one_shape else 0
        return version.module.softmax(np.append(scores, np.full(rest, -1e10, np.longdouble)))[: len(scores)]

    for length in range(1, 40, 2):
        alone = np.array(scores[:length], dtype=np.longdouble) / 300
        for n_pads in (1, 2, 5, 8, 13, 19):
            weights = softmax(np.append(np.full(n_pads, -1e10, np.longdouble), alone))
            assert not np.any(weights[:n_pads])
            assert np.array_equal(weights[n_pads:], softmax(alone)), f"{length} keys: other bits behind {n_pads} pads"


@every_version
@pytest.mark.parametrize("name", ["gelu", "softmax"])
def test_parts_do_not_change_what_they_are_given(version, name):
    """They work in place for speed, on arrays of their own."""
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    x.flags.writeable = False
    assert getattr(version.module, name)(x).dtype == np.float32


@every_version
def test_no_power_loops(version):
    """x**3 runs a slow power loop in float32; x * x * x does not."""
    tree = ast.parse((ROOT / f"{version.name}.py").read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.Pow) for node in ast.walk(tree))
