"""beam_search against generate(num_beams=...) of transformers: ids and scores, on the bundled and on random models."""
import random
import warnings

import numpy as np
import pytest
from tiny import ROOT

import gpt2_v9_beam as v9
import utils

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module", params=["tales", "random"])
def models(request, tmp_path_factory):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = ROOT / "models" / "tales"
    if request.param == "random":
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("random")
        config = GPT2Config(vocab_size=61, n_positions=64, n_embd=24, n_layer=2, n_head=3, initializer_range=0.4)
        GPT2LMHeadModel(config).save_pretrained(folder)
    _, hparams, params = utils.load_model(folder)
    theirs = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    return theirs, v9.tile_params(params), hparams


def search_of_transformers(theirs, prompts, n, stop_ids, rules, n_beams, n_best, **search):
    """-> for each prompt n_best (ids before a stop id, score); pads on the left."""
    import torch

    T = max(map(len, prompts))
    padded = torch.tensor([[0] * (T - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (T - len(ids)) + [1] * len(ids) for ids in prompts])
    names = {"bad_words": "bad_words_ids", "logit_bias": "sequence_bias"}
    theirs_rules = {names.get(name, name): value for name, value in rules.items()}
    if "sequence_bias" in theirs_rules:
        theirs_rules["sequence_bias"] = [[[i], bias] for i, bias in rules["logit_bias"].items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = theirs.generate(
            padded, attention_mask=mask, num_beams=n_beams, num_return_sequences=n_best, max_new_tokens=n,
            eos_token_id=stop_ids or None, pad_token_id=0, do_sample=False, return_dict_in_generate=True,
            output_scores=True, **search, **theirs_rules,
        )  # fmt: skip
    results = []
    for ids, score in zip(found.sequences.tolist(), found.sequences_scores.tolist()):
        new = ids[T:]
        ends = [t for t, i in enumerate(new) if i in stop_ids]
        results.append((new[: ends[0]] if ends else new, score))
    return [results[b * n_best : (b + 1) * n_best] for b in range(len(prompts))]


def random_search(rng, n_vocab):
    one = rng.random() < 0.3  # transformers counts pads in the prompt for runs of ids, so there one prompt alone
    prompts = [[rng.randrange(1, n_vocab) for _ in range(rng.randrange(1, 20))] for _ in range(1 if one else 3)]
    rules = [{}, {"bad_words": [[3], [5, 7]]}, {"logit_bias": {5: 1.5}}] + [{"no_repeat_ngram_size": 2}] * one
    rules = dict(rng.choice(rules))
    stop_ids = rng.choice([[], [2], [2, 9, 11]])
    if stop_ids and rng.random() < 0.3:
        rules["min_new_tokens"] = 3
    n_beams = rng.randrange(2, 6)
    search = {"length_penalty": rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0])}
    search["early_stopping"] = rng.choice([True, False, "never"])
    return prompts, rng.randrange(2, 16), stop_ids, rules, n_beams, rng.randrange(1, n_beams + 1), search


def test_searches_agree(models):
    """500 searches in all. Where ids differ, the scores must be equal within rounding: a tie."""
    theirs, params, hparams = models
    rng, n_ties, n_compared = random.Random(1), 0, 0
    for _ in range(100 if hparams["n_vocab"] > 1000 else 400):  # the larger model takes longer
        prompts, n, stop_ids, rules, n_beams, n_best, search = random_search(rng, hparams["n_vocab"])
        beams = {"n_beams": n_beams, "n_best": n_best, **search}
        ours = v9.beam_search(prompts, params, hparams["n_head"], n, stop_ids=stop_ids, **beams, **rules)
        expected = search_of_transformers(theirs, prompts, n, stop_ids, rules, **beams)
        for mine, others in zip(ours, expected):
            assert len(mine) == len(others) == n_best
            for (ids, score), (other_ids, other_score) in zip(mine, others):
                n_compared += 1
                assert np.isclose(score, other_score, rtol=1e-4, atol=1e-4)
                if ids != other_ids:
                    n_ties += 1
                    print("tie:", ids, other_ids, score, other_score)
    print(f"{n_compared} continuations compared, {n_ties} ties")
    assert n_compared > 400 and n_ties <= n_compared // 200
