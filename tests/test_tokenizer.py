"""Tokenizers: ids as the originals give them, from either form of files, with added tokens."""
import copy
import itertools
import json
import math
import pickle
import random
import sys
from pathlib import Path

import pytest
from model_files import CONFIG, MERGES, byte_characters, command, make_vocab, merges_txt, tokenizer_json, write_folder
from tiny import ROOT

import utils
from gpt2_io.checkpoint import Checkpoint
from gpt2_io.errors import UserError
from gpt2_io.tokenizer import load_encoder

pytestmark = pytest.mark.usefixtures("clean_environment")

CHARACTERS = byte_characters()
TALES = ROOT / "models" / "tales"


def encoder_of(config=None, **files):
    """An Encoder from the texts of files; `tokenizer_json=...` stands for tokenizer.json."""
    names = {"vocab": "vocab.json", "merges": "merges.txt"}
    files = {names.get(key, f"{key.removesuffix('_json')}.json"): text for key, text in files.items()}
    return load_encoder(Checkpoint(Path("here"), {}, files), config)


def small(vocab=None, merges=MERGES, **files):
    return encoder_of(vocab=json.dumps(make_vocab() if vocab is None else vocab), merges=merges_txt(merges), **files)


@pytest.fixture(scope="module")
def gpt2_encoder(gpt2_files):
    return encoder_of(**gpt2_files)


# ---- ids


KNOWN = {
    "Hello, I am": [15496, 11, 314, 716],
    "Michael Jordan played the sport of": [13256, 8078, 2826, 262, 6332, 286],
    "Alan Turing theorized that computers would one day become": [
        36235,
        39141,
        18765,
        1143,
        326,
        9061,
        561,
        530,
        1110,
        1716,
    ],
    "Hello!!!!!!!!!? 🤗, my dog is a little": [15496, 13896, 50184, 30, 12520, 97, 245, 11, 616, 3290, 318, 257, 1310],
    "🤗": [8582, 97, 245],
    "": [],
    " ": [220],
    "\n": [198],
    "<|endoftext|>": [50256],
}


@pytest.mark.extra
@pytest.mark.parametrize("text", KNOWN)
def test_the_known_ids_of_gpt2(gpt2_encoder, text):
    ids = gpt2_encoder.encode(text)
    assert ids == KNOWN[text] and all(type(i) is int for i in ids)
    assert gpt2_encoder.decode(ids) == text
    assert gpt2_encoder.n_vocab == 50257 and gpt2_encoder.eot_token == 50256


def naive_encode(text, vocab, merges):
    """GPT-2's encoder as in OpenAI's encoder.py: split with the original pattern, merge the best pair, repeat."""
    import regex  # comes with tiktoken

    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    characters = CHARACTERS
    ranks = {merge: n for n, merge in enumerate(merges)}
    ids = []
    for word in regex.findall(pattern, text):
        parts = [characters[b] for b in word.encode("utf-8")]
        while len(parts) > 1:
            pair = min(zip(parts, parts[1:]), key=lambda p: ranks.get(p, math.inf))
            if pair not in ranks:
                break
            merged, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
                    merged.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            parts = merged
        ids += [vocab[part] for part in parts]
    return ids


def random_strings(n, seed=0):
    """Strings of words, digits, white space of every kind, punctuation, emoji, and any code point but surrogates."""
    rng = random.Random(seed)
    words = "the there's we'll I'M don't in ing Once upon a time hello WORLD 12 3456 x_y -- ... \u00e9t\u00e9".split()
    spaces = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\x85", "\u200b"]
    others = ["🤗", "👩‍👩‍👧", "e\u0301", "你好", "привет", "'", "’s", "½", "²", "٣", "\x00", "\ufffd", "क्षि"]

    def any_character():
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)])
        return chr(code) if not 0xD800 <= code < 0xE000 else "?"

    def piece():
        return rng.choice(
            [rng.choice(words), rng.choice(words), rng.choice(spaces), rng.choice(others), any_character()]
        )

    return ["".join(piece() for _ in range(rng.randrange(1, 20))) for _ in range(n)]


