"""How long prompts may be, how much is generated, and what comes back."""
import json

import numpy as np
import pytest
from tiny import CACHING, ENDS, PADDING, V0, first_and_last, random_model, random_prompts

first_and_newest = pytest.mark.parametrize("version", ENDS, ids=str)  # what the checks of rooms refuse
padding, caching = (pytest.mark.parametrize("version", first_and_last(some), ids=str) for some in (PADDING, CACHING))


def forbid_compute(version, monkeypatch):
    def gpt2(*args, **kwargs):
        raise AssertionError("the model ran, though the lengths do not fit")

    monkeypatch.setattr(version.module, "gpt2", gpt2)


@first_and_newest
@pytest.mark.parametrize("length, n", [(9, 0), (9, 1), (8, 2), (3, 7), (1, 9), (1, 10**30)])
def test_too_long_is_refused_before_any_compute(version, length, n, monkeypatch):
    """With n_ctx 8. The error states the prompt, its length, the tokens to generate and the limit."""
    model = random_model(n_ctx=8)
    forbid_compute(version, monkeypatch)
    with pytest.raises(ValueError, match=rf"^prompt 0 has {length} tokens and {n} are to be generated.* n_ctx is 8\b"):
        version.generate(model, random_prompts([length]), n)


@padding
def test_names_the_prompt_that_is_too_long(version, monkeypatch):
    """In a batch, the one that does not fit."""
    forbid_compute(version, monkeypatch)
    with pytest.raises(ValueError, match=r"^prompt 2 has 6 tokens and 4 are to be generated"):
        version.generate(random_model(n_ctx=8), random_prompts([5, 1, 6, 7]), 4)


@first_and_newest
@pytest.mark.parametrize("length, n", [(8, 0), (8, 1), (7, 2), (1, 8)])
def test_as_long_as_the_limit_is_allowed(version, length, n):
    """The last new token is not fed in, so prompt and new tokens may be n_ctx + 1 in all."""
    model = random_model(n_ctx=8)
    ids = version.generate(model, random_prompts([length]), n)
    assert ids == V0.generate(model, random_prompts([length]), n)
    assert len(ids[0]) == n


@padding
def test_pads_do_not_count(version):
    """Each prompt of a batch has its own length, whatever the padded one is."""
    model = random_model(n_ctx=8)
    prompts = random_prompts([7, 1, 4])
    assert version.generate(model, prompts, 2) == V0.generate(model, prompts, 2)


@first_and_newest
def test_the_model_itself_refuses_more_than_n_ctx_before_any_compute(version, monkeypatch):
    """wpe would be out of bounds, in words about axes and sizes."""
    model = random_model(n_ctx=8)
    [ids] = random_prompts([9])
    monkeypatch.setattr(version.module, "transformer_block", lambda *_, **__: pytest.fail("the model ran"))
    words = r"^prompt 0 has 9 tokens and 0 are to be generated.* n_ctx is 8\b"
    words = "^position_ids must be a list of whole numbers from 0 to 7" if version.is_flat else words
    with pytest.raises(ValueError, match=words):
        version.logits(model, [ids])


@caching
def test_what_is_cached_counts_too(version):
    """Refused before anything is written, the second of two prompts by its number; pads do not count."""
    model = random_model(n_ctx=8)
    input_ids, mask = version.module.left_pad(random_prompts([2, 5]))
    cache = version.new_cache(model, B=2, T_max=20)
    version.module.prefill(input_ids, version.params(model), model.n_head, cache, mask)
    before = cache["blocks"].copy()
    more = np.ones((2, 4), int)
    for chunk in (1, 2, None):
        with pytest.raises(ValueError, match=r"^prompt 1 has 9 tokens and 0 are to be generated"):
            version.module.prefill(more, version.params(model), model.n_head, cache, chunk=chunk)
    with pytest.raises(ValueError, match=r"^prompt 1 has 9 tokens"):
        version.module.gpt2(more, **version.params(model), n_head=model.n_head, kv_cache=cache)
    np.testing.assert_array_equal(cache["blocks"], before)
    version.module.prefill(more[:, 1:], version.params(model), model.n_head, cache)
    with pytest.raises(ValueError, match=r"^prompt 1 has 9 tokens"):
        version.module.decode_one_token([1, 1], version.params(model), model.n_head, cache)
    assert cache["length"] == 8


