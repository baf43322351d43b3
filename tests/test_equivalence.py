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
)

N_NEW = 6  # tokens to generate
LENGTHS = [1, 2, 5, 8, 9, 16, 17, 33]  # np.sum regroups its terms from 8 on, so short prompts alone prove little
RAGGED = [(4, 1, 2), (1, 2, 3, 4, 5), (9, 8, 1), (17, 3, 33, 16), (40, 40, 1, 25)]
some_random = np.random.default_rng(2024)
RAGGED += [tuple(some_random.integers(1, 41, size=size).tolist()) for size in (2, 3, 4, 5)]

every_size = pytest.mark.parametrize("size", SIZES)
every_ragged = pytest.mark.parametrize("lengths", RAGGED, ids=str)
every_version = pytest.mark.parametrize("version", VERSIONS, ids=str)
every_batching_version = pytest.mark.parametrize("version", BATCHING + FLAT, ids=str)
every_padding_version = pytest.mark.parametrize("version", PADDING + FLAT, ids=str)
every_caching_version = pytest.mark.parametrize("version", CACHING + FLAT, ids=str)


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


# ---- exact: logits


@every_size
@every_batching_version
@pytest.mark.parametrize("length", LENGTHS)
def test_a_batch_of_one(version, size, length):
    model, prompts, expected = alone(size, (length,))
    assert_same_bits(version.logits(model, prompts), expected)


@every_size
@every_batching_version
@pytest.mark.parametrize("B, length", [(2, 9), (3, 1), (3, 17), (5, 8), (8, 3)])
def test_a_batch_of_equal_lengths(version, size, B, length):
    model, prompts, expected = alone(size, (length,) * B)
    assert_same_bits(version.logits(model, prompts), expected)


@pytest.mark.parametrize("version", BATCHING, ids=str)
def test_equal_lengths_need_no_mask(version):
    model, prompts, expected = alone("tiny", (9,) * 4)
    logits = version.module.gpt2(np.array(prompts), **version.params(model), n_head=model.n_head)
    assert_same_bits(list(logits), expected)


@every_padding_version
@pytest.mark.parametrize(
    "size, lengths",
    [("tiny", lengths) for lengths in RAGGED] + [(size, lengths) for size in ("odd", "wide") for lengths in RAGGED[:4]],
    ids=str,
)
def test_a_ragged_batch(version, size, lengths):
    model, prompts, expected = alone(size, lengths)
    assert_same_bits(version.logits(model, prompts), expected)


# ---- exact: the cache


@every_size
@every_caching_version
@pytest.mark.parametrize("length", LENGTHS)
def test_one_token_at_a_time(version, size, length):
    model, prompts, expected = alone(size, (length,))
    assert_same_bits(version.cached_logits(model, prompts, pieces=[1] * length), expected)


@every_caching_version
@pytest.mark.parametrize("pieces", [[17], [9, 8], [8, 9], [1, 16], [16, 1], [3, 1, 5, 8], [2] * 8 + [1]], ids=str)
@pytest.mark.parametrize("spare", [0, 1, 20])
def test_pieces_of_any_width(version, pieces, spare):
    model, prompts, expected = alone("tiny", (17, 17))
    assert_same_bits(version.cached_logits(model, prompts, pieces, spare), expected)


@every_caching_version
@every_ragged
def test_a_ragged_batch_through_the_cache(version, lengths):
    """Pieces of 5 columns, some of which hold only pads in some rows, then single tokens, as in decoding."""
    model, prompts, expected = alone("tiny", lengths)
    whole, rest = divmod(max(lengths), 5)
    pieces = [5] * whole + [1] * rest
    assert_same_bits(version.cached_logits(model, prompts, pieces, spare=2), expected)


