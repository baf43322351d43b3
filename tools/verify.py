"""Does a prompt have the same logits, to the bit, however it is run? On this machine, for any version.

    python tools/verify.py                                     # the newest exact version, the bundled model
    python tools/verify.py gpt2_v5_exact --model random        # random weights in the shape of 124M
    python tools/verify.py gpt2_v4_sampling                    # which is not exact

Each prompt is run alone. Then prompts are run in batches of 1 to 64 rows, the longest of n_ctx tokens: padded, in
another order, through a cache in pieces, and one token at a time. All this with one BLAS thread, with all of them, and
in a new process again. Exit status 0 if no bit differs, 1 otherwise. The last line is a hash of all logits: two people
whose processors, NumPy and version are the same have the same, and may compare. A version without padding gets prompts
of one length, one without a cache no pieces, and v0 is only compared with itself in another process.
"""
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import utils  # noqa: E402

LAST = 5  # at so many last positions of a prompt the logits are compared; those before reach them through the keys
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 33, 64)  # of the batches


def alone(version, params, n_head, ids):
    """Logits of the last tokens of one prompt, run alone -> [at most LAST, n_vocab]."""
    if hasattr(version, "take_row"):
        return flat(version, params, n_head, [ids], [0], len(ids))[0]
    if not hasattr(version, "left_pad"):
        logits = version.gpt2(ids if version.__name__ == "gpt2_v0" else [ids], **params, n_head=n_head)
        return logits.reshape(-1, logits.shape[-1])[-LAST:]
    n_logits = {"n_logits": LAST} if hasattr(version, "prefill") else {}
    return version.gpt2([ids], **params, n_head=n_head, **n_logits)[0, -LAST:]


def flat(version, params, n_head, prompts, order, piece):
    """The same of a version without pads, with `piece` tokens of each prompt in a step -> a list of logits."""
    cache = version.init_kv_cache(params["wte"], params["blocks"], n_head, len(prompts), max(map(len, prompts)))
    found = [[] for _ in prompts]
    for first in range(0, max(map(len, prompts)), piece):
        tokens = [(prompts[i][t], i, t) for i in order for t in range(first, min(first + piece, len(prompts[i])))]
        wanted = [n for n, (_, i, t) in enumerate(tokens) if t >= len(prompts[i]) - LAST]
        logits = version.gpt2(*np.array(tokens).T, **params, n_head=n_head, kv_cache=cache, wanted=wanted)
        for n, row in zip(wanted, logits):
            found[tokens[n][1]].append(row)
    return [np.stack(rows) for rows in found]


def together(version, params, n_head, prompts, rng):
    """The same of several prompts in one batch, by each way the version has -> pairs of a way and a list of logits."""
    if version.__name__ == "gpt2_v0":
        return
    if hasattr(version, "take_row"):
        for way, order, piece in (
            ("in another order", rng.permutation(len(prompts)), 256), ("in pieces", range(len(prompts)), 64),
            ("few tokens at a time", range(len(prompts)), 3),
        ):
            yield way, flat(version, params, n_head, prompts, order, piece)
        return
    if not hasattr(version, "left_pad"):
        yield "in a batch", list(version.gpt2(prompts, **params, n_head=n_head)[:, -LAST:])
        return
    call = {**params, "n_head": n_head}
    n_logits = {"n_logits": LAST} if hasattr(version, "prefill") else {}
    order = rng.permutation(len(prompts))
    input_ids, mask = version.left_pad([prompts[i] for i in order])
    back = np.argsort(order)
    yield "in another order", version.gpt2(input_ids, **call, attention_mask=mask, **n_logits)[back][:, -LAST:]
    input_ids, mask = input_ids[back], mask[back]
    yield "padded", version.gpt2(input_ids, **call, attention_mask=mask, **n_logits)[:, -LAST:]
    if not hasattr(version, "prefill"):
        return
    (B, T), (wte, blocks) = input_ids.shape, (params["wte"], params["blocks"])
    last = max(T - LAST, 0)
    ways = {"one token at a time": [0, last], "in pieces": [0, *rng.integers(0, last + 1, 3), last]}
    for way, cuts in ways.items():
        cuts = sorted({*cuts, *(range(last, T + 1) if len(cuts) == 2 else [T])})
        kv_cache = version.init_kv_cache(wte, blocks, n_head, B, T)
        logits = [version.gpt2(input_ids[:, i:j], **call, attention_mask=mask[:, i:j], kv_cache=kv_cache, **n_logits)
                  for i, j in zip(cuts, cuts[1:])]  # fmt: skip
        yield way, np.concatenate(logits, axis=1)[:, -LAST:]


