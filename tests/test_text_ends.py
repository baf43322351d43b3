"""Where a text starts and ends, which tokens are never generated, and tokenizers from elsewhere."""
import json

import numpy as np
import pytest
from model_files import (
    CONFIG,
    assert_one_line,
    greedy,
    logits_of,
    make_tensors,
    make_vocab,
    tokenizer_json,
    write_folder,
)
from tiny import ENDS, VERSIONS

import gpt2_v4_sampling
import jobs
import utils
from gpt2_io.streams import TextStream

pytestmark = pytest.mark.usefixtures("clean_environment")

EOT = make_vocab()["<|endoftext|>"]


def folder_with(folder, config=(), tensors=None, vocab=None, **files):
    """A model folder with more in its config, other tensors, another vocabulary, and JSON files by name."""
    vocab = make_vocab() if vocab is None else vocab
    config = {**CONFIG, "vocab_size": max(vocab.values()) + 1, **dict(config)}
    write_folder(folder, config, tensors)
    for name, content in {"vocab": vocab, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def ends_of(folder, **settings):
    encoder = utils.load_model(folder_with(folder, **settings))[0]
    return encoder.start, encoder.stop_ids, encoder.never_ids


# ---- start and end


@pytest.mark.parametrize(
    "config, generation, stop_ids",
    [
        ({"eos_token_id": 13}, {}, (13,)),  # not at <|endoftext|>, which the vocabulary has, too
        ({}, {"eos_token_id": 13}, (13,)),
        ({"eos_token_id": 13}, {"eos_token_id": [14, 13, 15]}, (14, 13, 15)),
        ({"eos_token_id": [13, EOT]}, {"eos_token_id": None}, (13, EOT)),
        ({"eos_token_id": None}, {}, (EOT,)),
        ({}, {"eos_token_id": []}, (EOT,)),
        ({"eos_token_id": 50256}, {}, (EOT,)),  # left over from another model: there is no such row
        ({"eos_token_id": [13, 50256, -1]}, {"eos_token_id": 263}, (13,)),
    ],
)
def test_a_text_ends_where_the_files_say(tmp_path, config, generation, stop_ids):
    assert ends_of(tmp_path / "m", config=config, generation_config=generation)[1] == stop_ids


def test_generation_ends_at_these_ids(tmp_path, edge):
    """And so it does for a tokenizer's own end."""
    folder = folder_with(tmp_path / "m")
    command = ["Once", "--model", folder, "--json", "--n_tokens_to_generate", "8"]
    ids = json.loads(edge(gpt2_v4_sampling.main, *command).stdout)["ids"]
    assert len(ids) == 8
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[3], ids[5]]}), encoding="utf-8")
    cut = json.loads(edge(gpt2_v4_sampling.main, *command).stdout)
    assert cut["ids"] == ids[: min(ids.index(ids[3]), ids.index(ids[5]))] and cut["finish_reason"] == "stop"
    assert json.loads(edge(gpt2_v4_sampling.main, *command, "--ignore_eos").stdout)["ids"] == ids


@pytest.mark.parametrize(
    "files, start",
    [
        ({}, EOT),
        ({"tokenizer_config": {"bos_token": "<s>"}}, 263),
        ({"special_tokens_map": {"bos_token": {"content": "<s>"}}, "tokenizer_config": {"bos_token": None}}, 263),
        ({"config": {"bos_token_id": 263}}, 263),
        ({"generation_config": {"bos_token_id": 263}}, 263),
        ({"config": {"bos_token_id": 50256}}, EOT),
        ({"config": {"eos_token_id": 263}}, EOT),
    ],
)
def test_an_empty_prompt_starts_from_the_token_that_is_named(tmp_path, files, start):
    folder = folder_with(tmp_path / "m", vocab={**make_vocab(), "<s>": 263}, **files)
    encoder = utils.load_model(folder)[0]
    assert encoder.eot_token == start and utils.encode_prompts(encoder, [""]) == [[start]]


def test_a_tokenizer_without_endoftext(tmp_path):
    encoder = utils.load_model(folder_with(tmp_path / "m", vocab=make_vocab(eot=False)))[0]
    assert encoder.stop_ids == ()
    with pytest.raises(utils.UserError, match="no <|endoftext|> for an empty prompt to start from"):
        utils.encode_prompts(encoder, [""])
    vocab = {**make_vocab(eot=False), "</s>": 262}
    files = {"config": {"eos_token_id": 262}, "tokenizer_config": {"eos_token": "</s>"}}
    for given in (files, {"tokenizer_config": files["tokenizer_config"]}):
        assert ends_of(tmp_path / f"m{len(given)}", vocab=vocab, **given)[:2] == (262, (262,))


