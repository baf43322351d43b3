"""Files of prompts and texts, and jobs that are killed, changed and started again: the results of an undisturbed run.

Most tests run the commands in this process, with the bundled tokenizer and a tiny random model. The last part runs them
as processes of their own, on the bundled model, and kills them.
"""
import errno
import gc
import inspect
import io
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from forks import Process
from model_files import CONFIG, assert_one_line, command, write_folder
from tiny import ROOT, random_model

import gpt2_v1_batching as v1
import gpt2_v9_beam as newest
import jobs
import utils
from gpt2_io import files, prompts, results
from gpt2_io.scoring import score_texts, windows_of

pytestmark = pytest.mark.usefixtures("clean_environment")

PROMPTS = ["Once upon a time", "The fox", "A", "The king said to his daughter that", "There was", "An old man"]
DRAWN = ("--temperature", "1", "--n_tokens_to_generate", "3", "--seed", "7")
GREEDY = ("--n_tokens_to_generate", "3")
unix = pytest.mark.skipif(os.name == "nt", reason="files are another matter there")


@pytest.fixture(scope="module")
def encoder():
    return utils.load_model()[0]


def tiny(seed=0):
    return random_model(np.float32, n_vocab=2048, n_embd=12, n_head=3, n_layer=1, seed=seed)


FINGERPRINTS = []  # (what a fingerprint was made of, it)


def fingerprint_once(versions, encoder, hparams, params):
    """A fingerprint takes all tokens of the encoder; for the same objects it is made once."""
    for known, (same_encoder, same_params), made in FINGERPRINTS:
        if known == (versions, hparams) and same_encoder is encoder and same_params is params:
            return made
    made = results.fingerprint(versions, encoder, hparams, params)
    FINGERPRINTS.append(((versions, dict(hparams)), (encoder, params), made))
    return made


