"""What the pages say about speed and about the kernels of BLAS: measured once, kept in docs/measured, read by build.py.

    python docs/build.py --measure

The costs in EXACT were noted by hand. They stand for kernels under which no file of results has v6.
"""
import datetime
import importlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import utils

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SPEED = DOCS / "measured" / "speed.json"
KERNELS = DOCS / "measured" / "kernels.json"
EXACT = DOCS / "measured" / "exact.json"
RESULTS = ROOT / "benchmarks" / "results.json"
JOBS = ROOT / "benchmarks" / "jobs.json"

CORETYPES = {"SkylakeX": "AVX-512", "Haswell": "AVX2", "Nehalem": "SSE"}  # names that OpenBLAS knows, and what they use
VERIFIED = {"tales": ("the bundled model", 150), "random": ("random, in the shape of 124M", 30)}  # longest prompts
N_NEW = 100  # tokens that are generated in a measurement
N_STEPS = 300  # tokens of the text along which each step is timed
PROMPT = "Once upon a time there was a poor woodcutter who lived near the forest"
RAGGED = (60, 4, 31, 12, 8, 45, 20, 16)  # lengths of prompts, in tokens
ROUNDS = 5


# ---------------------------------------------------------------- measuring


def modules():
    """-> {version: module}."""
    paths = sorted(ROOT.glob("gpt2_v*.py"))
    return {re.match(r"gpt2_(v\d+)", path.name).group(1): importlib.import_module(path.stem) for path in paths}


def generator(name, module, params, n_head):
    """-> function(prompts, n) that generates with a version: v0 takes the prompts one after the other."""
    params = module.tile_params(params) if hasattr(module, "tile_params") else params
    if name == "v0":
        return lambda prompts, n: [module.generate(ids, params, n_head, n) for ids in prompts]
    if not hasattr(module, "left_pad"):  # v1, and v7 and later
        return lambda prompts, n, **options: module.generate(prompts, params, n_head, n, **options)

    def generate(prompts, n, **options):
        input_ids, attention_mask = module.left_pad(prompts)
        return module.generate(input_ids, params, n_head, n, attention_mask, **options)

    return generate


def seconds(function, *args, **options):
    begin = time.perf_counter()
    function(*args, **options)
    return time.perf_counter() - begin


def step_times(name, module, params, n_head, ids):
    """Seconds of each of N_STEPS steps along one text: the first takes the prompt, each other one adds a token."""
    ids, times = list(ids), []
    if hasattr(module, "prefill"):
        cache = module.init_kv_cache(params["wte"], params["blocks"], n_head, 1, len(ids) + N_STEPS)
    for i in range(N_STEPS):
        begin = time.perf_counter()
        if not hasattr(module, "prefill"):
            logits = module.gpt2([ids], **params, n_head=n_head)[:, -1]
        elif i == 0:
            logits = module.prefill(np.array([ids]), params, n_head, cache)
        else:
            logits = module.decode_one_token(np.array(ids[-1:]), params, n_head, cache)
        ids.append(int(np.argmax(logits[0])))
        times.append(time.perf_counter() - begin)
    return times


def measure_speed():
    """Write SPEED: medians in seconds, on the bundled model. In each round every version takes its turn."""
    encoder, hparams, params = utils.load_model("tales")
    n_head, ids = hparams["n_head"], encoder.encode(PROMPT)
    found = modules()
    generators = {name: generator(name, module, params, n_head) for name, module in found.items()}
    ragged = [(ids * 9)[:length] for length in RAGGED]
    cases = {"one": ([ids[:10]], generators), "eight": ([ids[:10]] * 8, generators)}
    cases["ragged"] = (ragged, {name: g for name, g in generators.items() if name != "v1"})
    times = {case: {name: [] for name in sides} for case, (_, sides) in cases.items()}
    steps = {name: [] for name in ("v2", "v3")}
    sampled = []
    for _ in range(ROUNDS):
        for case, (prompts, sides) in cases.items():
            for name, generate in sides.items():
                times[case][name].append(seconds(generate, prompts, N_NEW))
        for name in steps:
            steps[name].append(step_times(name, found[name], params, n_head, ids[:10]))
        sampled.append(seconds(generators["v4"], [ids[:10]] * 8, N_NEW, temperature=0.8, top_k=40, top_p=0.9, seed=0))
    medians = {case: {name: statistics.median(t) for name, t in sides.items()} for case, sides in times.items()}
    write_json(SPEED, {
        "machine": machine(), "n_new": N_NEW, "prompt": 10, "ragged": RAGGED, "seconds": medians,
        "sampled": statistics.median(sampled),
        "steps": {name: [float(f"{t:.3g}") for t in np.median(rows, axis=0)] for name, rows in steps.items()},
    })  # fmt: skip


