"""What users did that nobody had thought of: each ended in a traceback or in a wrong refusal once."""
import json
import os
import subprocess
import sys

import pytest
from tiny import ROOT

import gpt2_v4_sampling as v4
import utils
from gpt2_io.hub import find_model

C_LOCALE = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(command, cwd, env=None):
    return subprocess.run(command, shell=True, cwd=cwd, env=env, capture_output=True, encoding="utf-8")


@pytest.mark.skipif(os.name == "nt", reason="file names are not bytes there")
def test_files_with_other_letters_in_a_c_locale(tmp_path):
    folder = os.fsencode(tmp_path) + "/dé".encode()  # bytes, since these tests themselves may run in that locale
    os.mkdir(folder)
    with open(folder + b"/p.txt", "wb") as file:
        file.write(b"Once upon\n")
    flags = "--prompts_file dé/p.txt --out dé/o.jsonl --n_tokens_to_generate 2"
    result = shell(f"{sys.executable} {ROOT}/gpt2_v4_sampling.py {flags}".encode(), tmp_path, C_LOCALE)
    assert (result.returncode, result.stderr) == (0, "")
    with open(folder + b"/o.jsonl", encoding="utf-8") as file:
        assert json.load(file)["prompt"] == "Once upon"


def test_the_bundled_model_with_another_models_dir(tmp_path):
    assert find_model("tales", tmp_path / "nothing") == ROOT / "models" / "tales"


@pytest.mark.parametrize("names", [{"model": ""}, {"model": "tales", "models_dir": ""}], ids=str)
def test_an_empty_name_is_refused(names):
    with pytest.raises(ValueError, match="need a name"):
        find_model(**names)


@pytest.mark.skipif(os.name == "nt", reason="a shell of another kind")
@pytest.mark.parametrize(
    "arguments, status, error",
    [
        ("Once --n_tokens_to_generate 1 >&-", 0, ""),
        ("--prompts_file - <&-", 2, "error: standard input is closed, but --prompts_file - reads from it\n"),
    ],
)
def test_closed_streams(tmp_path, arguments, status, error):
    result = shell(f"{sys.executable} {ROOT}/gpt2_v4_sampling.py {arguments}", tmp_path)
    assert (result.returncode, result.stderr) == (status, error)


def run_v4(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpt2_v4_sampling.py", *arguments])
    utils.run(v4.main)


def test_an_empty_name_for_the_results_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_v4(monkeypatch, "Once", "--out", "")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: --out needs the name of a file\n"


@pytest.mark.parametrize("line", ['{"index": [1]}', '{"index": 0, "sample": {}}', '{"index": "0"}', "{}"])
def test_a_strange_line_among_the_results_is_refused(monkeypatch, capsys, tmp_path, line):
    out = tmp_path / "out.jsonl"
    run_v4(monkeypatch, "Once", "--n_tokens_to_generate", "1", "--out", str(out))
    before = out.read_text(encoding="utf-8") + line + "\n"
    out.write_text(before, encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        run_v4(monkeypatch, "Once", "--n_tokens_to_generate", "1", "--out", str(out))
    assert stopped.value.code == 2
    assert "a line that is no result" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == before  # nothing lost