@pytest.fixture
def tiny_model(monkeypatch, encoder):
    """Commands in this process use a model that takes no time, and do not wait for the disk: no power is lost here."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(jobs, "fingerprint", fingerprint_once)
    hparams = {"n_head": 3, "n_ctx": 64, "n_vocab": 2048}
    monkeypatch.setattr(utils, "load_model", lambda *_, **__: (encoder, hparams, tiny().params))


@pytest.fixture
def run(edge, tiny_model, tmp_path):
    """Run a command in tmp_path: run(lines, *arguments) -> result. Results go to out.jsonl.

    lines: the file's bytes, or a list of prompts, texts and dicts.
    """

    def call(lines, *arguments, name="complete", out="out.jsonl"):
        if not isinstance(lines, bytes):
            if any(isinstance(line, dict) for line in lines):
                lines = [json.dumps(line if isinstance(line, dict) else {"prompt": line}) for line in lines]
            lines = "\n".join(lines).encode()
        (tmp_path / "in").write_bytes(lines)
        out = ["--out", tmp_path / out] if out else []
        return edge(jobs.COMMANDS, name, tmp_path / "in", *out, *arguments)

    return call


@pytest.fixture
def done(run, tmp_path):
    """As `run`, which has to end well -> its results."""

    def call(lines, *arguments, status=0, **options):
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        result = run(lines, *arguments, **options)
        assert result.returncode == status and (result.stderr == "" or status), result
        return read(tmp_path / "out.jsonl")

    return call


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def assert_quiet(result):
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


# ---- files of prompts


@pytest.fixture
def lines_of(tmp_path):
    """What is read of a file with these bytes -> what results repeat."""

    def call(data, **kinds):
        (tmp_path / "p").write_bytes(data)
        with prompts.open_prompts(str(tmp_path / "p")) as file:
            found = prompts.PromptFile(file, str(tmp_path / "p"), settings={"temperature": 0}, **kinds)
            lines = list(found.lines())
            assert [found.at(place, line.content) for place, line in lines] == [line for _, line in lines]
        return [line for _, line in lines]

    return call


def test_a_prompt_a_line(lines_of):
    expected = ["one", " two ", "é🤗", "1", "[1, 2]", '"q"', "# x", "--n", "a\tb", "c\u2028d", "e\x0cf", "{x}"]
    text = "\n".join(expected)
    for variant in (text, text + "\n", text.replace("\n", "\r\n"), text.replace("\n", "\n\n \n\t\r\n") + "\n\n"):
        for mark in (b"", b"\xef\xbb\xbf"):  # a byte order mark, as Windows writes
            assert [line.parts for line in lines_of(mark + variant.encode())] == [{"prompt": p} for p in expected]


def test_json_lines(lines_of):
    records = [
        {"prompt": "one"}, {"prompt": "two\nlines", "id": 7}, {"id": {"any": ["JSON", None]}, "prompt": "é🤗"},
        {"prompt": "", "id": "x"}, {"prompt": [1, 2], "more": 1.5}, {"note": "without"},
    ]  # fmt: skip
    for ascii_only, ending in itertools.product((True, False), ("\n", "\r\n", "\n\n")):
        data = ending.join(json.dumps(record, ensure_ascii=ascii_only) for record in records).encode()
        for variant in (data, b"\xef\xbb\xbf" + data + ending.encode()):
            assert [line.shown for line in lines_of(variant)] == records


def test_the_first_line_decides_what_a_file_is(lines_of):
    assert [line.parts["prompt"] for line in lines_of(b'Say:\n{"prompt": "a"}')] == ["Say:", '{"prompt": "a"}']
    assert [line.parts["prompt"] for line in lines_of(b'["prompt"]\n{broken')] == ['["prompt"]', "{broken"]


BAD_FILES = [
    (b"", ["no prompts"]),
    (b"\n \n\r\n", ["no prompts"]),
    (b"\xef\xbb\xbf", ["no prompts"]),
    (b"caf\xe9", ["line 1", "not UTF-8", "byte 3"]),
    ("UTF-16".encode("utf-16"), ["not UTF-8", "byte 0"]),
    (b'{"prompt": "a"\n{"prompt": "b"}\n{"prompt": "c"}\n', ["line 1", "JSON"]),
    (b"[Chorus]\nla la", ["line 1", "JSON"]),
    (b'[{"prompt": "a"}]', ["line 1", "array"]),
    (b'{"prompt": "a"}\nplain', ["line 2"]),
    (b'{"prompt": "a"}\n\n["b"]', ["line 3", "JSON object"]),
    (b'{"prompt": "a"}\n{"prompt": "b"', ["line 2"]),
    (b'{"prompt": "a"}\n{"prompt": "b", "prompt": "c"}', ["line 2", "'prompt'", "twice"]),
    (b'{"prompt": "a"}\n' + b"[" * 100_000, ["line 2"]),
    (b'{"prompt": "a", "id": ' + b"[" * 900 + b"]" * 900 + b"}", []),
    (b'{"prompt": "a", "id": NaN}', ["line 1", "NaN"]),
    (b'{"prompt": "a", "id": 1e999}', ["line 1", "1e999"]),
    (b'{"prompt": "a", "temperature": "hot"}', ["line 1", "temperature", "'hot'"]),
    (b'{"prompt": "a"}\n{"prompt": "a", "max_tokens": -1}', ["line 2", "max_tokens", "-1"]),
    (b'{"prompt": "a", "max_tokens": 3, "n_tokens_to_generate": 4}', ["line 1", "n_tokens_to_generate", "twice"]),
    (b'{"prompt": "a", "top_k": 1.5, "temperature": 1}', ["line 1", "top_k"]),
    (b'{"prompt": "a", "seed": [1]}', ["line 1", "seed"]),
    (b'{"prompt": "a", "stop": ["", "x"]}', ["line 1", "stop"]),
    (b'{"prompt": "a", "stop": 5}', ["line 1", "stop"]),
    (b'{"prompt": "a", "logprobs": 5}', ["line 1", "logprobs"]),
    (b'{"prompt": "a", "ignore_eos": "yes"}', ["line 1", "ignore_eos"]),
    (b'{"prompt": "a", "temperature": 0, "top_p": 0.5}', ["line 1", "top_p", "temperature 0"]),
    (b'{"prompt": "a", "top_p": 0.5}', ["line 1", "top_p", "temperature 0"]),
    (b'{"prompt": "a"}\n{"prompt": "a", "seed": 5}', ["line 2", "seed", "temperature 0"]),
    (b'{"prompt": "a", "presence_penalty": 0.5}', ["line 1", "presence_penalty"]),
    (b'{"prompt": "a", "n": 2}', ["line 1", "n 2"]),
    (b'{"prompt": "a", "n_beams": 2}', ["line 1", "n_beams 2"]),
    (b'{"prompt": "a", "no_repeat_ngram_size": -1}', ["line 1", "no_repeat_ngram_size"]),
    (b'{"prompt": "a", "min_new_tokens": "x"}', ["line 1", "min_new_tokens"]),
    (b'{"prompt": "a", "bad_words": 5}', ["line 1", "bad_words"]),
    (b'{"prompt": "a", "bad_words": ["a", ""]}', ["line 1", "bad_words"]),
    (b'{"prompt": "a", "bad_words": [["a"]]}', ["line 1", "bad_words"]),
    (b'{"prompt": "a", "logit_bias": [1]}', ["line 1", "logit_bias"]),
    (b'{"prompt": "a", "logit_bias": {"x": 1}}', ["line 1", "logit_bias"]),
    (b'{"prompt": "a", "logit_bias": {"1": true}}', ["line 1", "logit_bias"]),
    (b'{"prompt": "a", "model": "124M"}', ["line 1", "'124M'", "--model"]),
    (b'{"prompt": "a", "text": "mine"}', ["line 1", "text", "another name"]),
    (b'{"custom_id": "r", "body": {"prompt": "a", "top_p": 2}}', ["line 1", "top_p"]),
    (b'{"custom_id": "r", "prompt": "b", "body": {"prompt": "a"}}', ["line 1", "prompt is there twice"]),
]  # fmt: skip


@pytest.mark.parametrize("data, words", BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files_are_refused_by_line(run, tmp_path, data, words):
    result = run(data)
    if words:
        assert_one_line(result, tmp_path / "in", *words)
    else:  # what this Python can read and write again is fine
        assert result.returncode in (0, 2)
    assert result.returncode == 0 or not (tmp_path / "out.jsonl").exists()


def test_no_such_file_and_no_prompts_of_results(edge, tiny_model, tmp_path):
    for path, words in ((tmp_path / "none", "No such file"), (tmp_path, "directory")):
        assert_one_line(edge(jobs.COMMANDS, "complete", path), path, words)
    (tmp_path / "p").write_text("a", encoding="utf-8")
    assert_one_line(edge(jobs.COMMANDS, "complete", tmp_path / "p", "--out", tmp_path / "p"), "holds the prompts")
    assert (tmp_path / "p").read_text(encoding="utf-8") == "a"


def test_standard_input_is_read_twice_like_a_file(edge, tiny_model, monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
        return edge(jobs.COMMANDS, "complete", "-", *GREEDY)

    found = [json.loads(line)["prompt"] for line in give("--x\né🤗\r\n".encode()).stdout.splitlines()]
    assert found == ["--x", "é🤗"]
    assert_one_line(give(b"\xff"), "standard input", "not UTF-8")
    assert_one_line(give(b""), "standard input", "no prompts")
    monkeypatch.setattr(sys, "stdin", None)
    assert_one_line(edge(jobs.COMMANDS, "complete", "-"), "standard input is closed")


@unix
def test_a_pipe_with_a_name(edge, tiny_model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", 'printf "the\nin\n" > "$0"', tmp_path / "pipe"])
    result = edge(jobs.COMMANDS, "complete", tmp_path / "pipe", *GREEDY)
    assert writer.wait() == 0 and result.stdout.count("\n") == 2


@unix
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_devices_without_an_end_are_no_prompts(edge, tiny_model, device):
    assert_one_line(edge(jobs.COMMANDS, "complete", device), device)


def test_what_is_read_at_once_has_limits(edge, tiny_model, monkeypatch, tmp_path):
    for name, data in (("MAX_LINE", b"12345678"), ("MAX_COPY", b"1\n" * 100_000)):
        for limit, status in ((len(data), 0), (len(data) - 1, 2)):
            monkeypatch.setattr(prompts, name, limit)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
            if status == 0 and name == "MAX_COPY":
                continue  # a hundred thousand prompts take their time
            result = edge(jobs.COMMANDS, "complete", "-", *GREEDY)
            assert result.returncode == status and (status == 0 or "bytes" in result.stderr)
        monkeypatch.undo()
        monkeypatch.setattr(utils, "load_model", lambda *_, **__: pytest.fail("not needed"))


# ---- lines


def test_rows_fail_alone(done):
    """Too long, without a text, with tokens that the model lacks: an error in its place, and all others are done."""
    bad = [
        {"prompt": " a" * 80, "id": 1}, {"id": 2}, {"prompt": None}, {"prompt": 5}, {"prompt": []}, {"prompt": [2048]},
        {"prompt": [-1]}, {"prompt": [True]}, {"prompt": ["a"]}, {"prompt": {"a": 1}}, {"prompt": "a" + " " * 600_000},
        {"prompt": "a", "logit_bias": {"2048": 1}}, {"prompt": "a", "bad_words": [[2048]]},
    ]  # fmt: skip
    good = [{"prompt": prompt} for prompt in [*PROMPTS, ""]]
    lines = [line for pair in itertools.zip_longest(bad, good) for line in pair if line]
    found = done(lines, *GREEDY, status=1)
    assert len(found) == len(lines)
    for line, result in zip(lines, found):
        assert all(result.get(key) == line[key] for key in ("prompt", "id") if key in line)
        assert ("error" in result) == (line in bad) and ("ids" in result) == (line in good)
    errors = [result["error"] for result in found if "error" in result]
    assert "80 tokens" in errors[0] and "n_ctx is 64" in errors[0] and 'no "prompt"' in errors[1]


def test_the_last_line_says_how_many_failed(run, tmp_path):
    for _ in range(2):  # also when all is done already
        result = run([*PROMPTS, " a" * 80, " a" * 90], *GREEDY)
        assert result.returncode == 1 and result.stdout == ""
        assert result.stderr == f'2 of 8 prompts could not be done in {tmp_path / "out.jsonl"}: see "error" there\n'


def test_prompts_up_to_n_ctx_and_what_is_cut_from_the_left(done):
    """The last new token is not fed in."""
    long, ids = [5] * 40 + list(range(100, 164)), list(range(100, 164))
    for n in (1, 5):
        result, error = done([{"prompt": ids[n - 1 :]}, {"prompt": ids[n - 1 :] + [1]}], "-n", n, status=1)
        assert len(result["ids"]) == n and "n_ctx is 64" in error["error"]
        cut, fits = done([{"prompt": long}, {"prompt": ids[n - 1 :]}], "-n", n, "--truncate", "left")
        assert cut["ids"] == fits["ids"] == result["ids"]
        assert cut["n_left_out"] == 40 + n - 1 and "n_left_out" not in fits


def test_full_goes_on_until_n_ctx(done):
    lines = [{"prompt": [7] * n} for n in (1, 2, 2, 60, 63, 64)]
    for result, line in zip(done(lines, "-n", "full", "--ignore_eos", "--rows", 4), lines):
        assert len(result["ids"]) == max(64 - len(line["prompt"]), 1) and result["finish_reason"] == "length"
    (result,) = done([{"prompt": [7] * 99, "max_tokens": "full"}], "--truncate", "left", "--ignore_eos")
    assert len(result["ids"]) == 1


def test_a_line_s_settings_are_those_of_the_command_line(done, edge):
    """What a line asks for, and what the newest version writes with these flags; its seed is in the result."""
    flags = [
        {"temperature": 0.7, "seed": 3}, {"temperature": 1, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.5, "max_tokens": 2},
        {"n_tokens_to_generate": 7}, {"temperature": 1, "min_p": 0.1, "seed": 2**100}, {}, {"repetition_penalty": 1.5},
        {"max_new_tokens": 0}, {"temperature": 0, "seed": None}, {"logprobs": True}, {"ignore_eos": True},
        {"no_repeat_ngram_size": 1}, {"min_new_tokens": 4}, {"bad_words": " the"}, {"logit_bias": {"13": 50.5}},
    ]  # fmt: skip
    found = done([{"prompt": "The fox", "id": n, **line} for n, line in enumerate(flags)], "-n", 4, "--rows", 3)
    for line, result in zip(flags, found):
        line = {"n_tokens_to_generate": 4, **line, **({"seed": result["seed"]} if "seed" in result else {})}
        names = {"max_tokens": "n_tokens_to_generate", "max_new_tokens": "n_tokens_to_generate"}
        line = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in line.items()}
        arguments = [f"--{names.get(key, key)}={value}" for key, value in line.items() if value is not None]
        expected = json.loads(edge(newest.main, "The fox", "--json", *arguments).stdout)
        del expected["index"]
        assert {key: result.get(key) for key in expected} == expected
        assert line.get("seed") in (None, result.get("seed"))


def test_what_a_line_rules_out_does_not_come(done):
    plain, *ruled = done(
        [{"prompt": "The fox", **line} for line in ({}, {"bad_words": [[2], " the"]}, {"logit_bias": {"2": -100}})]
    )
    banned = {*plain["ids"]}
    words = done([{"prompt": "The fox", "bad_words": [[i] for i in banned]}])[0]
    bias = done([{"prompt": "The fox", "logit_bias": {str(i): -100 for i in banned}}])[0]
    assert words["ids"] == bias["ids"] and not banned & {*words["ids"]} and len(ruled) == 2


@pytest.mark.parametrize("rows", [1, 6, 64])
def test_beams_of_a_file_are_those_of_the_command_line(done, edge, rows):
    lines = [{"prompt": prompt} for prompt in (*PROMPTS, PROMPTS[0])]
    lines.append({"prompt": "A", "max_tokens": 2, "logit_bias": {"13": 50}})
    flags = ("--n_beams=3", "--n_best=2", "--length_penalty=0.5", "--early_stopping=never", "-n", "4")
    found = done(lines, *flags, "--rows", rows)
    assert [result["sample"] for result in found] == [0, 1] * len(lines)
    for line, best in zip(lines, zip(found[::2], found[1::2])):
        own = [f"-n={line['max_tokens']}", '--logit_bias={"13": 50}'] if "max_tokens" in line else []
        expected = edge(newest.main, line["prompt"], "--json", *flags, *own).stdout.splitlines()
        for result, other in zip(best, map(json.loads, expected)):
            assert {key: result[key] for key in other if key != "index"} == {k: other[k] for k in other if k != "index"}
    assert found[0]["score"] >= found[1]["score"] and found[0]["ids"] != found[1]["ids"]
    assert found[-2]["ids"] == [13, 13]


def test_rules_of_a_job_are_checked_before_it_begins(run, tmp_path):
    for flag in ('--logit_bias={"2048": 1}', "--min_new_tokens=-1", "--n_beams=2000"):
        assert_one_line(run(PROMPTS, flag), flag[2:].partition("=")[0])
        assert not [*tmp_path.glob("out*")]


def test_where_fewer_beams_end_than_are_asked_for(done):
    """Nothing is to be generated: there is one continuation, the empty one."""
    best, second = done([{"prompt": "A"}], "--n_beams=3", "--n_best=2", "-n", "0")
    assert (best["ids"], best["score"]) == ([], 0) and second["ids"] == [] and "score" not in second


@pytest.mark.parametrize("name", ["temperature", "top_k", "repetition_penalty", "seed", "stop", "logprobs"])
def test_what_goes_without_beams_only(run, tmp_path, name):
    value = {"stop": "a", "logprobs": True}.get(name, 2)
    assert_one_line(run(PROMPTS, "--n_beams=3", f"--{name}={value}"), f"{name} goes without beams")
    line = {"prompt": "a", name: value}
    assert_one_line(run([line], "--n_beams=3"), tmp_path / "in", "line 1", f"{name} goes without beams")


def test_a_line_of_openai_s_batches(done):
    body = {"model": "gpt-3.5-turbo-instruct", "prompt": "The fox", "max_tokens": 2, "temperature": 0, "n": 1}
    body["user"] = "u"
    line = {"custom_id": "request-1", "method": "POST", "url": "/v1/completions", "body": body}
    (result,) = done([line])
    plain = done([{"prompt": "The fox", "max_tokens": 2}])[0]
    rest = {"model": "gpt-3.5-turbo-instruct", "user": "u"}
    assert list(result.items())[:5] == [*list(line.items())[:3], ("body", rest), ("prompt", "The fox")]
    assert result["ids"] == plain["ids"] and len(result["ids"]) == 2


def test_what_is_unknown_is_handed_through_and_settings_are_not(done):
    line = {"label": {"é": [1, None]}, "prompt": "a", "max_tokens": 1, "stop": None, "id": "x", "top_k": None}
    (result,) = done([line])
    assert list(result) == ["label", "prompt", "id", "ids", "text", "finish_reason", "key", "check"]


def test_flags_that_change_nothing(run, done):
    """At temperature 0, unless a line has another."""
    for flag in ("--top_p=0.5", "--top_k=3", "--min_p=0.1", "--n_samples=2", "--seed=1"):
        assert_one_line(run(PROMPTS, flag), flag[2:].split("=")[0], "--temperature 1")
    done([{"id": 1}, {"prompt": "a", "temperature": 0}], "--temperature=1", "--top_k=3", status=1)  # no line draws
    drawn, greedy = done([{"prompt": "a", "temperature": 1}, {"prompt": "a"}], "--top_k=3", "--seed=1")
    assert "seed" in drawn and "seed" not in greedy


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--n_tokens_to_generate", "ten"], ["whole number or full", "ten"]), (["-n", "-1"], ["n_tokens_to_generate"]),
        (["--truncate", "right"], ["left"]), (["--rows", "0"], ["rows must"]), (["--batch_size", "x"], ["batch_size"]),
        (["--stop", ""], ["--stop"]), (["--prompts_file", "x"], ["--prompts_file"]), (["--seed", "-1"], ["seed"]),
        (["--max_new_tokens", "3"], ["--n_tokens_to_generate"]), (["--n_samples", "0"], ["n_samples"]),
        (["--temperature", "-1"], ["temperature"]), (["--batch_size", "0"], ["batch_size"]),
        (["--rows", "2", "--batch_size", "3"], ["mean the same"]),
        (["--logit_bias", '{"13": -5, "013": 3}'], ["logit_bias", "twice"]),
    ],
)  # fmt: skip
def test_flags_that_make_no_sense(run, flags, words):
    assert_one_line(run(PROMPTS, *flags), *words)


# ---- results


def test_texts_as_people_grep_them(done, tmp_path):
    """UTF-8 without escapes, but for control characters and halves of surrogate pairs, which are no UTF-8."""
    lines = [{"prompt": "é🤗\u2028", "ä": "ö"}, {"prompt": "half", "id": "\udc00\ud800"}, {"prompt": "\x00\n"}]
    found = done(lines, *GREEDY)
    assert [{key: result[key] for key in line} for line, result in zip(lines, found)] == lines
    data = (tmp_path / "out.jsonl").read_bytes()
    assert "é🤗\u2028".encode() in data and '"ä": "ö"'.encode() in data
    assert sorted(set(re.findall(rb"\\u....", data))) == [rb"\u0000", rb"\ud800", rb"\udc00"]
    assert "surrogates" in done([{"prompt": "half \ud800"}], *GREEDY, status=1)[0]["error"]


def test_ids_and_logprobs_end_where_the_text_ends(run, done, monkeypatch):
    """What was cut is apart, whether the stop string begins with a token, in one, or in the first."""
    (whole,) = done(["The fox"], "-n", 8, "--logprobs", "--ignore_eos")
    model = jobs.Model("tales", "models")
    pieces = [model.encoder.decode_bytes([i]).decode("utf-8", "replace") for i in whole["ids"]]
    n = next(n for n in range(2, 7) if len(pieces[n]) > 1 and pieces[n] not in "".join(pieces[:n]))
    for stop, n_kept in ((pieces[n], n), (pieces[n][1:], n + 1), (pieces[0], 0)):
        (cut,) = done([{"prompt": "The fox", "stop": stop}], "-n", 8, "--logprobs", "--ignore_eos")
        assert cut["text"] == whole["text"][: whole["text"].index(stop)] and cut["finish_reason"] == "stop"
        n_kept = min(k for k in range(9) if len("".join(pieces[:k])) >= len(cut["text"]))
        assert cut["ids"] == whole["ids"][:n_kept] and cut["logprobs"] == whole["logprobs"][:n_kept]
        assert cut["logprob"] == sum(cut["logprobs"])
        n_made = n_kept + len(cut["cut_ids"])
        assert cut["ids"] + cut["cut_ids"] == whole["ids"][:n_made]
        assert cut["logprobs"] + cut["cut_logprobs"] == whole["logprobs"][:n_made]
        assert cut["text"] + cut["cut_text"] == "".join(pieces[:n_made]) and cut["cut_text"].startswith(stop)


def test_a_stop_string_as_a_shell_passes_it(done, encoder, monkeypatch):
    r"""--stop "\n" is a line break."""
    made = encoder.encode("one\ntwo")

    def generate(prompts, *_, on_token, on_end, **settings):
        for token_id in made:
            if on_token(0, token_id, None):
                break
        on_end(0, made)

    monkeypatch.setattr(newest, "generate", generate)
    (result,) = done(["a"], "--stop", r"\n")
    assert (result["text"], result["cut_text"], result["finish_reason"]) == ("one", "\n", "stop")


@pytest.mark.parametrize("flags", [DRAWN, GREEDY, [*DRAWN, "--n_samples", "2"]], ids=["drawn", "greedy", "samples"])
def test_results_do_not_depend_on_the_batch_or_the_order(done, flags):
    """To the bit, in the order of the prompts."""
    lines = [{"prompt": prompt, "id": n} for n, prompt in enumerate([*PROMPTS, *PROMPTS[:3]])]
    expected = done(lines, *flags)
    for rows in (2, 100):
        assert done(lines, *flags, "--rows", rows) == expected
        shuffled = random.Random(rows).sample(lines, len(lines))
        order = [line["id"] for line in shuffled for _ in range(len(expected) // len(lines))]
        found = done(shuffled, *flags, "--batch_size", rows)
        assert [result["id"] for result in found] == order
        assert sorted(found, key=lambda result: result["id"]) == expected


def test_seeds_come_from_what_a_row_is(done):
    """Its id, or its text and how many equal ones came before; never its place."""

    def seeds(lines, *flags):
        return [result["seed"] for result in done(lines, *DRAWN[:-2], *flags)]

    a, b, a2 = seeds(["a", "b", "a"])
    assert len({a, b, a2}) == 3
    assert seeds(["b", "a"]) == [b, a] and seeds(["a", "a", "b", "a"])[:3] == [a, a2, b]
    one, two = seeds([{"prompt": "a", "id": 1}, {"prompt": "a", "id": 2}])
    assert one != two and seeds([{"prompt": "x", "id": 2}, {"prompt": "y", "id": 1}]) == [two, one]
    assert seeds(["a"], "--seed", "0") == [a] != seeds(["a"], "--seed", "1")
    assert max(seeds([str(n) for n in range(50)])) < 2**53


# ---- broken off, changed, and started again


def counting(monkeypatch):
    """Count the prompts that are completed -> a list of the lengths of batches."""
    batches, generate = [], newest.generate

    def count(prompts, *arguments, **settings):
        batches.append(len(prompts))
        return generate(prompts, *arguments, **settings)

    monkeypatch.setattr(newest, "generate", count)
    return batches


def test_only_what_is_missing_is_made(run, monkeypatch, tmp_path):
    """Prompts removed, added, in another order, with other labels: nothing that is there is made again or changes."""
    lines = [{"prompt": prompt, "id": n} for n, prompt in enumerate(PROMPTS)]
    run(lines, *DRAWN)
    before = {result["id"]: result for result in read(tmp_path / "out.jsonl")}
    batches = counting(monkeypatch)
    assert_quiet(run(lines, *DRAWN, "--rows", 1))
    assert batches == []
    lines = [{**lines[4], "label": "new"}, {"prompt": "new", "id": "n"}, *lines[3::-1], {"prompt": "new", "id": "m"}]
    assert_quiet(run(lines, *DRAWN, "--rows", 1))
    assert batches == [2]
    found = read(tmp_path / "out.jsonl")
    assert [{key: result[key] for key in line} for line, result in zip(lines, found)] == lines
    for result in found:
        result.pop("label", None)
        assert result["id"] in ("n", "m") or result == before[result["id"]]


def test_equal_prompts_are_made_once_where_nothing_is_drawn(done, monkeypatch, tmp_path):
    batches = counting(monkeypatch)
    found = done(["The fox", "A", "The fox", "The fox"], *GREEDY, "--rows", 1)
    assert batches == [2] and found[0] == found[2] == found[3] != found[1]


@pytest.mark.parametrize("flags", [GREEDY, [*DRAWN, "--n_samples", "2"]], ids=["greedy", "samples"])
def test_wherever_the_part_was_cut_the_job_ends_with_the_same_bytes(run, tmp_path, monkeypatch, flags):
    """As a kill may cut it: in the first line, within a line, between two, and before the last step."""
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    lines = [*PROMPTS[:3], " a" * 99, "A"]
    parts = []
    finish = results.Results.finish
    monkeypatch.setattr(results.Results, "finish", lambda *a: (parts.append(part.read_bytes()), finish(*a)))
    assert run(lines, *flags).returncode == 1
    whole, cut = out.read_bytes(), parts[0]
    assert not part.exists() and cut.count(b"\n") > 3
    ends = [match.end() for match in re.finditer(b"\n", cut)]
    for size in [0, 7, len(cut) // 2, ends[0], ends[1] + 1, ends[2] - 1, ends[-1]]:
        for old in (None, whole) if size % 5 == 0 else (None,):
            out.unlink() if old is None and out.exists() else None
            part.write_bytes(cut[:size])
            (tmp_path / "out.jsonl.new").write_bytes(whole[:size])
            result = run(lines[::-1] if size % 2 else lines, *flags, "--rows", 1 + size % 3)
            assert result.returncode == 1 and result.stderr.count("\n") == 1, size
            if size % 2:
                run(lines, *flags)
            assert out.read_bytes() == whole and sorted(os.listdir(tmp_path)) == ["in", "out.jsonl"]


def at_each_end(monkeypatch, function):
    """Call function() whenever a continuation has ended and the job has been told so."""
    complete_batch = jobs.complete_batch

    def watch(*arguments):
        *arguments, on_end = arguments

        def end(row, ids):
            on_end(row, ids)
            function()

        complete_batch(*arguments, end)

    monkeypatch.setattr(jobs, "complete_batch", watch)


def test_results_are_on_the_disk_as_many_at_a_time_as_run_at_once(run, tmp_path, monkeypatch):
    """Before any other goes on: also in the middle of a batch, and what is left at the end of one."""
    part, synced, seen = tmp_path / "out.jsonl.part", [], []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), synced.append(os.fstat(file).st_size)))

    def look():
        seen.append(part.read_bytes().count(b"\n") - 1)
        assert synced[-1] == part.stat().st_size

    at_each_end(monkeypatch, look)
    batches = counting(monkeypatch)
    lines = [{"prompt": "a", "id": n, "max_tokens": n % 4} for n in range(19)]
    assert_quiet(run(lines, *DRAWN, "--rows", 2))
    assert batches == [16, 3] and seen == [n // 2 * 2 for n in range(1, 20)]


def test_a_text_that_ends_gives_its_row_to_the_next(run, monkeypatch):
    """So that a job takes as many steps as its tokens need, not as many as the longest text of each batch."""
    steps, gpt2 = [], newest.gpt2
    monkeypatch.setattr(newest, "gpt2", lambda *a, **k: (steps.append(1), gpt2(*a, **k))[1])
    lines = [{"prompt": [5], "id": n, "max_tokens": 8 if n == 0 else 1} for n in range(8)]
    assert_quiet(run(lines, *DRAWN, "--ignore_eos", "--rows", 2))
    assert len(steps) <= 8


def test_results_leave_memory_when_they_are_written(run, monkeypatch):
    def n_alive():
        return sum(type(x) is dict and "finish_reason" in x for x in gc.get_objects())

    gc.collect()
    alive, before = [], n_alive()
    at_each_end(monkeypatch, lambda: alive.append(n_alive() - before))
    run([f"a {n}" for n in range(4)], *GREEDY, "--rows", 2)
    assert len(alive) == 4 and max(alive) <= 2


@pytest.mark.parametrize("error, status", [(KeyboardInterrupt, 130), (MemoryError, 2), (OSError("x"), 2)], ids=str)
def test_whatever_ends_a_job_the_same_command_goes_on(run, tmp_path, monkeypatch, error, status):
    """After running out of memory with a smaller batch."""
    assert_quiet(run(PROMPTS, *DRAWN, out="undisturbed"))
    n_ended = []

    def fail():
        n_ended.append(1)
        if len(n_ended) == 5:
            raise error

    at_each_end(monkeypatch, fail)
    result = run(PROMPTS, *DRAWN, "--rows", 2)
    assert result.returncode == status and ("--rows" in result.stderr) == (error is MemoryError)
    assert not (tmp_path / "out.jsonl").exists()
    batches = counting(monkeypatch)
    assert_quiet(run(PROMPTS, *DRAWN, "--rows", 1))
    assert batches == [2]  # of the six, four were on the disk
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "undisturbed").read_bytes()


CHANGES = [
    ("temperature", "0.5"), ("top_k", "5"), ("top_p", "0.9"), ("min_p", "0.1"), ("repetition_penalty", "1.1"),
    ("seed", "8"), ("n_tokens_to_generate", "4"), ("n_samples", "2"), ("stop", "x"), ("ignore_eos", "True"),
    ("logprobs", "True"), ("no_repeat_ngram_size", "2"), ("min_new_tokens", "1"), ("bad_words", "x"),
    ("logit_bias", '{"1": 2}'),
]  # fmt: skip
BEAM_CHANGES = [("n_beams", "3"), ("length_penalty", "0"), ("early_stopping", "never"), ("bad_words", "x")]
NOT_IN_KEYS = {"rows", "batch_size", "file", "out", "model", "models_dir", "tokenizer", "truncate", "parquet"}
NOT_IN_KEYS |= {"ray", "ray_address", "actors"}


def test_results_of_another_job_are_refused_and_kept(run, tmp_path, monkeypatch):
    """Other settings, other weights, another version: nothing is mixed."""
    (tmp_path / "out.jsonl").unlink(missing_ok=True)
    run(PROMPTS, *DRAWN)
    before = (tmp_path / "out.jsonl").read_bytes()
    flags = {*inspect.signature(jobs.complete).parameters}
    assert flags == {flag for flag, _ in [*CHANGES, *BEAM_CHANGES, ("n_best", "1")]} | NOT_IN_KEYS
    for flag, value in CHANGES:
        result = run(PROMPTS, *DRAWN, f"--{flag}={value}")
        if flag == "n_samples":
            assert_quiet(result)  # the first sample is there
            found = read(tmp_path / "out.jsonl")[::2]
            assert [result.pop("sample") for result in found] == [0] * 6
            assert found == [*map(json.loads, before.splitlines())]
            (tmp_path / "out.jsonl").write_bytes(before)
        else:
            assert_one_line(result, tmp_path / "out.jsonl", "none of its 6 results", "--out")
    with monkeypatch.context() as other:
        loaded = utils.load_model()
        other.setattr(utils, "load_model", lambda *_, **__: (*loaded[:2], tiny(seed=1).params))
        assert_one_line(run(PROMPTS, *DRAWN), "none of its 6 results")
    for version in (newest, jobs.Model.version):
        with monkeypatch.context() as other:
            other.setattr(version, "__name__", "gpt2_v4_sampling")
            assert_one_line(run(PROMPTS, *DRAWN), "none of its 6 results")
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert_quiet(run(PROMPTS, *DRAWN))


def test_beams_of_another_job_are_refused_and_kept(run, tmp_path):
    job = ("--n_beams=4", "--n_best=2", "-n", "3")
    run(PROMPTS, *job)
    before = (tmp_path / "out.jsonl").read_bytes()
    for flag, value in [*BEAM_CHANGES, ("n_best", "3")]:
        assert_one_line(run(PROMPTS, *job, f"--{flag}={value}"), tmp_path / "out.jsonl", "none of its 12 results")
    (tmp_path / "out.jsonl").write_bytes(b"".join(before.splitlines(keepends=True)[1:7]))
    assert_quiet(run(PROMPTS, *job))
    assert (tmp_path / "out.jsonl").read_bytes() == before


def damaged(lines):
    """Results that somebody edited -> name, lines."""
    first, second, *rest = lines
    yield "another key", [json.dumps({**json.loads(first), "key": json.loads(second)["key"]}).encode() + b"\n", *rest]
    yield "another text", [first.replace(b'"text": "', b'"text": "Once'), second, *rest]
    yield "another id", [re.sub(rb'"ids": \[\d', b'"ids": [9', first), second, *rest]
    yield "cut", [first[:50] + b"\n", second, *rest]
    yield "the last one cut", [first, second, *rest[:-1], rest[-1][:-1]]
    yield "no JSON", [first, b"?\n", *rest]
    yield "no UTF-8", [first, b"\xff\n", *rest]
    yield "a value", [b"null\n", second, *rest]
    yield "twice", [first, second, first, *rest]
    yield "gone", [second, *rest]


@pytest.mark.parametrize("where", ["out.jsonl", "out.jsonl.part"])
def test_lines_that_were_edited_cut_or_are_there_twice_are_noticed_and_made_again(run, tmp_path, where):
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    assert_quiet(run(PROMPTS, *DRAWN))
    whole = out.read_bytes()
    for name, lines in damaged(whole.splitlines(keepends=True)):
        out.unlink()
        head = results.FIRST_LINE if where == part.name else b""
        (tmp_path / where).write_bytes(head + b"".join(lines))
        result = run(PROMPTS, *DRAWN)
        is_silent = name == "gone" or (name == "the last one cut" and head)  # as after a kill
        assert result.returncode == 0 and result.stderr.count("\n") == (not is_silent), name
        assert is_silent or (where in result.stderr and re.search(r"line \d", result.stderr))
        assert out.read_bytes() == whole and not part.exists(), name


def test_a_results_file_whose_lines_were_mixed_up(run, tmp_path):
    """Line 2 gone and line 1 said to be another's: noticed, whatever the numbers in it."""
    run([{"prompt": prompt, "index": n} for n, prompt in enumerate(PROMPTS)], *DRAWN)
    whole = (tmp_path / "out.jsonl").read_bytes()
    first, _, *rest = whole.splitlines(keepends=True)
    (tmp_path / "out.jsonl").write_bytes(b"".join([first.replace(b'"index": 0', b'"index": 1'), *rest]))
    run([{"prompt": prompt, "index": n} for n, prompt in enumerate(PROMPTS)], *DRAWN)
    assert (tmp_path / "out.jsonl").read_bytes() == whole


