"""Jobs on Ray: the results of the same job on one machine, in other files, whatever dies on the way.

The first part needs Ray and PyArrow, but starts nothing: what Ray Data would call elsewhere is called here. The second
starts Ray, with simulated machines.
"""
import contextlib
import datetime
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from model_files import CONFIG, assert_one_line, command, write_folder
from tiny import ROOT, random_model

import jobs
import utils

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("clean_environment")]

WORDS = [" the", " fox", "A", " king", "\n", " said", " é", " to his daughter"]
DRAWN = ("--temperature", "0.8", "--n_tokens_to_generate", "4", "--seed", "7")


def ragged(n, seed=0, most=30):
    """Lines with settings of their own, errors, equal ones, and things to hand through."""
    rng, lines = random.Random(seed), []
    for i in range(n):
        line = {"id": i, "prompt": "".join(rng.choices(WORDS, k=rng.randrange(1, most)))}
        line |= {"prompt": " a" * 99} if i % 10 == 9 else {}
        line |= {"temperature": 0} if i % 7 == 0 else {}
        line |= {"max_tokens": 3, "note": rng.choice([1, "x", None, [1.5], {"a": "é"}])} if i % 11 == 0 else {}
        line |= {"stop": ["a"]} if i % 13 == 0 else {}
        line |= {"logprobs": True} if i % 17 == 0 else {}
        line |= {"seed": i} if i % 19 == 0 and line.get("temperature", 1) else {}
        lines.append(line)
    same = [{"prompt": "The fox"}] * 5 + [{"prompt": "A", "temperature": 0}] * 4 + [{"id": 1}] * 3
    return lines + same + [{"prompt": "A", "temperature": 0, "id": k} for k in range(3)]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def lines_of(folder):
    """All lines of a folder of JSON lines, sorted."""
    return sorted(line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines(keepends=True))


def sorted_lines(path):
    return sorted(path.read_bytes().splitlines(keepends=True))


# ---- without starting Ray


