"""Beams and rules against transformers: ids and scores of generate(num_beams=...), and what its processors rule out."""
import functools
import random
import warnings

import numpy as np
import pytest
from tiny import ROOT

import gpt2_v9_beam as v9
import utils

pytestmark = pytest.mark.reference

N_SEARCHES = {"tales": 100, "random": 400}  # the bundled model takes longer


@pytest.fixture(scope="module", params=N_SEARCHES)
def models(request, tmp_path_factory, torch, transformers):
    """-> name, the model of transformers, our params, hparams."""
    folder = ROOT / "models" / "tales"
    if request.param == "random":
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("random")
        sizes = {"vocab_size": 61, "n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 3}
        config = transformers.GPT2Config(**sizes, initializer_range=0.4, bos_token_id=0, eos_token_id=0)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    _, hparams, params = utils.load_model(folder)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    return request.param, theirs, v9.tile_params(params), hparams


def their_names(rules):
    names = {"bad_words": "bad_words_ids", "logit_bias": "sequence_bias"}
    theirs = {names.get(name, name): value for name, value in rules.items()}
    if "logit_bias" in rules:
        theirs["sequence_bias"] = [[[i], float(bias)] for i, bias in rules["logit_bias"].items()]
    return theirs


def search_of_transformers(theirs, prompts, n, stop_ids, rules, n_beams, n_best, **search):
    """-> for each prompt n_best (ids before a stop id, score); pads on the left. One beam has no score: None."""
    import torch  # a plain `pytest` does not need it

    T = max(map(len, prompts))
    padded = torch.tensor([[0] * (T - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (T - len(ids)) + [1] * len(ids) for ids in prompts])
    search = search if n_beams > 1 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = theirs.generate(
            padded, attention_mask=mask, num_beams=n_beams, num_return_sequences=n_best, max_new_tokens=n,
            eos_token_id=stop_ids or None, pad_token_id=0, do_sample=False, return_dict_in_generate=True,
            output_scores=True, **search, **their_names(rules),
        )  # fmt: skip
    scores = found.sequences_scores.tolist() if n_beams > 1 else [None] * len(prompts)
    results = []
    for ids, score in zip(found.sequences.tolist(), scores):
        new = ids[T:]
        ends = [t for t, i in enumerate(new) if i in stop_ids]
        results.append((new[: ends[0]] if ends else new, score))
    return [results[b * n_best : (b + 1) * n_best] for b in range(len(prompts))]


def random_search(rng, n_vocab):
    one = rng.random() < 0.3  # transformers counts pads in the prompt for runs of ids, so there one prompt alone
    prompts = [[rng.randrange(1, n_vocab) for _ in range(rng.randrange(1, 20))] for _ in range(1 if one else 3)]
    rules = [{}, {"bad_words": [[3], [5, 7]]}, {"logit_bias": {5: 1.5}}] + [{"no_repeat_ngram_size": 2}] * one
    rules = dict(rng.choice(rules))
    stop_ids = rng.choice([[], [2], [2, 9, 11], list(range(1, 60, 3))])  # the last ones come often
    if stop_ids and rng.random() < 0.3:
        rules["min_new_tokens"] = 3
    n_beams = rng.randrange(1, 6)
    search = {"length_penalty": rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0])}
    search["early_stopping"] = rng.choice([True, False, "never"])
    return prompts, rng.randrange(2, 16), stop_ids, rules, n_beams, rng.randrange(1, n_beams + 1), search