OLD = b'{"index": 0, "prompt": "A", "ids": [1], "text": "x", "finish_reason": "length"}\n'  # as version 0.1 wrote


@pytest.mark.parametrize("data", [b"notes of mine", b"notes\nof mine\n", b'{"prompt": "A"}\n', b"\n", b"\0", OLD])
@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.part"])
def test_a_file_that_is_no_job_s_is_left_as_it_is(run, tmp_path, data, name):
    (tmp_path / name).write_bytes(data)
    assert_one_line(run(PROMPTS, *DRAWN), tmp_path / name, "--out")
    assert (tmp_path / name).read_bytes() == data


def test_prompts_that_change_while_the_job_runs(run, tmp_path, monkeypatch):
    complete_batch = jobs.complete_batch

    def change(*arguments):
        with open(tmp_path / "in", "r+b") as file:
            file.write(b"X")
        complete_batch(*arguments)

    monkeypatch.setattr(jobs, "complete_batch", change)
    assert_one_line(run(PROMPTS, *GREEDY), tmp_path / "in", "changed while the job ran")
    assert not (tmp_path / "out.jsonl").exists()


# ---- disks, folders, locks


def test_of_two_jobs_on_one_file_the_second_is_refused(run, tmp_path, monkeypatch):
    complete_batch, second = jobs.complete_batch, []

    def start_another(*arguments):
        if not second:
            second.append(None)
            second[0] = run(PROMPTS, *GREEDY)
        complete_batch(*arguments)

    monkeypatch.setattr(jobs, "complete_batch", start_another)
    assert_quiet(run(PROMPTS, *GREEDY))
    assert_one_line(second[0], "out.jsonl.part", "another job is writing it")
    assert len(read(tmp_path / "out.jsonl")) == 6


