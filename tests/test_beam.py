"""Beams: the best whole continuation, the same alone and in any batch, and rules for what may come."""
import functools
import itertools
import json

import numpy as np
import pytest
from model_files import assert_one_line
from tiny import random_model, random_prompts

import gpt2_v9_beam as v9
import utils

VOCABULARY, STOP = 5, 4


def tiled(n_vocab=17, n_ctx=64, **sizes):
    model = random_model(np.float32, n_vocab=n_vocab, n_ctx=n_ctx, **sizes)
    return v9.tile_params(model.params), model.n_head


def log_probs_after(texts, params, n_head):
    """-> for each list of ids the log-probabilities of what comes next, all in one step."""
    tokens = [(i, row, t) for row, ids in enumerate(texts) for t, i in enumerate(ids)]
    cache = v9.init_kv_cache(params["wte"], params["blocks"], n_head, len(texts), max(map(len, texts)))
    wanted = np.cumsum([len(ids) for ids in texts]) - 1
    return v9.log_softmax(v9.gpt2(*np.array(tokens).T, wanted=wanted, **params, n_head=n_head, kv_cache=cache))


@functools.cache
def every_continuation(ids, n):
    """All continuations of n ids, or fewer that end with STOP -> [(ids without STOP, sum, length)]."""
    params, n_head = tiled(n_vocab=VOCABULARY)
    others = [i for i in range(VOCABULARY) if i != STOP]
    begun = [new for length in range(n) for new in itertools.product(others, repeat=length)]
    log_probs = dict(zip(begun, log_probs_after([[*ids, *new] for new in begun], params, n_head).tolist()))
    found = []
    for new in (new for some in begun for new in ((*some, i) for i in range(VOCABULARY))):
        if new[-1] == STOP or len(new) == n:
            total = sum(log_probs[new[:t]][i] for t, i in enumerate(new))
            found.append(([i for i in new if i != STOP], total, len(new)))
    return found


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5])
def test_with_a_beam_for_everything_the_best_of_all_continuations_is_found(length_penalty):
    params, n_head = tiled(n_vocab=VOCABULARY)
    search = {"n_beams": 90, "n_best": 90, "stop_ids": STOP, "length_penalty": length_penalty}
    (found,) = v9.beam_search([[1, 2]], params, n_head, 3, **search, early_stopping="never")
    expected = [(ids, total / length**length_penalty) for ids, total, length in every_continuation((1, 2), 3)]
    expected.sort(key=lambda one: -one[1])
    assert len(found) == len(expected) == 1 + 4 + 16 * 5
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert np.allclose([score for _, score in found], [score for _, score in expected], atol=1e-5)


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_one_beam_is_greedy(early_stopping):
    params, n_head = tiled()
    prompts, stop_ids = random_prompts([3, 9, 1, 12, 5]), [3, 5, 16]
    search = {"n_beams": 1, "early_stopping": early_stopping, "length_penalty": 2.0, "stop_ids": stop_ids}
    found = v9.beam_search(prompts, params, n_head, [12, 5, 9, 3, 12], **search)
    greedy = v9.generate(prompts, params, n_head, [12, 5, 9, 3, 12], stop_ids=stop_ids)
    assert [ids for ((ids, _),) in found] == greedy
    assert 0 < sum(len(ids) < n for ids, n in zip(greedy, [12, 5, 9, 3, 12])) < 5


def test_alone_and_in_any_batch_the_same_bits(monkeypatch):
    """Some searches end early here, and others take their rows; the long prompts are fed in in pieces."""
    params, n_head = tiled(n_ctx=256)
    prompts = random_prompts([1, 9, 200, 4, 117, 2, 8])
    search = {"n_beams": 4, "n_best": 4, "stop_ids": [3, 5], "early_stopping": True}
    alone = [v9.beam_search([ids], params, n_head, 10, **search)[0] for ids in prompts]
    assert len({len(ids) for found in alone for ids, _ in found}) > 1
    gpt2, sizes = v9.gpt2, []
    monkeypatch.setattr(v9, "gpt2", lambda ids, *args, **known: sizes.append(len(ids)) or gpt2(ids, *args, **known))
    for n_rows in (1, 9, 64):
        ends = {}
        found = v9.beam_search(prompts, params, n_head, 10, n_rows=n_rows, on_end=ends.__setitem__, **search)
        assert found == alone and [ends[i] for i in range(len(prompts))] == alone
    assert max(sizes) == 256


