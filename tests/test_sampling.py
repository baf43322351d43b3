"""Choosing a token: which tokens can be drawn, how often each is, and that nothing but the row's seed decides.

Also the order in which the settings apply, and the commands on the bundled model. test_reference_sampling.py compares
with transformers.
"""
import itertools
import json
import math

import numpy as np
import pytest
from chances import Numbers, chances
from model_files import assert_one_line, command
from tiny import V0, random_model, random_prompts

import gpt2_v3_kvcache as v3
import gpt2_v4_sampling as v4
import utils

pytestmark = pytest.mark.usefixtures("clean_environment")

COMBINATIONS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.6},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.15},
    {"temperature": 1.3, "top_k": 8, "top_p": 0.85},
    {"temperature": 0.9, "top_p": 0.95, "min_p": 0.1},
    {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "min_p": 0.06},
]
every_combination = pytest.mark.parametrize("settings", COMBINATIONS, ids=lambda s: " ".join(f"{k}={s[k]}" for k in s))
LOGITS = np.random.default_rng(5).standard_normal(12) * 1.2


def logs(*probabilities):
    """Logits with these probabilities, as float32 [1, n_vocab]."""
    return np.log(np.array([probabilities], np.float32))


def shares(logits, n, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Which part of all random numbers makes `draw` choose each token of one row; exact up to 1 / n."""
    numbers = (np.arange(n) + 0.5) / n
    ids = [v4.draw(logits, Numbers(number), temperature, top_k, top_p, min_p) for number in numbers.tolist()]
    return np.bincount(ids, minlength=len(logits)) / n


# ---- what can be drawn, and how often


@every_combination
@pytest.mark.parametrize("dtype", [np.float32, np.longdouble], ids=["float32", "longdouble"])
def test_the_chance_of_each_token(settings, dtype):
    """Not by luck: the random numbers are an even grid, and the part of them that leads to each token is counted."""
    expected = chances(LOGITS, **settings)
    found = shares(LOGITS.astype(dtype), 200, **settings)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.5 / 200)
    assert (found > 0).tolist() == [chance > 0 for chance in expected]


def chi_square(counts, expected):
    """Pearson's statistic, and the value that it exceeds once in 10,000 times where the counts are by chance.

    The latter by Wilson and Hilferty (1931): the cube root of chi-square / n is nearly normal. 3.72 is the normal
    distribution's.
    """
    counts, expected = np.array(counts), np.array(expected) * np.sum(counts)
    assert np.all(counts[expected == 0] == 0)
    counts, expected = counts[expected > 0], expected[expected > 0]
    assert np.all(expected > 5)  # what the approximation needs
    n = len(counts) - 1
    return np.sum((counts - expected) ** 2 / expected), n * (1 - 2 / (9 * n) + 3.72 * math.sqrt(2 / (9 * n))) ** 3


@pytest.mark.slow
@every_combination
def test_100_000_draws_have_the_exact_distribution(settings):
    n, generator = 100_000, np.random.default_rng(1)
    ids = v4.sample(np.broadcast_to(LOGITS, (n, 12)), [generator] * n, **settings)
    counts = np.bincount(ids, minlength=12)
    statistic, limit = chi_square(counts, chances(LOGITS, **settings))
    assert statistic < limit
    # The test can fail: a temperature that is off by 5 % would be noticed.
    other = {**settings, "temperature": settings["temperature"] * 1.05}
    statistic, limit = chi_square(counts, chances(LOGITS, **other))
    assert statistic > limit


def test_row_seeds_that_are_neighbours_are_independent():
    """2,000 rows whose streams differ in the row's number alone, one draw each, have the distribution of one row."""
    generators = v4.row_generators(7, 1000, 2)
    ids = v4.sample(np.broadcast_to(LOGITS, (2000, 12)), generators, temperature=1.0)
    statistic, limit = chi_square(np.bincount(ids, minlength=12), chances(LOGITS))
    assert statistic < limit


@pytest.mark.parametrize("n_vocab", [1, 255, 256, 257, 300, 513, 50_257])
def test_find_share_finds_the_token_that_crosses_a_share(n_vocab):
    """Against running sums in float64, which are near enough to exact ones. Half of the weights are 0, never found.

    The weights are float32 of all sizes, whose sums depend on their order: at the ends a share may lie behind the last
    sum of a block by rounding alone.
    """
    for seed in range(10):
        rng = np.random.default_rng(seed)
        weights = np.exp(3 * rng.standard_normal(n_vocab)).astype(np.float32)
        weights[rng.random(n_vocab) < 0.5] = 0
        weights[seed % n_vocab] = 1  # so that one at least is not 0
        sums = np.cumsum(weights.astype(np.float64)) / np.sum(weights, dtype=np.float64)
        for share in (1.0, 1 - 2.0**-53, 2.0**-53, 1e-9, *(1 - rng.random(10)), *rng.choice(sums[sums > 0], 5)):
            i = v4.find_share(weights, share)
            assert 0 <= i < n_vocab and weights[i] > 0
            assert sums[i] - weights[i] / weights.sum() - 1e-6 <= share <= sums[i] + 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble], ids=["float32", "float64", "longdouble"])
