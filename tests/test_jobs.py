"""Files of prompts, and jobs that are killed and started again: each prompt has one result, that of an undisturbed run.

Most tests run v4's command in this process, with the bundled tokenizer and a tiny random model. The last part runs it
as processes of its own, on the bundled model, and kills them.
"""

# ruff: noqa: F401, F811 (fixtures come from model_files)
import gc
import io
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from model_files import assert_one_line, clean_environment, command, edge
from tiny import ROOT, random_model

import gpt2_v4_sampling as v4
import utils
from gpt2_io.prompts import read_prompts
from gpt2_io.results import complete_prompts

PROMPTS = ["Once upon a time", "The fox", "A", "The king said to his daughter that", "There was", "An old man"]
SAMPLING = ["--temperature", "1", "--n_tokens_to_generate", "3", "--batch_size", "2"]


@pytest.fixture(scope="module")
def encoder():
    return utils.load_model()[0]


@pytest.fixture
def tiny_model(monkeypatch, encoder):
    """Commands in this process use a model that takes no time."""
    model = random_model(np.float32, n_vocab=2048, n_embd=12, n_head=3, n_layer=1)
    monkeypatch.setattr(utils, "load_model", lambda *_: (encoder, {"n_head": 3, "n_ctx": 64}, model.params))


