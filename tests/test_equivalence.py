"""All versions compute the same: each one's logits and greedy ids are those of v0, which takes the prompts one by one.

Exact part, in np.longdouble. NumPy never hands this type to BLAS: its own matmul adds one product after another, in
order, whatever the shapes. So equal means equal to the last bit. Where np.longdouble is no wider than float64, as with
Microsoft's compiler or on Apple's processors, it goes to BLAS as little, and nothing here changes.

BLAS part, in float32 and float64, marked `blas`: equal to the last bit only where both sides make the same calls of
BLAS, since a call with other shapes may round differently; near to each other elsewhere. test_blas_kernels.py repeats
it under other kernels.
"""
import functools

import numpy as np
import pytest
from tiny import (
    BATCHING,
    CACHING,
    FLAT,
    NEIGHBOURS,
    PADDING,
    SIZES,
    V0,
    VERSIONS,
    assert_same_bits,
    random_model,
    random_prompts,
    where_the_model_is_new,
)

N_NEW = 5  # tokens to generate
# Lengths of the prompts of a batch. np.sum regroups its terms from 8 on, so short prompts alone prove little.
EQUAL = {
    "tiny": [(1,), (9,), (33,), (1, 1, 1), (17, 17, 17), (8,) * 5],
    "odd": [(17, 17, 17)],
    "wide": [(9, 9)],
}
RAGGED = [(9, 8, 1), (17, 3, 33, 16), (4, 1, 2, 5, 3), (40, 1, 25), (12, 31)]

every_size = pytest.mark.parametrize("size", SIZES)
every_version = pytest.mark.parametrize("version", VERSIONS, ids=str)
every_batching_version = pytest.mark.parametrize("version", where_the_model_is_new(BATCHING + FLAT), ids=str)
every_padding_version = pytest.mark.parametrize("version", where_the_model_is_new(PADDING + FLAT), ids=str)
every_caching_version = pytest.mark.parametrize("version", where_the_model_is_new(CACHING + FLAT), ids=str)
small_sizes = pytest.mark.parametrize("size", ["tiny", "odd"])


def ragged(size):
    """RAGGED, of which fewer are enough for models of other sizes."""
    return RAGGED[: {"tiny": None, "odd": 1, "wide": 1}[size]]


@functools.cache
def alone(size, lengths, dtype=np.longdouble):
    """-> a model, random prompts of these lengths, and v0's logits for each. Computed once for all versions."""
    model, prompts = random_model(dtype, **SIZES[size]), random_prompts(lengths)
    return model, prompts, V0.logits(model, prompts)


@functools.cache
def greedy_alone(size, lengths, n):
    """-> the n ids that follow each of these prompts, and v0's logits, n for each, that chose them. In np.longdouble.

    Greedy decoding, spelled out: the best id of the last position, again and again.
    """
    model, prompts = random_model(**SIZES[size]), random_prompts(lengths)
    new_ids, logits = [[] for _ in prompts], [[] for _ in prompts]
    for ids, new, scores in zip(prompts, new_ids, logits):
        for _ in range(n):
            scores.append(V0.logits(model, [ids + new])[0][-1])
            new.append(int(np.argmax(scores[-1])))
    return new_ids, np.array(logits)


# ---- exact: logits. test_numbers.py has any sizes and lengths


@every_size
@every_batching_version
def test_a_batch_of_equal_lengths(version, size):
    for lengths in EQUAL[size]:
        model, prompts, expected = alone(size, lengths)
        assert_same_bits(version.logits(model, prompts), expected)


@pytest.mark.parametrize("version", BATCHING, ids=str)
def test_equal_lengths_need_no_mask(version):
    model, prompts, expected = alone("tiny", (9,) * 4)
    logits = version.module.gpt2(np.array(prompts), **version.params(model), n_head=model.n_head)
    assert_same_bits(list(logits), expected)


@every_size
@every_padding_version
def test_a_ragged_batch(version, size):
    for lengths in ragged(size):
        model, prompts, expected = alone(size, lengths)
        assert_same_bits(version.logits(model, prompts), expected)


# ---- exact: the cache


@small_sizes
@every_caching_version
def test_pieces_of_any_width(version, size):
    model, prompts, expected = alone(size, (17, 17))
    pieces_of_17 = [[1] * 17, [3, 1, 5, 8], [16, 1], [17]]
    for spare, pieces in enumerate(pieces_of_17 if size == "tiny" else pieces_of_17[:2]):
        assert_same_bits(version.cached_logits(model, prompts, pieces, spare), expected)