@pytest.mark.parametrize("n_vocab", [1, 255, 257, 50_257])
def test_the_ends_of_the_random_numbers_stay_inside_of_the_vocabulary(n_vocab, dtype):
    """random() gives 0 but never 1. Sums over 50,257 floats differ by their order, so ends are where mistakes show."""
    logits = np.zeros((1, n_vocab + 4), dtype)
    logits[:, :2] = logits[:, -2:] = -np.inf  # impossible tokens in front and behind, which must never be drawn
    for number in (0.0, 1e-300, 2.0**-53, 0.5, 1 - 2.0**-53):
        assert 2 <= v4.sample(logits, [Numbers(number)], temperature=1.0)[0] < n_vocab + 2


def test_the_token_that_crosses_top_p_is_kept():
    """Hugging Face's rule."""
    logits = logs(0.5, 0.3, 0.15, 0.05)[0]
    for top_p, kept in [(0.6, 2), (0.8, 2), (0.95, 3), (1.0, 4), (0.5, 1), (0.50001, 2), (0.951, 4)]:
        found = shares(logits, 400, top_p=top_p)
        assert (found > 0).tolist() == [True] * kept + [False] * (4 - kept), top_p


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_equal_tokens_reach_top_p_exactly_whatever_the_rounding(dtype):
    """Of n tokens that are as likely, k are kept at top_p k / n, although k / n * n is not always k in floats."""
    for n in range(2, 40):
        for k in range(1, n):
            kept = v4.keep_top_p(np.ones(n, dtype), k / n)
            assert kept.dtype == dtype and np.flatnonzero(kept).tolist() == list(range(k))


@pytest.mark.parametrize("top_p", [0.0, 1e-8, 1e-300, 0])
def test_a_top_p_near_0_keeps_the_best_token_alone(top_p):
    """Also where there are other tokens as good: then the lowest id is the best."""
    logits = np.random.default_rng(0).standard_normal((20, 50_257)).astype(np.float32)
    logits[10:] = np.round(logits[10:])
    generators = [np.random.default_rng(row) for row in range(20)]
    ids = v4.sample(logits, generators, temperature=1.0, top_p=top_p)
    np.testing.assert_array_equal(ids, np.argmax(logits, axis=-1))


def test_a_top_p_near_1_draws_from_a_flat_row_of_float32():
    """Float32 sums over 50,257 tokens miss 1 by their rounding; no number may find no token."""
    logits = np.random.default_rng(0).standard_normal((1, 50_257)).astype(np.float32) * 0.01
    for top_p in (0.9999999, 0.999999, 0.99999, 1.0, 1):
        for number in (0.0, 1e-9, 1 - 2.0**-53):
            i = v4.sample(logits, [Numbers(number, 0.5, 0.5, 0.5)], temperature=1.0, top_p=top_p)[0]
            assert 0 <= i < 50_257


def test_top_k_keeps_exactly_k_and_ties_go_by_lower_id():
    """Rows of few different values, so that nearly every k has to choose among equals."""
    for seed, n_vocab in itertools.product(range(5), [1, 2, 3, 17, 40, 300]):
        row = np.random.default_rng(seed).integers(0, 4, n_vocab).astype(np.float32)
        ranked = sorted(range(n_vocab), key=lambda i: (-row[i], i))
        for k in [*range(1, min(n_vocab, 20)), n_vocab - 1, n_vocab]:
            kept = v4.keep_top_k(row, k)
            expected = [row[i] if i in ranked[:k] or k == 0 else -math.inf for i in range(n_vocab)]
            np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize("k", [1, 2, 39, 40, 1000, 30_000, 50_256])
def test_top_k_of_a_whole_vocabulary(k):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 50_257)).astype(np.float32)
    logits[1] = np.round(logits[1], 1)  # many ties
    logits[2] = np.sort(logits[2])[::-1]
    for row in logits:
        kept = v4.keep_top_k(row, k)
        assert kept.dtype == np.float32
        best = np.argsort(-row, kind="stable")[:k]
        np.testing.assert_array_equal(np.flatnonzero(kept > -np.inf), np.sort(best))
        np.testing.assert_array_equal(kept[best], row[best])


