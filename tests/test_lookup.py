"""gpt2_v8_lookup.py: guesses, right or wrong, change how many steps a text takes and nothing else.

test_continuous.py has what holds for v7 as well, among it the bits of v6 for each prompt alone.
"""
import functools

import numpy as np
import pytest
from test_continuous import N_CTX, SAMPLED, alone, mixed_prompts, model_of, new_cache, results_of, seeded, steps_of
from tiny import FLAT, position_model, random_model, random_prompts

import gpt2_v8_lookup as v8
import utils

V7, V8 = (next(version for version in FLAT if version.number == number) for number in (7, 8))

# ---- draft


def slow_draft(ids, n_draft):
    """The same, spelled out."""
    for n in (3, 2):
        for start in range(len(ids) - n - 1, -1, -1):
            if len(ids) > n and ids[start : start + n] == ids[-n:]:
                return ids[start + n : start + n + n_draft]
    return []


@pytest.mark.parametrize(
    "ids, expected",
    [
        ([], []),
        ([1], []),
        ([1, 2], []),
        ([1, 1, 1], [1]),
        ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], [4, 5, 6, 7, 8, 9, 1]),
        ([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], [4, 9, 2, 3, 5, 1, 2]),  # the last three, though two of them came later
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2, 3]),  # the latest of both
        ([1, 2, 3, 4, 5, 3, 4], [5, 3, 4]),
        ([1, 2, 3, 4, 5, 6], []),
    ],
)
def test_a_guess_is_what_followed_the_latest_earlier_occurrence(ids, expected):
    assert v8.draft(ids, 7) == slow_draft(ids, 7) == expected
    assert v8.draft(ids, 2) == expected[:2]
    assert v8.draft(ids, 0) == []


def test_an_index_that_grows_finds_what_a_search_finds():
    rng = np.random.default_rng(0)
    for n_vocab in (2, 3, 10):
        ids, index = [], {}
        for _ in range(300):
            ids += rng.integers(n_vocab, size=rng.integers(1, 4)).tolist()
            assert v8.draft(ids, 5, index) == slow_draft(ids, 5)


# ---- whatever is guessed


def oracle(texts, n_right=None, n_wrong=0, n_vocab=40):
    """A draft function that knows what will be chosen -> n_right tokens of it, then n_wrong others."""

    def draft(ids, n_draft, index):
        text = max((text for text in texts if text[: len(ids)] == ids), key=len)
        right = text[len(ids) :][: n_draft if n_right is None else n_right]
        after = text[len(ids) + len(right) :] + [0] * n_wrong
        return right + [(i + 1) % n_vocab for i in after[:n_wrong]]

    return draft


DRAFTS = {
    "always right": {},
    "always wrong": {"n_right": 0, "n_wrong": 7},
    "wrong at the last token": {"n_right": 6, "n_wrong": 1},
    "wrong at the second token": {"n_right": 1, "n_wrong": 1},
    "much too long": {"n_right": 1000, "n_wrong": 1000},
    "none": {"n_right": 0},
}


@functools.cache
def some_texts(is_sampled):
    """-> model, prompts, numbers of new tokens, what v6 gives each alone, and each text with all that could follow."""
    model, settings = random_model(np.float32, n_vocab=40, n_ctx=80), SAMPLED if is_sampled else {}
    prompts = random_prompts([70, 60, 66, 61, 72], 40)
    prompts[2][:40] = prompts[1][:40]
    n = [81 - len(prompts[0]), 0, 1, 81 - len(prompts[3]), 5]
    whole = alone(model, prompts, [81 - len(ids) for ids in prompts], **settings)[0]
    expected = alone(model, prompts, n, stop_ids=[5], **settings)
    return model, prompts, n, expected, [prompt + ids for prompt, ids in zip(prompts, whole)]


