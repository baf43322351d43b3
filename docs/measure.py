"""What the pages say about speed and about the kernels of BLAS: measured once, kept in docs/measured, read by build.py.

    python docs/build.py --measure

The costs in EXACT are kept by hand: medians of v5's time over v4's, of benchmarks/bench.py under two kernels.
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
OTHER_RESULTS = ROOT / "benchmarks" / "results_haswell.json"

CORETYPES = {"SkylakeX": "AVX-512", "Haswell": "AVX2", "Nehalem": "SSE"}  # names that OpenBLAS knows, and what they use
VERIFIED = {"tales": "the bundled model", "random": "random, in the shape of 124M"}
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
    if name == "v0":
        return lambda prompts, n: [module.generate(ids, params, n_head, n) for ids in prompts]
    if name == "v1":
        return lambda prompts, n: module.generate(prompts, params, n_head, n)

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
    """Write into EXACT what `gpt2_v5_exact.py verify` prints under each of CORETYPES."""
    runs = []
    for core in CORETYPES:
        for model, name in VERIFIED.items():
            environment = {**os.environ, "OPENBLAS_CORETYPE": core}
            command = [sys.executable, "gpt2_v5_exact.py", "verify", "--model", model]
            result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
            if result.returncode or core.lower() not in result.stdout.lower():
                print(f"{core}, {name}: {result.stdout}{result.stderr}", file=sys.stderr)
                continue
            runs.append([core, name, result.stdout.splitlines()])
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
    """-> {version: (tokens per second for one prompt, the same for eight)}, as multiples of v0's."""
    results = benchmark()
    if has_speed(results):
        one = case_of(results, part="whole", name="200 tokens from 10")["seconds"]
        eight = case_of(results, part="decode", batch=8, context=8)["seconds"]
        one, eight = ({side: statistics.median(times) for side, times in c.items() if times} for c in (one, eight))
    else:
        one, eight = (load(SPEED)["seconds"][case] for case in ("one", "eight"))
    ratios = [{name: times["v0"] / t for name, t in times.items()} for times in (one, eight)]
    return {name: tuple(r.get(name) for r in ratios) for name in ratios[0] if name.startswith("v")}


def speed_source(table):
    """A sentence under the README's table: where its last two columns come from."""
    results = benchmark()
    if has_speed(results):
        machine = results["machine"]
        return (
            f"Speed: tokens per second as multiples of v0's, on {results['model']} ({machine['processor']}, "
            f"{machine['threads']} threads, {machine['versions']}, {results['date']}): one prompt, 200 tokens after "
            "10; eight prompts, one more token each after 8. More in [docs/performance.md](docs/performance.md).\n"
        )
    data = load(SPEED)
    return (
        f"Speed: tokens per second as multiples of v0's, on the bundled model, {data['n_new']} tokens after "
        f"{data['prompt']} ({data['machine']}).\n"
    )


def peer_text(table):
    """How the newest version that was measured compares with the others' libraries, in two sentences."""
    results = benchmark()
    newest = max(side for side in results["sides"] if side.startswith("v"))
    cases = {f"with {batch}": {"part": "decode", "batch": batch, "context": 8} for batch in (1, 2, 4, 8, 16, 32, 64)}
    cases["with one after 900 tokens"] = {"part": "decode", "batch": 1, "context": 900}

    def ratios(peer):
        found = {label: ratio_of(results, peer, newest, **wanted) for label, wanted in cases.items()}
        text = ", ".join(f"{ratio} {label}" for label, ratio in found.items() if ratio != "–")
        prompt = ratio_of(results, peer, newest, part="prefill", name="1×1000")
        return text + f", and {prompt} for a prompt of 1000 tokens" * (prompt != "–")

    names = {"ctranslate2": "CTranslate2", "transformers": "Hugging Face's `transformers`"}  # the strongest first
    texts = [f"next to {name}, {ratios(peer)}" for peer, name in names.items() if peer in results["sides"]]
    return (
        f"In float32, at GPT-2 124M's size and on the same {results['machine']['threads']} threads, {newest} decodes "
        f"this many times as fast, by rows: {'; '.join(texts)}.\n"
    )


def two_kernels_table(table):
    """transformers' time over v3's in the complete benchmark, and in one under other kernels of OpenBLAS."""
    batches, prompts, rows = (1, 2, 4, 8, 16, 32, 64), ("1×1000", "8×128", "ragged 8"), []
    for results in (benchmark(), load(OTHER_RESULTS)):
        wanted = [{"part": "decode", "batch": batch, "context": 8} for batch in batches]
        wanted += [{"part": "prefill", "name": name} for name in prompts]
        ratios = [ratio_of(results, "transformers", "v3", **case) for case in wanted]
        kernels = re.search(r"\((\w+) kernels\)", results["machine"]["versions"])[1]
        rows.append([f"{kernels} ({CORETYPES[kernels]})", *ratios])
    header = ["transformers / v3", *(f"decode, {batch} rows" for batch in batches), *(f"prefill {p}" for p in prompts)]
    return table(header, rows) + "\n"


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
    """What `gpt2_v5_exact.py verify` printed once, and what it counted with other kernels and weights."""
    runs, rows = load(EXACT)["verify"], {}
    for core, model, lines in runs:
        counts = [re.search(r": ([\d,]+) logits .* ([\d,]+) bits differ", line).groups() for line in lines[2:]]
        row = rows.setdefault(model, [f"{model}: {counts[0][0]} logits", *("not run" for _ in CORETYPES)])
        row[1 + list(CORETYPES).index(core)] = f"{counts[0][1]}, in v4 {counts[1][1] if counts[1:] else 'not run'}"
    output = "\n".join(runs[0][2])
    header = ["bits that differ", *(f"{core} ({what})" for core, what in CORETYPES.items())]
    return f"```text\n{output}\n```\n\n{table(header, rows.values())}"


def exact_table(table):
    """What exactness costs under each kernel that was tried: v5's time over v4's."""
    cost, machine = load(EXACT)["cost"], load(EXACT)["machine"]
    rows = [
        [f"{core} ({CORETYPES[core]})", *(f"{ratio:.3g}" for ratio in ratios.values())]
        for core, ratios in cost["ratios"].items()
    ]
    header = ["time of v5, v4 = 1", *next(iter(cost["ratios"].values()))]
    return f"{table(header, rows)}\n{cost['how']} ({machine}).\n"


TABLES = {
    "speed-source": speed_source,
    "peer": peer_text,
    "two-kernels": two_kernels_table,
    "v1": speed_table("eight", "v0", "v1"),
    "v2": speed_table("ragged", "v0", "v2"),
    "v3": steps_text,
    "v4": sampling_text,
    "kernels": kernels_table,
    "verify": verify_text,
    "exact": exact_table,
}