def test_top_k_0_or_above_the_vocabulary_is_off():
    for k in (0, 12, 13, 10**30):
        np.testing.assert_array_equal(v4.keep_top_k(LOGITS, k), LOGITS)


def test_top_k_where_most_tokens_are_impossible():
    logits = np.full((1, 1000), -np.inf, np.float32)
    logits[0, [3, 500]] = 1, 2
    for number in (0.0, 0.3, 0.9):
        assert v4.sample(logits, [Numbers(number)], temperature=1.0, top_k=40)[0] in (3, 500)


def test_top_k_1_is_greedy():
    rng = np.random.default_rng(0)
    logits = np.round(rng.standard_normal((50, 30)), 1)
    generators = [np.random.default_rng(row) for row in range(50)]
    for temperature in (1e-30, 0.1, 1.0, 100.0, 1e30):  # the last makes all tokens as likely; the best is still one
        ids = v4.sample(logits, generators, temperature=temperature, top_k=1)
        np.testing.assert_array_equal(ids, v4.sample(logits))
        np.testing.assert_array_equal(ids, np.argmax(logits, axis=-1))
    model, prompts = random_model(), random_prompts([9, 4, 17])
    input_ids, mask = v4.left_pad(prompts)
    greedy = v3.generate(input_ids, model.params, model.n_head, 8, mask)
    assert v4.generate(input_ids, model.params, model.n_head, 8, mask, temperature=1.0, top_k=1, seed=3) == greedy


@pytest.mark.parametrize(
    "min_p, kept",
    [(0.0, 4), (0.1, 4), (0.1001, 3), (0.3, 3), (0.3001, 2), (0.6, 2), (0.6001, 1), (1.0, 1)],
)
def test_min_p_is_a_part_of_the_best_ones_probability(min_p, kept):
    """The limit itself is kept: 0.3 / 0.5 is 0.6; less a hair here, since such quotients are rounded."""
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    found = shares(logits, 400, min_p=min_p - 1e-12 if min_p < 1 else min_p)
    assert (found > 0).tolist() == [True] * kept + [False] * (4 - kept)


def test_min_p_1_keeps_all_that_are_as_good_as_the_best():
    found = shares(np.array([1.0, 2.0, 2.0, 0.0]), 400, min_p=1.0)
    np.testing.assert_allclose(found, [0, 0.5, 0.5, 0], atol=1 / 400)


# ---- the order in which settings apply; each case would have another result in another order


def can_be_drawn(logits, **settings):
    """The tokens that 200 evenly spread numbers lead to; where more numbers are asked for, the first one again."""
    numbers = (np.arange(200) + 0.5) / 200
    return {int(v4.sample(logits, [Numbers(*[number] * 20)], **settings)[0]) for number in numbers}


def test_temperature_comes_before_top_p():
    """At 0.5 the first two have .45 and .29 of the mass, but .63 and .26 after the temperature."""
    logits = logs(0.45, 0.29, 0.16, 0.10)
    assert can_be_drawn(logits, temperature=1.0, top_p=0.62) == {0, 1}
    assert can_be_drawn(logits, temperature=0.5, top_p=0.62) == {0}


def test_temperature_comes_before_min_p():
    """The second has 0.5 of the best one's probability, and 0.25 after a temperature of 0.5."""
    logits = logs(0.6, 0.3, 0.1)
    assert can_be_drawn(logits, temperature=1.0, min_p=0.4) == {0, 1}
    assert can_be_drawn(logits, temperature=0.5, min_p=0.4) == {0}


def test_top_k_comes_before_top_p():
    """Of the three that top-k keeps, the first has 0.5 / 0.8 of the mass, enough for top-p 0.6."""
    logits = logs(0.5, 0.2, 0.1, 0.1, 0.1)
    assert can_be_drawn(logits, temperature=1.0, top_k=3, top_p=0.6) == {0}
    assert can_be_drawn(logits, temperature=1.0, top_p=0.6) == {0, 1}


def test_top_p_comes_before_min_p():
    """min-p leaves 0.4 and 0.3, of which the first alone would be enough for top-p 0.55; top-p is counted before."""
    logits = logs(0.4, 0.3, 0.1, 0.1, 0.1)
    assert can_be_drawn(logits, temperature=1.0, top_p=0.55, min_p=0.5) == {0, 1}


