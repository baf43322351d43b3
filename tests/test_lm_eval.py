"""The adapter for lm-evaluation-harness: its numbers are those of the harness's own model of transformers."""
import math
import subprocess
import sys

import pytest
from tiny import ROOT

pytestmark = pytest.mark.reference
TALES = ROOT / "models" / "tales"
LINES = [line for line in (TALES / "held_out.txt").read_text(encoding="utf-8").split("\n") if len(line) > 60]


@pytest.fixture(scope="module")
def models(torch, transformers):
    """The harness's own model of transformers, and the adapter."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval_adapter import NumpyGPT2

    hf = HFLM(pretrained=str(TALES), dtype="float32", device="cpu", batch_size=4)
    return hf, NumpyGPT2("tales", batch_size=4)


@pytest.fixture(scope="module")
def both(models):
    """What both answer to the same requests: both(method, [arguments, ...]) -> two lists."""
    from lm_eval.api.instance import Instance

    def call(method, arguments):
        requests = [Instance(request_type=method, doc={}, arguments=some, idx=0) for some in arguments]
        return [getattr(model, method)(requests, disable_tqdm=True) for model in models]

    return call


def test_multiple_choice(both):
    """Contexts that choices share, in any order; none; one that is too long; blanks at the border."""
    choices = [" the king", " a", " once upon a time, said the old woman", "."]
    pairs = [("Once upon a", " time,"), *((line[:50], choice) for choice in choices for line in LINES[:8])]
    pairs += [("", "There was a king"), ("", "<|endoftext|>There"), ("The fox ", "said"), ("The fox said\n", "\nNo")]
    pairs += [(" ".join(LINES[:40]), choice) for choice in choices]
    hf, ours = both("loglikelihood", pairs)
    for (expected, expected_greedy), (logprob, is_greedy) in zip(hf, ours, strict=True):
        assert logprob == pytest.approx(expected, abs=1e-4) and is_greedy == expected_greedy
    assert {is_greedy for _, is_greedy in ours} == {True, False}


def test_rolling_perplexity(both):
    texts = ["", "A", LINES[0], " ".join(LINES[:4]), "\n".join(LINES[:30]), "\n".join(LINES[30:100])]
    hf, ours = both("loglikelihood_rolling", [(text,) for text in texts])
    for text, expected, logprob in zip(texts, hf, ours, strict=True):
        n = max(len(text.split()), 1)
        assert math.exp(-logprob / n) == pytest.approx(math.exp(-expected / n), rel=1e-6, abs=1e-4)


def test_generate_until(both):
    settings = [
        {"until": ["."], "max_gen_toks": 30}, {"until": "\n", "max_gen_toks": 20}, {"until": [" the", ","]},
        {"until": ["\n\n"], "max_new_tokens": 40, "do_sample": False, "temperature": 0}, {"max_gen_toks": 5},
    ]  # fmt: skip
    prompts = [*LINES[:6], " ".join(LINES[:60])]
    penalty = {"until": [" the"], "max_gen_toks": 9, "repetition_penalty": 1.3}  # which hf puts on many pads, too
    requests = [(prompt, dict(some)) for some in settings for prompt in prompts]
    hf, ours = both("generate_until", [*requests, *((line, dict(penalty)) for line in LINES[:4])])
    assert ours == hf and len({len(text) for text in ours}) > 10


TASKS = {  # as the harness describes them
    "choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_choice": ["king", "old woman", "wolf"],
        "doc_to_target": 1,
    },
    "rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"},
    "until": {
        "output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": " and",
        "generation_kwargs": {"until": [","], "max_gen_toks": 9},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_the_harness(models, name):
    import datasets
    import lm_eval
    from lm_eval.api.task import ConfigurableTask

    def task():
        data = datasets.Dataset.from_list([{"text": line[:60]} for line in LINES[:12]])
        about = {"task": name, "custom_dataset": lambda **_: {"test": data}, "test_split": "test"}
        return ConfigurableTask(config={**about, **TASKS[name]})

    found = []
    for model in models:
        result = lm_eval.simple_evaluate(model, tasks=[task()], bootstrap_iters=0)["results"][name]
        found.append({key: value for key, value in result.items() if isinstance(value, float)})
    assert found[0] == pytest.approx(found[1], abs=1e-4) and len(found[0]) >= 1


def test_what_a_task_asks_for_in_vain_is_named(models):
    import utils

    ours = models[1]
    with pytest.raises(utils.UserError, match="num_beams"):
        ours.read_settings({"num_beams": 4})
    with pytest.raises(utils.UserError, match="600 tokens.*n_ctx, 512"):
        ours.read_settings({"max_gen_toks": 600})
    assert ours.read_settings({"do_sample": True, "until": "x"}) == (256, ["x"], {"temperature": 1.0})
    assert ours.read_settings({"do_sample": False, "temperature": 0.7, "top_p": 0.9}) == (256, [], {})


def test_as_a_command():
    command = [sys.executable, str(ROOT / "tools" / "lm_eval_adapter.py"), "--help"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT)
    assert result.returncode == 0 and "evaluat" in result.stdout