@unix
def test_two_names_of_one_file(run, tmp_path, monkeypatch):
    """A link stays a link, and a job on it keeps out one on its target."""
    (tmp_path / "link").symlink_to(tmp_path / "out.jsonl")
    complete_batch, second = jobs.complete_batch, []

    def start_another(*arguments):
        second.append(run(PROMPTS, *GREEDY))
        complete_batch(*arguments)

    monkeypatch.setattr(jobs, "complete_batch", start_another)
    assert_quiet(run(PROMPTS, *GREEDY, "--rows", 99, out="link"))
    assert_one_line(second[0], "another job is writing it")
    assert (tmp_path / "link").is_symlink() and len(read(tmp_path / "out.jsonl")) == 6


@unix
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_a_file_system_without_locks(run, tmp_path, monkeypatch, number):
    """Another lock is used, which also keeps out a second job, and which a killed one does not leave for ever."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    complete_batch, second = jobs.complete_batch, []

    def start_another(*arguments):
        second.append(run(PROMPTS, *GREEDY))
        complete_batch(*arguments)

    monkeypatch.setattr(jobs, "complete_batch", start_another)
    assert_quiet(run(PROMPTS, *GREEDY, "--rows", 99))
    assert_one_line(second[0], "out.jsonl.part.lock", "another job", "no locks", str(os.getpid()), "remove this file")
    assert sorted(os.listdir(tmp_path)) == ["in", "out.jsonl"]
    monkeypatch.undo()


@unix
def test_a_lock_file_that_a_kill_has_left(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lock = tmp_path / "lock"
    lock.write_text(f"{ended.pid} on {results.socket.gethostname()}", encoding="utf-8")
    with results.lock_by_file(str(lock)):
        assert lock.read_text(encoding="utf-8").startswith(f"{os.getpid()} on ")
    assert not lock.exists()
    for owner in (f"{ended.pid} on another machine", "", "?"):
        lock.write_text(owner, encoding="utf-8")
        with pytest.raises(utils.UserError, match="remove this file"), results.lock_by_file(str(lock)):
            pass


@unix
def test_a_lock_that_fails_otherwise_is_said_as_it_is(run, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.fcntl, "flock", fail)
    assert_one_line(run(PROMPTS, *GREEDY), "Input/output error")


class FullDisk:
    """A part file on a disk that is full from some size on, and writes what fits."""

    def __init__(self, file, size):
        self.file, self.size = file, size

    def write(self, data):
        room = self.size - os.fstat(self.file.fileno()).st_size
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data[:room])

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_is_one_line_and_the_job_goes_on_later(run, tmp_path, monkeypatch):
    """In the middle of a batch, at its end, and before the first."""
    assert_quiet(run(PROMPTS, *DRAWN, out="undisturbed"))
    init = results.Results.__init__
    for size in (20, 300, 500, 700):
        with monkeypatch.context() as disk:
            fill = lambda self, out, part, *more, n=size: init(self, out, FullDisk(part, n), *more)  # noqa: E731
            disk.setattr(results.Results, "__init__", fill)
            assert_one_line(run(PROMPTS, *DRAWN, "--rows", 2), "No space left")
        assert not (tmp_path / "out.jsonl").exists() and (tmp_path / "out.jsonl.part").stat().st_size == size
        assert_quiet(run(PROMPTS, *DRAWN))
        assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "undisturbed").read_bytes()
        (tmp_path / "out.jsonl").unlink()


def test_a_disk_that_is_full_at_the_end(run, tmp_path, monkeypatch):
    """Nothing is lost: neither what is new, nor the file as it was."""
    run(PROMPTS[:3], *DRAWN)
    before = (tmp_path / "out.jsonl").read_bytes()
    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        assert_one_line(run(PROMPTS, *DRAWN), "No space left")
    assert (tmp_path / "out.jsonl").read_bytes() == before
    batches = counting(monkeypatch)
    assert_quiet(run(PROMPTS, *DRAWN))
    assert batches == [] and len(read(tmp_path / "out.jsonl")) == 6


def test_what_stands_where_results_are_put_in_order_is_not_overwritten(run, tmp_path):
    (tmp_path / "out.jsonl.new").write_text("mine", encoding="utf-8")
    assert_one_line(run(["a"]), "out.jsonl.new", "move it away")
    assert (tmp_path / "out.jsonl.new").read_text(encoding="utf-8") == "mine" and not (tmp_path / "out.jsonl").exists()
    (tmp_path / "out.jsonl.new").unlink()
    (tmp_path / "out.jsonl.new").mkdir()
    assert_one_line(run(["a"]), "out.jsonl.new", "move it away")


@unix
def test_a_folder_that_nobody_may_write_to_and_one_that_is_not_there(edge, tiny_model, tmp_path):
    (tmp_path / "p").write_text("a", encoding="utf-8")
    (tmp_path / "folder").mkdir(mode=0o500)
    folder = tmp_path / "folder" if os.geteuid() else "/sys"  # the system's own is closed to root too
    places = {f"{folder}/o": "ermission", tmp_path / "none" / "o": "No such file", tmp_path: "not a plain file"}
    for out, words in places.items():
        assert_one_line(edge(jobs.COMMANDS, "complete", tmp_path / "p", "--out", out, *GREEDY), out, words)
    assert sorted(os.listdir(tmp_path)) == ["folder", "p"]


# ---- on Ray, which is not there; test_ray.py has the rest


def test_without_ray_a_job_on_ray_is_refused_in_one_line(run, monkeypatch, tmp_path):
    """And no other job needs it."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ray", "pyarrow") or "ray_jobs" in name]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("ray", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)  # so that an import of it fails
    assert_one_line(run(PROMPTS, "--ray"), "--ray needs Ray", "pip install 'ray[data]>=2.50'")
    assert sorted(os.listdir(tmp_path)) == ["in"]
    assert_quiet(run(PROMPTS, *GREEDY))


