"""gpt2_v7_continuous.py: each prompt gets, to the bit, what v6 gives it alone, whatever comes and goes beside it.

All of it holds for v8 too, whose steps feed in guesses besides; test_lookup.py has the rest about those.
"""
import collections
import functools
import tracemalloc

import numpy as np
import pytest
from tiny import FLAT, assert_same_bits, first_and_last, last_of, random_model, random_prompts

import gpt2_v6_threads as v6
import gpt2_v7_continuous as v7
import utils

# v8 adds guesses, which the newest has too.
every_version = pytest.mark.parametrize("version", first_and_last(FLAT), ids=str)
newest = pytest.mark.parametrize("version", last_of(FLAT), ids=str)  # whose model is that of the others
N_CTX = 192
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "top_k": 12, "repetition_penalty": 1.1}


def model_of(dtype=np.float32, **sizes):
    return random_model(dtype, n_ctx=N_CTX, **{"n_vocab": 40, "n_embd": 12, "n_head": 3, "n_layer": 1, **sizes})


TWO_LAYERS = model_of(n_layer=2)


def results_of(version, model, prompts, n, **settings):
    """generate -> ids of each row of the result, and their log-probabilities."""
    logprobs = collections.defaultdict(list)

    def on_token(row, token_id, logprob):
        logprobs[row].append(logprob)

    params = v6.tile_params(model.params)
    call = {"on_token": on_token, "logprobs": True, "progress": False, **settings}
    ids = version.module.generate(prompts, params, model.n_head, n, **call)
    return ids, [logprobs[row] for row in range(len(ids))]


def alone(model, prompts, n, seed=3, n_samples=1, **settings):
    """The same by v6, one prompt after the other."""
    n = n if isinstance(n, list) else [n] * len(prompts)
    ids, logprobs = [], [[] for _ in range(len(prompts) * n_samples)]
    params = v6.tile_params(model.params)
    for b, prompt in enumerate(prompts):
        streams = [(seed, b, s) for s in range(n_samples)]
        call = {"seed": streams, "n_samples": n_samples} if settings.get("temperature") else {}

        def on_token(row, token_id, logprob, first=b * n_samples):
            logprobs[first + row].append(logprob)

        call |= {"on_token": on_token, "logprobs": True, "progress": False, **settings}
        ids += v6.generate([prompt], params, model.n_head, n[b], **call)
    return ids, logprobs


def seeded(settings, n_samples=1):
    return settings | {"seed": 3, "n_samples": n_samples} if settings.get("temperature") else settings


def mixed_prompts(n, longest=130, n_vocab=40, seed=0):
    """Of all lengths; every third begins as the one before it does."""
    rng = np.random.default_rng(seed)
    prompts = random_prompts(rng.integers(1, longest, size=n), n_vocab, seed)
    for i in range(2, n, 3):
        prompts[i] = (prompts[i - 1][: rng.integers(1, longest)] + prompts[i])[:longest]
    return prompts


# ---- the same bits


@functools.cache
def some_results(is_sampled):
    """-> prompts, numbers of new tokens, and what v6 gives for each alone."""
    prompts, n = mixed_prompts(8), np.random.default_rng(0).integers(0, 20, size=8).tolist()
    return prompts, n, alone(TWO_LAYERS, prompts, n, stop_ids=[5], **(SAMPLED if is_sampled else {}))


@pytest.mark.blas
@every_version
@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("n_rows, chunk", [(2, 7), pytest.param(3, 64, marks=pytest.mark.slow), (16, None)])
def test_each_prompt_has_the_bits_of_v6_alone(version, is_sampled, n_rows, chunk):
    prompts, n, expected = some_results(is_sampled)
    order = np.random.default_rng(n_rows).permutation(8).tolist()
    call = {**SAMPLED, "seed": [(3, b, 0) for b in order]} if is_sampled else {}
    call |= {"n_rows": n_rows, "chunk": chunk, "stop_ids": [5]}
    ids, logprobs = results_of(version, TWO_LAYERS, [prompts[b] for b in order], [n[b] for b in order], **call)
    assert ids == [expected[0][b] for b in order]
    assert logprobs == [expected[1][b] for b in order]


