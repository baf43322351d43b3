"""GPT-2s as other code saves them: each layout gives the same model, or one line says what the file is."""
import json

import numpy as np
import pytest
from model_files import CONFIG, assert_one_line, make_tensors, make_vocab, merges_txt, safetensors_bytes, write_folder
from torch_files import torch_bytes

import utils
from gpt2_io.errors import UserError

pytestmark = pytest.mark.usefixtures("clean_environment")

LINEARS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def by_name(params, at=""):
    """Params -> (name in Hugging Face's checkpoints, array) of each."""
    for key, value in params.items():
        if key == "blocks":
            for i, block in enumerate(value):
                yield from by_name(block, f"h.{i}.")
        elif isinstance(value, dict):
            yield from by_name(value, f"{at}{key}.")
        else:
            yield at + {"g": "weight", "w": "weight", "b": "bias"}.get(key, f"{key}.weight"), value


def assert_same_model(path, expected=None, **how):
    """What is at `path` has the weights of `expected`, {name: array}, by default those of `make_tensors`."""
    expected = make_tensors() if expected is None else expected
    found = dict(by_name(utils.load_model(path, **how)[2]))
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == np.float32 and array.flags.c_contiguous


def refused(path, *words, **how):
    with pytest.raises(UserError) as caught:
        utils.load_model(path, **how)
    assert "\n" not in str(caught.value)
    for word in words:
        assert str(word) in str(caught.value)


def inspected(path, capsys, **how):
    capsys.readouterr()
    utils.inspect_model(path, **how)
    return capsys.readouterr().out


# ---- names


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "pretrained_model.transformer.", "gpt.", "module._orig_mod.transformer.", "model.",
     "base_model."],
)  # fmt: skip
def test_prefixes_of_training_code_and_stacks_of_them(tmp_path, capsys, prefix):
    folder = write_folder(tmp_path / "m", prefix=prefix)
    assert_same_model(folder)
    assert capsys.readouterr().err == ""
    assert f"prefix '{prefix}' taken off" in inspected(folder, capsys)


def test_two_models_in_one_file_are_refused(tmp_path):
    tensors = {f"{prefix}.{name}": array for prefix in ("model", "module") for name, array in make_tensors().items()}
    refused(write_folder(tmp_path / "m", tensors=tensors), "twice")
    tensors = {f"{prefix}.{name}": array for prefix in ("actor", "critic") for name, array in make_tensors().items()}
    refused(write_folder(tmp_path / "n", tensors=tensors), "unexpected", "actor.")


@pytest.mark.parametrize(
    "head", ["v_head.summary.weight", "score.weight", "classifier.bias", "multiple_choice_head.summary.weight",
             "qa_outputs.weight"]
)  # fmt: skip
def test_other_heads_are_left_out_aloud(tmp_path, capsys, head):
    tensors = {**{f"transformer.{n}": a for n, a in make_tensors().items()}, head: np.ones((2, 12), np.float32)}
    folder = write_folder(tmp_path / "m", tensors=tensors)
    assert_same_model(folder)
    out, err = capsys.readouterr()
    assert out == "" and err == f"note: left out: {head}, a head that is no language model's\n"
    assert f"- left out: {head}" in inspected(folder, capsys)


def test_names_in_a_file_cannot_command_the_terminal(tmp_path, edge):
    folder = tmp_path / "m"
    for name in ("score.\x1b[31m", "h.9.\x1b[31m", "an adapter"):
        write_folder(folder, tensors={**make_tensors(), name: np.ones(2, np.float32)})
        if name == "an adapter":
            (folder / "model.safetensors").unlink()
            (folder / "adapter_config.json").write_text(
                json.dumps({"base_model_name_or_path": "\x1b[31m"}), encoding="utf-8"
            )
        result = edge(utils.COMMANDS, "inspect", folder)
        assert "\\x1b[31m" in result.stdout + result.stderr and "\x1b" not in result.stdout + result.stderr