@pytest.fixture
def batches(monkeypatch):
    """Ray Data's work is done in this process, two actors are allowed -> the sizes of the batches that were made."""
    from gpt2_io import ray_jobs

    made = []

    def run(job, calls, actors=None, is_lost=None):
        for name, argument in calls:
            there = pickle.loads(ray_jobs.ray.cloudpickle.dumps(job))
            if actors:
                _, _, (use_threads, params) = actors
                there.task = there.make_task(ray_jobs.with_params(there.model, params[0]), False)
                made.append(len(argument["numbers"]))
            for item in pickle.loads(ray_jobs.answer(there, {"call": [pickle.dumps((name, argument))]})["items"][0]):
                if isinstance(item, str):
                    raise utils.UserError(item)
                yield item

    monkeypatch.setattr(ray_jobs, "run", run)
    monkeypatch.setattr(ray_jobs, "connected", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(ray_jobs, "cores_of_machines", lambda: [2])
    monkeypatch.setattr(ray_jobs.ray, "put", lambda value: value)
    return made


@pytest.fixture(scope="module")
def encoder():
    return utils.load_model()[0]


@pytest.fixture
def run(edge, encoder, monkeypatch, tmp_path):
    """Run complete on a tiny random model: run(lines or a path, out, *arguments) -> result."""
    params = random_model(np.float32, n_vocab=2048, n_embd=12, n_head=3, n_layer=1).params
    hparams = {"n_head": 3, "n_ctx": 64, "n_vocab": 2048}
    monkeypatch.setattr(utils, "load_model", lambda *_, **__: (encoder, hparams, params))

    def call(lines, out, *arguments):
        path = write_lines(tmp_path / "prompts.jsonl", lines) if isinstance(lines, list) else lines
        out = out if "://" in str(out) else tmp_path / out
        return edge(jobs.COMMANDS, "complete", path, "--out", out, *arguments)

    return call


@pytest.fixture
def same(run, batches, tmp_path):
    """Run a job here and on Ray: same(lines, *arguments) -> its folder, with the same lines."""

    def call(lines, *arguments, out="out"):
        (tmp_path / "local.jsonl").unlink(missing_ok=True)
        status = run(lines, "local.jsonl", *arguments).returncode
        assert run(lines, out, "--ray", *arguments).returncode == status < 2
        assert lines_of(tmp_path / out) == sorted_lines(tmp_path / "local.jsonl")
        assert {path.suffix for path in (tmp_path / out).iterdir()} == {".jsonl"}
        return tmp_path / out

    return call


def made_again(batches):
    n = sum(batches)
    batches.clear()
    return n


FULL = ("-n", "full", "--truncate", "left", "--temperature", "1")


@pytest.mark.parametrize("flags", [DRAWN, (*DRAWN, "--n_samples", "3"), FULL], ids=["drawn", "samples", "full"])
def test_the_lines_are_those_of_a_job_on_one_machine(same, batches, flags):
    """With settings, errors and equal lines; and again with another --rows, where nothing is left to do."""
    lines = ragged(20)
    same(lines, *flags, "--rows", 5)
    assert made_again(batches) == len(lines)
    same(lines, *flags, "--rows", 2)
    assert batches == []


def test_text_and_a_folder_are_read_as_one_file_would_be(same, run, batches, tmp_path, monkeypatch):
    """In pieces of a few bytes each, hidden files left out, equal lines counted through all files."""
    from gpt2_io import folders

    monkeypatch.setattr(folders, "PIECE", 7)
    texts = ["The fox", "", "A king\r", "The fox", " \t", "é" * 9, "A", "The fox"]
    (tmp_path / "plain").write_text("\ufeff" + "\n".join(texts), encoding="utf-8")
    same(tmp_path / "plain", *DRAWN)
    (tmp_path / "in" / "b").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("\n".join(texts[:4]), encoding="utf-8")
    (tmp_path / "in" / "b" / "c.txt").write_text("\n".join(texts[4:]), encoding="utf-8")
    for name in ("_SUCCESS", ".hidden", "empty"):
        (tmp_path / "in" / name).write_text("" if name == "empty" else "hidden", encoding="utf-8")
    (tmp_path / "plain").write_text("\n".join(texts), encoding="utf-8")
    run(tmp_path / "plain", "whole.jsonl", *DRAWN)
    for place in (tmp_path / "in", f"file://{tmp_path}/in"):
        out = tmp_path / f"folder{len(batches)}"
        assert run(place, f"file://{out}" if "://" in str(place) else out, "--ray", *DRAWN).returncode == 0
        assert lines_of(out) == sorted_lines(tmp_path / "whole.jsonl")


def test_every_piece_of_a_file_has_its_own_lines_under_their_numbers(tmp_path, monkeypatch):
    from gpt2_io import folders

    rng, path = random.Random(0), tmp_path / "x.txt"
    for _ in range(200):
        data = bytes(rng.choices(b"ab\n\n", k=rng.randrange(1, 60)))
        path.write_bytes(data)
        monkeypatch.setattr(folders, "PIECE", rng.randrange(1, 9))
        found = []
        for piece in folders.pieces_of(str(path)):
            for i, line in enumerate(folders.read_lines(piece)):
                found.append(line)
                assert folders.number_of(piece, i) == len(found)
        assert found == data.removesuffix(b"\n").split(b"\n")


def write_parquet(path, lines, **options):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lines), path, **options)
    return path