@pytest.mark.parametrize("version", CACHING, ids=str)
@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 17, 128])
@pytest.mark.parametrize("lengths", [[17], [16, 16], [17, 4, 9, 16]], ids=str)
def test_prefill_and_decode_one_token(version, chunk, lengths):
    """The two steps of generation, at any width of prefill's chunks, against v0's last positions."""
    model = random_model()
    prompts = random_prompts(lengths)
    input_ids, mask = version.module.left_pad(prompts)
    B, T = input_ids.shape
    cache = version.new_cache(model, B, T + 3)
    logits = version.module.prefill(input_ids, version.params(model), model.n_head, cache, mask, chunk=chunk)
    assert_same_bits(list(logits), [row[-1] for row in V0.logits(model, prompts)])
    for token in ([3] * B, range(B), [0] * B):
        prompts = [[*ids, i] for ids, i in zip(prompts, token)]
        logits = version.module.decode_one_token(np.array(token), version.params(model), model.n_head, cache)
        assert_same_bits(list(logits), [row[-1] for row in V0.logits(model, prompts)])


# ---- exact: generation


@every_version
@every_size
@pytest.mark.parametrize("lengths", [(9,), (16, 16), (1, 1, 1)], ids=str)
def test_greedy_ids(version, size, lengths):
    expected, _ = greedy_alone(size, lengths, N_NEW)
    assert version.generate(random_model(**SIZES[size]), random_prompts(lengths), N_NEW) == expected


@every_padding_version
@every_ragged
def test_greedy_ids_of_a_ragged_batch(version, lengths):
    expected, _ = greedy_alone("tiny", lengths, N_NEW)
    assert version.generate(random_model(), random_prompts(lengths), N_NEW) == expected


def test_greedy_ids_of_these_models_say_something():
    """They depend on the prompt and change from step to step; one id again and again would be equal by chance."""
    new_ids, _ = greedy_alone("tiny", RAGGED[3], N_NEW)
    assert len({tuple(ids) for ids in new_ids}) == len(new_ids)
    assert all(len(set(ids)) > 1 for ids in new_ids)


# ---- BLAS: equal to the last bit where both sides make the same calls

BLAS_LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48]
both_floats = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
STEPS = [(before, after) for before, after in NEIGHBOURS if before.has_one_shape == after.has_one_shape]
every_step = pytest.mark.parametrize("before, after", STEPS, ids=str)
every_batched_step = pytest.mark.parametrize("before, after", [s for s in STEPS if s[0].batches], ids=str)
every_padded_step = pytest.mark.parametrize("before, after", [s for s in STEPS if s[0].pads or s[0].is_flat], ids=str)
every_cached_step = pytest.mark.parametrize("before, after", [s for s in STEPS if s[0].caches or s[0].is_flat], ids=str)


@pytest.mark.blas
@both_floats
@every_size
@every_step
def test_same_calls_for_a_batch_of_one(before, after, size, dtype):
    model = random_model(dtype, **SIZES[size])
    for length in BLAS_LENGTHS:
        prompts = random_prompts([length])
        assert_same_bits(after.logits(model, prompts), before.logits(model, prompts))
    assert after.generate(model, prompts, N_NEW) == before.generate(model, prompts, N_NEW)


@pytest.mark.blas
@both_floats
@every_size
@every_batched_step
def test_same_calls_for_equal_lengths(before, after, size, dtype):
    model = random_model(dtype, **SIZES[size])
    for B in (2, 3, 5, 8):
        for length in (1, 2, 7, 8, 9, 17, 33):
            prompts = random_prompts([length] * B)
            assert_same_bits(after.logits(model, prompts), before.logits(model, prompts))


@pytest.mark.blas
@both_floats
@every_size
@every_padded_step
def test_same_calls_for_a_ragged_batch(before, after, size, dtype):
    """With a cache: for a prefill into a fresh one, also where it has room for more."""
    model = random_model(dtype, **SIZES[size])
    for lengths in RAGGED:
        prompts = random_prompts(lengths)
        expected = before.logits(model, prompts)
        assert_same_bits(after.logits(model, prompts), expected)
        if after.caches or after.is_flat:
            assert_same_bits(after.cached_logits(model, prompts, pieces=[max(lengths)], spare=7), expected)


