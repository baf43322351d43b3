"""Random GPT2Configs, saved in the ways that transformers and torch offer: right in all versions, or refused."""
import random
from types import SimpleNamespace

import numpy as np
import pytest
from test_reference_models import ours
from tiny import VERSIONS

import utils
from gpt2_io.checkpoint import GELU_NAMES
from gpt2_io.errors import UserError

pytestmark = [pytest.mark.reference, pytest.mark.usefixtures("clean_environment")]
CLASSES = ("LMHeadModel", "Model", "DoubleHeadsModel", "ForSequenceClassification", "ForTokenClassification",
           "ForQuestionAnswering")  # fmt: skip
WITH_LM_HEAD = ("LMHeadModel", "DoubleHeadsModel")
PREFIXES = ("module.", "_orig_mod.", "pretrained_model.", "gpt.", "module._orig_mod.")


def random_case(seed):
    """-> keywords of GPT2Config, and how to save the model: {"class", "dtype", "how", "prefix", "new_vocab"}."""
    pick = random.Random(seed)
    n_head = pick.choice([1, 2, 3, 4])
    config = {
        "vocab_size": pick.choice([23, 64, 97]),
        "n_positions": pick.choice([24, 33, 64]),
        "n_head": n_head,
        "n_embd": n_head * pick.choice([4, 5, 8]),
        "n_layer": pick.choice([1, 2, 3]),
        "n_inner": pick.choice([None, None, 7, 24, 50]),
        "layer_norm_epsilon": pick.choice([1e-5, 1e-5, 1e-3, 1e-12]),
        "scale_attn_weights": pick.random() < 0.8,
        "scale_attn_by_inverse_layer_idx": pick.random() < 0.3,
        "reorder_and_upcast_attn": pick.random() < 0.2,
        "tie_word_embeddings": pick.random() < 0.85,
        "add_cross_attention": pick.random() < 0.05,
        "activation_function": pick.choice([*["gelu_new"] * 10, *GELU_NAMES, "gelu", "relu", "silu", "tanh"]),
    }
    save = {
        "class": pick.choice([*["LMHeadModel"] * 4, *CLASSES]),
        "dtype": pick.choice(["float32", "float32", "float16", "bfloat16", "float64"]),
        "how": pick.choice(["one file", "shards", "torch.save", "prefix", "torch.save with prefix"]),
        "prefix": pick.choice(PREFIXES),
        "new_vocab": pick.choice([None, None, 20, 130]),
    }
    return config, save


def save_as(model, folder, save, torch):
    prefixed = {save["prefix"] * ("prefix" in save["how"]) + name: t for name, t in model.state_dict().items()}
    if save["how"] in ("one file", "shards"):
        return model.save_pretrained(folder, max_shard_size="9KB" if save["how"] == "shards" else "5GB")
    model.config.save_pretrained(folder)
    if "torch.save" in save["how"]:
        return torch.save(prefixed, folder / "pytorch_model.bin")
    import safetensors.torch

    safetensors.torch.save_file({name: t.clone() for name, t in prefixed.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("seed", range(40))
def test_a_random_config_is_right_in_all_versions_or_refused_by_name(torch, transformers, tmp_path, seed):
    config, save = random_case(seed)
    sure = {"initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.GPT2Config(**config, **sure, attn_implementation="eager")
    torch.manual_seed(seed)
    model = getattr(transformers, f"GPT2{save['class']}")(config).eval()
    for p in model.parameters():  # biases and layer norms that are not 0 and 1
        p.data += 0.05 * torch.randn(p.shape)
    if save["new_vocab"] and save["class"] in WITH_LM_HEAD:
        model.resize_token_embeddings(save["new_vocab"], mean_resizing=False)
    model = model.to(getattr(torch, save["dtype"]))
    save_as(model, tmp_path, save, torch)

    wrong = []
    if config.activation_function not in GELU_NAMES:
        wrong.append("activation_function")
    if config.add_cross_attention:
        wrong.append("add_cross_attention")
    if not config.tie_word_embeddings:
        wrong.append("tie_word_embeddings")
    if wrong:
        with pytest.raises(UserError) as caught:
            utils.load_model(tmp_path)
        assert any(key in str(caught.value) for key in wrong)
        return
    _, hparams, params = utils.load_model(tmp_path)
    body = getattr(model, "transformer", model).float()
    ids = np.random.default_rng(seed).integers(0, hparams["n_vocab"], 20).tolist()
    with torch.no_grad():
        if save["class"] in WITH_LM_HEAD:
            expected = model.float()(torch.tensor([ids])).logits.reshape(20, -1).numpy()
        else:  # what transformers.GPT2LMHeadModel makes of the same weights
            expected = (body(torch.tensor([ids])).last_hidden_state[0] @ body.wte.weight.T).numpy()
    ours_model = SimpleNamespace(params=params, n_head=hparams["n_head"])
    for version in VERSIONS:
        np.testing.assert_allclose(ours(version, ours_model, [ids], "logits")[0], expected, rtol=0, atol=1e-4)


def test_the_cases_are_of_all_kinds():
    cases = [random_case(seed) for seed in range(40)]
    for key, kinds in (("how", 5), ("dtype", 4), ("class", len(CLASSES)), ("new_vocab", 3), ("prefix", 5)):
        assert len({save[key] for _, save in cases}) == kinds
    assert {config["tie_word_embeddings"] for config, _ in cases} == {True, False}