def measure_kernels():
    """Write KERNELS: what the program on docs/exactness.md prints under each of CORETYPES, in processes of their own.

    OpenBLAS takes the name of a kernel from OPENBLAS_CORETYPE. A kernel that the processor cannot run is told and left
    out; so are all but one where NumPy came with another BLAS.
    """
    seen = {}
    for core in CORETYPES:
        environment = {**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        code = kernel_program() + "\nimport threadpoolctl\nprint(threadpoolctl.threadpool_info())\n"
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
        *lines, used = result.stdout.splitlines() or [""]
        if result.returncode or core.lower() not in used.lower():
            print(f"{core}: not measured; used {used or result.stderr[-200:]}", file=sys.stderr)
            continue
        seen[core] = parse_program_output(lines)
    write_json(KERNELS, {"machine": machine(), "seen": seen})


def kernel_program():
    """The code of the first Python block of docs/exactness.md."""
    return re.search(r"(?s)```python\n(.*?)```", (DOCS / "exactness.md").read_text(encoding="utf-8")).group(1)


def parse_program_output(lines):
    """Lines "float32, in a batch: 17 of 100 differ, by 1e-05 at most" -> [[dtype, what, 17, 100, "1e-05"]]."""
    rows = []
    for line in lines:
        match = re.fullmatch(r"(\w+), (.+): (\d+) of (\d+) logits differ, by (\S+) at most", line)
        rows.append([match[1], match[2], int(match[3]), int(match[4]), match[5]])
    return rows


def measure_verify():
    """Write into EXACT the last lines but one that tools/verify.py prints under each of CORETYPES."""
    runs = []
    for core in CORETYPES:
        for model, (name, longest) in VERIFIED.items():
            for version in ("gpt2_v5_exact", "gpt2_v4_sampling"):
                environment = {**os.environ, "OPENBLAS_CORETYPE": core}
                command = [sys.executable, "tools/verify.py", version, "--model", model, "--max_length", str(longest)]
                result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
                if core.lower() not in result.stdout.lower() or result.returncode != int(version != "gpt2_v5_exact"):
                    print(f"{core}, {name}: {result.stdout}{result.stderr}", file=sys.stderr)
                    continue
                runs.append([core, name, version, longest, result.stdout.splitlines()[-2]])
    write_json(EXACT, {"machine": machine(), "verify": runs, "cost": load(EXACT)["cost"]})


def measure_all():
    measure_kernels()
    measure_speed()
    measure_verify()


def machine():
    """What the numbers depend on, as text."""
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.+)", cpuinfo.read_text(encoding="utf-8")) if cpuinfo.exists() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        import threadpoolctl

        found = threadpoolctl.threadpool_info()
    except ImportError:
        found = []
    blas = {f"{library['internal_api']} {library['version']}" for library in found if library["user_api"] == "blas"}
    parts = [match[1] if match else platform.processor() or platform.machine(), f"{cores} cores"]
    parts += [f"Python {platform.python_version()}", f"NumPy {np.__version__}", *sorted(blas)]
    return ", ".join([*parts, datetime.date.today().isoformat()])


def write_json(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=1)
    text = re.sub(r"\[[^][]*\]", lambda match: " ".join(match.group().split()), text)  # an innermost list on one line
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


# ---------------------------------------------------------------- what the pages show of it


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def benchmark():
    """The results of a whole run of benchmarks/bench.py, or None."""
    results = load(RESULTS) if RESULTS.exists() else None
    return None if results is None or results["quick"] else results


def case_of(results, **wanted):
    """The case with these entries, or one without any times."""
    found = (case for case in results["cases"] if all(case.get(key) == value for key, value in wanted.items()))
    return next(found, {"seconds": {}})