@caching
def test_more_than_the_cache_holds_is_refused_before_writing(version):
    """70 tokens into a cache of 40, or what it is rounded up to, in chunks of 32: not after the first of them."""
    model = random_model(n_ctx=80)
    call = {"n_head": model.n_head, "kv_cache": version.new_cache(model, B=1, T_max=40)}
    before, n_slots = call["kv_cache"]["blocks"].copy(), version.n_slots(40)
    with pytest.raises(ValueError, match=f"^kv_cache holds 0 of {n_slots} tokens: no room for 70 more$"):
        version.module.prefill(random_prompts([70]), version.params(model), **call, chunk=32)
    np.testing.assert_array_equal(call["kv_cache"]["blocks"], before)
    version.module.gpt2(random_prompts([n_slots - 1]), **version.params(model), **call)
    before = call["kv_cache"]["blocks"].copy()
    with pytest.raises(ValueError, match=f"holds {n_slots - 1} of {n_slots}"):
        version.module.gpt2([[4, 5]], **version.params(model), **call)
    np.testing.assert_array_equal(call["kv_cache"]["blocks"], before)
    assert call["kv_cache"]["length"] == n_slots - 1


@first_and_newest
def test_a_prompt_without_ids_is_refused_with_advice(version):
    """What to do is to start from <|endoftext|>; the command line does it by itself (test_command_line.py)."""
    words = r"prompt 0 has no tokens; start from the <\|endoftext\|> token"
    takes_lists = version.pads or version.is_flat
    with pytest.raises(ValueError, match=f"^{words}$" if takes_lists else "^input_ids must be .* not empty"):
        version.generate(random_model(), [[]], 3)


@first_and_newest
@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2], [3, 4]]], ids=str)
def test_zero_tokens_to_generate(version, prompts):
    """Nothing comes back, once per prompt: [-0:] would be the prompt."""
    assert version.generate(random_model(), prompts, 0) == [[] for _ in prompts]


@first_and_newest
def test_less_than_zero_tokens_to_generate(version, monkeypatch):
    forbid_compute(version, monkeypatch)
    with pytest.raises(ValueError, match="^n_tokens_to_generate must be a whole number, 0 or more, not -1$"):
        version.generate(random_model(), [[1, 2, 3]], -1)


@first_and_newest
def test_ids_are_plain_ints_of_the_vocabulary(version):
    """Argmax over the last position of one row gives an id below n_vocab; over all of them, it would not."""
    model = random_model()
    ids = version.generate(model, random_prompts([33, 33, 33]), 6)
    assert len(ids) == 3
    assert all(len(row) == 6 for row in ids)
    assert all(type(i) is int and 0 <= i < model.n_vocab for row in ids for i in row)
    assert json.loads(json.dumps(ids)) == ids


@first_and_newest
def test_inputs_are_never_changed(version):
    """Lists and arrays stay as they were, which input_ids.append would not leave. Params here are read-only anyway."""
    model = random_model()
    prompts = random_prompts([9, 9])
    for as_given in (lambda ids: [list(row) for row in ids], np.array):
        given = as_given(prompts)
        input_ids = given if version.batches else given[0]
        version.module.generate(input_ids, version.params(model), model.n_head, 4)
        if not version.is_flat:
            version.module.gpt2(input_ids, **version.params(model), n_head=model.n_head)
        assert np.array_equal(given, prompts) and type(given) is type(as_given(prompts))
    if version.pads:
        ragged = random_prompts([9, 4])
        input_ids, mask = version.module.left_pad(ragged)
        assert ragged == random_prompts([9, 4])
        copies = input_ids.copy(), mask.copy()
        version.module.generate(input_ids, version.params(model), model.n_head, 4, attention_mask=mask)
        version.module.gpt2(input_ids, **version.params(model), n_head=model.n_head, attention_mask=mask)
        np.testing.assert_array_equal(input_ids, copies[0])
        np.testing.assert_array_equal(mask, copies[1])
