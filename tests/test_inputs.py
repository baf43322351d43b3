"""Ids, shapes and masks that make no sense are refused in one clear line. NumPy would take some of them silently."""
import re

import numpy as np
import pytest
from tiny import BATCHING, CACHING, PADDING, VERSIONS, random_model, random_prompts

WRONG_IDS = pytest.mark.parametrize("wrong", [-1, 17, 10**6, 1.0, "1", None], ids=repr)
ABOUT_IDS = "^input_ids must be whole numbers from 0 to 16, the ids of the model's tokens$"
scoring = pytest.mark.parametrize("version", [v for v in VERSIONS if hasattr(v.module, "score")], ids=str)


def each(versions):
    return pytest.mark.parametrize("version", versions, ids=str)


@each(VERSIONS)
@WRONG_IDS
def test_ids_of_no_token_are_refused(version, wrong):
    """-1 would be the last row of wte, and 1.0 an IndexError about arrays. 16, the last of the 17 ids, is right."""
    model = random_model()
    for ids in ([wrong], [3, wrong, 4], [3, 4, wrong]):
        input_ids = [ids] if version.batches else ids
        with pytest.raises(ValueError, match=ABOUT_IDS):
            version.module.gpt2(input_ids, **model.params, n_head=model.n_head)
        with pytest.raises(ValueError, match=ABOUT_IDS):
            version.module.generate(input_ids, model.params, model.n_head, 2)
    assert len(version.generate(model, [[16, 0, 16]], 2)[0]) == 2


@each(CACHING)
@pytest.mark.parametrize("wrong", [-1, 17])
def test_ids_of_no_token_are_refused_at_a_decode_step_too(version, wrong):
    model = random_model()
    cache = version.new_cache(model, B=2, T_max=3)
    with pytest.raises(ValueError, match=ABOUT_IDS):
        version.module.decode_one_token(np.array([2, wrong]), model.params, model.n_head, cache)
    assert cache["length"] == 0


@scoring
@WRONG_IDS
def test_ids_of_no_token_are_refused_when_a_text_is_scored(version, wrong):
    """The last id is only looked up among the log-probabilities, where -1 would be the last token."""
    model = random_model()
    for ids in ([wrong, 3], [3, wrong]):
        with pytest.raises(ValueError, match=ABOUT_IDS):
            version.module.score([[1, 2, 3], ids], model.params, model.n_head)


@each(BATCHING)
def test_a_batch_of_nothing_is_refused(version):
    with pytest.raises(ValueError, match="^there is no prompt$|must be .B, T. both"):
        version.module.generate([], random_model().params, 3, 2)


@each(PADDING)
def test_left_pad_of_nothing_is_refused(version):
    with pytest.raises(ValueError, match="^there is no prompt$"):
        version.module.left_pad([])


@each(PADDING)
@pytest.mark.parametrize("shape", [(1, 4), (2, 3), (2, 5), (3, 4), (4,), (2, 4, 1)], ids=str)
def test_a_mask_of_another_shape_is_refused(version, shape):
    """Some would be stretched to fit, and the columns of others left out."""
    input_ids = np.array(random_prompts([4, 4]))
    with pytest.raises(ValueError, match=re.escape("input_ids and attention_mask must be [B, T] both; left_pad makes")):
        version.module.generate(input_ids, random_model().params, 3, 2, attention_mask=np.ones(shape, dtype=int))


@each(PADDING)
@pytest.mark.parametrize("input_ids", [[1, 2, 3], 5, [[[1, 2]]]], ids=repr)
def test_ids_without_a_row_per_prompt_are_refused(version, input_ids):
    """v0 takes [T]; from v1 on there is an axis for the batch."""
    with pytest.raises(ValueError, match=re.escape("must be [B, T] both")):
        version.module.generate(input_ids, random_model().params, 3, 2)


@each(PADDING)
@pytest.mark.parametrize("shape", [(1, 4), (2, 1), (2, 3), (3, 4), (2, 4, 1)], ids=str)
def test_the_model_itself_refuses_such_masks_too(version, shape):
    model = random_model()
    mask, words = np.ones(shape, dtype=int), ("attention_mask must be [2, 4]", str(list(shape)))
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        version.module.gpt2(np.ones((2, 4), dtype=int), **model.params, n_head=model.n_head, attention_mask=mask)


@each(CACHING)
def test_a_mask_of_the_new_tokens_alone_is_refused(version):
    """It has to tell which of the cached tokens are pads."""
    model = random_model()
    cache = version.new_cache(model, B=2, T_max=5)
    version.module.prefill(np.ones((2, 3), dtype=int), model.params, model.n_head, cache, np.ones((2, 3), dtype=int))
    with pytest.raises(ValueError, match=re.escape("attention_mask must be [2, 4] or wider, not [2, 1]")):
        version.module.decode_one_token(np.ones(2, dtype=int), model.params, model.n_head, cache, np.ones((2, 1), int))