def ratio_of(results, slower, faster, **wanted):
    """The median of the ratios of a case's rounds, as text; a dash where they were not measured."""
    times = case_of(results, **wanted)["seconds"]
    rounds = [a / b for a, b in zip(times.get(slower, ()), times.get(faster, ()))]
    return f"{statistics.median(rounds):.2f}" if rounds else "–"


def has_speed(results):
    """Was v0 measured in both cases of the README's table?"""
    wanted = {"part": "whole", "name": "200 tokens from 10"}, {"part": "decode", "batch": 8, "context": 8}
    return results and all(case_of(results, **case)["seconds"].get("v0") for case in wanted)


def relative_speed():
    """-> {version: tokens per second for one prompt, as a multiple of v0's, in text}."""
    results = benchmark()
    if results:
        times = case_of(results, part="whole", name="200 tokens from 10")["seconds"]
        times = {side: statistics.median(times[side]) for side in sides_of(results) if times.get(side)}
    else:
        times = load(SPEED)["seconds"]["one"]
        times = {side: time for side, time in times.items() if side != "v5" or "v6" in times}  # as in sides_of
    return {name: f"{times['v0'] / time:.3g}" for name, time in times.items() if name.startswith("v")}


def sides_of(results):
    """The sides of a benchmark. v5 as it was before v6, without tiles, is none."""
    return [side for side in results["sides"] if side != "v5" or "v6" in results["sides"]]


def strongest(results):
    """-> the newest version that was timed in decoding, v3 before there was v6, and its peers in float32."""
    version = "v6" if "v6" in results["sides"] else "v3"
    return version, [side for side in sides_of(results) if side[0] != "v" and "int8" not in side]


def speed_source(table):
    """A sentence under the README's table: where its last column comes from."""
    results = benchmark()
    if results:
        return (
            f"Speed: tokens per second as multiples of v0's, on {results['model']} ({machine_of(results)}): one "
            "prompt, 200 tokens after 10.\n"
        )
    data = load(SPEED)
    return (
        f"Speed: tokens per second as multiples of v0's, on the bundled model, {data['n_new']} tokens after "
        f"{data['prompt']} ({data['machine']}).\n"
    )


NAMES = {"transformers": "Hugging Face's `transformers`", "ctranslate2": "CTranslate2", "onnxruntime": "ONNX Runtime"}


def peer_text(table):
    """How the newest version compares with its strongest peer, in a sentence."""
    results = benchmark()
    version, peers = strongest(results)
    found = {peer: ratios(results, peer, version) for peer in peers}
    peer = min(peers, key=lambda peer: found[peer]["decode, 8 rows"])
    one, eight, many, long, prompt = (
        f"{found[peer][name]:.2f}"
        for name in ("decode, 1 row", "decode, 8 rows", "decode, 64 rows", "after 900 tokens, 1 row", "prefill 1×1000")
    )
    return (
        f"Next to {NAMES.get(peer, peer)} on the same {results['machine']['threads']} threads, in float32 and at GPT-2 "
        f"124M's size, {version} decodes {one} times as fast with one row, {eight} with 8, {many} with 64, and {long} "
        f"with one row after 900 tokens. It takes a prompt of 1000 tokens {prompt} times as fast.\n"
    )


def peers_table(path):
    """A table of times of versions and peers in a benchmark: what a reader of docs/performance.md asks first."""

    def make(table):
        results = load(path)
        version, peers = strongest(results)
        shown = [side for side in sides_of(results) if side in ("v2", "v3", "v5", "v6") or side[0] != "v"]
        found, rows = {peer: ratios(results, peer, version) for peer in peers}, []
        for name, wanted in CASES.items():
            cases = [c for c in results["cases"] if all(c.get(key) == value for key, value in wanted.items())]
            for times in (case["seconds"] for case in cases):
                medians = [f"{1e3 * statistics.median(times[s]):,.3g}" if times.get(s) else "–" for s in shown]
                medians = [text if "e" not in text else f"{float(text.replace(',', '')):,.0f}" for text in medians]
                rows.append([name, *medians, *(f"{found[p][name]:.2f}" if name in found[p] else "–" for p in peers)])
        return f"{table(['ms', *shown, *(f'{p} / {version}' for p in peers)], rows)}\n{machine_of(results)}.\n"

    return make


