"""Names, folders, formats and configs: what is given loads, or one line says why it cannot."""
import json
import re
import shutil
import sys

import numpy as np
import pytest
from model_files import CONFIG, assert_one_line, greedy, logits_of, make_tensors, write_folder, write_gguf
from tiny import ENDS, ROOT, VERSIONS, where_the_model_is_new
from torch_files import torch_bytes

import utils
from gpt2_io.checkpoint import expected_shapes
from gpt2_io.hub import HUB, find_model

pytestmark = pytest.mark.usefixtures("clean_environment")

IDS = [1, 4, 7, 2, 260]


def refused(folder, *words):
    """Loading raises a ValueError of one line with these words."""
    with pytest.raises(ValueError) as caught:
        utils.load_model(folder)
    assert "\n" not in str(caught.value)
    for word in words:
        assert str(word) in str(caught.value)


def flat(params):
    """Nested params -> list of arrays, in order."""
    if isinstance(params, dict):
        return [array for key in sorted(params) for array in flat(params[key])]
    return [array for p in params for array in flat(p)] if isinstance(params, list) else [params]


# ---- params


def test_params_have_picogpt_s_names_shapes_and_float32(tmp_path):
    encoder, hparams, params = utils.load_model(write_folder(tmp_path / "m"))
    tensors = make_tensors()
    assert hparams == {"n_vocab": 263, "n_ctx": 16, "n_embd": 12, "n_head": 3, "n_layer": 2}
    assert list(params) == ["wte", "wpe", "blocks", "ln_f"] and len(params["blocks"]) == 2
    block = params["blocks"][1]
    assert {part: {p: list(v) for p, v in block[part].items()} for part in ("attn", "mlp")} == {
        "attn": {"c_attn": ["w", "b"], "c_proj": ["w", "b"]},
        "mlp": {"c_fc": ["w", "b"], "c_proj": ["w", "b"]},
    }
    assert list(block["ln_1"]) == list(block["ln_2"]) == list(params["ln_f"]) == ["g", "b"]
    np.testing.assert_array_equal(block["attn"]["c_attn"]["w"], tensors["h.1.attn.c_attn.weight"])
    np.testing.assert_array_equal(block["mlp"]["c_proj"]["b"], tensors["h.1.mlp.c_proj.bias"])
    np.testing.assert_array_equal(block["ln_2"]["g"], tensors["h.1.ln_2.weight"])
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in flat(params))
    assert encoder.n_vocab == 263


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_with_and_without_prefix_and_mask_buffers_ignored(tmp_path, prefix):
    tensors = make_tensors()
    buffers = {"h.0.attn.bias": np.ones((1, 1, 16, 16), np.uint8), "h.1.attn.bias": np.ones((1, 1, 16, 16), np.float32)}
    buffers["h.0.attn.masked_bias"] = np.float32(-1e4).reshape(())
    folder = write_folder(tmp_path / "m", tensors={**tensors, **buffers}, prefix=prefix)
    _, _, params = utils.load_model(folder)
    np.testing.assert_array_equal(params["wte"], tensors["wte.weight"])


def test_missing_and_unexpected_tensors_are_listed_by_name(tmp_path):
    tensors = make_tensors()
    del tensors["h.1.ln_2.bias"], tensors["wpe.weight"]
    tensors["h.0.attn.q_norm.weight"] = np.ones(3, np.float32)
    folder = write_folder(tmp_path / "m", tensors=tensors)
    refused(folder, folder, "missing", "h.1.ln_2.bias", "wpe.weight", "unexpected", "h.0.attn.q_norm.weight")
    tensors = {**make_tensors(), "transformer.wte.weight": np.ones(3, np.float32)}
    refused(write_folder(tmp_path / "n", tensors=tensors), "wte.weight", "twice")


@pytest.mark.parametrize(
    "name, shape",
    [
        ("h.1.attn.c_attn.weight", (36, 12)),
        ("wte.weight", (264, 12)),
        ("wpe.weight", (8, 12)),
        ("h.0.mlp.c_fc.bias", (47,)),
    ],
)
def test_shapes_are_checked_against_the_config(tmp_path, name, shape):
    folder = write_folder(tmp_path / "m", tensors={**make_tensors(), name: np.ones(shape, np.float32)})
    refused(folder, name, list(shape), "config.json")