class Watched(np.ndarray):
    """An array that notes the places that it is written to."""

    written = []

    def __setitem__(self, key, value):
        Watched.written.append(key)
        super().__setitem__(key, value)


def test_a_row_of_the_cache_holds_what_its_beam_was_fed(monkeypatch):
    """After each branching: keys and values are those of the beam's ids, computed anew, and no more was copied."""
    params, n_head = tiled()
    branch, n_copied = v9.branch, []

    def check(kv_cache, search):
        before = {row: list(ids) for row, ids in enumerate(kv_cache["ids"])}
        kv_cache["blocks"] = kv_cache["blocks"].view(Watched)
        Watched.written.clear()
        branch(kv_cache, search)
        kv_cache["blocks"] = kv_cache["blocks"].view(np.ndarray)
        rows = [row for _, _, row in search["beams"]]
        assert len(set(rows)) == len(rows) and set(rows) <= set(search["rows"])
        for _, _, row, _, slots in Watched.written:  # what the row held in common with its new text stays
            ids = next(ids for _, ids, other in search["beams"] if other == row)
            assert (slots.start, slots.stop) == (v9.count_shared(before[row], ids[:-1]), len(ids) - 1)
            n_copied.append(slots.stop - slots.start)
        cache = v9.init_kv_cache(params["wte"], params["blocks"], n_head, len(rows), len(search["beams"][0][1]))
        texts = [ids[:-1] for _, ids, _ in search["beams"]]
        tokens = [(i, n, t) for n, ids in enumerate(texts) for t, i in enumerate(ids)]
        v9.gpt2(*np.array(tokens).T, **params, n_head=n_head, kv_cache=cache, wanted=[0])
        assert [kv_cache["ids"][row] for row in rows] == texts
        n = len(texts[0])
        np.testing.assert_array_equal(kv_cache["blocks"][:, :, rows, :, :n], cache["blocks"][..., :n, :])

    monkeypatch.setattr(v9, "branch", check)
    v9.beam_search(random_prompts([5, 11]), params, n_head, 8, n_beams=5)
    assert len(n_copied) > 10 and min(n_copied) == 1


def test_ties_go_by_lower_beam_then_lower_id():
    row = np.log([0.2, 0.3, 0.3, 0.2])
    search = {"beams": [(-1.0, [7], 0), (-1.0, [8], 1)], "ended": [], "n_prompt": 1, "length": 1, "limit": 9}
    settings = {"rules": {}, "length_penalty": 1.0, "early_stopping": False, "stop_ids": []}
    assert v9.grow(search, [row, row], n_beams=3, **settings)
    assert [(ids, row) for _, ids, row in search["beams"]] == [([7, 1], 0), ([7, 2], 0), ([8, 1], 1)]


def test_beams_are_left_where_all_of_the_best_end():
    row = np.log([0.4, 0.3, 0.2, 0.07, 0.03])
    search = {"beams": [(-1.0, [7], 0)], "ended": [], "n_prompt": 1, "length": 1, "limit": 9}
    settings = {"rules": {}, "length_penalty": 1.0, "early_stopping": "never", "stop_ids": [0, 1, 2]}
    assert v9.grow(search, [row], n_beams=2, **settings)
    assert [ids for _, ids, _ in search["beams"]] == [[7, 3], [7, 4]]
    assert [score for _, score in search["ended"]] == pytest.approx([-1 + np.log(0.4), -1 + np.log(0.3)])


def test_the_best_of_the_ended_are_kept_and_no_beam_goes_on_that_cannot_be_among_them():
    row, ended = np.log([0.9, 0.1]), [([5], -1.0), ([6], -9.0)]
    search = {"beams": [(-1.0, [7, 1], 0)], "ended": ended, "n_prompt": 1, "length": 2, "limit": 9}
    settings = {"rules": {}, "length_penalty": 0.0, "stop_ids": [0]}
    assert not v9.grow(search, [row], n_beams=2, early_stopping=False, **settings)
    assert search["ended"] == [([5], -1.0), ([1], pytest.approx(-1 + np.log(0.9)))]