def smallest_gap(monkeypatch, search):
    """How near two candidates came, one of which a search kept, in relation to their sums: 1e-6 is rounding."""
    gaps, grow = [1.0], v9.grow

    def watch(search, logits, rules, n_beams, stop_ids, **settings):
        totals = []
        for (total, ids, _), row in zip(search["beams"], logits):
            ruled = v9.apply_rules(row, ids, search["n_prompt"], stop_ids, **rules)
            totals += (total + ruled.astype(float) - v9.log_sum_exp(row)).tolist()
        best = np.sort([total for total in totals if total > -np.inf])[::-1][: (2 + len(stop_ids)) * n_beams + 1]
        gaps.extend((-np.diff(best) / np.maximum(1, np.abs(best[1:]))).tolist())
        return grow(search, logits, rules, n_beams, stop_ids=stop_ids, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(v9, "grow", watch)
        search()
    return min(gaps)


def agree(mine, others):
    """Whether continuations of one prompt have the same ids, and scores within rounding."""
    return all(
        ids == other_ids and (other is None or np.isclose(score, other, rtol=1e-5, atol=1e-5))
        for (ids, score), (other_ids, other) in zip(mine, others, strict=True)
    )


def test_searches_agree(models, monkeypatch):
    """500 in all. One may go another way where two candidates tie within float32 rounding; it is counted and shown."""
    name, theirs, params, hparams = models
    rng, n_compared, ties, seen = random.Random(1), 0, [], set()
    for number in range(N_SEARCHES[name]):
        prompts, n, stop_ids, rules, n_beams, n_best, search = random_search(rng, hparams["n_vocab"])
        beams = {"n_beams": n_beams, "n_best": n_best, **search}
        run = functools.partial(v9.beam_search, params=params, n_head=hparams["n_head"], n_tokens_to_generate=n,
                                stop_ids=stop_ids, **beams, **rules)  # fmt: skip
        expected = search_of_transformers(theirs, prompts, n, stop_ids, rules, **beams)
        for ids, mine, others in zip(prompts, run(prompts), expected):
            n_compared += n_best
            lengths = {len(ids) for ids, _ in mine}
            seen.add((n_beams, *search.values(), "ends apart" if len(lengths) > 1 else ""))
            if not agree(mine, others):
                gap = smallest_gap(monkeypatch, functools.partial(run, [ids]))
                assert gap < 1e-5, (number, mine, others)
                ties.append((number, gap, mine, others))
        if n_beams == 1:
            greedy = v9.generate(prompts, params, hparams["n_head"], n, stop_ids=stop_ids, **rules)
            assert greedy == [ids for ((ids, _),) in run(prompts)]
    print(f"{name}: {n_compared} continuations compared, {len(ties)} ties", *ties, sep="\n")
    assert len(ties) <= N_SEARCHES[name] // 100
    for many in (False, True):  # each setting, also where continuations of one prompt have ended at different steps
        settings = {kind[1:3] for kind in seen if kind[0] > 1 and (kind[3] or not many)}
        assert len(settings) > (10 if many else 14)


N_VOCAB = 40


def random_rules(rng):
    """Rules, of which each is off in some cases; runs of ids that come often."""
    rules = {}
    if rng.random() < 0.6:
        rules["no_repeat_ngram_size"] = rng.randrange(1, 4)
    if rng.random() < 0.6:
        rules["min_new_tokens"] = rng.randrange(0, 6)
    if rng.random() < 0.6:
        words = [[rng.randrange(4) for _ in range(rng.choice([1, 2, 2, 3, 7]))] for _ in range(3)]
        rules["bad_words"] = [word for word in words if len(word) > 1 or word[0] > 2]
    if rng.random() < 0.6:
        rules["logit_bias"] = {rng.randrange(N_VOCAB): rng.uniform(-5, 5) for _ in range(3)}
    return {name: value for name, value in rules.items() if value}


def test_rules_are_the_processors_of_transformers(torch, transformers):
    """1,000 rows: the same tokens are left, with the same logits, also with a penalty for repetition after them."""
    rng, n_banned = random.Random(0), 0
    sizes = {"n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 1}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=N_VOCAB, **sizes))
    for seed in range(1000):
        logits = np.random.default_rng(seed).standard_normal(N_VOCAB).astype(np.float32)
        rules, stop_ids, ids = random_rules(rng), [1, 2], [rng.randrange(4) for _ in range(rng.randrange(1, 12))]
        n_prompt, penalty = rng.randrange(1, len(ids) + 1), rng.choice([1.0, 1.3])
        config = transformers.GenerationConfig(repetition_penalty=penalty, **their_names(rules))
        config._eos_token_tensor = torch.tensor(stop_ids)
        processors = model._get_logits_processor(config, input_ids_seq_length=n_prompt, logits_processor=[])
        expected = processors(torch.tensor([ids]), torch.tensor(logits[None]))[0].numpy()
        ruled = v9.apply_rules(logits, ids, n_prompt, stop_ids, **rules)
        found = v9.penalize_repetition(ruled[None], [ids], penalty)[0]
        np.testing.assert_array_equal(found == -np.inf, expected == -np.inf)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        n_banned += np.any(expected == -np.inf)
    assert n_banned > 500


def test_the_processors_that_are_compared_with(torch, transformers):
    rules = {"no_repeat_ngram_size": 2, "min_new_tokens": 1, "bad_words": [[3]], "logit_bias": {5: 1}}
    config = transformers.GenerationConfig(repetition_penalty=2.0, **their_names(rules))
    config._eos_token_tensor = torch.tensor([1])
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
    found = model._get_logits_processor(config, input_ids_seq_length=1, logits_processor=[])
    assert [type(processor).__name__.removesuffix("LogitsProcessor") for processor in found] == [
        "SequenceBias", "RepetitionPenalty", "NoRepeatNGram", "NoBadWords", "MinNewTokensLength",
    ]  # fmt: skip
