"""Known results of the real GPT-2, where its weights are here: in models/, or in the Hugging Face cache.

    python utils.py download 124M
    pytest tests/test_real_weights.py

Nothing is downloaded by the tests. Ids and texts are greedy; the logits of every version are compared.
"""

import numpy as np
import pytest
from model_files import greedy, logits_of
from tiny import ROOT, VERSIONS

import utils
from gpt2_io.checkpoint import check_tensors, open_checkpoint, read_config
from gpt2_io.hub import HUB, find_model

SIZES = {"124M": 124_439_808, "355M": 354_823_168, "774M": 774_030_080, "1558M": 1_557_611_200}
SIZES["distilgpt2"] = 81_912_576
HEADS = {"124M": 12, "355M": 16, "774M": 20, "1558M": 25, "distilgpt2": 12}


def find(name):
    """The folder of a known model that is on this machine, or None; conftest.py has set HF_HUB_OFFLINE."""
    try:
        return find_model(name, ROOT / "models")
    except ValueError:
        return None


FOUND = {name: folder for name in HUB if (folder := find(name))}
if not FOUND:
    pytest.skip("weights not found: python utils.py download 124M", allow_module_level=True)

needs = {name: pytest.mark.skipif(name not in FOUND, reason=f"weights of {name} not found") for name in HUB}
BY_CACHE = [version for version in VERSIONS if version.caches]  # without a cache 40 tokens take minutes


@pytest.fixture(scope="module")
def loaded():
    models = {}

    def load(name):
        if name not in models:
            models.clear()  # one at a time: they are large
            models[name] = utils.load_model(FOUND[name])
        return models[name]

    return load


def continuation(loaded, version, name, prompt, n):
    encoder, hparams, params = loaded(name)
    return encoder.decode(greedy(version, params, hparams["n_head"], encoder.encode(prompt), n))


@pytest.mark.parametrize("name", FOUND)
def test_sizes_and_heads(name):
    checkpoint = open_checkpoint(FOUND[name])
    config = read_config(checkpoint)
    tensors = check_tensors(checkpoint, config)
    assert sum(int(np.prod(tensor.shape)) for tensor in tensors.values()) == SIZES[name]
    assert config["n_head"] == HEADS[name]


@needs["124M"]
@pytest.mark.parametrize("version", BY_CACHE, ids=str)
def test_124m_alan_turing(loaded, version):
    prompt = "Alan Turing theorized that computers would one day become"
    assert continuation(loaded, version, "124M", prompt, 40) == (
        " the most powerful machines on the planet.\n\nThe computer is a machine that can perform complex calculations,"
        " and it can perform these calculations in a way that is very similar to the human brain.\n"
    )


@needs["124M"]
@pytest.mark.parametrize("version", BY_CACHE, ids=str)
def test_124m_the_dog(loaded, version):
    _, hparams, params = loaded("124M")
    expected = [373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198, 464, 3290]
    assert greedy(version, params, hparams["n_head"], [464, 3290], len(expected)) == expected


@needs["124M"]
@pytest.mark.parametrize("version", BY_CACHE, ids=str)
def test_124m_left_padded_batch(loaded, version):
    encoder, hparams, params = loaded("124M")
    texts = [
        "Hello, my dog is a little bit of a mess. I'm not sure if he's going",
        "Today, I'm going to be doing a lot of research on this. I",
    ]
    prompts = [encoder.encode(text) for text in ("Hello, my dog is a little", "Today, I")]
    input_ids, mask = version.module.left_pad(prompts)
    n = 20 - input_ids.shape[1]  # 20 ids in all, pads included
    ids = version.module.generate(input_ids, params, hparams["n_head"], n, attention_mask=mask)
    assert [encoder.decode([*prompt, *new]) for prompt, new in zip(prompts, ids)] == texts


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize(
    "name, prompt, best, logit",
    [
        pytest.param("124M", "One two three four", 1936, -69.4948, marks=needs["124M"]),
        pytest.param(
            "distilgpt2",
            "One two three four five six seven eight nine ten eleven",
            14104,
            -48.7065,
            marks=needs["distilgpt2"],
        ),
    ],
)
def test_best_token_and_its_logit(loaded, version, name, prompt, best, logit):
    encoder, hparams, params = loaded(name)
    logits = logits_of(version, params, hparams["n_head"], encoder.encode(prompt))[-1]
    assert logits.argmax() == best
    assert abs(float(logits[best]) - logit) < 1e-4


@needs["355M"]
@pytest.mark.parametrize("version", BY_CACHE, ids=str)
def test_355m_hello(loaded, version):
    assert continuation(loaded, version, "355M", "Hello.", 10) == " I'm a little late to the party, but"