@pytest.mark.parametrize(
    "early_stopping, length_penalty, worst, goes_on",
    [
        (True, 1.0, -9.0, False), (False, 1.0, -2.1, True), (False, 1.0, -1.9, False), ("never", 1.0, -0.6, True),
        ("never", 1.0, -0.4, False), (False, -1.0, -8.1, True), ("never", -1.0, -7.9, False), (False, 0.0, -4, False),
    ],
)  # fmt: skip
def test_when_a_search_ends(early_stopping, length_penalty, worst, goes_on):
    """The best beam comes to -4 with its second token: -2 a token, or -0.5 if it could keep it up to the eighth."""
    ended = [([5], 0.0), ([6], worst)]
    search = {"beams": [(-4.0, [7, 1], 0)], "ended": ended, "n_prompt": 1, "length": 2, "limit": 9}
    settings = {"rules": {}, "length_penalty": length_penalty, "early_stopping": early_stopping, "stop_ids": []}
    assert v9.grow(search, [np.array([0.0, -999])], n_beams=2, **settings) == goes_on


def test_rules_shift_the_log_probabilities_of_the_model():
    """As in transformers, where they come after the logarithm: what is left does not become likelier."""
    row = np.log([0.5, 0.3, 0.2])
    search = {"beams": [(-1.0, [7], 0)], "ended": [], "n_prompt": 1, "length": 1, "limit": 9}
    settings = {"length_penalty": 1.0, "early_stopping": False, "stop_ids": []}
    v9.grow(search, [row], n_beams=2, rules={"bad_words": [[0]], "logit_bias": {2: 2.0}}, **settings)
    assert np.array_equal(row, np.log([0.5, 0.3, 0.2]))  # or log-probabilities in results would be others
    assert [total for total, *_ in search["beams"]] == pytest.approx([1 + np.log(0.2), -1 + np.log(0.3)])


@pytest.mark.parametrize("n", [1, 3, 20, 1000])
def test_the_n_best_with_ties_and_with_what_is_ruled_out(n):
    for seed in range(20):
        scores = np.round(np.random.default_rng(seed).standard_normal(700) * 4)
        scores[:: seed + 1] = -np.inf
        order = np.argsort(-scores, kind="stable")
        assert v9.best_first(scores, n) == [i for i in order[:n] if scores[i] > -np.inf]


def test_numbers_that_are_none_are_noticed():
    params, n_head = tiled()
    params = {**params, "wpe": np.full_like(params["wpe"], np.nan)}
    for rules in ({}, {"bad_words": [[1]]}):
        with pytest.raises(utils.UserError, match="NaN"):
            v9.beam_search([[1]], params, n_head, 2, **rules)
        with pytest.raises(utils.UserError, match="NaN"):
            v9.generate([[1]], params, n_head, 2, **rules)


def test_where_the_rules_leave_nothing():
    """Sampling cannot go on. A beam ends there, and the others go on: there are fewer, or none."""
    params, n_head = tiled()
    with pytest.raises(utils.UserError, match="rules leave no token"):
        v9.generate([[1]], params, n_head, 2, bad_words=[[i] for i in range(17)])
    assert v9.beam_search([[1]], params, n_head, 2, bad_words=[[i] for i in range(17)]) == [[]]
    dead_end = [[7], *([7, i] for i in range(17)), *([i, j] for i in range(2, 17) for j in range(17))]
    (found,) = v9.beam_search([[1]], params, n_head, 2, n_beams=4, n_best=4, bad_words=dead_end, logit_bias={1: 9})
    assert len(found) == 4 and all(ids[0] in (0, 1) for ids, _ in found)


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
    ends = []
    found = v9.beam_search([[1], [2]], params, n_head, [0, 1], on_end=lambda *end: ends.append(end))
    assert found[0] == [([], 0.0)] and len(found[1][0][0]) == 1 and ends == [(0, found[0]), (1, found[1])]


# ---- on the command line


@pytest.fixture(scope="module")
def encoder():
    return utils.load_model()[0]