def test_a_row_of_parquet_is_the_line_of_json_that_says_the_same(run, batches, tmp_path):
    lines = [{"id": i, "prompt": f"The {i} fox", "label": None if i % 2 else f"é{i}"} for i in range(20)]
    lines = [{**line, **({"temperature": 0.0} if line["id"] % 3 else {"max_tokens": 2})} for line in lines]
    names = ("id", "prompt", "label", "temperature", "max_tokens")
    rows = [{name: line.get(name) for name in names} for line in lines]
    write_parquet(tmp_path / "in.parquet", rows, row_group_size=7)
    lines = [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert run(lines, "local.jsonl", *DRAWN).returncode == 0
    assert run(tmp_path / "in.parquet", "out", "--ray", *DRAWN).returncode == 0
    assert lines_of(tmp_path / "out") == sorted_lines(tmp_path / "local.jsonl")


def test_beams_and_rules(run, batches, tmp_path):
    lines = [{"prompt": word, "bad_words": " the"} if i % 3 else {"prompt": word, "n_tokens_to_generate": i}
             for i, word in enumerate(WORDS)]  # fmt: skip
    flags = ("--n_beams=3", "--n_best=2", "-n", "4", "--no_repeat_ngram_size=2")
    assert run(lines, "local.jsonl", *flags).returncode == 0
    for kind in ([], ["--parquet"]):
        assert run(lines, f"out{len(kind)}", "--ray", *kind, *flags).returncode == 0
        batches.clear()
        assert run(lines, f"out{len(kind)}", "--ray", *kind, *flags).returncode == 0 and not batches
    assert lines_of(tmp_path / "out0") == sorted_lines(tmp_path / "local.jsonl")
    import pyarrow.parquet

    scores = pyarrow.parquet.read_table(tmp_path / "out1")["score"].to_pylist()
    local = [json.loads(line) for line in sorted_lines(tmp_path / "local.jsonl")]
    assert sorted(filter(None, scores)) == sorted(filter(None, (one.get("score") for one in local)))


@pytest.mark.parametrize("flags", [DRAWN, (*DRAWN, "--n_samples", "2", "--logprobs")])
def test_parquet_says_what_the_lines_of_json_say(run, batches, tmp_path, flags):
    import pyarrow.parquet

    lines = [*ragged(60), {"prompt": [5, 6], "big": 2**70, "x": 1}, {"prompt": "half", "x": 2, "half": "\ud800"}]
    run(lines, "local.jsonl", *flags)
    assert run(lines, "out", "--ray", "--parquet", *flags).returncode == 1
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".parquet"}
    table = pyarrow.parquet.read_table(tmp_path / "out")
    as_json = json.loads(table.schema.metadata[b"json"])
    assert {*as_json} == {"note", "big", "prompt", "half"} and str(table.schema.field("x").type) == "int64"
    rows = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    rows = [{name: json.loads(value) if name in as_json else value for name, value in row.items()} for row in rows]
    expected = map(json.loads, sorted_lines(tmp_path / "local.jsonl"))
    assert sorted(map(repr_of, rows)) == sorted(map(repr_of, expected))
    batches.clear()
    next((tmp_path / "out").iterdir()).unlink()
    assert run(lines, "out", "--ray", "--parquet", *flags).returncode == 1
    assert 0 < made_again(batches) < len(lines) and pyarrow.parquet.read_table(tmp_path / "out").num_rows == len(rows)
    assert_one_line(run(lines, "out", "--ray", *flags), ".parquet", "give another --out")


def repr_of(line):
    return json.dumps(line, sort_keys=True)


def test_only_what_is_missing_is_made(same, run, batches, tmp_path):
    """Files removed, lines edited, prompts added, removed and under other labels; nothing is there twice."""
    lines = ragged(60)
    out = same(lines, *DRAWN, "--rows", 3)
    made_again(batches)
    gone = sorted(out.iterdir())[::2]
    n_gone = sum(len(path.read_bytes().splitlines()) for path in gone)
    for path in gone:
        path.unlink()
    same(lines, *DRAWN)
    assert made_again(batches) == n_gone
    path = next(path for path in out.iterdir() if path.read_bytes().count(b"\n") > 3)
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first.replace(b'"check": "', b'"check": "0') + b"".join(rest))
    result = run(lines, "out", "--ray", *DRAWN)
    assert f"{path}: edited or cut, so made again: line 1" in result.stderr and made_again(batches) == 1
    (out / "twice.jsonl").write_bytes(b"".join(rest))
    same(lines, *DRAWN)
    assert batches == []
    same([*lines[5:], {"prompt": "new", "id": "new"}], *DRAWN)
    assert made_again(batches) == 1
    same([*lines[:5], *lines[10:]], *DRAWN)
    assert made_again(batches) == 5


def test_what_has_its_key_there_is_not_computed_again_for_another_label(same, batches, monkeypatch):
    lines = [{"prompt": f"The {i % 3}", "id": i} for i in range(9)]
    generated, complete_batch = [], jobs.complete_batch
    monkeypatch.setattr(jobs, "complete_batch", lambda *a: (generated.append(len(a[1])), complete_batch(*a)))
    same(lines, "-n", 3)
    assert generated == [3, 3]  # here, and on Ray: each key once
    same([{**line, "label": "new"} for line in lines], "-n", 3)
    assert generated == [3, 3, 3] and made_again(batches) == 18


