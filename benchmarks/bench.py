"""Speed and memory of the versions up to v6 and of their peers, measured side by side in one run.

The peers are transformers, CTranslate2 and ONNX Runtime in float32, and CTranslate2 in int8, which is other arithmetic.

    python benchmarks/bench.py                   # everything: about 35 minutes on 2 cores
    python benchmarks/bench.py --goals           # what the goals need, in as many rounds: about 12 minutes
    python benchmarks/bench.py --quick           # two minutes
    python benchmarks/bench.py --only decode,prefill --rounds 9
    python benchmarks/bench.py --only decode-8 --sides v3,v6 --append   # a piece of a long run
    python benchmarks/bench.py --model tales     # a model's own weights instead of random ones of GPT-2's size

Needs the packages of the extra `bench`: pip install -e '.[bench]'. Without torch and transformers it compares the
versions with each other. v7 and v8 are in jobs.py. Prints Markdown tables and writes them,
results.json and two pictures.
"""
import contextlib
import datetime
import importlib.util
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import fire  # noqa: E402
import numpy as np  # noqa: E402

import utils  # noqa: E402
import versions  # noqa: E402

FILES = {version.name: version.file for version in versions.VERSIONS}
PEER, ENGINE, INT8, RUNTIME = "transformers", "ctranslate2", "ctranslate2-int8", "onnxruntime"
PEERS = (PEER, ENGINE, RUNTIME, INT8)
NO_CACHE = ("v0", "v1", "v2")
PARTS = ("decode", "context", "busy", "prefill", "whole", "sequence", "memory")
BATCHES = (1, 2, 4, 8, 16, 32, 64)
SHORT, LONG = 8, 900  # tokens of context at which decoding starts
BLOCK = re.compile(r"(<!-- build: benchmark -->\n).*?(<!-- end -->)", re.DOTALL)  # of docs/performance.md


# ---------------------------------------------------------------- the sides


class Unsupported(Exception):
    """A side cannot do what is asked of it: v1 has no padding."""


class NoCache:
    """v0, v1 and v2: to decode a token is to run the whole text through the model again. State: ids [B, T].

    The other sides have the same methods. Their state holds a cache.
    """

    def __init__(self, name, params, hparams):
        self.name, self.module = name, importlib.import_module(FILES[name])
        self.params, self.n_head = params, hparams["n_head"]
        if hasattr(self.module, "tile_params"):  # as its command does when it has loaded a model
            self.params = self.module.tile_params(params)

    def prefill(self, prompts):
        """Prompts, lists of ids -> logits [B, n_vocab] of the token after each."""
        gpt2, options = self.module.gpt2, {**self.params, "n_head": self.n_head}
        if self.name == "v0":  # has no batch: one after the other
            return np.stack([gpt2(np.array(ids), **options)[-1] for ids in prompts])
        if self.name == "v1":
            if len({len(ids) for ids in prompts}) > 1:
                raise Unsupported
            return gpt2(np.array(prompts), **options)[:, -1]
        input_ids, attention_mask = self.module.left_pad(prompts)
        return gpt2(input_ids, **options, attention_mask=attention_mask)[:, -1]

    def start(self, prompt, batch, n_steps):
        """The state from which `step` decodes up to n_steps tokens: the same prompt in each of the rows."""
        return {"ids": np.tile(prompt, (batch, 1))}

    def rewind(self, state, n_tokens):
        """Go back to where n_tokens were known."""
        state["ids"] = state["ids"][:, :n_tokens]

    def step(self, state):
        """Decode one token per row. As in `generate`, with its argmax."""
        next_ids = np.argmax(self.prefill(state["ids"]), axis=-1)
        state["ids"] = np.append(state["ids"], next_ids[:, None], axis=1)

    def generate(self, prompts, n_new):
        """n_new greedy ids for each prompt."""
        if self.name == "v0":
            return [self.module.generate(ids, self.params, self.n_head, n_new) for ids in prompts]
        if self.name == "v1":
            return self.module.generate(prompts, self.params, self.n_head, n_new)
        input_ids, attention_mask = self.module.left_pad(prompts)
        return self.module.generate(input_ids, self.params, self.n_head, n_new, attention_mask)


class WithCache(NoCache):
    """v3 and later. State: the cache, the ids to go in next [B]."""

    def new_cache(self, batch, n_tokens):
        return self.module.init_kv_cache(self.params["wte"], self.params["blocks"], self.n_head, batch, n_tokens)

    def prefill(self, prompts):
        input_ids, attention_mask = self.module.left_pad(prompts)
        kv_cache = self.new_cache(*input_ids.shape)
        return self.module.prefill(input_ids, self.params, self.n_head, kv_cache, attention_mask)

    def start(self, prompt, batch, n_steps):
        n_tokens = len(prompt) + n_steps
        one = self.new_cache(1, n_tokens)
        next_ids = np.repeat(np.argmax(self.module.prefill(np.array([prompt]), self.params, self.n_head, one)), batch)
        kv_cache = self.new_cache(batch, n_tokens)
        for key, value in one.items():  # prefill one row only, and copy it to all
            if key == "blocks":
                kv_cache[key][...] = value
            else:
                kv_cache[key] = np.repeat(value, batch, axis=0) if isinstance(value, np.ndarray) else value
        return {"kv_cache": kv_cache, "next_ids": next_ids}

    def rewind(self, state, n_tokens):
        kv_cache = state["kv_cache"]
        kv_cache["length"] = n_tokens
        if "real" in kv_cache:
            kv_cache["real"] = kv_cache["real"][:, :n_tokens]

    def step(self, state):
        logits = self.module.decode_one_token(state["next_ids"], self.params, self.n_head, state["kv_cache"])
        state["next_ids"] = np.argmax(logits, axis=-1)


