"""gpt2_v6_threads.py: the bits of v5 with any number of threads, and threads that are no trouble to anybody."""
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tiny import ROOT, VERSIONS, assert_same_bits, random_model, random_prompts

import gpt2_v5_exact as v5
import gpt2_v6_threads as v6
import utils
from gpt2_io import cores

V5, V6 = (next(version for version in VERSIONS if version.number == number) for number in (5, 6))
SIZES = {
    "tiny": {"n_vocab": 300, "n_embd": 12, "n_head": 3, "n_layer": 2},
    "odd": {"n_vocab": 23, "n_embd": 35, "n_head": 5, "n_layer": 1},
    "768 wide": {"n_vocab": 200, "n_embd": 768, "n_head": 12, "n_layer": 1},
}


@pytest.fixture(autouse=True)
def as_many_as_before():
    yield
    v6.use_threads()


@pytest.fixture
def split_all(monkeypatch):
    """Every piece of work is split, however small."""
    monkeypatch.setattr(v6, "SMALL", 1)


@pytest.mark.blas
@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("size", ["tiny", "odd", pytest.param("768 wide", marks=pytest.mark.slow)])
def test_the_bits_of_v5_with_any_number_of_threads(split_all, size, threads):
    model = random_model(np.float32, n_ctx=192, **SIZES[size])
    prompts = random_prompts([1, 4, 9, 64, 65, 130], model.n_vocab)
    expected = V5.logits(model, prompts)
    v6.use_threads(threads)
    assert_same_bits(V6.logits(model, prompts), expected)
    assert_same_bits(V6.cached_logits(model, prompts, [65, 63, 1, 1]), expected)
    assert_same_bits(V6.logits(model, prompts[2:3]), expected[2:3])


def test_in_longdouble_the_bits_of_v4(split_all):
    v4 = next(version for version in VERSIONS if version.number == 4)
    model = random_model()
    prompts = random_prompts([1, 9, 64])
    v6.use_threads(3)
    assert_same_bits(V6.logits(model, prompts), v4.logits(model, prompts))


@pytest.mark.parametrize(
    "threads, n, work, n_parts", [(1, 9, 10, 1), (3, 9, 10, 3), (3, 2, 10, 2), (7, 9, 3, 2), (7, 9, 1, 1)]
)
def test_parts_make_up_the_whole_and_are_worth_a_thread(monkeypatch, threads, n, work, n_parts):
    """At least 10 multiplications for each thread, never more threads than things, and the caller is one of them."""
    monkeypatch.setattr(v6, "SMALL", 10)
    v6.use_threads(threads)
    parts, all_at_once = [], threading.Barrier(n_parts)

    def function(part):
        all_at_once.wait(60)  # breaks, unless as many threads come
        parts.append((part.start, part.stop, threading.get_ident()))

    v6.parallel(function, n, work)
    assert len(parts) == len({ident for _, _, ident in parts}) == n_parts
    assert threading.get_ident() in {ident for _, _, ident in parts}
    assert [i for start, stop, _ in sorted(parts) for i in range(start, stop)] == list(range(n))


@pytest.mark.parametrize("threads", [1, 3])
def test_no_part_is_larger_than_what_is_taken_at_once(split_all, threads):
    v6.use_threads(threads)
    parts = []
    v6.parallel(lambda part: parts.append((part.start, part.stop)), 50, work=1, at_once=7)
    assert max(stop - start for start, stop in parts) <= 7
    assert [i for start, stop in sorted(parts) for i in range(start, stop)] == list(range(50))
    v6.parallel(parts.append, 0, work=1, at_once=7)  # nothing to do