def test_ids_equal_the_original_algorithm_s(tales_files):
    encoder = encoder_of(**tales_files)
    vocab = json.loads(tales_files["vocab"])
    merges = [tuple(line.split(" ")) for line in tales_files["merges"].split("\n")[1:] if line]
    for text in random_strings(300):
        assert encoder.encode(text) == naive_encode(text, vocab, merges), repr(text)
        assert encoder.decode(encoder.encode(text)) == text


def test_merges_go_by_their_place_in_the_list():
    """Not by the id of what they make, nor because what they make is a token."""
    vocab = {**{character: byte for byte, character in byte_characters().items()}, "bc": 256, "ab": 257, "abc": 258}
    assert small(vocab, [("b", "c"), ("a", "b"), ("ab", "c")]).encode("abc") == [97, 256]
    assert small(vocab, [("a", "b"), ("b", "c"), ("ab", "c")]).encode("abc") == [258]


LISTS_OF_MERGES = {
    "a tie at the border": ["a a", "c a", "ca aa"],
    "made in two ways": ["b c", "a bc", "a b", "ab c"],
    "made in two ways, the second one first": ["a bc", "a b", "ab c", "b c"],
    "made of what comes later": ["ab c", "a b"],
    "made of what comes too late": ["ab c", "b c", "a b"],
    "twice": ["a b", "b c", "ab c", "a b"],
    "of what never comes about": ["b c", "a b", "ab c", "abc a", "c a"],
    "long": ["a b", "ab ab", "abab abab", "b a", "ba ba", "abab a", "c ababa"],
}


@pytest.mark.parametrize("name", LISTS_OF_MERGES)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("longest", [4, pytest.param(7, marks=pytest.mark.slow)])
def test_any_list_of_merges_on_all_short_words(name, in_order, longest):
    merges = [tuple(merge.split()) for merge in LISTS_OF_MERGES[name]]
    made = list(dict.fromkeys(left + right for left, right in merges))
    tokens = [*byte_characters().values(), *made]
    vocab = dict(zip(tokens if in_order else tokens[::-1], range(len(tokens))))
    encoder = small(vocab, merges)
    words = ["".join(letters) for n in range(1, longest + 1) for letters in itertools.product("abc", repeat=n)]
    for word in [*words, *(start + "ab" * n + end for start in "bc" for n in (3, 4, 5, 8, 9) for end in "abc")]:
        assert encoder.encode(word) == naive_encode(word, vocab, merges)


def test_every_single_byte_and_every_token_comes_back(tales_files):
    encoder = encoder_of(**tales_files)
    for i in range(encoder.n_vocab):
        encoder.decode([i])
    text = "".join(chr(i) for i in range(0x250))
    assert encoder.decode(encoder.encode(text)) == text


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "\ud83e\udd17", 7, None, b"a", ["a"]])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(UserError, match="is expected|which is no character") as caught:
        small().encode(text)
    assert "\n" not in str(caught.value)


def test_long_runs_of_one_character(tales_files):
    encoder = encoder_of(**tales_files)
    for character in " \nax":
        text = character * 20_000
        assert encoder.decode(encoder.encode(text)) == text


# ---- special and added tokens


def test_endoftext_is_one_token_wherever_it_stands():
    encoder = small()
    eot = make_vocab()["<|endoftext|>"]
    assert encoder.eot_token == eot
    the = encoder.encode(" the")
    assert encoder.encode("<|endoftext|> the<|endoftext|><|endoftext|>") == [eot, *the, eot, eot]
    assert encoder.decode([eot, *the]) == "<|endoftext|> the"
    assert eot not in encoder.encode("<|endoftext |> <|endoftext|")


def test_a_text_that_ends_within_a_character():
    encoder = small()
    assert encoder.decode(encoder.encode("🤗")[:-1]) == "\ufffd"
    assert encoder.decode_bytes(encoder.encode("🤗")[:-1]) == "🤗".encode()[:-1]