def cores_text(table):
    """What more cores would give to a step of 64 rows, reckoned from the limits that the benchmark measured."""
    results = benchmark()
    threads, limits, n = results["machine"]["threads"], results["limits"], results["n_weights"]
    core, read = limits["peak"] / threads / 1e9, limits["bandwidth"] / 1e9
    work, size = 2 * n * 64 / 1e9, 4 * n / 1e9  # GFLOP, GB
    return (
        f"One core makes about {core:.0f} GFLOP/s here, and {threads} read about {read:.0f} GB/s. A step of 64 rows is "
        f"{work:.0f} GFLOP and reads {size:.1f} GB of weights. So 16 such cores need {1e3 * work / core / 16:.0f} "
        f"ms for the arithmetic, and a memory of 100 GB/s {1e3 * size / 100:.0f} ms for the weights.\n"
    )


def per_second(case, *names):
    data = load(SPEED)
    rows = len(RAGGED) if case != "one" else 1
    times = data["seconds"][case]
    return [(name, data["n_new"] * rows / times[name], times["v0"] / times[name]) for name in names]


def speed_table(case, *names):
    """A table of tokens per second of some versions, on the bundled model."""

    def make(table):
        rows = [[name, f"{rate:,.0f}", f"{ratio:.1f}"] for name, rate, ratio in per_second(case, *names)]
        return table(["version", "tokens per second", "v0 = 1"], rows) + f"\n{load(SPEED)['machine']}.\n"

    return make


def steps_text(table):
    """Time per token along one text, without the cache and with it."""
    data, rows = load(SPEED), []
    for token in (10, 100, 200, 300):
        near = slice(token - 10, token + 9)
        ms = [1e3 * statistics.median(data["steps"][name][near]) for name in ("v2", "v3")]
        rows.append([token, *(f"{t:.1f}" for t in ms)])
    header = [f"token after a prompt of {data['prompt']}", "ms in v2", "ms in v3"]
    return f"{table(header, rows)}\n{data['machine']}.\n"


def sampling_text(table):
    data = load(SPEED)
    greedy, sampled = (1e3 * t / data["n_new"] for t in (data["seconds"]["eight"]["v4"], data["sampled"]))
    return (
        f"A step of 8 rows takes {greedy:.2f} ms when it is greedy, and {sampled:.2f} ms with temperature 0.8, top-k "
        f"40 and top-p 0.9, on the bundled model with its 2,048 tokens to choose from ({data['machine']}).\n"
    )


def kernels_table(table):
    """What the program on docs/exactness.md printed under each kernel."""
    data = load(KERNELS)
    first = next(iter(data["seen"].values()))
    rows, of = [], first[0][3]
    for i, (dtype, what, *_) in enumerate(first):
        cells = []
        for lines in data["seen"].values():
            n, most = lines[i][2], lines[i][4]
            cells.append(f"{n:,} differ, by {most} at most" if n else "none")
        rows.append([dtype, what, *cells])
    header = ["", f"of {of:,} logits", *(f"{core} ({CORETYPES[core]})" for core in data["seen"])]
    return table(header, rows) + f"\n{data['machine']}.\n"


def verify_text(table):
    """What tools/verify.py counted under each kernel, for v5 and for v4."""
    data, rows = load(EXACT), {}
    for core, model, version, longest, line in data["verify"]:
        n_logits, n_bits = re.match(r"([\d,]+) logits compared, ([\d,]+) bits differ", line).groups()
        key = (version.split("_")[1], f"{model}, up to {longest} tokens: {n_logits} logits")
        rows.setdefault(key, dict.fromkeys(CORETYPES, "not run"))[core] = n_bits
    cells = [[*key, *counts.values()] for key, counts in sorted(rows.items())]
    header = ["", "bits that differ", *(f"{core} ({what})" for core, what in CORETYPES.items())]
    return f"{table(header, cells)}\n{data['machine']}.\n"


