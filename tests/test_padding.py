"""Prompts of different lengths in one batch: padding, mask and positions.

That each prompt has the bits that it has alone is in test_equivalence.py.
"""
import warnings

import numpy as np
import pytest
from tiny import PADDING, V0, assert_same_bits, position_model, random_model, real_rows, where_the_model_is_new

every_version = pytest.mark.parametrize("version", where_the_model_is_new(PADDING), ids=str)

PROMPTS = [[1, 4, 7, 2], [3], [5, 6]]


@every_version
def test_positions_count_real_tokens(version):
    """Mask [[0, 0, 1, 1]] gives positions [[0, 0, 0, 1]]; here each best id is its token's position."""
    model = position_model()
    mask = np.array([[0, 0, 1, 1]])
    call = {**version.params(model), "n_head": model.n_head, "attention_mask": mask}
    logits = version.module.gpt2(np.array([[0, 0, 5, 2]]), **call)
    assert np.argmax(logits, axis=-1).tolist() == [[0, 0, 0, 1]]


@every_version
def test_each_row_has_its_own_position_when_decoding(version):
    """Prompts of 1 and 5 tokens go on at positions 1 and 5, not both at 5."""
    assert version.generate(position_model(), [[3], [1, 2, 3, 4, 5]], 3) == [[0, 1, 2], [4, 5, 6]]


@every_version
@pytest.mark.parametrize("dtype", [np.float32, np.longdouble], ids=["float32", "longdouble"])
def test_a_row_without_a_visible_key(version, dtype):
    """All keys masked: no NaN, no warning, and nothing changes for the other row."""
    model = random_model(dtype)
    ids = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    mask = np.array([[0, 0, 0, 0], [1, 1, 1, 1]])
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        logits = version.module.gpt2(ids, **version.params(model), n_head=model.n_head, attention_mask=mask)
    assert np.all(np.isfinite(logits))
    if dtype is np.longdouble:
        assert_same_bits(logits[1], V0.logits(model, [[5, 6, 7, 8]])[0])


@every_version
def test_pads_stand_on_the_left(version):
    """The last column is a real token in every row."""
    input_ids, mask = version.module.left_pad(PROMPTS)
    assert input_ids.tolist() == [[1, 4, 7, 2], [0, 0, 0, 3], [0, 0, 5, 6]]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]


@every_version
def test_pads_on_the_right_are_refused(version):
    model = random_model(n_ctx=8)
    with pytest.raises(ValueError, match="left_pad"):
        mask = [[1, 1], [1, 0]]
        version.module.generate([[1, 2], [3, 0]], version.params(model), model.n_head, 2, attention_mask=mask)


@every_version
def test_the_mask_comes_from_lengths_and_never_from_ids(version):
    """The pad id may be a real token too, also at the start of a prompt, and its embedding must not matter."""
    model = random_model(n_ctx=8)
    prompts = [[0, 0, 3], [0], [16, 16, 16, 16, 2], [5, 0]]
    expected = V0.logits(model, prompts)
    for pad_id in (0, 5, 16):
        input_ids, mask = version.module.left_pad(prompts, pad_id=pad_id)
        assert mask.sum(axis=1).tolist() == [3, 1, 5, 2]
        assert input_ids[1].tolist() == [pad_id] * 4 + [0]
        logits = version.module.gpt2(input_ids, **version.params(model), n_head=model.n_head, attention_mask=mask)
        assert_same_bits(real_rows(logits, prompts), expected)


@every_version
def test_pads_take_nothing_from_the_end_of_wpe(version):
    """cumsum(mask) - 1 is -1 for a pad, and wpe[-1] the last row: with NaN there, it would spread over the batch."""
    model = random_model(n_ctx=8)
    wpe = model.params["wpe"].copy()
    wpe[-1] = np.nan
    spoilt = model._replace(params=model.params | {"wpe": wpe})
    assert_same_bits(version.logits(spoilt, PROMPTS), V0.logits(model, PROMPTS))
    assert version.generate(spoilt, PROMPTS, 3) == V0.generate(model, PROMPTS, 3)


@every_version
def test_a_mask_may_hold_bools_or_be_a_list(version):
    model = random_model(n_ctx=8)
    input_ids, mask = version.module.left_pad(PROMPTS)
    call = input_ids, version.params(model), model.n_head, 3
    expected = version.module.generate(*call, attention_mask=mask)
    for same in (mask.astype(bool), mask.tolist(), mask.astype(np.float32)):
        assert version.module.generate(*call, attention_mask=same) == expected