def test_ids_that_are_no_tokens():
    encoder = small()
    for ids in ([263], [-1], [1, 10**12], [2.0], ["a"], [None]):
        with pytest.raises(ValueError, match="outside of the vocabulary, 0 to 262"):
            encoder.decode(ids)


def test_added_tokens_from_each_of_the_files_that_may_name_them():
    added = {"<pad>": 263, "<pad>ded": 264, "  ": 265}
    decoder = {str(i): {"content": text, "special": True} for text, i in added.items()}
    ways = [
        small(added_tokens_json=json.dumps(added)),
        small(tokenizer_config_json=json.dumps({"added_tokens_decoder": decoder, "add_prefix_space": False})),
        encoder_of(tokenizer_json=tokenizer_json(added=[{"id": i, "content": text} for text, i in added.items()])),
    ]
    for encoder in ways:
        assert encoder.n_vocab == 266
        a, the, b = encoder.encode("a"), encoder.encode(" the"), encoder.encode("b")
        assert encoder.encode("a<pad> the<pad>ded  b<|endoftext|>") == [*a, 263, *the, 264, 265, *b, 262]
        assert encoder.decode([263, 264, 262]) == "<pad><pad>ded<|endoftext|>"


@pytest.mark.parametrize("value", ["<s>", {"content": "<s>", "lstrip": False}])
@pytest.mark.parametrize("file", ["special_tokens_map_json", "tokenizer_config_json"])
def test_special_tokens_that_are_named_and_lie_in_the_vocabulary(value, file):
    vocab = {**make_vocab(), "<s>": 263, "<other>": 264}
    encoder = small(vocab, **{file: json.dumps({"bos_token": value, "pad_token": None, "unk_token": "<not there>"})})
    assert encoder.encode("<s>") == [263]
    assert 264 not in encoder.encode("<other>")
    assert encoder.decode([263, 264]) == "<s><other>"


def test_flags_of_added_tokens():
    flags = {"content": "<m>", "id": 263}

    def encode(text, **more):
        return encoder_of(tokenizer_json=tokenizer_json(added=[{**flags, **more}])).encode(text)

    a, b = encode("a"), encode("b")
    space = encode(" ")
    assert encode("a <m> b") == [*a, *space, 263, *encode(" b")]
    assert encode("a <m> b", lstrip=True) == [*a, 263, *encode(" b")]
    assert encode("a \n<m> \n b", lstrip=True, rstrip=True) == [*a, 263, *b]
    assert 263 not in encode("a<m>", single_word=True)
    assert encode("a <m>.", single_word=True) == [*a, *space, 263, *encode(".")]


def test_tokens_that_are_not_normalized_come_first():
    """Though the other one is longer."""
    m, mx = {"id": 263, "content": "<m>"}, {"id": 264, "content": "<m>x", "special": False, "normalized": True}
    encoder = encoder_of(tokenizer_json=tokenizer_json(added=[m, mx]))
    a, x, b = (encoder.encode(text) for text in ("a", "x", " b"))
    assert encoder.encode("a<m>x b") == [*a, 263, *x, *b]
    same_pass = encoder_of(tokenizer_json=tokenizer_json(added=[{**m, "normalized": True}, mx]))
    assert same_pass.encode("a<m>x b") == [*a, 264, *b]
    old = {"added_tokens_json": '{"<m>": 263, "<m>x": 264}', "special_tokens_map_json": '{"mask_token": "<m>"}'}
    assert small(**old).encode("a<m>x b") == [*a, 263, *x, *b]  # no flags: what is named is special


@pytest.mark.parametrize("neighbour", "_\u203f\u0301\u0903\u200d\u2160\u24b6\U0001f130\u0663", ids=ascii)
def test_words_as_rust_knows_them(neighbour):
    """Joiners, marks, letters in circles: Python has not all of them."""
    flags = {"id": 263, "content": "<m>", "single_word": True}
    encoder = encoder_of(tokenizer_json=tokenizer_json(added=[flags]))
    assert 263 not in encoder.encode(f"{neighbour}<m>") + encoder.encode(f"<m>{neighbour}")
    assert all(encoder.encode(f"{other}<m>{other}").count(263) == 1 for other in "\u00b2\u00bd\u20ac.\u200b")


