"""The KV cache: what it holds, what it costs, whose it is, and what a call that was broken off leaves of it."""
import copy
import functools
import itertools

import numpy as np
import pytest
from tiny import (
    CACHING,
    ENDS,
    V0,
    assert_same_bits,
    first_and_last,
    random_model,
    random_prompts,
    where_the_model_is_new,
)

every_version = pytest.mark.parametrize("version", where_the_model_is_new(CACHING), ids=str)


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
def test_padding_does_not_change_the_keys_and_values_of_real_tokens(version):
    """This tells a fault of the padded prefill from one of the steps after it."""
    model = random_model()
    prompts = random_prompts([17, 4, 9])
    padded = filled_cache(version, model, prompts, [17])
    for found, ids in zip(padded, prompts):
        assert_same_bits([found], filled_cache(version, model, [ids], [len(ids)]))


@every_version
def test_keys_and_values_step_by_step(version):
    """One token at a time stores what one pass stores, so that a fault can be told from rounding."""
    model = random_model()
    prompts = random_prompts([17, 17])
    at_once = filled_cache(version, model, prompts, [17])
    for pieces in ([1] * 17, [9, 8], [3, 1, 5, 8]):
        assert_same_bits(filled_cache(version, model, prompts, pieces), at_once)


@pytest.mark.parametrize("version", ENDS, ids=str)
def test_no_run_leaves_anything_behind(version):
    """generate(A), generate(B), generate(A): the first and the last are equal."""
    model = random_model(n_ctx=16)
    a, b = random_prompts([5, 5], seed=1), random_prompts([9, 9], seed=2)
    first = version.generate(model, a, 3)
    assert version.generate(model, b, 3) != first
    assert version.generate(model, a, 3) == first


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


@pytest.mark.parametrize("version", first_and_last(CACHING), ids=str)
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


@pytest.mark.parametrize("version", first_and_last(CACHING), ids=str)
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
@pytest.mark.parametrize("step", ["gpt2", "prefill", pytest.param("decode", marks=pytest.mark.slow)])
def test_after_a_call_that_was_broken_off_the_same_call_is_right(version, step):
    """By MemoryError or Ctrl-C, at each step of the call: the cache is as if nothing had happened."""
    model = random_model(n_layer=1)
    params = version.params(model)
    input_ids, mask = version.module.left_pad(random_prompts([5, 2], seed=1))
    more, more_mask = version.module.left_pad(random_prompts([4, 3], seed=2))
    before = version.new_cache(model, B=2, T_max=9)
    version.module.prefill(input_ids, params, model.n_head, before, mask)

    def call(cache):
        known = {"n_head": model.n_head, "kv_cache": cache}
        if step == "gpt2":
            return version.module.gpt2(more, **params, attention_mask=more_mask, **known)
        if step == "prefill":
            return version.module.prefill(more, params, attention_mask=more_mask, chunk=3, **known)
        return version.module.decode_one_token([3, 4], params, **known)

    undisturbed = copy.deepcopy(before)
    expected = call(undisturbed)
    for n in itertools.count(1, 5 if step == "gpt2" else 11):  # its steps are those of gpt2, twice
        cache, error = copy.deepcopy(before), (MemoryError(), KeyboardInterrupt())[n % 2]
        if not broken_off(version, functools.partial(call, cache), n, error):
            break
        assert cache["length"] == 5
        assert_same_bits(call(cache), expected)
        assert cache["length"] == undisturbed["length"]
        np.testing.assert_array_equal(cache["real"], undisturbed["real"])
        np.testing.assert_array_equal(cache["blocks"], undisturbed["blocks"])
    assert n > 30


@every_version
@pytest.mark.parametrize("pieces", [None, 2], ids=str)
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
        rows = [[*ids, 3] for ids in rows]
        check(version.module.decode_one_token([3] * 3, params, model.n_head, cache))


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