def bits_that_differ(a, b):
    """Two arrays of one shape -> int."""
    return int(np.unpackbits(np.bitwise_xor(a.view(np.uint8), b.view(np.uint8))).sum())


def measure(name, model, models_dir, max_length, seed, out):
    """In a process of its own: compare, print what was found as JSON, and write the logits of each prompt to a file."""
    version = importlib.import_module(name)
    if model == "random":
        hparams, params = utils.GPT2_124M, utils.random_params(utils.GPT2_124M)
    else:
        _, hparams, params = utils.load_model(model, models_dir)
    params = version.tile_params(params) if hasattr(version, "tile_params") else params
    rng = np.random.default_rng(seed)
    max_length = min(max_length, hparams["n_ctx"])
    ways, prompts_alone = {}, []
    for n_rows in tqdm(ROWS, "verifying", disable=None, leave=False):
        longest = max_length if n_rows <= 2 else max(1, max_length * 3 // (2 * n_rows))  # about as many tokens in each
        lengths = rng.permutation([longest, *rng.integers(1, longest + 1, n_rows - 1)])
        is_ragged = hasattr(version, "left_pad") or hasattr(version, "take_row")
        lengths = lengths if is_ragged else np.full(n_rows, longest)
        prompts = [rng.integers(0, hparams["n_vocab"], length).tolist() for length in lengths]
        expected = [alone(version, params, hparams["n_head"], ids) for ids in prompts]
        prompts_alone += expected
        for way, rows in together(version, params, hparams["n_head"], prompts, np.random.default_rng(n_rows)):
            counts = ways.setdefault(way, [0, 0, 0])
            for row, logits in zip(rows, expected):
                row = np.ascontiguousarray(row[len(row) - len(logits) :])
                found = row.size, bits_that_differ(row, logits)
                counts[:] = counts[0] + 1, counts[1] + found[0], counts[2] + found[1]
    logits = np.concatenate(prompts_alone)
    np.save(out, logits)
    print(json.dumps({"blas": utils.blas_in_use(), "ways": ways, "hash": hashlib.sha256(logits.tobytes()).hexdigest()}))


def verify(version="gpt2_v5_exact", model="tales", models_dir="models", max_length=2**20, threads=0, seed=0):
    """Count the bits that differ between ways to run the same prompts.

    Args:
        version: the name of a version's file.
        model: a model's name or folder, or "random" for random weights in the shape of 124M.
        models_dir: where models are looked for by name.
        max_length: of the longest prompt, in tokens; at most n_ctx.
        threads: of a version that has threads of its own; 0 is what it takes itself.
        seed: a whole number that makes the prompts.
    """
    utils.check_settings(seed=seed, T_max=max_length, n_logits=threads)
    name = Path(version).stem
    if not (ROOT / f"{name}.py").exists() or not name.startswith("gpt2_v"):
        known = ", ".join(sorted(path.stem for path in ROOT.glob("gpt2_v*.py")))
        raise utils.UserError(f"no version {version!r}; there are {known}")
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    runs = {"one BLAS thread": 1, f"all BLAS threads ({n_cores})": n_cores, "a new process": n_cores}
    code = "import sys, verify; verify.measure(*sys.argv[1:4], *map(int, sys.argv[4:6]), sys.argv[6])"
    n_bits, n_logits, first = 0, 0, None
    with tempfile.TemporaryDirectory() as folder:
        for run, n_threads in runs.items():
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(n_threads), "MKL_NUM_THREADS": str(n_threads)}
            environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
            path = Path(folder, f"{len(os.listdir(folder))}.npy")
            arguments = [name, model, models_dir, str(max_length), str(seed), str(path)]
            command = [sys.executable, "-c", code, *arguments]
            folders = [str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
            child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8")
            if child.returncode:
                sys.exit(child.returncode)
            found, logits = json.loads(child.stdout), np.load(path)
            if first is None:
                first = logits
                print(f"{name}, model {model}, BLAS: {found['blas']}")
            print(f"{run}:")
            found["ways"]["as in the first process"] = [None, logits.size, bits_that_differ(logits, first)]
            for way, (rows, size, bits) in found["ways"].items():
                print(f"    {way}: {'' if rows is None else f'{rows} rows, '}{size:,} logits, {bits:,} bits differ")
                n_bits, n_logits = n_bits + bits, n_logits + size
    print(f"{n_logits:,} logits compared, {n_bits:,} bits differ")
    print(f"hash of the logits: {found['hash']}")
    sys.exit(1 if n_bits else 0)


if __name__ == "__main__":
    utils.run(verify)