def test_blanks_as_rust_knows_them():
    """\\x1c to \\x1f are blanks for Python."""
    flags = {"id": 263, "content": "<m>", "lstrip": True, "rstrip": True}
    encoder = encoder_of(tokenizer_json=tokenizer_json(added=[flags]))
    for blank in "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000":
        assert encoder.encode(f"{blank * 2}<m>{blank}") == [263]
    for other in "\x1c\x1d\x1e\x1f\u180e\u200b\u2060\ufeff":
        assert len(encoder.encode(f"{other}<m>{other}")) > 2


def test_blanks_between_two_tokens_go_to_the_first():
    both = {"content": "\r", "id": 263, "lstrip": True, "rstrip": True}
    assert encoder_of(tokenizer_json=tokenizer_json(added=[both])).encode("\r\r") == [263]
    added = [{"id": 263, "content": "<m>", "rstrip": True}, {"id": 264, "content": " "}]
    assert encoder_of(tokenizer_json=tokenizer_json(added=added)).encode("<m>  <m>") == [263, 264, 264, 263]
    added[1] = {"id": 264, "content": "\t"}  # is found all the same, and what comes then is text again
    assert encoder_of(tokenizer_json=tokenizer_json(added=added)).encode("<m>\t the") == [263, 264, 258]


def test_the_flags_of_a_named_token_count():
    mask = {"mask_token": {"content": "<m>", "lstrip": True, "rstrip": False, "normalized": False}}
    encoder = small({**make_vocab(), "<m>": 263}, special_tokens_map_json=json.dumps(mask))
    assert encoder.encode("a <m>") == [*encoder.encode("a"), 263]


def test_added_tokens_that_the_vocabulary_has_already():
    encoder = encoder_of(tokenizer_json=tokenizer_json(added=[{"id": 260, "content": "ing"}]))
    assert encoder.encode("thing") == [*encoder.encode("th"), 260]


