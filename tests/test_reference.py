"""v0 against an independent implementation, so that five equal versions that are all wrong do not pass.

test_equivalence.py carries this over to the other versions.
"""
import math

import numpy as np
import pytest
import reference
from tiny import SIZES, V0, VERSIONS, random_model, random_prompts

every_version = pytest.mark.parametrize("version", VERSIONS, ids=str)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [1, 2, 9, 17])
def test_v0_in_float64(size, length):
    """The tolerance leaves room for rounding alone: epsilon 1e-6 in place of 1e-5 would differ 10,000 times as much."""
    model, prompts = random_model(np.float64, **SIZES[size]), random_prompts([length])
    expected = reference.gpt2_logits(prompts[0], model.params, model.n_head)
    actual = V0.logits(model, prompts)[0]
    assert actual.shape == (length, model.n_vocab)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)


# The parts, in every version and in the reference, against values that can be checked by hand.


every_implementation = pytest.mark.parametrize(
    "module", [reference, *(version.module for version in VERSIONS)], ids=lambda module: module.__name__
)


def on_lists(module, name):
    """A function of a version, which takes arrays, or of the reference, which takes lists, as one that takes lists."""
    function = getattr(module, name)
    if module is not reference:
        return lambda *lists: function(*(np.array(values) for values in lists))
    if name == "gelu":  # of one number
        return lambda xs: [function(x) for x in xs]
    return function


@every_implementation
def test_gelu_by_hand(module):
    """x times the probability that a standard normal is below x; the form with tanh is off by less than 5e-4."""
    gelu = on_lists(module, "gelu")
    xs = [-10.0, -3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 10.0]
    exact = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in xs]
    np.testing.assert_allclose(gelu(xs), exact, rtol=0, atol=5e-4)
    assert gelu([0.0])[0] == 0
    # At 1 the form with tanh is (1 + tanh(sqrt(2 / pi) * 1.044715)) / 2 = 0.841192, the exact value 0.841345.
    np.testing.assert_allclose(gelu([1.0]), [0.8411919906082768], rtol=1e-14)


@every_implementation
def test_softmax_by_hand(module):
    softmax = on_lists(module, "softmax")
    hidden = [-1e10] * 62
    expected = [1 / 4, 3 / 4, *[0] * 62]
    np.testing.assert_allclose(softmax([0.0, math.log(3), *hidden]), expected, rtol=1e-14)
    np.testing.assert_allclose(softmax([1000.0, 1000.0 + math.log(3), *hidden]), expected, rtol=1e-12)  # no overflow


@every_implementation
def test_layer_norm_by_hand(module):
    """1, 3 have mean 2 and variance 1; the sum of variance and epsilon is 1.00001."""
    layer_norm = on_lists(module, "layer_norm")
    expected = [-2 / math.sqrt(1.00001) + 10, 4 / math.sqrt(1.00001) + 20]
    np.testing.assert_allclose(layer_norm([1.0, 3.0], [2.0, 4.0], [10.0, 20.0]), expected, rtol=1e-14)


@every_version
def test_linear_by_hand(version):
    """[1, 2] times [[3, 4, 5], [6, 7, 8]] is [15, 18, 21]; then the bias."""
    x, w, b = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]), np.array([0.5, 0.0, -1.0])
    x = x[None] if version.batches else x  # [T, n_in] or [B, T, n_in]
    np.testing.assert_array_equal(version.module.linear(x, version.weight(w), b).reshape(3), [15.5, 18, 20])
