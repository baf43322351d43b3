"""Ids, shapes, masks and caches that make no sense are refused in one clear line. NumPy would take some silently."""
import re

import numpy as np
import pytest
from tiny import BATCHING, CACHING, FLAT, PADDING, VERSIONS, first_and_last, random_model, random_prompts

import utils

WRONG_IDS = pytest.mark.parametrize("wrong", [-1, 17, 10**6, 1.0, "1", None, True, np.nan], ids=repr)
ABOUT_IDS = "^input_ids must be ids of the model's tokens, whole numbers from 0 to 16$"
NOT_FLAT = [version for version in VERSIONS if version not in FLAT]  # test_continuous.py asks the others
SAMPLING = [v for v in VERSIONS if hasattr(v.module, "sample")]


def each(versions):
    return pytest.mark.parametrize("version", first_and_last(versions), ids=str)


@each(NOT_FLAT)
@WRONG_IDS
def test_ids_of_no_token_are_refused(version, wrong):
    """-1 would be the last row of wte, and 1.0 an IndexError about arrays. 16, the last of the 17 ids, is right."""
    model = random_model()
    for ids in ([wrong], [3, wrong, 4], [3, 4, wrong]):
        input_ids = [ids] if version.batches else ids
        with pytest.raises(utils.UserError, match=ABOUT_IDS):
            version.module.gpt2(input_ids, **version.params(model), n_head=model.n_head)
        with pytest.raises(utils.UserError, match=ABOUT_IDS):
            version.module.generate(input_ids, version.params(model), model.n_head, 2)
    assert len(version.generate(model, [[16, 0, 16]], 2)[0]) == 2


@each(CACHING)
@pytest.mark.parametrize("wrong", [-1, 17, True])
def test_ids_of_no_token_are_refused_at_a_decode_step_too(version, wrong):
    model = random_model()
    cache = version.new_cache(model, B=2, T_max=3)
    with pytest.raises(utils.UserError, match=ABOUT_IDS):
        version.module.decode_one_token([2, wrong], version.params(model), model.n_head, cache)
    assert cache["length"] == 0


@each(CACHING)
def test_prefill_and_decode_one_token_take_lists(version):
    model = random_model()
    found = []
    for kind in (list, tuple, np.array):
        cache = version.new_cache(model, B=2, T_max=3)
        found.append(version.module.prefill(kind([[1, 2], [3, 4]]), version.params(model), model.n_head, cache))
        found.append(version.module.decode_one_token(kind([5, 6]), version.params(model), model.n_head, cache))
    for i in (2, 4):
        np.testing.assert_array_equal(found[i], found[0])
        np.testing.assert_array_equal(found[i + 1], found[1])


@each(BATCHING)
@pytest.mark.parametrize("input_ids", [[], [[]], [[], []], [1, 2, 3], 5, [[[1, 2]]], "text", {1: 2}], ids=repr)
def test_ids_without_a_row_per_prompt_are_refused(version, input_ids):
    """v0 takes [T]; from v1 on there is an axis for the batch."""
    with pytest.raises(utils.UserError, match=r"^input_ids must be a list of ids for each prompt, \[B, T\], and not"):
        version.module.generate(input_ids, random_model().params, 3, 2)


@pytest.mark.parametrize("input_ids", [[], [[1, 2]], 5, "text"], ids=repr)
def test_v0_takes_one_list_of_ids(input_ids):
    with pytest.raises(utils.UserError, match=r"^input_ids must be a list of ids, \[T\], and not empty; its shape is"):
        VERSIONS[0].module.generate(input_ids, random_model().params, 3, 2)


@each(BATCHING)
def test_prompts_of_different_lengths_are_told_about_left_pad(version):
    """NumPy would speak of an inhomogeneous shape."""
    model, words = random_model(), "^the prompts have different lengths: left_pad of gpt2_v2_padding.py makes them one"
    for input_ids in ([[1, 2, 3], [4]], [np.array([1, 2]), np.array([3])], [[1, 2], 3]):
        with pytest.raises(utils.UserError, match=words):
            version.module.generate(input_ids, version.params(model), model.n_head, 2)
        with pytest.raises(utils.UserError, match=words):
            version.module.gpt2(input_ids, **version.params(model), n_head=model.n_head)


@each(NOT_FLAT)
def test_n_head_has_to_fit_the_weights(version):
    """As it does not where it has changed places with n_tokens_to_generate."""
    model, input_ids = random_model(), [[1, 2, 3]] if version.batches else [1, 2, 3]
    with pytest.raises(utils.UserError, match="^n_head 5 does not fit the weights, whose n_embd is 12$"):
        version.module.generate(input_ids, version.params(model), 5, model.n_head)
    with pytest.raises(utils.UserError, match="^n_head must be a whole number, 1 or more, not "):
        version.module.gpt2(input_ids, **version.params(model), n_head=3.0)


