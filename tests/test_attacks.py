"""What a hostile or an unlucky user tries: each attack ends in one clear line with status 2, or in the right result.

A traceback, a hang, and a wrong result without a word are what must not be. Attacks on the formats of files are in
test_fuzz.py, on ids and masks in test_inputs.py, by a server in test_downloads.py, on streams in test_odd_use.py.
"""

# ruff: noqa: F401, F811 (fixtures come from model_files)
import json
import os
import shutil
import subprocess
import sys

import pytest
from model_files import CONFIG, assert_one_line, clean_environment, edge, make_vocab, write_folder
from tiny import ROOT, VERSIONS

import gpt2_v4_sampling as v4
import utils
from gpt2_io.tokenizer import MAX_BLANKS

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
        (["--n_tokens_to_generate", "-5"], ["n_tokens_to_generate must be 0 or more"]),
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
        (["--n_samples", "1000000000"], ["1000000000 continuations at once", "lower --n_samples"]),
        (["--batch_size", "0"], ["batch_size must be"]),
        (["--stop", ""], ["--stop needs a text"]),
        (["--out", "x", "--stream"], ["choose one"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_flags_that_make_no_sense(run, flags, words):
    assert_one_line(run("the", *flags), *words)


@pytest.mark.parametrize(
    "flags",
    [
        ["--temperature", "1e-300"], ["--temperature", "1e30"], ["--top_p", "0"], ["--top_p", "1e-320"],
        ["--min_p", "1"], ["--top_k", "1" + "0" * 30], ["--seed", "9" * 4000], ["--repetition_penalty", "1e30"],
        ["--repetition_penalty", "1e-30"], ["--batch_size", "1" + "0" * 30],
    ],
    ids=lambda value: " ".join(value)[:40],
)  # fmt: skip
def test_flags_at_the_end_of_what_makes_sense(run, flags):
    result = run("the", "in", "--temperature", "1", "--seed", "1", "--n_tokens_to_generate", "3", "--json", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    assert [len(json.loads(line)["ids"]) for line in result.stdout.splitlines()] == [3, 3]


# ---- prompts


@unix
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_devices_without_an_end_are_no_prompts(run, monkeypatch, device):
    """/dev/zero would fill the memory; the limit is lowered here."""
    monkeypatch.setattr("gpt2_io.prompts.MAX_PROMPTS", 1000)
    assert_one_line(run("--prompts_file", device), device)


def test_the_limit_is_the_last_size_that_is_taken(run, monkeypatch, tmp_path):
    monkeypatch.setattr("gpt2_io.prompts.MAX_PROMPTS", 7)
    for data, status in ((b"the\nin\n", 0), (b"the\nin\n\n", 2)):
        (tmp_path / "p").write_bytes(data)
        assert run("--prompts_file", tmp_path / "p", "--n_tokens_to_generate", "1").returncode == status


@unix
def test_a_pipe_with_a_name_gives_prompts(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", 'printf "the\nin\n" > "$0"', tmp_path / "pipe"])
    result = run("--prompts_file", tmp_path / "pipe", "--json", "--n_tokens_to_generate", "1")
    assert writer.wait() == 0 and result.stdout.count("\n") == 2


@unix
@pytest.mark.parametrize("flag", ["--prompts_file", "--out", "--model"])
def test_links_in_a_circle(edge, tmp_path, flag):
    for a, b in (("1", "2"), ("2", "1")):
        (tmp_path / a).symlink_to(tmp_path / b)
    prompts = [] if flag == "--prompts_file" else ["the"]
    assert_one_line(edge(v4.main, *prompts, flag, tmp_path / "1"), tmp_path / "1")


@pytest.mark.parametrize("blank", [" ", "\n", "\u3000"], ids=ascii)
def test_a_megabyte_of_blanks(run, tmp_path, blank):
    """Beyond what tiktoken's stack takes, whose panic is no Exception. What a stack takes is encoded."""
    for n, words in ((1_000_000, "blanks"), (MAX_BLANKS, "n_ctx is 64")):
        (tmp_path / "p").write_text(json.dumps({"prompt": "the" + blank * n + "king"}), encoding="utf-8")
        assert_one_line(run("--prompts_file", tmp_path / "p"), words)


# ---- results


@pytest.mark.parametrize("prompts", ["the\nin\n", '{"prompt": "the"}\n', '{"prompt": "the", "id": 1}'])
def test_prompts_that_have_the_name_of_the_settings_are_not_overwritten(run, tmp_path, prompts):
    """FILE.job is where a job on FILE keeps its settings."""
    (tmp_path / "o.job").write_text(prompts, encoding="utf-8")
    assert_one_line(run("--prompts_file", tmp_path / "o.job", "--out", tmp_path / "o"), "o.job", "give another --out")
    assert (tmp_path / "o.job").read_text(encoding="utf-8") == prompts


@unix
@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
def test_two_jobs_on_two_names_of_one_file(run, tmp_path, monkeypatch, link):
    (tmp_path / "a").touch()
    link(tmp_path / "a", tmp_path / "b")
    second, generate = [], v4.generate

    def start_another(*arguments, **settings):
        if not second:
            second.append(None)
            second[0] = run("the", "--out", tmp_path / "b", "--n_tokens_to_generate", "1")
        return generate(*arguments, **settings)

    monkeypatch.setattr(v4, "generate", start_another)
    assert run("the", "--out", tmp_path / "a", "--n_tokens_to_generate", "1").returncode == 0
    assert_one_line(second[0], tmp_path / "b", "another job is writing it")
    assert len((tmp_path / "a").read_text(encoding="utf-8").splitlines()) == 1


# ---- models


@pytest.mark.parametrize("version", VERSIONS, ids=str)
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
STREAMS = {  # what a shell runs: (status, stdout, stderr), None for any
    f"{V4} the > /dev/full": (2, "", "error: [Errno 28] No space left on device\n"),
    f"{V4} the --stream > /dev/full": (2, "", "error: [Errno 28] No space left on device\n"),
    f"{V4} the --seed 1 --temperature 1 --json 2>&-": (0, None, ""),
    f"{V4} the --temperature 1 --json 2>&-": (0, None, ""),
    f"{V4} the --no_such_flag 2>&-": (2, "", ""),
    f"{V4} the --no_such_flag 2>/dev/full": (2, "", ""),
    f"{V4} the --temperature 1 --json 2>/dev/full": (2, "", ""),  # the seed could not be shown
    f"{V4} the <&- >&- 2>&-": (0, "", ""),
    f"ulimit -v 2000000; yes the | head -n 9999 | {V4}0 --prompts_file - --batch_size 9999": (2, "", None),  # 20 tokens
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