def test_a_space_before_the_first_word():
    """In every method alike."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    for encoder in (
        encoder_of(tokenizer_json=tokenizer_json(pre_tokenizer=byte_level)),
        encoder_of(tokenizer_json=tokenizer_json(), tokenizer_config_json='{"add_prefix_space": true}'),
        small(tokenizer_config_json='{"add_prefix_space": true}'),
    ):
        assert encoder.encode("the") == encoder.encode(" the") == [258]
        assert encoder.encode("\tthe") == encoder.encode(" \tthe")
        assert encoder.encode("the<|endoftext|>the") == [258, 262, 258]
        assert encoder.encode_batch(["the", " the", ""]) == [[258], [258], []]
        for name in ("encode_ordinary", "encode_to_numpy", "encode_ordinary_batch", "encode_with_unstable"):
            assert not hasattr(encoder, name)


def test_what_stands_before_and_after_every_text():
    """Tokenizer.json says it itself; in transformers, too, add_bos_token then changes nothing."""
    the = small().encode(" the")
    assert small(tokenizer_config_json='{"add_bos_token": true}').encode(" the") == [262, *the]
    named = small({**make_vocab(), "<s>": 263}, tokenizer_config_json='{"add_bos_token": true, "bos_token": "<s>"}')
    assert named.encode_batch([" the", "<s>", ""]) == [[263, *the], [263, 263], [263]]
    assert small(tokenizer_config_json='{"add_bos_token": true, "add_eos_token": true}').encode("") == [262, 262]
    assert encoder_of(tokenizer_json=tokenizer_json(post_processor=TEMPLATE)).encode(" the") == [262, 7, *the]
    after = {**TEMPLATE, "single": TEMPLATE["single"][::-1]}
    assert encoder_of(tokenizer_json=tokenizer_json(post_processor=after)).encode(" the") == [*the, 262, 7]
    uncertain = small(tokenizer_config_json='{"add_bos_token": true, "bos_token": "<s>"}')
    with pytest.raises(UserError, match="add_bos_token, but '<s>' has no id that is certain"):
        uncertain.encode("the")
    config = '{"add_bos_token": true}'
    assert encoder_of(tokenizer_json=tokenizer_json(), tokenizer_config_json=config).encode(" the") == the


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, lambda encoder: pickle.loads(pickle.dumps(encoder))])
def test_copies(copy_of):
    added = [{"id": 263, "content": "<m>", "lstrip": True, "single_word": True}]
    encoder = encoder_of(tokenizer_json=tokenizer_json(added=added, post_processor=TEMPLATE))
    twin, text = copy_of(encoder), "the <m>. <|endoftext|> the🤗"
    assert twin.encode(text) == encoder.encode(text)
    assert twin.decode(twin.encode(text)) == encoder.decode(encoder.encode(text))
    assert (twin.eot_token, twin.stop_ids, twin.never_ids) == (encoder.eot_token, encoder.stop_ids, encoder.never_ids)


def test_gaps_in_the_numbering_decode_to_nothing():
    encoder = small({**make_vocab(), "<x>": 270})
    assert encoder.n_vocab == 271
    assert encoder.decode([258, 265, 270]) == " the<x>"


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens_json": '{"<x>": 270}'},
        {"tokenizer_config_json": '{"added_tokens_decoder": {"270": {"content": "<x>"}}}'},
        {"tokenizer_config_json": '{"mask_token": "<x>"}'},
        {"special_tokens_map_json": '{"additional_special_tokens": ["<x>"]}'},
    ],
)
def test_an_added_token_whose_id_is_not_certain_is_no_part_of_a_text(files):
    """The tokenizers package counts on from the vocabulary, whatever id the files give."""
    encoder = small(**files)
    assert encoder.encode("a<x") == small().encode("a<x")
    with pytest.raises(UserError, match="'<x>': the (tokenizer's )?files .*; take it out"):
        encoder.encode("a<x>")


def test_tokens_without_a_row_in_the_model_are_refused(tmp_path):
    folder = write_folder(tmp_path / "m")
    (folder / "added_tokens.json").write_text('{"<pad>": 263}', encoding="utf-8")
    encoder, hparams, _ = utils.load_model(folder)
    assert hparams["n_vocab"] == 263
    with pytest.raises(ValueError, match="<pad>.*263.*262"):
        encoder.encode("a<pad>")


# ---- files


def test_tokenizer_json_alone_gives_the_same_ids(tales_files):
    vocab, merges = (
        json.loads(tales_files["vocab"]),
        [line.split(" ") for line in tales_files["merges"].split("\n")[1:] if line],
    )
    old, new = tokenizer_json(vocab, merges), json.loads(tokenizer_json(vocab, merges))
    new["model"]["merges"] = merges  # pairs, as newer versions write them
    new["post_processor"] = {**TEMPLATE, "single": [TEXT]}
    expected = encoder_of(**tales_files)
    for text in (old, json.dumps(new)):
        encoder = encoder_of(tokenizer_json=text)
        for string in random_strings(50, seed=1):
            assert encoder.encode(string) == expected.encode(string)


def test_merges_with_signs_and_windows_line_ends(tmp_path):
    merges = [*MERGES, ("#", "#"), ("##", "version")]
    vocab = {**make_vocab(merges[:-1]), "version": 264, "##version": 265}
    folder = write_folder(tmp_path / "m", {**CONFIG, "vocab_size": 266})
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_bytes(merges_txt(merges).replace("\n", "\r\n").encode())
    encoder = utils.load_model(folder)[0]
    assert encoder.encode("## the") == [vocab["##"], 258]


SPOILT = {
    "vocab no JSON": ({"vocab": "{"}, ["vocab.json"]),
    "vocab no object": ({"vocab": "[]"}, ["vocab.json"]),
    "a byte missing": (
        {"vocab": json.dumps({t: i for t, i in make_vocab().items() if t != "a"})},
        ["255 of the 256 bytes"],
    ),
    "ids twice": ({"vocab": json.dumps({**make_vocab(), "x y": 3})}, ["ids"]),
    "ids no numbers": ({"vocab": json.dumps({**make_vocab(), "x y": "3"})}, ["ids"]),
    "ids negative": ({"vocab": json.dumps({**make_vocab(), "x y": -3})}, ["ids"]),
    "merge of three": ({"merges": "#version: 0.2\nh e y\n"}, ["merges.txt", "line 2", "h e y"]),
    "merge of unknown tokens": ({"merges": "q q\n"}, ["merge 0 (q q)"]),
    "added tokens of another form": (
        {"tokenizer_config_json": '{"added_tokens_decoder": {"x": {"content": "a"}}}'},
        ["added tokens"],
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_files_are_refused_by_name(name):
    changes, words = SPOILT[name]
    with pytest.raises(ValueError) as caught:
        encoder_of(**{"vocab": json.dumps(make_vocab()), "merges": merges_txt(), **changes})
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TEMPLATE = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "S", "type_id": 0}}, TEXT], "pair": [TEXT, TEXT],
    "special_tokens": {"S": {"id": "S", "ids": [262, 7], "tokens": ["<|endoftext|>", "s"]}},
}  # fmt: skip
UNSUPPORTED = {
    "model Unigram": {"model": {"type": "Unigram", "vocab": [], "merges": []}},
    "pre_tokenizer Whitespace": {"pre_tokenizer": {"type": "Whitespace"}},
    "use_regex": {"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}},
    "normalizer": {"normalizer": {"type": "NFC"}},
    "post_processor BertProcessing": {"post_processor": {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}},
    "several post_processors": {"post_processor": {"type": "Sequence", "processors": [TEMPLATE, TEMPLATE]}},
    "a text twice": {"post_processor": {**TEMPLATE, "single": [*TEMPLATE["single"], TEXT]}},
    "byte_fallback": {"model": {"type": "BPE", "vocab": {}, "merges": [], "byte_fallback": True}},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_tokenizers_of_another_kind_are_refused_by_the_part_that_differs(name, monkeypatch):
    """Their weights can be used with ids all the same."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    encoder = encoder_of(tokenizer_json=tokenizer_json(**UNSUPPORTED[name]))
    assert encoder.n_vocab is None
    with pytest.raises(UserError, match=f"{name}: pip install tokenizers; or give ids"):
        encoder.encode("a")
    assert encoder.encode("1 2") == [1, 2]
    assert encoder.decode([1, 2]) == " 1 2"
    with pytest.raises(UserError, match="empty prompt"):
        encoder.eot_token  # noqa: B018


