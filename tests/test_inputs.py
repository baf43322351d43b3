"""Ids, shapes and masks that make no sense are refused in one clear line. NumPy would take some of them silently."""
import re

import numpy as np
import pytest
from tiny import BATCHING, CACHING, PADDING, VERSIONS, random_model, random_prompts

WRONG_IDS = pytest.mark.parametrize("wrong", [-1, 17, 10**6, 1.0, "1", None], ids=repr)
ABOUT_IDS = "^input_ids must be whole numbers from 0 to 16, the ids of the model's tokens$"
SAMPLING = [v for v in VERSIONS if hasattr(v.module, "sample")]
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


@each(PADDING)
@pytest.mark.parametrize("one", [2, -1, 0.5, 255, True], ids=repr)
def test_any_mark_but_0_in_a_mask_is_a_real_token(version, one):
    """Summed up as numbers, marks of 2 would make a prompt twice as long, and marks of -1 one of no length."""
    model, prompts = random_model(n_ctx=8), random_prompts([4, 2])
    input_ids, mask = version.module.left_pad(prompts)
    ids = version.module.generate(input_ids, model.params, model.n_head, 4, np.where(mask, one, 0))
    assert ids == version.generate(model, prompts, 4)
    with pytest.raises(ValueError, match="prompt 0 has 4 tokens and 5 are to be generated"):
        version.module.generate(input_ids, model.params, model.n_head, 5, np.where(mask, one, 0))


@each(PADDING)
def test_left_pad_takes_any_iterable(version):
    prompts = random_prompts([3, 1])
    for a, b in zip(version.module.left_pad(iter(prompts)), version.module.left_pad(prompts)):
        np.testing.assert_array_equal(a, b)


@each(CACHING)
@pytest.mark.parametrize("n_rows", [1, 3])
def test_a_cache_for_another_number_of_rows_is_refused(version, n_rows):
    """v5 would mix rows and heads, the others fail in the middle of the first block."""
    model = random_model()
    cache = version.new_cache(model, B=n_rows, T_max=9)
    before = cache["blocks"].copy()
    with pytest.raises(ValueError, match=f"in {n_rows} rows: no room for 2 more in 2"):
        version.module.gpt2(np.ones((2, 2), dtype=int), **model.params, n_head=model.n_head, kv_cache=cache)
    np.testing.assert_array_equal(cache["blocks"], before)


@each(SAMPLING)
@pytest.mark.parametrize(
    "seed", [[np.random.default_rng(0)] * 2, [None, None], [1, -1], [(1, 2), (1, -2)], [1.5, 2], "ab", [(1, "2"), 3]]
)
def test_row_seeds_that_are_none_are_refused(version, seed):
    """A generator would be shared by rows, and None differ on each run."""
    model = random_model()
    with pytest.raises(ValueError, match="^seed must be a whole number, 0 or more, not "):
        version.module.generate([[1, 2], [3, 4]], model.params, model.n_head, 3, temperature=1.0, seed=seed)


@each(SAMPLING)
def test_row_seeds_in_any_kind_of_list(version):
    def ids(seed):
        model = random_model()
        return version.module.generate([[1, 2], [3, 4]], model.params, model.n_head, 9, temperature=1.0, seed=seed)

    assert ids([5, 6]) == ids((5, 6)) == ids(range(5, 7)) == ids(np.array([5, 6])) != ids([5, 7])
    assert ids([(5, 1), (5, 2)]) == ids(np.array([[5, 1], [5, 2]]))


@each(SAMPLING)
def test_stop_ids_in_any_kind_of_collection(version):
    model = random_model()

    def ids(stop_ids):
        return version.module.generate([[1, 2, 3]], model.params, model.n_head, 9, stop_ids=stop_ids)[0]

    whole = ids(())
    stop = whole[4]
    expected = whole[: whole.index(stop)]
    for stop_ids in ([stop], {stop}, np.array([stop]), iter([99, stop]), stop, np.int64(stop)):
        assert ids(stop_ids) == expected


@scoring
def test_a_text_of_no_probability_has_no_warning(version):
    model = random_model(np.float32)
    params = {**model.params, "wte": model.params["wte"] * np.float32(1e4)}
    with np.errstate(all="raise"):
        [result] = version.module.score([[1, 2, 3, 4]], params, model.n_head)
    assert result["perplexity"] == np.inf
    with pytest.raises(ValueError, match="^chunk must be a whole number, 1 or more, not 0$"):
        version.module.score([[1, 2]], model.params, model.n_head, chunk=0)
