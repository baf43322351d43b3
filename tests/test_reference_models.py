"""Against transformers and the tokenizers and safetensors packages: `pytest -m reference`, with the extra reference.

They are imported in fixtures, so that a plain `pytest` does not need them, and without them these tests fail.
"""
import json
from types import SimpleNamespace

import numpy as np
import pytest
from test_tokenizer import encoder_of, random_strings
from tiny import ROOT, VERSIONS

import utils
from gpt2_io.checkpoint import GELU_NAMES
from gpt2_io.safetensors import read_safetensors, write_safetensors

pytestmark = [pytest.mark.reference, pytest.mark.usefixtures("clean_environment")]

# Odd shapes and every feature of a config that is honoured.
CONFIGS = {
    "1 layer": {"n_layer": 1},
    "5 heads of 7": {"n_embd": 35, "n_head": 5},
    "1 head": {"n_head": 1},
    "n_ctx 33": {"n_positions": 33},
    "n_inner 50": {"n_inner": 50},
    "epsilon 1e-3": {"layer_norm_epsilon": 1e-3},
    "epsilon 1e-12": {"layer_norm_epsilon": 1e-12},
    "scores divided by the layer": {
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
        "n_layer": 4,
    },
    "scores not divided": {"scale_attn_weights": False},
    "neither way": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    **{name: {"activation_function": name} for name in GELU_NAMES},
}


@pytest.fixture(scope="module")
def reference(torch, transformers, tmp_path_factory):
    """A random model by transformers and what we load from its save_pretrained: reference(name) -> the two."""
    made = {}

    def make(name):
        if name not in made:
            small = {"vocab_size": 97, "n_positions": 64, "n_embd": 24, "n_head": 3, "n_layer": 2}
            sure = {"initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None}
            config = transformers.GPT2Config(**{**small, **sure, **CONFIGS[name]}, attn_implementation="eager")
            torch.manual_seed(0)
            model = transformers.GPT2LMHeadModel(config).eval()
            folder = tmp_path_factory.mktemp("model")
            for p in model.parameters():  # biases and layer norms that are not 0 and 1
                p.data += 0.05 * torch.randn(p.shape)
            model.save_pretrained(folder)
            _, hparams, params = utils.load_model(folder)
            made[name] = model, SimpleNamespace(params=params, n_head=hparams["n_head"])
        return made[name]

    return make


def prompts_for(model, lengths, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, model.config.vocab_size, n).tolist() for n in lengths]


