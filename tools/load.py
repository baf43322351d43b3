"""Many ragged prompts in batches against one by one: the same greedy ids, or a tie of the two best logits.

    python tools/load.py --n_prompts 2000 --batch_size 32 --model tales --seed 1

Prompts are pieces of 1 to max_length tokens of a text, in random order, so that nearly every batch has short ones and
long ones. A version before v5 rounds a prompt otherwise in a batch than alone, and where two tokens are as likely as
each other up to rounding, either may be chosen; what follows is then another text. So at the first id that differs the
two ids are looked at, in the logits that the prompt has alone: it is a tie if these are less than TIE times the largest
logit apart. v5 must not differ at all. Beside that stand the closest call of all steps, which is the smallest gap
between the two best, and what a batch is rounded by. The resident memory of the process is read after each batch.
"""
import json
import sys
import time
from pathlib import Path

import fire
import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import gpt2_v3_kvcache as v3  # noqa: E402
import gpt2_v4_sampling as v4  # noqa: E402
import gpt2_v5_exact as v5  # noqa: E402
import utils  # noqa: E402

TIE = 1e-4  # of the largest logit: a sum of some hundred float32 terms may be 1e-5 off, and six layers of them follow


def ragged_prompts(ids, n, max_length, rng):
    """n pieces of ids, of 1 to max_length tokens, each length as likely as the other."""
    lengths = rng.integers(1, max_length, n, endpoint=True)
    return [ids[start : start + length] for length in lengths for start in [rng.integers(0, len(ids) - length)]]