def test_a_tied_pair_of_which_only_the_head_was_saved(tmp_path, capsys):
    tensors = make_tensors()
    tensors["lm_head.weight"] = tensors.pop("wte.weight")
    folder = write_folder(tmp_path / "m", tensors=tensors)
    assert_same_model(folder)
    assert "lm_head.weight used as wte.weight" in inspected(folder, capsys)
    untied = write_folder(tmp_path / "untied", {**CONFIG, "tie_word_embeddings": False}, tensors)
    refused(untied, "tie_word_embeddings", "no wte.weight")
    del tensors["lm_head.weight"]
    refused(write_folder(tmp_path / "neither", tensors=tensors), "missing: wte.weight")


def test_an_untied_pair_of_which_the_head_is_missing(tmp_path):
    folder = write_folder(tmp_path / "m", {**CONFIG, "tie_word_embeddings": False})
    refused(folder, "tie_word_embeddings false", "no lm_head.weight")
    refused(write_folder(tmp_path / "n", {**CONFIG, "tie_word_embeddings": "yes"}), "tie_word_embeddings", "bool")


def test_shards_of_a_variant_are_read_by_the_path_of_their_index(tmp_path):
    folder = write_folder(tmp_path / "m")
    shard, index = folder / "model.fp16-00001-of-00001.safetensors", folder / "model.safetensors.index.fp16.json"
    (folder / "model.safetensors").rename(shard)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(make_tensors(), shard.name)}), encoding="utf-8")
    refused(folder, f"to use {index.name}, give its path")
    assert_same_model(index)


# ---- nanoGPT


def nano(biases=False):
    """The tensors as nanoGPT has them, {name: array}, and as they are meant, with zeros for biases it leaves out."""
    meant = make_tensors()
    if not biases:
        meant = {name: array * (0 if name.endswith(".bias") else 1) for name, array in meant.items()}
    stored = {n: np.ascontiguousarray(a.T) if n.endswith(LINEARS) else a for n, a in meant.items()}
    stored = {n: a for n, a in stored.items() if biases or not n.endswith(".bias")}
    return {**stored, "lm_head.weight": stored["wte.weight"]}, meant