def test_the_repetition_penalty_comes_before_top_k():
    """top-k 1 finds the best one of what the penalty left. The other way round the penalty would change nothing."""
    model, prompt = random_model(), random_prompts([9])[0]
    best = v4.generate([prompt], model.params, model.n_head, 1)[0][0]
    known = {"temperature": 1.0, "top_k": 1, "repetition_penalty": 1e6}
    ids = v4.generate([[*prompt, best]], model.params, model.n_head, 1, **known)[0]
    assert ids == penalized_greedy(model, [*prompt, best], 1, 1e6)
    assert ids != v4.generate([[*prompt, best]], model.params, model.n_head, 1)[0]


# ---- temperature


def test_temperature_0_is_v3():
    model = random_model()
    input_ids, mask = v4.left_pad(random_prompts([9, 1, 17, 5]))
    expected = v3.generate(input_ids, model.params, model.n_head, 10, mask)
    for settings in ({}, {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "seed": None, "n_samples": 1}):
        assert v4.generate(input_ids, model.params, model.n_head, 10, mask, **settings) == expected


IDLE = {"top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7, "n_samples": 3}


@pytest.mark.parametrize("name", IDLE)
def test_settings_that_change_nothing_at_temperature_0_are_refused(edge, monkeypatch, name):
    """Three equal texts would be taken for three samples."""
    monkeypatch.setattr(utils, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    words = f"^{name} changes nothing at temperature 0: give --temperature 1 too, or another$"
    for temperature in (0, 0.0, np.float32(0)):
        with pytest.raises(utils.UserError, match=words):
            v4.generate([[1, 2]], random_model().params, 3, 2, temperature=temperature, **{name: IDLE[name]})
    if name not in ("seed", "n_samples"):
        with pytest.raises(utils.UserError, match=words):
            v4.sample(LOGITS[None], **{name: IDLE[name]})
    assert_one_line(edge(v4.main, "Once", f"--{name}", IDLE[name]), name, "--temperature 1")


def test_all_settings_that_change_nothing_are_named():
    with pytest.raises(utils.UserError, match="^top_k, top_p, min_p, seed, n_samples changes nothing"):
        v4.generate([[1, 2]], random_model().params, 3, 2, **IDLE)
    with pytest.raises(utils.UserError, match="^seed changes nothing"):
        v4.generate([[1, 2]], random_model().params, 3, 2, seed=[7])


@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 1e-45, 5e-324])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble], ids=["float32", "float64", "longdouble"])
def test_a_temperature_near_0_does_not_overflow(temperature, dtype):
    """It chooses the best one, without a warning, also among logits of which the quotient is no number."""
    logits = np.random.default_rng(0).standard_normal((10, 300)).astype(dtype)
    logits[5:] *= dtype(1e30)
    logits[:, 7] = -np.inf
    generators = [np.random.default_rng(row) for row in range(10)]
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        ids = v4.sample(logits, generators, temperature=temperature)
    np.testing.assert_array_equal(ids, np.argmax(logits, axis=-1))


def test_a_very_high_temperature_makes_all_tokens_alike():
    found = shares(LOGITS.astype(np.float32), 600, temperature=1e30)
    np.testing.assert_allclose(found, [1 / 12] * 12, atol=1 / 600)


def test_a_temperature_of_numpys_float64_keeps_float32(monkeypatch):
    keep_top_p, dtypes = v4.keep_top_p, []

    def noted(weights, top_p):
        dtypes.append(weights.dtype)
        return keep_top_p(weights, top_p)

    monkeypatch.setattr(v4, "keep_top_p", noted)
    v4.sample(LOGITS[None].astype(np.float32), [Numbers(0.5)], temperature=np.float64(0.8), top_k=5)
    assert dtypes == [np.float32]


# ---- logits that are of no use

BAD_ROWS = {"NaN": [0, np.nan, 1], "all NaN": [np.nan] * 3, "infinity": [0, np.inf, 1], "only -inf": [-np.inf] * 3}


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 1}], ids=str)
def test_logits_that_are_not_finite_are_an_error(row, settings):
    """Never id 0. One bad row in a batch is enough."""
    logits = np.array([[1.0, 2.0, 3.0], row])
    with pytest.raises(ValueError, match="NaN or infinity"):
        v4.sample(logits, [np.random.default_rng(0)] * 2, **settings)


