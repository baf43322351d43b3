"""How long prompts may be, how much is generated, and what comes back. Cases C1 to C4, K6 and K7 of the case book."""
import json

import numpy as np
import pytest
from tiny import V0, VERSIONS, random_model, random_prompts

every_version = pytest.mark.parametrize("version", VERSIONS, ids=str)


def forbid_compute(version, monkeypatch):
    def gpt2(*args, **kwargs):
        raise AssertionError("the model ran, though the lengths do not fit")

    monkeypatch.setattr(version.module, "gpt2", gpt2)


@every_version
@pytest.mark.parametrize("length, n", [(9, 0), (9, 1), (8, 1), (3, 6), (1, 8), (1, 10**30)])
def test_c1_too_long_is_refused_before_any_compute(version, length, n, monkeypatch):
    """C1, K6: with n_ctx 8. The error states the prompt, its length, the tokens to generate and the limit."""
    model = random_model(n_ctx=8)
    forbid_compute(version, monkeypatch)
    with pytest.raises(ValueError, match=rf"^prompt 0 has {length} tokens and {n} are to be generated.* n_ctx is 8\b"):
        version.generate(model, random_prompts([length]), n)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version.pads], ids=str)
def test_c1_names_the_prompt_that_is_too_long(version, monkeypatch):
    """C1: in a batch, the one that does not fit."""
    forbid_compute(version, monkeypatch)
    with pytest.raises(ValueError, match=r"^prompt 2 has 6 tokens and 3 are to be generated"):
        version.generate(random_model(n_ctx=8), random_prompts([5, 1, 6, 7]), 3)


@every_version
@pytest.mark.parametrize("length, n", [(8, 0), (7, 1), (3, 5), (1, 7)])
def test_c2_as_long_as_the_limit_is_allowed(version, length, n):
    """C2, K6: prompt and new tokens of n_ctx in all."""
    model = random_model(n_ctx=8)
    ids = version.generate(model, random_prompts([length]), n)
    assert ids == V0.generate(model, random_prompts([length]), n)
    assert len(ids[0]) == n


@pytest.mark.parametrize("version", [version for version in VERSIONS if version.pads], ids=str)
def test_c2_pads_do_not_count(version):
    """C2: each prompt of a batch has its own length, whatever the padded one is."""
    model = random_model(n_ctx=8)
    prompts = random_prompts([7, 1, 4])
    assert version.generate(model, prompts, 1) == V0.generate(model, prompts, 1)


@every_version
def test_c3_a_prompt_without_ids_is_refused_with_advice(version):
    """C3: what to do is to start from <|endoftext|>; the command line does it by itself (test_command_line.py)."""
    with pytest.raises(ValueError, match=r"^prompt 0 has no tokens; start from the <\|endoftext\|> token$"):
        version.generate(random_model(), [[]], 3)


@every_version
@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2], [3, 4]]], ids=str)
def test_c4_zero_tokens_to_generate(version, prompts):
    """C4: nothing comes back, once per prompt: [-0:] would be the prompt."""
    assert version.generate(random_model(), prompts, 0) == [[] for _ in prompts]


@every_version
def test_less_than_zero_tokens_to_generate(version, monkeypatch):
    forbid_compute(version, monkeypatch)
    with pytest.raises(ValueError, match="n_tokens_to_generate must be 0 or more, not -1"):
        version.generate(random_model(), [[1, 2, 3]], -1)


def test_v1_refuses_different_lengths_and_says_who_takes_them(monkeypatch):
    v1 = VERSIONS[1]
    forbid_compute(v1, monkeypatch)
    with pytest.raises(ValueError, match=r"\[3, 1\] tokens, not all the same: gpt2_v2_padding.py"):
        v1.module.generate([[1, 2, 3], [4]], random_model().params, 3, 2)


@every_version
def test_k7_ids_are_plain_ints_of_the_vocabulary(version):
    """K7, T5: argmax over the last position of one row gives an id below n_vocab; over all of them, it would not."""
    model = random_model()
    ids = version.generate(model, random_prompts([33, 33, 33]), 6)
    assert len(ids) == 3
    assert all(len(row) == 6 for row in ids)
    assert all(type(i) is int and 0 <= i < model.n_vocab for row in ids for i in row)
    assert json.loads(json.dumps(ids)) == ids


@every_version
def test_inputs_are_never_changed(version):
    """Lists and arrays stay as they were, which input_ids.append would not leave. Params here are read-only anyway."""
    model = random_model()
    prompts = random_prompts([9, 9])
    for as_given in (lambda ids: [list(row) for row in ids], np.array):
        given = as_given(prompts)
        input_ids = given if version.batches else given[0]
        version.module.generate(input_ids, model.params, model.n_head, 4)
        version.module.gpt2(input_ids, **model.params, n_head=model.n_head)
        assert np.array_equal(given, prompts) and type(given) is type(as_given(prompts))
    if version.pads:
        ragged = random_prompts([9, 4])
        input_ids, mask = version.module.left_pad(ragged)
        assert ragged == random_prompts([9, 4])
        copies = input_ids.copy(), mask.copy()
        version.module.generate(input_ids, model.params, model.n_head, 4, attention_mask=mask)
        version.module.gpt2(input_ids, **model.params, n_head=model.n_head, attention_mask=mask)
        np.testing.assert_array_equal(input_ids, copies[0])
        np.testing.assert_array_equal(mask, copies[1])
