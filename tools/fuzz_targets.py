"""What `fuzz.py` gives to the readers: for each a valid model, one file of which is replaced, and ways to change that.

Random bytes would end at the first check. So most changes keep the form of the file, JSON or a zip archive or lines,
and put odd values into it; then what is behind the checks has its turn too.
"""

import contextlib
import io
import json
import math
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import numpy as np
from model_files import (
    CONFIG,
    make_tensors,
    make_vocab,
    merges_txt,
    safetensors_bytes,
    tokenizer_json,
    write_folder,
    write_gguf,
)
from torch_files import torch_bytes

import jobs
import utils
from gpt2_io.npz import write_npz
from gpt2_io.results import FIRST_LINE
from gpt2_io.safetensors import SAFETENSORS_DTYPES, read_safetensors

SMALL = {**CONFIG, "vocab_size": 3, "n_positions": 2, "n_embd": 2, "n_head": 1, "n_layer": 1, "n_inner": 3}
SMALL |= {"eos_token_id": 2, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}


# ---- changes to files: (bytes, random.Random) -> bytes

NUMBERS = [0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, -1]
BIG, DEEP = "@big@", "@deep@"  # stand for what json.dumps does not write
ODD = [
    *NUMBERS, None, True, False, 1.5, 1e-300, 1e300, float("nan"), float("inf"), 10**400, BIG, DEEP, "", " ", "a", "..",
    "../secret.safetensors", "/etc/passwd", "link.safetensors", "sub", "b.safetensors", "x" * 5000, "a\nb", "\0", "é",
    "\ud800", "Ġ", "<|endoftext|>", [], {}, [[]], [1], ["a", "b"], [0, 2**63], {"content": "<s>"}, {"content": 5},
    "F64", "F16", "BF16", "BOOL", "I64", "U8", "F12",
]  # fmt: skip
CHUNKS = [
    b"", b"\0", b"\xff", b"\r", b"\n", b"\r\n", b" ", b"\xef\xbb\xbf", "\u2028".encode(), b"\xed\xa0\x80", b"-",
    b'"', b"{", b"}", b",", b"0", b"x" * 9000, b"[" * 500, b"[" * 100_000, b"1" * 5000, b'{"prompt": "a", "id": 1}',
]  # fmt: skip