def padded(torch, prompts):
    T = max(map(len, prompts))
    ids = torch.tensor([[0] * (T - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (T - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


def ours(version, model, prompts, function, *arguments):
    """Version.logits or .generate for prompts of different lengths, one by one where the version has no padding."""
    if version.pads:
        return getattr(version, function)(model, prompts, *arguments)
    return [getattr(version, function)(model, [prompt], *arguments)[0] for prompt in prompts]


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits(reference, torch, name, version):
    theirs, model = reference(name)
    prompts = prompts_for(theirs, [33, 9, 1, 20])
    found = ours(version, model, prompts, "logits")
    for prompt, logits in zip(prompts, found):
        with torch.no_grad():
            expected = theirs(torch.tensor([prompt])).logits[0].numpy()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize(
    "name", ["1 layer", "5 heads of 7", "n_inner 50", "epsilon 1e-3", "scores divided by the layer"]
)
def test_greedy_generation_on_ragged_left_padded_batches(reference, torch, name, version):
    theirs, model = reference(name)
    prompts = prompts_for(theirs, [14, 3, 1, 8])
    ids, mask = padded(torch, prompts)
    with torch.no_grad():
        expected = theirs.generate(ids, attention_mask=mask, max_new_tokens=50, do_sample=False, pad_token_id=0)
    assert ours(version, model, prompts, "generate", 50) == expected[:, ids.shape[1] :].tolist()


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_attention_weights_of_each_layer(reference, torch, monkeypatch, version):
    theirs, model = reference("5 heads of 7")
    prompt = prompts_for(theirs, [20])[0]
    softmax, weights = version.module.softmax, []

    def recording(*arguments, **keywords):
        weights.append(softmax(*arguments, **keywords))
        return weights[-1]

    monkeypatch.setattr(version.module, "softmax", recording)
    version.logits(model, [prompt])
    with torch.no_grad():
        expected = [layer[0].numpy() for layer in theirs(torch.tensor([prompt]), output_attentions=True).attentions]
    # softmax is called once for a layer or for a head of it, and may see keys that are hidden, behind the others
    found = np.concatenate([np.reshape(array, (-1, 20, array.shape[-1])) for array in weights])
    np.testing.assert_allclose(found[..., :20], np.concatenate(expected), rtol=0, atol=1e-5)
    assert not found[..., 20:].any()


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_the_bundled_model(torch, transformers, version):
    """transformers loads it, its logits are ours, also in a left-padded batch, and the tokenizer gives the same ids."""
    folder = ROOT / "models" / "tales"
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder, hparams, params = utils.load_model(folder)
    texts = ["Once upon a time there was a poor woodcutter who", "One day<|endoftext|>", "The"]
    prompts = [encoder.encode(text) for text in texts]
    assert [tokenizer(text).input_ids for text in texts] == prompts
    found = ours(version, SimpleNamespace(params=params, n_head=hparams["n_head"]), prompts, "logits")
    ids, mask = padded(torch, prompts)
    positions = torch.clip(mask.cumsum(-1) - 1, 0)
    with torch.no_grad():
        batch = theirs(ids, attention_mask=mask, position_ids=positions).logits.numpy()
    for row, prompt, logits in zip(batch, prompts, found):
        np.testing.assert_allclose(logits, row[-len(prompt) :], rtol=0, atol=1e-4)
        np.testing.assert_array_equal(logits.argmax(-1), row[-len(prompt) :].argmax(-1))


def test_a_folder_by_save_pretrained_with_gpt2_s_tokenizer(torch, transformers, gpt2_files, tmp_path, edge):
    for name, text in gpt2_files.items():
        (tmp_path / {"vocab": "vocab.json", "merges": "merges.txt"}[name]).write_text(text, encoding="utf-8")
    tokenizer = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.add_tokens(["<think>", "antidis"])
    config = transformers.GPT2Config(vocab_size=50304, n_positions=32, n_embd=8, n_head=2, n_layer=1)  # rows to spare
    for shard_size in ("5GB", "1MB"):
        folder = tmp_path / shard_size
        model = transformers.GPT2LMHeadModel(config)
        torch.nn.init.normal_(model.transformer.ln_f.bias)  # without any, nothing keeps <|pad|> from being generated
        model.save_pretrained(folder, max_shard_size=shard_size)
        tokenizer.save_pretrained(folder)
        encoder, hparams, params = utils.load_model(folder)
        assert encoder.n_vocab == hparams["n_vocab"] == len(params["wte"]) == 50260
        for text in [*random_strings(200), "a <think>antidisestablishment", "<|endoftext|>Hello, I am"]:
            assert encoder.encode(text) == tokenizer(text).input_ids, repr(text)
        assert encoder.never_ids == (50257,)
        with pytest.raises(utils.UserError, match="padding alone"):
            encoder.encode("a <|pad|> b")
        for version in VERSIONS:
            result = edge(version.module.main, "x", "--model", folder, "--n_tokens_to_generate", 3)
            assert result.returncode == 0 and result.stderr == ""
    assert (folder / "model.safetensors.index.json").exists()


def test_what_convert_writes_is_read_by_transformers(reference, torch, transformers, tmp_path):
    theirs, _ = reference("5 heads of 7")
    theirs.save_pretrained(tmp_path / "m")
    utils.convert(tmp_path / "m", tmp_path / "copy")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "copy").eval()
    for a, b in zip(theirs.parameters(), again.parameters()):
        assert torch.equal(a, b)


def test_bf16_and_other_files_of_the_safetensors_package(torch, tmp_path):
    import safetensors.torch

    tensors = {"b": torch.randn(5, 7, dtype=torch.bfloat16), "h": torch.randn(3).half(), "f": torch.randn(2, 2)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    found = read_safetensors(tmp_path / "x.safetensors")
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name].float32(), tensor.float().numpy())
    write_safetensors(tmp_path / "y.safetensors", {name: t.float32() for name, t in found.items()})
    again = safetensors.torch.load_file(tmp_path / "y.safetensors")
    assert all(torch.equal(again[name], tensor.float()) for name, tensor in tensors.items())


@pytest.mark.parametrize("which", ["tales", "gpt2"])
def test_ids_equal_those_of_the_tokenizers_package(which, tales_files, request):
    import tokenizers

    files = tales_files if which == "tales" else request.getfixturevalue("gpt2_files")
    merges = [tuple(line.split(" ")) for line in files["merges"].split("\n")[1:] if line]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(json.loads(files["vocab"]), merges))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = tokenizers.decoders.ByteLevel()
    encoder = encoder_of(**files)
    for text in random_strings(2000):
        ids = encoder.encode(text)
        assert ids == theirs.encode(text).ids, repr(text)
        assert encoder.decode(ids) == theirs.decode(ids, skip_special_tokens=False) == text


def test_added_tokens_equal_those_of_the_tokenizers_package(tales_files):
    import tokenizers

    vocab = json.loads(tales_files["vocab"])
    merges = [tuple(line.split(" ")) for line in tales_files["merges"].split("\n")[1:] if line]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    token = tokenizers.AddedToken
    theirs.add_special_tokens(["<|endoftext|>", token("<m>", lstrip=True), token("<r>", rstrip=True), "<m>x"])
    theirs.add_special_tokens([token("word", single_word=True), "  ", "é"])
    ours = encoder_of(tokenizer_json=theirs.to_str())
    pieces = ["<m>", "<r>", "<m>x", "word", "words", " ", "  ", "é", "a", "\n", "<|endoftext|>", "_", "<", "m>"]
    rng = np.random.default_rng(0)
    for _ in range(1000):
        text = "".join(rng.choice(pieces, 8))
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)