@pytest.mark.blas
@both_floats
@every_size
@every_cached_step
def test_same_calls_for_everything_through_the_cache(before, after, size, dtype):
    model = random_model(dtype, **SIZES[size])
    for lengths in RAGGED:
        prompts, pieces = random_prompts(lengths), [1, max(lengths) - 3, 1, 1]
        assert_same_bits(*(version.cached_logits(model, prompts, pieces) for version in (after, before)))
        assert after.generate(model, prompts, N_NEW) == before.generate(model, prompts, N_NEW)


@pytest.mark.blas
@both_floats
@every_size
def test_same_bits_where_all_calls_have_one_shape(size, dtype):
    """What v5 is for: alone, padded, in a batch and through the cache in any pieces, the bits are the same."""
    for version in VERSIONS:
        if version.has_one_shape:
            for lengths in RAGGED:
                model, prompts = random_model(dtype, **SIZES[size]), random_prompts(lengths)
                expected = [version.logits(model, [ids])[0] for ids in prompts]
                assert_same_bits(version.logits(model, prompts), expected)
                for pieces in ([max(lengths)], [1, max(lengths) - 3, 1, 1]):
                    assert_same_bits(version.cached_logits(model, prompts, pieces, spare=7), expected)


# ---- BLAS, everything else: near to v0, and the same greedy ids

TOLERANCE = 3e-5  # of logits up to 10, where float32 has steps of 1e-6; v0 differs by 4e-6 from itself in np.longdouble


def near(actual, expected):
    for a, e in zip(actual, expected):
        assert a.dtype == e.dtype == np.float32
        np.testing.assert_allclose(a, e, rtol=0, atol=TOLERANCE)


@pytest.mark.blas
@every_size
@every_batching_version
@pytest.mark.parametrize("B", [2, 3, 5, 8])
def test_float32_batches_are_near(version, B, size):
    for length in BLAS_LENGTHS:
        model, prompts, expected = alone(size, (length,) * B, np.float32)
        near(version.logits(model, prompts), expected)


@pytest.mark.blas
@every_size
@every_padding_version
@every_ragged
def test_float32_ragged_batches_are_near(version, lengths, size):
    model, prompts, expected = alone(size, lengths, np.float32)
    near(version.logits(model, prompts), expected)


@pytest.mark.blas
@every_size
@every_caching_version
@every_ragged
def test_float32_through_the_cache_is_near(version, lengths, size):
    model, prompts, expected = alone(size, lengths, np.float32)
    for pieces in ([1] * max(lengths), [max(lengths) - 1, 1]):
        near(version.cached_logits(model, prompts, pieces), expected)


@pytest.mark.blas
@every_version
@pytest.mark.parametrize(
    "size, lengths",
    [(size, (9,)) for size in SIZES] + [(size, (16, 16)) for size in SIZES] + [("tiny", lengths) for lengths in RAGGED],
    ids=str,
)
def test_float32_greedy_ids(version, size, lengths):
    """The ids of v0 in np.longdouble. The best two logits are further apart than rounding can move them."""
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
@every_version
def test_logits_have_the_dtype_of_the_params(version, dtype):
    for logits in version.logits(random_model(dtype), random_prompts([9, 9])):
        assert logits.dtype == dtype


@pytest.mark.blas
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble], ids=["float32", "float64", "longdouble"])
@every_caching_version
def test_k11_the_cache_and_what_comes_of_it_have_the_dtype_of_the_params(version, dtype):
    """Case K11."""
    model = random_model(dtype)
    cache = version.new_cache(model, B=2, T_max=10)
    assert cache["blocks"].dtype == dtype
    input_ids = np.array(random_prompts([9, 9]))
    assert version.module.prefill(input_ids, version.params(model), model.n_head, cache).dtype == dtype
    assert version.module.decode_one_token(input_ids[:, 0], version.params(model), model.n_head, cache).dtype == dtype
    assert cache["blocks"].dtype == dtype
