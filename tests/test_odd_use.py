"""What users did that nobody had thought of: each ended in a traceback or in a wrong refusal once."""
import json
import os
import subprocess
import sys

import pytest
from tiny import ROOT

import jobs
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
    flags = "complete dé/p.txt --out dé/o.jsonl --n_tokens_to_generate 2"
    result = shell(f"{sys.executable} {ROOT}/jobs.py {flags}".encode(), tmp_path, C_LOCALE)
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
        ("gpt2_v4_sampling.py Once --n_tokens_to_generate 1 >&-", 0, ""),
        ("jobs.py complete - <&-", 2, "error: standard input is closed, but - reads from it\n"),
    ],
)
def test_closed_streams(tmp_path, arguments, status, error):
    result = shell(f"{sys.executable} {ROOT}/{arguments}", tmp_path)
    assert (result.returncode, result.stderr) == (status, error)


def test_an_empty_name_for_the_results_is_refused(monkeypatch, capsys, tmp_path):
    (tmp_path / "p").write_text("Once", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["jobs.py", "complete", str(tmp_path / "p"), "--out", ""])
    with pytest.raises(SystemExit) as stopped:
        utils.run(jobs.COMMANDS)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: --out needs the name of a file\n"
