"""The KV cache: what it holds, what it costs, whose it is, and what a call that was broken off leaves of it."""
import functools
import itertools
import tracemalloc

import numpy as np
import pytest
from tiny import CACHING, V0, VERSIONS, assert_same_bits, random_model, random_prompts

every_version = pytest.mark.parametrize("version", CACHING, ids=str)


@every_version
def test_k1_prefill_and_two_tokens(version):
    """K1: ids 1 to 5 at once, against 1, 2, 3 and then 4 and then 5."""
    model = random_model(n_ctx=8)
    assert_same_bits(version.cached_logits(model, [[1, 2, 3, 4, 5]], [3, 1, 1]), V0.logits(model, [[1, 2, 3, 4, 5]]))


@every_version
def test_k4_prefill_in_two_pieces(version):
    """K4: for the second piece's 2 queries there are 5 keys: the causal mask starts at 3, not at 0."""
    model = random_model(n_ctx=8)
    assert_same_bits(version.cached_logits(model, [[1, 2, 3, 4, 5]], [3, 2]), V0.logits(model, [[1, 2, 3, 4, 5]]))


@every_version
def test_p4_padded_prefill_and_three_tokens(version):
    """P4: for each row as if it ran alone, all at once."""
    model = random_model(n_ctx=8)
    prompts = [[1, 4, 7, 2, 9, 9, 9], [3, 8, 8, 8], [5, 6, 10, 11, 12]]
    assert_same_bits(version.cached_logits(model, prompts, [4, 1, 1, 1]), V0.logits(model, prompts))


def filled_cache(version, model, prompts, pieces):
    """-> the keys and values of each prompt after gpt2 took the padded prompts in these pieces."""
    input_ids, mask = version.module.left_pad(prompts)
    cache, start = version.new_cache(model, *input_ids.shape), 0
    for width in pieces:
        ids, real = input_ids[:, start : start + width], mask[:, start : start + width]
        version.module.gpt2(ids, **version.params(model), n_head=model.n_head, attention_mask=real, kv_cache=cache)
        start += width
    assert cache["length"] == start
    return version.keys_and_values(cache, prompts)


@every_version
def test_p6_padding_does_not_change_the_keys_and_values_of_real_tokens(version):
    """P6: this tells a fault of the padded prefill from one of the steps after it."""
    model = random_model()
    prompts = random_prompts([17, 4, 9])
    padded = filled_cache(version, model, prompts, [17])
    for found, ids in zip(padded, prompts):
        assert_same_bits([found], filled_cache(version, model, [ids], [len(ids)]))


@every_version
def test_k12_keys_and_values_step_by_step(version):
    """K12: one token at a time stores what one pass stores, so that a fault can be told from rounding."""
    model = random_model()
    prompts = random_prompts([17, 17])
    at_once = filled_cache(version, model, prompts, [17])
    for pieces in ([1] * 17, [9, 8], [3, 1, 5, 8]):
        assert_same_bits(filled_cache(version, model, prompts, pieces), at_once)


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_k9_no_run_leaves_anything_behind(version):
    """K9: generate(A), generate(B), generate(A): the first and the last are equal."""
    model = random_model(n_ctx=16)
    a, b = random_prompts([5, 5], seed=1), random_prompts([9, 9], seed=2)
    first = version.generate(model, a, 6)
    assert version.generate(model, b, 6) != first
    assert version.generate(model, a, 6) == first


@every_version
def test_a_cache_belongs_to_its_caller(version):
    """Two caches filled in turn do not mix, and gpt2 without one keeps none."""
    model = random_model()
    prompts = random_prompts([9, 9])
    expected = V0.logits(model, prompts)
    caches = [version.new_cache(model, 1, 9) for _ in prompts]
    for t in range(9):
        for ids, cache, logits in zip(prompts, caches, expected):
            step = version.module.gpt2([ids[t : t + 1]], **version.params(model), n_head=model.n_head, kv_cache=cache)
            assert_same_bits(step[0, 0], logits[t])
            assert_same_bits(version.logits(model, [ids])[0], logits)