def test_inspect_prints_them(tmp_path, edge):
    config, vocab = {"eos_token_id": [13, 14], "bos_token_id": 5}, {**make_vocab(), "<p>": 265}
    folder = folder_with(tmp_path / "m", config, vocab=vocab, tokenizer_config={"pad_token": "<p>"})
    lines = edge(utils.COMMANDS, "inspect", "--model", folder).stdout.splitlines()
    rows = [line.split(maxsplit=2) for line in lines]
    assert ["start", "id", "5"] in rows and ["end", "ids", "13, 14"] in rows
    assert "never generated, for padding alone or without a token: 263, 264, 265" in lines


def test_convert_writes_generation_config(tmp_path):
    folder = folder_with(tmp_path / "m", generation_config={"eos_token_id": 13})
    for out in ("copy", "copy.npz"):
        utils.convert(folder, tmp_path / out)
        assert utils.load_model(tmp_path / out)[0].stop_ids == (13,)


# ---- never generated


def tensors_with_a_tempting_row(config, ids):
    """Weights with which rows of zeros have the best logit after any text: all others are below 0."""
    tensors = make_tensors(config)
    tensors["ln_f.bias"] = np.linspace(1, 2, CONFIG["n_embd"], dtype=np.float32)
    tensors["ln_f.weight"] *= 0.1
    tensors["wte.weight"] = -np.abs(tensors["wte.weight"])
    tensors["wte.weight"][ids] = 0
    return tensors


@pytest.mark.parametrize("version", ENDS, ids=str)
@pytest.mark.parametrize("place", ["last", "between"])
def test_a_token_for_padding_alone_is_never_generated(tmp_path, version, place):
    """And the same with the token in the middle, where its row cannot be cut off."""
    vocab = make_vocab()
    if place == "last":
        vocab["[PAD]"] = 263
    else:
        vocab = {token: i + (i > 9) for token, i in vocab.items()} | {"[PAD]": 10}
    pad, config = vocab["[PAD]"], {**CONFIG, "vocab_size": 264}
    folder = folder_with(tmp_path / "m", tensors=tensors_with_a_tempting_row(config, [pad]), vocab=vocab)
    _, hparams, params = utils.load_model(folder)
    assert greedy(version, params, hparams["n_head"], [1, 2, 3], 5) == [pad] * 5  # not named, it is a token like others

    (folder / "tokenizer_config.json").write_text('{"pad_token": "[PAD]"}', encoding="utf-8")
    encoder, hparams, params = utils.load_model(folder)
    assert pad not in greedy(version, params, hparams["n_head"], [1, 2, 3], 9) and encoder.never_ids == (pad,)
    with pytest.raises(utils.UserError, match=r"'\[PAD\]': it is there for padding alone; take it out"):
        encoder.encode("a[PAD]")
    if place == "last":
        assert hparams["n_vocab"] == len(params["wte"]) == 263
    else:  # its logit is the same after any text, and the others are untouched
        logits = logits_of(version, params, hparams["n_head"], [1, 2, 3])
        np.testing.assert_allclose(logits[:, pad].astype(float), -1e10, rtol=1e-4)
        original = utils.load_model(folder_with(tmp_path / "n", tensors=make_tensors(config), vocab=vocab))[2]["wte"]
        assert params["wte"].shape == original.shape


def test_a_sample_at_any_temperature_is_no_pad(tmp_path):
    vocab = {token: i + 1 for token, i in make_vocab().items()} | {"<pad>": 0}
    tensors = tensors_with_a_tempting_row({**CONFIG, "vocab_size": 264}, [0])
    folder = folder_with(tmp_path / "m", tensors=tensors, vocab=vocab, tokenizer_config={"pad_token": "<pad>"})
    _, hparams, params = utils.load_model(folder)
    ids = gpt2_v4_sampling.generate([[1, 2]] * 50, params, hparams["n_head"], 12, temperature=1e4, seed=1)
    assert 0 not in np.ravel(ids)
    told = []
    settings = {"logprobs": True, "on_token": lambda row, token_id, logprob: told.append(logprob)}
    gpt2_v4_sampling.generate([[1, 2]], params, hparams["n_head"], 3, **settings)
    logits = gpt2_v4_sampling.gpt2(np.array([[1, 2]]), **params, n_head=hparams["n_head"])[0, -1, 1:].astype(float)
    best = np.max(logits) - np.log(np.sum(np.exp(logits)))  # without the pad
    np.testing.assert_allclose(told[0], best, rtol=1e-6)
    # As a pad it changes nothing.
    prompts = [[5, 6, 7, 8], [9]]
    batch, mask = gpt2_v4_sampling.left_pad(prompts, pad_id=0)
    together = gpt2_v4_sampling.generate(batch, params, hparams["n_head"], 6, attention_mask=mask)
    alone = [gpt2_v4_sampling.generate([ids], params, hparams["n_head"], 6)[0] for ids in prompts]
    np.testing.assert_array_equal(together, alone)


