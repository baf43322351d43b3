"""Give each reader in `gpt2_io` broken files, and say so if one does anything but load them or refuse them clearly.

    python tools/fuzz.py safetensors --runs 100000 --seed 1
    python tools/fuzz.py all --runs 1000000 --out fuzz.json

With atheris (pip install atheris) the inputs that reach new lines of the readers are kept and changed further; without
it, or with --guided=False, random changes are made to valid files. What counts as a fault: any error but the two kinds
that `utils.run` shows as one line, UserError and OSError; a message that is empty, too long or does not name the
place; a warning; more than SECONDS; more memory than MEMORY allows; a file opened outside of the model's folder.
Inputs with a fault are kept in tests/faults, one for each kind, and tests/test_fuzz.py reads them ever after.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]
HAS_ATHERIS, HAS_GGUF = (importlib.util.find_spec(name) is not None for name in ("atheris", "gguf"))
IS_WORKER = __name__ == "__main__" and sys.argv[1:2] == ["worker"]  # the process that atheris takes over
READERS = ["gpt2_io", "zipfile", "numpy.lib._format_impl", "gguf.gguf_reader"]  # whose lines guide it
if IS_WORKER:
    import atheris
with atheris.instrument_imports(include=READERS) if IS_WORKER else contextlib.nullcontext():
    import utils

    if HAS_GGUF:
        import gguf  # noqa: F401

import numpy as np  # noqa: E402
from fuzz_targets import TARGETS, change  # noqa: E402

SECONDS = 1  # of the processor; of the clock ten times as many, as the machine may be busy
MESSAGE = 1000  # characters
# Traced bytes: 1 MB, and so many for each byte of the folder. As objects of Python, JSON is larger than as text: "{},"
# is a dict of 64 bytes and 8 in a list, a prompt of one letter a dict of 184. The gguf package makes two arrays of each
# string, and Python's re, which looks for added tokens, 145 bytes of each letter of a pattern.
MEMORY = {"": 64, "prompts": 200, "gguf": 150}
MEMORY |= dict.fromkeys(("tokenizer_json", "tokenizer_config", "added_tokens", "special_tokens_map"), 160)
FAULTS = ROOT / "tests" / "faults"


# ---- the judge


class Slow(BaseException):
    """Raised by the clock; no reader catches it."""


WATCHED = {"folder": None, "opened": []}
OURS = tuple(os.path.realpath(path) + os.sep for path in {ROOT, sys.prefix, sys.base_prefix})


def watch(event, args):
    """An audit hook: notes what is opened outside of the folder. Links are followed; modules are not meant."""
    if event == "open" and WATCHED["folder"] and isinstance(args[0], (str, bytes)):
        path = os.path.realpath(os.fsdecode(args[0]))
        is_module = path.startswith(OURS) and path.endswith((".py", ".pyc", ".so"))
        if not is_module and not f"{path}{os.sep}".startswith(WATCHED["folder"] + os.sep):
            WATCHED["opened"].append(path)


sys.addaudithook(watch)


def ring(*_):
    if WATCHED["clocks"]:
        WATCHED["clocks"] = False
        raise Slow


def set_clocks(seconds):
    """Start two clocks, of which the first to ring is heard; 0 stops them."""
    WATCHED["clocks"] = seconds > 0
    for clock, bell, factor in ((signal.ITIMER_PROF, signal.SIGPROF, 1), (signal.ITIMER_REAL, signal.SIGALRM, 10)):
        signal.signal(bell, ring)
        signal.setitimer(clock, factor * seconds)


def judge(name, target, folder, data, traced=True, again=True):
    """Give a reader the data -> "loaded", "refused" or "fault", and a text that says which fault and where.

    traced: measure the memory, which takes most of the time. Otherwise that is done if the process has become larger.
    """
    (folder / target.file).write_bytes(data)
    size = sum(path.lstat().st_size for path in folder.iterdir())
    limit = 1_000_000 + MEMORY.get(name, MEMORY[""]) * size
    WATCHED.update(folder=os.path.realpath(folder), opened=[])
    outcome, fault = "loaded", None
    if traced:
        tracemalloc.start()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resource else 0
    has_clock = hasattr(signal, "setitimer")  # not on Windows, where what hangs hangs
    began = time.process_time()
    try:
        try:
            if has_clock:
                set_clocks(SECONDS)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # it would be a line too many on the screen
                target.read(folder)
        finally:
            try:
                if has_clock:
                    set_clocks(0)  # one may ring at this very moment
            finally:
                if has_clock:
                    set_clocks(0)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                WATCHED["folder"] = None
    except (utils.UserError, OSError) as error:
        message = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        outcome, message = "refused", " ".join(message.split())  # as utils.run shows it
        if not message:
            fault = f"a message without words: {place_of(error)}"
        elif len(message) > MESSAGE:
            fault = f"a message of too many characters from {place_of(error)}"
        elif str(folder) not in message:
            fault = f"a message that does not say where: {place_of(error)}"
    except KeyboardInterrupt:
        raise
    except Slow:
        fault = "slow"
    except BaseException as error:  # a panic of tiktoken's is no Exception
        fault = f"{type(error).__name__} from {place_of(error)}"
    if time.process_time() - began > SECONDS:
        fault = "slow"
    if peak > limit:
        fault = "memory"
    if fault == "slow" and again:  # the machine may have been busy, and tracing takes up to 15 times as long
        return judge(name, target, folder, data, traced=False, again=False)
    if not traced and again and resource and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > rss + 1000:
        return judge(name, target, folder, data)
    if WATCHED["opened"]:
        fault = "opens a file outside of the folder"
    return ("fault", fault) if fault else (outcome, None)


def place_of(error):
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}, {frame.name}: {frame.line}"


# ---- many inputs


@contextlib.contextmanager
def prepared(name):
    """A target and its folder, in memory where the system has a place for that."""
    parent = tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    folder = Path(parent) / "model"
    folder.mkdir()
    try:
        target = TARGETS[name][0](folder)
        for seed in target.seeds:  # what Python imports late is there from now on
            judge(name, target, folder, seed)
        yield target, folder
    finally:
        shutil.rmtree(parent)


def try_one(count, name, target, folder, data, faults, traced=True):
    """Judge an input and count it; the shortest one of each kind of fault is kept in the folder `faults`."""
    outcome, fault = judge(name, target, folder, data, traced)
    count["inputs"] += 1
    count[outcome] += 1
    if fault:
        path = Path(faults) / f"{name}-{hashlib.sha256(fault.encode()).hexdigest()[:8]}"
        if not path.exists() or path.stat().st_size > len(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        count["faults"][path.name] = fault


def new_count():
    return {"inputs": 0, "loaded": 0, "refused": 0, "fault": 0, "faults": {}, "seconds": 0.0}


def plain(name, runs, seed, faults):
    """Random changes to valid files -> counts. The same inputs for the same seed."""
    count, began = new_count(), time.monotonic()
    with prepared(name) as (target, folder):
        for n in range(runs):
            rng = random.Random(f"{name} {seed} {n}")
            data = change(target, rng.choice(target.seeds), rng)
            while rng.random() < 0.4:
                data = change(target, data, rng)
            try_one(count, name, target, folder, data, faults)
    return {**count, "seconds": time.monotonic() - began}


def guided_run(name, runs, seed, faults):
    """As `plain`, in a process of its own, which atheris takes over and does not give back -> counts."""
    with tempfile.TemporaryDirectory() as parent:
        report, arguments = Path(parent) / "count.json", [sys.executable, __file__, "worker", name]
        arguments += [str(runs), str(seed), str(faults), parent]
        process = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if report.exists():
            return json.loads(report.read_text(encoding="utf-8"))
        # Killed by the system, or by libFuzzer for more than RSS MB: it leaves the input behind.
        count = {**new_count(), "fault": 1, "faults": {"died": process.stderr.decode(errors="replace")[-2000:]}}
        for path in Path(parent).glob("*-*"):
            Path(faults).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path(faults) / f"{name}-{path.name[-8:]}")
            count["faults"]["died"] = f"{name}-{path.name[-8:]}: {count['faults']['died']}"
        return count


RSS = 1000  # MB, for the whole process: bounds what tracemalloc does not see
TRACED = 8  # of so many inputs, the memory of one is measured


def worker(name, runs, seed, faults, parent):
    count, began, parent = new_count(), time.monotonic(), Path(parent)
    with prepared(name) as (target, folder):

        def one(data):
            try_one(count, name, target, folder, data, faults, traced=count["inputs"] % TRACED == 0)
            if count["inputs"] == int(runs):
                shutil.rmtree(folder.parent)
                count["seconds"] = time.monotonic() - began
                (parent / "count.json").write_text(json.dumps(count), encoding="utf-8")
                os._exit(0)

        def mutate(data, max_size, seed):
            rng = random.Random(seed)
            if rng.random() < 0.4:  # what leads to new lines is broken, as a rule; here is something that loads
                data = rng.choice(target.seeds)
            data = atheris.Mutate(data, max_size) if rng.random() < 0.2 else change(target, data, rng)
            return data[:max_size]

        corpus = parent / "corpus"
        corpus.mkdir()
        for n, data in enumerate(target.seeds):
            (corpus / str(n)).write_bytes(data)
        settings = ["-runs=-1", f"-seed={seed}", f"-rss_limit_mb={RSS}", "-timeout=0", "-max_len=131072"]
        settings += ["-len_control=0", f"-artifact_prefix={parent}/"]
        atheris.Setup([name, *settings, str(corpus)], one, custom_mutator=mutate)
        atheris.Fuzz()


def main(target, runs=10_000, seed=1, out="", guided=HAS_ATHERIS, faults=str(FAULTS)):
    """Give one reader, or all of them, so many inputs, and print what became of them.

    Args:
        target: a reader, or all.
        runs: how many inputs, in all.
        seed: for the random changes.
        out: a file for the counts, as JSON.
        guided: use atheris; without it, the inputs depend on the seed alone.
        faults: the folder for inputs with a fault.
    """
    if target != "all" and target not in TARGETS:
        raise utils.UserError(f"no reader {target!r}; there are {', '.join(TARGETS)}, and all")
    if guided and not HAS_ATHERIS:
        raise utils.UserError("--guided needs atheris: pip install atheris")
    names = [name for name in TARGETS if name != "gguf" or HAS_GGUF] if target == "all" else [target]
    shares = {name: TARGETS[name][1] for name in names}
    counts = {}
    print(f"{'reader':18} {'inputs':>9} {'loaded':>9} {'refused':>9} {'faults':>7} {'seconds':>8}")
    for name in names:
        n = -(-runs * shares[name] // sum(shares.values()))  # rounded up
        count = counts[name] = (guided_run if guided else plain)(name, n, seed, faults)
        row = [count[key] for key in ("inputs", "loaded", "refused", "fault")]
        print(f"{name:18} {row[0]:9,} {row[1]:9,} {row[2]:9,} {row[3]:7,} {count['seconds']:8.0f}", flush=True)
        for file, fault in count["faults"].items():
            print(f"    {file}: {fault}", flush=True)
    keys = ("inputs", "loaded", "refused", "fault", "seconds")
    total = [sum(count[key] for count in counts.values()) for key in keys]
    print(f"{'all':18} {total[0]:9,} {total[1]:9,} {total[2]:9,} {total[3]:7,} {total[4]:8.0f}")
    if out:
        about = {"seed": seed, "guided": guided, "python": sys.version.split()[0], "numpy": np.__version__}
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps({**about, "readers": counts}, indent=1) + "\n", encoding="utf-8")
    if total[3]:
        sys.exit(1)


if __name__ == "__main__":
    if IS_WORKER:
        worker(*sys.argv[2:])
    else:
        utils.run(main)