@each(NOT_FLAT)
def test_float16_weights_are_refused(version):
    """-1e10 is no number of theirs, so that a mask would be infinite."""
    model, input_ids = random_model(np.float16), [[1, 2, 3]] if version.batches else [1, 2, 3]
    for call in (version.module.gpt2, lambda ids, n_head, **params: version.module.generate(ids, params, n_head, 2)):
        with pytest.raises(utils.UserError, match="^the weights are float16, "):
            call(input_ids, n_head=model.n_head, **version.params(model))


@each(PADDING)
@pytest.mark.parametrize(
    "prompts, words",
    [
        ([], "^prompts must be lists of ids"), ("text", "^prompts must be lists of ids"), (5, "^prompts must be lists"),
        (["text"], "^prompt 0 must be a list of ids .*'text'"), ([b"text"], "^prompt 0 must be a list of ids"),
        ([1, 2, 3], "^prompt 0 must be a list of ids of tokens, .* not 1$"), ([[1, 2], []], "^prompt 1 has no tokens"),
        ([[1, True]], "^prompt 0 must"), ([[1], [2.0]], "^prompt 1 must"), ([[1], [-1]], "^prompt 1 must"),
        ([[2**40]], "^prompt 0 must"), ([{1, 2}], "^prompt 0 .* has no order$"), ({1: 2}, "^prompts must be lists"),
        ([[[1, 2]]], "^prompt 0 must"), (np.array(5), "^prompts must be lists"), (None, "^prompts must be lists"),
    ],
    ids=repr,
)  # fmt: skip
def test_left_pad_refuses_by_name(version, prompts, words):
    with pytest.raises(utils.UserError, match=words):
        version.module.left_pad(prompts)


@each(PADDING)
def test_left_pad_takes_any_iterable(version):
    prompts = random_prompts([3, 1])
    expected = version.module.left_pad(prompts)
    for same in (iter(prompts), tuple(map(tuple, prompts)), list(map(np.array, prompts)), map(iter, prompts)):
        for a, b in zip(version.module.left_pad(same), expected):
            np.testing.assert_array_equal(a, b)


WRONG_MASKS = pytest.mark.parametrize("shape", [(1, 4), (2, 1), (2, 3), (2, 5), (3, 4), (4,), (2, 4, 1)], ids=str)
ABOUT_MASKS = re.escape("attention_mask must have the shape [2, 4] of input_ids, and hold 0 and 1 only")


@each(PADDING)
@WRONG_MASKS
def test_a_mask_of_another_shape_is_refused(version, shape):
    """Some would be stretched to fit, and columns of others left out: [0, 0, 1, 1, 1] for 3 ids would hide two."""
    model, input_ids, mask = random_model(), np.array(random_prompts([4, 4])), np.ones(shape, dtype=int)
    with pytest.raises(utils.UserError, match=ABOUT_MASKS):
        version.module.generate(input_ids, version.params(model), 3, 2, attention_mask=mask)
    with pytest.raises(utils.UserError, match=ABOUT_MASKS):
        version.module.gpt2(input_ids, **version.params(model), n_head=3, attention_mask=mask)
    if version.caches:
        with pytest.raises(utils.UserError, match=ABOUT_MASKS):
            cache = version.new_cache(model, 2, 9)
            version.module.prefill(input_ids, version.params(model), 3, cache, attention_mask=mask)


@each(PADDING)
@pytest.mark.parametrize("one", [2, -1, 0.5, 255, np.nan, "1", None], ids=repr)
def test_a_mask_holds_0_and_1_only(version, one):
    """Summed up as numbers, marks of 2 would make a prompt twice as long, and marks of -1 one of no length."""
    model = random_model(n_ctx=8)
    input_ids, mask = version.module.left_pad(random_prompts([4, 2]))
    mask = [[one if mark else 0 for mark in row] for row in mask]
    with pytest.raises(utils.UserError, match=ABOUT_MASKS):
        version.module.generate(input_ids, version.params(model), model.n_head, 4, mask)


@each(PADDING)
def test_a_ragged_mask_is_refused(version):
    with pytest.raises(utils.UserError, match="^the rows of attention_mask have different lengths: left_pad"):
        version.module.generate([[1, 2], [3, 4]], random_model().params, 3, 2, attention_mask=[[1, 1], [1]])


@each(CACHING)
def test_a_mask_of_what_is_cached_is_refused(version):
    """The cache knows its pads itself."""
    model = random_model()
    input_ids, mask = version.module.left_pad(random_prompts([3, 2]))
    cache = version.new_cache(model, B=2, T_max=5)
    version.module.prefill(input_ids, version.params(model), model.n_head, cache, mask)
    wide = np.ones((2, 4), int)
    with pytest.raises(utils.UserError, match=re.escape("attention_mask must have the shape [2, 1] of input_ids")):
        version.module.gpt2([[1], [2]], **version.params(model), n_head=3, attention_mask=wide, kv_cache=cache)
    with pytest.raises(TypeError):
        version.module.decode_one_token([1, 2], version.params(model), model.n_head, cache, np.ones((2, 4), int))
    assert cache["length"] == 3