def resident_mb():
    """Resident memory of this process, in MB; 0 where /proc does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def run(version, params, n_head, prompts, batch_size, n_new):
    """Greedy ids of all prompts -> lists of ids, seconds, memory after each batch."""
    ids, memory, began = [], [], time.perf_counter()
    name = f"{version.__name__}, {batch_size} at once"
    for start in tqdm(range(0, len(prompts), batch_size), name, disable=None, leave=False):
        input_ids, attention_mask = version.left_pad(prompts[start : start + batch_size])
        ids += version.generate(input_ids, params, n_head, n_new, attention_mask)
        memory.append(resident_mb())
    return ids, time.perf_counter() - began, memory


def first_difference(version, params, n_head, prompt, alone, batched):
    """What the logits say where the greedy ids of a prompt alone and in a batch part -> dict."""
    step = next(i for i, (a, b) in enumerate(zip(alone, batched)) if a != b)
    ids = [[*prompt, *alone[:step]]]
    logits = version.gpt2(ids, **params, n_head=n_head, n_logits=1)[0, -1]
    exact_params = as_float64(params)
    exact = version.gpt2(ids, **exact_params, n_head=n_head, n_logits=1)[0, -1]
    a, b = alone[step], batched[step]
    size = float(np.max(np.abs(logits)))
    gap = abs(float(logits[a]) - float(logits[b]))
    others = np.delete(logits, [a, b])
    return {
        "length": len(prompt), "step": step, "alone": a, "in the batch": b, "gap": gap, "relative gap": gap / size,
        "gap in float64": abs(float(exact[a] - exact[b])), "largest logit": size,
        "rounding": float(np.max(np.abs(logits - exact))),  # of float32, alone
        "two best": bool(max(others) <= min(logits[a], logits[b])), "tie": gap <= TIE * size,
    }  # fmt: skip


def closest_calls(version, params, n_head, prompts, ids, n=10):
    """The smallest gaps between the two best logits of a step, over all steps -> n of them, in largest logits."""
    gaps = []
    for prompt, new_ids in zip(tqdm(prompts, "closest calls", disable=None, leave=False), ids):
        logits = version.gpt2([prompt + new_ids[:-1]], **params, n_head=n_head, n_logits=len(new_ids))[0]
        second, best = np.sort(np.partition(logits, -2, axis=-1)[:, -2:], axis=-1).T  # [n_new, n_vocab] -> 2 of [n_new]
        gaps += ((best - second) / np.max(np.abs(logits), axis=-1)).tolist()
    return sorted(gaps)[:n]


def batch_rounding(version, params, n_head, prompts):
    """How far the last logits of these prompts in one batch are from those alone, at most, in largest logits."""
    input_ids, attention_mask = version.left_pad(prompts)
    known = {**params, "n_head": n_head, "n_logits": 1}
    batched = version.gpt2(input_ids, attention_mask=attention_mask, **known)[:, -1]
    alone = np.stack([version.gpt2([ids], **known)[0, -1] for ids in prompts])
    return float(np.max(np.abs(batched - alone) / np.max(np.abs(alone), axis=-1, keepdims=True)))


def as_float64(params):
    if isinstance(params, dict):
        return {key: as_float64(value) for key, value in params.items()}
    if isinstance(params, list):
        return [as_float64(value) for value in params]
    return params.astype(np.float64) if isinstance(params, np.ndarray) else params


def drift(memory):
    """How much more memory the last quarter of a run had at most than the second one, in MB; the first one warms up."""
    quarter = max(1, len(memory) // 4)
    return max(memory[-quarter:]) - max(memory[quarter : 2 * quarter] or memory)


def load(n_prompts=2000, batch_size=32, model="tales", seed=1, max_length=500, n_new=12, text=None, out=None):
    """Compare batches with prompts one by one, and print a table. Exit status 1 for a difference that is no tie.

    Args:
        n_prompts: how many prompts.
        batch_size: how many of them at once.
        model: a model's name or folder.
        seed: a whole number that makes the prompts.
        max_length: of a prompt, in tokens.
        n_new: how many tokens to generate after each.
        text: a file with the text that prompts are pieces of; by default that of the bundled model.
        out: write everything as JSON to this file.
    """
    encoder, hparams, params = utils.load_model(model)
    max_length = min(max_length, hparams["n_ctx"] - n_new)
    ids = encoder.encode(Path(text or ROOT / "models" / "tales" / "held_out.txt").read_text(encoding="utf-8"))
    prompts = ragged_prompts(ids, n_prompts, max_length, np.random.default_rng(seed))
    lengths = [len(prompt) for prompt in prompts]
    report = {
        "n_prompts": n_prompts, "batch_size": batch_size, "model": model, "seed": seed, "n_new": n_new,
        "lengths": [min(lengths), max(lengths)], "n_prompt_tokens": sum(lengths), "tie": TIE,
        "numpy": np.__version__, "blas": utils.blas_in_use(), "versions": {},
    }  # fmt: skip
    print("gaps and rounding in largest logits")
    print("| version | prompts | differ | ties | widest gap of these | closest call | rounding of a batch | s, batches "
          "| s, alone | MB, least to most | drift, MB |")  # fmt: skip
    print("| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    failed = False
    for version in (v3, v4, v5):
        weights = version.tile_params(params) if version is v5 else params
        arguments = weights, hparams["n_head"], prompts
        batched, batched_seconds, memory = run(version, *arguments, batch_size, n_new)
        alone, alone_seconds, alone_memory = run(version, *arguments, 1, n_new)
        differing = [
            {"prompt": i, **first_difference(version, weights, hparams["n_head"], prompts[i], a, b)}
            for i, (a, b) in enumerate(zip(alone, batched)) if a != b
        ]  # fmt: skip
        n_ties = sum(d["tie"] and d["two best"] for d in differing)
        failed |= n_ties < len(differing) or (version is v5 and bool(differing))
        closest = closest_calls(version, *arguments, alone)
        rounding = batch_rounding(version, *arguments[:2], prompts[:batch_size])
        gaps = max((d["relative gap"] for d in differing), default=0.0)
        report["versions"][version.__name__] = {
            "n_differing": len(differing), "n_ties": n_ties, "differing": differing, "memory": memory,
            "alone_memory": alone_memory, "batched_seconds": batched_seconds, "alone_seconds": alone_seconds,
            "closest_calls": closest, "batch_rounding": rounding,
        }  # fmt: skip
        megabytes = [*memory, *alone_memory]
        row = [version.__name__, f"{n_prompts:,}", len(differing), n_ties, f"{gaps:.1e}",
               f"{closest[0]:.1e}", f"{rounding:.1e}", f"{batched_seconds:.0f}",
               f"{alone_seconds:.0f}", f"{min(megabytes):.0f} to {max(megabytes):.0f}",
               f"{drift(memory):+.1f}"]  # fmt: skip
        print("|", " | ".join(map(str, row)), "|", flush=True)
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(report, indent=1), encoding="utf-8")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    fire.Fire(load)