class Transformers:
    """GPT2LMHeadModel as its own `generate` drives it, without that function's own cost.

    No gradients, scaled_dot_product_attention (the default), a DynamicCache, logits for the last position only, and
    no mask where all tokens are real, which takes the faster kernel.
    """

    name = PEER

    def __init__(self, params, hparams):
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        warnings.filterwarnings("ignore", category=FutureWarning)  # names that change; these work since 4.50
        self.torch, self.transformers = torch, transformers
        sizes = {"vocab_size": hparams["n_vocab"], "n_positions": hparams["n_ctx"], "use_cache": True}
        sizes |= {key: hparams[key] for key in ("n_embd", "n_head", "n_layer")}
        self.config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
        self.model = transformers.GPT2LMHeadModel(self.config).eval()
        if params is not None:
            self.copy_weights(params)

    def copy_weights(self, params):
        """Give the model the same weights: GPT-2's Conv1D keeps them as [in, out] too."""
        with self.torch.no_grad():
            for name, array in named_weights(params):
                self.model.get_parameter(f"transformer.{name}").copy_(self.torch.from_numpy(np.array(array)))

    def padded(self, prompts):
        """Prompts -> the model's arguments, left-padded where the lengths differ."""
        T = max(len(ids) for ids in prompts)
        input_ids = self.torch.tensor([[0] * (T - len(ids)) + list(ids) for ids in prompts])
        if all(len(ids) == T for ids in prompts):
            return {"input_ids": input_ids}
        mask = self.torch.tensor([[0] * (T - len(ids)) + [1] * len(ids) for ids in prompts])
        return {"input_ids": input_ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}

    def forward(self, **arguments):
        """-> logits [B, n_vocab] of the last position."""
        with self.torch.no_grad():
            return self.model(**arguments, use_cache=True, logits_to_keep=1).logits[:, -1]

    def prefill(self, prompts):
        cache = self.transformers.DynamicCache(config=self.config)
        return self.forward(**self.padded(prompts), past_key_values=cache).numpy()

    def start(self, prompt, batch, n_steps):
        cache = self.transformers.DynamicCache(config=self.config)
        logits = self.forward(input_ids=self.torch.tensor([prompt]), past_key_values=cache)
        cache.batch_repeat_interleave(batch)
        return {"cache": cache, "next_ids": logits.argmax(-1).repeat(batch)}

    def rewind(self, state, n_tokens):
        surplus = state["cache"].get_seq_length() - n_tokens
        if surplus > 0:
            state["cache"].crop(-surplus)

    def step(self, state):
        logits = self.forward(input_ids=state["next_ids"][:, None], past_key_values=state["cache"])
        state["next_ids"] = logits.argmax(-1)

    def generate(self, prompts, n_new):
        arguments = self.padded(prompts)
        cache = self.transformers.DynamicCache(config=self.config)
        mask, new_ids = arguments.get("attention_mask"), []
        for _ in range(n_new):
            next_ids = self.forward(**arguments, past_key_values=cache).argmax(-1)
            new_ids.append(next_ids)
            arguments = {"input_ids": next_ids[:, None]}
            if mask is not None:
                mask = self.torch.cat([mask, self.torch.ones(len(mask), 1, dtype=mask.dtype)], dim=1)
                arguments |= {"attention_mask": mask, "position_ids": mask.sum(-1, keepdim=True) - 1}
        return self.torch.stack(new_ids, dim=1).tolist()


class CTranslate2:
    """CTranslate2's generator, greedy. It takes tokens as text, here "t" and the id, and gives no logits."""

    def __init__(self, params, hparams, folder, threads, compute_type="float32"):
        import ctranslate2

        if not (folder / "model.bin").exists():
            self.convert(params, hparams, folder)
        threading = {"intra_threads": threads, "inter_threads": 1}
        self.generator = ctranslate2.Generator(str(folder), device="cpu", compute_type=compute_type, **threading)
        self.name = ENGINE if compute_type == "float32" else INT8

    def convert(self, params, hparams, folder):
        """Write the weights in CTranslate2's format, by way of a model of transformers."""
        from ctranslate2.converters.transformers import GPT2Loader

        spec = GPT2Loader().get_model_spec(Transformers(params, hparams).model)
        spec.register_vocabulary([f"t{i}" for i in range(hparams["n_vocab"])])
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = f"t{hparams['n_vocab'] - 1}"
        spec.validate()
        spec.optimize(quantization="float32")
        folder.mkdir(parents=True, exist_ok=True)
        spec.save(str(folder))

    def generate(self, prompts, n_new):
        texts = [[f"t{i}" for i in ids] for ids in prompts]
        options = {"beam_size": 1, "sampling_topk": 1, "end_token": [], "include_prompt_in_result": False}
        found = self.generator.generate_batch(texts, max_length=n_new, min_length=n_new, **options)
        return [result.sequences_ids[0] for result in found]

    def prefill(self, prompts):
        """-> the id [B, 1] that follows each prompt."""
        return self.generate(prompts, 1)

    def start(self, prompt, batch, n_steps):
        return [prompt] * batch

    def timed_steps(self, state, context, n_steps):
        """Seconds per step: what n_steps more tokens take than one token, since a step alone cannot be called."""
        self.generate([prompt[:8] for prompt in state], 2)
        one = seconds(partial(self.generate, state, 1))
        return (seconds(partial(self.generate, state, 1 + n_steps)) - one) / n_steps