@pytest.mark.parametrize(
    "logits", [[[1.0, 2.0]], np.zeros(3), np.zeros((1, 1, 3)), np.zeros((1, 3), int), np.zeros((1, 3), bool),
               np.zeros((1, 3), complex), np.zeros((1, 3), object), np.zeros((0, 3)), np.zeros((2, 0)), "abc", None],
    ids=["list", "1-D", "3-D", "int", "bool", "complex", "object", "no row", "no token", "str", "None"],
)  # fmt: skip
def test_logits_of_another_kind_are_refused(logits):
    for settings in ({}, {"temperature": 1.0}):
        with pytest.raises(utils.UserError, match=r"^logits must be an array of floats, \[B, n_vocab\], and not"):
            v4.sample(logits, [np.random.default_rng(0)], **settings)


def test_tokens_with_minus_infinity_are_never_drawn():
    logits = np.array([[-np.inf, 0.0, -np.inf, 0.0]])
    assert can_be_drawn(logits, temperature=1.0) == {1, 3}
    assert v4.sample(logits)[0] == 1


def test_damaged_weights_are_an_error():
    model = random_model(np.float32)
    damaged = {**model.params, "ln_f": {"g": model.params["ln_f"]["g"] * np.nan, "b": model.params["ln_f"]["b"]}}
    for settings in ({}, {"temperature": 1.0, "seed": 0}, {"repetition_penalty": 2.0}):
        with pytest.raises(ValueError, match="the weights are damaged"):
            v4.generate([[1, 2, 3]], damaged, model.n_head, 2, **settings)


# ---- draws in float32, and the repetition penalty


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.95, "min_p": 0.01}], ids=str)
def test_every_draw_works_in_float32(settings):
    """np.random.multinomial raises for 11 of these 40 rows, as their probabilities add up to more than 1."""
    logits = np.random.default_rng(0).standard_normal((40, 50_257), dtype=np.float32) * 3
    generators = [np.random.default_rng(row) for row in range(40)]
    ids = v4.sample(logits, generators, temperature=0.8, **settings)
    assert len(set(ids.tolist())) > 20 and np.all((0 <= ids) & (ids < 50_257))


def test_the_repetition_penalty():
    """2 on [2, -2], both seen, gives [1, -4]. An id that was seen three times counts once."""
    logits = np.array([[2.0, -2.0, 2.0, -2.0, 0.0]])
    logits.flags.writeable = False  # the caller's logits stay as they are
    np.testing.assert_array_equal(v4.penalize_repetition(logits, [[0, 1]], 2), [[1, -4, 2, -2, 0]])
    np.testing.assert_array_equal(v4.penalize_repetition(logits, [[1, 0, 1, 1, 0]], 2), [[1, -4, 2, -2, 0]])
    np.testing.assert_array_equal(v4.penalize_repetition(logits, [[2, 3, 4]], 0.5), [[2, -2, 4, -1, 0]])
    np.testing.assert_array_equal(v4.penalize_repetition(logits, [[0]], 1), logits)
    np.testing.assert_array_equal(v4.penalize_repetition(logits, [[]], 2), logits)


def penalized_greedy(model, ids, n, penalty):
    """Greedy decoding with a repetition penalty on what was seen, spelled out with v0."""
    ids, n_prompt = list(ids), len(ids)
    for _ in range(n):
        scores = V0.logits(model, [ids])[0][-1].copy()
        for seen in set(ids):
            scores[seen] = scores[seen] * penalty if scores[seen] < 0 else scores[seen] / penalty
        ids.append(int(np.argmax(scores)))
    return ids[n_prompt:]


@pytest.mark.parametrize("penalty", [1.3, 5.0, 0.7])
def test_prompt_and_new_tokens_are_seen_and_pads_are_not(penalty):
    """Pads are given ids of tokens in turn: only real tokens may count."""
    model, prompts = random_model(), [[5, 3, 9, 1, 8, 2, 7, 6, 4], [3], [11, 12]]
    expected = [penalized_greedy(model, prompt, 6, penalty) for prompt in prompts]
    for pad_id in range(0, 17, 4):
        input_ids, mask = v4.left_pad(prompts, pad_id)
        ids = v4.generate(input_ids, model.params, model.n_head, 6, mask, repetition_penalty=penalty)
        assert ids == expected
    assert ids != v4.generate(input_ids, model.params, model.n_head, 6, mask)


def test_the_caller_s_logits_stay_as_they_are():
    logits = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    logits.flags.writeable = False
    generators = [np.random.default_rng(row) for row in range(2)]
    for settings in COMBINATIONS:
        v4.sample(logits, generators, **settings)
    v4.log_softmax(logits)


# ---- a row's seed decides, not its company

SAMPLING = {"temperature": 1.1, "top_k": 12, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2}
PROMPTS = random_prompts([9, 1, 17, 4, 9, 33, 2])
SEEDS = [(7, row, 0) for row in range(len(PROMPTS))]


