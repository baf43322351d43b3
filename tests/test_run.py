"""The edge of every command, utils.run: arguments as typed, and one line for each mistake."""
import ast
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from model_files import assert_one_line, command
from tiny import ROOT, V0, VERSIONS

import utils

pytestmark = pytest.mark.usefixtures("clean_environment")

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import utils
def main(*prompts, json=False):
    {body}
if __name__ == "__main__":
    utils.run(main)
"""


@pytest.fixture
def script(tmp_path):
    """A command of its own: script(body of its main) -> its path."""

    def make(body):
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(root=str(ROOT), body=body), encoding="utf-8")
        return path

    return make


def main(*prompts, n=40, temperature=1.0, model="tales", stop=None, json=False):
    """Say what came.

    Args:
        prompts: texts.
        n: how many.
    """
    print([prompts, n, temperature, model, stop, json])


@pytest.fixture
def values(edge):
    """What main gets for these arguments: values(*arguments) -> [prompts, n, temperature, model, stop, json]."""

    def call(*arguments):
        result = edge(main, *arguments)
        assert result.returncode == 0, result.stderr
        return ast.literal_eval(result.stdout)

    return call


TYPED = [
    "Hello, world",
    "a,b,c",
    "1",
    "0x10",
    "1e5",
    "True",
    "None",
    "[1,2]",
    "{x}",
    "'quoted'",
    "-5",
    "hello # comment",
]
TYPED += ["", " ", "-", "- x", "-1e5", "a=b", "(1)", '"', "\\n", "é🤗", "a\nb"]
USUAL = [40, 1.0, "tales", None, False]


def test_prompts_arrive_as_typed(values):
    assert values(*TYPED) == [tuple(TYPED), *USUAL]
    for prompt in TYPED:
        assert values(prompt) == [(prompt,), *USUAL]
    assert values("a", "--", "--n", "--help", "-x", "--") == [("a", "--n", "--help", "-x", "--"), *USUAL]


def test_text_flags_arrive_as_typed_too(values):
    for text in ("1", "None", "[1]", "a,b", "-5", "a # b", "x=y"):
        assert values("p", "--stop", text, f"--model={text}")[3:5] == [text, text]
    assert values("--stop", "-")[4] == "-" and values("--stop=")[4] == ""


def test_flags_have_the_type_of_their_default(values):
    assert values("--n", "7", "x", "--temperature", "2", "--json") == [("x",), 7, 2.0, "tales", None, True]
    assert values("--n=-3", "--temperature=1e-5", "--json=false")[1:3] == [-3, 1e-5]
    assert values("x", "--nojson")[5] is False
    for text in ("True", "true", "false", "FALSE"):
        assert values("--json", text) == [(), *USUAL[:-1], text.lower() == "true"]
    assert values("--json", "1", "yes") == [("1", "yes"), *USUAL[:-1], True]  # a switch takes no prompt away
    assert values("--no-json", "x", "--json", "--nojson")[5] is False  # the last one counts
    assert values("-n", "3", "-m", "x")[1:4:2] == [3, "x"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--n", "ten"], ["--n", "a whole number", "'ten'"]),
        (["--n", "1.5"], ["--n", "a whole number", "'1.5'"]),
        (["--n="], ["--n", "a whole number", "''"]),
        (["--n", "9" * 5000], ["--n", "a whole number"]),
        (["--temperature", "hot"], ["--temperature", "a number", "'hot'"]),
        (["--temperature", "nan"], ["--temperature", "a number", "'nan'"]),
        (["--json=maybe"], ["--json", "True or False", "'maybe'"]),
        (["--zzz=3"], ["unknown flag --zzz;", "--temperature", "--model", "after --"]),
        (["--nomodel"], ["unknown flag --nomodel"]),
        (["-x"], ["unknown flag -x;"]),
        (["-hello there"], ["unknown flag -hello there"]),
        (["--model"], ["--model needs a value"]),
        (["--model", "--json"], ["--model needs a value"]),
    ],
)
def test_mistakes_are_one_line(edge, arguments, words):
    assert_one_line(edge(main, *arguments), *words)


@pytest.mark.parametrize(
    "flag, words",
    [
        ("--max_new_tokens", "did you mean --n_tokens_to_generate?"),
        ("--max-length=5", "did you mean --n_tokens_to_generate?"),
        ("--n_tokens_to_genrate", "did you mean --n_tokens_to_generate?"),
        ("--modle", "did you mean --model?"),
        ("-m", "did you mean --model?"),
        ("--layout", "utils.py convert --model PATH --out FOLDER --layout nanogpt"),
        ("--temp", "--temperature is a flag of gpt2_v4_sampling.py"),
        ("--temperature", "--temperature is a flag of gpt2_v4_sampling.py"),
        ("--temprature", "--temperature is a flag of gpt2_v4_sampling.py"),
        ("--repeat_penalty", "--repetition_penalty is a flag of gpt2_v4_sampling.py"),
        ("--num_return_sequences", "--n_samples is a flag of gpt2_v4_sampling.py"),
        ("--do_sample", "--temperature is a flag of gpt2_v4_sampling.py"),
        ("--prompts_file", "python jobs.py complete FILE --out results.jsonl"),
        ("--out", "python jobs.py complete FILE --out results.jsonl"),
        ("--batch_size", "python jobs.py complete FILE --out results.jsonl"),
        ("--prompt", "a prompt has no flag before it"),
        ("--zzz", "known: --n_tokens_to_generate, --model, --models_dir, --tokenizer, --json"),
    ],
)
def test_an_unknown_flag_names_what_is_meant(edge, flag, words):
    assert_one_line(edge(VERSIONS[3].module.main, "x", flag, "3"), f"unknown flag {flag.partition('=')[0]};", words)


def test_flags_of_a_version_are_meant_by_their_names_elsewhere(edge):
    for flag, ours in (("--temp", "temperature"), ("--num_return_sequences", "n_samples"), ("-t", "temperature")):
        assert_one_line(edge(VERSIONS[4].module.main, "x", flag, "3"), f"did you mean --{ours}?")


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_what_moved_to_jobs_says_so_in_every_version(edge, version):
    for flag in ("--prompts_file", "--out", "--batch_size"):
        assert_one_line(edge(version.module.main, flag, "3"), "python jobs.py complete FILE --out results.jsonl")
    assert_one_line(edge(version.module.main, "score", "texts.txt"), "python jobs.py score FILE")


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_n_is_the_number_of_tokens_in_every_version(edge, version):
    assert_one_line(edge(version.module.main, "x", "-n", "ten"), "--n_tokens_to_generate takes a whole number")


def test_score_alone_is_a_prompt(values):
    assert values("score", "--n", "3")[:2] == [("score",), 3] and values("--", "score", "x")[0] == ("score", "x")


def test_a_flag_that_takes_several_texts(edge):
    def main(*prompts, stop=(), json=False):
        print([prompts, stop, json])

    result = edge(main, "--stop", "a", "p", "--stop=b", "--json", "false", "--stop", "\\n")
    assert ast.literal_eval(result.stdout) == [("p",), ("a", "b", "\\n"), False]


def refuses(error):
    def main():
        raise error

    return main


def test_what_main_refuses_is_one_line(edge):
    assert_one_line(edge(refuses(utils.UserError("two\n lines"))), "error: two lines")
    assert_one_line(edge(refuses(MemoryError("9 GB"))), "not enough memory: 9 GB")
    assert_one_line(edge(refuses(OSError("no disk"))), "no disk")
    assert_one_line(edge(lambda: open("no/such/file")), "no/such/file: No such file or directory")


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, ZeroDivisionError, AssertionError])
def test_a_bug_keeps_its_traceback(edge, error):
    with pytest.raises(error):
        edge(refuses(error("a bug")))


@pytest.mark.parametrize("version", [V0, *(pytest.param(v, marks=pytest.mark.slow) for v in VERSIONS[1:])], ids=str)
def test_a_broken_shape_shows_its_line(tmp_path, version):
    """Who changes a version and breaks it sees where."""
    for name in ("utils.py", "gpt2_io", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    source = (ROOT / f"{version.name}.py").read_text(encoding="utf-8")
    line = [line for line in source.splitlines() if "= x.reshape(" in line][-1]
    path = tmp_path / f"{version.name}.py"
    path.write_text(source.replace(line, line.replace("reshape(", "reshape(7, ")), encoding="utf-8")
    result = command("Once", script=path, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 1 and "cannot reshape array" in result.stderr
    assert f'{path}", line {source.splitlines().index(line) + 1}, in ' in result.stderr


def test_help_is_made_from_the_docstring(edge):
    for arguments in (["--help"], ["-h"], ["x", "--n", "3", "--help"]):
        result = edge(main, *arguments)
        assert result.returncode == 0
        assert "Say what came." in result.stderr and "how many." in result.stderr


def test_commands_of_a_dict(edge):
    result = edge(utils.COMMANDS, "--help")
    assert result.returncode == 0 and "tokenize" in result.stdout + result.stderr
    assert "merges.txt" in edge(utils.COMMANDS, "tokenize", "--help").stderr
    assert_one_line(edge(utils.COMMANDS), "inspect, tokenize, download, convert")
    assert_one_line(edge(utils.COMMANDS, "inspekt"), "'inspekt'", "inspect")
    assert_one_line(edge(utils.COMMANDS, "download"), "model")
    assert_one_line(edge(utils.COMMANDS, "inspect", "tales", "models", "nanogpt", "more"), "too many")


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 100_000])
def test_a_closed_pipe_is_quiet(script, n):
    path = script(f"utils.print_texts(['a', 'b'], [[1], [2]], ['x' * {n}] * 2)")
    read, write = os.pipe()
    process = subprocess.Popen([sys.executable, path], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.close(read)
    _, err = process.communicate(timeout=60)
    assert err == b"" and process.returncode == 141


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_any_text_on_any_terminal(script, encoding):
    print_both = "for as_json in (False, True): utils.print_texts(prompts, [[1], [2]], ['“é” 🤗', 'z'], as_json)"
    path = script(f"print(*prompts, file=sys.stderr)\n    {print_both}")
    result = command("🤗", "q", script=path, env={"PYTHONIOENCODING": encoding}, encoding=encoding)
    *plain, first, second = result.stdout.splitlines()
    assert result.returncode == 0 and plain[-2:] == ["", "qz"]
    assert json.loads(first) == {"prompt": "🤗", "ids": [1], "text": "“é” 🤗"}


# ---- print_texts and encode_prompts


def test_what_is_printed(capsys):
    utils.print_texts(["Once"], [[1, 2]], [" upon a time"])
    assert capsys.readouterr().out == " upon a time\n"
    utils.print_texts(["Once", "The"], [[1], [2]], [" upon", " fox"])
    assert capsys.readouterr().out == "Once upon\n\nThe fox\n"
    utils.print_texts(["Once", "é"], np.array([[1], [2]]), [" upon\n", "“"], as_json=True)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"prompt": "Once", "ids": [1], "text": " upon\n"},
        {"prompt": "é", "ids": [2], "text": "“"},
    ]


def test_prompts_become_ids(capsys):
    encoder = utils.load_model()[0]
    eot = encoder.eot_token
    assert utils.encode_prompts(encoder, ["", "<|endoftext|>", "Once"]) == [[eot], [eot], encoder.encode("Once")]
    assert capsys.readouterr() == ("", "")
    assert utils.encode_prompts(encoder, ["Once ", "a", "b "])[0] == encoder.encode("Once ")
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "space" in err
    with pytest.raises(ValueError, match="no prompt"):
        utils.encode_prompts(encoder, [])