def test_rows_without_a_token_are_never_generated(tmp_path):
    """At the end they are cut off; between tokens, they are as if for padding."""
    vocab = {**make_vocab(), "<x>": 266}
    config = {**CONFIG, "vocab_size": 270}
    tensors = tensors_with_a_tempting_row(config, [263, 264, 265, 267, 269])
    folder = folder_with(tmp_path / "m", {"vocab_size": 270}, tensors, vocab)
    encoder, hparams, params = utils.load_model(folder)
    assert encoder.never_ids == (263, 264, 265) and hparams["n_vocab"] == len(params["wte"]) == 267
    new = gpt2_v4_sampling.generate([[1, 2]] * 20, params, hparams["n_head"], 9, temperature=50.0, seed=2)
    assert not {263, 264, 265} & set(np.ravel(new))


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"pad_token": "<p>", "eos_token": "<p>"}},
        {"tokenizer_config": {"pad_token": "<p>"}, "config": {"eos_token_id": 263}},
        {"tokenizer_config": {"pad_token": "<p>"}, "generation_config": {"eos_token_id": [13, 263]}},
        {"tokenizer_config": {"pad_token": "<p>", "additional_special_tokens": ["<p>"]}},
        {"tokenizer_config": {"pad_token": "<p>"}, "config": {"bos_token_id": 263}},
        {"config": {"pad_token_id": 0}},  # "!"
        {"tokenizer_config": {"pad_token": "!"}},
        {"tokenizer_config": {"pad_token": "<|endoftext|>"}},
        {"config": {"pad_token_id": EOT}},
        {"config": {"pad_token_id": 50256}},
        {"tokenizer_config": {"pad_token": "<not there>"}},
        {"tokenizer_config": {"pad_token": None}},
    ],
)
def test_what_is_named_as_more_than_padding_is_a_token_like_others(tmp_path, files):
    assert ends_of(tmp_path / "m", vocab={**make_vocab(), "<p>": 263}, **files)[2] == ()


@pytest.mark.parametrize("files", [{"config": {"pad_token_id": 263}}, {"generation_config": {"pad_token_id": 263}}])
def test_padding_that_is_named_by_its_id(tmp_path, files):
    folder = folder_with(tmp_path / "m", vocab={**make_vocab(), "<p>": 263}, **files)
    encoder, hparams, _ = utils.load_model(folder)
    assert encoder.never_ids == (263,) and hparams["n_vocab"] == 263


@pytest.mark.parametrize("bias", [0, 1e-5])  # so little that rounding could be as much
def test_a_model_that_nothing_keeps_from_padding_is_refused(tmp_path, bias):
    vocab, config = {**make_vocab(), "<p>": 263, "<q>": 264}, {**CONFIG, "vocab_size": 265}
    tensors = make_tensors(config)
    tensors["ln_f.weight"][:], tensors["ln_f.bias"][:] = 1, bias
    folder = folder_with(tmp_path / "m", config, tensors, vocab, tokenizer_config={"pad_token": "<p>"})
    with pytest.raises(utils.UserError, match="the tokens 263 .* take pad_token out of tokenizer_config.json and"):
        utils.load_model(folder)
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    assert len(utils.load_model(folder)[2]["wte"]) == 265


# ---- tokenizers from elsewhere


def test_the_tokenizer_of_another_folder(tmp_path, edge):
    folder = write_folder(tmp_path / "m", tokenizer=False)
    other = folder_with(tmp_path / "t", generation_config={"eos_token_id": 14}, tokenizer_config={"bos_token": "a"})
    (folder / "generation_config.json").write_text('{"eos_token_id": 13}', encoding="utf-8")
    assert utils.load_model(folder)[0].n_vocab is None
    encoder = utils.load_model(folder, tokenizer=other)[0]
    assert encoder.encode(" the") == [258] and encoder.stop_ids == (13,)  # the model's, not the other's
    assert "258" in edge(utils.COMMANDS, "tokenize", " the", "--model", folder, "--tokenizer", other).stdout
    assert "263" in edge(utils.COMMANDS, "inspect", "--model", folder, "--tokenizer", other).stdout
    utils.convert(folder, tmp_path / "whole", tokenizer=other)
    assert utils.load_model(tmp_path / "whole")[0].encode(" the") == [258]
    for version in VERSIONS:
        flags = ["--n_tokens_to_generate", 1, "--model", folder, "--tokenizer", other, "--json"]
        assert json.loads(edge(version.module.main, " the", *flags).stdout)["ids"] != [], version.file
    result = edge(utils.COMMANDS, "inspect", "--model", folder, "--tokenizer", folder)
    assert_one_line(result, "--tokenizer", folder, "no tokenizer.json there, nor vocab.json and merges.txt")


