"""The commands of utils.py: inspect, tokenize, convert, download."""
import json
import re

import numpy as np
import pytest
from model_files import CONFIG, assert_one_line, make_tensors, safetensors_bytes, write_folder, write_gguf
from tiny import ROOT

import utils
from gpt2_io.checkpoint import open_checkpoint
from gpt2_io.npz import read_npz
from gpt2_io.safetensors import read_safetensors
from gpt2_io.tokenizer import load_encoder, merges_of

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def out(capsys):
    """Call a command of utils in this process -> what it printed on stdout."""

    def call(function, *arguments, **flags):
        function(*arguments, **flags)
        return capsys.readouterr().out

    return call


def numbers(text):
    """The tables of `inspect` -> {first words of a line: the numbers behind them}."""
    rows = {}
    for line in text.splitlines():
        words = re.match(r"(\S+(?: [a-z]\S*)*?)\s{2,}(.*)", line)
        if words:
            rows[words[1]] = [float(n.replace(",", "").rstrip("%")) for n in re.findall(r"[\d,.]+%?", words[2])]
    return rows


def test_inspect_shows_the_architecture_and_parts_that_add_up(tmp_path, out):
    config = {**CONFIG, "n_inner": 50, "vocab_size": 270}
    folder = write_folder(tmp_path / "m", config)
    rows = numbers(out(utils.inspect_model, folder))
    expected = {"n_vocab": 270, "n_ctx": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "d_head": 4, "ffn width": 50}
    assert {key: rows[key] for key in expected} == {key: [n] for key, n in expected.items()}
    assert rows["tokens"] == [263]
    parts = ["wte", "wpe", "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj", "ln_f"]
    n_params = sum(array.size for array in make_tensors(config).values())
    assert rows["sum"] == [n_params]
    assert sum(rows[part][1] for part in parts) == n_params
    assert [rows[part][0] for part in parts] == [1, 1, 2, 2, 2, 2, 2, 2, 1]
    assert rows["mlp.c_fc"][1] == 2 * (12 * 50 + 50)
    assert 99 < sum(rows[part][2] for part in parts) < 101


def test_inspect_shows_dtype_file_size_and_memory(tmp_path, out):
    folder = write_folder(tmp_path / "m", tensors=make_tensors(dtype=np.float16))
    size = (folder / "model.safetensors").stat().st_size
    text = out(utils.inspect_model, str(folder))
    n_params = sum(array.size for array in make_tensors().values())
    assert f"{folder}: F16, {size / 1000:.1f} kB on disk" in text
    assert f"{n_params:,} * 4 bytes = {n_params * 4 / 1000:.1f} kB" in text
    for batch in (1, 8):
        n_bytes = 2 * 2 * batch * 3 * 16 * 4 * 4  # 2 * n_layer * B * n_head * n_ctx * d_head * itemsize
        assert f"batch {batch}: 2 * n_layer * batch * n_head * n_ctx * d_head * 4 bytes" in text
        assert f"2 * 2 * {batch} * 3 * 16 * 4 * 4 = {n_bytes / 1000:.1f} kB" in text


@pytest.mark.extra
def test_inspect_of_every_format_and_of_shards(tmp_path, out):
    import gguf

    folder = write_folder(tmp_path / "m")
    expected = numbers(out(utils.inspect_model, folder))
    out(utils.convert, folder, tmp_path / "m.npz")
    assert numbers(out(utils.inspect_model, tmp_path / "m.npz")) == expected
    assert numbers(out(utils.inspect_model, write_gguf(tmp_path / "m.gguf"))) == expected
    config = {**CONFIG, "n_embd": 64, "n_head": 4}
    kinds = {"wte.weight": gguf.GGMLQuantizationType.Q8_0, "wpe.weight": gguf.GGMLQuantizationType.Q5_1}
    path = write_gguf(tmp_path / "q.gguf", config, make_tensors(config), kinds)
    assert f"{path}: F32, Q5_1, Q8_0, " in out(utils.inspect_model, path)
    tensors = list(make_tensors().items())
    (folder / "a.safetensors").write_bytes(safetensors_bytes(dict(tensors[:7])))
    (folder / "b.safetensors").write_bytes(safetensors_bytes(dict(tensors[7:])))
    index = {name: "a.safetensors" if n < 7 else "b.safetensors" for n, (name, _) in enumerate(tensors)}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    size = sum((folder / name).stat().st_size for name in ("a.safetensors", "b.safetensors"))
    text = out(utils.inspect_model, folder)
    assert numbers(text) == expected and f"{size / 1000:.1f} kB on disk" in text


def test_inspect_as_a_command(edge):
    for arguments in (["inspect"], ["inspect", "tales"], ["inspect", "--model", "models/tales"]):
        result = edge(utils.COMMANDS, *arguments)
        assert result.returncode == 0 and result.stderr == ""
        assert numbers(result.stdout)["n_layer"] == [utils.load_model()[1]["n_layer"]]
    assert_one_line(edge(utils.COMMANDS, "inspect", "--model", ROOT / "utils.py"), "utils.py", "not a model")


# ---- tokenize


def test_tokenize_prints_tokens_and_ids(tmp_path, out):
    folder = write_folder(tmp_path / "m")
    lines = out(utils.tokenize, " thing<|endoftext|>🤗\n", model=folder).splitlines()
    encoder = utils.load_model(folder)[0]
    ids = encoder.encode(" thing<|endoftext|>🤗\n")
    assert [int(line.split(maxsplit=1)[0]) for line in lines] == ids
    tokens = [line.split(maxsplit=1)[1] for line in lines]
    assert tokens == [
        "' t'",
        "'h'",
        "'ing'",
        "'<|endoftext|>'",
        r"b'\xf0'",
        r"b'\x9f'",
        r"b'\xa4'",
        r"b'\x97'",
        r"'\n'",
    ]
    assert out(utils.tokenize, "a", "b", model=folder).split("\n\n") == ["    64  'a'\n"[:-1], "    65  'b'\n"]


