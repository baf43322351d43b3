"""Speed of jobs, many prompts with an end of their own: v7 and v8 beside v6, transformers and CTranslate2.

    python benchmarks/bench_jobs.py                       # everything: about 25 minutes on 2 cores
    python benchmarks/bench_jobs.py --only job-tales,lookup --rounds 5    # a piece of it

Needs the packages of the extra `bench`, as bench.py does; what is not installed is left out. Writes jobs.json, of which
docs/build.py makes tables. A case is measured in rounds, in which the sides take turns.
"""
import importlib.util
import json
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path

import fire
import numpy as np

import bench
import utils

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODELS = {"124M": None, "tales": "tales"}  # random weights of GPT-2 124M's size, and the bundled model
SIDES, PEERS = ("v6", "v7", "v8", bench.PEER, bench.ENGINE), (bench.PEER, bench.ENGINE)
N_PROMPTS, N_ROWS = 256, 16
NEW_LINE = 198  # in tales a paragraph is a line


# ---------------------------------------------------------------- the jobs


def tales_ids():
    """The ids of tales that the bundled model was not trained on."""
    encoder, _, _ = utils.load_model("tales")
    return encoder.encode((ROOT / "models" / "tales" / "held_out.txt").read_text(encoding="utf-8"))


def paragraphs():
    """-> (beginning, number of tokens that follow) of the first paragraphs, cut at a random place in the first half."""
    ids = tales_ids()
    rng = np.random.default_rng(0)
    ends = [i for i, token_id in enumerate(ids) if token_id == NEW_LINE]
    texts = [ids[begin + 1 : end] for begin, end in zip([-1, *ends], ends) if end - begin > 8]
    cuts = [int(rng.integers(3, len(text) // 2 + 1)) for text in texts[:N_PROMPTS]]
    return [(text[:cut], len(text) - cut) for text, cut in zip(texts, cuts)]


def job_of(name, hparams):
    """A job: prompts, the most new tokens of each, and the id at which a text ends, or None where lengths are given."""
    texts = paragraphs()
    if name == "tales":
        return {"prompts": [ids for ids, _ in texts], "limits": [100] * len(texts), "stop": NEW_LINE}
    # Random weights end nowhere, so each text gets the lengths of a paragraph. To save time, a quarter of these lengths
    # and of the texts.
    texts = texts[: N_PROMPTS // 4]
    lengths = [max(len(ids) // 4, 2) for ids, _ in texts]
    return {"prompts": bench.prompts_of(lengths, hparams), "limits": [max(n // 4, 1) for _, n in texts], "stop": None}


def sorted_batches(prompts, n_rows=N_ROWS):
    """Numbers of prompts in batches, the longest prompts first."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    return [order[i : i + n_rows] for i in range(0, len(order), n_rows)]


# ---------------------------------------------------------------- how each side does a job -> ids of each prompt


class Countdown:
    """To be called with a row for each of its tokens; says whether it was the last one."""

    def __init__(self, limits):
        self.left = list(limits)

    def __call__(self, row, *_):
        self.left[row] -= 1
        return self.left[row] == 0


def run_batches(side, prompts, limits, stop, n_rows=N_ROWS):
    """v6: fixed batches of prompts of like length. A row ends at its limit; a batch ends with its last row."""
    results = [None] * len(prompts)
    for batch in sorted_batches(prompts, n_rows):
        input_ids, mask = side.module.left_pad([prompts[i] for i in batch])
        n_new = [limits[i] for i in batch]
        call = {"stop_ids": () if stop is None else stop, "on_token": Countdown(n_new), "progress": False}
        found = side.module.generate(input_ids, side.params, side.n_head, max(n_new), mask, **call)
        for i, ids in zip(batch, found):
            results[i] = ids
    return results


def run_flat(side, prompts, limits, stop, n_rows=N_ROWS, **settings):
    """v7 and v8: all prompts in one call."""
    settings = {"stop_ids": () if stop is None else stop, "progress": False, "n_rows": n_rows, **settings}
    return side.module.generate(prompts, side.params, side.n_head, limits, **settings)


def run_transformers(side, prompts, limits, stop, n_rows=N_ROWS):
    """`generate` in fixed batches of prompts of like length."""
    torch, results = side.torch, [None] * len(prompts)
    for batch in sorted_batches(prompts, n_rows):
        arguments = side.padded([prompts[i] for i in batch])
        arguments.setdefault("attention_mask", torch.ones_like(arguments["input_ids"]))
        arguments.pop("position_ids", None)  # its `generate` makes them
        T, left = arguments["input_ids"].shape[1], torch.tensor([limits[i] for i in batch])
        call = {"do_sample": False, "max_new_tokens": max(left).item(), "pad_token_id": 0, "eos_token_id": stop}
        call["stopping_criteria"] = [lambda ids, scores, T=T, left=left: ids.shape[1] - T >= left]
        with torch.no_grad():
            found = side.model.generate(**arguments, **call)[:, T:].tolist()
        for i, ids in zip(batch, found):
            ids = ids[: limits[i]]
            results[i] = ids[: ids.index(stop)] if stop in ids else ids
    return results


def run_ctranslate2(side, prompts, limits, stop, n_rows=N_ROWS):
    """All prompts in one call, which sorts them into batches, and takes a row out of its batch when it ends."""
    countdown, texts = Countdown(limits), [[f"t{i}" for i in ids] for ids in prompts]
    call = {"max_batch_size": n_rows, "max_length": max(limits), "include_prompt_in_result": False}
    call |= {"end_token": [] if stop is None else f"t{stop}"}
    if len(set(limits)) > 1:
        call["callback"] = lambda token: countdown(token.batch_id)
    return [result.sequences_ids[0] for result in side.generator.generate_batch(texts, **call)]


RUN = {"v6": run_batches, "v7": run_flat, "v8": run_flat, bench.PEER: run_transformers, bench.ENGINE: run_ctranslate2}


# ---------------------------------------------------------------- measuring


class Flat:
    """v7 or v8, with the tiles that v6 has made; `steps` counts its forward passes."""

    def __init__(self, name, like):
        self.name, self.module = name, importlib.import_module(bench.FILES[name])
        self.params, self.n_head, self.steps = like.params, like.n_head, 0
        gpt2 = self.module.gpt2

        def counted(*args, **options):
            self.steps += 1
            return gpt2(*args, **options)

        self.module.gpt2 = counted


def make_sides(names, model, threads):
    """-> hparams, {name: side}."""
    hparams, params = bench.load(model)
    tiled = bench.make_side("v6", params, hparams, model, threads)
    sides = {name: Flat(name, tiled) for name in ("v7", "v8")}
    sides |= {"v6": tiled, **{name: bench.make_side(name, params, hparams, model, threads) for name in PEERS}}
    return hparams, {name: sides[name] for name in SIDES if name in names}


def measure(clock, runs, case):
    """The case with seconds, new tokens and steps of each side. runs: {label: (side, function -> lists of ids)}."""
    found, steps, clock_now = {}, {}, time.process_time if case["cpu"] else time.perf_counter

    def run(name):
        side, function = runs[name]
        before = getattr(side, "steps", None)
        begin = clock_now()
        found[name] = function()
        seconds = clock_now() - begin
        if before is not None:
            steps[name] = side.steps - before
        return seconds

    times = clock.race(label(case), {name: partial(run, name) for name in runs})
    ours = [ids for name, ids in found.items() if name not in PEERS]
    if case["part"] != "beams" and any(ids != ours[0] for ids in ours):
        raise utils.UserError(f"{label(case)}: the versions gave different ids")
    return {**case, "seconds": times, "tokens": {s: sum(map(len, ids)) for s, ids in found.items()}, "steps": steps}


def job_runs(sides, hparams, name):
    job = job_of(name, hparams)
    return {s: (side, partial(RUN[s], side, **job)) for s, side in sides.items()}


def equal_runs(sides, hparams, name):
    """As many prompts as rows, equally long, with equally many new tokens: nothing comes and goes."""
    job = {"prompts": bench.prompts_of([32] * N_ROWS, hparams), "limits": [64] * N_ROWS, "stop": None}
    return {s: (side, partial(RUN[s], side, **job)) for s, side in sides.items()}


def prefill_runs(sides, hparams, name):
    """8 prompts of 16 to 512 tokens, each until its first new token: in a batch, flat, and one after the other."""
    longest = min(512, hparams["n_ctx"])
    prompts = bench.prompts_of(np.linspace(16, longest, 8).astype(int).tolist(), hparams)
    v7, runs = sides["v7"], {s: (side, partial(RUN[s], side, prompts, [1] * 8, None)) for s, side in sides.items()}
    alone = partial(run_flat, v7, limits=[1], stop=None)
    return runs | {"v7, one by one": (v7, lambda: [ids for prompt in prompts for ids in alone([prompt])])}


def prefix_runs(sides, hparams, name):
    """100 prompts that begin with the same 400 tokens; and the same where `reuse` finds nothing."""
    start, *ends = bench.prompts_of([400] + [10] * 100, hparams)
    call = partial(run_flat, sides["v7"], [start + ids for ids in ends], [10] * 100, None)
    module, reuse = sides["v7"].module, sides["v7"].module.reuse

    def start_anew(kv_cache, row, ids, others):
        kv_cache["ids"][row].clear()
        return True

    def without():
        module.reuse = start_anew
        try:
            return call()
        finally:
            module.reuse = reuse

    return {"v7": (sides["v7"], call), "v7 without reuse": (sides["v7"], without)}


def lookup_runs(sides, hparams, name, what, rows):
    """Texts that repeat themselves, more or less, by v7 and v8."""
    rng, settings, n = np.random.default_rng(0), {}, 100
    if what == "loop":
        prompts = [bench.prompts_of([16], hparams)[0] * 4]
    elif what == "code":
        ids = utils.load_model("tales")[0].encode((ROOT / "gpt2_v0.py").read_text(encoding="utf-8"))
        prompts = [ids[i : i + 200] for i in rng.integers(0, len(ids) - 200, 8)]
    else:
        ids = tales_ids()
        starts = rng.integers(0, len(ids) - 300, 32).tolist()
        prompts, n = [ids[i : i + length] for i, length in zip(starts, rng.integers(10, 60, 32))], 200
        if what == "again":
            prompts, n = [ids[i : i + 220] + [NEW_LINE] * 2 + ids[i : i + 12] for i in starts[:8]], 100
    if what == "sampled":
        prompts, n, settings = prompts[:16], 100, {"temperature": 1.0, "seed": 0}
    call = {"prompts": prompts, "limits": [n] * len(prompts), "stop": None, "n_rows": rows, **settings}
    return {s: (sides[s], partial(run_flat, sides[s], **call)) for s in ("v7", "v8")}


def beams_runs(sides, hparams, name):
    """32 greedy texts by v9, without guesses, and the best of 8 prompts with 4 beams: as many rows."""
    v9, prompts, n = Flat("v9", sides["v7"]), bench.prompts_of([1] * 32, hparams), 16
    greedy = partial(run_flat, v9, prompts, [n] * 32, None, n_rows=32, n_draft=0)
    search = {"n_beams": 4, "n_best": 4, "progress": False}

    def beams():
        found = v9.module.beam_search(prompts[::4], v9.params, v9.n_head, n, **search)
        return [ids for best in found for ids, _ in best]

    return {"v9, 32 greedy rows": (v9, greedy), "v9, 8 prompts with 4 beams": (v9, beams)}


RUNS = {"job": job_runs, "equal": equal_runs, "prefill": prefill_runs, "prefix": prefix_runs, "lookup": lookup_runs}
RUNS["beams"] = beams_runs
CASES = [{"part": part, "name": name, "rows": N_ROWS} for part in ("job", "equal", "prefix") for name in MODELS]
CASES += [{"part": "prefill", "name": name, "rows": 8} for name in MODELS]
CASES += [{"part": "lookup", "name": "124M", "what": "loop", "rows": 1}]
CASES += [
    {"part": "lookup", "name": "tales", "what": what, "rows": rows}
    for what in ("greedy", "sampled", "again", "code") for rows in (1, 8)
]  # fmt: skip
CASES += [{"part": "beams", "name": name, "rows": 32} for name in MODELS]
WITH_PEERS = ("job",)


def label(case):
    return "-".join(str(case[key]) for key in ("part", "name", "what", "rows") if key in case)


def main(only=None, sides=None, rounds=3, threads=None, cpu=False, out=None):
    """Measure, and write jobs.json: what is measured again takes the place of what was there.

    Args:
        only: beginnings of the cases' names, with commas between them: job, lookup-tales-greedy.
        sides: of the jobs: some of v6, v7, v8, transformers, ctranslate2, with commas between them; without it, all.
        rounds: how often each case is measured.
        threads: threads of every side; without it, one per core.
        cpu: count seconds of the processor and not of the clock, with one thread, where a machine is not idle.
        out: the file to write instead of benchmarks/jobs.json.
    """
    asked = ("",) if only is None else tuple(only.split(",") if isinstance(only, str) else only)
    names = SIDES if sides is None else sides.split(",") if isinstance(sides, str) else sides
    path = Path(out) if out else HERE / "jobs.json"
    threads, with_torch = 1 if cpu else threads or utils.count_threads(), bench.has_peer()
    installed = with_torch and [s for s in PEERS if importlib.util.find_spec(s)]
    bench.set_threads(threads, with_torch)
    machine = bench.describe_machine(threads, with_torch)
    for name, model in MODELS.items():
        cases = [case for case in CASES if case["name"] == name and label(case).startswith(asked)]
        peers = installed if installed and any(case["part"] in WITH_PEERS for case in cases) else ()
        if not cases:
            continue
        hparams, made = make_sides([s for s in names if s not in PEERS or s in peers], model, threads)
        for case in cases:
            there = {s: side for s, side in made.items() if case["part"] in WITH_PEERS or s not in PEERS}
            options = {key: case[key] for key in ("what", "rows") if case["part"] == "lookup"}
            runs = RUNS[case["part"]](there, hparams, name, **options)
            now = {**case, "date": date.today().isoformat(), "machine": machine, "cpu": cpu}
            found = measure(bench.Clock(rounds), runs, now)
            results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cases": []}
            others = [other for other in results["cases"] if label(other) != label(case)]
            order = list(map(label, CASES))
            cases_now = sorted([*others, found], key=lambda c: order.index(label(c)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"cases": cases_now}, indent=1) + "\n", encoding="utf-8")
            show(found)


def show(case):
    """A line for each side: how long it took, at the median."""
    for side, times in case["seconds"].items():
        seconds, n = float(np.median(times)), case["tokens"][side]
        steps = f", {n / case['steps'][side]:.2f} tokens a step" if side in case["steps"] else ""
        print(f"{label(case)}: {side} {seconds:.2f} s, {n / seconds:.0f} tokens a second{steps}", flush=True)


if __name__ == "__main__":
    try:
        fire.Fire(main)
    except ValueError as error:
        sys.exit(f"error: {error}")