@pytest.fixture
def run(edge, monkeypatch, encoder):
    """Run v9 with a tiny model and the bundled vocabulary."""
    model = random_model(np.float32, n_vocab=2048, n_embd=12, n_layer=1)
    hparams = {"n_head": model.n_head, "n_ctx": 64, "n_vocab": 2048}
    monkeypatch.setattr(utils, "load_model", lambda *_, **__: (encoder, hparams, model.params))
    return lambda *arguments: edge(v9.main, *arguments, "-n", 6)


def test_the_best_are_printed_with_their_scores_in_json(run):
    flags = ("Once", "The fox", "--n_beams=4", "--n_best=3")
    found = [json.loads(line) for line in run(*flags, "--json").stdout.splitlines()]
    assert [(one["index"], one["sample"]) for one in found] == [(b, s) for b in (0, 1) for s in (0, 1, 2)]
    assert list(found[0]) == ["index", "sample", "prompt", "ids", "text", "finish_reason", "score"]
    assert found[0]["score"] >= found[1]["score"] >= found[2]["score"]
    texts = run(*flags).stdout
    assert texts == "\n\n".join(one["prompt"] + one["text"] for one in found) + "\n"
    alone = run("The fox", "--n_beams=4")
    assert (alone.stdout, alone.stderr) == (found[3]["text"] + "\n", "")
    (best,) = run("The fox", "--n_beams=4", "--json").stdout.splitlines()
    assert json.loads(best) == {key: value for key, value in {**found[3], "index": 0}.items() if key != "sample"}


def test_flags_of_beams_and_rules_reach_the_search(run):
    def score(*flags):
        return json.loads(run("The fox", "--n_beams=3", "--json", *flags).stdout)["score"]

    assert score("--length_penalty=0") == pytest.approx(6 * score("--early_stopping=True"))
    ids = json.loads(run("The fox", "--n_beams=3", "--json").stdout)["ids"]
    for flag in ("--n_beams=3", "--n_beams=1", "--temperature=1"):
        bias = f'--logit_bias={{"{ids[0]}": 1e9}}'
        assert json.loads(run("The fox", "--json", bias, flag, "--ignore_eos").stdout)["ids"] == ids[:1] * 6
        ruled = run("The fox", "--json", bias, flag, "--no_repeat_ngram_size=2").stdout
        assert json.loads(ruled)["ids"][:2] == ids[:1] * 2 and json.loads(ruled)["ids"][2] != ids[0]


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--n_best", "3"], ["n_beams"]), (["--n_beams", "2", "--n_best", "3"], ["n_best 3", "n_beams 2"]),
        (["--n_beams", "0"], ["n_beams", "1"]), (["--n_beams", "x"], ["--n_beams"]),
        (["--length_penalty", "2"], ["--n_beams"]), (["--early_stopping", "never"], ["--n_beams"]),
        (["--n_beams", "2", "--early_stopping", "maybe"], ["early_stopping", "never", "'maybe'"]),
        (["--n_beams", "2", "--length_penalty", "99"], ["length_penalty", "50"]),
        (["--n_beams", "2", "--temperature", "1"], ["temperature", "without beams"]),
        (["--n_beams", "2", "--stop", "x", "--stream"], ["stop, stream", "without beams"]),
        (["--n_beams", "2", "--n_samples", "2", "--seed", "5"], ["seed", "n_samples", "without beams"]),
        (["--n_beams", "2", "--logprobs", "--top_k", "3"], ["top_k", "logprobs", "without beams"]),
        (["--bad_words", ""], ["--bad_words"]), (["--logit_bias", "13:5"], ["logit_bias", "JSON", "13:5"]),
        (["--logit_bias", '{"2048": 1}'], ["logit_bias", "2047"]), (["--logit_bias", '{"1": "a"}'], ["'a'"]),
        (["--logit_bias", '{"1": NaN}'], ["logit_bias", "nan"]), (["--min_new_tokens", "-1"], ["min_new_tokens"]),
        (["--no_repeat_ngram_size", "1.5"], ["no_repeat_ngram_size"]), (["--num_beams", "4"], ["--n_beams"]),
    ],
)  # fmt: skip
def test_wrong_flags_are_one_line(run, flags, words):
    assert_one_line(run("Once", *flags), *words)
