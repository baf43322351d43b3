"""Beams: the best whole continuation, the same alone and in any batch, and rules for what may come."""
import functools
import itertools

import numpy as np
import pytest
from tiny import random_model, random_prompts

import gpt2_v9_beam as v9
import utils

VOCABULARY, STOP = 5, 4


def tiled(n_vocab=17, n_ctx=64, **sizes):
    model = random_model(np.float32, n_vocab=n_vocab, n_ctx=n_ctx, **sizes)
    return v9.tile_params(model.params), model.n_head


@pytest.fixture(scope="module")
def log_probs_after():
    """log_probs_after(ids) of a model with five tokens, as a tuple -> the next one's log-probabilities."""
    params, n_head = tiled(n_vocab=VOCABULARY)
    return functools.cache(lambda ids: log_probs_of(ids, params, n_head))


def log_probs_of(ids, params, n_head):
    cache = v9.init_kv_cache(params["wte"], params["blocks"], n_head, 1, len(ids))
    places = {"rows": [0] * len(ids), "position_ids": list(range(len(ids))), "wanted": [len(ids) - 1]}
    return v9.log_softmax(v9.gpt2(ids, **places, **params, n_head=n_head, kv_cache=cache))[0]


def every_continuation(ids, n, log_probs_after, length_penalty):
    """All continuations of n ids, or fewer that end with STOP, best first -> [(ids without STOP, score)]."""
    found = []
    for length in range(1, n + 1):
        for new in itertools.product(range(VOCABULARY), repeat=length):
            if STOP in new[:-1] or (new[-1] != STOP and length < n):
                continue
            total = sum(float(log_probs_after((*ids, *new[:t]))[new[t]]) for t in range(length))
            found.append(([i for i in new if i != STOP], total / length**length_penalty))
    return sorted(found, key=lambda one: -one[1])


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5])
def test_with_a_beam_for_everything_the_best_of_all_continuations_is_found(log_probs_after, length_penalty):
    params, n_head = tiled(n_vocab=VOCABULARY)
    search = {"n_beams": 60, "n_best": 3, "stop_ids": STOP, "length_penalty": length_penalty, "early_stopping": "never"}
    (found,) = v9.beam_search([[1, 2]], params, n_head, 3, **search)
    expected = every_continuation([1, 2], 3, log_probs_after, length_penalty)[:3]
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert np.allclose([score for _, score in found], [score for _, score in expected], atol=1e-5)


def test_one_beam_is_greedy():
    params, n_head = tiled()
    prompts = random_prompts([3, 9, 1])
    found = v9.beam_search(prompts, params, n_head, 12, n_beams=1)
    assert [ids for ((ids, _),) in found] == v9.generate(prompts, params, n_head, 12)


def test_alone_and_in_any_batch_the_same_bits():
    """Some searches end early here, and others take their rows."""
    params, n_head = tiled()
    prompts = random_prompts([1, 9, 30, 4, 17, 2, 8])
    search = {"n_beams": 4, "n_best": 4, "stop_ids": [3, 5], "early_stopping": True}
    alone = [v9.beam_search([ids], params, n_head, 10, **search)[0] for ids in prompts]
    assert len({len(ids) for found in alone for ids, _ in found}) > 1
    for n_rows in (4, 9, 64):
        assert v9.beam_search(prompts, params, n_head, 10, n_rows=n_rows, **search) == alone


def test_a_row_of_the_cache_holds_what_its_beam_was_fed(monkeypatch):
    """After each branching: keys and values are those of the beam's ids, computed anew."""
    params, n_head = tiled()
    branch, n_copies = v9.branch, []

    def check(kv_cache, search):
        before = [row for _, _, row in search["beams"]]
        branch(kv_cache, search)
        rows = [row for _, _, row in search["beams"]]
        assert len(set(rows)) == len(rows)
        n_copies.append(sum(a != b for a, b in zip(before, rows)))
        for _, ids, row in search["beams"]:
            assert kv_cache["ids"][row] == ids[:-1]
            cache = v9.init_kv_cache(params["wte"], params["blocks"], n_head, 1, len(ids))
            places = {"rows": [0] * len(ids), "position_ids": list(range(len(ids))), "wanted": [0]}
            v9.gpt2(ids, **places, **params, n_head=n_head, kv_cache=cache)
            n = len(ids) - 1
            np.testing.assert_array_equal(kv_cache["blocks"][:, :, row, :, :n], cache["blocks"][:, :, 0, :, :n])

    monkeypatch.setattr(v9, "branch", check)
    v9.beam_search(random_prompts([5, 11]), params, n_head, 8, n_beams=5)
    assert sum(n_copies) > 10


RULES = {
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, lambda ids, prompt: not repeats(prompt + ids, 2)),
    "min_new_tokens": ({"min_new_tokens": 6}, lambda ids, prompt: len(ids) >= 6),
    "bad_words": ({"bad_words": [[7], [1, 2]]}, lambda ids, prompt: 7 not in ids and not has_run(prompt + ids, [1, 2])),
    "logit_bias": ({"logit_bias": {11: 100.0}}, lambda ids, prompt: set(ids) == {11}),
}


def repeats(ids, n):
    runs = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(runs)) < len(runs)


def has_run(ids, run):
    return any(ids[i : i + len(run)] == run for i in range(len(ids)))


@pytest.mark.parametrize("name", RULES)
def test_rules_hold_for_samples_and_for_beams(name):
    params, n_head = tiled(seed=3)
    rules, holds = RULES[name]
    prompts, stop_ids = [[6, 1], [4, 5, 4], [3]], [i for i in range(17) if i not in (7, 1, 2, 11)]
    stop_ids = stop_ids if name == "min_new_tokens" else []
    sampled = {"temperature": 1.0, "seed": 1, "n_samples": 4}
    without = v9.generate(prompts, params, n_head, 14, stop_ids=stop_ids, **sampled)
    assert not all(holds(ids, prompts[i // 4]) for i, ids in enumerate(without))  # or the rule would show nothing
    for i, ids in enumerate(v9.generate(prompts, params, n_head, 14, stop_ids=stop_ids, **sampled, **rules)):
        assert holds(ids, prompts[i // 4])
    found = v9.beam_search(prompts, params, n_head, 14, n_beams=3, stop_ids=stop_ids, **rules)
    assert all(holds(ids, prompt) for prompt, ((ids, _),) in zip(prompts, found))


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_beams": 0}, {"n_beams": True}, {"n_best": 5}, {"early_stopping": "always"}, {"length_penalty": "1"},
        {"stop_ids": "."}, {"stop_ids": [99]}, {"bad_words": "a"}, {"bad_words": [[]]}, {"bad_words": [[99]]},
        {"logit_bias": {99: 1}}, {"logit_bias": {1: "a"}}, {"logit_bias": [1]}, {"min_new_tokens": -1},
        {"no_repeat_ngram_size": 1.5}, {"no_repeat": 2}, {"n_rows": 0},
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong):
    params, n_head = tiled()
    with pytest.raises(utils.UserError):
        v9.beam_search([[1, 2]], params, n_head, 4, **wrong)


def test_no_tokens_to_generate():
    params, n_head = tiled()
    assert v9.beam_search([[1], [2]], params, n_head, 0) == [[([], 0.0)], [([], 0.0)]]
