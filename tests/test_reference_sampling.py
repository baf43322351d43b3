"""Sampling against transformers' own logits processors, on 1,000 random rows: the same tokens, as likely.

`draw` is asked what it chooses: a generator that gives chosen numbers is put in place of a random one.
"""

import numpy as np
import pytest
from chances import Numbers
from tiny import ROOT

import gpt2_v4_sampling as v4
import utils

try:
    import torch
    import transformers
except ImportError:  # of the extra reference: without it these tests are not chosen, or fail
    torch = transformers = None

pytestmark = pytest.mark.reference

N_ROWS, N_VOCAB = 1000, 40


def random_case(seed):
    """A row of logits, the ids that were seen, and settings, of which each is off in some rows."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(N_VOCAB) * rng.uniform(0.3, 4)
    seen = rng.integers(N_VOCAB, size=rng.integers(1, 30)).tolist()
    settings = {
        "repetition_penalty": float(rng.choice([1, rng.uniform(1, 2), rng.uniform(0.5, 1)])),
        "temperature": float(rng.choice([1, rng.uniform(0.2, 1), rng.uniform(1, 2)])),
        "top_k": int(rng.choice([0, 1, rng.integers(2, N_VOCAB), N_VOCAB + 5])),
        "top_p": float(rng.choice([1, rng.uniform(0.01, 1), rng.uniform(0.7, 1)])),
        "min_p": float(rng.choice([0, rng.uniform(0, 0.1), rng.uniform(0, 0.5)])),
    }
    return logits, seen, settings


def processors(**settings):
    """transformers' processors for these settings, put into their order by transformers itself."""
    config = transformers.GPT2Config(vocab_size=N_VOCAB, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config)
    generation_config = transformers.GenerationConfig(do_sample=True, **settings)
    return model._get_logits_processor(generation_config, input_ids_seq_length=1, logits_processor=[])


def expected_chances(logits, seen, **settings):
    """What transformers makes of a row -> the probability of each token."""
    scores = processors(**settings)(torch.tensor([seen]), torch.tensor(logits[None]))
    return torch.softmax(scores, dim=-1)[0].numpy()


def test_the_processors_that_are_compared_with():
    found = processors(repetition_penalty=2.0, temperature=2.0, top_k=3, top_p=0.5, min_p=0.1)
    assert [type(processor).__name__ for processor in found] == [
        "RepetitionPenaltyLogitsProcessor", "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper",
        "MinPLogitsWarper",
    ]  # fmt: skip


NEAR = 1e-12  # to a border, on its inner side: between the two, all numbers stand for the same token


@pytest.mark.parametrize("first", range(0, N_ROWS, 100))
def test_what_can_be_drawn_and_how_likely_it_is(first):
    """Each token that transformers leaves has its part of the numbers from 0 to 1, of just its probability there.

    `draw` is asked at both borders of each part. Together these are all the numbers there are, so that nothing else is
    drawn.
    """
    n_out = 0
    for seed in range(first, first + 100):
        logits, seen, settings = random_case(seed)
        expected = expected_chances(logits, seen, **settings)
        row = v4.penalize_repetition(logits[None], [seen], settings.pop("repetition_penalty"))[0]
        sums = np.cumsum(expected) / np.sum(expected)
        for i in np.flatnonzero(expected > 1e-9):
            lower, upper = 1 - sums[i], 1 - (sums[i - 1] if i > 0 else 0)  # `draw` counts from 1 down
            assert v4.draw(row, Numbers(lower + NEAR), **settings) == i
            assert v4.draw(row, Numbers(min(upper - NEAR, 1 - 2.0**-53)), **settings) == i
        n_out += np.sum(expected == 0)
    assert n_out > 1000  # the rules are tried from both sides


def test_the_rule_of_the_nucleus():
    """The tokens that are kept are those that transformers' own warper keeps: for each of 1,000 rows."""
    warpers = {}
    for seed in range(N_ROWS):
        rng = np.random.default_rng(seed)
        logits, top_p = rng.standard_normal(N_VOCAB) * 2, rng.integers(1, 100) / 100
        warper = warpers.setdefault(top_p, transformers.TopPLogitsWarper(float(top_p)))
        expected = torch.isfinite(warper(None, torch.tensor(logits[None])))[0].tolist()
        weights = np.exp(logits - logits.max())
        sums = np.cumsum(np.sort(weights)[::-1]) / np.sum(weights)
        assert np.all(np.abs(sums - top_p) > 1e-6)  # else rounding decides, and each library may round its way
        assert (v4.keep_top_p(weights, top_p) > 0).tolist() == expected


@pytest.mark.parametrize("settings", [{"top_k": 40}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.9, "min_p": 0.02}])
def test_whole_vocabularies_in_float32(settings):
    """What `sample` draws from 50,257 tokens, transformers could draw too, and all that it draws often."""
    logits = np.random.default_rng(0).standard_normal((1, 50_257)).astype(np.float32) * 3
    known = {"temperature": 0.8, "top_k": 0, **settings}
    scores = processors(**known)(torch.tensor([[0]]), torch.tensor(logits))
    expected = torch.softmax(scores.double(), dim=-1)[0].numpy()
    generator = np.random.default_rng(1)
    ids = v4.sample(np.broadcast_to(logits, (3000, 50_257)), [generator] * 3000, **known)
    counts = np.bincount(ids, minlength=50_257)
    assert np.all(expected[ids] > 0)
    often = expected > 0.005
    deviations = (counts[often] - 3000 * expected[often]) / np.sqrt(3000 * expected[often])
    assert often.sum() > 3 and np.all(np.abs(deviations) < 4)


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_greedy_generation_with_a_repetition_penalty(penalty):
    """transformers' generate on the bundled model; with a prompt alone, since it takes pads for seen."""
    encoder, hparams, params = utils.load_model()
    model = transformers.GPT2LMHeadModel.from_pretrained(ROOT / "models" / "tales", dtype=torch.float32).eval()
    ids = torch.tensor([encoder.encode("The fox said")])
    known = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(ids, max_new_tokens=40, do_sample=False, repetition_penalty=penalty, **known)
    found = v4.generate(ids.numpy(), params, hparams["n_head"], 40, repetition_penalty=penalty)
    assert found == [expected[0, ids.shape[1] :].tolist()]
    assert found != v4.generate(ids.numpy(), params, hparams["n_head"], 40)