class OnnxRuntime:
    """ONNX Runtime with transformers' model as torch exports it. State: keys and values, which go in and come out."""

    name = RUNTIME

    def __init__(self, params, hparams, path, threads):
        import onnxruntime

        if not path.exists():
            self.export(params, hparams, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [node.name for node in self.session.get_inputs()]
        self.shape = hparams["n_head"], hparams["n_embd"] // hparams["n_head"]

    def export(self, params, hparams, path):
        """Write the model in ONNX's format: ids [B, T] and a past -> logits [B, n_vocab], and the past that follows."""
        import torch
        import transformers

        class WithPast(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, input_ids, *past):
                cache = transformers.DynamicCache()
                for i in range(0, len(past), 2):
                    cache.update(past[i], past[i + 1], i // 2)
                found = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                return found.logits[:, -1], *[x for layer in cache.layers for x in (layer.keys, layer.values)]

        n_head, d_head = hparams["n_head"], hparams["n_embd"] // hparams["n_head"]
        past = [torch.zeros(2, n_head, 5, d_head) for _ in range(2 * hparams["n_layer"])]
        B, T, P = (torch.export.Dim(name, min=1, max=hparams["n_ctx"] // 2) for name in ("B", "T", "P"))
        shapes = {"input_ids": {0: B, 1: T}, "past": tuple({0: B, 2: P} for _ in past)}
        model = WithPast(Transformers(params, hparams).model)
        path.parent.mkdir(parents=True, exist_ok=True)
        example = torch.zeros(2, 3, dtype=int), *past
        with contextlib.redirect_stdout(sys.stderr):
            program = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=shapes)
        program.save(str(path))

    def run(self, input_ids, past):
        """-> logits [B, n_vocab] of the last position, keys and values."""
        logits, *past = self.session.run(None, dict(zip(self.names, (input_ids, *past))))
        return logits, past

    def begin(self, prompts):
        if len({len(ids) for ids in prompts}) > 1:
            raise Unsupported
        n_head, d_head = self.shape
        empty = np.zeros((len(prompts), n_head, 0, d_head), np.float32)
        return self.run(np.array(prompts), [empty] * (len(self.names) - 1))

    def prefill(self, prompts):
        return self.begin(prompts)[0]

    def start(self, prompt, batch, n_steps):
        logits, past = self.begin([prompt])
        return {"past": [np.repeat(x, batch, axis=0) for x in past], "next_ids": np.repeat(np.argmax(logits), batch)}

    def rewind(self, state, n_tokens):
        state["past"] = [np.ascontiguousarray(x[:, :, :n_tokens]) for x in state["past"]]

    def step(self, state):
        logits, state["past"] = self.run(state["next_ids"][:, None], state["past"])
        state["next_ids"] = np.argmax(logits, axis=-1)

    def generate(self, prompts, n_new):
        logits, past = self.begin(prompts)
        new_ids = [np.argmax(logits, axis=-1)]
        for _ in range(n_new - 1):
            logits, past = self.run(new_ids[-1][:, None], past)
            new_ids.append(np.argmax(logits, axis=-1))
        return np.stack(new_ids, axis=1).tolist()


def named_weights(params):
    """params -> pairs of a tensor's name in a Hugging Face file, without its prefix, and the array."""
    ends = {"g": "weight", "w": "weight", "b": "bias"}

    def walk(tree, prefix):
        for key, value in tree.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            elif key in ends:  # not eps
                yield prefix + ends[key], value

    yield "wte.weight", params["wte"]
    yield "wpe.weight", params["wpe"]
    yield from walk(params["ln_f"], "ln_f.")
    for i, block in enumerate(params["blocks"]):
        yield from walk(block, f"h.{i}.")


def load(model):
    """-> hparams, params of a model, or random ones of GPT-2 124M's size."""
    if model is None:
        return utils.GPT2_124M, utils.random_params(utils.GPT2_124M)
    _, hparams, params = utils.load_model(model)
    return hparams, params


def has_peer():
    """Are torch and transformers installed?"""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def peer_names():
    """The peers whose packages are installed."""
    needed = {PEER: (), ENGINE: (ENGINE,), RUNTIME: (RUNTIME, "onnx", "onnxscript"), INT8: (ENGINE,)}
    return [p for p in PEERS if has_peer() and all(importlib.util.find_spec(name) for name in needed[p])]


def version_names():
    """The versions that are measured here: v7 and later are in jobs.py."""
    return [name for name in FILES if int(name[1:]) <= 6]


def make_side(name, params, hparams, model, threads):
    if name == PEER:
        return Transformers(params, hparams)
    if name in (ENGINE, INT8, RUNTIME):
        with contextlib.ExitStack() as at_end:  # random weights are always the same: converted once
            folder = Path(at_end.enter_context(tempfile.TemporaryDirectory())) if model else ROOT / "build"
            if name == RUNTIME:
                return OnnxRuntime(params, hparams, folder / "onnx" / "model.onnx", threads)
            kind = "float32" if name == ENGINE else "int8"
            return CTranslate2(params, hparams, folder / "ctranslate2", threads, kind)
    return (NoCache if name in NO_CACHE else WithCache)(name, params, hparams)


# ---------------------------------------------------------------- measuring


class Clock:
    """Runs the sides of a case in turn, round by round, and keeps every time.

    rounds: how many; budget: seconds after which a case gets no further round, or None; rest: seconds of sleep before
    each measurement, in which the other side's idle threads stop waiting busily for work.
    """

    def __init__(self, rounds, budget=None, rest=0.3):
        self.rounds, self.budget, self.rest = rounds, budget, rest

    def race(self, label, runs, rounds=None, few=(), few_rounds=3):
        """runs: {side: function -> seconds}; few: slow sides, which take part in the first few_rounds only.

        Returns {side: list of seconds, one per round}. Every second round goes through the sides backwards. A side that
        raises Unsupported is left out.
        """
        times, begin = {side: [] for side in runs}, time.perf_counter()
        for i in range(rounds or self.rounds):
            if i and self.budget and time.perf_counter() - begin > self.budget * i / (i + 1):
                break
            for side in list(runs)[:: -1 if i % 2 else 1]:
                if side in few and i >= few_rounds or side not in times:
                    continue
                note(f"{label}: round {i + 1}, {side}")
                time.sleep(self.rest)
                try:
                    times[side].append(runs[side]())
                except Unsupported:
                    del times[side]
        note("")
        return times


def note(text):
    """Show on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def seconds(function, repeat=1):
    """Seconds that one call takes, on average of `repeat`."""
    begin = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - begin) / repeat


class Limits:
    """What the machine can do, measured with all threads.

    Reading: float32 arrays of 512 MiB, far beyond any cache, written before they are read. Several ways to read are
    tried, and the fastest counts. Arithmetic: the product of two 2048x2048 matrices, by NumPy's BLAS and by torch.
    """

    def __init__(self, threads, with_torch):
        self.threads, self.pool = threads, ThreadPoolExecutor(threads)
        n, m = 2**15, 2**12
        self.matrix = np.full((n, m), 0.5, dtype=np.float32)
        self.x, self.y = np.full(n, 0.5, dtype=np.float32), np.full(m, 0.5, dtype=np.float32)
        self.square = np.full((2048, 2048), 0.5, dtype=np.float32)
        self.torch = None
        if with_torch:
            import torch

            self.torch = torch
            self.t_matrix, self.t_x, self.t_y = map(torch.from_numpy, (self.matrix, self.x, self.y))
            self.t_square = torch.from_numpy(self.square)

    def reads(self):
        """The ways to read `matrix` once."""
        parts = np.array_split(self.matrix.reshape(-1), self.threads)
        yield "vector times matrix (BLAS)", lambda: self.x @ self.matrix
        yield "matrix times vector (BLAS)", lambda: self.matrix @ self.y
        yield "maximum, one Python thread per core", lambda: list(self.pool.map(np.max, parts))
        if self.torch:
            yield "matrix times vector (torch)", lambda: self.t_matrix @ self.t_y
            yield "vector times matrix (torch)", lambda: self.t_x @ self.t_matrix

    def measure(self, label=""):
        """-> {"bandwidth": {way: bytes per second}, "peak": {library: float32 operations per second}}, best of 3."""
        note(f"limits {label}")
        bandwidth, peak, flop = {}, {}, 2 * len(self.square) ** 3
        for way, read in self.reads():
            bandwidth[way] = self.matrix.nbytes / min(seconds(read) for _ in range(3))
        peak["NumPy"] = flop / min(seconds(lambda: self.square @ self.square) for _ in range(3))
        if self.torch:
            peak["torch"] = flop / min(seconds(lambda: self.t_square @ self.t_square) for _ in range(3))
        return {"bandwidth": bandwidth, "peak": peak}


def best(measurements, kind):
    """Of several measurements of `Limits`: the median of the fastest way -> (way, value)."""
    ways = measurements[0][kind]
    medians = {way: float(np.median([m[kind][way] for m in measurements])) for way in ways}
    way = max(medians, key=medians.get)
    return way, medians[way]


def prompts_of(lengths, hparams, seed=1):
    """Random token ids: one list per length."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, hparams["n_vocab"], n).tolist() for n in lengths]


def timed_steps(side, state, context, n_steps):
    """Seconds per decode step, on average of n_steps."""
    if side.name in (ENGINE, INT8):
        return side.timed_steps(state, context, n_steps)
    side.rewind(state, context)
    side.step(state)  # the first step after a rest wakes the threads up
    return seconds(partial(side.step, state), n_steps)


def measure_limits(limits, measured):
    """Measure the limits as if they were a side, to have them from the same minute as the steps."""
    measured.append(limits.measure())
    return 0.0


@contextlib.contextmanager
def busy(n):
    """n processes beside this one that compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure_decode(sides, hparams, clock, limits, context, batches, n_steps, part="decode"):
    """Seconds per step, each of n_steps(batch) in a row, for all rows together."""
    cases = []
    prompt = prompts_of([context], hparams)[0]
    for batch in batches:
        names = [s for s in sides if context == SHORT or s not in NO_CACHE]  # seconds a step there without a cache
        n = n_steps(batch)
        steps = {s: 1 if s in NO_CACHE else n for s in names}
        needed = 6 * 4 * 2 * batch * (context + n + 2) * hparams["n_embd"] * hparams["n_layer"]  # six caches
        if needed + 2e9 > available_memory():
            print(f"decode {batch} at {context}: skipped, it would take {needed / 1e9:.0f} GB", file=sys.stderr)
            continue
        states = {s: sides[s].start(prompt, batch, n + 2) for s in names}
        runs, measured = {s: partial(timed_steps, sides[s], states[s], context, steps[s]) for s in names}, []
        if batch == 1:
            runs["limits"] = partial(measure_limits, limits, measured)
        times = clock.race(f"decode {batch} at {context}", runs, few=NO_CACHE, few_rounds=3 if batch <= 8 else 1)
        times.pop("limits", None)
        cases.append({"part": part, "batch": batch, "context": context, "seconds": times, "limits": measured})
    return cases


def timed_prefill(side, prompts):
    side.prefill([ids[:16] for ids in prompts])  # wakes the threads up
    return seconds(partial(side.prefill, prompts))


def measure_prefill(sides, hparams, clock, wanted):
    """Seconds until the logits after the prompts are there, and the cache is full."""
    ragged = np.linspace(16, 512, 8).astype(int).tolist()
    cases = []
    for name, lengths in (("1×1000", [1000]), ("8×128", [128] * 8), ("ragged 8", ragged)):
        if not wanted("prefill", name.replace("×", "x").split()[0]):
            continue
        if max(lengths) > hparams["n_ctx"]:
            print(f"prefill {name}: skipped, the model takes {hparams['n_ctx']} tokens", file=sys.stderr)
            continue
        prompts = prompts_of(lengths, hparams)
        runs = {s: partial(timed_prefill, side, prompts) for s, side in sides.items()}
        times = clock.race(f"prefill {name}", runs, few=NO_CACHE, few_rounds=1)
        cases.append({"part": "prefill", "name": name, "lengths": lengths, "seconds": times})
    return cases


def timed_text(side, prompts, n_new):
    side.generate(prompts, 2)  # wakes the threads up
    return seconds(partial(side.generate, prompts, n_new))


def measure_whole(sides, hparams, clock, wanted, goals, quick):
    """Seconds for whole texts, prompt and new tokens, by each side's own `generate`."""
    cases = []
    plans = [
        ("60 tokens from 6", 1, 6, 60, ("v2", "v3", "v4", PEER) if goals else sides),
        ("200 tokens from 10", 1, 10, 200, ("v0", "v3") if goals else sides),
        ("8 times 20 tokens from 16", 8, 16, 20, ("v0", "v1")),
    ]
    for name, batch, length, n_new, names in plans:
        names = [s for s in names if s in sides]
        if quick and n_new == 200 or not wanted("whole", name.split()[0]):
            continue
        prompts = prompts_of([length] * batch, hparams)
        runs = {s: partial(timed_text, sides[s], prompts, n_new) for s in names}
        few = NO_CACHE if n_new == 200 else ()  # half a minute each
        times = clock.race(name, runs, few=few, few_rounds=1)
        cases.append({"part": "whole", "name": name, "batch": batch, "seconds": times})
    return cases


def measure_sequence(sides, hparams, rounds, n_new):
    """Seconds of each step of one text, from a 10-token prompt, with and without the cache."""
    names = [s for s in ("v2", "v3", PEER) if s in sides]
    prompt, times = prompts_of([10], hparams)[0], {}
    for i in range(rounds):
        for s in names:
            note(f"sequence: round {i + 1}, {s}")
            time.sleep(0.2)
            begin = time.perf_counter()
            state = sides[s].start(prompt, 1, n_new)  # with a cache, this runs the prompt and gives the first token
            if s in NO_CACHE:
                sides[s].step(state)
            steps = [time.perf_counter() - begin]
            steps += [seconds(partial(sides[s].step, state)) for _ in range(n_new - 1)]
            times.setdefault(s, []).append(steps)
    note("")
    medians = {s: np.median(rows, axis=0).tolist() for s, rows in times.items()}
    return {"part": "sequence", "prompt": 10, "rounds": rounds, "seconds": medians}


# ---------------------------------------------------------------- memory


def available_memory():
    """Bytes that can be used without swapping, as far as the system tells; infinity where it does not."""
    meminfo = Path("/proc/meminfo")
    match = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    return 1024 * int(match.group(1)) if match else float("inf")


def peak_memory():
    """The most memory that this process has had so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss also remembers the process that started this one, before exec
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text()).group(1))
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def print_peak(name, model, batch, n_tokens, threads):
    """What runs in a process of its own: weights, prompt, a few tokens; prints the peaks in bytes as JSON."""
    peaks = {"python": peak_memory()}
    set_threads(threads, name == PEER)
    hparams, params = (utils.GPT2_124M, None) if name == PEER and model is None else load(model)
    side = make_side(name, params, hparams, model, threads)
    peaks["loaded"] = peak_memory()
    del params
    side.generate(prompts_of([n_tokens] * batch, hparams), 4)
    peaks["run"] = peak_memory()
    print(json.dumps(peaks))


def measure_memory(names, hparams, model, threads, goals, quick):
    """Peaks in bytes, each in a fresh process: a 1000-token prompt for all sides, 64×512 for those with a cache."""
    cases, n_ctx = [], hparams["n_ctx"]
    plans = [(name, 1, min(1000, n_ctx - 4)) for name in names if not goals or name in ("v3", "v4", PEER)]
    if not quick:
        cached = [name for name in names if name in ("v3", "v4") or not goals and name not in NO_CACHE]
        plans += [(name, 64, min(512, n_ctx - 4)) for name in cached]
    for name, batch, n_tokens in plans:
        note(f"memory: {name}, {batch}×{n_tokens}")
        code = f"import bench; bench.print_peak({name!r}, {model!r}, {batch}, {n_tokens}, {threads})"
        result = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
        if result.returncode:
            print(f"memory of {name}, {batch}×{n_tokens}: {result.stderr.strip()[-300:]}", file=sys.stderr)
            continue
        peaks = json.loads(result.stdout.splitlines()[-1])
        cases.append({"part": "memory", "side": name, "batch": batch, "tokens": n_tokens, "bytes": peaks})
    note("")
    return cases


# ---------------------------------------------------------------- bars


def find(results, **wanted):
    """The case with these entries, or None."""
    for case in results["cases"]:
        if all(case.get(key) == value for key, value in wanted.items()):
            return case
    return None


def ratios(case, slower, faster):
    """How many times as long `slower` took as `faster`, in each round that both ran."""
    if not case or not case["seconds"].get(slower) or not case["seconds"].get(faster):
        return []
    return [a / b for a, b in zip(case["seconds"][slower], case["seconds"][faster])]


def read_bytes(results, batch=1, context=0):
    """Bytes that a decode step must read: all weights once (but wpe), and each row's cached keys and values."""
    sizes = results["hparams"]
    n_embd, n_layer = sizes["n_embd"], sizes["n_layer"]
    return 4 * (results["n_weights"] - sizes["n_ctx"] * n_embd) + 4 * 2 * n_layer * batch * context * n_embd


def step_flop(results, batch=1, context=0):
    """float32 operations of a decode step: two per weight and row, and four per cached number of a key."""
    sizes = results["hparams"]
    return 2 * batch * (read_bytes(results) / 4 + 2 * sizes["n_layer"] * context * sizes["n_embd"])


def limit_seconds(results, batch=1, context=0):
    """The least time of a decode step on this machine: reading or arithmetic, whichever takes longer."""
    reading = read_bytes(results, batch, context) / results["limits"]["bandwidth"]
    return max(reading, step_flop(results, batch, context) / results["limits"]["peak"])


def bars(results):
    """Every goal -> (what, needed, measured numbers or [], "least" or "most"); measured is empty if it was not run."""
    short = [({"part": "decode", "batch": b, "context": SHORT}, f"decode, batch {b}") for b in BATCHES]
    long = [({"part": "decode", "batch": b, "context": LONG}, f"decode at {LONG} tokens, batch {b}") for b in (1, 4, 8)]
    prompts = [({"part": "prefill", "name": name}, f"prefill {name}") for name in ("1×1000", "8×128")]
    rows = []

    def add(slower, faster, cases, needed, kind="least"):
        for (wanted, label), bar in zip(cases, needed):
            measured = ratios(find(results, **wanted), slower, faster)
            rows.append((f"{label}: {slower} / {faster}", bar, measured, kind))

    add(ENGINE, "v6", short, (1.0, 1.25, 1.5, 1.3, 1.4, 1.2, 1.0))
    add(ENGINE, "v6", [*prompts, long[0], long[2]], (1.0,) * 4)
    add(PEER, "v6", short, (1.7, 2.5, 2.5, 2.0, 1.6, 1.3, 1.1))
    add(PEER, "v6", [*prompts, long[0], long[2]], (1.1, 1.1, 1.25, 1.25))
    add("v3", "v6", short, (0.85, 1.2, 1.6, 1.3, 1.1, 0.95, 0.95))
    add("v5", "v4", short, (1.4, 0.9, 0.65, 0.85, 1.0, 1.35, 1.6), "most")
    add("v5", "v4", [prompts[0], *long], (1.5, 1.5, 1.0, 1.3), "most")
    add("v0", "v3", [({"part": "whole", "name": "200 tokens from 10"}, "200 tokens from 10")], (10.0,))
    return rows + memory_bars(results, [s for s in ("v3", "v4") if s in results["sides"]])


def memory_bars(results, ours):
    """The goals for memory, in MB; see `bars`."""
    sizes, rows = results["hparams"], []
    for s in ours:
        case = find(results, part="memory", side=s, batch=1)
        cached = 4 * 2 * sizes["n_layer"] * sizes["n_embd"] * ((case["tokens"] if case else 1000) + 4)
        needed = (4 * results["n_weights"] + cached) / 1e6 + 250
        peak = [case["bytes"]["run"] / 1e6] if case else []
        rows.append((f"memory, 1×1000: {s}'s peak in MB (weights + cache + 250)", needed, peak, "most"))
        case = find(results, part="memory", side=s, batch=64)
        peak = [case["bytes"]["run"] / 1e6] if case else []
        rows.append((f"memory, 64×512: {s}'s peak in MB", 6000.0, peak, "most"))
    return rows


# ---------------------------------------------------------------- tables


def spread(values, scale=1.0):
    """Numbers -> "median ± half of the interquartile range", with three figures; one number alone has no range."""
    low, middle, high = np.percentile(np.asarray(values) * scale, [25, 50, 75])
    digits = max(0, 2 - int(np.floor(np.log10(max(abs(middle), 1e-9)))))
    return f"{middle:.{digits}f}" + (f" ± {(high - low) / 2:.{digits}f}" if len(values) > 1 else "")


def table(header, rows):
    """A Markdown table: the first column to the left, all others to the right."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bar_table(results):
    rows = []
    for what, needed, measured, kind in bars(results):
        is_size = needed > 100
        sign = "≥" if kind == "least" else "≤"
        goal = f"{sign} {needed:.0f}" if is_size else f"{sign} {needed:g}"
        if not measured:
            rows.append([what, goal, "", "not measured"])
            continue
        value = float(np.median(measured))
        met = value >= needed if kind == "least" else value <= needed
        shown = f"{value:.0f}" if is_size else f"{value:.2f} ({min(measured):.2f} to {max(measured):.2f})"
        rows.append([what, goal, shown, "met" if met else "**not met**"])
    return table(["goal", "needed", "measured (lowest to highest round)", ""], rows)


def case_table(results, cases, labels, unit, scale, extra=None):
    """One row per case, one column per side; then columns that `extra(case) -> {title: text}` adds."""
    sides = [s for s in results["sides"] if any(c["seconds"].get(s) for c in cases)]
    titles = list(extra(cases[0])) if extra else []
    rows = []
    for label, case in zip(labels, cases):
        cells = [spread(case["seconds"][s], scale) if case["seconds"].get(s) else "–" for s in sides]
        rows.append([label, *cells, *(extra(case).values() if extra else [])])
    return table([unit, *sides, *titles], rows)


def decode_extra(results):
    """Columns for decoding: the peer's time over ours, and what share of the machine's limit v3 and the peer reach."""

    def extra(case):
        limit = limit_seconds(results, case["batch"], case["context"])
        columns = {}
        for slower, faster in ((PEER, "v6"), (ENGINE, "v6"), ("v3", "v6"), ("v5", "v4")):
            if values := ratios(case, slower, faster):
                columns[f"{slower} / {faster}"] = f"{np.median(values):.2f}"
        columns["limit"] = f"{limit * 1e3:.1f}"
        for s in ("v3", "v6", ENGINE, PEER):
            if case["seconds"].get(s):
                columns[f"{s} reaches"] = f"{limit / np.median(case['seconds'][s]):.0%}"
        return columns

    return extra


def prefill_extra(results):
    """Columns for prefill: the peer's time over ours, and the share of the sgemm peak."""
    sizes = results["hparams"]
    n_weights = (read_bytes(results) / 4) - sizes["n_vocab"] * sizes["n_embd"]  # logits: of the last position only

    def extra(case):
        flop = sum(2 * n * n_weights + 2 * sizes["n_layer"] * n * n * sizes["n_embd"] for n in case["lengths"])
        columns = {}
        for slower, faster in ((PEER, "v6"), (ENGINE, "v6"), ("v3", "v6"), ("v5", "v4")):
            if values := ratios(case, slower, faster):
                columns[f"{slower} / {faster}"] = f"{np.median(values):.2f}"
        for s in ("v3", "v6", ENGINE, PEER):
            if case["seconds"].get(s):
                columns[f"{s} reaches"] = f"{flop / np.median(case['seconds'][s]) / results['limits']['peak']:.0%}"
        return columns

    return extra


def steps_table(results, case):
    """Tokens that go through the model, and time per step, for ranges of steps, without and with the cache."""
    n_new = len(next(iter(case["seconds"].values())))
    edges = [e for e in (0, 1, 10, 50, 100, 150, 200) if e <= n_new]
    if edges[-1] < n_new:
        edges.append(n_new)
    sides = [s for s in ("v2", "v3", PEER) if s in case["seconds"]]
    names = {"v2": "without the cache (v2)", "v3": "with the cache (v3)", PEER: PEER}
    rows = []
    for begin, end in zip(edges, edges[1:]):
        row = [f"{begin + 1}–{end}" if end - begin > 1 else f"{end} (the prompt)"]
        for s in sides:
            past = sum(case["prompt"] + i for i in range(begin, end))
            tokens = past if s in NO_CACHE else case["prompt"] * (begin == 0) + (end - max(begin, 1))
            row += [f"{tokens:,}", f"{np.mean(case['seconds'][s][begin:end]) * 1e3:.1f}"]
        rows.append(row)
    header = ["decode steps"]
    for s in sides:
        header += [f"{names[s]}: tokens", "ms per step"]
    return table(header, rows)


def memory_table(results, cases):
    sizes, rows = results["hparams"], []
    for case in cases:
        cached = 4 * 2 * sizes["n_layer"] * case["batch"] * (case["tokens"] + 4) * sizes["n_embd"]
        cached = 0 if case["side"] in NO_CACHE else cached
        floor = 4 * results["n_weights"] + cached
        peaks = case["bytes"]
        cells = [peaks["python"], peaks["loaded"], peaks["run"], floor, peaks["run"] - floor]
        rows.append([f"{case['side']}, {case['batch']}×{case['tokens']}", *(f"{n / 1e6:,.0f}" for n in cells)])
    header = ["MB", "Python with NumPy", "peak with weights", "peak in all", "weights + cache", "beyond them"]
    return table(header, rows)


def count_rounds(results):
    """How many rounds there were, as text."""
    timed = [case for case in results["cases"] if case["part"] in ("decode", "prefill", "whole")]
    counts = [len(times) for case in timed for s, times in case["seconds"].items() if times and s not in NO_CACHE]
    least, most = (min(counts), max(counts)) if counts else (results["rounds"],) * 2
    rounds = f"{least}" if least == most else f"{least} to {most}"
    return f"{rounds} rounds, fewer for slow cases of versions without a cache"


def report(results):
    """All tables, as Markdown."""
    limits, parts = results["limits"], []
    machine = results["machine"]
    kind = ", quick" if results["quick"] else ", for the goals" if results["goals"] else ""
    parts.append(
        f"{results['model']}, float32, {results['n_weights']:,} weights of 4 bytes. {machine['processor']}, "
        f"{machine['threads']} threads for every side; {machine['versions']}; {results['date']}; "
        f"{count_rounds(results)}{kind}.\n"
    )
    parts.append(
        f"Limits, measured between the rounds: reading {limits['bandwidth'] / 1e9:.1f} GB/s "
        f"({limits['bandwidth_by']}), arithmetic {limits['peak'] / 1e9:.0f} GFLOP/s ({limits['peak_by']}, 2048×2048 "
        "float32 product).\n"
    )
    parts += ["### Goals\n", bar_table(results), ""]
    cells = "Cells: median ± half of the interquartile range; ratios: median of the ratios of each round."
    for context in (SHORT, LONG):
        cases = [c for c in results["cases"] if c["part"] == "decode" and c["context"] == context]
        if cases:
            labels = [f"batch {c['batch']}" for c in cases]
            parts += [f"### Decoding after {context} tokens: ms per step\n", f"{cells}\n"]
            parts += [case_table(results, cases, labels, "ms per step", 1e3, decode_extra(results)), ""]
    cases = [c for c in results["cases"] if c["part"] == "busy"]
    if cases:
        n = machine["threads"]
        parts += [f"### Decoding beside {n} processes that compute all the time: ms per step\n"]
        parts += [case_table(results, cases, [f"batch {c['batch']}" for c in cases], "ms per step", 1e3), ""]
    cases = [c for c in results["cases"] if c["part"] == "prefill"]
    if cases:
        parts += ["### Prefill: seconds until the next token is known\n"]
        parts += [case_table(results, cases, [c["name"] for c in cases], "s", 1.0, prefill_extra(results)), ""]
    cases = [c for c in results["cases"] if c["part"] == "whole"]
    if cases:
        parts += ["### Whole texts: seconds\n"]
        parts += [case_table(results, cases, [c["name"] for c in cases], "s", 1.0), ""]
    case = find(results, part="sequence")
    if case:
        parts += ["### Along one text\n", f"A text from {case['prompt']} tokens, batch 1.\n"]
        parts += [steps_table(results, case), ""]
    cases = [c for c in results["cases"] if c["part"] == "memory"]
    if cases:
        parts += ["### Peak memory of a process: prompt and 4 tokens, in MB\n", memory_table(results, cases), ""]
    return "\n".join(parts)


# ---------------------------------------------------------------- pictures

COLORS = {"v0": "#b8b8b8", "v1": "#e0a63c", "v2": "#c05a2b", "v3": "#1f6fb4", "v4": "#2aa198", "v5": "#7b4fb5"}
COLORS |= {"v6": "#d6336c", PEER: "#111111", ENGINE: "#666666", RUNTIME: "#8d6e63"}
MARKERS = {"v0": "v", "v1": "^", "v2": "s", "v3": "o", "v4": "D", "v5": "P", "v6": "*", PEER: "X", ENGINE: "h"}
MARKERS |= {RUNTIME: "p"}


def new_figure(title, x_label, y_label):
    """A picture of 1600x1000 pixels, twice the size at which it must be readable, on white whatever the page is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 13, "axes.titlesize": 14, "legend.fontsize": 12})
    figure, axes = plt.subplots(figsize=(8, 5), dpi=200, facecolor="white", layout="constrained")
    axes.set_facecolor("white")
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_sequence(results, path):
    """Time per token along one text, with and without the cache."""
    case = find(results, part="sequence")
    figure, axes = new_figure("Time per token along one text", "token number", "ms per token")
    names = {"v2": "without a cache (v2)", "v3": "with the cache (v3)", PEER: PEER}
    for s in ("v2", PEER, "v3"):
        if s in case["seconds"]:
            ms = np.array(case["seconds"][s]) * 1e3
            axes.plot(np.arange(1, len(ms) + 1), ms, color=COLORS[s], linewidth=2, label=names[s])
    axes.set_ylim(bottom=0)
    axes.set_xlim(1, len(ms))
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path)


def draw_batches(results, path):
    """Tokens per second by batch size, with the limits of the machine."""
    cases = [c for c in results["cases"] if c["part"] == "decode" and c["context"] == SHORT]
    batches = np.array([c["batch"] for c in cases])
    title = f"Decoding after {SHORT} tokens, all rows together"
    figure, axes = new_figure(title, "rows in the batch", "tokens per second")
    grid = np.geomspace(batches[0], batches[-1], 200)
    limits = results["limits"]
    reading = grid / read_bytes(results) * limits["bandwidth"]
    arithmetic = np.full_like(grid, limits["peak"] / step_flop(results))
    axes.plot(grid, reading, color="#777777", linestyle="--", linewidth=1.5, label="limit: reading")
    axes.plot(grid, arithmetic, color="#777777", linestyle=":", linewidth=2, label="limit: arithmetic")
    for s in (side for side in results["sides"] if side in MARKERS):  # int8 is other work
        have = [(c["batch"], c["batch"] / np.median(c["seconds"][s])) for c in cases if c["seconds"].get(s)]
        if have:
            x, y = zip(*have)
            axes.plot(x, y, color=COLORS[s], marker=MARKERS[s], markersize=6, linewidth=2, label=s)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [str(b) for b in batches])
    low = min(c["batch"] / np.median(t) for c in cases for t in c["seconds"].values() if t)
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if low * 0.7 <= t <= arithmetic[0] * 1.6]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(low * 0.7, arithmetic[0] * 1.6)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)


# ---------------------------------------------------------------- the whole


def set_threads(threads, with_torch):
    """The same number for NumPy's BLAS and for torch. Stays set for the whole process."""
    import threadpoolctl  # not at the top: docs/build.py makes tables of results where it is not installed

    threadpoolctl.threadpool_limits(threads)
    for name in FILES:
        module = importlib.import_module(FILES[name])
        if hasattr(module, "use_threads"):
            module.use_threads(threads)
    if with_torch:
        import torch

        torch.set_num_threads(threads)


def describe_machine(threads, with_torch):
    """What the numbers depend on."""
    import threadpoolctl

    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    blas = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
    versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    versions += [f"{p['internal_api']} {p['version']} ({p.get('architecture', '?')} kernels)" for p in blas]
    if with_torch:
        import torch
        import transformers

        versions += [f"torch {torch.__version__}", f"transformers {transformers.__version__}"]
    for name in (ENGINE, RUNTIME):
        if importlib.util.find_spec(name):
            versions.append(f"{name} {importlib.import_module(name).__version__}")
    processor = match.group(1) if match else platform.processor() or platform.machine()
    return {"processor": processor, "threads": threads, "system": platform.system(), "versions": ", ".join(versions)}


def check_agreement(sides, hparams):
    """All sides must do the same work: the largest difference of their logits from the first side's, as text."""
    prompts = prompts_of([12, 12], hparams)
    logits = {s: np.array(side.prefill(prompts)) for s, side in sides.items() if s != INT8}
    chosen = logits.pop(ENGINE, None)
    first = next(iter(logits.values()))
    worst = max(float(np.max(np.abs(values - first))) for values in logits.values())
    if worst > 1e-2 * max(1.0, float(np.max(np.abs(first)))):
        raise utils.UserError(f"the sides do not compute the same: their logits differ by up to {worst:.3g}")
    if chosen is not None and not np.array_equal(chosen[:, 0], np.argmax(first, axis=-1)):
        raise utils.UserError(f"{ENGINE} chooses other tokens than the others")
    return worst


def fill_document(path, text):
    """Put the tables between the marks of a page."""
    page = path.read_text(encoding="utf-8")
    page = BLOCK.sub(lambda match: f"{match[1]}{text}{match[2]}", page)
    path.write_text(page, encoding="utf-8", newline="\n")


def write(results, folder, pictures=True):
    """results.json, results.md and the pictures; a complete run goes into docs/performance.md as well."""
    folder.mkdir(parents=True, exist_ok=True)
    text = report(results)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(text, encoding="utf-8", newline="\n")
    if pictures and importlib.util.find_spec("matplotlib"):
        if find(results, part="sequence"):
            draw_sequence(results, folder / "time_per_token.png")
        if find(results, part="decode", context=SHORT):
            draw_batches(results, folder / "tokens_per_second.png")
    if folder == HERE:
        fill_document(ROOT / "docs" / "performance.md", text)
    return text


def merged(results, old):
    """The results with the cases of an earlier piece of the same run. A side that was measured again counts anew."""
    for case in results["cases"]:
        key = {name: case[name] for name in ("part", "batch", "context", "name", "side", "tokens") if name in case}
        if (before := find(old, **key)) and "seconds" in case:
            before["seconds"] |= case["seconds"]
            before["limits"] = before.get("limits") or case.get("limits")
        else:
            old["cases"].append(case)
    old["cases"].sort(key=lambda c: (PARTS.index(c["part"]), c.get("context", 0), c["batch"] if "context" in c else 0))
    sides = set(old["sides"]) | set(results["sides"])
    return {**results, "limits": old["limits"], "cases": old["cases"],
            "sides": [s for s in [*FILES, *PEERS] if s in sides]}  # fmt: skip


def main(
    quick=False, goals=False, rounds=None, only=None, model=None, threads=None, out=None, report_only=False,
    sides=None, append=False, budget=None,
):  # fmt: skip
    """Measure, print the tables, and write them with results.json and two pictures.

    Args:
        quick: two minutes: fewer rounds, and fewer cases still than with --goals.
        goals: only the cases and sides that the goals need, in the full number of rounds.
        rounds: how often each case is measured; 7, or 3 with --quick.
        only: some of decode, context, busy, prefill, whole, sequence, memory, with commas between them, or single cases
            of them: decode-8 and context-1 by their rows, prefill-1x1000, whole-200. busy: decoding with as many
            processes beside it that compute as there are threads.
        model: a model's name or folder; without it, random weights of GPT-2 124M's size.
        threads: threads of every side; without it, one per core.
        out: folder for the results. A complete run on random weights goes to benchmarks/ and docs/performance.md, any
            other to build/bench/.
        report_only: measure nothing; make tables and pictures again from the folder's results.json, or with --goals
            print what it says about the goals.
        sides: some of v0 to v6, transformers, ctranslate2, onnxruntime, ctranslate2-int8, with commas between them;
            without it, all.
        budget: seconds after which a case gets no further round; without it, all rounds, or 3 with --quick.
        append: add to benchmarks/results.json (or out's), so that a long run can be made in pieces.
    """
    parts = PARTS if only is None else only.split(",") if isinstance(only, str) else list(only)
    if unknown := {part.split("-")[0] for part in parts} - set(PARTS):
        raise utils.UserError(f"--only takes {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")

    def wanted(part, name=""):
        return part in parts or f"{part}-{name}" in parts or not name and any(p.split("-")[0] == part for p in parts)

    goals = goals or quick
    complete = not goals and only is None and model is None
    folder = Path(out).resolve() if out else HERE if complete or report_only or append else ROOT / "build" / "bench"
    if report_only:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        print(bar_table(results) if goals else write(results, folder))
        return
    threads = threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rounds = rounds or (3 if quick else 7)
    with_peer = has_peer()
    if not with_peer:
        print("torch and transformers are not installed: the versions are compared with each other", file=sys.stderr)
    set_threads(threads, with_peer)
    hparams, params = load(model)
    names = version_names() + peer_names()
    if sides:
        asked = sides.split(",") if isinstance(sides, str) else list(sides)
        names = [name for name in names if name in asked]
    sides = {name: make_side(name, params, hparams, model, threads) for name in names}
    results = {
        "model": f"the model {model}" if model else "random weights of GPT-2 124M's size",
        "date": datetime.date.today().isoformat(),
        "quick": quick,
        "goals": goals,
        "rounds": rounds,
        "machine": describe_machine(threads, with_peer),
        "hparams": hparams,
        "n_weights": sum(array.size for _, array in named_weights(params)),
        "sides": names,
        "largest_difference_of_logits": check_agreement(sides, hparams),
    }
    limits = Limits(threads, with_peer)
    limits.measure()
    clock = Clock(rounds, budget=budget or (3 if quick else None), rest=0.05 if quick else 0.3)
    fast = {s: side for s, side in sides.items() if s not in NO_CACHE} if goals else sides
    cases, measured = [], [limits.measure()]
    short, long, beside = ([b for b in BATCHES if wanted(part, b)] for part in ("decode", "context", "busy"))
    if short:
        steps = {1: 16, 2: 10, 4: 10}
        cases += measure_decode(fast, hparams, clock, limits, SHORT, short, lambda b: 4 if quick else steps.get(b, 8))
    if long and hparams["n_ctx"] < LONG + 22:
        print(f"context of {LONG} tokens: skipped, the model takes {hparams['n_ctx']} tokens", file=sys.stderr)
    elif long:
        long = sorted({1, 4, 8} & set(long)) if goals else long
        cases += measure_decode(fast, hparams, clock, limits, LONG, long, lambda b: 4 if quick else 10)
    measured += [m for case in cases for m in case["limits"]]
    if beside := sorted({1, 8} & set(beside)):
        with busy(threads):
            others = {s: side for s, side in fast.items() if s not in NO_CACHE}
            cases += measure_decode(others, hparams, clock, limits, SHORT, beside, lambda b: 4, "busy")
    if wanted("prefill"):
        cases += measure_prefill(fast, hparams, clock, wanted)
    if wanted("whole"):
        cases += measure_whole(sides, hparams, clock, wanted, goals, quick)
    if "sequence" in parts and (quick or not goals):
        cases.append(measure_sequence(sides, hparams, 1 if quick else 3, 60 if quick else 200))
    measured.append(limits.measure())
    del sides, fast, params, limits
    if "memory" in parts:
        cases += measure_memory(names, hparams, model, threads, goals, quick)
    results["cases"] = cases
    (bandwidth_by, bandwidth), (peak_by, peak) = best(measured, "bandwidth"), best(measured, "peak")
    results["limits"] = {"bandwidth": bandwidth, "bandwidth_by": bandwidth_by, "peak": peak, "peak_by": peak_by}
    if append and (folder / "results.json").exists():
        results = merged(results, json.loads((folder / "results.json").read_text(encoding="utf-8")))
    print(write(results, folder, pictures=not append))  # --report_only draws them when all pieces are there
    print(f"written to {folder}", file=sys.stderr)


if __name__ == "__main__":
    try:
        fire.Fire(main)
    except ValueError as error:
        sys.exit(f"error: {error}")