@pytest.fixture
def run(edge, tiny_model, tmp_path):
    """Run a job in tmp_path: run(*arguments) -> result. Prompts come from prompts.txt, results go to out.jsonl."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")

    def call(*arguments, prompts_file="prompts.txt", out="out.jsonl", sampling=SAMPLING):
        return edge(v4.main, "--prompts_file", tmp_path / prompts_file, "--out", tmp_path / out, *sampling, *arguments)

    return call


def assert_quiet(result, err=""):
    assert (result.returncode, result.stdout, result.stderr) == (0, "", err)


def results_in(path):
    """The results in a file, by index and sample; none may be there twice."""
    results = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_row = {(result["index"], result.get("sample", 0)): result for result in results}
    assert len(by_row) == len(results)
    return by_row


# ---- files of prompts


@pytest.fixture
def read(tmp_path):
    """What is read from a file with these bytes."""

    def call(data):
        (tmp_path / "p").write_bytes(data)
        return read_prompts((), str(tmp_path / "p"))

    return call


def test_a_prompt_a_line(read):
    prompts = ["one", " two ", "é🤗", "1", "[1, 2]", '"q"', "# x", "--n", "a\tb", "c\u2028d", "e\x0cf"]
    expected, text = [{"prompt": prompt} for prompt in prompts], "\n".join(prompts)
    for variant in (text, text + "\n", text.replace("\n", "\r\n"), text.replace("\n", "\n\n \n\t\r\n") + "\n\n"):
        assert read(variant.encode()) == expected
        assert read(b"\xef\xbb\xbf" + variant.encode()) == expected  # with a byte order mark, as Windows writes


def test_json_lines(read):
    records = [
        {"prompt": "one"},
        {"prompt": "two\nlines", "id": 7},
        {"id": {"any": ["JSON", None]}, "prompt": "é🤗"},
        {"prompt": "", "id": "x"},
        {"prompt": "same", "id": "x"},
    ]
    for ascii_only, ending in itertools.product((True, False), ("\n", "\r\n", "\n\n")):
        lines = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
        assert read(ending.join(lines).encode()) == records
        assert read(b"\xef\xbb\xbf" + (ending.join(lines) + ending).encode()) == records


def test_json_lines_may_have_more_keys(read):
    assert read(b'{"prompt": "a", "index": 9, "text": "?", "id": 1}') == [{"prompt": "a", "id": 1}]


def test_the_first_line_decides_what_a_file_is(read):
    assert read(b'Say:\n{"prompt": "a"}') == [{"prompt": "Say:"}, {"prompt": '{"prompt": "a"}'}]
    assert read(b'["prompt"]\n{broken') == [{"prompt": '["prompt"]'}, {"prompt": "{broken"}]


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", ["no prompts"]),
        (b"\n \n\r\n", ["no prompts"]),
        (b"\xef\xbb\xbf", ["no prompts"]),
        (b"caf\xe9", ["not UTF-8", "byte 3"]),
        ("UTF-16".encode("utf-16"), ["not UTF-8", "byte 0"]),
        (b'{"prompt": "a"}\n\n{"prompt": 1}', ["line 3", '"prompt"']),
        (b'{"prompt": "a"}\nplain', ["line 2", '"prompt"']),
        (b'{"prompt": "a"}\n{"promt": "b"}', ["line 2", '"prompt"']),
        (b'{"text": "a"}', ["line 1", '"prompt"']),
        (b"{}", ["line 1", '"prompt"']),
        (b'{"prompt": "a"}\n{"prompt": "b"', ["line 2"]),
        (b'{"prompt": "a"}\n' + b"[" * 100_000, ["line 2"]),
        (b'{"prompt": null}', ["line 1"]),
    ],
    ids=range(13),
)
def test_bad_files_are_refused_by_line_before_a_model_is_loaded(edge, monkeypatch, tmp_path, data, words):
    monkeypatch.setattr(utils, "load_model", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "p").write_bytes(data)
    assert_one_line(edge(v4.main, "--prompts_file", tmp_path / "p"), tmp_path / "p", *words)


def test_no_such_file_and_prompts_twice(edge, monkeypatch, tmp_path):
    monkeypatch.setattr(utils, "load_model", lambda *_: pytest.fail("the model was loaded"))
    assert_one_line(edge(v4.main, "--prompts_file", tmp_path / "none"), tmp_path / "none", "No such file")
    assert_one_line(edge(v4.main, "--prompts_file", tmp_path), tmp_path, "Is a directory")
    assert_one_line(edge(v4.main, "x", "--prompts_file", tmp_path / "p"), "--prompts_file", "not both")


def test_prompts_from_standard_input(edge, tiny_model, monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
        return edge(v4.main, "--prompts_file", "-", "--n_tokens_to_generate", "3", "--json")

    lines = [json.loads(line) for line in give("--x\né🤗\r\n".encode()).stdout.splitlines()]
    assert [(line["index"], line["prompt"]) for line in lines] == [(0, "--x"), (1, "é🤗")]
    assert_one_line(give(b"\xff"), "standard input", "not UTF-8")
    assert_one_line(give(b""), "standard input", "no prompts")


def test_one_prompt_in_a_file_prints_as_one_prompt_does(edge, tiny_model, tmp_path):
    (tmp_path / "p").write_text("The fox\n", encoding="utf-8")
    for more in ([], ["--stream"], ["--json"]):
        arguments = ["--n_tokens_to_generate", "5", *more]
        assert edge(v4.main, "--prompts_file", tmp_path / "p", *arguments) == edge(v4.main, "The fox", *arguments)


def test_a_prompt_of_a_file_that_is_too_long_is_named(run, tmp_path):
    (tmp_path / "long").write_text("short\n" + " a" * 80, encoding="utf-8")
    assert_one_line(run(prompts_file="long"), "prompt 1", "n_ctx is 64")
    assert not (tmp_path / "out.jsonl").exists()


# ---- results


def test_results_have_their_prompt_index_id_and_why_they_ended(run, tmp_path):
    lines = [{"prompt": prompt, "id": f"no. {n}"} for n, prompt in enumerate(PROMPTS)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert_quiet(run("--seed", "7", "--logprobs", "--n_samples", "2", prompts_file="p.jsonl"))
    results = results_in(tmp_path / "out.jsonl")
    assert sorted(results) == [(i, sample) for i in range(6) for sample in range(2)]
    for (i, _), result in results.items():
        assert (result["prompt"], result["id"]) == (PROMPTS[i], f"no. {i}")
        assert len(result["ids"]) == len(result["logprobs"]) == 3
        assert result["finish_reason"] == "length"
        assert result["logprob"] == sum(result["logprobs"])


def test_a_file_has_the_results_that_are_printed_otherwise(run, edge, tmp_path):
    assert_quiet(run("--seed", "7"))
    printed = edge(v4.main, *PROMPTS, *SAMPLING, "--seed", "7", "--json").stdout.splitlines()
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines() == printed


def test_prompts_on_the_command_line_can_be_a_job_too(edge, tiny_model, tmp_path):
    arguments = [*PROMPTS, *SAMPLING, "--seed", "7", "--out", tmp_path / "o"]
    assert_quiet(edge(v4.main, *arguments))
    first = (tmp_path / "o").read_bytes()
    assert_quiet(edge(v4.main, *arguments))
    assert (tmp_path / "o").read_bytes() == first and len(results_in(tmp_path / "o")) == 6


class Recorder:
    """In place of `generate`: continues each prompt by its length, and writes down which batches it was given.

    before(n) is called at the start of the n-th batch.
    """

    def __init__(self, before=lambda n: None, n_samples=1, text=(64,)):
        self.batches, self.before, self.n_samples, self.text = [], before, n_samples, list(text)

    def __call__(self, prompts, seeds, on_token):
        self.before(len(self.batches))
        self.batches.append([len(ids) for ids in prompts])
        assert len(seeds) == len(prompts) * self.n_samples
        return [self.text + [len(ids)] for ids in prompts for _ in range(self.n_samples)]


def complete(recorder, encoder, lengths, out, **settings):
    """Run `complete_prompts` for prompts of these lengths."""
    known = {"n_samples": 1, "stop": (), "batch_size": 4, "seed": None, "temperature": 0.0, "logprobs": False}
    known |= {"n_tokens_to_generate": 2, **settings}
    records = [{"prompt": "x" * length} for length in lengths]
    complete_prompts(recorder, encoder, records, [[64] * length for length in lengths], known, out=out)


def test_prompts_of_like_length_share_a_batch(encoder, tmp_path):
    """No other choice of batches of this size needs fewer pads: sorted, one after another."""
    lengths = np.random.default_rng(0).integers(1, 100, 50).tolist()
    recorder = Recorder()
    complete(recorder, encoder, lengths, tmp_path / "o", batch_size=8)
    assert list(map(len, recorder.batches)) == [8] * 6 + [2]
    assert [sorted(batch) for batch in recorder.batches] == [sorted(lengths)[i : i + 8] for i in range(0, 50, 8)]
    results = results_in(tmp_path / "o")
    assert {i: result["ids"][-1] for (i, _), result in results.items()} == dict(enumerate(lengths))


def test_each_batch_is_on_the_disk_before_the_next_begins(encoder, tmp_path, monkeypatch):
    """Written, and handed from the system to the disk."""
    out, synced = tmp_path / "o", []
    fsync = os.fsync

    def note(file):
        fsync(file)
        synced.append(os.fstat(file).st_size if os.path.samestat(os.fstat(file), os.stat(out)) else None)

    monkeypatch.setattr(os, "fsync", note)

    def before(n):
        assert len(results_in(out)) == 4 * n
        assert synced[-1] == (out.stat().st_size if n > 0 else None)

    complete(Recorder(before), encoder, [3] * 12, out)
    assert len(results_in(out)) == 12 and synced[-1] == out.stat().st_size


def test_results_leave_memory_when_they_are_written(encoder, tmp_path):
    """When a batch begins, the results of at most one batch are still there, however many there were."""
    alive = []

    def count(n):
        alive.append(sum(type(x) is dict and "finish_reason" in x for x in gc.get_objects()))

    complete(Recorder(count), encoder, [3] * 16, tmp_path / "o")
    assert len(alive) == 4 and max(alive) <= 4


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_shows_prompts_speed_and_time_left(encoder, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    complete(Recorder(), encoder, range(1, 13), tmp_path / "o", batch_size=1)
    assert re.search(r"12/12 \[\d\d:\d\d<\d\d:\d\d,.*prompt.*, \d+ tokens/s\]", terminal.getvalue())


def test_a_stream_and_a_bar_would_be_in_each_other_s_way(tiny_model, monkeypatch, capsys):
    """Both on one terminal: text alone."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for prompts in (PROMPTS[:1], PROMPTS):
        v4.main(*prompts, n_tokens_to_generate=3, batch_size=2, stream=True)
    assert capsys.readouterr().out and terminal.getvalue() == ""