def test_what_a_killed_job_wrote_after_the_next_had_begun_is_not_there_twice(run, same, batches, tmp_path, monkeypatch):
    from gpt2_io import ray_jobs

    lines = ragged(40)
    out = same(lines, *DRAWN)
    late = max(out.iterdir(), key=lambda path: path.stat().st_size)
    data, make_all = late.read_bytes(), ray_jobs.make_all
    late.unlink()
    monkeypatch.setattr(ray_jobs, "make_all", lambda *a: (late.write_bytes(data), make_all(*a)))
    same(lines, *DRAWN)
    assert not late.exists()


@pytest.mark.parametrize(
    "line, words",
    [
        ({"prompt": "a", "top_p": 2}, ("line 31", "top_p")),
        ({"prompt": "a", "ids": [1]}, ("line 31", "ids")),
        ({"prompt": "a", "model": "other"}, ("line 31", "model")),
        ("{", ("line 31", "not valid")),
        (b"\xff", ("line 31", "UTF-8")),
    ],
)
def test_a_line_that_makes_no_sense_is_named_before_anything_is_made(run, batches, tmp_path, monkeypatch, line, words):
    from gpt2_io import folders

    monkeypatch.setattr(folders, "PIECE", 50)
    path = write_lines(tmp_path / "p.jsonl", ragged(30)[:30])
    line = line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
    path.write_bytes(path.read_bytes() + line + b'\n{"prompt": "b"}\n')
    assert_one_line(run(path, "out", "--ray", *DRAWN), "p.jsonl", *words)
    assert batches == []


def test_mistakes_are_one_line(run, batches, tmp_path):
    lines, out = [{"prompt": "The fox"}], tmp_path / "out"
    assert_one_line(run(lines, "out", "--ray", "--actors", 3), "--actors 3", "2 CPUs", "2 or fewer")
    assert_one_line(run(lines, "out", "--ray", "--actors", 0), "--actors")
    assert_one_line(run("-", "out", "--ray"), "--ray reads a file")
    assert_one_line(run(tmp_path, "out", "--ray"), "lies within the prompts")
    assert_one_line(run(tmp_path / "none", "out", "--ray"), "none", "No such file")
    assert_one_line(run("nonsense://x", "out", "--ray"), "nonsense://x", "URI")
    assert_one_line(run(lines, "prompts.jsonl", "--ray"), "lies within the prompts")
    (tmp_path / "file").touch()
    assert_one_line(run(lines, "file", "--ray"), "is a file")
    assert_one_line(run(tmp_path / "file", "out", "--ray"), "no prompts in it")
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    assert_one_line(run(lines, "out", "--ray"), "notes.txt", "give another --out")
    (out / "notes.txt").rename(out / "notes.jsonl")
    assert_one_line(run(lines, "out", "--ray"), "notes.jsonl", "no result", "give another --out")
    (out / "notes.jsonl").unlink()
    assert run(lines, "out", "--ray").returncode == 0
    assert_one_line(run(lines, "out", "--ray", "-n", 5), "none of its 1 results is of this job")
    assert_one_line(run(lines, "out", "--ray", "--top_k", 5), "top_k changes nothing at temperature 0")
    write_parquet(tmp_path / "x.parquet", [{"prompt": "a", "day": datetime.date(2026, 1, 2)}])
    assert_one_line(run(tmp_path / "x.parquet", "new", "--ray"), "x.parquet", "column day", "date")
    (tmp_path / "y.parquet").write_text("no", encoding="utf-8")
    assert_one_line(run(tmp_path / "y.parquet", "new", "--ray"), "y.parquet", "no Parquet file")
    assert batches == [1]


def test_two_jobs_never_write_into_one_folder(run, batches, monkeypatch):
    from gpt2_io import ray_jobs

    second, make_all = [], ray_jobs.make_all
    lines = [{"prompt": "The fox"}]

    def start_another(*arguments):
        monkeypatch.setattr(ray_jobs, "make_all", make_all)
        second.append(run(lines, "out", "--ray"))
        make_all(*arguments)

    monkeypatch.setattr(ray_jobs, "make_all", start_another)
    assert run(lines, "out", "--ray").returncode == 0
    assert_one_line(second[0], "_lock", "another job is writing it")