def test_weights_without_a_tokenizer_can_be_used_with_ids(tmp_path, edge):
    """Nor does one help that nobody can use, whether the tokenizers package is installed or not."""
    for files in ({}, {"tokenizer": {"model": {"type": "Unigram", "vocab": []}}}):
        folder = write_folder(tmp_path / f"m{len(files)}", {**CONFIG, "eos_token_id": 13}, tokenizer=False)
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        encoder, hparams, params = utils.load_model(folder)
        assert (encoder.stop_ids, encoder.never_ids, encoder.n_vocab) == ((13,), (), None)
        assert len(gpt2_v4_sampling.generate([[1, 2]], params, hparams["n_head"], 3)[0]) == 3
        for refused in (encoder.encode, encoder.encode_batch):
            with pytest.raises(utils.UserError, match=f"{folder}.*--tokenizer FOLDER"):
                refused(["x"] if refused == encoder.encode_batch else "x")
        (tmp_path / "p").write_text('{"prompt": [1, 2]}\n{"prompt": "1 2"}\n', encoding="utf-8")
        flags = ["--model", folder, "--n_tokens_to_generate", 3]
        lines = edge(jobs.COMMANDS, "complete", tmp_path / "p", *flags).stdout.splitlines()
        one, other = ({key: json.loads(line)[key] for key in ("ids", "text", "key")} for line in lines)
        assert one == other and one["text"] == "".join(f" {i}" for i in one["ids"]) and len(one["ids"]) == 3
        (tmp_path / "t").write_text('{"text": [1, 2, 5]}', encoding="utf-8")
        result, total = map(json.loads, edge(jobs.COMMANDS, "score", tmp_path / "t", *flags[:2]).stdout.splitlines())
        assert result["ids"] == [2, 5] and total["bits_per_byte"] is None and total["n_tokens"] == 2
        assert "no tokenizer" in edge(utils.COMMANDS, "inspect", "--model", folder).stdout


@pytest.mark.parametrize("name, kind", [("vocab.txt", "BertTokenizerFast"), ("spiece.model", "AutoTokenizer")])
def test_a_tokenizer_that_is_not_read_is_named_with_the_way_out(tmp_path, edge, name, kind):
    folder = write_folder(tmp_path / "m", tokenizer=False)
    (folder / name).write_text("x", encoding="utf-8")
    words = (name, f"{kind}.from_pretrained", "--tokenizer NEW_FOLDER", '"464 11"')
    assert_one_line(edge(gpt2_v4_sampling.main, "Once", "--model", folder), *words)
    assert name in edge(utils.COMMANDS, "inspect", folder).stdout


OTHER_KINDS = {
    "NFC": {"normalizer": {"type": "NFC"}},
    "WordPiece": {
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "he": 2, "##llo": 3, "world": 4}},
        "pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
    },
    "Unigram": {
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                  "vocab": [["[UNK]", 0], ["▁", -1], ["a", -2], ["▁hello", -1], ["▁world", -1]]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    },
}  # fmt: skip


@pytest.mark.reference
@pytest.mark.parametrize("name", OTHER_KINDS)
def test_other_kinds_through_the_tokenizers_package(tmp_path, name, edge):
    import tokenizers

    text = tokenizer_json(**OTHER_KINDS[name], added=[{"id": 263, "content": "[PAD]"}] if name == "NFC" else [])
    if name != "NFC":
        text = json.dumps({**json.loads(text), "added_tokens": []})
    folder = write_folder(tmp_path / "m", {**CONFIG, "eos_token_id": 3, "pad_token_id": 263}, tokenizer=False)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    encoder, hparams, params = utils.load_model(folder)
    assert "used through the tokenizers package" in edge(utils.COMMANDS, "inspect", folder).stdout
    theirs = tokenizers.Tokenizer.from_str(text)
    for words in ("hello world", "e\u0301 hello", "", "world"):
        assert encoder.encode(words) == theirs.encode(words).ids == encoder.encode_batch([words])[0]
    ids = encoder.encode(" hello world")
    assert encoder.decode(ids) == encoder.decode_bytes(ids).decode() == " hello world"  # as it follows a prompt
    stream = TextStream(encoder)
    assert "".join([*map(stream.push, ids), stream.end()]) == " hello world" == stream.text
    assert encoder.stop_ids == (3,)
    with pytest.raises(utils.UserError, match="outside of the vocabulary"):
        encoder.decode([500])
    with pytest.raises(utils.UserError, match="no character"):
        encoder.encode("\ud800")
    if name == "NFC":
        assert encoder.eot_token == EOT
        with pytest.raises(utils.UserError, match="beyond the model's wte"):
            encoder.encode("[PAD]")
    else:
        assert hparams["n_vocab"] == len(params["wte"]) == 5
