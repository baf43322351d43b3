"""A job on Ray: actors on many machines make batches, and what was lost with one of them is made again.

First all lines are looked at, which gives each the key and the seed that it has in a job on one machine. Then batches
of those that are missing are handed to actors. Ray Data does both: it spreads, waits and repeats.
"""
import contextlib
import functools
import os
import pickle
import socket
import sys
import time

import numpy as np

from gpt2_io.cores import count_cores
from gpt2_io.errors import UserError
from gpt2_io.results import Progress, open_locked
from gpt2_io.settings import check_settings

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or Ray reports to its makers
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray 2.50 warns of what later ones do
INSTALL = "pip install 'ray[data]>=2.50'"
try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from gpt2_io import folders  # needs PyArrow
    from gpt2_io.batches import FarIndex, Folder, Job, with_params
except ImportError:
    raise UserError(f"--ray needs Ray with its part for data: {INSTALL}") from None


def run_job(
    make_task, load, use_threads, path, out, rows, seed, n_samples, address, n_actors, is_parquet, **kinds
):  # fmt: skip
    """As run_job of jobs.py, into a folder, with a file for each batch.

    make_task(Model, False) -> Completing; load() -> Model; use_threads(n): how many a model uses from then on.
    address: of a Ray that runs, None to start one on this machine.
    """
    check_settings(batch_size=rows, seed=seed, n_samples=n_samples)
    if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 50):
        raise UserError(f"Ray {ray.__version__} is too old: {INSTALL}")
    if n_actors is not None and n_actors < 1:
        raise UserError(f"--actors must be 1 or more, not {n_actors}")
    if out in (None, "", "-") or path == "-":
        raise UserError("--ray reads a file, a folder or a URI, and needs --out, a folder or a URI")
    path, out = (place if "://" in place else os.path.abspath(place) for place in (path, out))
    (system, root), (out_system, out_root) = map(folders.open_place, (path, out))
    if system.equals(out_system) and f"{out_root}/".startswith(f"{root}/"):
        raise UserError(f"{out}: lies within the prompts: give another --out")
    pieces = folders.pieces_of(path)
    if not pieces:
        raise UserError(f"{path}: no prompts in it")
    folders.make_folder(out)
    with contextlib.ExitStack() as at_end:
        at_end.enter_context(locked(out))
        model = load()
        params, job = model.params, Job(make_task, model, out, rows, seed, n_samples, kinds)
        del model
        folder = Folder(job, is_parquet)
        at_end.enter_context(connected(address, n_bytes_of(params)))
        share_out(n_actors)  # or refuse it now
        calls = [("look", piece) for piece in pieces] + [("look_at_results", path) for path in folder.paths]
        looks = list(run(job, calls))
        index = FarIndex([look for look in looks if "piece" in look], job)
        if not len(index):
            raise UserError(f"{path}: no prompts in it")
        job.task.check(index)
        job.columns = folders.columns_of(index.looks, n_samples, job.task.fields) if is_parquet else None
        missing, sources = folder.compare(index, [look for look in looks if "path" in look])
        n_errors, n_missing = int(np.count_nonzero(index.groups < 0)), int(np.count_nonzero(missing.any(axis=1)))
        progress = Progress(len(index), n_errors)
        at_end.callback(progress.close)
        progress.done(len(index) - n_missing)
        # Enough batches for all actors to end together, of 8 times as many texts as run at once where there are many.
        n = min(max(n_missing // (4 * share_out(n_actors)[0]), rows), 8 * rows)
        batches = index.batches(missing, sources, max(n // n_samples, 1), folder.suffix)
        weights = [ray.put(params)] if batches else []
        del params
        make_all(job, batches, (use_threads, weights), n_actors, progress)
        folder.finish(batches)
        progress.close()
    if n_errors:
        print(f'{n_errors} of {len(index)} prompts could not be done in {out}: see "error" there', file=sys.stderr)
        sys.exit(1)


@contextlib.contextmanager
def locked(out):
    """Hold the lock of a folder on this machine, so that no two jobs write into it. Elsewhere there is none."""
    if not folders.is_local(out):
        yield
        return
    path = f"{folders.open_place(out)[1]}/_lock"
    with open_locked(path):
        yield
        os.unlink(path)


@contextlib.contextmanager
def connected(address, n_bytes):
    """Within, there is Ray: the one at an address, or one on this machine alone, with room for weights of n_bytes."""
    options = {"address": address or "local", "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"num_cpus": count_cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        options |= {"object_store_memory": int(1.1 * n_bytes) + (200 << 20)}  # and for what is on its way
    try:
        answers(os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address)
        ray.init(**options)
    except (RuntimeError, ValueError, OSError) as error:  # another version, no address, nobody there
        where, what = f"--ray_address {address}" if address else "Ray", getattr(error, "strerror", None) or str(error)
        raise UserError(f"{where}: {' '.join(what.split())}") from None
    try:
        yield
    finally:
        ray.shutdown()


def answers(address):
    """Raise OSError if nobody listens at HOST:PORT, which Ray would ask for minutes."""
    host, _, port = (address or "").rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def n_bytes_of(tree):
    if not isinstance(tree, (dict, list)):
        return np.asarray(tree).nbytes
    return sum(map(n_bytes_of, tree.values() if isinstance(tree, dict) else tree))


def cores_of_machines():
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


def share_out(n_actors):
    """-> number of actors, one a core if it is None, and threads of each, which are the cores that it reserves."""
    cores = cores_of_machines()
    n_actors = n_actors or sum(cores)
    if not 0 < n_actors <= sum(cores):
        what = f"Ray has {sum(cores)} CPUs, and an actor takes one at least"
        raise UserError(f"--actors {n_actors}: {what}: give {max(sum(cores), 1)} or fewer, or Ray more machines")
    return n_actors, max(n for n in range(1, max(cores) + 1) if sum(core // n for core in cores) >= n_actors)


# ---------------------------------------------------------------- Ray Data, in a process of its own


class Lost(Exception):
    """A machine is gone, and those that are left have no room for its actors."""


def run(job, calls, actors=None, is_lost=lambda: False):
    """Have Ray Data call methods of Job, (name, argument) each -> the items of what they return, as they come.

    actors: their number, their cores, and what Actor needs; without it, tasks do it. Ray Data waits for a machine that
    is gone, maybe for ever; so it runs in a process of its own, which ends when is_lost(). Raises Lost then.
    """
    rows = [{"call": pickle.dumps(call)} for call in calls]
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_retries": 0, "num_returns": "streaming", "scheduling_strategy": here}
    found = ray.remote(run_data).options(**options).remote(rows, [ray.put(job)], actors)
    try:
        while True:
            ready, _ = ray.wait([found], timeout=1)
            if is_lost():
                raise Lost
            if ready:
                try:
                    row = next(found)
                except StopIteration:
                    return
                for item in pickle.loads(ray.get(row)["items"]):
                    if isinstance(item, str):
                        raise UserError(item)
                    yield item
    finally:
        ray.cancel(found, force=True)


def run_data(rows, job, actors):
    """A generator that Ray runs. job: [a reference], since Ray itself would look into one that is not in a list."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    if hasattr(context, "max_consecutive_actor_init_deaths"):  # a newer Ray would end at the first
        context.max_consecutive_actor_init_deaths = 3
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    if actors is None:
        data = data.map_batches(in_task, batch_size=1, fn_kwargs={"job": job})
    else:
        n_actors, n_cores, known = actors
        size = ray.data.ActorPoolStrategy(size=n_actors, max_tasks_in_flight_per_actor=2)
        known = {"fn_constructor_args": (job, n_cores, *known), "num_cpus": n_cores}
        data = data.map_batches(Actor, batch_size=1, compute=size, **known)
    yield from data.iter_rows()


@functools.cache
def fetch(ref):
    """What lies in Ray's store, once in a process. Arrays stay in there, where all processes of a machine see them."""
    return ray.get(ref)


def in_task(batch, job):
    return answer(fetch(job[0]), batch)


class Actor:
    """Holds a model, whose weights are the one copy in its machine's store, and makes batches."""

    def __init__(self, job, n_cores, use_threads, weights):
        use_threads(n_cores)
        self.job = fetch(job[0])
        self.job.task = self.job.make_task(with_params(self.job.model, fetch(weights[0])), False)

    def __call__(self, batch):
        return answer(self.job, batch)


def answer(job, batch):
    """What a call returns, as Ray Data has it; a mistake of the user's is a text."""
    name, argument = pickle.loads(batch["call"][0])
    try:
        items = list(getattr(job, name)(argument))
    except MemoryError as error:
        items = [f"not enough memory: {error}: the same command with a smaller --rows goes on from here"]
    except (UserError, OSError) as error:
        named = getattr(error, "filename", None)
        items = [f"{named}: {error.strerror}, on machine {socket.gethostname()}" if named else str(error)]
    return {"items": [pickle.dumps(items)]}


def make_all(job, todo, known, n_actors, progress):
    """Have batches made, {name of the file: batch}; on fewer machines when one is gone. known: for Actor."""
    kinds, machines, checked, n_failures = set(), set(), [time.monotonic()], 0
    while todo:
        n_before, failure = len(todo), None
        n_now, n_cores = share_out(n_actors)
        n_now = min(n_now, n_before)

        def is_lost(n_now=n_now, n_cores=n_cores):
            if time.monotonic() < checked[0] + 2:
                return False
            checked[0] = time.monotonic()
            return sum(cores // n_cores for cores in cores_of_machines()) < n_now

        calls = [("make", batch) for batch in todo.values()]
        try:
            for done in run(job, calls, (n_now, n_cores, known), is_lost):
                if done["machine"] not in machines and not folders.exists(job.out, done["name"]):
                    what = f"machine {done['machine']} writes into a folder of its own"
                    raise UserError(f"{job.out}: {what}: give an --out that all machines see")
                machines.add(done["machine"])
                kinds.add(done["kind"])
                progress.count(done["n_tokens"])
                progress.done(progress.n_done + done["n_lines"])
        except Lost:
            n_actors = min(n_actors, sum(cores_of_machines())) if n_actors else None
        except ray.exceptions.RayError as error:
            failure = error
        todo = {name: batch for name, batch in todo.items() if not folders.exists(job.out, name)}
        n_failures = n_failures + 1 if failure and len(todo) == n_before else 0
        if n_failures == 3:  # in a row, and nothing came of it
            raise failure
    if len(kinds) > 1:
        print(f"note: machines differ, and so may the last bits: {'; '.join(sorted(kinds))}", file=sys.stderr)