def ids_of(prompts, seed, n=8, **settings):
    model = random_model()
    input_ids, mask = v4.left_pad(prompts)
    return v4.generate(input_ids, model.params, model.n_head, n, mask, **{**SAMPLING, **settings}, seed=seed)


def test_a_row_is_the_same_alone_in_any_batch_and_in_any_order():
    """Exact: in np.longdouble logits do not depend on the batch, so neither may what is chosen."""
    together = ids_of(PROMPTS, SEEDS)
    alone = [ids_of([prompt], [seed])[0] for prompt, seed in zip(PROMPTS, SEEDS)]
    assert together == alone
    assert len({tuple(ids) for ids in alone}) == len(alone)
    for order in ([6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1], [5], [2, 2, 2]):
        assert ids_of([PROMPTS[i] for i in order], [SEEDS[i] for i in order]) == [alone[i] for i in order]


@pytest.mark.parametrize("n_samples", [1, 3])
def test_a_row_is_the_same_with_any_number_of_samples(n_samples):
    """Sample s of prompt b has the stream (seed, b, s), so the first ones are the same however many there are."""
    ids = ids_of(PROMPTS, 7, n_samples=n_samples)
    assert len(ids) == len(PROMPTS) * n_samples
    expected = [ids_of([prompt], [(7, b, s)])[0] for b, prompt in enumerate(PROMPTS[:3]) for s in range(n_samples)]
    assert ids[: 3 * n_samples] == expected


def test_samples_differ_from_each_other():
    samples = ids_of(PROMPTS[:2], 7, n_samples=5)
    assert len({tuple(ids) for ids in samples}) == 10


def test_a_row_is_the_same_in_a_generation_of_any_length():
    """The numbers that a row draws come one after another, so more tokens to generate do not change the first ones."""
    assert [ids[:3] for ids in ids_of(PROMPTS, 7, n=8)] == ids_of(PROMPTS, 7, n=3)


def test_seeds_are_whole_numbers_of_any_kind_and_size():
    assert ids_of(PROMPTS[:2], 7) == ids_of(PROMPTS[:2], np.int64(7)) == ids_of(PROMPTS[:2], [(7, 0, 0), (7, 1, 0)])
    assert ids_of(PROMPTS[:2], 7) != ids_of(PROMPTS[:2], 8)
    assert ids_of(PROMPTS[:2], 0) != ids_of(PROMPTS[:2], 2**128 - 1)
    assert ids_of(PROMPTS[:2], [5, 6])[1] == ids_of(PROMPTS[1:2], [6])[0]


def test_no_two_rows_have_the_same_stream():
    """Seeds of 32 bits and more, whose words could be taken for the numbers of a prompt and a sample; and row seeds."""
    seeds = [0, 1, 7, 2**32 - 1, 2**32, 2**32 + 7, 2**64, 2**96, 2**128 - 1]
    streams = [generator for seed in seeds for generator in v4.row_generators(seed, 5, 3)]
    streams += v4.row_generators(seeds, len(seeds), 1)
    streams += v4.row_generators([(7, 1), (7, 1, 0, 0), (0, 0, 0, 7)], 3, 1)
    assert len({generator.random() for generator in streams}) == len(streams)
    assert ids_of(PROMPTS[:1], 7) != ids_of(PROMPTS[:1], [7])


def test_without_a_seed_each_run_is_another():
    """The chance of the same 20 ids is below 1e-10 here."""
    assert ids_of(PROMPTS[:3], None, n=20) != ids_of(PROMPTS[:3], None, n=20)


def test_the_global_random_state_is_neither_used_nor_changed():
    np.random.seed(3)
    before = np.random.get_state()
    first = ids_of(PROMPTS[:2], 7)
    ids_of(PROMPTS[:2], None)
    after = np.random.get_state()
    assert before[0] == after[0] and before[2:] == after[2:]
    np.testing.assert_array_equal(before[1], after[1])
    np.random.seed(4)
    assert ids_of(PROMPTS[:2], 7) == first


# ---- settings that make no sense

NAN = float("nan")
INVALID = [
    *(("temperature", value) for value in (True, -1, -1e-9, NAN, math.inf, "0.8", None, 1j, [1.0])),
    *(("top_k", value) for value in (-1, 1.5, 40.0, NAN, "40", None)),
    *(("top_p", value) for value in (-0.1, 1.0001, 2, NAN, math.inf, "0.9", None)),
    *(("min_p", value) for value in (-0.1, 1.1, NAN, "0.1", None)),
    *(("repetition_penalty", value) for value in (0, -1, NAN, math.inf, "1.2", None)),
    *(("n_samples", value) for value in (0, -1, 1.5, NAN, "3", None, True, 10**9)),
    *(("seed", value) for value in (-1, 1.5, NAN, "7", False, 2**128)),
]