def test_tokenize_prints_each_merge_in_order_with_its_rank(tmp_path, out):
    folder = write_folder(tmp_path / "m")
    text = out(utils.tokenize, " the", model=folder, merges=True)
    assert [line.split(maxsplit=1) for line in text.splitlines()] == [
        ["258", "' the'"],
        ["0", "' ' + 't'"],
        ["1", "'h' + 'e'"],
        ["2", "' t' + 'he'"],
    ]
    assert out(utils.tokenize, "<|endoftext|>q", model=folder, merges=True).count("\n") == 2  # nothing to merge


def test_merges_put_every_token_of_the_bundled_vocabulary_together():
    encoder = load_encoder(open_checkpoint(ROOT / "models" / "tales"))
    for pair, place in encoder.merges.items():
        token = b"".join(pair)
        steps = merges_of(token, encoder.merges)
        assert steps[-1] == (*pair, place) and place == max(p for _, _, p in steps)
        assert len(steps) == len(token) - 1


def test_tokenize_as_a_command(tmp_path, edge):
    result = edge(utils.COMMANDS, "tokenize", " the", "--merges")
    assert result.returncode == 0 and result.stderr == "" and "' the'\n" in result.stdout
    assert_one_line(edge(utils.COMMANDS, "tokenize"), "no text")
    assert_one_line(
        edge(utils.COMMANDS, "tokenize", "a", "--model", write_folder(tmp_path / "m", tokenizer=False)), "no tokenizer"
    )


# ---- convert


def test_convert_keeps_the_tensors_and_the_files(tmp_path, out):
    tensors = {**make_tensors(), "lm_head.weight": make_tensors()["wte.weight"]}
    tensors |= {name: array.astype(np.float16) for name, array in tensors.items() if ".c_fc." in name}
    tensors["h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.uint8)
    folder = write_folder(
        tmp_path / "m", {**CONFIG, "scale_attn_by_inverse_layer_idx": True}, tensors, prefix="transformer."
    )
    (folder / "tokenizer_config.json").write_text('{"add_prefix_space": false}', encoding="utf-8")
    assert out(utils.convert, folder, tmp_path / "m.npz") == f"{tmp_path}/m.npz\n"
    assert out(utils.convert, tmp_path / "m.npz", tmp_path / "back") == f"{tmp_path}/back\n"
    found = read_safetensors(tmp_path / "back" / "model.safetensors")
    expected = {name: array for name, array in tensors.items() if name not in ("lm_head.weight", "h.0.attn.bias")}
    assert list(found) and set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == {"float32": "F32", "float16": "F16"}[array.dtype.name]
        np.testing.assert_array_equal(found[name].float32(), array.astype(np.float32))
    for name in ("config.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:  # NumPy reads it without us
        np.testing.assert_array_equal(archive["wpe.weight"], tensors["wpe.weight"])


def test_convert_dtype(tmp_path, out):
    folder = write_folder(tmp_path / "m")
    out(utils.convert, folder, tmp_path / "half", dtype="F16")
    out(utils.convert, tmp_path / "half", tmp_path / "single.npz", dtype="F32")
    half = make_tensors()["wte.weight"].astype(np.float16)
    np.testing.assert_array_equal(utils.load_model(tmp_path / "single.npz")[2]["wte"], half.astype(np.float32))
    assert {t.dtype for t in read_safetensors(tmp_path / "half" / "model.safetensors").values()} == {"F16"}
    assert {t.dtype for t in read_npz(tmp_path / "single.npz")[0].values()} == {"F32"}


@pytest.mark.extra
def test_convert_from_gguf_brings_the_tokenizer(tmp_path, out):
    out(utils.convert, write_gguf(tmp_path / "m.gguf"), tmp_path / "m")
    encoder, hparams, _ = utils.load_model(tmp_path / "m")
    assert hparams["n_head"] == 3 and encoder.encode(" the<|endoftext|>") == [258, 262]


def test_convert_refuses_what_it_would_spoil_or_cannot_write(tmp_path, edge):
    folder = write_folder(tmp_path / "m")
    assert_one_line(edge(utils.COMMANDS, "convert", "--model", folder, "--out", folder), folder, "exists already")
    for name in ("x.gguf", "x.safetensors", "pytorch_model.bin"):
        assert_one_line(edge(utils.COMMANDS, "convert", folder, tmp_path / name), name, ".npz")
    assert_one_line(edge(utils.COMMANDS, "convert", folder, tmp_path / "x", "--dtype", "Q4_0"), "--dtype", "Q4_0")
    assert_one_line(edge(utils.COMMANDS, "convert", folder), "out")
    assert_one_line(
        edge(utils.COMMANDS, "convert", folder, tmp_path / "no such folder" / "x.npz"), "No such file or directory"
    )
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(9000)
    assert_one_line(edge(utils.COMMANDS, "convert", folder, tmp_path / "x.npz"), "model.safetensors", "cut")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_convert_as_a_command(edge, tmp_path):
    result = edge(utils.COMMANDS, "convert", "--model", "tales", "--out", tmp_path / "tales.npz")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{tmp_path}/tales.npz\n", "")
    np.testing.assert_array_equal(utils.load_model(tmp_path / "tales.npz")[2]["wte"], utils.load_model()[2]["wte"])