def test_the_bar_of_a_resumed_job_begins_where_it_was(encoder, tmp_path, monkeypatch):
    def stop(n):
        if n == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(Recorder(stop), encoder, [3] * 12, tmp_path / "o")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    complete(Recorder(), encoder, [3] * 12, tmp_path / "o")
    assert re.findall(r"(\d+)/12 \[", terminal.getvalue())[0] == "8"


# ---- broken off and started again


def test_wherever_the_file_was_cut_the_job_ends_with_the_same_bytes(tiny_model, tmp_path, monkeypatch, capsys):
    """At each byte, as a kill may cut it. No seed is given: the job goes on with the seed that it began with."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # nothing loses power here, and 500 of them take their time
    out = tmp_path / "out.jsonl"

    def run():
        known = {"temperature": 1.0, "n_samples": 2, "n_tokens_to_generate": 2, "batch_size": 1}
        v4.main("Once upon", "The", **known, out=out)
        return capsys.readouterr()

    assert re.fullmatch(r"seed: \d+\n", run().err)
    whole = out.read_bytes()
    assert len(results_in(out)) == 4
    for size in range(1, len(whole) + 1):
        out.write_bytes(whole[:size])
        assert run() == ("", "")
        assert out.read_bytes() == whole, size


def test_a_job_that_was_killed_before_its_first_result_starts_anew(run, tmp_path):
    """With a seed of its own, if it is given none, and whatever was left of the file beside it."""
    first = run()
    for left_over in ("", '{"seed": 1', (tmp_path / "out.jsonl.job").read_text(encoding="utf-8")):
        (tmp_path / "out.jsonl").write_bytes(b"")
        (tmp_path / "out.jsonl.job").write_text(left_over, encoding="utf-8")
        again = run()
        assert re.fullmatch(r"seed: \d+\n", again.stderr) and again.stderr != first.stderr
        whole = (tmp_path / "out.jsonl").read_bytes()
        assert len(results_in(tmp_path / "out.jsonl")) == 6
        (tmp_path / "out.jsonl").write_bytes(whole[:400])
        assert_quiet(run())  # and goes on from there, should it be killed again
        assert (tmp_path / "out.jsonl").read_bytes() == whole


def test_only_what_is_left_is_done(encoder, tmp_path):
    """Two batches of three are whole, one result of the third is there, and the half of another one."""
    lengths, out = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], tmp_path / "o"
    complete(Recorder(), encoder, lengths, out)
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:9]) + lines[9][:20])
    recorder = Recorder()
    complete(recorder, encoder, lengths, out)
    assert recorder.batches == [[9, 10, 11, 12]]  # the batch as it was, since another one may be rounded otherwise
    assert out.read_bytes() == b"".join(lines)
    complete(Recorder(lambda n: pytest.fail("nothing is left")), encoder, lengths, out)
    assert out.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError("no more disk")], ids=str)
def test_whatever_ends_a_job_it_can_be_started_again(encoder, tmp_path, error):
    def fail(n):
        if n == 1:
            raise error

    complete(Recorder(), encoder, range(1, 12), tmp_path / "undisturbed")
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        complete(Recorder(fail), encoder, range(1, 12), tmp_path / "o")
    assert len(results_in(tmp_path / "o")) == 4
    complete(Recorder(), encoder, range(1, 12), tmp_path / "o")
    assert (tmp_path / "o").read_bytes() == (tmp_path / "undisturbed").read_bytes()


OTHERS = [
    ("temperature", "0.5"), ("top_k", "5"), ("top_p", "0.9"), ("min_p", "0.1"), ("repetition_penalty", "1.1"),
    ("n_tokens_to_generate", "4"), ("batch_size", "3"), ("seed", "8"), ("n_samples", "2"), ("stop", "x"),
    ("ignore_eos", "True"), ("logprobs", "True"), ("model", "124M"), ("models_dir", "elsewhere"),
]  # fmt: skip


def test_a_job_with_other_settings_is_refused_by_their_names(run, tmp_path):
    run("--seed", "7")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for flag, value in OTHERS:
        result = run("--seed", "7", f"--{flag}={value}")
        assert_one_line(result, tmp_path / "out.jsonl", f"other settings ({flag})")
    assert_one_line(run("--seed", "8", "--top_k", "5", "--min_p", "0.1"), "other settings (min_p, seed, top_k)")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert_quiet(run("--seed", "7"))  # the same ones are still welcome


def test_every_setting_of_the_command_is_remembered(run, tmp_path):
    """Each flag either changes the results, and is in the list above, or only where prompts and results go."""
    run("--seed", "7")
    stored = json.loads((tmp_path / "out.jsonl.job").read_text(encoding="utf-8"))
    assert set(stored) == {*(flag for flag, _ in OTHERS), "prompts"}
    flags = set(v4.main.__code__.co_varnames[: v4.main.__code__.co_kwonlyargcount])
    assert flags - set(stored) == {"json", "stream", "prompts_file", "out"}


def test_a_job_with_other_prompts_is_refused(run, tmp_path):
    """Their numbers would be the same, and the results would not belong together."""
    run("--seed", "7")
    for prompts in (PROMPTS[:5], [*PROMPTS, "more"], PROMPTS[::-1], [*PROMPTS[:5], "An old man "]):
        (tmp_path / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
        result = run("--seed", "7")
        assert result.returncode == 2 and "other settings (prompts)" in result.stderr
    (tmp_path / "prompts.txt").write_text("\r\n\n".join(PROMPTS) + "\n", encoding="utf-8")
    assert_quiet(run("--seed", "7"))  # the same prompts, written otherwise


def test_greedy_jobs_have_no_seed(run, tmp_path):
    sampling = SAMPLING[2:]
    assert_quiet(run(sampling=sampling))
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[:300])
    assert_quiet(run(sampling=sampling))
    assert (tmp_path / "out.jsonl").read_bytes() == whole


@pytest.mark.parametrize("data", [b"notes of mine", b"notes\nof mine\n", b'{"index": 0}\n', b"\n", b"\0"])
def test_a_file_that_is_no_job_s_is_left_as_it_is(run, tmp_path, data):
    (tmp_path / "out.jsonl").write_bytes(data)
    assert_one_line(run("--seed", "7"), tmp_path / "out.jsonl", "out.jsonl.job", "--out")
    assert (tmp_path / "out.jsonl").read_bytes() == data
    assert not (tmp_path / "out.jsonl.job").exists()


def test_the_file_of_prompts_is_not_taken_for_results(run, tmp_path):
    assert_one_line(run("--seed", "7", out="prompts.txt"), "prompts.txt")
    assert (tmp_path / "prompts.txt").read_text(encoding="utf-8") == "\n".join(PROMPTS)


@pytest.mark.parametrize("line", [b"?\n", b'{"index": 0\n', b"[]\n", b"\xff\n", b"null\n"])
def test_damaged_results_are_refused_and_left_as_they_are(run, tmp_path, line):
    run("--seed", "7")
    out = tmp_path / "out.jsonl"
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    before = out.read_bytes()
    assert_one_line(run("--seed", "7"), out, "JSON")
    assert out.read_bytes() == before


def test_damaged_settings_are_refused(run, tmp_path):
    run("--seed", "7")
    (tmp_path / "out.jsonl.job").write_text('{"seed": 7', encoding="utf-8")
    assert_one_line(run("--seed", "7"), "out.jsonl.job", "JSON")


def test_a_folder_that_does_not_exist(run, tmp_path):
    assert_one_line(run("--seed", "7", out="none/out.jsonl"), tmp_path / "none", "No such file")


def test_of_two_jobs_on_one_file_the_second_is_refused(encoder, tmp_path, capsys):
    def start_another(n):
        for settings in ({}, {"seed": 5}):
            with pytest.raises(ValueError, match="another job is writing it"):
                complete(Recorder(lambda n: pytest.fail("it began")), encoder, [3] * 12, tmp_path / "o", **settings)

    complete(Recorder(start_another), encoder, [3] * 12, tmp_path / "o")
    assert len(results_in(tmp_path / "o")) == 12
    complete(Recorder(lambda n: pytest.fail("nothing is left")), encoder, [3] * 12, tmp_path / "o")


# ---- real processes on the bundled model

WORDS = "Once upon a time there was king who had three daughters and the fox said to wolf old woman in forest".split()


def ragged_prompts(n):
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 25))) for _ in range(n)]


@pytest.fixture
def start(tmp_path):
    """Start v4's command as a process of its own, for prompts in a file: start(prompts, out) -> Popen."""

    def call(prompts, out, *arguments, **options):
        (tmp_path / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
        script = [sys.executable, str(ROOT / "gpt2_v4_sampling.py"), "--prompts_file", str(tmp_path / "prompts.txt")]
        arguments = ["--out", str(out), "--temperature", "0.9", "--top_p", "0.95", *arguments]
        return subprocess.Popen([*script, *arguments], cwd=ROOT, stderr=subprocess.PIPE, **options)

    return call


def finish(process):
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, b"")