@pytest.mark.parametrize("name", ["wte.weight", "wpe.weight", "h.1.attn.c_attn.bias", "h.0.mlp.c_fc.bias", "ln_f.bias"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nan_and_infinity_are_reported_with_the_tensor_s_name(tmp_path, name, value, dtype):
    tensors = make_tensors(dtype=dtype)
    tensors[name].flat[-1] = value
    refused(write_folder(tmp_path / "m", tensors=tensors), name, "NaN or infinity")


def test_large_weights_are_no_damage(tmp_path):
    """Their squares are infinite in float32; they are not."""
    tensors = make_tensors()
    tensors["ln_f.weight"][:] = 3e38
    _, _, params = utils.load_model(write_folder(tmp_path / "m", tensors=tensors))
    assert np.all(params["ln_f"]["g"] == np.float32(3e38))


def test_an_absurd_number_of_layers_costs_nothing(tmp_path):
    refused(write_folder(tmp_path / "m", {**CONFIG, "n_layer": 10**9}, tensors=make_tensors()), "n_layer", 10**9)


@pytest.mark.parametrize(
    "name, n_layer, n_embd, n_params",
    [
        ("124M", 12, 768, 124_439_808),
        ("355M", 24, 1024, 354_823_168),
        ("774M", 36, 1280, 774_030_080),
        ("1558M", 48, 1600, 1_557_611_200),
        ("distilgpt2", 6, 768, 81_912_576),
    ],
)
def test_the_sizes_of_the_known_models(name, n_layer, n_embd, n_params):
    config = {"n_vocab": 50257, "n_ctx": 1024, "n_embd": n_embd, "n_layer": n_layer, "n_inner": 4 * n_embd}
    assert name in HUB
    assert sum(int(np.prod(shape)) for shape in expected_shapes(config).values()) == n_params


# ---- configs


@pytest.mark.parametrize("key", ["vocab_size", "n_positions", "n_embd", "n_head", "n_layer"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "12", True, [3], None])
def test_sizes_must_be_whole_numbers(tmp_path, key, value):
    refused(write_folder(tmp_path / "m", {**CONFIG, key: value}, tensors=make_tensors()), "config.json", key)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model_type": "llama"}, ["model_type", "llama", "gpt2"]),
        ({"activation_function": "gelu"}, ["activation_function", "'gelu'", "gelu_new"]),
        ({"activation_function": "relu"}, ["activation_function", "relu", "gelu_new"]),
        ({"activation_function": "quick_gelu"}, ["activation_function", "quick_gelu"]),
        ({"add_cross_attention": True}, ["add_cross_attention"]),
        ({"n_head": 5}, ["n_head", "5", "12"]),
        ({"n_inner": "48"}, ["n_inner"]),
        ({"layer_norm_epsilon": "1e-5"}, ["layer_norm_epsilon"]),
        ({"layer_norm_epsilon": -1e-5}, ["layer_norm_epsilon"]),
        ({"scale_attn_weights": 1}, ["scale_attn_weights"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, change, words):
    refused(write_folder(tmp_path / "m", {**CONFIG, **change}, tensors=make_tensors()), "config.json", *words)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"n_head": 3, "n_head": 4}', "\udcff"])
def test_a_config_that_is_no_json_object(tmp_path, text):
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    refused(folder, "config.json")


@pytest.mark.parametrize(
    "name", ["gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh", None]
)
def test_synonyms_of_gelu_new(tmp_path, name):
    utils.load_model(write_folder(tmp_path / "m", {**CONFIG, "activation_function": name}))


@pytest.mark.parametrize("version", where_the_model_is_new(VERSIONS), ids=str)
def test_another_epsilon_reaches_every_layer_norm(tmp_path, version):
    _, hparams, params = utils.load_model(write_folder(tmp_path / "m", {**CONFIG, "layer_norm_epsilon": 0.1}))
    assert {ln["eps"] for block in params["blocks"] for ln in (block["ln_1"], block["ln_2"])} | {
        params["ln_f"]["eps"]
    } == {0.1}
    _, _, usual = utils.load_model(write_folder(tmp_path / "u"))
    assert "eps" not in usual["ln_f"]
    difference = logits_of(version, params, 3, IDS) - logits_of(version, usual, 3, IDS)
    assert np.abs(difference).max() > 0.01
    assert logits_of(version, params, 3, IDS).dtype == np.float32


def test_n_inner(tmp_path):
    config = {**CONFIG, "n_inner": 7}
    _, _, params = utils.load_model(write_folder(tmp_path / "m", config))
    assert params["blocks"][0]["mlp"]["c_fc"]["w"].shape == (12, 7)
    refused(write_folder(tmp_path / "n", config, tensors=make_tensors()), "h.0.mlp.c_fc.weight", [12, 7])


def test_old_configs_say_n_ctx(tmp_path):
    config = {**CONFIG, "n_ctx": CONFIG["n_positions"]}
    del config["n_positions"]
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert utils.load_model(folder)[1]["n_ctx"] == 16


def test_scales_of_attention_go_into_the_queries(tmp_path):
    def c_attn(layer, **changes):
        folder = write_folder(tmp_path / "_".join(map(str, changes)) / str(layer), {**CONFIG, **changes})
        return utils.load_model(folder)[2]["blocks"][layer]["attn"]["c_attn"]

    usual = c_attn(1)
    halved = c_attn(1, scale_attn_by_inverse_layer_idx=True)
    for p in ("w", "b"):
        np.testing.assert_array_equal(halved[p][..., :12], usual[p][..., :12] / 2)
        np.testing.assert_array_equal(halved[p][..., 12:], usual[p][..., 12:])
    np.testing.assert_array_equal(c_attn(0, scale_attn_by_inverse_layer_idx=True)["w"], c_attn(0)["w"])
    unscaled = c_attn(0, scale_attn_weights=False)  # no division by sqrt(d_head) = 2
    np.testing.assert_array_equal(unscaled["w"][:, :12], c_attn(0)["w"][:, :12] * 2)
    assert unscaled["w"].dtype == unscaled["b"].dtype == np.float32


def test_a_tied_lm_head_is_left_out_and_an_untied_one_refused(tmp_path):
    tensors = make_tensors()
    tied = {**tensors, "lm_head.weight": tensors["wte.weight"]}
    _, _, params = utils.load_model(
        write_folder(tmp_path / "tied", {**CONFIG, "tie_word_embeddings": False}, tensors=tied)
    )
    np.testing.assert_array_equal(params["wte"], tensors["wte.weight"])
    other = tensors["wte.weight"].copy()
    other[-1, -1] += 1e-6
    for n, lm_head in enumerate((other, other.astype(np.float16), other[:-1])):
        folder = write_folder(tmp_path / f"untied {n}", tensors={**tensors, "lm_head.weight": lm_head})
        refused(folder, "lm_head.weight", "wte")


@pytest.mark.parametrize("version", ENDS, ids=str)
def test_rows_of_wte_without_a_token_are_never_generated(tmp_path, version):
    config = {**CONFIG, "vocab_size": 300}
    tensors = make_tensors(config)
    tensors["wte.weight"][263:] = 100 * np.sign(tensors["wte.weight"][263:])  # would win almost every time
    folder = write_folder(tmp_path / "m", config, tensors)
    encoder, hparams, params = utils.load_model(folder)
    assert hparams["n_vocab"] == len(params["wte"]) == encoder.n_vocab == 263
    ids = greedy(version, params, 3, IDS, 10)
    assert max(ids) < 263
    encoder.decode(ids)
    (folder / "vocab.json").unlink()  # without a tokenizer nobody knows better
    _, hparams, params = utils.load_model(folder)
    assert hparams["n_vocab"] == 300 and max(greedy(version, params, 3, IDS, 10)) >= 263


def test_wte_is_cut_without_a_copy(tmp_path):
    _, _, params = utils.load_model(write_folder(tmp_path / "m", {**CONFIG, "vocab_size": 300}))
    assert not params["wte"].flags.owndata and not params["wte"].flags.writeable


# ---- formats


def convert(out, model):
    utils.convert(str(model), str(out))
    return out


def same_model(a, b):
    (encoder_a, hparams_a, params_a), (encoder_b, hparams_b, params_b) = utils.load_model(a), utils.load_model(b)
    assert hparams_a == hparams_b
    for x, y in zip(flat(params_a), flat(params_b)):
        np.testing.assert_array_equal(x, y)
    text = "in the <|endoftext|> thing"
    assert encoder_a.encode(text) == encoder_b.encode(text) and encoder_a.eot_token == encoder_b.eot_token


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_safetensors_npz_and_folder_hold_the_same_model_to_the_bit(tmp_path, dtype):
    folder = write_folder(tmp_path / "m", tensors=make_tensors(dtype=dtype))
    same_model(folder, folder / "model.safetensors")
    same_model(folder, convert(tmp_path / "m.npz", folder))
    same_model(folder, convert(tmp_path / "copy", folder))
    same_model(folder, convert(tmp_path / "back", tmp_path / "m.npz"))


@pytest.mark.extra
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_safetensors_npz_and_gguf_give_the_same_logits_to_the_bit(tmp_path, version, dtype):
    tensors = make_tensors(dtype=dtype)
    folder = write_folder(tmp_path / "m", tensors=tensors)
    expected = logits_of(version, utils.load_model(folder)[2], 3, IDS)
    for path in (convert(tmp_path / "m.npz", folder), write_gguf(tmp_path / "m.gguf", tensors=tensors)):
        np.testing.assert_array_equal(logits_of(version, utils.load_model(path)[2], 3, IDS), expected)
    if dtype == np.float16:
        exact = logits_of(version, utils.load_model(write_folder(tmp_path / "f32"))[2], 3, IDS)
        np.testing.assert_allclose(expected, exact, rtol=0, atol=0.05)


def test_npz_from_elsewhere_uses_the_files_beside_it(tmp_path):
    folder = write_folder(tmp_path / "m")
    np.savez(folder / "w.npz", **{f"transformer.{name}": array for name, array in make_tensors().items()})
    np.savez_compressed(folder / "c.npz", **{name: np.asfortranarray(array) for name, array in make_tensors().items()})
    same_model(folder, folder / "w.npz")
    same_model(folder, folder / "c.npz")
    shutil.copy(folder / "w.npz", tmp_path / "alone.npz")
    refused(tmp_path / "alone.npz", "alone.npz", "config.json")


def test_npz_faults_are_named(tmp_path):
    folder = write_folder(tmp_path / "m")
    path = folder / "w.npz"
    tensors = make_tensors()
    np.savez(path, **{**tensors, "odd": np.ones(3, np.float32)})
    refused(path, path, "unexpected", "odd")
    missing = dict(tensors)
    del missing["wpe.weight"]
    np.savez(path, **missing)
    refused(path, path, "missing", "wpe.weight")
    np.savez(path, **{**tensors, "wpe.weight": np.full((16, 12), print, dtype=object)})
    refused(path, path, "wpe.weight", "object")
    np.savez(path, **{**tensors, "wpe.weight": np.ones((16, 12), np.int64)})
    refused(path, path, "wpe.weight", "int64")
    np.savez(path, **tensors)
    whole = path.read_bytes()
    for data in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(data)
        refused(path, path, "npz")
    np.save(folder / "w.npy", np.ones(3))
    shutil.move(folder / "w.npy", path)
    refused(path, path, "npz")
    spoilt = bytearray(whole)
    spoilt[whole.index(tensors["wte.weight"].tobytes()) + 100] ^= 255
    path.write_bytes(spoilt)
    refused(path, path, "wte.weight")


@pytest.mark.extra
def test_gguf_quantised(tmp_path):
    import gguf

    config = {**CONFIG, "n_embd": 64, "n_head": 4}
    tensors = make_tensors(config)
    kinds = gguf.GGMLQuantizationType
    quantize = {name: kinds.Q8_0 for name, array in tensors.items() if array.ndim == 2} | {
        "h.0.mlp.c_fc.weight": kinds.Q4_0,
        "wpe.weight": kinds.BF16,
    }
    path = write_gguf(tmp_path / "q.gguf", config, tensors, quantize)
    _, hparams, params = utils.load_model(path)
    assert hparams["n_embd"] == 64
    expected = gguf.dequantize(
        gguf.quantize(np.ascontiguousarray(tensors["h.0.mlp.c_fc.weight"].T), kinds.Q4_0), kinds.Q4_0
    ).T
    np.testing.assert_array_equal(params["blocks"][0]["mlp"]["c_fc"]["w"], expected)
    for found, name in (
        (params["wte"], "wte.weight"),
        (params["blocks"][1]["attn"]["c_attn"]["w"], "h.1.attn.c_attn.weight"),
    ):
        assert np.abs(found - tensors[name]).max() < 0.01


@pytest.mark.extra
def test_gguf_with_the_embedding_twice_uses_the_better_one(tmp_path):
    import gguf

    config = {**CONFIG, "n_embd": 64, "n_head": 4}
    tensors = make_tensors(config)
    both = {**tensors, "lm_head.weight": tensors["wte.weight"]}
    coarse, fine = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0
    path = write_gguf(tmp_path / "q.gguf", config, both, {"wte.weight": coarse, "lm_head.weight": fine})
    assert np.abs(utils.load_model(path)[2]["wte"] - tensors["wte.weight"]).max() < 0.01
    both["lm_head.weight"] = tensors["wte.weight"][::-1].copy()
    refused(
        write_gguf(tmp_path / "u.gguf", config, both, {"wte.weight": coarse, "lm_head.weight": fine}), "lm_head.weight"
    )


@pytest.mark.extra
def test_gguf_vocabulary_and_its_unused_rows(tmp_path):
    config = {**CONFIG, "vocab_size": 270, "layer_norm_epsilon": 1e-6}
    encoder, hparams, params = utils.load_model(write_gguf(tmp_path / "m.gguf", config))
    assert hparams["n_vocab"] == 263 and params["ln_f"]["eps"] == 1e-6
    assert encoder.encode(" the<|endoftext|>ing") == [258, 262, 260]
    _, hparams, _ = utils.load_model(write_gguf(tmp_path / "none.gguf", config, vocab={}))
    assert hparams["n_vocab"] == 270


@pytest.mark.extra
def test_gguf_faults_are_named(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for data in (b"", b"nonsense", b"GGUF", whole[:40], whole[: len(whole) // 3], whole[: len(whole) // 2]):
        path.write_bytes(data)
        refused(path, path, "GGUF")
    refused(write_gguf(tmp_path / "a.gguf", architecture="bert"), "general.architecture", "bert", "gpt2")
    refused(write_gguf(tmp_path / "b.gguf", model="llama"), "tokenizer.ggml.model", "llama")
    refused(write_gguf(tmp_path / "c.gguf", pre="qwen2"), "tokenizer.ggml.pre", "qwen2")
    tensors = make_tensors()
    del tensors["h.0.ln_1.bias"]
    refused(write_gguf(tmp_path / "d.gguf", tensors=tensors), "missing", "h.0.ln_1.bias")
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused(tmp_path / "d.gguf", "pip install gguf")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickles_are_refused_with_the_reason_and_the_way_out(tmp_path, name):
    """Without the zip around them, as PyTorch wrote them before 1.6."""
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    in_a_tar = b"sys_info" + bytes(249) + b"ustar" + bytes(99)
    for data in (b"\x80\x04.", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", in_a_tar):
        (folder / name).write_bytes(data)
        refused(folder / name, name, "pickle", "any code", "before 1.6", "weights_only=True")


# ---- names


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Run from an empty directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def test_the_order_of_search(tmp_path, elsewhere):
    """A path, then models_dir/NAME, then the Hugging Face cache."""

    def place(path):
        return write_folder(path).resolve()

    cached = place(tmp_path / "no such cache/hub/models--openai-community--gpt2/snapshots/abc")
    assert find_model("124M").resolve() == cached
    assert find_model("openai-community/gpt2").resolve() == cached
    in_models = place(elsewhere / "models" / "124M")
    assert find_model("124M").resolve() == in_models
    in_other_dir = place(elsewhere / "mine" / "124M")
    assert find_model("124M", "mine").resolve() == in_other_dir
    by_path = place(elsewhere / "124M")
    assert find_model("124M", "mine").resolve() == by_path
    assert find_model(str(in_models)).resolve() == in_models
    assert find_model(elsewhere / "models" / "124M").resolve() == in_models


def test_the_bundled_model_is_found_from_anywhere(elsewhere, edge):
    assert find_model("tales") == ROOT / "models" / "tales"
    result = edge(utils.COMMANDS, "tokenize", "x")
    assert result.returncode == 0 and "'x'" in result.stdout


def test_weight_files_in_models_dir(tmp_path):
    folder = write_folder(tmp_path / "models" / "m")
    utils.convert(str(folder), str(tmp_path / "models" / "m2.npz"))
    assert utils.load_model("m2.npz", tmp_path / "models")[1]["n_embd"] == 12
    assert utils.load_model("m/model.safetensors", tmp_path / "models")[1]["n_embd"] == 12


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_hugging_face_cache_is_used_in_place(tmp_path, elsewhere, monkeypatch, variable):
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    hub = tmp_path / "cache" / {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}.get(variable, "")
    repo = hub / "models--org--name"
    write_folder(repo / "snapshots" / "old")
    new = write_folder(repo / "snapshots" / "new")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("new", encoding="utf-8")
    for file in list(new.iterdir()):  # as the hub's library does it: links into blobs
        blob = repo / "blobs" / f"{file.name}-blob"
        blob.parent.mkdir(exist_ok=True)
        file.rename(blob)
        file.symlink_to(blob)
    assert find_model("org/name").resolve() == new.resolve()
    utils.load_model("org/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_model("org/name").resolve() == new.resolve()
    assert not (elsewhere / "models").exists()


def test_the_old_name_of_a_known_model_in_the_cache(tmp_path, elsewhere, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = write_folder(tmp_path / "no such cache/hub/models--distilgpt2/snapshots/abc")
    assert find_model("distilgpt2") == folder
    write_folder(tmp_path / "no such cache/hub/models--name/snapshots/abc")
    with pytest.raises(ValueError, match="cannot get org/name"):
        find_model("org/name")


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors", "vocab.json"])
def test_a_cached_model_that_is_not_whole_does_not_count(tmp_path, elsewhere, monkeypatch, lacking):
    folder = write_folder(tmp_path / "no such cache/hub/models--org--name/snapshots/abc")
    (folder / lacking).unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        find_model("org/name")


@pytest.mark.parametrize("model", ["nope", "", "..", "a/b/c", "../x", "org/..", "org/na me", "models/nope"])
def test_a_name_that_is_none(elsewhere, model, edge, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = edge(utils.COMMANDS, "inspect", "--model", model)
    assert_one_line(result, "model")
    if model == "nope":
        assert_one_line(result, "'nope'", "tales", "124M", "distilgpt2", "org/name")


@pytest.mark.parametrize(
    "names", [[name, repo.split("/")[1], repo] for name, repo in HUB.items()], ids=lambda names: names[0]
)
def test_the_names_of_a_known_model_mean_the_same(tmp_path, elsewhere, names, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for there in names:
        folder = write_folder(tmp_path / there.replace("/", "-") / there)
        for given in names:
            assert find_model(given, tmp_path / there.replace("/", "-")) == folder
    cached = write_folder(tmp_path / f"no such cache/hub/models--{names[2].replace('/', '--')}/snapshots/abc")
    assert {find_model(given, "none") for given in names} == {cached}


@pytest.mark.parametrize(
    "typed, meant",
    [("gpt-2", "gpt2"), ("GPT2", "gpt2"), ("124m", "124M"), ("gpt2-meduim", "gpt2-medium"), ("gpt2xl", "gpt2-xl"),
     ("distillgpt2", "distilgpt2"), ("openai-comunity/gpt2", "openai-community/gpt2"), ("tale", "tales"),
     ("my-modle", "my-model"), ("org/tunde", "org/tuned")],
)  # fmt: skip
def test_a_mistyped_name_gets_the_nearest(tmp_path, elsewhere, monkeypatch, edge, typed, meant):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_folder(elsewhere / "models" / "my-model")
    write_folder(elsewhere / "models" / "org" / "tuned")
    (elsewhere / "models" / "nothing-like").mkdir()  # no model in it
    assert_one_line(edge(utils.COMMANDS, "inspect", typed), typed, f"(did you mean {meant}?)")
    assert "mean" not in edge(utils.COMMANDS, "inspect", "nothing-like-it").stderr


def test_offline_never_opens_a_connection(tmp_path, elsewhere, monkeypatch):
    def no_socket(*args, **kwargs):
        raise AssertionError("a socket was made")

    monkeypatch.setattr("socket.socket", no_socket)
    for value in ("1", "true", "YES", "on"):
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        for model in ("124M", "org/name"):
            with pytest.raises(ValueError, match=f"{model}.*HF_HUB_OFFLINE.*tales.*folder"):
                utils.load_model(model)
    utils.load_model("tales")


@pytest.mark.parametrize("arguments", [["inspect"], ["tokenize", "x"], ["download", "tales"]])
def test_no_command_on_the_bundled_model_opens_a_connection(arguments, edge, monkeypatch):
    """conftest.py raises where one is opened."""
    monkeypatch.delenv("HF_ENDPOINT")
    assert edge(utils.COMMANDS, *arguments).returncode == 0


def test_folders_that_are_no_models_say_what_is_missing(tmp_path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no model.safetensors")
    folder = write_folder(tmp_path / "no config")
    (folder / "config.json").unlink()
    refused(folder, "config.json")
    refused(folder / "model.safetensors", "config.json")
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "gpt2-q8.gguf").write_bytes(b"x")
    refused(tmp_path / "gguf", "no model.safetensors", "gpt2-q8.gguf")
    (tmp_path / "x.txt").write_text("x", encoding="utf-8")
    refused(tmp_path / "x.txt", "x.txt", "not a model")


def test_a_folder_in_models_dir_that_is_no_model(tmp_path):
    for name in ("mine", "org/mine"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="mine: no model.safetensors in this folder"):
        utils.load_model("mine", tmp_path)


def test_a_cached_model_in_pytorch_s_format_counts(tmp_path, elsewhere, monkeypatch):
    folder = write_folder(tmp_path / "no such cache/hub/models--org--name/snapshots/abc")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(torch_bytes(make_tensors()))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    np.testing.assert_array_equal(utils.load_model("org/name")[2]["wte"], make_tensors()["wte.weight"])


def test_a_model_without_a_tokenizer_works_with_ids_and_refuses_text(tmp_path, edge):
    """Ids as numbers stand for text, in every version, streamed and as JSON."""
    folder = write_folder(tmp_path / "m", tokenizer=False)
    encoder, hparams, params = utils.load_model(folder)
    assert hparams["n_vocab"] == 263
    assert encoder.encode("1 4 7") == encoder.encode("[1, 4, 7]") == [1, 4, 7] and encoder.encode(" ") == []
    for text, shown in (("1 263", "[1, 263]"), ("0" + "9" * 5000, "[99")):
        with pytest.raises(utils.UserError, match=re.escape(f"from 0 to 262, not {shown}")):
            encoder.encode(text)
    for version in (VERSIONS[0], VERSIONS[4], VERSIONS[-1]):
        flags = ["--n_tokens_to_generate", 2, "--model", folder]
        for text in ("x", "1 two", "-1", "<|endoftext|>"):
            result = edge(version.module.main, *flags, "--", text)
            assert_one_line(result, "no tokenizer", "vocab.json", "--tokenizer FOLDER")
        plain = edge(version.module.main, "1 4 7", *flags).stdout
        ids = json.loads(edge(version.module.main, "[1, 4, 7]", *flags, "--json").stdout)["ids"]
        assert plain == f" {ids[0]} {ids[1]}\n"
    assert edge(VERSIONS[4].module.main, "1 4 7", *flags, "--stream").stdout == plain