@pytest.mark.parametrize("error", [MemoryError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_an_error_in_any_thread_reaches_the_caller_when_all_have_stopped(split_all, where, error):
    v6.use_threads(3)
    begun, ended = [], []

    def function(part):
        begun.append(part)
        if part.start == where:
            raise error
        ended.append(part)

    with pytest.raises(error):
        v6.parallel(function, 3, work=1)
    assert len(begun) == 3 and len(ended) == 2
    v6.parallel(function, 0, work=1)  # and the threads go on working
    v6.parallel(lambda part: ended.append(part), 3, work=1)
    assert len(ended) == 5


def test_an_error_of_the_model_reaches_the_caller(split_all, monkeypatch):
    def attention(q, k, v, masks):
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no memory left")
        return v5.attention(q, k, v, masks)

    monkeypatch.setattr(v6, "attention", attention)
    model = random_model(np.float32)
    v6.use_threads(2)
    with pytest.raises(MemoryError, match="no memory left"):
        V6.logits(model, random_prompts([3, 5]))


def child_logits(connection, model, prompts):
    connection.send(V6.logits(model, prompts))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_was_forked_has_threads_of_its_own(split_all):
    model = random_model(np.float32)
    prompts = random_prompts([3, 9])
    v6.use_threads(3)
    expected = V6.logits(model, prompts)  # the threads are there now
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=child_logits, args=(there, model, prompts))
    child.start()
    assert here.poll(60), "the forked process waits for threads that it has not"
    assert_same_bits(here.recv(), expected)
    child.join(60)
    assert child.exitcode == 0
    assert_same_bits(V6.logits(model, prompts), expected)


AT_WORK = """
import signal, sys
import numpy as np
import gpt2_v6_threads as v6

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started in the background
v6.SMALL = 1
v6.use_threads(3)
v6.parallel(lambda part: None, 3, 1)
print("ready", flush=True)
while "forever" in sys.argv:
    v6.parallel(lambda part: np.ones((200, 200)) @ np.ones((200, 200)), 3, 1)
"""


@pytest.mark.slow
def test_no_thread_outlives_the_process():
    child = subprocess.run([sys.executable, "-c", AT_WORK], cwd=ROOT, capture_output=True, timeout=60)
    assert (child.returncode, child.stdout.split(), child.stderr) == (0, [b"ready"], b"")


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT of its own for a child there")
def test_ctrl_c_ends_all_threads():
    child = subprocess.Popen([sys.executable, "-c", AT_WORK, "forever"], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(60) in (130, -signal.SIGINT)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="only Linux tells what each thread has used")
def test_idle_threads_use_no_time(split_all):
    """However long this one computes, the others neither run nor are charged for it."""

    def used():
        paths = [Path(f"/proc/self/task/{thread.native_id}/stat") for thread in others]
        fields = [path.read_text(encoding="utf-8").rpartition(")")[2].split() for path in paths]
        return [(field[0], field[11], field[12]) for field in fields]  # state, ticks as user and as system

    v6.use_threads(3)
    gates = [threading.Event() for _ in range(3)]

    def work(part):  # all at once, so that each has a thread of its own
        gates[part.start].set()
        for gate in gates:
            assert gate.wait(60)

    v6.parallel(work, 3, work=1)
    others = list(v6.pool(3, os.getpid())._threads)
    assert len(others) == 2
    for _ in range(10_000):  # on their way to sleep
        if not any(state == "R" for state, *_ in used()):
            break
    before, x = used(), np.ones((64, 64))
    for _ in range(10_000):
        np.matmul(x, x, out=x)
        x /= 64
    assert used() == before


def test_threads_are_made_when_they_are_needed_and_kept(split_all):
    v6.use_threads(4)
    for _ in range(20):
        v6.parallel(lambda part: None, 4, work=1)
    names = [thread.name for thread in threading.enumerate()]
    assert v6.pool(4, os.getpid()) is v6.pool(4, os.getpid())
    assert len(v6.pool(4, os.getpid())._threads) <= 4, names


@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_the_command_takes_a_number_of_threads(edge, threads):
    command = [sys.executable, "gpt2_v6_threads.py", "One day", "--n_tokens_to_generate", "5", "--threads", threads]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    expected = edge(v5.main, "One day", "--n_tokens_to_generate", "5")
    assert (child.returncode, child.stdout, child.stderr) == (0, expected.stdout, "")


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_a_number_of_threads_that_makes_no_sense_is_refused(threads):
    with pytest.raises(utils.UserError, match="^threads must be a whole number, 1 or more"):
        v6.use_threads(threads)


# ---- how many


@pytest.mark.parametrize(
    "value, expected", [("3", 3), ("4,2", 4), (" 2 ", 2), ("0", 5), ("", 5), ("many", 5), ("-1", 5)]
)
def test_omp_num_threads(monkeypatch, value, expected):
    monkeypatch.setattr(cores, "count_cores", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert cores.count_threads() == expected
    v6.use_threads()
    assert v6.use_threads.n == expected
    v6.use_threads(2)
    assert v6.use_threads.n == 2


@pytest.mark.parametrize("quota, expected", [(math.inf, 8), (2.0, 2), (1.5, 2), (0.2, 1), (16, 8)])
def test_cores_are_those_the_process_is_bound_to_and_may_use(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "read_quota", lambda: quota)
    assert cores.count_cores() == expected


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
    ],
    ids=str,
)
def test_quotas_of_containers(monkeypatch, tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    assert cores.read_quota() == expected