@pytest.mark.parametrize("name, value", [*INVALID, ("logprobs", "no"), ("progress", 1), ("logprobs", None)])
def test_generate_refuses_by_name(name, value):
    model = random_model()
    with pytest.raises(ValueError, match=f"^{name} must be .* not ") as raised:
        v4.generate([[1, 2]], model.params, model.n_head, 3, **{"temperature": 1.0, name: value})
    assert repr(value) in str(raised.value)


@pytest.mark.parametrize("name, value", [case for case in INVALID if case[0][:4] in ("temp", "top_", "min_")])
def test_sample_refuses_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        v4.sample(LOGITS[None], [np.random.default_rng(0)], **{"temperature": 1.0, name: value})


@pytest.mark.parametrize("name, value", [*INVALID, ("n_tokens_to_generate", -1)])
def test_main_refuses_by_name_before_it_loads_a_model(name, value, monkeypatch):
    monkeypatch.setattr(utils, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(ValueError, match=f"^{name} must be "):
        v4.main("Once", **{"temperature": 1.0, name: value})


@pytest.mark.parametrize(
    "flag, value",
    [
        ("temperature", "-1"), ("temperature", "nan"), ("temperature", "hot"), ("temperature", "inf"), ("top_k", "-1"),
        ("top_k", "1.5"), ("top_k", "many"), ("top_p", "1.5"), ("top_p", "-0.1"), ("top_p", "nan"), ("top_p", "all"),
        ("min_p", "2"), ("min_p", "nan"), ("repetition_penalty", "0"), ("repetition_penalty", "nan"), ("seed", "-1"),
        ("seed", "1.5"), ("seed", "x"), ("n_samples", "0"), ("n_samples", "two"),
    ],
)  # fmt: skip
def test_the_command_refuses_by_name_before_it_loads_a_model(edge, monkeypatch, flag, value):
    monkeypatch.setattr(utils, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert_one_line(edge(v4.main, "Once", f"--{flag}={value}"), flag, value)


def test_numbers_of_numpy_are_welcome():
    settings = {"temperature": np.float32(1), "top_k": np.int32(5), "top_p": np.float64(0.9), "min_p": np.float32(0.1)}
    assert len(ids_of(PROMPTS[:1], np.uint64(7), **settings, n_samples=np.int64(2))) == 2


def test_one_generator_a_row_and_one_seed_a_row():
    with pytest.raises(ValueError):
        v4.sample(np.zeros((2, 3)), [np.random.default_rng(0)], temperature=1.0)
    with pytest.raises(ValueError):
        v4.sample(np.zeros((2, 3)), temperature=1.0)
    with pytest.raises(ValueError, match="seed has 2 row seeds for 3 prompts with n_samples 1"):
        ids_of(PROMPTS[:3], [1, 2])


# ---- log-probabilities


def v0_logprobs(model, ids):
    """The log-probability of each id but the first, from v0's logits and Python's sums."""
    logits = V0.logits(model, [ids])[0]
    return [row[i] - max(row) - math.log(math.fsum(np.exp(row - max(row)))) for row, i in zip(logits, ids[1:])]


def test_log_softmax_by_hand():
    logits = np.array([[[0.0, math.log(3)], [1000.0, -1000.0]]])
    expected = [[[math.log(0.25), math.log(0.75)], [0, -2000]]]
    np.testing.assert_allclose(v4.log_softmax(logits), expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("settings", [{}, {**SAMPLING, "seed": 7, "n_samples": 2}], ids=["greedy", "sampled"])
def test_log_probabilities_are_the_models_own(settings):
    """Whatever the temperature, the limits and the penalty made of them. As v0 has them, and plain numbers."""
    model, heard = random_model(np.float64), {}
    input_ids, mask = v4.left_pad(PROMPTS)

    def on_token(row, token_id, logprob):
        heard.setdefault(row, []).append((token_id, logprob))

    ids = v4.generate(input_ids, model.params, model.n_head, 6, mask, **settings, on_token=on_token, logprobs=True)
    assert ids == v4.generate(input_ids, model.params, model.n_head, 6, mask, **settings)
    n_samples = settings.get("n_samples", 1)
    for row, new_ids in enumerate(ids):
        found_ids, logprobs = zip(*heard[row])
        assert list(found_ids) == new_ids and {type(logprob) for logprob in logprobs} == {float}
        expected = v0_logprobs(model, PROMPTS[row // n_samples] + new_ids)[-6:]
        np.testing.assert_allclose(logprobs, expected, rtol=1e-11)


def test_without_logprobs_none_is_told():
    heard = []
    model = random_model()
    v4.generate([[1, 2]], model.params, model.n_head, 3, on_token=lambda *told: heard.append(told[2]))
    assert heard == [None] * 3


# ---- the commands, on the bundled model

STORY = ["Once upon a time", "--temperature", "0.8", "--top_p", "0.9", "--seed", "7", "--n_tokens_to_generate", "12"]


def test_three_different_stories_the_same_on_every_run_and_the_first_of_them_alone(edge):
    """One as a process of its own, so that nothing that was remembered can help it."""
    three = command(*STORY, "--n_samples", "3", script="gpt2_v4_sampling.py")
    assert (three.returncode, three.stderr) == (0, "")
    stories = three.stdout.removesuffix("\n").split("\n\nOnce upon a time")
    assert stories[0].startswith("Once upon a time") and len(stories) == 3 and len(set(stories)) == 3
    assert edge(v4.main, *STORY, "--n_samples", "3").stdout == three.stdout
    one = edge(v4.main, *STORY, "--n_samples", "1")
    assert "Once upon a time" + one.stdout == stories[0] + "\n"


RAGGED = [
    "Once upon a time", "The", "The fox said to the wolf that he would come", "A king", "One day the old woman", "She",
    "There was a poor woodcutter who lived in the forest with his wife and two children, and he",
]  # fmt: skip


def test_the_same_row_seed_gives_the_same_ids_alone_as_row_0_and_as_row_6():
    encoder, hparams, params = utils.load_model()
    prompt, others = encoder.encode("Once upon a time"), [encoder.encode(text) for text in RAGGED[1:]]
    known = {"temperature": 0.8, "top_p": 0.9}

    def generate(prompts, seeds):
        input_ids, mask = v4.left_pad(prompts)
        return v4.generate(input_ids, params, hparams["n_head"], 10, mask, **known, seed=seeds)

    seeds = [(7, row, 0) for row in range(1, 7)]
    alone = generate([prompt], [(7, 0, 0)])[0]
    assert generate([prompt, *others], [(7, 0, 0), *seeds])[0] == alone
    assert generate([*others, prompt], [*seeds, (7, 0, 0)])[6] == alone


def test_the_command_gives_each_prompt_the_stream_of_its_number(edge):
    result = edge(v4.main, *RAGGED[:4], *STORY[1:], "--json")
    assert (result.returncode, result.stderr) == (0, "")
    encoder, hparams, params = utils.load_model()
    for line in map(json.loads, result.stdout.splitlines()):
        ids, known = encoder.encode(line["prompt"]), {"temperature": 0.8, "top_p": 0.9, "stop_ids": encoder.stop_ids}
        alone = v4.generate([ids], params, hparams["n_head"], 12, seed=[(7, line["index"], 0)], **known)
        assert alone == [line["ids"]]


def test_a_fresh_seed_is_told_and_repeats_the_run(edge):
    drawn = ["The fox", "--temperature", "1", "-n", "15"]
    first = edge(v4.main, *drawn)
    assert first.returncode == 0
    word, seed = first.stderr.split()
    assert word == "seed:"
    again = edge(v4.main, *drawn, "--seed", seed)
    assert (again.stdout, again.stderr) == (first.stdout, "")
    other = edge(v4.main, *drawn)
    assert other.stdout != first.stdout and other.stderr != first.stderr


def test_greedy_draws_no_seed_and_is_v3(edge):
    arguments = ["Once upon a time", "The fox said", "--n_tokens_to_generate", "20"]
    assert edge(v4.main, *arguments) == edge(v3.main, *arguments)


def test_logprobs_in_json(edge):
    result = edge(v4.main, "The fox", "A", "--logprobs", "--n_tokens_to_generate", "5")
    assert (result.returncode, result.stderr) == (0, "")
    encoder, hparams, params = utils.load_model()
    for line in map(json.loads, result.stdout.splitlines()):
        assert len(line["logprobs"]) == len(line["ids"]) == 5
        assert line["logprob"] == sum(line["logprobs"])
        ids = encoder.encode(line["prompt"]) + line["ids"]
        logprobs = v4.log_softmax(v4.gpt2([ids], **params, n_head=hparams["n_head"]))[0, -6:-1]
        np.testing.assert_allclose(line["logprobs"], logprobs[np.arange(5), line["ids"]], atol=1e-4)
