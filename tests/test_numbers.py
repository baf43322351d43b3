"""Any sizes, lengths, orders and pieces give v0's bits in np.longdouble; any logits give a token that may be chosen."""
import math

import numpy as np
import pytest
from chances import chances
from examples import check_examples
from tiny import CACHING, PADDING, V0, VERSIONS, assert_same_bits, random_model, random_prompts

import gpt2_v4_sampling as v4

pytestmark = [pytest.mark.slow, pytest.mark.extra, pytest.mark.filterwarnings("error")]

N_EXAMPLES = 150
FLOAT16 = (6e-8, 65504.0)  # its smallest and its largest number
DENORMAL = float(np.finfo(np.float32).smallest_subnormal)


def any_model(draw, st):
    """A model of any size that can be run in a moment, in np.longdouble."""
    n_head = draw(st.integers(1, 4))
    sizes = {"n_vocab": draw(st.integers(2, 40)), "n_embd": n_head * draw(st.integers(1, 9)), "n_head": n_head}
    sizes["n_layer"] = draw(st.integers(1, 3))
    return random_model(np.longdouble, n_ctx=48, seed=draw(st.integers(0, 3)), **sizes)


def any_pieces(draw, st, whole):
    """Widths of one or more that add up to the whole."""
    pieces = []
    while sum(pieces) < whole:
        pieces.append(draw(st.integers(1, whole - sum(pieces))))
    return pieces


@pytest.mark.parametrize("version", VERSIONS[1:], ids=str)
def test_any_batch_has_the_bits_of_each_prompt_alone(version):
    def check(draw, st):
        model = any_model(draw, st)
        lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
        if not version.pads:
            lengths = [lengths[0]] * len(lengths)
        prompts = random_prompts(lengths, model.n_vocab, seed=draw(st.integers(0, 99)))
        assert_same_bits(version.logits(model, prompts), V0.logits(model, prompts))

    check_examples(check, N_EXAMPLES)


@pytest.mark.parametrize("version", CACHING, ids=str)
def test_any_pieces_through_a_cache_have_the_bits_of_the_whole(version):
    def check(draw, st):
        model = any_model(draw, st)
        lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
        prompts = random_prompts(lengths, model.n_vocab, seed=draw(st.integers(0, 99)))
        pieces = any_pieces(draw, st, max(lengths))
        logits = version.cached_logits(model, prompts, pieces, spare=draw(st.integers(0, 9)))
        assert_same_bits(logits, V0.logits(model, prompts))

    check_examples(check, N_EXAMPLES)


@pytest.mark.parametrize("version", CACHING, ids=str)
def test_any_chunks_of_a_prefill_have_the_bits_of_the_whole(version):
    def check(draw, st):
        model = any_model(draw, st)
        prompts = random_prompts(draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)), model.n_vocab)
        input_ids, mask = version.module.left_pad(prompts)
        cache = version.new_cache(model, *input_ids.shape)
        chunk = draw(st.integers(1, 45))
        logits = version.module.prefill(input_ids, version.params(model), model.n_head, cache, mask, chunk)
        assert_same_bits(list(logits), [rows[-1] for rows in V0.logits(model, prompts)])

    check_examples(check, N_EXAMPLES)