@small_sizes
@every_caching_version
def test_a_ragged_batch_through_the_cache(version, size):
    """Pieces of 5 columns, some of which hold only pads in some rows, then single tokens, as in decoding."""
    for lengths in ragged(size)[:3]:
        model, prompts, expected = alone(size, lengths)
        whole, rest = divmod(max(lengths), 5)
        assert_same_bits(version.cached_logits(model, prompts, [5] * whole + [1] * rest, spare=2), expected)


@pytest.mark.parametrize("version", CACHING, ids=str)
@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_prefill_and_decode_one_token(version, chunk):
    """The two steps of generation, at any width of prefill's chunks, against v0's last positions."""
    model, prompts = random_model(), random_prompts([17, 4, 9, 16])
    input_ids, mask = version.module.left_pad(prompts)
    B, T = input_ids.shape
    cache = version.new_cache(model, B, T + 3)
    logits = version.module.prefill(input_ids, version.params(model), model.n_head, cache, mask, chunk=chunk)
    assert_same_bits(list(logits), [row[-1] for row in V0.logits(model, prompts)])
    for token in ([3] * B, range(B)):
        prompts = [[*ids, i] for ids, i in zip(prompts, token)]
        logits = version.module.decode_one_token(np.array(token), version.params(model), model.n_head, cache)
        assert_same_bits(list(logits), [row[-1] for row in V0.logits(model, prompts)])


# ---- exact: generation


@every_version
def test_greedy_ids(version):
    for lengths in [(9,), (16, 16), (1, 1, 1)]:
        expected, _ = greedy_alone("tiny", lengths, N_NEW)
        assert version.generate(random_model(), random_prompts(lengths), N_NEW) == expected


@pytest.mark.parametrize("version", PADDING + FLAT, ids=str)
def test_greedy_ids_of_a_ragged_batch(version):
    for lengths in RAGGED[:2]:
        expected, _ = greedy_alone("tiny", lengths, N_NEW)
        assert version.generate(random_model(), random_prompts(lengths), N_NEW) == expected


def test_greedy_ids_of_these_models_say_something():
    """They depend on the prompt and change from step to step; one id again and again would be equal by chance."""
    new_ids, _ = greedy_alone("tiny", RAGGED[1], N_NEW)
    assert len({tuple(ids) for ids in new_ids}) == len(new_ids)
    assert all(len(set(ids)) > 1 for ids in new_ids)


# ---- BLAS: equal to the last bit where both sides make the same calls

BLAS_LENGTHS = [1, 5, 8, 33]
FAST = [("tiny", np.float32), ("odd", np.float64), ("wide", np.float32)]  # each size and each dtype; the others `slow`
KINDS = FAST + [
    pytest.param(size, dtype, marks=pytest.mark.slow)
    for size in SIZES
    for dtype in (np.float32, np.float64)
    if (size, dtype) not in FAST
]
every_kind = pytest.mark.parametrize("size, dtype", KINDS, ids=lambda x: getattr(x, "__name__", x))
STEPS = [(before, after) for before, after in NEIGHBOURS if before.has_one_shape == after.has_one_shape]


def steps(some=lambda before: True):
    """The steps from a version of some kind to the next one."""
    pairs = [(before, after) for before, after in STEPS if some(before)]
    return pytest.mark.parametrize("before, after", where_the_model_is_new(pairs), ids=str)


every_step, every_batched_step = steps(), steps(lambda before: before.batches)
every_padded_step = steps(lambda before: before.pads or before.is_flat)
every_cached_step = steps(lambda before: before.caches or before.is_flat)


@pytest.mark.blas
@every_kind
@every_step
def test_same_calls_for_a_batch_of_one(before, after, size, dtype):
    model = random_model(dtype, **SIZES[size])
    for length in BLAS_LENGTHS:
        prompts = random_prompts([length])
        assert_same_bits(after.logits(model, prompts), before.logits(model, prompts))
    prompts = random_prompts([9])
    assert after.generate(model, prompts, N_NEW) == before.generate(model, prompts, N_NEW)


@pytest.mark.blas
@every_kind
@every_batched_step
def test_same_calls_for_equal_lengths(before, after, size, dtype):
    model = random_model(dtype, **SIZES[size])
    for B, length in ((2, 33), (3, 8), (5, 9), (8, 1)):
        prompts = random_prompts([length] * B)
        assert_same_bits(after.logits(model, prompts), before.logits(model, prompts))