@pytest.mark.blas
@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", DRAFTS)
def test_no_guess_changes_a_bit(monkeypatch, kind, is_sampled):
    """With stops inside of guesses, and texts that fill n_ctx to the last token."""
    model, prompts, n, expected, texts = some_texts(is_sampled)
    monkeypatch.setattr(v8, "draft", oracle(texts, **DRAFTS[kind]))
    rows = {"n_rows": 1, "n_draft": 7} if is_sampled else {"n_rows": 5, "n_draft": 30}
    settings = seeded(SAMPLED if is_sampled else {})
    assert results_of(V8, model, prompts, n, stop_ids=[5], **rows, **settings) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_its_own_guesses_change_no_bit(temperature):
    """Few tokens, so that some guesses are right and some are wrong."""
    model, prompts = model_of(n_vocab=5), mixed_prompts(4, longest=30, n_vocab=5)
    call = {"n_rows": 3, **seeded({"temperature": temperature} if temperature else {})}
    assert results_of(V8, model, prompts, 25, **call) == results_of(V7, model, prompts, 25, **call)


def test_a_guess_that_is_no_token_is_refused_and_the_cache_can_go_on(monkeypatch):
    model, prompts, cache = model_of(), random_prompts([20, 30], 40), None
    cache = new_cache(V8, model, 2)
    for wrong in (40, -1):
        with monkeypatch.context() as patch:
            patch.setattr(v8, "draft", lambda *_, wrong=wrong: [1, wrong])
            with pytest.raises(utils.UserError, match="input_ids must be ids of the model's tokens"):
                results_of(V8, model, prompts, 9, kv_cache=cache)
    assert results_of(V8, model, prompts, 9, kv_cache=cache) == alone(model, prompts, 9)


@pytest.mark.parametrize("n_draft", [-1, 1.5, None, True, "7"])
def test_n_draft_is_checked(n_draft):
    with pytest.raises(utils.UserError, match="n_draft must be a whole number, 0 or more"):
        results_of(V8, model_of(), [[1]], 2, n_draft=n_draft)


def test_a_generator_is_used_once_for_each_token_of_the_result(monkeypatch):
    """So that what is drawn after a guess is what would be drawn without it."""
    draws = []
    draw = v8.draw
    monkeypatch.setattr(v8, "draw", lambda *args: draws.append(draw(*args)) or draws[-1])
    model, prompts = model_of(n_vocab=5), random_prompts([30, 40], 5)
    ids, _ = results_of(V8, model, prompts, 50, temperature=0.5, seed=3)
    assert sorted(draws) == sorted(ids[0] + ids[1])


# ---- how many steps


def test_guesses_that_are_right_save_steps(monkeypatch):
    """8 tokens a step once they are known to be right; before that as many as fill up a block of rows."""
    model, prompts = model_of(), random_prompts([9], 40)
    texts = [prompts[0] + alone(model, prompts, 56)[0][0]]
    monkeypatch.setattr(v8, "draft", oracle(texts))
    steps = steps_of(V8, monkeypatch, model, prompts, 56)
    fed = [step[0] for step in steps]
    assert fed[0] == 9 + 7  # two blocks
    assert fed[1:-1] == [8] * len(fed[1:-1])
    assert len(fed) == 7  # 56 / 8


@pytest.mark.parametrize("n_rows, most", [(1, 4), (6, 8), (16, 16)])
def test_guesses_that_are_wrong_take_only_what_is_free(monkeypatch, n_rows, most):
    """The same steps as in v7, and no block of rows more than they have."""
    model, prompts = model_of(), random_prompts([9] * n_rows, 40)
    texts = [ids + new for ids, new in zip(prompts, results_of(V7, model, prompts, 24, n_rows=16)[0])]
    plain = steps_of(V7, monkeypatch, model, prompts, 16, n_rows=n_rows)
    monkeypatch.setattr(v8, "draft", oracle(texts, n_right=0, n_wrong=7))
    steps = steps_of(V8, monkeypatch, model, prompts, 16, n_rows=n_rows)
    assert len(steps) == len(plain)
    late = [sum(step.values()) for step in steps[8:]]  # by then it is known
    assert max(late) <= most