BROKEN = {
    "tokenizer.json": {"model": None},
    "merges": {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b", "c"]]}},
    "sequence item": {"model": {"type": "BPE", "vocab": {}, "merges": [[1, 2]]}},
    "id": {"added_tokens": [{"content": "<s>"}]},
    "is not in list": {"post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}}},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tokenizer_json_is_refused(name):
    with pytest.raises(ValueError, match=f"here: tokenizer.json: .*{name}|here: {name}"):
        encoder_of(tokenizer_json=tokenizer_json(**BROKEN[name]))


@pytest.mark.parametrize("kept", [0, 1, 400])
def test_a_list_of_merges_that_was_cut_is_refused(tales_files, kept):
    """It would split words where nobody else does, and every text would look right."""
    merges = "\n".join(tales_files["merges"].split("\n")[:kept])
    with pytest.raises(ValueError, match="the merges are not whole"):
        encoder_of(vocab=tales_files["vocab"], merges=merges)


def test_files_are_utf8_whatever_the_locale_says(tmp_path):
    """`ö` and `🤗` go through the command line, the vocabulary and the output in a plain C locale."""
    env = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNDEFAULTENCODING": "1"}
    result = command("tokenize", "ö🤗", env={**env, "PYTHONIOENCODING": ""})
    assert result.returncode == 0 and result.stderr == ""
    assert [int(line.split()[0]) for line in result.stdout.splitlines()] == utils.load_model()[0].encode("ö🤗")
    folder = write_folder(tmp_path / "m")
    (folder / "merges.txt").write_bytes(b"#version: 0.2\n\xff \xfe\n")
    with pytest.raises(ValueError, match="merges.txt"):
        utils.load_model(folder)