def kill(process):
    """SIGKILL: nothing can be cleaned up. -> whether it was still at work."""
    at_work = process.poll() is None
    process.kill()
    process.communicate()
    return at_work


def wait_for(path, size, process):
    """Until a file has this size; the process that writes it must not end before."""
    while not path.exists() or path.stat().st_size < size:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.001)


def test_a_job_that_is_killed_ends_with_the_results_of_an_undisturbed_one(start, edge, tmp_path):
    """Killed when it has one, and when it has about half of its results."""
    prompts, out = ragged_prompts(40), tmp_path / "killed.jsonl"
    arguments = ["--seed", "7", "--n_tokens_to_generate", "6", "--batch_size", "2"]
    undisturbed = edge(v4.main, *prompts, *arguments, "--temperature", "0.9", "--top_p", "0.95", "--json").stdout
    for size in (1, len(undisturbed) // 2):
        process = start(prompts, out, *arguments)
        wait_for(out, size, process)
        assert kill(process)
    finish(start(prompts, out, *arguments))
    assert out.read_text(encoding="utf-8") == undisturbed
    assert len(results_in(out)) == 40


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are a matter of Unix")
def test_a_full_disk_is_one_line_and_the_job_goes_on_later(start, edge, tmp_path):
    """The system refuses to let a file grow beyond 2,000 bytes, in the middle of a batch."""
    import resource

    prompts, out = ragged_prompts(16), tmp_path / "full.jsonl"
    arguments = ["--seed", "7", "--n_tokens_to_generate", "4", "--batch_size", "4"]
    undisturbed = edge(v4.main, *prompts, *arguments, "--temperature", "0.9", "--top_p", "0.95", "--json").stdout
    assert len(undisturbed) > 2500

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    process = start(prompts, out, *arguments, preexec_fn=limit)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (2, b"error: [Errno 27] File too large\n")
    assert out.stat().st_size == 2000
    finish(start(prompts, out, *arguments))
    assert out.read_text(encoding="utf-8") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_500_prompts_killed_ten_times_at_random_moments(start, tmp_path, seed):
    prompts, arguments = ragged_prompts(500), ["--seed", "7", "--n_tokens_to_generate", "20"]
    began = time.monotonic()
    finish(start(prompts, tmp_path / "undisturbed.jsonl", *arguments))
    whole = time.monotonic() - began
    out, rng, n_kills = tmp_path / "killed.jsonl", random.Random(seed), 0
    while n_kills < 10:
        process = start(prompts, out, *arguments)
        time.sleep(rng.uniform(0, whole / 5))  # on average a tenth, of which the start takes a part
        n_kills += kill(process)
    finish(start(prompts, out, *arguments))
    assert out.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    assert sorted(results_in(out)) == [(i, 0) for i in range(500)]


# Run a script, and tell at the end how much memory it had at most. (What resource.getrusage says of a new process can
# be the memory of the one that started it.)
WITH_PEAK = """
import atexit, re, runpy, sys
def tell():
    print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status", encoding="ascii").read())[1], file=sys.stderr)
atexit.register(tell)
sys.argv = sys.argv[1:]
sys.path.insert(0, "")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak of memory from Linux' /proc")
def test_10_000_short_prompts_run_in_constant_memory(tmp_path):
    """For ten times as many prompts: no more than what the prompts themselves and their ids take."""

    def peak(n):
        prompts, out = tmp_path / f"{n}.txt", tmp_path / f"{n}.jsonl"
        prompts.write_text("\n".join(f"{i} {WORDS[i % len(WORDS)]}" for i in range(n)), encoding="utf-8")
        arguments = ["--prompts_file", str(prompts), "--out", str(out), "--n_tokens_to_generate", "10"]
        script = [sys.executable, "-c", WITH_PEAK, str(ROOT / "gpt2_v4_sampling.py")]
        result = subprocess.run([*script, *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=1800)
        assert result.returncode == 0, result.stderr
        assert sorted(results_in(out)) == [(i, 0) for i in range(n)]
        return int(result.stderr) / 1024  # MB

    few, many = peak(1000), peak(10_000)
    assert many - few < 25
    assert many < 250