def test_nanogpt_without_biases_is_recognised(tmp_path, capsys):
    stored, meant = nano()
    stored["h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.float32)  # the mask, in files from before flash attention
    folder = write_folder(tmp_path / "m", tensors=stored, prefix="_orig_mod.transformer.")
    assert_same_model(folder, meant)
    assert capsys.readouterr().err == ""  # the config says which gelu it is
    text = inspected(folder, capsys)
    assert "nanoGPT's layout, linear weights [out, in]" in text and "no biases, so zeros" in text
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(torch_bytes(stored))
    assert_same_model(folder, meant)
    config = {key: value for key, value in CONFIG.items() if key != "activation_function"}
    assert_same_model(write_folder(tmp_path / "n", config, stored), meant)
    assert "gelu by erf" in capsys.readouterr().err


def test_nanogpt_with_biases_is_known_by_its_config_or_by_the_flag_and_never_by_shapes(tmp_path, capsys, edge):
    stored, meant = nano(biases=True)
    folder = write_folder(tmp_path / "a m", tensors=stored)
    refused(folder, "[out, in]", "attn.c_proj", f"convert --model '{folder}' --out FOLDER --layout nanogpt")
    assert_same_model(folder, meant, layout="nanogpt")
    assert "nanoGPT's layout" in inspected(folder, capsys, layout="nanogpt")
    assert edge(utils.COMMANDS, "convert", folder, tmp_path / "out", "--layout", "nanogpt").returncode == 0
    assert_same_model(tmp_path / "out", meant)
    config = {key: value for key, value in CONFIG.items() if key != "n_positions"}
    folder = write_folder(tmp_path / "n", {**config, "block_size": 16, "bias": True}, stored)
    assert_same_model(folder, meant)
    utils.convert(folder, tmp_path / "out2")  # with the words of other programs
    assert json.loads((tmp_path / "out2" / "config.json").read_text("utf-8"))["n_positions"] == 16
    refused(folder, "--layout takes nanogpt, not 'nano'", layout="nano")


def test_a_layout_that_does_not_fit_is_refused_by_shape(tmp_path):
    refused(write_folder(tmp_path / "m"), "h.0.attn.c_attn.weight", [36, 12], layout="nanogpt")
    stored, _ = nano(biases=True)
    stored["h.1.attn.c_attn.weight"] = stored["h.1.attn.c_attn.weight"].T  # one of two layers
    refused(write_folder(tmp_path / "n", tensors=stored), "h.0.attn.c_attn.weight", [36, 12])
    without = {name: array for name, array in make_tensors().items() if not name.endswith(".bias")}
    refused(write_folder(tmp_path / "o", tensors=without), "missing", "h.0.ln_1.bias")  # [in, out], and no biases


# ---- OpenAI's TensorFlow folder, which picoGPT downloads


def openai_files(folder):
    folder.mkdir()
    sizes = {"n_vocab": 263, "n_ctx": 16, "n_embd": 12, "n_head": 3, "n_layer": 2}
    texts = {"hparams.json": json.dumps(sizes), "encoder.json": json.dumps(make_vocab()), "vocab.bpe": merges_txt()}
    for name, text in {**texts, "checkpoint": "x", "model.ckpt.index": "x"}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def openai_name(name):
    if name in ("wte.weight", "wpe.weight"):
        return f"model/{name[:3]}"
    kind = {"bias": "b", "weight": "g" if "ln_" in name else "w"}[name.rpartition(".")[2]]
    return f"model/{name.rpartition('.')[0].replace('h.', 'h', 1).replace('.', '/')}/{kind}"


def test_openai_s_folder_has_a_tokenizer_and_a_way_to_its_weights(tmp_path, edge):
    folder = openai_files(tmp_path / "124M")
    result = edge(utils.COMMANDS, "tokenize", " the", "--model", folder)
    assert (result.returncode, result.stdout) == (0, "   258  ' the'\n")
    for path in (folder, folder / "model.ckpt.index"):
        words = ("TensorFlow", "load_checkpoint", "model.npz", "124M")
        assert_one_line(edge(utils.COMMANDS, "inspect", path), path, *words)
    assert openai_name("h.1.attn.c_proj.weight") == "model/h1/attn/c_proj/w"
    tensors = {openai_name(n): a[None] if n.endswith(LINEARS) else a for n, a in make_tensors().items()}
    np.savez(folder / "model.npz", **tensors)  # what the command in the message writes
    assert_same_model(folder / "model.npz")
    result = edge(utils.COMMANDS, "inspect", folder / "model.npz")
    assert result.returncode == 0 and "OpenAI's names" in result.stdout
    utils.convert(folder / "model.npz", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["model_type"] == "gpt2"


# ---- what is no model


def test_an_adapter_names_its_base(tmp_path, capsys, edge):
    folder = tmp_path / "lora"
    folder.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "openai-community/gpt2"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    lora = {"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": np.ones((2, 12), np.float32)}
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(lora))
    for path in (folder, folder / "adapter_model.safetensors"):
        words = ("a LORA adapter of openai-community/gpt2", "merge_and_unload")
        assert_one_line(edge(utils.COMMANDS, "inspect", path), path, *words)
    for spoilt in ("{", "[]", '{"peft_type": [1], "base_model_name_or_path": {"a": 1}}'):
        (folder / "adapter_config.json").write_text(spoilt, encoding="utf-8")
        refused(folder, "adapter")
    write_folder(folder)  # a whole model, with an adapter beside it
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert_same_model(folder)
    assert "not applied" in capsys.readouterr().err


NO_MODELS = {
    "ggml-model.bin": (b"lmgg" + bytes(60), ["GGUF", "convert_hf_to_gguf.py"]),
    "gpt2_124M.bin": ((20240326).to_bytes(4, "little") + bytes(1020), ["llm.c", "export_hf.py"]),
    "model.onnx": (b"\x08\x07", ["ONNX", "exported from"]),
    "onnx/model.onnx": (b"\x08\x07", ["ONNX", "exported from"]),
    "tf_model.h5": (b"\x89HDF\r\n", ["Keras", "from_tf"]),
    "flax_model.msgpack": (b"\x82", ["Flax", "from_flax"]),
    "renamed.bin": (b"GGUF\x03\0\0\0", ["GGUF", ".gguf"]),
    "pytorch_model.bin": (b"version https://git-lfs.github.com/spec/v1\n", ["git lfs pull"]),
    "model.ckpt.data-00000-of-00001": (bytes(100), ["TensorFlow", "load_checkpoint"]),
    "weights.pth": (b"nonsense", ["torch.save"]),
    "model.pkl": (b"\x80\x04K\x01.", ["pickle", "any code"]),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_what_is_no_model_says_what_it_is_and_the_way_out(tmp_path, edge, name):
    data, words = NO_MODELS[name]
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    assert_one_line(edge(utils.COMMANDS, "inspect", folder / name), folder / name, *words)
    hint = words if name not in ("weights.pth", "model.pkl") else ["to use", name]
    assert_one_line(edge(utils.COMMANDS, "inspect", folder), folder, name, *hint)


def test_a_folder_with_a_tokenizer_alone_tokenizes(tmp_path, edge):
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    assert edge(utils.COMMANDS, "tokenize", " the", "--model", folder).stdout == "   258  ' the'\n"
    assert_one_line(edge(utils.COMMANDS, "inspect", folder), "no model.safetensors")


# ---- weights that nobody could use


@pytest.mark.parametrize("out", ["half", "half.npz"])
def test_convert_to_f16_refuses_what_would_become_infinite(tmp_path, edge, out):
    tensors = make_tensors()
    tensors["h.1.mlp.c_fc.weight"][3, 5] = -1e5
    folder = write_folder(tmp_path / "m", tensors=tensors)
    result = edge(utils.COMMANDS, "convert", folder, tmp_path / out, "--dtype", "F16")
    assert_one_line(result, "h.1.mlp.c_fc.weight", "100000", "65504", "F32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
    tensors["h.1.mlp.c_fc.weight"][3, 5] = 65504
    folder = write_folder(tmp_path / "m", tensors=tensors)
    assert edge(utils.COMMANDS, "convert", folder, tmp_path / out, "--dtype", "F16").returncode == 0
    utils.load_model(tmp_path / out)


def test_convert_refuses_nan_as_loading_does(tmp_path, edge):
    tensors = make_tensors()
    tensors["wpe.weight"][1, 2] = np.nan
    folder = write_folder(tmp_path / "m", tensors=tensors)
    assert_one_line(edge(utils.COMMANDS, "convert", folder, tmp_path / "out"), "wpe.weight", "NaN")
    assert not (tmp_path / "out").exists()


def test_an_unused_tensor_of_a_type_that_came_later_does_no_harm(tmp_path):
    def newer(header):
        header["h.0.attn.bias"]["dtype"] = header["score.weight"]["dtype"] = "F4"  # two numbers in a byte

    tensors = {"h.0.attn.bias": np.ones(7, np.uint8), "score.weight": np.ones(5, np.uint8), **make_tensors()}
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, edit=newer))
    assert_same_model(folder)
    (folder / "model.safetensors").write_bytes(
        safetensors_bytes(make_tensors(), edit=lambda header: header["wpe.weight"].update(dtype="F8_E4M3"))
    )
    refused(folder, "wpe.weight", "F8_E4M3")
    np.savez(tmp_path / "m" / "m.npz", **make_tensors(), **{"h.0.attn.bias": np.ones((1, 1, 16, 16), np.uint8)})
    assert_same_model(tmp_path / "m" / "m.npz")