def exact_table(version, kept, how):
    """A table of a version's time over v4's under each kernel: of the benchmark, where that has v6, or as noted."""

    def make(table):
        cost, rows, machines, results = load(EXACT)["cost"], {}, {}, load(RESULTS)
        if "v6" in results["sides"]:
            core = kernel_of(results)
            rows[core], machines[core] = ratios(results, version, "v4"), machine_of(results)
        for core in cost[kept].keys() - rows.keys():
            rows[core], machines[core] = cost[kept][core], cost["how"]
        what = dict.fromkeys(name for row in rows.values() for name in row)
        cells = [
            [f"{core} ({CORETYPES[core]})", *(f"{row[x]:.2f}" if x in row else "–" for x in what)]
            for core, row in rows.items()
        ]
        source = " ".join(f"{core}: {machine}." for core, machine in machines.items())
        how_many = f"v4 has two threads of BLAS, {version} {how}"
        return (
            f"{table([f'time of {version}, v4 = 1', *what], cells)}\nRandom weights in the shape of 124M, medians over "
            f"the rounds; {how_many}. {source}\n"
        )

    return make


def kernel_of(results):
    return re.search(r"\((\w+) kernels\)", results["machine"]["versions"])[1]


def machine_of(results):
    machine = results["machine"]
    return f"{machine['processor']}, {machine['threads']} threads, {machine['versions']}, {results['date']}"


def ratios(results, slow, fast):
    """The time of one side over another's in the benchmark -> {what: median over the rounds}, of what both ran."""
    found = {}
    for name, wanted in CASES.items():
        for case in results["cases"]:
            if all(case.get(key) == value for key, value in wanted.items()):
                both = [case["seconds"].get(side) for side in (slow, fast)]
                if all(both):
                    found[name] = statistics.median(a / b for a, b in zip(*both))
    return found


CASES = {  # {what: how a case of the benchmark is found}
    f"decode, {n} row{'s' * (n > 1)}": {"part": "decode", "batch": n, "context": 8} for n in (1, 2, 4, 8, 16, 32, 64)
}
CASES |= {f"after 900 tokens, {n} row{'s' * (n > 1)}": {"part": "decode", "batch": n, "context": 900} for n in (1, 8)}
CASES |= {f"prefill {name}": {"part": "prefill", "name": name} for name in ("1×1000", "8×128")}
CASES |= {f"busy machine, {n} row{'s' * (n > 1)}": {"part": "busy", "batch": n} for n in (1, 8)}


def of_jobs(part, name, what=None, rows=None):
    """A case of benchmarks/jobs.json, or one without any times."""
    wanted = {"part": part, "name": name, "what": what, "rows": rows}
    return case_of(load(JOBS), **{key: value for key, value in wanted.items() if value is not None})


def source_of_jobs(*parts):
    """How the cases of these parts were measured: a sentence for each way."""
    found = {}  # in order, each once
    for case in load(JOBS)["cases"]:
        if case["part"] in parts:
            how = " Seconds of the processor." if case["cpu"] else ""
            n = min(map(len, case["seconds"].values()))
            how += " One round, beside other work: differences of a third may mean nothing." if n == 1 else ""
            found[f"{machine_of(case).replace(' 1 threads', ' 1 thread')}.{how}\n"] = None
    return "".join(found)


def gains(case, slow, fast):
    """How many times as many tokens a second one side made as another, in each round."""
    both = [[case["tokens"][side] / seconds for seconds in case["seconds"].get(side, ())] for side in (fast, slow)]
    return [a / b for a, b in zip(*both)]


JOB_NAMES = {
    "124M": "random weights in the shape of 124M, lengths given",
    "tales": "the bundled model, to the end of a paragraph",
}


def jobs_table(table):
    """Tokens per second of all sides in the two jobs."""
    rows, sides = [], ("v6", "v7", "v8", "transformers", "ctranslate2")
    for name, title in JOB_NAMES.items():
        case = of_jobs("job", name)
        times = case["seconds"]
        rates = [case["tokens"][s] / statistics.median(times[s]) if times.get(s) else None for s in sides]
        if times:
            rows.append([title, *("–" if rate is None else f"{rate:,.0f}" for rate in rates)])
    return f"{table(['tokens per second', *sides], rows)}\n{source_of_jobs('job')}"