def test_prompts_that_change_while_the_job_runs_end_it(run, batches, tmp_path, monkeypatch):
    from gpt2_io import ray_jobs

    make_all, path = ray_jobs.make_all, tmp_path / "prompts.jsonl"

    def change(*arguments):
        path.write_bytes(path.read_bytes().replace(b"fox", b"dog"))
        make_all(*arguments)

    monkeypatch.setattr(ray_jobs, "make_all", change)
    assert_one_line(run([{"prompt": "The fox"}], "out", "--ray"), "prompts.jsonl", "it was changed while the job ran")


@pytest.mark.parametrize("address, words", [("127.0.0.1:9", "refused"), ("auto", "No Ray here"), ("x://y", "x://y")])
def test_where_no_ray_answers_is_one_line_and_at_once(monkeypatch, address, words):
    from gpt2_io import ray_jobs

    def init(address, **options):
        raise ConnectionError("No Ray\n here") if address == "auto" else ValueError(address)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_jobs.ray, "init", init)
    with pytest.raises(utils.UserError, match=f"--ray_address {address}: .*{words}"):
        with ray_jobs.connected(address, 0):
            pass
    if address == "auto":
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with pytest.raises(utils.UserError, match="--ray_address auto: .*refused"), ray_jobs.connected(address, 0):
            pass


@pytest.mark.parametrize(
    "cores, n_actors, expected",
    [([1], None, (1, 1)), ([2], None, (2, 1)), ([8], 2, (2, 4)), ([8], 3, (3, 2)), ([0, 4, 2], 3, (3, 2)),
     ([0, 4, 2], None, (6, 1)), ([1, 1], 2, (2, 1))],
)  # fmt: skip
def test_cores_are_shared_out(monkeypatch, cores, n_actors, expected):
    """Actors are whole cores, as many for each; no more of them than there are cores."""
    from gpt2_io import ray_jobs

    monkeypatch.setattr(ray_jobs, "cores_of_machines", lambda: cores)
    assert ray_jobs.share_out(n_actors) == expected
    with pytest.raises(utils.UserError, match=f"--actors {sum(cores) + 1}: .*give {sum(cores)} or fewer"):
        ray_jobs.share_out(sum(cores) + 1)


# ---- Ray itself


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """2,000 ragged prompts, a small model, and what a job on one machine makes of them.

    What is smaller than 100 kB Ray hands over, in place of mapping it into each process.
    """
    folder = tmp_path_factory.mktemp("job")
    write_folder(folder / "model", {**CONFIG, "n_positions": 128, "n_embd": 48})
    assert (folder / "model" / "model.safetensors").stat().st_size > 200_000
    prompts = write_lines(folder / "prompts.jsonl", ragged(1985, most=10))
    flags = ["--model", folder / "model", "--temperature", "0.8", "--n_tokens_to_generate", "4"]
    local = ["--out", folder / "local.jsonl", "--rows", "64"]
    result = command("complete", prompts, *local, *flags, script="jobs.py", timeout=300)
    assert result.returncode == 1, result
    flags += ["--rows", "4"]  # 63 batches
    return SimpleNamespace(prompts=prompts, flags=flags, lines=sorted_lines(folder / "local.jsonl"))


@pytest.fixture
def own_network(monkeypatch):
    """Ray's processes call each other by this machine's address, which conftest.py's guard takes for the network.

    And they get their share of a busy machine: Ray's own way is to let everything else go first.
    """
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if Path(path).name != "offline"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")