def test_the_surest_guesses_get_the_room(monkeypatch):
    """Of eight texts the guesses for one are right: it alone is fed more than a token."""
    model, prompts = model_of(), random_prompts([9] * 8, 40)
    n = [24, 24, 110, *[24] * 5]
    texts = [ids + new for ids, new in zip(prompts, results_of(V7, model, prompts, n)[0])]
    right, wrong = oracle(texts), oracle(texts, n_right=0, n_wrong=7)
    monkeypatch.setattr(v8, "draft", lambda ids, *args: (right if ids[:9] == prompts[2] else wrong)(ids, *args))
    steps = steps_of(V8, monkeypatch, model, prompts, n, n_rows=8)
    for step in steps[10:15]:
        assert step[2] == 8 and sum(step.values()) == 16  # and the 16th fills up a block


def test_no_draft_is_v7(monkeypatch):
    model, prompts = model_of(n_vocab=5), mixed_prompts(9, n_vocab=5)
    assert steps_of(V8, monkeypatch, model, prompts, 20, n_draft=0) == steps_of(V7, monkeypatch, model, prompts, 20)


def test_a_guess_goes_round_where_it_comes_to_the_end_of_the_text(monkeypatch):
    """A model that says the last token again and again: what followed it the last time is a single token."""
    model = position_model(n_ctx=N_CTX)
    model.params["wpe"][:] = 0
    assert results_of(V8, model, [[3]], 150)[0] == [[3] * 150]
    steps = steps_of(V8, monkeypatch, model, [[3]], 150)
    assert len(steps) <= 2 + 150 / 8 + 3


# ---- more of the same


@pytest.mark.extra
@pytest.mark.slow
def test_any_guesses_and_texts():
    import hypothesis
    from hypothesis import strategies as st

    model, draft = model_of(n_vocab=6), v8.draft

    @hypothesis.settings(max_examples=1000, deadline=None, derandomize=True)
    @hypothesis.given(st.data())
    def check(data):
        lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
        prompts = random_prompts(lengths, 6, seed=data.draw(st.integers(0, 5)))
        n = [data.draw(st.integers(0, 40)) for _ in prompts]
        settings = data.draw(st.sampled_from([{}, SAMPLED, {"temperature": 0.3}]))
        n_samples = data.draw(st.integers(1, 2)) if settings else 1
        call = {**seeded(settings, n_samples), "stop_ids": data.draw(st.lists(st.integers(0, 5), max_size=1))}
        call |= {"n_rows": data.draw(st.integers(1, 17)), "chunk": data.draw(st.integers(1, 60))}
        expected = results_of(V7, model, prompts, n, **call)
        rng = np.random.default_rng(data.draw(st.integers(0, 9)))
        texts = [prompts[row // n_samples] + ids for row, ids in enumerate(expected[0])]

        def some_draft(ids, n_draft, index):
            """Right for a while, or anything."""
            follow = next((text[len(ids) :] for text in texts if text[: len(ids)] == ids), [])
            return follow[: rng.integers(9)] + rng.integers(6, size=rng.integers(9)).tolist()

        v8.draft = some_draft if data.draw(st.booleans()) else draft
        try:
            n_draft = data.draw(st.integers(0, 12))
            assert results_of(V8, model, prompts, n, n_draft=n_draft, **call) == expected
        finally:
            v8.draft = draft

    check()


@pytest.mark.slow
def test_greedy_tales_take_fewer_steps(monkeypatch):
    """At least 2.3 tokens a step for one text, as promised, and the same text."""
    encoder, hparams, params = utils.load_model("tales")
    text = encoder.encode((utils.Path("models") / "tales" / "held_out.txt").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    starts = zip(rng.integers(0, len(text) - 400, 8), rng.integers(10, 60, 8))
    prompts = [text[start : start + n] for start, n in starts]
    model = model_of()._replace(params=params, n_head=hparams["n_head"])
    assert results_of(V8, model, prompts, 200) == results_of(V7, model, prompts, 200)
    assert len(steps_of(V8, monkeypatch, model, prompts, 200, n_rows=1)) <= 8 * 200 / 2.3
