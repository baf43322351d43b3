"""What a hostile or an unlucky user tries: each attack ends in one clear line with status 2, or in the right result.

A traceback, a hang, and a wrong result without a word are what must not be. Attacks on the formats of files are in
test_fuzz.py, on ids and masks in test_inputs.py, by a server in test_downloads.py, on streams in test_odd_use.py.
"""
import json
import os
import subprocess
import sys

import pytest
from model_files import CONFIG, assert_one_line, make_vocab, write_folder
from tiny import ENDS, ROOT

import gpt2_v4_sampling as v4
import jobs
import utils
from gpt2_io.tokenizer import MAX_BLANKS

pytestmark = pytest.mark.usefixtures("clean_environment")

unix = pytest.mark.skipif(os.name == "nt", reason="devices, links and limits of Unix")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", {**CONFIG, "n_positions": 64})


@pytest.fixture
def run(edge, folder):
    """v4's command with a tiny model, in this process."""
    return lambda *arguments: edge(v4.main, *arguments, "--model", folder)


# ---- flags


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--frobnicate", "3"], ["unknown flag --frobnicate"]),
        (["--__class__", "x"], ["unknown flag --__class__"]),
        (["--n_tokens_to_generate", "1" + "0" * 30], ["n_ctx is 64"]),
        (["--n_tokens_to_generate", "-5"], ["n_tokens_to_generate must be a whole number, 0 or more"]),
        (["--n_tokens_to_generate", "1e3"], ["a whole number"]),
        (["--temperature", "inf"], ["temperature must be"]),
        (["--temperature", "-1"], ["temperature must be"]),
        (["--temperature", "nan"], ["--temperature takes a number"]),
        (["--top_p", "1.01"], ["top_p must be"]),
        (["--min_p", "-0.1"], ["min_p must be"]),
        (["--repetition_penalty", "0"], ["repetition_penalty must be"]),
        (["--seed", "-1"], ["seed must be"]),
        (["--seed", "abc"], ["--seed takes a whole number"]),
        (["--seed", "9" * 5000], ["--seed takes a whole number"]),
        (["--n_samples", "0"], ["n_samples must be"]),
        (["--n_samples", "1000000000"], ["n_samples must be", "100000"]),
        (["--stop", ""], ["--stop needs a text"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_flags_that_make_no_sense(run, flags, words):
    assert_one_line(run("the", *flags), *words)


@pytest.mark.parametrize(
    "flags",
    [
        ["--temperature", "1e-300"], ["--temperature", "1e30"], ["--top_p", "0"], ["--top_p", "1e-320"],
        ["--min_p", "1"], ["--top_k", "1" + "0" * 30], ["--seed", str(2**128 - 1)], ["--repetition_penalty", "1e30"],
        ["--repetition_penalty", "1e-30"],
    ],
    ids=lambda value: " ".join(value)[:40],
)  # fmt: skip
def test_flags_at_the_end_of_what_makes_sense(run, flags):
    result = run("the", "in", "--temperature", "1", "--seed", "1", "--n_tokens_to_generate", "3", "--json", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    assert [len(json.loads(line)["ids"]) for line in result.stdout.splitlines()] == [3, 3]


# ---- files of prompts and of results: more are in test_jobs.py


@unix
@pytest.mark.parametrize("flag", ["file", "--out", "--model"])
def test_links_in_a_circle(edge, tmp_path, flag):
    for a, b in (("1", "2"), ("2", "1")):
        (tmp_path / a).symlink_to(tmp_path / b)
    (tmp_path / "p").write_text("the", encoding="utf-8")
    arguments = [tmp_path / "1"] if flag == "file" else [tmp_path / "p", flag, tmp_path / "1"]
    assert_one_line(edge(jobs.COMMANDS, "complete", *arguments), tmp_path / "1")


@pytest.mark.parametrize("blank", [" ", *(pytest.param(c, marks=pytest.mark.slow) for c in "\n\u3000")], ids=ascii)
def test_a_megabyte_of_blanks(run, blank):
    """Beyond what tiktoken's stack takes, whose panic is no Exception. What a stack takes is encoded."""
    for n, words in ((1_000_000, "blanks"), (MAX_BLANKS, "n_ctx is 64")):
        assert_one_line(run("the" + blank * n + "king"), words)


# ---- models


@pytest.mark.parametrize("version", ENDS, ids=str)
@pytest.mark.parametrize("name", ["../../etc", "/", ".", "a/..", "a b", "x" * 5000, "~", "*"])
def test_names_of_models_that_are_none(edge, monkeypatch, tmp_path, version, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_one_line(edge(version.module.main, "x", "--model", name))


def test_a_file_in_place_of_models_dir(edge, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert_one_line(edge(v4.main, "x", "--model", "org/name", "--models_dir", tmp_path / "file"), "Not a directory")


@pytest.mark.parametrize(
    "change",
    [
        {"n_head": 5}, {"n_head": 0}, {"n_head": -3}, {"n_positions": 0}, {"n_positions": 10**12}, {"n_layer": 10**9},
        {"n_embd": True}, {"vocab_size": 0}, {"layer_norm_epsilon": float("nan")}, {"layer_norm_epsilon": 1},
    ],
    ids=str,
)  # fmt: skip
def test_configs_that_make_no_sense(edge, folder, change):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}), encoding="utf-8")
    assert_one_line(edge(v4.main, "x", "--model", folder), folder)


@pytest.mark.parametrize("vocab", [{}, {"a": 0}, {**make_vocab(), "x": -1}, {**make_vocab(), "x": 1.5}], ids=range(4))
def test_vocabularies_that_make_no_sense(edge, folder, vocab):
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    assert_one_line(edge(v4.main, "the", "--model", folder), folder)


# ---- homes, tokens, memory, streams


@pytest.mark.parametrize("token", ["hf_sec\nret", "hf_sec ret", "hf_secret猫"], ids=ascii)
def test_a_token_that_is_none_is_not_shown(edge, monkeypatch, tmp_path, token):
    monkeypatch.setenv("HF_TOKEN", os.fsdecode(token.encode()))  # in a C locale its letters are bytes
    result = edge(utils.COMMANDS, "download", "org/name", "--models_dir", tmp_path)
    assert_one_line(result, "HF_TOKEN holds characters")
    assert "hf_sec" not in result.stderr


def test_certificates_that_are_missing_are_not_a_matter_of_disks(edge, monkeypatch, tmp_path):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such/file")
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:9")
    result = edge(utils.COMMANDS, "download", "org/name", "--models_dir", tmp_path)
    assert_one_line(result, "/no/such/file", "certificate")
    assert "cannot write" not in result.stderr


def test_nobody_knows_a_home(edge, monkeypatch):
    """As for a user without a name in a container; ~ is taken as it is then."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", "~nobody-has-this-name/cache")
    assert_one_line(edge(v4.main, "x", "--model", "org/name"), "HF_HUB_OFFLINE")


def test_too_little_memory_is_one_line(run, monkeypatch):
    def fail(*_, **__):
        raise MemoryError("Unable to allocate 7 EiB")

    monkeypatch.setattr(v4, "init_kv_cache", fail)
    assert_one_line(run("the"), "not enough memory", "7 EiB")


V4 = f'"{sys.executable}" "{ROOT}/gpt2_v4_sampling.py" --n_tokens_to_generate 2'
JOBS = f'"{sys.executable}" "{ROOT}/jobs.py" complete --n_tokens_to_generate 20'
STREAMS = {  # what a shell runs: (status, stdout, stderr), None for any
    f"{V4} the > /dev/full": (2, "", "error: [Errno 28] No space left on device\n"),
    f"{V4} the --stream > /dev/full": (2, "", "error: [Errno 28] No space left on device\n"),
    f"{V4} the --seed 1 --temperature 1 --json 2>&-": (0, None, ""),
    f"{V4} the --temperature 1 --json 2>&-": (0, None, ""),
    f"{V4} the --no_such_flag 2>&-": (2, "", ""),
    f"{V4} the --no_such_flag 2>/dev/full": (2, "", ""),
    f"{V4} the --temperature 1 --json 2>/dev/full": (2, "", ""),  # the seed could not be shown
    f"{V4} the <&- >&- 2>&-": (0, "", ""),
    f"ulimit -v 2000000; yes the | head -n 9999 | nl | {JOBS} - --rows 9999": (2, "", None),
}


@unix
@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a device that is always full")
@pytest.mark.parametrize("command", STREAMS, ids=lambda command: command.replace(V4, "v4"))
def test_streams_and_limits(command):
    result = subprocess.run(["bash", "-c", command], capture_output=True, encoding="utf-8", timeout=120)
    status, out, err = STREAMS[command]
    assert result.returncode == status
    assert out in (None, result.stdout) and err in (None, result.stderr)
    for line in result.stdout.splitlines() if "--json" in command else ():
        json.loads(line)  # nothing else is printed among the results
    assert "Traceback" not in result.stderr


# ---- the list of what was tried by hand


def test_the_list_of_attacks_names_tests_that_exist():
    attacks = json.loads((ROOT / "tests" / "attacks.json").read_text(encoding="utf-8"))
    for attack in attacks:
        assert list(attack) == ["attack", "command", "status", "last_line", "note", "test"]
        if attack["test"]:
            file, name = attack["test"].split("::")
            assert f"def {name}(" in (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"), attack
    assert len({attack["attack"] for attack in attacks}) == len(attacks)


def test_the_page_counts_the_attacks_right():
    attacks = json.loads((ROOT / "tests" / "attacks.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    by_status = [sum(attack["status"] == status for attack in attacks) for status in (2, 0, 141)]
    n_mended = sum(attack["note"].startswith("mended") for attack in attacks)
    assert f"{len(attacks)} attacks from a shell" in page and f"{n_mended} showed a fault" in page
    refused, ran, closed = by_status
    rest = len(attacks) - sum(by_status)
    counts = f"{refused} were refused with status 2, {ran} ran, {closed} ended with a closed pipe, {rest} otherwise"
    n_tests = sum(attack["test"] is not None for attack in attacks)
    assert counts in page and f"For {n_tests} the file names the test" in page