@pytest.fixture
def start(job, own_network, tmp_path):
    """Start the job on Ray as a process of its own: start(*arguments) -> Popen. It ends with the test."""
    processes = []

    def call(*arguments, prompts=job.prompts, **options):
        arguments = ["complete", prompts, "--out", tmp_path / "out", "--ray", *job.flags, *arguments]
        arguments = [str(argument) for argument in (sys.executable, ROOT / "jobs.py", *arguments)]
        options = {"cwd": tmp_path, "stderr": subprocess.PIPE, "encoding": "utf-8", **options}
        processes.append(subprocess.Popen(arguments, **options))
        return processes[-1]

    yield call
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(own_network):
    """Two machines of a core each, simulated here -> Cluster; the other one may go."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    cluster.size = size
    try:
        cluster.other = cluster.add_node(**size)
        yield cluster
    finally:
        cluster.shutdown()


def finish(process, n=2000):
    """The job has done what it could, and said so in its last line; those before it tell how far it is."""
    _, err = process.communicate(timeout=200)
    *before, last = err.splitlines()
    assert process.returncode == 1 and f"of {n} prompts could not be done" in last, err
    assert all(f"of {n} prompts, " in line for line in before), err


def wait_for_files(process, folder, n):
    """Until n batches are there, of 63."""
    end = time.monotonic() + 200
    while len(list(folder.glob("*.jsonl"))) < n:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end, list(folder.iterdir())
        time.sleep(0.02)


def test_three_machines_write_what_one_writes(job, start, cluster, tmp_path, monkeypatch):
    cluster.add_node(**cluster.size)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)  # there may be other clusters here
    finish(start("--ray_address", "auto"))
    assert lines_of(tmp_path / "out") == job.lines
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".jsonl"}


def test_a_machine_is_killed_half_way(job, start, cluster, tmp_path):
    """There is no room for its actor on the one that is left."""
    process = start("--ray_address", cluster.address)
    wait_for_files(process, tmp_path / "out", 20)
    cluster.remove_node(cluster.other, allow_graceful=False)
    finish(process)
    assert lines_of(tmp_path / "out") == job.lines


def children(process):
    """Processes that a process has started -> {number: command}."""
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8", errors="replace")
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds actors in Linux' /proc")
def test_an_actor_is_killed_every_few_seconds(job, start, cluster, tmp_path):
    """Six times at most, for a busy machine's sake; in small batches, so that the job outlasts some kills."""
    process, killed, end = start("--ray_address", cluster.address, "--rows", "1"), [], time.monotonic() + 200
    while process.poll() is None and len(killed) < 6 and time.monotonic() < end:
        raylets = [machine.all_processes["raylet"][0].process.pid for machine in cluster.list_all_nodes()]
        actors = [child for raylet in raylets for child, name in children(raylet).items() if "Actor" in name]
        if actors and any((tmp_path / "out").glob("*.jsonl")):
            killed.append(random.choice(actors))
            os.kill(killed[-1], signal.SIGKILL)
            time.sleep(3)
        time.sleep(0.1)
    finish(process)
    assert len(killed) > 1 and lines_of(tmp_path / "out") == job.lines


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_the_driver_is_killed_and_started_anew(job, start, request, tmp_path, where):
    """By a kill here; on a cluster by Ctrl-C, and then with other --rows and --actors. What is there stays."""
    how, status, flags = signal.SIGKILL, -signal.SIGKILL, []
    if where == "cluster":
        how, status, flags = signal.SIGINT, 130, ["--ray_address", request.getfixturevalue("cluster").address]
    out, process = tmp_path / "out", start(*flags)
    wait_for_files(process, out, 20)
    process.send_signal(how)
    process.communicate()
    assert process.returncode == status
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.jsonl")}
    finish(start(*flags, *(["--rows", "8", "--actors", "1"] if flags else [])))
    assert lines_of(out) == job.lines
    assert before.items() <= {path: path.stat().st_mtime_ns for path in out.iterdir()}.items()
    assert {path.suffix for path in out.iterdir()} == {".jsonl"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="takes cores away")
@pytest.mark.parametrize("n_cores", [1, 2])
def test_a_job_ends_where_all_cores_have_an_actor(job, start, tmp_path, n_cores):
    """By default it is so: nothing else waits for a core while actors hold them."""
    cores = sorted(os.sched_getaffinity(0))[:n_cores]
    if len(cores) < n_cores:
        pytest.skip("this machine has one core")
    prompts = write_lines(tmp_path / "prompts.jsonl", ragged(35))
    finish(start(prompts=prompts, preexec_fn=lambda: os.sched_setaffinity(0, cores)), 50)
    assert len(lines_of(tmp_path / "out")) == 50


def test_the_cluster_file_has_the_form_that_ray_expects():
    import jsonschema
    import ray.autoscaler
    import yaml
    from ray.autoscaler._private.local.config import prepare_local

    config = yaml.safe_load((ROOT / "docs" / "cluster.yaml").read_text(encoding="utf-8"))
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(config, schema)
    prepared = prepare_local(config)
    prepared = prepared if isinstance(prepared, dict) else prepared[0]  # as in Ray 2.50
    assert prepared["available_node_types"]["local.cluster.node"]["min_workers"] == 1  # beside the head
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "head_start": []}, schema)