@pytest.mark.parametrize("flag", [("--actors", 2), ("--ray_address", "auto"), ("--parquet",)])
def test_flags_of_jobs_on_ray_are_refused_without_it(run, flag):
    assert_one_line(run(PROMPTS, *flag), flag[0], "give --ray too")


# ---- seen while it runs


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_shows_prompts_speed_time_left_and_errors(run, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run([*PROMPTS, " a" * 99], *GREEDY, "--rows", 1)
    assert re.search(r" 7/7 \[\d\d:\d\d<\d\d:\d\d,.*, \d+ tokens/s, 1 errors\]", terminal.getvalue())
    assert "generating" not in terminal.getvalue()  # one bar


def test_without_a_terminal_a_line_every_30_seconds(run, monkeypatch):
    """By a clock of the test's own that goes on by 10 seconds with each token."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(results.time, "monotonic", lambda: next(clock))
    err = run([*PROMPTS, " a" * 99], *GREEDY, "--rows", 1).stderr.splitlines()
    assert err[0].startswith("1 of 7 prompts, 0 tokens/s, unknown time left, 1 errors") and len(err) > 5
    assert re.fullmatch(r"3 of 7 prompts, \d+ tokens/s, \d+:\d\d left, 1 errors", err[3]) or "of 7 prompts" in err[3]


# ---- score


def naive(ids, first):
    """Log-probabilities of ids[first:] by v1 in float64, with softmax spelt out."""
    model = random_model(np.float64, n_vocab=2048, n_embd=12, n_head=3, n_layer=1)
    logits = v1.gpt2([ids[:-1]], **model.params, n_head=model.n_head)[0]
    return [float(row[i] - np.log(np.sum(np.exp(row)))) for row, i in zip(logits[first - 1 :], ids[first:])]


@pytest.fixture
def score(run, tmp_path):
    """-> results, total."""

    def call(lines, *flags, status=0, out="out.jsonl"):
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        result = run(lines, *flags, name="score", out=out)
        assert result.returncode == status, result
        return read(tmp_path / "out.jsonl"), json.loads(result.stdout.splitlines()[-1])

    return call


def test_texts_are_scored_from_their_first_word(score, encoder):
    found, total = score([{"text": text} for text in [*PROMPTS, "", "<|endoftext|>A"]], status=1)
    assert found[-2]["error"].startswith("nothing to score") and found[-1]["logprobs"] == found[2]["logprobs"]
    for text, result in zip(PROMPTS, found):
        ids = [2047, *encoder.encode(text)]
        assert result["text"] == text and result["ids"] == ids[1:] and result["n_tokens"] == len(ids) - 1
        np.testing.assert_allclose(result["logprobs"], naive(ids, 1), atol=1e-4)
        assert "".join(result["tokens"]) == text and result["n_bytes"] == len(text)
        assert result["logprob"] == sum(result["logprobs"])
        assert result["perplexity"] == pytest.approx(math.exp(-result["logprob"] / result["n_tokens"]))
    logprob, n = sum(result["logprob"] for result in found if "ids" in result), sum(r.get("n_tokens", 0) for r in found)
    assert total["logprob"] == pytest.approx(logprob) and total["n_tokens"] == n and total["n_texts"] == 7
    assert total["perplexity"] == pytest.approx(math.exp(-logprob / n))


def test_without_a_file_the_results_are_printed_and_the_total_is_the_last_line(run, tmp_path):
    lines = run(PROMPTS, name="score", out=None).stdout.splitlines()
    total = run(PROMPTS, name="score").stdout
    assert total == lines[-1] + "\n" and [*map(json.loads, lines[:-1])] == read(tmp_path / "out.jsonl")


def test_only_the_completion_counts_or_the_last_tokens(score, encoder):
    context, text = encoder.encode("The fox said to"), encoder.encode(" the king")
    lines = [{"prompt": "The fox said to", "completion": " the king"}, {"prompt": context, "completion": text}]
    lines += [{"prompt": "", "completion": "A"}, {"prompt": "a", "completion": ""}, {"completion": "a"}]
    found, _ = score(lines, status=1)
    assert found[0]["logprobs"] == found[1]["logprobs"] and found[0]["ids"] == text
    np.testing.assert_allclose(found[0]["logprobs"], naive(context + text, len(context)), atol=1e-4)
    assert found[2]["ids"] == encoder.encode("A") and "error" in found[3] and "error" in found[4]
    whole, _ = score([{"text": context + text}])
    (last,), _ = score([{"text": context + text}], "--last_tokens", 2)
    assert last["logprobs"] == pytest.approx(whole[0]["logprobs"][-2:], abs=1e-5) and last["ids"] == text[-2:]
    (one,), _ = score(lines[:1], "--last_tokens", 1)
    assert one["ids"] == text[-1:]


def test_a_prompt_is_no_text_and_a_text_has_no_completion(score):
    mixed = {"text": "a", "completion": "b"}
    lines = [{"text": "A fox"}, {"prompt": "A fox"}, {"prompt": "A", "completion": None}]
    lines += [{**mixed, "prompt": "c"}, mixed]
    (right, *wrong), total = score(lines, status=1)
    assert right["logprobs"] and total["n_tokens"] == right["n_tokens"]
    assert [result["error"][:12] for result in wrong] == ['a "text" is '] * 2 + ['"completion"'] * 2


def test_alternatives_and_whether_a_token_was_the_best(score):
    ids = list(range(200, 212))
    (result,), _ = score([{"text": ids}], "--top_logprobs", 3)
    model = random_model(np.float64, n_vocab=2048, n_embd=12, n_head=3, n_layer=1)
    logits = v1.gpt2([ids[:-1]], **model.params, n_head=model.n_head)[0]
    for row, top, best, i in zip(logits, result["top_logprobs"], result["is_best"], ids[1:]):
        assert [i for i, _ in top] == np.argsort(-row)[:3].tolist() and best == (i == np.argmax(row))
        np.testing.assert_allclose([x for _, x in top], np.sort(row)[::-1][:3] - np.log(np.sum(np.exp(row))), atol=1e-4)
    best = [5]
    while len(best) < 4:
        best.append(int(np.argmax(v1.gpt2([best], **model.params, n_head=model.n_head)[0, -1])))
    (result,), _ = score([{"text": best}])
    assert result["is_greedy"] is True and result["is_best"] == [True] * 3


def test_n_ctx_plus_one_ids_and_beyond(score):
    """Each token once, whatever the stride; the last one is not fed in."""
    ids = np.random.default_rng(0).integers(0, 2047, 200).tolist()
    (result,), _ = score([{"text": ids[:65]}])
    np.testing.assert_allclose(result["logprobs"], naive(ids[:65], 1), atol=1e-4)
    for stride, n in ((1, 75), (7, 129), (32, 200), (63, 200), (64, 66)):
        (result,), _ = score([{"text": ids[:n]}], "--stride", stride, "--rows", 3)
        expected, first, begin = [], 1, 0
        while first < n:  # windows of 64, each `stride` after the one before
            window = ids[begin : min(begin + 65, n)]
            expected += naive(window, first - begin)
            first, begin = begin + len(window), begin + stride
        np.testing.assert_allclose(result["logprobs"], expected, atol=1e-4)


@pytest.mark.parametrize("flag", [("--stride", 0), ("--stride", 65), ("--last_tokens", 0), ("--top_logprobs", -1)])
def test_flags_of_score_that_make_no_sense(run, flag):
    assert_one_line(run(["a"], *flag, name="score"), flag[0])


@pytest.mark.parametrize("n_ctx", [4, 8])
def test_windows_count_each_token_once_with_all_the_context_there_is(n_ctx):
    for n, stride in itertools.product(range(2, 30), range(1, n_ctx + 1)):
        ids = list(range(n))
        for first in range(1, n):
            windows = windows_of(ids, first, n_ctx, stride)
            assert [i for window in windows for i in window.targets] == ids[first:]
            for window in windows:
                assert 1 <= len(window.targets) <= len(window.ids) <= n_ctx
                assert window.ids[-1] + 1 == window.targets[-1]
            if n - first <= n_ctx:
                assert len(windows) == 1 and len(windows[0].ids) == min(n - 1, n_ctx)


def test_a_context_that_several_share_is_computed_once(score, monkeypatch):
    """Also where they are more than a batch, and apart in the file; the results are those that each has alone."""
    ids = np.random.default_rng(1).integers(0, 2047, 300).tolist()
    lines = [{"prompt": ids[:40], "completion": ids[100 + 3 * n : 103 + 3 * n]} for n in range(5)]
    lines += [{"prompt": ids[50:80], "completion": ids[200 + n : 202 + n]} for n in range(3)]
    lines += [{"prompt": ids[80:85], "completion": [1]}]
    lines += [{"prompt": [3], "completion": [n]} for n in (1, 2)]
    random.Random(0).shuffle(lines)
    alone = [score([line])[0][0] for line in lines]
    fed, gpt2 = [], jobs.Model.version.gpt2

    def count(input_ids, *arguments, attention_mask, **known):
        fed.append(int(np.sum(attention_mask)))
        return gpt2(input_ids, *arguments, attention_mask=attention_mask, **known)

    monkeypatch.setattr(jobs.Model.version, "gpt2", count)
    for rows in (1, 2, 16):
        fed.clear()
        assert score(lines, "--rows", rows)[0] == alone
        assert sum(fed) == (39 + 5 * 3) + (29 + 3 * 2) + 5 + 1 + 1


def test_a_list_of_texts_is_scored_whatever_its_order(encoder, monkeypatch):
    """For callers in Python: n_rows texts of like length at once, and what is too long is cut from the left."""
    model = SimpleNamespace(version=jobs.Model.version, hparams={"n_head": 3, "n_ctx": 64})
    model.params = jobs.prepare(tiny().params)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2047, 300).tolist()
    texts = [(ids[i : i + 2 + i % 40], 1 + i % 3 % (1 + i % 40)) for i in range(0, 200, 7)]
    texts += [(ids[:30] + [i], 30) for i in range(5)] + [(ids[:90], 80)]
    shapes, gpt2 = [], model.version.gpt2

    def count(input_ids, *arguments, **known):
        shapes.append(input_ids.shape)
        return gpt2(input_ids, *arguments, **known)

    monkeypatch.setattr(model.version, "gpt2", count)
    found = score_texts(model, texts, n_rows=4)
    for (ids, first), scores in zip(texts, found):
        left_out = max(len(ids) - 65, 0)
        expected = naive(ids[left_out:], first - left_out)
        np.testing.assert_allclose([logprob for logprob, *_ in scores], expected, atol=1e-4)
    assert sum(B * T for B, T in shapes) < 1.2 * (sum(min(len(ids), 65) - 1 for ids, _ in texts[:-6]) + 29 + 5 + 64)
    assert found == score_texts(model, texts, n_rows=1) and score_texts(model, []) == []


def test_a_prompt_is_cut_from_the_left():
    for n, n_new, n_ctx in itertools.product(range(1, 9), range(6), range(1, 6)):
        kept = utils.keep_end(list(range(n)), n_new, n_ctx)
        assert kept == list(range(n))[n - len(kept) :]
        if kept:
            utils.check_lengths([len(kept)], n_new, n_ctx)
        if len(kept) < n:
            with pytest.raises(utils.UserError):
                utils.check_lengths([len(kept) + 1], n_new, n_ctx)


def test_a_file_with_ends_of_texts_is_one_text(score, encoder):
    """As the held-out text of the bundled model; line breaks around an end of text are layout."""
    data = b"The fox\nsaid\n<|endoftext|>\nA king\n"
    (whole,), total = score(data)
    ids = [2047, *encoder.encode("The fox\nsaid"), 2047, *encoder.encode("A king")]
    assert whole["ids"] == ids[1:] and whole["n_bytes"] == len("The fox\nsaidA king")
    np.testing.assert_allclose(whole["logprobs"], naive(ids, 1), atol=1e-4)
    assert len(score(data, "--whole", "false", status=1)[0]) == 4
    assert len(score(b"The fox\nsaid\n", "--whole")[0]) == 1


def test_scores_are_gone_on_with_like_completions(run, tmp_path, monkeypatch):
    assert run(PROMPTS, name="score", out="undisturbed").returncode == 0
    fail = jobs.Scoring.run
    calls = []

    def stop(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fail(self, *arguments)

    monkeypatch.setattr(jobs.Scoring, "run", stop)
    assert run(PROMPTS, "--rows", 2, name="score").returncode == 130
    assert run(PROMPTS, name="score").returncode == 0 and len(calls) == 3
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "undisturbed").read_bytes()


def test_a_perplexity_beyond_floats_is_null(score, monkeypatch):
    monkeypatch.setattr(jobs.Model.version, "log_softmax", lambda logits: np.full(logits.shape, -1e4, np.float32))
    (result,), total = score(["A"])
    assert result["perplexity"] is None and total["perplexity"] is None


# ---- real processes on the bundled model

WORDS = "Once upon a time there was king who had three daughters and the fox said to wolf old woman in forest".split()


def ragged(n):
    """n lines, of which each tenth is an error."""
    rng = random.Random(0)
    return [
        json.dumps({"id": i, "prompt": " ".join(rng.choices(WORDS, k=600 if i % 10 == 9 else rng.randrange(1, 25)))})
        for i in range(n)
    ]


@pytest.fixture
def start(tmp_path):
    """Start a job as a process of its own, maybe with other code first: start(lines, out, *arguments) -> Popen."""

    def call(lines, out, *arguments, code=""):
        (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
        begin = f"import os, signal, sys; sys.path.insert(0, {str(ROOT)!r}); import jobs, utils"
        code = f"{begin}\n{code}\nutils.run(jobs.COMMANDS)"
        arguments = ["complete", str(tmp_path / "prompts.jsonl"), "--out", str(out), *arguments]
        arguments += ["--temperature", "0.9", "--top_p", "0.95", "--seed", "7"]
        return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stderr=subprocess.PIPE)

    return call


def finish(process, n_errors, n):
    _, err = process.communicate(timeout=900)
    assert process.returncode == 1 and err.startswith(b"%d of %d prompts" % (n_errors, n)), err


KILLS = {
    "after twice as many as run at once": """
from gpt2_io.results import Results
add, n = Results.add, []
def die(self, results):
    add(self, results)
    n.append(1)
    if len(n) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Results.add = die
""",
    "with half of these written": """
from gpt2_io.results import Results
write, n = Results.write, []
def die(self, data):
    n.append(1)
    if len(n) == 2:
        self.part.write(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, data)
Results.write = die
""",
    "before the last step": "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
}


@unix
def test_a_job_that_is_killed_ends_with_the_results_of_an_undisturbed_one(server, tmp_path):
    """With other --rows and the prompts in another order each time; first of all in the middle of a batch."""
    lines, out = ragged(16), tmp_path / "killed.jsonl"
    (tmp_path / "said").mkdir()
    model = write_folder(tmp_path / "said" / "model", {**CONFIG, "n_positions": 256})

    def run(lines, out, *arguments, code=""):
        (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
        arguments = ["complete", tmp_path / "prompts.jsonl", "--out", out, "--model", model, *DRAWN, *arguments]
        return Process(server, tmp_path / "said", "jobs", arguments, code=code).wait()[::2]

    status, undisturbed = run(lines, tmp_path / "undisturbed.jsonl")
    assert status == 1 and undisturbed.startswith("1 of 16 prompts")
    for n, code in enumerate(KILLS.values(), 1):
        status, _ = run(random.Random(n).sample(lines, 16), out, "--rows", 1 + n, code=code)
        assert status == -signal.SIGKILL and not out.exists()
    assert out.with_name("killed.jsonl.part").exists()
    assert run(lines, out) == (1, undisturbed.replace("undisturbed", "killed"))
    assert out.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    assert [line["id"] for line in read(out)] == list(range(16))
    assert sorted(os.listdir(tmp_path)) == ["killed.jsonl", "prompts.jsonl", "said", "undisturbed.jsonl"]


@unix
@pytest.mark.slow
def test_500_prompts_killed_twenty_times_at_random(start, tmp_path):
    """At a random size of the part each time, and a random moment after it; with another batch size and order."""
    lines, out, arguments = ragged(500), tmp_path / "killed.jsonl", ["--n_tokens_to_generate", "20"]
    finish(start(lines, tmp_path / "undisturbed.jsonl", *arguments), 50, 500)
    whole = (tmp_path / "undisturbed.jsonl").stat().st_size
    rng, part = random.Random(0), out.with_name("killed.jsonl.part")
    for n in range(20):
        process = start(rng.sample(lines, 500), out, *arguments, "--rows", str(rng.randrange(1, 20)))
        before = part.stat().st_size if part.exists() else 0
        size = before + rng.randrange(0, whole // 25)
        while not part.exists() or part.stat().st_size < size:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL and not out.exists(), n
    finish(start(lines, out, *arguments), 50, 500)
    assert out.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    found = read(out)
    assert [line["id"] for line in found] == list(range(500))
    assert sum("error" in line for line in found) == 50


# Run a job's beginning, and tell how much memory it had at most when the first batch began.
BEGINNING = """
import re
def tell(*_):
    print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status", encoding="ascii").read())[1], file=sys.stderr)
    os._exit(0)
jobs.complete_batch = tell
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak of memory from Linux' /proc")
def test_100_000_prompts_begin_in_little_memory(start, tmp_path):
    def peak(n):
        lines = [json.dumps({"prompt": f"{i} {WORDS[i % len(WORDS)]} " + "and then " * 20, "id": i}) for i in range(n)]
        _, err = start(lines, tmp_path / "o", code=BEGINNING).communicate(timeout=300)
        return int(err) / 1024  # MB

    few, many = peak(1000), peak(100_000)
    assert many - few < 50 and many < 300


@pytest.mark.slow
def test_perplexity_of_the_held_out_text_is_that_of_the_card():
    folder = ROOT / "models" / "tales"
    result = command("score", folder / "held_out.txt", script="jobs.py", timeout=600)
    total = json.loads(result.stdout.splitlines()[-1])
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert total["loss"] == pytest.approx(float(re.search(r"([\d.]+) nats per token", card)[1]), abs=1e-3)
    assert total["bits_per_byte"] == pytest.approx(float(re.search(r"\*\*([\d.]+) bits per byte", card)[1]), abs=1e-3)
    assert total["perplexity"] == pytest.approx(math.exp(total["loss"]))


@pytest.mark.reference
@pytest.mark.parametrize("stride", [512, 200])
def test_perplexity_equals_transformers_on_the_same_windows(tmp_path, stride, torch, transformers):
    folder = ROOT / "models" / "tales"
    text = (folder / "held_out.txt").read_text(encoding="utf-8").split("<|endoftext|>")[0].strip()
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": text}), encoding="utf-8")
    result = command("score", tmp_path / "t.jsonl", "--stride", stride, script="jobs.py", timeout=600)
    found, total = map(json.loads, result.stdout.splitlines())
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, torch_dtype=torch.float32).eval()
    ids, logprobs, begin, first = [2047, *found["ids"]], [], 0, 1
    while first < len(ids):
        window = torch.tensor(ids[begin : begin + 513])
        with torch.no_grad():
            scores = torch.log_softmax(model(window[None, :-1]).logits[0].double(), dim=-1)
        new = scores[torch.arange(len(window) - 1), window[1:]][first - begin - 1 :]
        logprobs += new.tolist()
        first, begin = begin + len(window), begin + stride
    assert len(logprobs) == total["n_tokens"] > 1000
    np.testing.assert_allclose(found["logprobs"], logprobs, atol=1e-3)
    assert total["perplexity"] == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)), abs=1e-4)