OTHER_MODELS = {
    "layers": {"n_layer": 3}, "heads": {"n_head": 4}, "width": {"n_embd": 24}, "type": {"dtype": np.float32},
}  # fmt: skip


@each(CACHING)
@pytest.mark.parametrize("other", OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_a_cache_of_another_model_is_refused(version, other):
    model = random_model()
    cache = version.new_cache(random_model(**other), B=2, T_max=9)
    before = cache["blocks"].copy()
    with pytest.raises(utils.UserError, match="^kv_cache is of another model or batch"):
        version.module.gpt2([[1, 2], [3, 4]], **version.params(model), n_head=model.n_head, kv_cache=cache)
    with pytest.raises(utils.UserError, match="^kv_cache is of another model or batch"):
        version.module.prefill([[1, 2], [3, 4]], version.params(model), model.n_head, cache)
    np.testing.assert_array_equal(cache["blocks"], before)


@each(CACHING)
@pytest.mark.parametrize("n_rows", [1, 3])
def test_a_cache_for_another_number_of_rows_is_refused(version, n_rows):
    """Otherwise it would be stretched, or fail in the middle of the first block."""
    model = random_model()
    cache = version.new_cache(model, B=n_rows, T_max=9)
    before = cache["blocks"].copy()
    with pytest.raises(utils.UserError, match=f"another model or batch: it has {n_rows} rows, input_ids 2$"):
        version.module.gpt2([[1, 1], [1, 1]], **version.params(model), n_head=model.n_head, kv_cache=cache)
    with pytest.raises(utils.UserError, match=f"another model or batch: it has {n_rows} rows, input_ids 2$"):
        version.module.decode_one_token([1, 1], version.params(model), model.n_head, cache)
    np.testing.assert_array_equal(cache["blocks"], before)


@each(CACHING)
def test_a_length_that_is_set_by_hand_is_refused(version):
    """It would part from what the cache knows of its pads."""
    model = random_model()
    cache = version.new_cache(model, B=1, T_max=9)
    version.module.prefill([[1, 2, 3]], version.params(model), model.n_head, cache)
    for length in (0, 2, 4):
        with pytest.raises(utils.UserError, match="^kv_cache is of another model or batch"):
            wrong = {**cache, "length": length}
            version.module.gpt2([[4]], **version.params(model), n_head=model.n_head, kv_cache=wrong)


@each(SAMPLING)
@pytest.mark.parametrize(
    "seed", [pytest.param([np.random.default_rng(0)] * 2, id="generators"),
             [None, None], [1, -1], [(1, 2), (1, -2)], [1.5, 2], "ab", b"ab", {1, 2},
             [(1, "2"), 3], [(), 1], [1, True], [(1, 2**32), 1], [2**128, 1]], ids=repr,
)  # fmt: skip
def test_row_seeds_that_are_none_are_refused(version, seed):
    """A generator would be shared by rows, None differ on each run, and a set has no order."""
    model = random_model()
    with pytest.raises(utils.UserError, match="^seed must be a whole number, from 0 to .*, not "):
        version.module.generate([[1, 2], [3, 4]], version.params(model), model.n_head, 3, temperature=1.0, seed=seed)


@each(SAMPLING)
def test_row_seeds_in_any_kind_of_list(version):
    def ids(seed):
        model = random_model()
        sampling = {"temperature": 1.0, "seed": seed}
        return version.module.generate([[1, 2], [3, 4]], version.params(model), model.n_head, 5, **sampling)

    assert ids([5, 6]) == ids((5, 6)) == ids(range(5, 7)) == ids(np.array([5, 6])) != ids([5, 7])
    assert ids([(5, 1), (5, 2)]) == ids(np.array([[5, 1], [5, 2]]))


@each(SAMPLING)
def test_stop_ids_in_any_kind_of_collection(version):
    model = random_model()

    def ids(stop_ids):
        return version.module.generate([[1, 2, 3]], version.params(model), model.n_head, 6, stop_ids=stop_ids)[0]

    whole = ids(())
    stop = whole[4]
    expected = whole[: whole.index(stop)]
    for stop_ids in ([stop], {stop}, np.array([stop]), iter([16, stop]), stop, np.int64(stop)):
        assert ids(stop_ids) == expected


@each(SAMPLING)
@pytest.mark.parametrize(
    "wrong", [".", b".", [999, 2.5], [17], [-1], -1, None, True, [True], {3: 4}, [[3]], 2.0], ids=repr
)
def test_stop_ids_that_are_no_ids_are_refused(version, wrong):
    """Ignored, they would let the model run on."""
    model = random_model()
    with pytest.raises(utils.UserError, match="^stop_ids must be a list of ids of tokens, whole numbers from 0 to 16"):
        version.module.generate([[1, 2, 3]], version.params(model), model.n_head, 9, stop_ids=wrong)