@pytest.mark.parametrize("version", PADDING, ids=str)
def test_any_order_of_a_batch_gives_the_same_ids(version):
    def check(draw, st):
        model = any_model(draw, st)
        prompts = random_prompts(draw(st.lists(st.integers(1, 30), min_size=1, max_size=5)), model.n_vocab)
        n = draw(st.integers(0, 6))
        order = draw(st.permutations(range(len(prompts))))
        ids = version.generate(model, [prompts[i] for i in order], n)
        assert ids == [V0.generate(model, [prompts[i]], n)[0] for i in order]

    check_examples(check, N_EXAMPLES // 3)


# ---- logits


def any_row(draw, st):
    """Logits of one row, float32: of every size, with ties, and with -inf for tokens that are ruled out."""
    numbers = st.floats(-1e4, 1e4, width=32) | st.floats(-FLOAT16[1], FLOAT16[1], width=16)
    numbers |= st.sampled_from([0.0, -0.0, 1.0, DENORMAL, -DENORMAL, 1e30, -1e30, 3e38, -3e38, -math.inf, *FLOAT16])
    all_equal = st.builds(lambda x, n: [x] * n, numbers, st.integers(1, 600))
    all_but_one = st.builds(lambda n, m, x: [0.0] * n + [x] + [0.0] * m, *[st.integers(0, 300)] * 2, numbers)
    row = draw(st.lists(numbers, min_size=1, max_size=300) | all_equal | all_but_one)
    if max(row) == -math.inf:
        row[draw(st.integers(0, len(row) - 1))] = 0.0
    return np.array(row, dtype=np.float32)


def any_settings(draw, st):
    settings = {"temperature": draw(st.sampled_from([1.0, 0.7, 1e-3, 1e-30, 5.0, 1e6]) | st.floats(0.01, 10))}
    settings["top_k"] = draw(st.sampled_from([0, 1, 2, 10**6]) | st.integers(0, 700))
    settings["top_p"] = draw(st.sampled_from([1.0, 0.5, 1e-9, 1 - 1e-7]) | st.floats(1e-6, 1.0, exclude_min=True))
    settings["min_p"] = draw(st.sampled_from([0.0, 1.0, 0.05]) | st.floats(0, 1))
    return settings


def test_any_logits_give_a_token_that_may_be_chosen():
    """By the plain reckoning of chances.py, of the same weights in float32; the slack is for the rounding of sums."""

    def check(draw, st):
        row, settings = any_row(draw, st), any_settings(draw, st)
        [i] = v4.sample(row[None], [np.random.default_rng(draw(st.integers(0, 2**40)))], **settings)
        assert 0 <= i < len(row) and row[i] > -math.inf
        assert np.sum(row > row[i]) < (settings["top_k"] or len(row))
        kept = v4.keep_top_k(row, settings["top_k"])
        with np.errstate(all="ignore"):
            weights = np.exp((kept - np.max(kept)) / max(settings["temperature"], 1e-30))
            logits = np.log(weights.astype(float))
        assert chances(logits, top_p=min(1.0, settings["top_p"] + 1e-4), min_p=settings["min_p"] * 0.999)[i] > 0

    check_examples(check, 1500)


def test_any_logits_give_the_same_token_in_any_batch():
    def check(draw, st):
        rows, settings = [any_row(draw, st) for _ in range(3)], any_settings(draw, st)
        n = min(map(len, rows))
        batch = np.array([np.where(np.max(row[:n]) > -np.inf, row[:n], 0) for row in rows])
        order = draw(st.permutations(range(3)))
        ids = v4.sample(batch[list(order)], [np.random.default_rng((5, r)) for r in order], **settings)
        alone = [v4.sample(batch[r : r + 1], [np.random.default_rng((5, r))], **settings)[0] for r in order]
        assert ids.tolist() == alone

    check_examples(check, 300)


def test_logits_with_nan_or_infinity_are_refused_wherever_they_stand():
    def check(draw, st):
        row, settings = any_row(draw, st), any_settings(draw, st)
        row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from([math.nan, math.inf]))
        with pytest.raises(ValueError, match="NaN or infinity"):
            v4.sample(row[None], [np.random.default_rng(0)], **settings)

    check_examples(check, 300)


def test_any_logits_have_logarithms_of_probabilities():
    def check(draw, st):
        row = any_row(draw, st)
        logs = v4.log_softmax(row[None])[0]
        assert logs.dtype == np.float32 and np.all(logs <= 0)
        assert math.isclose(math.fsum(np.exp(logs.astype(float))), 1.0, abs_tol=1e-5)
        ordered = logs[np.argsort(row, kind="stable")]
        assert np.all(ordered[1:] >= ordered[:-1])

    check_examples(check, 500)