@every_version
def test_memory_that_was_never_written_does_not_matter_to_generate(version, monkeypatch):
    """np.empty often gives zeros, which would hide it; here it gives NaN."""
    model = random_model()
    prompts = random_prompts([9, 3, 17])
    expected = V0.generate(model, prompts, 6)
    caches = [version.new_cache(model, B=3, T_max=17 + 6)]
    monkeypatch.setattr(version.module, "init_kv_cache", lambda *args, **kwargs: caches.pop())
    assert version.generate(model, prompts, 6) == expected
    assert caches == []


@every_version
@pytest.mark.parametrize("dtype", [np.float32, np.longdouble], ids=["float32", "longdouble"])
def test_the_memory_of_a_cache(version, dtype):
    """The formula of the docstring: 2 * n_layer * B * n_head * slots * d_head * itemsize bytes."""
    model = random_model(dtype, n_embd=12, n_head=3, n_layer=2)
    cache = version.module.init_kv_cache(model.params["wte"], model.params["blocks"], 3, B=5, T_max=7)
    assert cache["blocks"].nbytes == 2 * 2 * 5 * 3 * version.n_slots(7) * 4 * np.dtype(dtype).itemsize
    assert cache["length"] == 0


@every_version
def test_no_step_copies_the_cache(version):
    """A step takes a small part of the memory that a long cache takes, and writes into the array that was there."""
    model = random_model(np.float32)
    cache = version.new_cache(model, B=2, T_max=40_000)
    later = version.n_slots(4)
    blocks, untouched = cache["blocks"], cache["blocks"][0, 0, 0, 0, later:].copy()
    call = version.params(model), model.n_head, cache
    steps = {
        "prefill": lambda: version.module.prefill(np.array([[1, 2, 3]] * 2), *call),
        "decode": lambda: version.module.decode_one_token(np.array([4, 5]), *call),
    }
    for step in steps.values():
        tracemalloc.start()
        step()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < blocks.nbytes / 50
        assert cache["blocks"] is blocks
    assert cache["length"] == 4
    np.testing.assert_array_equal(blocks[0, 0, 0, 0, later:], untouched)


@every_version
def test_generate_takes_the_memory_of_its_cache_once(version, monkeypatch):
    """One cache for a whole generation, of just the size that this needs."""
    model = random_model(n_ctx=16)
    make, caches = version.module.init_kv_cache, []

    def recorded(*args, **kwargs):
        caches.append(make(*args, **kwargs))
        return caches[-1]

    monkeypatch.setattr(version.module, "init_kv_cache", recorded)
    version.generate(model, [[1, 2, 3], [4]], 6)
    assert len(caches) == 1
    assert caches[0]["blocks"].shape[-2] == version.n_slots(3 + 6)


@every_version
def test_generate_computes_logits_for_the_last_position_only(version, monkeypatch):
    """The output layer is the one whose results are n_vocab wide; of a long prompt it sees one position."""
    model = random_model(n_ctx=64)
    linear, positions = version.module.linear, []

    def recorded(x, w, *args, **kwargs):
        if linear(x, w, *args, **kwargs).shape[-1] == model.n_vocab:
            positions.append(x.shape[1])
        return linear(x, w, *args, **kwargs)

    monkeypatch.setattr(version.module, "linear", recorded)
    version.generate(model, random_prompts([40, 3]), 5)
    assert [n for n in positions if n > 0] == [1] * 5


@every_version
def test_generate_computes_no_key_or_value_twice(version, monkeypatch):
    """Per layer: one pass over the prompt, then one token a step, none of them again."""
    model = random_model(n_ctx=64, n_layer=2)
    mha, widths = version.module.mha, []

    def recorded(x, *args, **kwargs):
        widths.append(x.shape[1])
        return mha(x, *args, **kwargs)

    monkeypatch.setattr(version.module, "mha", recorded)
    version.generate(model, random_prompts([40, 3]), 5)
    assert widths == [40, 40] + [1, 1] * 4


@every_version
def test_a_full_cache_refuses_more(version):
    """And says so, before anything is written."""
    model = random_model(n_ctx=80)
    cache = version.new_cache(model, 1, 64)
    version.module.gpt2(random_prompts([63]), **version.params(model), n_head=model.n_head, kv_cache=cache)
    before = cache["blocks"].copy()
    with pytest.raises(ValueError, match="holds 63 of 64"):
        version.module.gpt2([[4, 5]], **version.params(model), n_head=model.n_head, kv_cache=cache)
    np.testing.assert_array_equal(cache["blocks"], before)
    assert cache["length"] == 63