@pytest.mark.blas
@newest
@pytest.mark.parametrize("n_embd, n_head", [(35, 5), pytest.param(768, 12, marks=pytest.mark.slow)])
def test_other_sizes_of_models(version, n_embd, n_head):
    model, prompts = model_of(n_embd=n_embd, n_head=n_head, n_layer=1), mixed_prompts(6)
    assert results_of(version, model, prompts, 9, n_rows=3, chunk=40) == alone(model, prompts, 9)


@newest
@pytest.mark.parametrize("n_samples", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_samples_of_one_prompt(version, n_samples):
    """They begin as copies of the first one, and draw what they would alone."""
    model, prompts = model_of(), mixed_prompts(4)
    expected = alone(model, prompts, 5, n_samples=n_samples, **SAMPLED)
    for n_rows in (1, 3, 20):
        cache = new_cache(version, model, n_rows)
        call = seeded(SAMPLED, n_samples) | {"n_rows": n_rows, "kv_cache": cache}
        assert results_of(version, model, prompts, 5, **call) == expected
        assert cache["n_reused"] >= sum(len(ids) - 1 for ids in prompts if len(ids) > 16) * (n_samples - 1)


@newest
def test_a_callback_ends_a_row_and_the_others_do_not_notice(version):
    model, prompts = model_of(), mixed_prompts(4)
    expected, _ = alone(model, prompts, 10)
    ends = {row: row * 3 for row in range(4)}
    seen = collections.Counter()

    def on_token(row, token_id, logprob):
        seen[row] += 1
        return seen[row] > ends[row]

    ids, _ = results_of(version, model, prompts, 10, n_rows=3, on_token=on_token)
    assert ids == [row_ids[: ends[row] + 1] for row, row_ids in enumerate(expected)]


# ---- gpt2 itself


def new_cache(version, model, n_rows, T_max=N_CTX):
    return version.module.init_kv_cache(model.params["wte"], model.params["blocks"], model.n_head, n_rows, T_max)


@every_version
def test_logits_of_the_tokens_that_are_wanted_and_of_no_others(version):
    model, prompts = model_of(), random_prompts([9, 70], 40)
    everything = version.logits(model, prompts)
    rows, positions = [0] * 9 + [1] * 70, [*range(9), *range(70)]
    for wanted in ([8], [78, 0, 8], []):
        cache = version.new_cache(model, 2, 70)
        call = {**version.params(model), "n_head": 3, "kv_cache": cache, "wanted": wanted}
        logits = version.module.gpt2(prompts[0] + prompts[1], rows, positions, **call)
        assert logits.shape == (len(wanted), 40)
        if wanted:
            assert_same_bits(logits, np.array([everything[rows[n]][positions[n]] for n in wanted]))


@newest
def test_tokens_in_any_order_of_rows_and_last_ones_replaced(version):
    """The tokens of a row need not stand together; where one is fed in again, what follows is forgotten."""
    model, prompts = model_of(), random_prompts([20, 20], 40)
    expected = version.logits(model, prompts)
    cache = version.new_cache(model, 5, 30)
    call = {**version.params(model), "n_head": 3, "kv_cache": cache}
    tokens = [(prompts[row][i], 3 - 2 * row, i) for i in range(15) for row in (0, 1)]
    tokens += [(7, 3, i) for i in range(15, 30)]  # wrong
    version.module.gpt2(*zip(*tokens), **call, wanted=[])
    assert cache["ids"] == [[], prompts[1][:15], [], prompts[0][:15] + [7] * 15, []]
    tokens = [(prompts[0][i], 3, i) for i in range(13, 20)] + [(prompts[1][i], 1, i) for i in range(15, 20)]
    logits = version.module.gpt2(*zip(*tokens), **call, wanted=range(12))
    assert_same_bits(logits, np.concatenate([expected[0][13:], expected[1][15:]]))
    assert cache["ids"] == [[], prompts[1], [], prompts[0], []]


@every_version
def test_no_pad_is_computed(version, monkeypatch):
    """One step for all prompts that fit into it, with no more tokens than they have."""
    model, prompts, n_tokens = model_of(), mixed_prompts(16, longest=12), []
    gpt2 = version.module.gpt2

    def counted(input_ids, *args, **kwargs):
        n_tokens.append(len(input_ids))
        return gpt2(input_ids, *args, **kwargs)

    monkeypatch.setattr(version.module, "gpt2", counted)
    results_of(version, model, prompts, 1)
    assert n_tokens == [sum(map(len, prompts))]


# ---- steps


def steps_of(version, monkeypatch, *args, **settings):
    """-> for each step the tokens that each row of the cache feeds in."""
    steps, gpt2 = [], version.module.gpt2

    def counted(input_ids, rows, *more, **kwargs):
        steps.append(collections.Counter(np.asarray(rows).tolist()))
        return gpt2(input_ids, rows, *more, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(version.module, "gpt2", counted)
        results_of(version, *args, **settings)
    return steps


def test_a_row_that_ends_gives_its_place_away_in_the_same_step(monkeypatch):
    """No row of three is idle before the last prompt has come."""
    prompts, n = random_prompts([4] * 9, 40), [1, 8, 2, 7, 3, 6, 4, 5, 3]
    steps = steps_of(FLAT[0], monkeypatch, model_of(), prompts, n, n_rows=3)
    assert [len(step) for step in steps] == [3] * 12 + [2, 1]
    assert sum(map(len, steps)) == sum(n)


def test_prompts_come_in_chunks_beside_rows_that_are_continued(monkeypatch):
    """Nobody waits for more than a chunk of prompts, which come in their order; no step is larger than it may be."""
    prompts = random_prompts([2, 2, 50, 30, 2], 40)
    steps = steps_of(FLAT[0], monkeypatch, model_of(), prompts, 12, n_rows=5, chunk=20)
    assert steps[0] == {0: 2, 1: 2, 2: 16}
    assert steps[1] == {0: 1, 1: 1, 2: 18}
    assert steps[2] == {0: 1, 1: 1, 2: 16, 3: 2}
    assert steps[3] == {0: 1, 1: 1, 2: 1, 3: 17}
    assert steps[4] == {0: 1, 1: 1, 2: 1, 3: 11, 4: 2}
    assert all(sum(step.values()) <= 20 for step in steps)
    steps = steps_of(FLAT[0], monkeypatch, model_of(), prompts, 12, n_rows=5, chunk=1)
    assert all(sum(n for n in step.values() if n == 1) <= 5 and max(step.values()) == 1 for step in steps)


@newest
def test_results_come_as_they_are_ready(version):
    """on_end: each row once, the shortest first, with what the result has for it; prompts without new tokens too."""
    model, prompts, n = model_of(), random_prompts([5, 6, 7, 8], 40), [9, 0, 3, 6]
    ended = []
    ids, _ = results_of(version, model, prompts, n, on_end=lambda row, ids: ended.append((row, ids)))
    assert [row for row, _ in ended] == [1, 2, 3, 0]
    assert [row_ids for _, row_ids in sorted(ended)] == ids
    assert list(map(len, ids)) == n
    ended = []
    results_of(version, model, prompts, 0, on_end=lambda row, ids: ended.append((row, ids)))
    assert ended == [(row, []) for row in range(4)]


# ---- prefix reuse


@every_version
def test_a_common_prefix_is_computed_once(version, monkeypatch):
    model, start = model_of(), random_prompts([100], 40)[0]
    prompts = [[*start, b, *ids] for b, ids in enumerate(random_prompts(range(8), 40))]
    expected = alone(model, prompts, 3)
    cache = new_cache(version, model, 4)
    assert results_of(version, model, prompts, 3, n_rows=4, kv_cache=cache) == expected
    assert cache["n_reused"] == 100 * 7
    steps = steps_of(version, monkeypatch, model, prompts, 3, n_rows=4)
    assert sum(sum(step.values()) for step in steps) <= 100 + sum(range(1, 9)) + 8 * 2 + len(steps) * 8


@newest
@pytest.mark.parametrize("settings", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_turns_of_conversations(version, settings):
    """A cache goes on from call to call. Each text finds its row again, in any order, and computes what is new."""
    model, cache = model_of(), None
    texts = random_prompts([30, 50, 20], 40)
    cache = new_cache(version, model, 3)
    for turn, order in enumerate([(0, 1, 2), (2, 0, 1), (1, 2, 0)]):
        prompts = [texts[b] + random_prompts([7 + b], 40, seed=turn)[0] for b in order]
        streams = {"seed": [(turn, b, 0) for b in order]} if settings else {}
        before = cache["n_reused"]
        ids, logprobs = results_of(version, model, prompts, 6, kv_cache=cache, **settings, **streams)
        for i, prompt in enumerate(prompts):
            call = {"seed": [(turn, order[i], 0)]} if settings else {}
            expected = results_of(FLAT[0], model, [prompt], 6, **settings, **call)
            assert ([ids[i]], [logprobs[i]]) == expected
        # All but the last token of each text is there, which was chosen and never fed in.
        assert cache["n_reused"] - before == (sum(len(texts[b]) - 1 for b in range(3)) if turn else 0)
        for i, b in enumerate(order):
            texts[b] = prompts[i] + ids[i]


def test_the_row_that_loses_least_is_taken():
    cache = {"ids": [[1, 2, 3, 4], [], [1, 2], [1, 2, 3, 9, 9]]}
    assert v7.take_row(cache, {}, [1, 2, 3, 4, 5]) == 0  # goes on there
    assert v7.take_row(cache, {}, [1, 2, 7]) == 2
    assert v7.take_row(cache, {}, [7, 7]) == 1
    assert v7.take_row(cache, {1: None, 2: None}, [1, 2, 3, 9, 9, 9]) == 3
    assert v7.take_row(cache, {0: None, 2: None}, [1, 2, 3, 4, 5]) == 1  # the start can be copied from row 0


@pytest.mark.parametrize(
    "a, b, n", [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 3, 3], 1), ([1], [1, 2], 1)]
)
def test_count_shared(a, b, n):
    assert v7.count_shared(a, b) == v7.count_shared(b, a) == n


@every_version
def test_reuse_leaves_other_rows_alone_and_counts(version):
    model, (ids, other) = model_of(), random_prompts([80, 80], 40)
    cache = version.new_cache(model, 3, 100)
    call = {**version.params(model), "n_head": 3, "kv_cache": cache, "wanted": []}
    version.module.gpt2(ids + other, [0] * 80 + [2] * 80, [*range(80), *range(80)], **call)
    blocks = cache["blocks"].copy()
    assert version.module.reuse(cache, 1, ids[:50] + [0, 0], others=[])
    assert cache["n_reused"] == 50 and cache["ids"] == [ids, ids[:50], other]
    np.testing.assert_array_equal(cache["blocks"][:, :, 1, :, :50], blocks[:, :, 0, :, :50])
    np.testing.assert_array_equal(cache["blocks"][:, :, ::2], blocks[:, :, ::2])
    assert not version.module.reuse(cache, 2, ids[:50] + [0] * 30, others=[ids[:50] + [0] * 40])  # soon there are 79
    assert version.module.reuse(cache, 2, [0] * 30, others=[])
    assert cache["ids"][2] == [] and cache["n_reused"] == 50


# ---- the cache: its size, its checks, its memory, and what is left of a call that was broken off


@newest
def test_a_budget_of_bytes(version):
    model, prompts = model_of(), random_prompts([70, 10, 20, 120], 40)
    row = 1 * 2 * 12 * 192 * 4  # n_layer, keys and values, n_embd, slots, bytes
    expected = alone(model, prompts, 10)
    for n_bytes, n_rows in ((row, 1), (3 * row + 5, 3), (10**9, 4)):
        cache = version.module.init_kv_cache(model.params["wte"], model.params["blocks"], 3, 4, 190, n_bytes)
        assert len(cache["ids"]) == cache["blocks"].shape[2] == n_rows
        assert cache["blocks"].nbytes == row * n_rows <= n_bytes
        assert results_of(version, model, prompts, 10, n_bytes=n_bytes) == expected
    with pytest.raises(utils.UserError, match=f"n_bytes is {row - 1}, but a row of 129 tokens takes {row} bytes"):
        results_of(version, model, prompts, 10, n_bytes=row - 1)


WRONG = {
    "a prompt that is too long": ({"prompts": [[1], [1] * 151]}, "prompt 1 has 151 tokens and 43 are"),
    "a list of other length": ({"n_tokens_to_generate": [1, 2, 3]}, "n_tokens_to_generate has 3 numbers for 2 prompts"),
    "a number in a list": ({"n_tokens_to_generate": [1, -1]}, "n_tokens_to_generate must be a whole number"),
    "half a token": ({"n_tokens_to_generate": 1.5}, "n_tokens_to_generate must be a whole number"),
    "no rows": ({"n_rows": 0}, "n_rows must be a whole number, 1 or more"),
    "no chunk": ({"chunk": 0}, "chunk must be a whole number, 1 or more"),
    "no bytes": ({"n_bytes": 0}, "n_bytes must be a whole number, 1 or more"),
    "bytes as a fraction": ({"n_bytes": 1e9}, "n_bytes must be a whole number"),
    "no prompts": ({"prompts": []}, "prompts must be lists of ids"),
    "an empty prompt": ({"prompts": [[1], []]}, "prompt 1 has no tokens"),
    "an id of no token": ({"prompts": [[1], [40]]}, "prompt 1 must be .*, whole numbers from 0 to 39"),
    "a text": ({"prompts": "abc"}, "prompts must be lists of ids"),
    "a flat list": ({"prompts": [1, 2]}, "prompt 0 must be a list of ids"),
    "another temperature": ({"temperature": -1}, "temperature must be"),
    "seeds for other rows": ({"temperature": 1, "seed": [1, 2, 3]}, "seed has 3 row seeds for 2 prompts"),
    "a stop id of no token": ({"stop_ids": [40]}, "stop_ids must be"),
    "heads that do not fit": ({"n_head": 5}, "n_head 5 does not fit"),
    "no cache": ({"kv_cache": {}}, "kv_cache must be a cache as init_kv_cache makes it"),
}


@newest
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_refused_by_name_before_anything_is_written(version, wrong):
    arguments, message = WRONG[wrong]
    model = model_of()
    cache = version.new_cache(model, 2, N_CTX)
    right = {"prompts": [[1], [2, 3]], "params": v6.tile_params(model.params), "n_head": 3, "n_tokens_to_generate": 43}
    told = []
    right |= {"kv_cache": cache, "on_end": lambda *end: told.append(end), "progress": False}
    with pytest.raises(utils.UserError, match=message):
        version.module.generate(**{**right, **arguments})
    assert np.all(np.isnan(cache["blocks"])) and cache["ids"] == [[], []] and told == []


@newest
@pytest.mark.parametrize("wrong", [-1, 40, 10**6, 1.0, "1", None, True, np.nan], ids=repr)
def test_ids_of_no_token_are_refused(version, wrong):
    """-1 would be the last row of wte."""
    model, cache = model_of(), new_cache(version, model_of(), 1)
    for ids in ([wrong], [3, wrong, 4], [3, 4, wrong]):
        with pytest.raises(utils.UserError, match="whole numbers from 0 to 39"):
            results_of(version, model, [[5], ids], 2)
        call = {**version.params(model), "n_head": 3, "kv_cache": cache, "wanted": [0]}
        with pytest.raises(utils.UserError, match="^input_ids must be ids of the model's tokens"):
            version.module.gpt2(ids, [0] * len(ids), range(len(ids)), **call)
    assert cache["ids"] == [[]]


@newest
def test_weights_that_are_too_small_and_heads_that_do_not_fit_are_refused(version):
    for dtype, n_head, words in ((np.float16, 3, "the weights are float16"), (np.float32, 5, "n_head 5 does not fit")):
        model = model_of(dtype)._replace(n_head=n_head)
        with pytest.raises(utils.UserError, match=f"^{words}"):
            version.module.generate([[1, 2]], model.params, n_head, 2)
        with pytest.raises(utils.UserError, match=f"^{words}"):
            cache = new_cache(version, model_of(), 1)
            call = {**version.params(model_of(dtype)), "n_head": n_head, "kv_cache": cache, "wanted": []}
            version.module.gpt2([1, 2], [0, 0], [0, 1], **call)


@newest
def test_inputs_are_never_changed(version):
    """Lists and arrays of ids stay as they were, which text.append would not leave; results are the caller's alone."""
    model, prompts = model_of(), random_prompts([9, 20, 9], 40)
    cache = new_cache(version, model, 2)
    for as_given in (lambda ids: [list(row) for row in ids], lambda ids: list(map(np.array, ids))):
        given, n = as_given(prompts), [3, 4, 5]
        ids, _ = results_of(version, model, given, n, kv_cache=cache)
        assert list(map(list, given)) == prompts and n == [3, 4, 5]
        ids[0].append(7)
        assert results_of(version, model, given, n, kv_cache=cache)[0][0] == ids[0][:-1]


@newest
def test_a_cache_of_another_model_or_with_too_little_room_is_refused(version):
    model, prompts = model_of(), random_prompts([5, 60], 40)
    for other in (TWO_LAYERS, model_of(n_embd=24), model_of(n_head=2), model_of(np.float64)):
        with pytest.raises(utils.UserError, match="kv_cache is of another model"):
            results_of(version, model, prompts, 6, kv_cache=new_cache(version, other, 2))
    with pytest.raises(utils.UserError, match="prompt 1 and its new tokens take 65 slots .* rows have 64"):
        results_of(version, model, prompts, 6, kv_cache=new_cache(version, model, 2, 64))
    assert results_of(version, model, prompts, 5, kv_cache=new_cache(version, model, 2, 64)) == alone(model, prompts, 5)


PLACES = {
    "a row too many": ({"rows": [0, 0, 2]}, "rows must be a list of whole numbers from 0 to 1"),
    "a row below 0": ({"rows": [0, 0, -1]}, "rows must be"),
    "half a row": ({"rows": [0, 0, 0.5]}, "rows must be"),
    "too few rows": ({"rows": [0, 0]}, "rows has 2 numbers for 3 tokens"),
    "positions in a table": ({"position_ids": [[0], [1], [2]]}, "position_ids must be"),
    "a position beyond the cache": ({"position_ids": [62, 63, 64]}, "position_ids must be .* from 0 to 63"),
    "a gap in front": ({"position_ids": [3, 4, 5]}, "row 0 .* at position 3, but the one before it there is 1"),
    "a gap": ({"position_ids": [2, 4, 5]}, "row 0 has a token at position 4, but the one before it there is 2"),
    "a position twice": ({"position_ids": [2, 2, 3]}, "row 0 .* at position 2, but the one before it there is 2"),
    "a place too many": ({"wanted": [3]}, "wanted must be a list of whole numbers from 0 to 2"),
    "a place from the end": ({"wanted": [-1]}, "wanted must be"),
    "truth": ({"wanted": [True, False, True]}, "wanted must be"),
    "an id of no token": ({"input_ids": [1, 2, 40]}, "input_ids must be"),
}


@newest
@pytest.mark.parametrize("wrong", PLACES)
def test_places_that_make_no_sense_are_refused(version, wrong):
    arguments, message = PLACES[wrong]
    model = model_of()
    cache = new_cache(version, model, 2, 64)
    call = {**version.params(model), "n_head": 3, "kv_cache": cache}
    version.module.gpt2([1, 2], [0, 0], [0, 1], **call, wanted=[])
    before = cache["blocks"].copy()
    right = {"input_ids": [1, 2, 3], "rows": [0, 0, 0], "position_ids": [2, 3, 4], "wanted": [2]}
    with pytest.raises(utils.UserError, match=message):
        version.module.gpt2(**{**right, **arguments}, **call)
    assert cache["ids"] == [[1, 2], []]
    np.testing.assert_array_equal(cache["blocks"], before)


class Broken(BaseException):
    """As Ctrl-C or a full memory."""


@newest
@pytest.mark.parametrize("where", ["attention", "linear", "choose", "count_shared"])
def test_a_call_that_was_broken_off_leaves_a_cache_that_can_go_on(version, where, monkeypatch):
    """At whatever call of a function; then the cache holds what it says, and the next call has the right bits."""
    model, start = TWO_LAYERS, random_prompts([40], 40)[0]
    prompts = [start[:n] + ids for n, ids in zip((40, 40, 0, 30, 40), random_prompts([20, 9, 30, 5, 7], 40))]
    expected = alone(model, prompts, 4)
    for after in (1, 9):
        cache, n_calls, function = version.new_cache(model, 2, 100), [0], getattr(version.module, where)

        def breaks(*args, function=function, n_calls=n_calls, after=after):
            n_calls[0] += 1
            if n_calls[0] == after:
                raise Broken
            return function(*args)

        with monkeypatch.context() as patch:
            patch.setattr(version.module, where, lambda *args, f=breaks, **kwargs: f(*args, *kwargs.values()))
            with pytest.raises(Broken):
                results_of(version, model, prompts, 4, n_rows=2, chunk=25, kv_cache=cache)
        for row, ids in enumerate(cache["ids"]):
            if ids:
                fresh = version.new_cache(model, 1, 100)
                call = {**version.params(model), "n_head": 3, "kv_cache": fresh, "wanted": []}
                version.module.gpt2(ids, [0] * len(ids), range(len(ids)), **call)
                held = [kv["blocks"][:, :, i, :, : len(ids)] for kv, i in ((cache, row), (fresh, 0))]
                assert_same_bits(*held)
        assert results_of(version, model, prompts, 4, n_rows=2, chunk=25, kv_cache=cache) == expected


@newest
def test_memory_is_that_of_the_cache_however_many_prompts(version):
    """Bytes that are alive at the most do not grow with the number of prompts, but by what goes in and comes out."""
    model = model_of(n_layer=1)
    params = v6.tile_params(model.params)

    def peak(n):
        prompts = random_prompts([5] * n, 40)
        tracemalloc.start()
        version.module.generate(prompts, params, 3, 2, n_rows=8, progress=False)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(9)
    assert peak(50) - peak(20) < 30 * 2000  # ids and a generator of random numbers for each


@pytest.mark.slow
@every_version
def test_memory_is_flat_over_10_000_prompts(version):
    """Counted as each prompt ends: bytes that are alive, without the results."""
    model = model_of(n_layer=1)
    params, cache, alive = v6.tile_params(model.params), new_cache(version, model, 16, 64), []
    prompts = random_prompts(np.random.default_rng(0).integers(1, 20, size=10_000), 40)

    def on_end(row, ids):
        if row % 1000 == 999:
            alive.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    version.module.generate(prompts, params, 3, 3, kv_cache=cache, on_end=on_end, progress=False)
    tracemalloc.stop()
    assert max(alive) - min(alive) < 10_000 * 200  # the ids of the results


# ---- more of the same, by hypothesis, and on the bundled model


@pytest.mark.extra
@pytest.mark.slow
@every_version
def test_any_prompts_orders_lengths_rows_chunks_and_stops(version):
    import hypothesis
    from hypothesis import strategies as st

    model = model_of(n_vocab=12)  # few tokens, so that texts repeat themselves and guesses are right now and then

    @hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
    @hypothesis.given(st.data())
    def check(data):
        some_ids = st.lists(st.integers(0, 11), min_size=1, max_size=60)
        starts = data.draw(st.lists(some_ids, min_size=1, max_size=3))
        ends = data.draw(st.lists(some_ids, min_size=1, max_size=12))
        prompts = [data.draw(st.sampled_from([[], *starts])) + ids for ids in ends]
        n = [data.draw(st.integers(0, 40)) for _ in prompts]
        settings = data.draw(st.sampled_from([{}, SAMPLED, {"temperature": 0.3}]))
        n_samples = data.draw(st.integers(1, 3)) if settings else 1
        stops = {"stop_ids": data.draw(st.lists(st.integers(0, 11), max_size=2))}
        call = {"n_rows": data.draw(st.integers(1, 33)), "chunk": data.draw(st.integers(1, 300))}
        if data.draw(st.booleans()):
            call["kv_cache"] = new_cache(version, model, data.draw(st.integers(1, 5)))
        expected = alone(model, prompts, n, n_samples=n_samples, **settings, **stops)
        for _ in range(2):  # the second time with a cache that is full of it, if it is one for both
            assert results_of(version, model, prompts, n, **seeded(settings, n_samples), **stops, **call) == expected

    check()


@pytest.mark.slow
@every_version
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "top_p": 0.95}], ids=["greedy", "sampled"])
def test_the_bundled_model(version, settings):
    encoder, hparams, params = utils.load_model("tales")
    text = encoder.encode((utils.Path("models") / "tales" / "held_out.txt").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    prompts = [text[i : i + n] for i, n in zip(rng.integers(0, len(text) - 300, 40), rng.integers(1, 300, 40))]
    prompts[5:8] = [prompts[4][:200] + ids[:40] for ids in prompts[5:8]]
    model = random_model()._replace(params=params, n_head=hparams["n_head"])
    stops = {"stop_ids": encoder.encode("\n")}
    expected = alone(model, prompts, 60, **settings, **stops)
    for n_rows, chunk in ((1, 100), (7, 64), (16, None), (33, 11)):
        call = {"n_rows": n_rows, "chunk": chunk, **seeded(settings), **stops}
        assert results_of(version, model, prompts, 60, **call) == expected