@pytest.mark.blas
@every_kind
@every_padded_step
def test_same_calls_for_a_ragged_batch(before, after, size, dtype):
    """With a cache: for a prefill into a fresh one, also where it has room for more."""
    model = random_model(dtype, **SIZES[size])
    for lengths in RAGGED[1:4]:
        prompts = random_prompts(lengths)
        expected = before.logits(model, prompts)
        assert_same_bits(after.logits(model, prompts), expected)
        if after.caches or after.is_flat:
            assert_same_bits(after.cached_logits(model, prompts, pieces=[max(lengths)], spare=7), expected)


@pytest.mark.blas
@every_kind
@every_cached_step
def test_same_calls_for_everything_through_the_cache(before, after, size, dtype):
    model = random_model(dtype, **SIZES[size])
    lengths = RAGGED[1]
    prompts, pieces = random_prompts(lengths), [1, max(lengths) - 3, 1, 1]
    assert_same_bits(*(version.cached_logits(model, prompts, pieces) for version in (after, before)))
    assert after.generate(model, prompts, N_NEW) == before.generate(model, prompts, N_NEW)


@pytest.mark.blas
@every_kind
@pytest.mark.parametrize("version", where_the_model_is_new(v for v in VERSIONS if v.has_one_shape), ids=str)
def test_same_bits_where_all_calls_have_one_shape(version, size, dtype):
    """What v5 is for: alone, padded, in a batch and through the cache in any pieces, the bits are the same."""
    model, lengths = random_model(dtype, **SIZES[size]), RAGGED[1]
    prompts = random_prompts(lengths)
    expected = [version.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(version.logits(model, prompts), expected)
    assert_same_bits(version.cached_logits(model, prompts, [1, max(lengths) - 3, 1, 1], spare=7), expected)


# ---- BLAS, everything else: near to v0, and the same greedy ids

TOLERANCE = 3e-5  # of logits up to 10, where float32 has steps of 1e-6; v0 differs by 4e-6 from itself in np.longdouble


def near(actual, expected):
    for a, e in zip(actual, expected):
        assert a.dtype == e.dtype == np.float32
        np.testing.assert_allclose(a, e, rtol=0, atol=TOLERANCE)


@pytest.mark.blas
@every_size
@every_batching_version
def test_float32_logits_are_near(version, size):
    lists = [(1,) * 5, (8,) * 2, (17,) * 3, (48,) * 2]
    for lengths in lists + RAGGED * version.pads:
        model, prompts, expected = alone(size, lengths, np.float32)
        near(version.logits(model, prompts), expected)
        if version.caches:
            near(version.cached_logits(model, prompts, [max(lengths) - 1, 1] if max(lengths) > 1 else [1]), expected)


@pytest.mark.blas
@every_version
@pytest.mark.parametrize("size", ["tiny", *(pytest.param(size, marks=pytest.mark.slow) for size in ("odd", "wide"))])
def test_float32_greedy_ids(version, size):
    """The ids of v0 in np.longdouble. The best two logits are further apart than rounding can move them."""
    for lengths in [(9, 9), *(RAGGED[:2] if size == "tiny" else [])]:
        expected, logits = greedy_alone(size, lengths, N_NEW)
        best_two = np.sort(logits, axis=-1)[..., -2:]
        assert np.all(best_two[..., 1] - best_two[..., 0] > 2 * TOLERANCE)
        prompts, model = random_prompts(lengths), random_model(np.float32, **SIZES[size])
        if version.pads or version.is_flat or len(set(lengths)) == 1:
            assert version.generate(model, prompts, N_NEW) == expected
        else:  # v0 and v1 take such prompts one by one
            assert [version.generate(model, [ids], N_NEW)[0] for ids in prompts] == expected


# ---- dtypes


@pytest.mark.blas
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble], ids=["float32", "float64", "longdouble"])
@pytest.mark.parametrize("version", where_the_model_is_new(VERSIONS), ids=str)
def test_logits_and_the_cache_have_the_dtype_of_the_params(version, dtype):
    model, prompts = random_model(dtype), random_prompts([9, 9])
    assert {logits.dtype for logits in version.logits(model, prompts)} == {np.dtype(dtype)}
    if version.caches:
        cache = version.new_cache(model, B=2, T_max=10)
        prefilled = version.module.prefill(np.array(prompts), version.params(model), model.n_head, cache)
        decoded = version.module.decode_one_token(np.array([1, 2]), version.params(model), model.n_head, cache)
        assert prefilled.dtype == decoded.dtype == cache["blocks"].dtype == dtype