class Broken:
    """A module or a function whose n-th call, or that of any function in it, raises an error when its work is done.

    Counted together in all that share a list of calls.
    """

    def __init__(self, inner, calls, n, error):
        self.inner, self.arguments = inner, (calls, n, error)

    def __getattr__(self, name):
        found = getattr(self.inner, name)
        return Broken(found, *self.arguments) if callable(found) and not isinstance(found, type) else found

    def __call__(self, *args, **kwargs):
        calls, n, error = self.arguments
        result = self.inner(*args, **kwargs)
        calls.append(self.inner)
        if len(calls) == n:
            raise error
        return result


WORKERS = ["gelu", "softmax", "layer_norm", "linear", "ffn", "attention", "mha", "transformer_block", "np", "utils"]


def broken_off(version, call, n, error):
    """Make a call of which the n-th step raises an error -> whether there are so many steps."""
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        for name in WORKERS:
            patch.setattr(version.module, name, Broken(getattr(version.module, name), calls, n, error))
        try:
            call()
        except type(error):
            return True
    assert len(calls) < n
    return False


@every_version
@pytest.mark.parametrize("step", ["gpt2", "prefill", "decode"])
def test_k10_after_a_call_that_was_broken_off_the_same_call_is_right(version, step):
    """K10: by MemoryError or Ctrl-C, at each step of the call: the cache is as if nothing had happened."""
    model = random_model(n_layer=1)
    params = version.params(model)
    input_ids, mask = version.module.left_pad(random_prompts([5, 2], seed=1))
    more, more_mask = version.module.left_pad(random_prompts([4, 3], seed=2))

    def filled():
        cache = version.new_cache(model, B=2, T_max=9)
        version.module.prefill(input_ids, params, model.n_head, cache, mask)
        return cache

    def call(cache):
        known = {"n_head": model.n_head, "kv_cache": cache}
        if step == "gpt2":
            return version.module.gpt2(more, **params, attention_mask=more_mask, **known)
        if step == "prefill":
            return version.module.prefill(more, params, attention_mask=more_mask, chunk=3, **known)
        return version.module.decode_one_token([3, 4], params, **known)

    undisturbed = filled()
    expected = call(undisturbed)
    for n in itertools.count(1):
        cache = filled()
        if not broken_off(version, functools.partial(call, cache), n, (MemoryError(), KeyboardInterrupt())[n % 2]):
            break
        assert cache["length"] == 5
        assert_same_bits(call(cache), expected)
        assert cache["length"] == undisturbed["length"]
        np.testing.assert_array_equal(cache["real"], undisturbed["real"])
        np.testing.assert_array_equal(cache["blocks"], undisturbed["blocks"])
    assert n > 30


@every_version
@pytest.mark.parametrize("pieces", [None, 1, 2], ids=str)
def test_a_second_turn_of_a_conversation(version, pieces):
    """Rows of different lengths go on with others of different lengths, pads between them: as if computed anew."""
    model = random_model()
    params = version.params(model)
    rows = random_prompts([9, 3, 17], seed=1)
    cache = version.new_cache(model, B=3, T_max=60)

    def check(logits):
        assert_same_bits(list(logits), [logits[-1] for logits in V0.logits(model, rows)])

    for seed, lengths in enumerate([None, [1, 8, 4], [6, 2, 1]]):
        more = random_prompts(lengths, seed=seed) if lengths else rows
        rows = [ids + new for ids, new in zip(rows, more)] if lengths else rows
        input_ids, mask = version.module.left_pad(more)
        check(version.module.prefill(input_ids, params, model.n_head, cache, mask, chunk=pieces))
        for token_id in (3, 16):
            rows = [[*ids, token_id] for ids in rows]
            check(version.module.decode_one_token([token_id] * 3, params, model.n_head, cache))


@every_version
def test_n_logits(version):
    """The last positions alone, down to none: [-0:] would be all of them. More than there are is all, too."""
    model = random_model()
    prompts = random_prompts([9, 9])
    logits = np.array(V0.logits(model, prompts))
    for n in (0, 1, 4, 9, 12):
        last = version.module.gpt2(prompts, **version.params(model), n_head=model.n_head, n_logits=n)
        assert last.shape == (2, min(n, 9), model.n_vocab)
        np.testing.assert_array_equal(last, logits[:, max(9 - n, 0) :])