JOB_GOALS = [  # what, part, name, what is continued, rows, the slower side, the faster one, how many times as fast
    (f"a job, {name}: v7 / {side}", "job", name, None, 16, side, "v7", goal)
    for name in JOB_NAMES for side, goal in (("v6", 1.8), ("transformers", 2.5), ("ctranslate2", 1.5))
]  # fmt: skip
JOB_GOALS += [
    (f"equally long, {name}: v7 / v6", "equal", name, None, 16, "v6", "v7", 0.95) for name in JOB_NAMES
]
for name in JOB_NAMES:
    JOB_GOALS += [
        (f"8 prompts of 16 to 512 tokens, {name}: v7 / v6", "prefill", name, None, 8, "v6", "v7", 1.5),
        ("the same, v7 / v7 with one after the other", "prefill", name, None, 8, "v7, one by one", "v7", 1.0),
        (f"100 prompts that share 400 tokens, {name}: v7 / v7 without reuse", "prefix", name, None, 16,
         "v7 without reuse", "v7", 3.0),
    ]  # fmt: skip
JOB_GOALS += [
    ("greedy tales, 1 row: v8 / v7", "lookup", "tales", "greedy", 1, "v7", "v8", 1.5),
    ("greedy tales, 8 rows: v8 / v7", "lookup", "tales", "greedy", 8, "v7", "v8", 1.3),
    ("a text that repeats, 124M, 1 row: v8 / v7", "lookup", "124M", "loop", 1, "v7", "v8", 2.5),
    ("tales at temperature 1, 1 row: v8 / v7", "lookup", "tales", "sampled", 1, "v7", "v8", 0.97),
    ("tales at temperature 1, 8 rows: v8 / v7", "lookup", "tales", "sampled", 8, "v7", "v8", 0.97),
]
JOB_GOALS += [
    (f"best of 8 prompts with 4 beams, {name}: tokens / those of 32 greedy rows", "beams", name, None, 32,
     "v9, 32 greedy rows", "v9, 8 prompts with 4 beams", 0.77)  # 1 / 1.3: at most 1.3 times as long
    for name in JOB_NAMES
]  # fmt: skip


def job_goals_table(*names):
    """What was aimed at in jobs, and what was measured."""

    def make(table):
        rows = []
        for title, part, name, what, n_rows, slow, fast, goal in JOB_GOALS:
            case = of_jobs(part, name, what, n_rows)
            if part in names and (found := gains(case, slow, fast)):
                middle = statistics.median(found)
                spread = f"{middle:.2f} ({min(found):.2f} to {max(found):.2f})"
                rows.append([title, f"≥ {goal:g}", spread, "met" if middle >= goal else "**not met**"])
        header = ["times as many tokens per second", "goal", "measured (lowest to highest round)", ""]
        return f"{table(header, rows)}\n{source_of_jobs(*names)}"

    return make


LOOKUP_NAMES = {
    ("tales", "greedy"): "tales, greedy",
    ("tales", "again"): "a passage and its beginning again, greedy",
    ("tales", "code"): "code, greedy",
    ("tales", "sampled"): "tales, temperature 1",
    ("124M", "loop"): "16 tokens four times, greedy, 124M",
}


def lookup_table(table):
    """Tokens a step of v8, and its speed next to v7's."""
    rows = []
    for (name, what), title in LOOKUP_NAMES.items():
        for n_rows in (1, 8):
            case = of_jobs("lookup", name, what, n_rows)
            if found := gains(case, "v7", "v8") if case["seconds"] else []:
                a_step = case["tokens"]["v8"] / case["steps"]["v8"] / case["tokens"]["v7"] * case["steps"]["v7"]
                rows.append([title, n_rows, f"{a_step:.2f}", f"{statistics.median(found):.2f}"])
    header = ["what is continued", "rows", "v7's steps / v8's", "v7's time / v8's"]
    return f"{table(header, rows)}\n{source_of_jobs('lookup')}"


TABLES = {
    "speed-source": speed_source,
    "peer": peer_text,
    "peers": peers_table(RESULTS),
    "cores": cores_text,
    "v1": speed_table("eight", "v0", "v1"),
    "v2": speed_table("ragged", "v0", "v2"),
    "v3": steps_text,
    "v4": sampling_text,
    "kernels": kernels_table,
    "verify": verify_text,
    "exact": exact_table("v5", "ratios", "its one"),
    "threads": exact_table("v6", "threads", "two of its own"),
    "jobs": jobs_table,
    "job-goals": job_goals_table("job", "equal", "prefill", "prefix"),
    "lookup-goals": job_goals_table("lookup"),
    "beams-goals": job_goals_table("beams"),
    "lookup": lookup_table,
}