def change_bytes(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        i = rng.randrange(len(data) + 1)
        n = rng.choice((1, 1, 2, 4, 8, 50))
        what = rng.randrange(6)
        if what == 0:
            data[i : i + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            data[i : i + rng.choice((0, n))] = rng.choice(CHUNKS if rng.random() < 0.3 else CHUNKS[:8])
        elif what == 2:
            del data[i : i + n]
        elif what == 3:
            j = rng.randrange(len(data) + 1)
            data[i : i + rng.choice((0, n))] = data[j : j + n]
        elif what == 4:
            size = rng.choice((1, 2, 4, 8))
            data[i : i + size] = (rng.choice(NUMBERS) % 256**size).to_bytes(size, rng.choice(("little", "big")))
        elif rng.random() < 0.3:
            del data[i:]
    return bytes(data)


def change_json(data, rng):
    """Other values, keys and places for what the JSON holds; now and then a key twice, a huge number, a deep nest."""
    try:
        value = [json.loads(data)]
        places, left = [], [value]
        while left:
            box = left.pop()
            inside = [(box, key) for key in (box if isinstance(box, dict) else range(len(box)))]
            places += inside
            left += [box[key] for box, key in inside if isinstance(box[key], (dict, list))]
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            box, key = rng.choice(places[:30] if rng.random() < 0.5 else places)  # a vocabulary hides all else
            other_box, other = rng.choice(places)
            what = rng.randrange(6)
            if what == 0 and isinstance(box, dict):
                name = rng.choice(("", "a", "..", "\ud800", "transformer.", "x" * 5000))
                box[name + rng.choice(("", key))] = rng.choice(ODD)
            elif what == 1 and isinstance(box, dict):
                box["@twice@" + key] = rng.choice(ODD)
            elif what == 2 and box is not value and len(places) > 1:
                with contextlib.suppress(LookupError):
                    del box[key]
            elif what == 3:
                with contextlib.suppress(LookupError):
                    box[key] = json.loads(json.dumps(other_box[other]))  # a copy: no circles
            else:
                with contextlib.suppress(IndexError):
                    box[key] = rng.choice(ODD)
        text = json.dumps(value[0], ensure_ascii=rng.random() < 0.5).replace("@twice@", "")
    except (ValueError, RecursionError):
        return change_bytes(data, rng)
    n = rng.choice((50, 300, 900, 980, 1100, 30_000))
    text = text.replace(f'"{BIG}"', "9" * rng.choice((20, 4299, 5000))).replace(f'"{DEEP}"', "[" * n + "]" * n)
    return text.encode("utf-8", "surrogatepass")


def change_lines(data, rng):
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(5)
    if what == 0:
        lines[i], lines[j] = lines[j], lines[i]
    elif what == 1:
        lines.insert(i, lines[j])
    elif what == 2:
        lines[i] = rng.choice(CHUNKS)
    elif what == 3:
        lines[i] = change_json(lines[i], rng)
    else:
        del lines[i]
    return rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n")).join(lines)


def change_safetensors(data, rng):
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.4:  # other types, all consistent: what is behind the checks of the header is reached
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            entries, end = json.loads(header), 0
            for name, entry in entries.items():
                if name != "__metadata__":
                    entry["dtype"] = rng.choice(("F32", "F32", "F16", "BF16", "F64", rng.choice(list(DTYPES))))
                    begin, end = end, end + math.prod(entry["shape"]) * DTYPES[entry["dtype"]]
                    entry["data_offsets"] = [begin, end]
            body = rng.randbytes(min(end, 10_000))
            header = json.dumps(entries).encode()
    header = change_json(header, rng) if rng.random() < 0.7 else header
    body = change_bytes(body, rng) if rng.random() < 0.2 else body
    size = len(header) if rng.random() < 0.9 else rng.choice(NUMBERS) % 2**64
    return struct.pack("<Q", size) + header + body


DTYPES = {name: np.dtype(numpy_name).itemsize for name, numpy_name in SAFETENSORS_DTYPES.items()}
COMPRESSIONS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
NPY_WORDS = [
    b"'<f2'", b"'<f8'", b"'<i8'", b"'>f4'", b"'O'", b"'V0'", b"'U1'", b"('<f4', 2)", b"[('a', '<f4')]", b"True",
    b"(3,)", b"(-1, 2)", b"()", b"9" * 30, b"-" * 99, b"((", b"'", b"L", b"descr", b"shape", b"NUMPY\x02", b"NUMPY\x03",
]  # fmt: skip


def change_npz(data, rng):
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [[info.filename, archive.read(info)] for info in archive.infolist()]
        member = rng.choice(members)
    except Exception:  # a broken archive: zipfile raises many kinds
        return change_bytes(data, rng)
    what = rng.randrange(7)
    if what == 0:
        member[0] = rng.choice((" ", "../x", "/etc/passwd", "config.json", "vocab.json", "é.npy", "x" * 3000, "a\0b"))
    elif what == 1:
        members.append([member[0], rng.choice(members)[1]])
    elif what == 2:
        members.remove(member)
    elif what == 3 and rng.random() < 0.1:
        member[1] = member[1][:60] + bytes(3_000_000)
    elif member[0].endswith(".json"):
        member[1] = change_json(member[1], rng)
    elif what == 4:
        word = rng.choice([b"'<f4'", b"(", b")", b"False", b"2", b"NUMPY\x01", b"fortran_order"])
        member[1] = member[1].replace(word, rng.choice(NPY_WORDS), 1)
    else:
        member[1] = change_bytes(member[1], rng)
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as archive:
        warnings.simplefilter("ignore")  # a name that is there twice
        for name, content in members:
            kind = COMPRESSIONS[0] if rng.random() < 0.5 else rng.choice(COMPRESSIONS)
            archive.writestr(name, content, compress_type=kind, compresslevel=1)
    return made.getvalue() if rng.random() < 0.8 else change_bytes(made.getvalue(), rng)


TORCH_WORDS = [b"torch.HalfStorage", b"os.system", b"torch.storage._load_from_bytes", b"torch.uint16", b"0"]
STEPS = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]


def change_torch(data, rng):
    """Another step, number or name in the pickle, or another file in the zip."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [[info.filename, archive.read(info)] for info in archive.infolist()]
        member = next(member for member in members if member[0].endswith("data.pkl"))
    except Exception:  # a broken archive: zipfile raises many kinds
        return change_bytes(data, rng)
    what = rng.randrange(8)
    if what < 5:
        pickle = bytearray(member[1])
        for _ in range(rng.choice((1, 1, 2, 5))):
            i = rng.randrange(len(pickle) + 1)
            pickle[i : i + rng.choice((0, 1, 1, 3))] = rng.choice((rng.choice(STEPS), rng.randbytes(1), b"\xff" * 4))
        member[1] = bytes(pickle)
    elif what == 5:
        member[1] = member[1].replace(b"torch\nFloatStorage", rng.choice(TORCH_WORDS).replace(b".", b"\n"), 1)
    else:
        one = rng.choice(members)
        if rng.random() < 0.5:
            one[1] = change_bytes(one[1], rng)
        else:
            one[0] = rng.choice((rng.choice(members)[0], "archive/constants.pkl", "archive/data/0", "../x", "x" * 3000))
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as archive:
        warnings.simplefilter("ignore")  # a name that is there twice
        for name, content in members:
            archive.writestr(name, content, compress_type=rng.choice([zipfile.ZIP_STORED] * 9 + COMPRESSIONS))
    return made.getvalue() if rng.random() < 0.9 else change_bytes(made.getvalue(), rng)


def change(target, data, rng):
    return (target.change if rng.random() < 0.75 else change_bytes)(data, rng)


# ---- targets: a folder with a valid model, one file of which is replaced by the input


class Target(NamedTuple):
    file: str  # that gets the input
    seeds: list  # valid inputs, bytes
    change: Callable
    read: Callable  # folder -> anything, or UserError or OSError


def load(folder, file=""):
    """As the commands load a model, and encode something with it."""
    encoder = utils.load_model(str(folder / file))[0]
    with contextlib.suppress(ValueError):  # of the text, not of the file: it names none
        utils.encode_prompts(encoder, [" the<|endoftext|> in é<s>", ""])


def load_safetensors(folder):
    for tensor in read_safetensors(folder / "model.safetensors").values():
        with contextlib.suppress(ValueError):
            tensor.float32()  # also those that the config has no place for
    load(folder)


def safetensors(folder):
    write_folder(folder, SMALL, tokenizer=False)
    unaligned = safetensors_bytes(make_tensors(SMALL), pad=False)
    tied = {**make_tensors(SMALL), "lm_head.weight": make_tensors(SMALL)["wte.weight"]}
    seeds = [(folder / "model.safetensors").read_bytes(), unaligned, safetensors_bytes(tied), safetensors_bytes({})]
    return Target("model.safetensors", seeds, change_safetensors, load_safetensors)


def index(folder):
    write_folder(folder, SMALL, tokenizer=False)
    tensors = list(make_tensors(SMALL).items())
    shards = {"a.safetensors": dict(tensors[:7]), "b.safetensors": dict(tensors[7:])}
    (folder / "model.safetensors").unlink()
    (folder / "sub").mkdir()
    for file, part in shards.items():
        (folder / file).write_bytes(safetensors_bytes(part))
    secret = folder.parent / "secret.safetensors"  # outside, with what would fit in
    secret.write_bytes(safetensors_bytes(shards["b.safetensors"]))
    with contextlib.suppress(OSError):  # Windows asks for rights
        (folder / "link.safetensors").symlink_to(secret)
    seeds = []
    for second in ("b.safetensors", "link.safetensors"):
        weight_map = {name: "a.safetensors" if name in shards["a.safetensors"] else second for name, _ in tensors}
        seeds.append(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode())
    return Target("model.safetensors.index.json", seeds, change_json, load)


def npz(folder):
    write_folder(folder, SMALL, tokenizer=False)
    write_npz(folder / "m.npz", make_tensors(SMALL), {"config.json": json.dumps(SMALL)})
    packed = io.BytesIO()
    np.savez_compressed(packed, **make_tensors(SMALL))
    return Target("m.npz", [(folder / "m.npz").read_bytes(), packed.getvalue()], change_npz, lambda f: load(f, "m.npz"))


def torch_file(folder):
    write_folder(folder, SMALL, tokenizer=False)
    tensors = make_tensors(SMALL)
    half = {f"module.{name}": array.astype(np.float16) for name, array in tensors.items()}
    args = {"n_layer": 1, "n_head": 1, "n_embd": 2, "block_size": 2, "vocab_size": 3, "bias": True}
    more = torch_bytes(tensors, "model", model_args=args, lr=[1, None, True])
    seeds = [torch_bytes(tensors), torch_bytes(half), more]
    (folder / "model.safetensors").unlink()
    return Target("pytorch_model.bin", seeds, change_torch, load)


def text_file(file, *seeds, change=change_json):
    """A file beside the weights, in a model with a tokenizer."""

    def target(folder):
        write_folder(folder, {**SMALL, "vocab_size": 263})
        valid = [seed if isinstance(seed, bytes) else json.dumps(seed).encode() for seed in seeds]
        return Target(file, valid, change, load)

    return target


FLAGS = {"content": "<s>", "single_word": True, "lstrip": True, "rstrip": True, "normalized": False, "special": True}
TOKENIZER_CONFIG = {"add_prefix_space": False, "bos_token": "<|endoftext|>", "unk_token": {"content": "<|endoftext|>"}}
TOKENIZER_CONFIG |= {"added_tokens_decoder": {"262": {**FLAGS, "content": "<|endoftext|>"}, "263": FLAGS}}


def gguf_file(folder):
    config = {**SMALL, "vocab_size": 263}
    write_gguf(folder / "m.gguf", config)
    without = write_gguf(folder.parent / "without.gguf", SMALL, vocab={})
    seeds = [(folder / "m.gguf").read_bytes(), without.read_bytes()]
    return Target("m.gguf", seeds, change_bytes, lambda folder: load(folder, "m.gguf"))


RECORDS = [{"prompt": "a"}, {"prompt": "b", "id": [1]}, {"prompt": "", "id": None}]
SETTINGS = {"n_tokens_to_generate": "1", "temperature": 1.0, "n_samples": 2, "rows": 10_000}


class QuickModel:
    """In place of a model: it makes the same token each time."""

    encoder, hparams, fingerprint = None, {"n_ctx": 64, "n_vocab": 2048}, bytes(16)
    encode = jobs.Model.encode

    def __init__(self, *_):
        self.encoder = ENCODER

    @staticmethod
    def complete_batch(model, prompts, n_tokens_to_generate, rows, settings, seeds, on_token, on_end):
        for row, seed in enumerate(seeds or range(len(prompts))):
            np.random.default_rng(seed)  # what the versions do with it
            on_token(row, 64, -1.0)
            on_end(row, [64])


def run_job(folder):
    """The command; a line that cannot be done is no fault."""
    with contextlib.redirect_stderr(io.StringIO()), mock.patch.multiple(
        jobs, Model=QuickModel, complete_batch=QuickModel.complete_batch
    ):
        try:
            jobs.complete(str(folder / "prompts"), out=str(folder / "out.jsonl"), **SETTINGS)
        except SystemExit as end:
            assert end.code == 1


def prompts(folder):
    def read(folder):
        for name in ("out.jsonl", "out.jsonl.part"):
            (folder / name).unlink(missing_ok=True)
        run_job(folder)

    lines = "\n".join(map(json.dumps, RECORDS)).encode()
    return Target("prompts", [b"one\n two\r\n\n three", lines], change_lines, read)


def results_in(name):
    """The results of a job, or what a job that was broken off has left of them."""

    def target(folder):
        (folder / "prompts").write_text("\n".join(map(json.dumps, RECORDS)), encoding="utf-8")
        (folder / "out.jsonl").unlink(missing_ok=True)
        run_job(folder)
        data = (folder / "out.jsonl").read_bytes()
        if name.endswith("part"):
            data = FIRST_LINE + data[: len(data) * 2 // 3]

        def read(folder):
            for other in {"out.jsonl", "out.jsonl.part"} - {name}:
                (folder / other).unlink(missing_ok=True)
            run_job(folder)

        return Target(name, [data], change_lines, read)

    return target


TOKENIZER = json.loads(tokenizer_json(added=[{**FLAGS, "id": 263}]))
GENERATION = {"bos_token_id": 262, "eos_token_id": [262, 13], "pad_token_id": 262, "_from_model_config": True}
TARGETS = {  # the number: the part of all inputs, by speed
    "safetensors": (safetensors, 20),
    "index": (index, 10),
    "npz": (npz, 10),
    "torch": (torch_file, 10),
    "config": (text_file("config.json", {**SMALL, "vocab_size": 263}), 10),
    "vocab": (text_file("vocab.json", make_vocab()), 5),
    "merges": (text_file("merges.txt", merges_txt().encode(), change=change_lines), 5),
    "tokenizer_json": (text_file("tokenizer.json", TOKENIZER), 5),
    "tokenizer_config": (text_file("tokenizer_config.json", TOKENIZER_CONFIG), 5),
    "added_tokens": (text_file("added_tokens.json", {"<s>": 263, "<pad>": 264}), 5),
    "special_tokens_map": (text_file("special_tokens_map.json", {"bos_token": "<|endoftext|>", "eos_token": FLAGS}), 5),
    "generation_config": (text_file("generation_config.json", GENERATION), 2),
    "gguf": (gguf_file, 4),
    "prompts": (prompts, 6),
    "results": (results_in("out.jsonl"), 6),
    "part": (results_in("out.jsonl.part"), 4),
}
ENCODER = utils.load_model()[0]
