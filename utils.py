"""Everything around the model: weight files, tokenizers, downloads and the command line.

    python utils.py inspect --model tales
    python utils.py tokenize "some text" --merges
    python utils.py download 124M
    python utils.py convert --model tales --out tales.npz

A model is a folder in Hugging Face's layout: `config.json`, `model.safetensors`, `vocab.json` and `merges.txt`. Other
formats are read into the same form. `load_model` turns it into what the `gpt2_v*.py` files work with: an encoder,
hparams and params.
"""
import os
import signal
import sys

if (
    os.path.dirname(os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or os.devnull))
    == os.path.dirname(os.path.realpath(__file__))
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may want it ignored
):
    # A command that lies beside this file. Ctrl-C ends it quietly from here on: in the imports below, which take a
    # good part of its first half second, and also where Python would print what Ctrl-C raises, drop it, and run on.
    interrupted = []

    def end_quietly(*_):
        os._exit(130)

    def interrupt(*_):  # while `run` is at work: by an exception, since there are files to close and to remove
        interrupted.append(True)
        raise KeyboardInterrupt

    def report(unraisable):
        if unraisable.exc_type is KeyboardInterrupt:
            end_quietly()
        if not interrupted:  # else it may be a complaint of what Ctrl-C left half made
            sys.__unraisablehook__(unraisable)

    signal.signal(signal.SIGINT, end_quietly)
    sys.unraisablehook = report
else:
    end_quietly = None  # a library leaves signals to the program that imports it

import codecs
import contextlib
import ctypes
import errno
import hashlib
import inspect
import itertools
import json
import math
import re
import secrets
import shutil
import struct
import time
import tokenize as python_tokens
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fire
import numpy as np
import tiktoken
from tqdm import tqdm

try:
    import fcntl  # file locks, everywhere but on Windows
except ImportError:
    fcntl = None
    import msvcrt

EOT = "<|endoftext|>"


# ---------------------------------------------------------------- tensors in files


class StoredTensor(NamedTuple):
    """A tensor that still lies in its file: known without being read."""

    dtype: str  # the file's word for it: "F32", "F16", "BF16", "Q4_K", ...
    shape: tuple
    n_bytes: int  # in the file
    float32: Callable  # () -> float32 array of that shape; reads the file


def to_float32(array):
    """A float32 array that BLAS can use as it lies: the array itself if it is one, else a copy.

    Axes stored in the other order would be rounded differently in a product.
    """
    with np.errstate(all="ignore"):  # a float64 that is too large becomes infinity, and that is noticed later
        return np.require(array, dtype=np.float32, requirements=["C", "A"])


# safetensors' names of types, and what NumPy calls them. NumPy has no bfloat16: its two bytes are read as an integer.
SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip
FLOATS = {"float64": "F64", "float32": "F32", "float16": "F16"}  # NumPy's names -> safetensors'
MAX_HEADER = 100_000_000  # bytes; the limit that the safetensors library sets too


def read_safetensors_header(path):
    """Read and check the description at the front of a safetensors file.

    The file is: 8 bytes, the length N of the header as a little-endian integer; N bytes of JSON,
    `{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}`; then the data, to which the
    offsets refer. The tensors cover the data exactly, without gaps or overlaps, so no byte goes unexplained.

    Returns (header without `__metadata__`, position in the file where the data starts).
    Raises ValueError, naming file and tensor, for anything else. Nothing is allocated on the word of the file alone.
    """
    file_size = os.path.getsize(path)
    if file_size < 8:
        raise ValueError(f"{path}: {file_size} bytes, shorter than the 8 with which a safetensors file begins")
    with open(path, "rb") as file:
        begin = file.read(8)
        if begin == b"version ":
            raise ValueError(f"{path}: a Git LFS pointer in place of the weights: get them with `git lfs pull`")
        header_size = int.from_bytes(begin, "little")
        if header_size > min(MAX_HEADER, file_size - 8):
            raise ValueError(
                f"{path}: not a whole safetensors file: it announces a header of {header_size} bytes, "
                f"but has {file_size} itself, and {MAX_HEADER} is the limit"
            )
        header = parse_json(file.read(header_size), f"{path}: header")
    header.pop("__metadata__", None)

    data_start, data_size = 8 + header_size, file_size - 8 - header_size
    for name, entry in header.items():
        where = f"{path}: tensor {name!r:.100}"
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
            raise ValueError(f"{where}: dtype, shape and data_offsets are expected, not {entry!r:.60}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
            raise ValueError(f"{where}: unknown dtype {dtype!r:.60}; known: {', '.join(SAFETENSORS_DTYPES)}")
        if not is_list_of_sizes(shape):
            raise ValueError(f"{where}: shape {shape!r:.60} is not a list of sizes")
        if not is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise ValueError(f"{where}: data_offsets {offsets!r:.60} are not [begin, end] with 0 <= begin <= end")
        begin, end = offsets
        if end > data_size:
            raise ValueError(f"{where}: ends at byte {end} of the data, which has {data_size}: a cut file?")
        n_bytes = math.prod(shape) * np.dtype(SAFETENSORS_DTYPES[dtype]).itemsize
        if n_bytes != end - begin:
            asked = f"{dtype} of shape {str(shape):.60} takes {n_bytes} bytes"
            raise ValueError(f"{where}: {asked}, but there are {end - begin}")

    last_end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != last_end:
            fault = "overlaps the tensor before it" if begin < last_end else "leaves a gap before it"
            raise ValueError(f"{path}: tensor {name!r:.100}: {fault}: begins at byte {begin}, not at {last_end}")
        last_end = end
    if last_end != data_size:
        raise ValueError(f"{path}: {data_size - last_end} bytes after the last tensor belong to none")
    return header, data_start


def read_safetensors(path):
    """Map a safetensors file into memory -> {name: StoredTensor}.

    F32 tensors become read-only views of the file: the operating system reads a page of it when it is first used.
    Raises ValueError as `read_safetensors_header` does.
    """
    header, data_start = read_safetensors_header(path)
    # np.asarray: a plain array on the same memory, without memmap's bookkeeping in every later operation.
    data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))[data_start:]

    def stored(name, dtype, shape, begin, end):
        def float32():
            where = f"{path}: tensor {name!r:.100}"
            raw = data[begin:end]
            if data_start % 4:  # older files, OpenAI's GPT-2 among them, are not aligned: BLAS would copy each time
                raw = np.fromfile(path, dtype=np.uint8, count=end - begin, offset=data_start + begin)
            with naming_faults(where):  # [0, 2**62] takes no bytes, but NumPy has no such array
                raw = raw.view(SAFETENSORS_DTYPES[dtype]).reshape(shape)
            if dtype == "BF16":  # the upper half of a float32: put zeros below it
                return (raw.astype(np.uint32) << 16).view(np.float32)
            if dtype not in FLOATS.values():
                raise ValueError(f"{where}: weights of type {dtype}; F32, F16, BF16, F64 are supported")
            return to_float32(raw)

        return StoredTensor(dtype, tuple(shape), end - begin, float32)

    return {name: stored(name, e["dtype"], e["shape"], *e["data_offsets"]) for name, e in header.items()}


def read_weight_map(index_path):
    """`model.safetensors.index.json` -> {tensor: file beside the index}. Raises ValueError, also for other places."""
    weight_map = parse_json(read_text(index_path), index_path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index_path}: weight_map, from tensors to files, is missing")
    for file in weight_map.values():
        if not isinstance(file, str) or not re.fullmatch(r"[\w-][\w.-]{,99}", file):  # a path could lead anywhere
            raise ValueError(f"{index_path}: {file!r:.100} is not the plain name of a file in its folder")
    return weight_map


def read_sharded_safetensors(index_path):
    """Read the tensors that `model.safetensors.index.json` finds in several files beside it -> {name: StoredTensor}."""
    weight_map = read_weight_map(index_path)
    tensors = {}
    for file in sorted(set(weight_map.values())):
        shard_path = index_path.parent / file
        if not has_file(index_path.parent, file):
            raise ValueError(f"{index_path}: {file} is missing")
        shard = read_safetensors(shard_path)
        names = [name for name in weight_map if weight_map[name] == file]
        if set(names) != set(shard):
            wrong = listed(sorted(set(names) ^ set(shard)))
            raise ValueError(f"{index_path}: these tensors are only in the list for {file} or only in it: {wrong}")
        tensors.update(shard)
    return tensors


def write_safetensors(path, tensors, metadata=None):
    """Write `{name: float32 or float16 array}` as a safetensors file, whole or not at all.

    metadata: {str: str}, stored under `__metadata__`. Raises ValueError for another dtype.
    """
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in tensors.items():
        if array.dtype not in (np.float32, np.float16):
            raise ValueError(f"{path}: tensor {name!r}: {array.dtype} is not written, only float32 and float16")
        end = offset + array.nbytes
        header[name] = {"dtype": FLOATS[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)  # so that the data starts aligned for every dtype
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)


NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MAX_UNPACKED = 64  # times the size of a .npz; deflate packs zeros to a 1000th, weights to a half at best


def read_npz(path):
    """Read a .npz file -> {name: StoredTensor}, {file name: text}.

    A .npz is a zip of .npy files, one for each tensor; each is read when it is asked for. `write_npz` puts the text
    files of the model beside them. Python objects are never unpickled. Raises ValueError, naming file and tensor.
    """

    def stored(member, name, dtype, shape, n_bytes):
        def float32():
            with naming_faults(f"{path}: tensor {name!r:.100}"), archive.open(member) as file:
                return to_float32(np.lib.format.read_array(file, allow_pickle=False))

        return StoredTensor(FLOATS.get(dtype.name, dtype.name), shape, n_bytes, float32)

    tensors, files = {}, {}
    with naming_faults(f"{path}: not a whole .npz file"):
        archive = zipfile.ZipFile(path)  # stays open for the tensors: each time, it would read its whole table again
    unpacked, packed = sum(member.file_size for member in archive.infolist()), os.path.getsize(path)
    if unpacked > 1_000_000 + MAX_UNPACKED * packed:
        sizes = f"{in_units(packed)} that would unpack to {in_units(unpacked)}"
        raise ValueError(f"{path}: {sizes}: a zip bomb? No weights shrink to a {MAX_UNPACKED}th")
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        with naming_faults(f"{path}: tensor {name!r:.100}"):
            if name in tensors or name in files:
                raise ValueError("it is there twice")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("packed in another way than NumPy's two, np.savez and np.savez_compressed")
            with archive.open(member) as file:
                if name in TEXT_FILES:
                    files[name] = file.read().decode("utf-8")
                    continue
                version = np.lib.format.read_magic(file)
                if version not in NPY_HEADERS:
                    raise ValueError(f"version {version} of the .npy format; 1.0 and 2.0 are supported")
                shape, _, dtype = NPY_HEADERS[version](file)
                n_bytes, n_found = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
                if dtype.kind != "f":
                    raise ValueError(f"an array of dtype {dtype}, not of floats")
                if n_bytes != n_found:
                    asked = f"{dtype} of shape {str(list(shape)):.60}"
                    raise ValueError(f"{asked} takes another number of bytes than the {n_found} of the file")
                tensors[name] = stored(member, name, dtype, shape, n_bytes)
    return tensors, files


def write_npz(path, tensors, files):
    """Write `{name: array}` and the text files of the model as one .npz, whole or not at all."""
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)  # a ZipInfo has a fixed date: always the same file
        for name, array in tensors.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


# llama.cpp's names for the parts of a GPT-2. It keeps the four linear weights as [out, in].
GGUF_LINEARS = {"attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
GGUF_NAMES = {
    "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head",
    "attn_norm": "ln_1", "ffn_norm": "ln_2", **GGUF_LINEARS,
}  # fmt: skip


def read_gguf(path):
    """Read a .gguf file -> {name: StoredTensor}, {file name: text}: its metadata as config.json and tokenizer files.

    Needs the gguf package, which turns the quantised types into floats. Raises ValueError, also for another
    architecture or tokenizer than GPT-2's.
    """
    try:
        import gguf
    except ImportError:
        raise ValueError(f"{path}: GGUF files need the gguf package: pip install gguf") from None

    class Reader(gguf.GGUFReader):
        """The package's, which reads past the end of the file, and on and on, and makes an array of each number."""

        def _get(self, offset, dtype, count=1, **options):
            self.data = np.asarray(self.data)  # a plain array: views of it cost a fifth of what memmap's do
            values = super()._get(offset, dtype, count, **options)
            if len(values) != count:
                raise ValueError(f"it is cut off, or the {count} values at byte {offset} are a mistake")
            return values

        def _get_field_parts(self, offset, raw_type):
            if raw_type == gguf.GGUFValueType.ARRAY:
                kind, length = self._get(offset, np.uint32), self._get(offset + 4, np.uint64)
                dtype = self.gguf_scalar_to_np.get(gguf.GGUFValueType(kind[0]))
                if dtype:
                    values = self._get(offset + 12, dtype, length[0])
                    types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind[0])]
                    return 12 + values.nbytes, [kind, length, values], [2], types
            return super()._get_field_parts(offset, raw_type)

    with naming_faults(f"{path}: not a whole GGUF file"):
        reader = Reader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    supported = {
        "general.architecture": ("gpt2",),
        "tokenizer.ggml.model": ("gpt2", None),
        "tokenizer.ggml.pre": ("gpt-2", "default", None),
    }
    for key, values in supported.items():
        if fields.get(key) not in values:
            raise ValueError(f"{path}: {key} is {fields.get(key)!r:.60}; only {values[0]!r} is supported")

    def stored(tensor, transposed):
        shape = [int(n) for n in tensor.shape]  # GGUF counts axes from the inside, NumPy from the outside

        def float32():
            with naming_faults(f"{path}: tensor {tensor.name!r:.100}"):
                try:
                    values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape[::-1])
                except NotImplementedError:
                    raise ValueError(f"the gguf package makes no floats of {dtype}") from None
            return to_float32(np.asarray(values.T if transposed else values))

        dtype = tensor.tensor_type.name
        return StoredTensor(dtype, tuple(shape if transposed else shape[::-1]), int(tensor.n_bytes), float32)

    tensors = {}
    for tensor in reader.tensors:
        block, part, kind = re.fullmatch(r"(?s)(?:blk\.(\d+)\.)?(.*?)((?:\.weight|\.bias)?)", tensor.name).groups()
        name = (f"h.{block}." if block else "") + GGUF_NAMES.get(part, part) + kind
        tensors[name] = stored(tensor, part in GGUF_LINEARS and kind == ".weight")

    with naming_faults(f"{path}: metadata"):
        config = {
            "model_type": "gpt2",
            "n_positions": fields.get("gpt2.context_length"),
            "n_embd": fields.get("gpt2.embedding_length"),
            "n_layer": fields.get("gpt2.block_count"),
            "n_head": fields.get("gpt2.attention.head_count"),
            "n_inner": fields.get("gpt2.feed_forward_length"),
            # A float32 in the file: the shortest decimal number that it can stand for is the one that was meant.
            "layer_norm_epsilon": float(str(np.float32(fields.get("gpt2.attention.layer_norm_epsilon", 1e-5)))),
            "vocab_size": tensors["wte.weight"].shape[0] if "wte.weight" in tensors else None,
            "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        }
        files = {"config.json": json.dumps(config)}
        if "tokenizer.ggml.tokens" in fields:
            tokens, merges = fields["tokenizer.ggml.tokens"], fields.get("tokenizer.ggml.merges", [])
            kinds = fields.get("tokenizer.ggml.token_type", [gguf.TokenType.NORMAL] * len(tokens))
            unused, added = (gguf.TokenType.UNUSED,), (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
            vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind not in unused}
            files["vocab.json"] = json.dumps(vocab)
            files["merges.txt"] = "#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)
            files["added_tokens.json"] = json.dumps({token: i for token, i in vocab.items() if kinds[i] in added})
    return tensors, files


@contextlib.contextmanager
def replacing(path):
    """`with replacing(path) as file`: write bytes to `path.part`, which becomes `path` only if all went well."""
    part = Path(f"{path}.part")
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


FAULTS = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, EOFError, RuntimeError,
    zipfile.BadZipFile, zlib.error, struct.error,
    SyntaxError, python_tokens.TokenError, MemoryError,  # from Python's parser, which NumPy gives the headers of arrays
)  # fmt: skip


@contextlib.contextmanager
def naming_faults(where):
    """Turn what libraries raise for a broken file into a ValueError that begins with `where`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says it, or it is none
            yield
    except OSError as error:
        if error.filename:  # then it says where itself
            raise
        raise ValueError(f"{where}: {error}") from None
    except FAULTS as error:
        raise ValueError(f"{where}: {str(error) or type(error).__name__:.700}") from None


def read_text(path):
    with naming_faults(path):
        return Path(path).read_text(encoding="utf-8")


def parse_json(text, where):
    """A JSON object -> dict. Raises ValueError, with `where`, for anything else and for a key that is there twice."""

    def unique(pairs):
        result = dict(pairs)
        if len(result) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"{twice!r:.60} is there twice")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a JSON object is expected, not {text[:20]!r}")
    return value


def is_list_of_sizes(value):
    return isinstance(value, list) and len(value) <= 32 and all(type(n) is int and 0 <= n < 2**63 for n in value)


def listed(names, limit=10):
    """Names for a message, of any number and length -> text."""
    names = list(names)
    shown = ", ".join(f"{name:.60}" if name.strip() else repr(name[:60]) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def has_file(folder, name):
    """Whether a model's folder has this file. Raises ValueError for a link that leads out of the folder.

    With such links, a model from somebody else could have any file of this machine read. Hugging Face's cache is built
    of links, from `snapshots` to `blobs`: those are followed.
    """
    path = folder / name
    if not path.is_file():
        return False
    target = path.resolve()
    in_cache = target.parent.name == "blobs" and target.parent.parent.name.startswith("models--")
    if not in_cache and not target.is_relative_to(folder.resolve()):
        raise ValueError(f"{path}: a link out of its folder, to {target}, which is not followed: put the file there")
    return True


# ---------------------------------------------------------------- from files to params


class Checkpoint(NamedTuple):
    """A model as it was found, whatever the format: the tensors and the text files of a Hugging Face folder."""

    path: Path
    tensors: dict  # name -> StoredTensor
    files: dict  # "config.json" -> its text, and so on for those of TEXT_FILES that there are


TEXT_FILES = (
    "config.json", "vocab.json", "merges.txt", "tokenizer.json",
    "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_checkpoint(path):
    """A model folder or weight file -> Checkpoint, with nothing but headers and small text files read.

    Text files are those in the folder; a .npz or .gguf file brings its own, else those beside it count.
    Raises ValueError for what is none of these, with what would work.
    """
    path = Path(path)
    if path.suffix in PICKLES and not path.is_dir():
        raise ValueError(
            f"{path}: PyTorch's own format is not read: it is a pickle, which can run any code when it is opened. If "
            "you trust it, load it with transformers; save_pretrained(folder) then writes it as model.safetensors"
        )
    if path.is_dir():
        if has_file(path, "model.safetensors"):
            tensors, files = read_safetensors(path / "model.safetensors"), {}
        elif has_file(path, "model.safetensors.index.json"):
            tensors, files = read_sharded_safetensors(path / "model.safetensors.index.json"), {}
        else:
            others = sorted(p for p in path.iterdir() if p.suffix in (".safetensors", ".npz", ".gguf"))
            pickles = sorted(p for p in path.iterdir() if p.suffix in PICKLES)
            if pickles and not others:
                return open_checkpoint(pickles[0])  # says why not
            hint = f"; to use {others[0].name}, give its path" if others else ""
            raise ValueError(f"{path}: no model.safetensors in this folder{hint}")
    elif path.suffix == ".safetensors":
        tensors, files = read_safetensors(path), {}
    elif path.suffix == ".npz":
        tensors, files = read_npz(path)
    elif path.suffix == ".gguf":
        tensors, files = read_gguf(path)
    else:
        raise ValueError(f"{path}: not a model: a folder, a .safetensors, .npz or .gguf file is expected")
    folder = path if path.is_dir() else path.parent
    files = files or {name: read_text(folder / name) for name in TEXT_FILES if has_file(folder, name)}
    return Checkpoint(path, tensors, files)


# All of them are 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), which is what `gelu` computes.
GELU_NAMES = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")


def read_config(checkpoint):
    """Check a checkpoint's config.json -> dict.

    Keys: those of hparams, and n_inner, layer_norm_epsilon, scale_attn_weights, scale_attn_by_inverse_layer_idx,
    eos_token_id (or None). Raises ValueError, by name, for what is missing, no size, or a feature not supported.
    """
    where = f"{checkpoint.path}: config.json"
    if "config.json" not in checkpoint.files:
        raise ValueError(f"{where} is missing; without it nobody knows how many heads the model has")
    config = parse_json(checkpoint.files["config.json"], where)
    config = {key: value for key, value in config.items() if value is not None}  # null means "as usual"

    def refuse(key, instead):
        raise ValueError(f"{where}: {key} {config[key]!r:.60} is not supported: {instead}")

    if config.get("model_type", "gpt2") != "gpt2":
        refuse("model_type", "only gpt2 is")
    if config.get("activation_function", "gelu_new") not in GELU_NAMES:
        refuse("activation_function", f"GPT-2's gelu_new and its synonyms are ({', '.join(GELU_NAMES[1:])})")
    if config.get("add_cross_attention", False):
        refuse("add_cross_attention", "only a decoder by itself is")

    n_ctx = "n_ctx" if "n_ctx" in config and "n_positions" not in config else "n_positions"
    sizes = {"n_vocab": "vocab_size", "n_ctx": n_ctx, "n_embd": "n_embd", "n_head": "n_head", "n_layer": "n_layer"}
    missing = [key for key in sizes.values() if key not in config]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")
    for key in (*sizes.values(), "n_inner"):
        if type(config.get(key, 1)) is not int or not 0 < config.get(key, 1) < 2**31:
            refuse(key, "it must be a whole number above 0, and no larger than GPT-2 can be")
    if config["n_embd"] % config["n_head"]:
        refuse("n_head", f"n_embd {config['n_embd']} cannot be divided by it")

    features = {"layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
    for key, default in features.items():
        features[key] = config.get(key, default)
        if type(features[key]) is not type(default):
            refuse(key, f"a {type(default).__name__} is expected")
    if not 0 < features["layer_norm_epsilon"] < 1:
        refuse("layer_norm_epsilon", "it must be a small number above 0")
    return {
        **{key: config[name] for key, name in sizes.items()},
        "n_inner": config.get("n_inner", 4 * config["n_embd"]),
        "eos_token_id": config.get("eos_token_id"),
        **features,
    }


def expected_shapes(config):
    """Names and shapes of the tensors of a GPT-2, as in OpenAI's and Hugging Face's checkpoints -> {name: shape}."""
    n_embd, n_inner = config["n_embd"], config["n_inner"]
    shapes = {"wte.weight": (config["n_vocab"], n_embd), "wpe.weight": (config["n_ctx"], n_embd)}

    def add_layer_norm(name):
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (n_embd,)

    def add_linear(name, n_in, n_out):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (n_in, n_out), (n_out,)

    for i in range(config["n_layer"]):
        add_layer_norm(f"h.{i}.ln_1")
        add_linear(f"h.{i}.attn.c_attn", n_embd, 3 * n_embd)
        add_linear(f"h.{i}.attn.c_proj", n_embd, n_embd)
        add_layer_norm(f"h.{i}.ln_2")
        add_linear(f"h.{i}.mlp.c_fc", n_embd, n_inner)
        add_linear(f"h.{i}.mlp.c_proj", n_inner, n_embd)
    add_layer_norm("ln_f")
    return shapes


def check_tensors(checkpoint, config):
    """The tensors that a GPT-2 of this config has -> {name: StoredTensor}, in order.

    A prefix `transformer.` is taken off. The buffers `attn.bias` and `attn.masked_bias` (the causal mask, in old
    files) are left out, and so is an `lm_head.weight` that equals `wte.weight`, which GPT-2 uses in its place.
    Raises ValueError for missing, unexpected and wrongly shaped tensors, by name, before any weight is used.
    """
    where, found = checkpoint.path, {}
    for full_name, tensor in checkpoint.tensors.items():
        name = full_name.removeprefix("transformer.")
        if name in found:
            raise ValueError(f"{where}: {name:.100} is there twice, with and without the prefix 'transformer.'")
        if not re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name):
            found[name] = tensor
    lm_head = found.pop("lm_head.weight", None)

    if config["n_layer"] > len(found):  # before names are made up from a number that may be absurd
        raise ValueError(f"{where}: {len(found)} tensors in all, but config.json says n_layer {config['n_layer']}")
    shapes = expected_shapes(config)
    strange = {
        "missing": [name for name in shapes if name not in found],
        "unexpected": [name for name in found if name not in shapes],
    }
    if any(strange.values()):
        faults = "; ".join(f"{kind}: {listed(names)}" for kind, names in strange.items() if names)
        raise ValueError(f"{where}: not the tensors of a GPT-2 with {config['n_layer']} layers; {faults}")
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise ValueError(f"{where}: {name} has shape {list(found[name].shape)}, config.json asks for {list(shape)}")
    if lm_head is not None:
        found["wte.weight"] = tie(lm_head, found["wte.weight"], where)
    return {name: found[name] for name in shapes}


def tie(lm_head, wte, where):
    """One tensor for both ends of the model -> the StoredTensor to use as wte. Raises ValueError if they differ."""
    if lm_head.shape == wte.shape:
        a, b = lm_head.float32(), wte.float32()
        rows = [slice(i, i + 1024) for i in range(0, len(a), 1024)]  # a few at a time: no array as large as wte is made
        if all(np.array_equal(a[i], b[i]) for i in rows):
            return wte
        # GGUF files often hold the one matrix twice, in two types of which one is quantised: then they are near.
        with np.errstate(all="ignore"):  # infinite squares are no reason to call them near
            error, size = sum(np.sum((a[i] - b[i]) ** 2) for i in rows), sum(np.sum(b[i] ** 2) for i in rows)
        if not {lm_head.dtype, wte.dtype} <= {"F64", "F32", "F16", "BF16"} and error < 0.1 * size:
            return max(lm_head, wte, key=lambda tensor: tensor.n_bytes)
    raise ValueError(
        f"{where}: lm_head.weight differs from wte.weight (tie_word_embeddings false), which is not supported: "
        "in the models that are, wte serves as both"
    )


def load_params(checkpoint, n_tokens=None):
    """Checkpoint -> hparams, params.

    hparams: {"n_vocab", "n_ctx", "n_embd", "n_head", "n_layer"}, ints.
    params: float32 arrays in nested dicts, linear weights [in, out]:
    {"wte": [n_vocab, n_embd], "wpe": [n_ctx, n_embd], "blocks": [{"ln_1": {"g", "b"}, "attn": {"c_attn": {"w", "b"},
    "c_proj": {"w", "b"}}, "ln_2": ..., "mlp": {"c_fc": {"w", "b"}, "c_proj": {"w", "b"}}}], "ln_f": {"g", "b"}}.
    n_tokens: tokens that the tokenizer has. Rows of wte beyond them are cut off, so that they are never generated.
    Raises ValueError as `read_config` and `check_tensors` do, and for a tensor with NaN or infinity, by name.
    """
    config = read_config(checkpoint)
    tensors = check_tensors(checkpoint, config)
    config["n_vocab"] = min(config["n_vocab"], n_tokens or config["n_vocab"])

    def array(name):
        """A tensor as float32, without NaN and infinity: one of them would spread to all logits, in silence."""
        x = tensors[name].float32()
        with np.errstate(all="ignore"):
            squares = np.vdot(x, x)  # by far the fastest way to read all numbers; finite only if they are
        if not np.isfinite(squares) and not np.all(np.isfinite(x)):
            raise ValueError(f"{checkpoint.path}: {name} holds NaN or infinity; the file is damaged, get it again")
        return x

    def linear(name):
        return {"w": array(f"{name}.weight"), "b": array(f"{name}.bias")}

    def layer_norm(name):
        ln = {"g": array(f"{name}.weight"), "b": array(f"{name}.bias")}
        eps = config["layer_norm_epsilon"]
        return ln if eps == 1e-5 else {**ln, "eps": eps}  # 1e-5 is the default of the versions' layer_norm

    def c_attn(i):
        """Another scale of the attention scores goes into the queries, since (s * q) @ k = s * (q @ k)."""
        scale = 1.0 if config["scale_attn_weights"] else math.sqrt(config["n_embd"] // config["n_head"])
        if config["scale_attn_by_inverse_layer_idx"]:
            scale /= i + 1
        p = linear(f"h.{i}.attn.c_attn")
        if scale != 1.0:
            scales = np.ones(3 * config["n_embd"], dtype=np.float32)
            scales[: config["n_embd"]] = scale  # the first third of the columns makes the queries
            p = {"w": p["w"] * scales, "b": p["b"] * scales}
        return p

    blocks = [
        {
            "ln_1": layer_norm(f"h.{i}.ln_1"),
            "attn": {"c_attn": c_attn(i), "c_proj": linear(f"h.{i}.attn.c_proj")},
            "ln_2": layer_norm(f"h.{i}.ln_2"),
            "mlp": {"c_fc": linear(f"h.{i}.mlp.c_fc"), "c_proj": linear(f"h.{i}.mlp.c_proj")},
        }
        for i in range(config["n_layer"])
    ]
    params = {
        "wte": array("wte.weight")[: config["n_vocab"]],
        "wpe": array("wpe.weight"),
        "blocks": blocks,
        "ln_f": layer_norm("ln_f"),
    }
    return {key: config[key] for key in ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer")}, params


GPT2_124M = {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}


def random_params(hparams, seed=0):
    """hparams -> params with random float32 weights as a new GPT-2 has them: normal, deviation 0.02, gains near 1."""
    rng = np.random.default_rng(seed)
    n_vocab, n_ctx, n_embd, _, n_layer = hparams.values()

    def normal(*shape):
        array = rng.standard_normal(shape, dtype=np.float32)
        array *= 0.02
        return array

    def linear(n_in, n_out):
        return {"w": normal(n_in, n_out), "b": normal(n_out)}

    def layer_norm():
        return {"g": 1 + normal(n_embd), "b": normal(n_embd)}

    blocks = [
        {
            "ln_1": layer_norm(),
            "attn": {"c_attn": linear(n_embd, 3 * n_embd), "c_proj": linear(n_embd, n_embd)},
            "ln_2": layer_norm(),
            "mlp": {"c_fc": linear(n_embd, 4 * n_embd), "c_proj": linear(4 * n_embd, n_embd)},
        }
        for _ in range(n_layer)
    ]
    return {"wte": normal(n_vocab, n_embd), "wpe": normal(n_ctx, n_embd), "blocks": blocks, "ln_f": layer_norm()}


# ---------------------------------------------------------------- tokenizer

# How GPT-2 splits text into words before any merge; this spelling (tiktoken's) means the same as the original, faster.
SPLIT_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

MAX_BLANKS = 500_000  # on end; tiktoken's stack would not be large enough for a million


def byte_alphabet():
    """The printable character that stands for each byte in GPT-2's vocabulary files -> {character: byte}.

    Printable bytes stand for themselves; for the others, in order, stand the characters from 256 on: "Ġ" is the space.
    """
    plain = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(others)}}


class Encoder(tiktoken.Encoding):
    """A tiktoken Encoding that takes `<|endoftext|>` and other added tokens in a text for what they are.

    merge_ranks: {bytes of a merged token: the merge's place in merges.txt, from 0}.
    """

    def __init__(self, tokens, merge_ranks, others, added, eot, n_rows, add_prefix_space):
        """tokens: {bytes: id} of single bytes and merges; others: {text: id} of all the rest.

        added: {text: {"id", and the flags that the tokenizers package gives to added tokens}}; eot: id or None;
        n_rows: of wte, or None; add_prefix_space: whether a space is put before a text that begins without one.
        """
        super().__init__("gpt2", pat_str=SPLIT_PATTERN, mergeable_ranks=tokens, special_tokens=others)
        self.merge_ranks, self.eot, self.n_rows, self.add_prefix_space = merge_ranks, eot, n_rows, add_prefix_space
        self.known = {*tokens.values(), *others.values()}
        self.added = added
        longest_first = sorted(added, key=len, reverse=True)
        self.added_pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # (?!) is found nowhere

    def encode(self, text, *, allowed_special="all", disallowed_special=()):
        """text -> list of ids. Added tokens in the text, `<|endoftext|>` first of all, become one id each.

        The keywords are tiktoken's, with other defaults. Raises ValueError for a token that the model has no row for.
        """
        if allowed_special != "all":
            return super().encode(text, allowed_special=allowed_special, disallowed_special=disallowed_special)
        ids, start = [], 0
        for match in self.added_pattern.finditer(text):
            flags, (begin, end) = self.added[match.group()], match.span()
            neighbours = text[max(begin - 1, 0) : begin] + text[end : end + 1]
            if flags.get("single_word") and re.search(r"\w", neighbours):
                continue
            before = text[start:begin].rstrip() if flags.get("lstrip") else text[start:begin]
            ids += [*self.encode_ordinary(before), flags["id"]]
            start = re.compile(r"\s*").match(text, end).end() if flags.get("rstrip") else end
        ids += self.encode_ordinary(text[start:])
        if self.n_rows is not None and max(ids, default=0) >= self.n_rows:
            token = in_quotes(self.decode_bytes([max(ids)]))
            reason = f"wte ends at {self.n_rows - 1}: is this the model's tokenizer?"
            raise ValueError(f"token {token} has id {max(ids)}, but {reason}")
        return ids

    def encode_ordinary(self, text):
        """text -> list of ids, none but those that merges make. Raises ValueError for too many blanks on end."""
        if len(text) > MAX_BLANKS and max(map(len, re.findall(r"\s+", text)), default=0) > MAX_BLANKS:
            raise ValueError(f"a text has more than {MAX_BLANKS} blanks or line breaks on end: take some out")
        if self.add_prefix_space and text and not text.startswith(" "):
            text = " " + text
        return super().encode_ordinary(text)

    def decode_bytes(self, ids):
        """Ids -> bytes. Raises ValueError for ids outside of the vocabulary; a gap in the numbering says nothing."""
        ids = [int(i) for i in ids]
        outside = [str(i) for i in ids if not 0 <= i < self.n_vocab]
        if outside:
            raise ValueError(f"ids outside of the vocabulary, 0 to {self.n_vocab - 1}: {listed(outside)}")
        return super().decode_bytes([i for i in ids if i in self.known])

    def decode(self, ids, errors="replace"):
        """Ids -> text. Bytes that are not UTF-8, as of a character cut in two, become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors=errors)

    @property
    def eot_token(self):
        """The id of `<|endoftext|>`, from which an empty prompt starts. Raises ValueError if the tokenizer has none."""
        if self.eot is None:
            raise ValueError(f"this tokenizer has no {EOT} for an empty prompt to start from: give a prompt")
        return self.eot


class NoEncoder:
    """In place of the tokenizer that a model lacks: its weights can be used with ids, and text is refused."""

    n_vocab = None

    def __init__(self, where):
        self.where = where

    def refuse(self, *_):
        raise ValueError(f"{self.where}: no tokenizer: vocab.json and merges.txt, or tokenizer.json, are missing there")

    encode = decode = decode_bytes = refuse
    eot_token = property(refuse)


def load_encoder(checkpoint, config=None):
    """The tokenizer of a checkpoint -> Encoder, or NoEncoder where there is none.

    config: from `read_config`, for the size of wte and the end-of-text id. Raises ValueError for a tokenizer that is
    not GPT-2's kind, by the part that is not.
    """
    where, files = checkpoint.path, checkpoint.files
    if "tokenizer.json" in files:
        vocab, merges, added, add_prefix_space = read_tokenizer_json(files, where)
    elif "vocab.json" in files and "merges.txt" in files:
        vocab, merges, added, add_prefix_space = read_vocab_and_merges(files, where)
    else:
        return NoEncoder(where)

    all_ids = {**vocab, **{text: flags["id"] for text, flags in added.items()}}
    if not all(isinstance(text, str) for text in all_ids):
        raise ValueError(f"{where}: the tokens of a vocabulary must be texts")
    ids_fit = all(type(i) is int and 0 <= i < 2**31 for i in all_ids.values())
    if not ids_fit or len(set(all_ids.values())) != len(all_ids):
        raise ValueError(f"{where}: the ids of a vocabulary must be different whole numbers from 0 on")
    alphabet = byte_alphabet()
    tokens = {bytes([byte]): vocab[character] for character, byte in alphabet.items() if character in vocab}
    if len(tokens) != 256:
        raise ValueError(f"{where}: the vocabulary has {len(tokens)} of the 256 bytes, so it is not byte-level BPE")
    merge_ranks, last_id = {}, -1
    for rank, (left, right) in enumerate(merges):
        is_known = left and right and all(token in vocab for token in (left, right, left + right))
        name = f"merge {rank} ({left:.60} {right:.60})"
        if not is_known or not alphabet.keys() >= {*left, *right}:
            raise ValueError(f"{where}: {name}: it, or what it makes, is not in the vocabulary")
        # tiktoken is given no list of merges: of all neighbours it joins those that make the lowest id.
        if vocab[left + right] <= last_id:
            raise ValueError(
                f"{where}: {name} makes id {vocab[left + right]}, the one before it {last_id}: "
                "only vocabularies in the order of their merges are supported"
            )
        last_id = vocab[left + right]
        token = bytes(alphabet[character] for character in left + right)
        tokens[token], merge_ranks[token] = last_id, rank
    merged = set(tokens.values())
    others = {text: i for text, i in all_ids.items() if i not in merged}
    config = config or {"n_vocab": None, "eos_token_id": None}
    eot = all_ids.get(EOT, config["eos_token_id"])
    eot = eot if type(eot) is int and eot in all_ids.values() else None  # 1.0 and true are in [1] as well
    with naming_faults(f"{where}: tokenizer"):  # as of a token that is no Unicode
        return Encoder(tokens, merge_ranks, others, added, eot, config["n_vocab"], add_prefix_space)


def read_tokenizer_json(files, where):
    """tokenizer.json -> vocab {token: id}, merges [(left, right)], added {text: flags and id}, add_prefix_space."""
    tokenizer = parse_json(files["tokenizer.json"], f"{where}: tokenizer.json")
    with naming_faults(f"{where}: tokenizer.json"):
        model, splitter = tokenizer["model"], tokenizer.get("pre_tokenizer") or {}
        post = tokenizer.get("post_processor") or {"type": "ByteLevel"}
        of_another_kind = {
            f"model {model.get('type')}": model.get("type", "BPE") != "BPE",
            f"pre_tokenizer {splitter.get('type')}": splitter.get("type") != "ByteLevel",
            "pre_tokenizer without use_regex": not splitter.get("use_regex", True),
            f"post_processor {post['type']}": post["type"] not in ("ByteLevel", "TemplateProcessing"),
            "post_processor that adds tokens": post.get("special_tokens"),
            "normalizer": tokenizer.get("normalizer"),
        }
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"):
            of_another_kind[key] = model.get(key)
        if any(of_another_kind.values()):
            names = listed(name for name, is_there in of_another_kind.items() if is_there)
            raise ValueError(f"only GPT-2's kind, byte-level BPE, is supported, not {names}")
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        if not all(len(merge) == 2 and isinstance("".join(merge), str) for merge in merges):
            raise ValueError("merges are pairs of tokens")
        if not isinstance(model["vocab"], dict):
            raise ValueError("a vocabulary is an object, from tokens to ids")
        added = {flags["content"]: {**flags, "id": flags["id"]} for flags in tokenizer.get("added_tokens") or []}
        added.pop("", None)
        return dict(model["vocab"]), merges, added, splitter.get("add_prefix_space", False)


def read_vocab_and_merges(files, where):
    """vocab.json, merges.txt and the files about added tokens -> what `read_tokenizer_json` returns."""
    vocab = parse_json(files["vocab.json"], f"{where}: vocab.json")
    merges = []
    for number, line in enumerate(files["merges.txt"].split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        merges.append(tuple(line.split(" ")))
        if len(merges[-1]) != 2:
            raise ValueError(f"{where}: merges.txt, line {number}: two tokens are expected, not {line!r:.60}")

    def read(name):
        return parse_json(files.get(name, "{}"), f"{where}: {name}")

    config = read("tokenizer_config.json")
    with naming_faults(f"{where}: added tokens"):
        added = {text: {"id": i} for text, i in read("added_tokens.json").items()}
        for i, flags in config.get("added_tokens_decoder", {}).items():
            added[flags["content"]] = {**flags, "id": int(i)}
        # Special tokens that are named without an id are in the vocabulary.
        named = [(EOT, EOT), *read("special_tokens_map.json").items(), *config.items()]
        for key, text in named:
            text = text["content"] if isinstance(text, dict) and "content" in text else text
            if key.endswith(("_token", EOT)) and text in vocab:
                added.setdefault(text, {"id": vocab[text]})
    return vocab, merges, added, config.get("add_prefix_space", False)


# ---------------------------------------------------------------- models by name

HUB = {  # name -> id on the hub
    "124M": "openai-community/gpt2",
    "355M": "openai-community/gpt2-medium",
    "774M": "openai-community/gpt2-large",
    "1558M": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
KNOWN_FILES = {  # (hub id, file) -> size and sha256
    ("openai-community/gpt2", "model.safetensors"): (
        548_105_171,
        "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    ),
    ("openai-community/gpt2", "vocab.json"): (
        1_042_301,
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    ),
    ("openai-community/gpt2", "merges.txt"): (
        456_318,
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    ),
}
RETRY_PAUSES = (1, 2, 4)  # seconds before the second, third and fourth attempt
TIMEOUT = (10, 30)  # seconds to connect, and without a byte


def has_files(folder, *names):
    return all((folder / name).is_file() for name in names)


def has_weights(folder):
    weights = ("model.safetensors", "model.safetensors.index.json")
    return has_files(folder, "config.json") and any(has_files(folder, name) for name in weights)


def find_model(model, models_dir="models"):
    """The path of a model's folder or weight file, downloaded first if need be.

    model: a path, the name of something in models_dir, a name of `HUB`, or a hub id `org/name`; looked for in this
    order, then in an existing Hugging Face cache, then on the hub, unless HF_HUB_OFFLINE=1. A relative models_dir is
    also looked for beside this file, so that commands work from any directory.
    Raises ValueError that says what is wrong and what would work, and OSError where a download cannot be written.
    """
    model = str(model)
    if not model or not str(models_dir):
        raise ValueError("--model and --models_dir need a name, as in --model tales")
    places = [Path(models_dir), Path(__file__).parent / models_dir]
    paths = [Path(model), *(place / model for place in places)]
    if model == "tales":  # comes with this file, whatever models_dir is
        paths.append(Path(__file__).parent / "models" / model)
    for path in paths:
        # A folder in which a download broke off has no weights yet: the download goes on.
        if path.is_file() or has_weights(path) or has_files(path, "config.json", "pytorch_model.bin"):
            return path
    repo = HUB.get(model, model)
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo, re.ASCII)
    is_download = is_hub_id and (model in HUB or any(path.is_dir() for path in paths[1:]))
    for path in paths:
        if path.is_dir() and not is_download:
            open_checkpoint(path)  # raises what is wrong with its weights, if that is it
            raise ValueError(f"{path}: no config.json in this folder")
    if not is_hub_id:
        raise ValueError(
            f"no model {model!r}: no such file or folder, none in {models_dir}, "
            f"no known name (tales, {', '.join(HUB)}) and no hub id (org/name)"
        )
    cached = find_in_cache(repo)
    if cached:
        return cached
    try:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise ValueError("it is not on this machine, and HF_HUB_OFFLINE is set")
        place = next((place for place in places if place.is_dir()), places[0])
        return download_model(repo, place / model)
    except ValueError as error:
        raise ValueError(
            f"cannot get {model}: {error}; what works: the bundled model (--model tales), a folder (--model path)"
        ) from None


def find_in_cache(repo):
    """The snapshot of a model in the cache of Hugging Face's libraries, if it is there with all its files, or None."""
    env = os.environ.get
    home = Path(env("HF_HOME") or Path(env("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    # os.path, since a Path raises RuntimeError where nobody knows a home, as for a user without a name in a container.
    cache = Path(os.path.expanduser(env("HF_HUB_CACHE") or env("HUGGINGFACE_HUB_CACHE") or home / "hub"))
    # The models of `HUB` had ids without an organisation once, such as "gpt2".
    for name in [repo, repo.split("/")[1]] if repo in HUB.values() else [repo]:
        folder = cache / f"models--{name.replace('/', '--')}"
        commit = read_text(folder / "refs" / "main").strip() if has_files(folder, "refs/main") else "*"
        for snapshot in sorted(folder.glob(f"snapshots/{commit}")):
            has_tokenizer = has_files(snapshot, "tokenizer.json") or has_files(snapshot, "vocab.json", "merges.txt")
            if has_weights(snapshot) and has_tokenizer:
                return snapshot
    return None


class NotOnServer(ValueError):
    """The server answered that there is no such file."""


class Interrupted(Exception):
    """An attempt to download failed in a way that another may not."""


def download_model(repo, folder):
    """Download a model of the hub -> its folder. The weights come last, so a folder with weights is complete.

    HF_ENDPOINT is the address of the hub or a mirror. Raises ValueError, or OSError where it cannot be written.
    """
    url = f"{(os.environ.get('HF_ENDPOINT') or 'https://huggingface.co').rstrip('/')}/{repo}/resolve/main"

    def get(name, to=None):
        fetch(f"{url}/{name}", to or folder / name, *KNOWN_FILES.get((repo, name), (None, None)))

    def get_weights():
        try:
            return get("model.safetensors")
        except NotOnServer:
            pass
        index = folder / "model.safetensors.index.json"
        unfinished = folder / "index.json"  # the index gets its name when all files it speaks of are there
        try:
            get("model.safetensors.index.json", unfinished)
        except NotOnServer:
            raise ValueError(
                f"{repo} has no model.safetensors; a pytorch_model.bin is not read: a pickle can run any code"
            ) from None
        for name in sorted(set(read_weight_map(unfinished).values())):
            get(name)
        os.replace(unfinished, index)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        get("config.json")
        for name in TEXT_FILES:
            with contextlib.suppress(NotOnServer):
                get(name)
        get_weights()
    except OSError as error:
        raise OSError(f"{folder}: cannot write the download: {error.strerror or error}") from None
    return folder


def fetch(url, path, size=None, sha256=None):
    """Download a file to `path.part`, going on where an earlier attempt ended, check it, and move it to `path`.

    size, sha256: what it must be, where that is known. Retries after RETRY_PAUSES what another attempt may mend.
    Raises NotOnServer, ValueError, or OSError for a disk that is full or read-only; then nothing is at `path`.
    """
    import requests  # here, so that no command on the bundled model waits for it

    part = path.with_name(f"{path.name}.part")
    with locked(path.with_name(f"{path.name}.lock")):
        if path.exists():
            return
        for pause in (*RETRY_PAUSES, None):
            try:
                check_download(part, path.name, *fetch_part(requests, url, part, size, sha256))
                break
            except (requests.ConnectionError, requests.Timeout):
                reason = "no answer (no network?)"
            except requests.RequestException as error:
                raise ValueError(f"{url}: {error}") from None
            except (Interrupted, requests.packages.urllib3.exceptions.HTTPError) as error:
                reason = error
            if pause is None:
                raise ValueError(f"{url}: {reason}, in {len(RETRY_PAUSES) + 1} attempts; the next run goes on there")
            time.sleep(pause)
        os.replace(part, path)


def fetch_part(requests, url, part, size, sha256):
    """One attempt: append to `part` what is missing, or write it anew -> size and sha256 that it must have, or None."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    if os.environ.get("HF_TOKEN"):
        token = os.environ["HF_TOKEN"].strip()
        if not re.fullmatch("[!-~]+", token):  # a message of requests would show it
            raise ValueError("HF_TOKEN holds characters that no token has")
        headers["Authorization"] = f"Bearer {token}"  # requests drops it where another host takes over
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
    except OSError as error:
        if isinstance(error, requests.RequestException):
            raise
        raise ValueError(f"{url}: {error}") from None  # certificates that are not there; no disk has to do with it
    with response:
        for answer in (*response.history, response):  # the hub tells what it knows of a large file while it redirects
            tag = answer.headers.get("X-Linked-Etag", "").strip('"')
            size = size or as_size(answer.headers.get("X-Linked-Size"))
            sha256 = sha256 or (tag if re.fullmatch("[0-9a-f]{64}", tag) else None)

        status = response.status_code
        # "bytes FIRST-LAST/TOTAL"; "bytes */TOTAL" where nothing is left to send
        first, _, in_all = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if status == 416 and as_size(in_all) == have:
            return size or have, sha256  # `part` was whole already
        if status == 416 or (status == 206 and as_size(first.partition("-")[0]) != have):
            part.unlink(missing_ok=True)
            raise Interrupted("the server does not go on where the last attempt ended")
        if status == 401:
            known = "Authorization" in headers
            fault = "the token in HF_TOKEN is refused" if known else "set HF_TOKEN, or check the name"
            raise ValueError(f"{url}: 401, the server wants to know who asks: {fault}")
        if status == 403:
            raise ValueError(f"{url}: 403, not allowed: accept the model's terms on its page, as the owner of HF_TOKEN")
        if status in (404, 410):
            raise NotOnServer(f"{url}: {status}, there is no such model or file")
        if status in (408, 429) or status >= 500:
            raise Interrupted(f"the server answers {status}")
        if status not in (200, 206):
            raise ValueError(f"{url}: the server answers {status} {response.reason}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError(f"{url}: the server sends the file in an encoding that was not asked for")

        start = have if status == 206 else 0
        length = as_size(response.headers.get("Content-Length"))
        total = as_size(in_all) if length is None else start + length
        if None not in (size, total) and size != total:
            raise ValueError(f"{url}: the server has {total} bytes, {size} are expected: another file?")
        total = size or total

        def read():  # from below requests, which would lose what comes just before a connection closes
            return response.raw.read(1 << 16, decode_content=False)

        data = read()
        is_page = re.match(rb"\s*<(!doctype|html)", data, re.IGNORECASE)
        if is_page or response.headers.get("Content-Type", "").startswith("text/html"):
            raise ValueError(f"{url}: a web page came instead of the file: a login page, or a proxy in between?")
        if total and shutil.disk_usage(part.parent).free < total - start:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {in_units(total - start)} are needed")
        bar = tqdm(desc=part.stem, total=total, initial=start, unit="B", unit_scale=True, disable=None)
        with open(part, "ab" if start else "wb") as file, bar:
            while data:
                file.write(data)
                bar.update(len(data))
                data = read()
    if total and part.stat().st_size < total:
        raise Interrupted(f"the connection closed at {part.stat().st_size} of {total} bytes")
    return total, sha256


def as_size(text):
    """A number in a header -> int, or None for one that is missing or none."""
    return int(text) if text and text.isdecimal() else None


def check_download(part, name, size, sha256):
    """Raise Interrupted, and remove `part`, if it is not what it must be: then the next attempt starts from nothing."""
    fault = None
    if size and part.stat().st_size != size:
        fault = f"{part.stat().st_size} bytes came instead of {size}"
    elif sha256 and sha256_of(part) != sha256:
        fault = f"the file that came has another sha256 than {sha256}"
    else:
        try:  # where the server tells nothing, the file itself does
            if name.endswith(".safetensors"):
                read_safetensors_header(part)
            elif name.endswith(".json"):
                parse_json(read_text(part), name)
            elif name == "merges.txt" and not size and not read_text(part).endswith("\n"):
                raise ValueError("its last line has no end")
        except ValueError as error:
            fault = f"what came is not the whole file: {error}"
    if fault:
        part.unlink()
        raise Interrupted(fault)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path):
    """Hold a lock file, so that of two processes one waits until the other is done."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 (closed below, or by the next round)
        if fcntl:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print(f"waiting for another process that downloads {path.stem}", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        else:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        # The one before may have removed the file that was waited for: then the lock is worth nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        file.close()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file; an empty one stays behind there
            path.unlink()
        file.close()


def load_model(model="tales", models_dir="models"):
    """Load a model -> (encoder, hparams, params).

    model, models_dir: see `find_model`. encoder: see `Encoder`. hparams, params: see `load_params`.
    Raises ValueError or OSError with a message for the user.
    """
    checkpoint = open_checkpoint(find_model(model, models_dir))
    encoder = load_encoder(checkpoint, read_config(checkpoint))
    return encoder, *load_params(checkpoint, encoder.n_vocab)


# ---------------------------------------------------------------- the command line


def encode_prompts(encoder, prompts):
    """Prompts -> list of lists of ids, each as typed; an empty prompt is `[encoder.eot_token]`, the start of a text."""
    if not prompts:
        raise ValueError('no prompt: give at least one, as in "Once upon a time"')
    if any(prompt.endswith(" ") for prompt in prompts):
        hint = "hint: a prompt ends in a space; GPT-2 goes on better without it, for its words begin with one"
        print(hint, file=sys.stderr)
    return [encoder.encode(prompt) or [encoder.eot_token] for prompt in prompts]


def print_texts(prompts, ids, texts, as_json=False):
    """Print results on stdout: one text alone, several each behind its prompt, or one JSON object a line.

    ids: the new ids of each prompt; texts: the continuations. JSON: {"prompt", "ids", "text"}.
    """
    show_everything(sys.stdout)
    if as_json:
        for prompt, new_ids, text in zip(prompts, ids, texts):
            print(json.dumps({"prompt": prompt, "ids": [int(i) for i in new_ids], "text": text}))
    elif len(prompts) == 1:
        print(texts[0])
    else:
        print("\n\n".join(prompt + text for prompt, text in zip(prompts, texts)))


def show_everything(stream):
    """Let a stream that lacks a character (a Windows console, LC_ALL=C) show its number instead of failing."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def run(main, **commands):
    """Run a function, or one of a dict of functions, as a command: the edge at which mistakes become one line.

    commands: functions that are run instead where the first argument is their name, as in `verify --model tales`.
    Prompts and text flags arrive as typed; the default of a flag says whether its value is text, a whole number, a
    number or a switch (`--json`, `--json=False`, `--nojson`). After `--` everything is a prompt, also what begins with
    a dash. ValueError, OSError and MemoryError end as one line on stderr and exit status 2, Ctrl-C quietly with 130;
    any other error is a bug and keeps its traceback.
    """
    if not sys.stderr:  # there is none after `2>&-`; what is printed there would be printed among the results
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the end)
    show_everything(sys.stdout)
    show_everything(sys.stderr)
    try:
        try:
            if end_quietly:
                signal.signal(signal.SIGINT, interrupt)
            argv, name = sys.argv[1:], Path(sys.argv[0]).name
            if argv and argv[0] in commands:
                call_with_fire(commands[argv[0]], argv[1:], f"{name} {argv[0]}")
            else:
                call_with_fire(main, argv, name)
            if sys.stdout:  # there is none after `>&-`
                sys.stdout.flush()
        finally:
            if end_quietly:  # again: what is left is Python's own end
                signal.signal(signal.SIGINT, end_quietly)
    except BrokenPipeError:  # the reader has enough, as in `... | head`
        drop_what_is_left()
        sys.exit(141)  # what a shell reports for a closed pipe
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, MemoryError) as error:
        message = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        message = f"not enough memory: {message}" if isinstance(error, MemoryError) else message
        with contextlib.suppress(OSError):  # stderr may be the disk that is full
            print("error:", " ".join(message.split()), file=sys.stderr)
        drop_what_is_left()
        sys.exit(2)


def drop_what_is_left():
    """Give up what stdout and stderr cannot take. Python would try again at exit, report it, and end with 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


TYPED = "\0"  # stands before arguments that are no flags, so that fire takes "-" and "--x" as typed; none contains it


def call_with_fire(main, argv, name):
    """Check the arguments of a command, which fire would answer with a page of usage, and let fire call it."""
    if isinstance(main, dict):
        if argv[:1] in (["--help"], ["-h"]):
            return fire.Fire(main, command=["--help"], name=name)
        if not argv or argv[0] not in main:
            given = repr(argv[0]) if argv else "nothing"
            raise ValueError(f"{given} is no command of {name}; the commands are {', '.join(main)}")
        return call_with_fire(main[argv[0]], argv[1:], f"{name} {argv[0]}")

    name = name.replace(" ", "-")  # fire's page of help would quote a name with a space
    signature = inspect.signature(main)
    defaults = {p.name: p.default for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL}
    texts, flags, rest = [], {}, list(argv)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            texts += rest
            break
        if not re.match("--|-[a-zA-Z]", argument):
            texts.append(argument)
            continue
        key, equals, value = argument.lstrip("-").partition("=")
        key = key.replace("-", "_")
        short_for = [n for n in defaults if n[0] == key]  # `-n` for the only flag that begins with n, as in fire
        if key not in defaults and key in ("help", "h"):
            return fire.Fire(main, command=["--help"], name=name)
        if key not in defaults and len(short_for) == 1:
            key = short_for[0]
        if isinstance(defaults.get(key), bool):
            value = value if equals else "True"
        elif isinstance(defaults.get(key.removeprefix("no")), bool) and not equals:
            key, value = key.removeprefix("no"), "False"
        elif key not in defaults:
            known = ", ".join(f"--{name}" for name in defaults)
            raise ValueError(f"unknown flag {argument}; known: {known} (a text that begins with a dash goes after --)")
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise ValueError(f"--{key} needs a value")
            value = rest.pop(0)
        if key in flags and isinstance(defaults[key], tuple):
            value = f"{flags[key]}{TYPED}{value}"  # a flag that can be given several times
        flags[key] = value
    try:
        signature.bind(*texts, **flags)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None

    fire.decorators.SetParseFn(as_typed)(main)
    for key, default in defaults.items():
        kind = signature.parameters[key].annotation
        kind = type(default) if kind is inspect.Parameter.empty else kind
        fire.decorators.SetParseFn(parser_for(key, kind), key)(main)
    command = [f"--{key}={value}" for key, value in flags.items()] + [TYPED + text for text in texts]
    return fire.Fire(main, command=command, name=name)


def as_typed(text):
    """An argument as it was typed. Where Python took it for ASCII (LC_ALL=C), its bytes are read as UTF-8 after all."""
    return text.removeprefix(TYPED).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parser_for(key, kind):
    """The function that turns the text of flag `key` into a value of a type; a tuple has all texts that were given."""

    def switch(text):
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]

    def number(text):
        if math.isnan(float(text)):
            raise ValueError
        return float(text)

    kinds = {bool: (switch, "True or False"), int: (int, "a whole number"), float: (number, "a number")}
    if kind is tuple:
        return lambda text: tuple(map(as_typed, text.split(TYPED)))
    if key in ("model", "models_dir", "prompts_file", "out"):  # names of files keep their bytes
        return lambda text: text.removeprefix(TYPED)
    if kind not in kinds:
        return as_typed
    parse, expected = kinds[kind]

    def parse_or_say(text):
        try:
            return parse(as_typed(text))
        except (KeyError, ValueError):
            raise ValueError(f"--{key} takes {expected}, not {as_typed(text)!r}") from None

    return parse_or_say


# ---------------------------------------------------------------- prompts, streams and jobs

MAX_PROMPTS = 1 << 28  # bytes of a file of prompts; without a limit, /dev/zero would fill the memory
MAX_ROWS = 100_000  # continuations at once: logits alone take 800 MB then, with as few tokens as the bundled model has


def read_prompts(prompts, prompts_file=None):
    """Prompts from the command line or from a file -> list of {"prompt": text}, with "id" where the file gives one.

    prompts_file: a path, or "-" for standard input; UTF-8 with a prompt a line, or JSON lines with "prompt" and, if
    wanted, "id". Blank lines are passed over. Raises ValueError for a line that is neither, by its number.
    """
    if prompts_file is None:
        return [{"prompt": prompt} for prompt in prompts]
    if prompts:
        raise ValueError("give prompts or --prompts_file, not both")
    where = "standard input" if prompts_file == "-" else prompts_file
    if prompts_file == "-" and not sys.stdin:
        raise ValueError("standard input is closed, but --prompts_file - reads from it")
    with contextlib.nullcontext(sys.stdin.buffer) if prompts_file == "-" else open(prompts_file, "rb") as file:
        pieces = iter(lambda: file.read(1 << 16), b"")  # read(n) would set n bytes aside, however small the file is
        data = b"".join(itertools.islice(pieces, MAX_PROMPTS // (1 << 16) + 1))
    if len(data) > MAX_PROMPTS:
        raise ValueError(f"{where}: more than {MAX_PROMPTS} bytes: is it a file of prompts? Else split it")
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text (byte {error.start})") from None
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not lines:
        raise ValueError(f"{where}: no prompts in it")
    if not is_json_object(lines[0][1]):
        return [{"prompt": line} for _, line in lines]
    records = []
    for number, line in lines:
        record = json.loads(line) if is_json_object(line) else {}
        if not isinstance(record.get("prompt"), str):
            raise ValueError(f'{where}, line {number}: not a JSON object with a text "prompt", as the first line is')
        if is_deep(record.get("id")):
            raise ValueError(f'{where}, line {number}: "id" has lists in lists in lists, too deep to be written again')
        records.append({key: record[key] for key in ("prompt", "id") if key in record})
    return records


def is_deep(value, limit=100):
    """Whether a JSON value is nested deeper than this. Python writes a little less deep than it reads."""
    level = [value]
    for _ in range(limit):
        boxes = [box.values() if isinstance(box, dict) else box for box in level if isinstance(box, (dict, list))]
        level = [value for box in boxes for value in box]
        if not level:
            return False
    return True


def is_json_object(line):
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


class TextStream:
    """The text of one continuation while its tokens come in: whole characters only, cut before the first stop string.

    text: what is certain by now. What could still become a stop string is held back. stopped: one has come.
    """

    def __init__(self, encoder, stop=()):
        self.encoder, self.stop = encoder, stop
        self.beginnings = {s[:k] for s in stop for k in range(1, len(s))}
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.held, self.stopped = "", "", False

    def push(self, token_id):
        """The next token -> the text that has become certain by it."""
        return self.add(self.decoder.decode(self.encoder.decode_bytes([token_id])))

    def end(self):
        """No more tokens -> the rest of the text, with U+FFFD for a character that was cut in two."""
        return self.add(self.decoder.decode(b"", final=True), last=True)

    def add(self, text, last=False):
        held = self.held + text
        found = [i for i in map(held.find, self.stop) if i >= 0]
        if found:  # it stays in what is held, so that nothing comes after it
            self.stopped, n = True, min(found)
        elif last:
            n = len(held)
        else:  # the longest end of the text with which a stop string begins has to wait
            n = next((i for i in range(len(held)) if held[i:] in self.beginnings), len(held))
        certain, self.held = held[:n], held[n:]
        self.text += certain
        return certain


def check_output(stop, stream, out):
    """Raise ValueError for flags of `complete_prompts` that make no sense; in good time, before a model is loaded."""
    if "" in stop:
        raise ValueError("--stop needs a text that is not empty")
    if out == "":
        raise ValueError("--out needs the name of a file")
    if stream and out:
        raise ValueError("--stream prints and --out writes a file: choose one")
    if out and os.path.exists(out) and not os.path.isfile(out):
        raise ValueError(f"--out {out}: not a plain file")


def complete_prompts(complete, encoder, records, prompt_ids, settings, stream=False, as_json=False, out=None):
    """Continue many prompts, batch by batch, and print the results or add them to a file.

    complete(lists of ids, row seeds, on_token) -> for each prompt n_samples lists of new ids, or with "logprobs" a pair
    of those and their log-probabilities; it is called once for each batch, and on_token is for `generate` of
    gpt2_v4_sampling.py. records: from `read_prompts`; prompt_ids: their ids. settings: all that the results depend on,
    among it "seed", "temperature", "n_samples", "stop", "n_tokens_to_generate", "logprobs", "batch_size".
    stream: print text as it comes, for one prompt as it is, for several as JSON lines {"index", "text"}.
    as_json: print a JSON object a result. out: add those to this file, and leave out what is in it already.
    """
    n_samples, batch_size = settings["n_samples"], settings["batch_size"]
    n_rows = n_samples * min(batch_size, len(records))
    if n_rows > MAX_ROWS:
        raise ValueError(f"{n_rows} continuations at once; {MAX_ROWS} is the limit: lower --n_samples or --batch_size")
    by_length = sorted(range(len(records)), key=lambda i: len(prompt_ids[i]))  # so that a batch needs few pads
    batches = [sorted(by_length[start : start + batch_size]) for start in range(0, len(records), batch_size)]
    batches = [[(i, sample) for i in batch for sample in range(n_samples)] for batch in batches]
    plain_stream = stream and not as_json and len(records) * n_samples == 1

    def show(row, text, ending=None):
        if plain_stream:
            print(text, end="" if ending is None else "\n", flush=True)
        elif stream and (text or ending):
            print(json.dumps({**name_of(row, n_samples), "text": text, **(ending or {})}), flush=True)

    texts, n_tokens, began = {}, 0, time.monotonic()
    with job_file(out, settings, records) as job:
        left = [rows for rows in batches if not job.done.issuperset(rows)]
        n_done = len(records) - sum(map(len, left)) // n_samples
        silent = None if len(batches) > 1 and not stream else True  # None: a bar where stderr is a terminal
        bar = tqdm(total=len(records), initial=n_done, unit="prompt", disable=silent)
        for rows in left:
            prompts = [prompt_ids[i] for i, sample in rows if sample == 0]
            results = complete_batch(complete, encoder, prompts, rows, {**settings, "seed": job.seed}, stream, show)
            results = [{**name_of(row, n_samples), **records[row[0]], **result} for row, result in zip(rows, results)]
            if out:
                job.write([result for row, result in zip(rows, results) if row not in job.done])
            elif as_json and not stream:
                print("\n".join(map(json.dumps, results)), flush=True)
            elif not stream:
                texts.update(zip(rows, (result["text"] for result in results)))
            n_tokens += sum(len(result["ids"]) for result in results)
            bar.set_postfix_str(f"{n_tokens / (time.monotonic() - began):.0f} tokens/s")
            bar.update(len(prompts))
        bar.close()
    if texts:
        print_texts([records[i]["prompt"] for i, _ in sorted(texts)], None, [texts[row] for row in sorted(texts)])


def name_of(row, n_samples):
    """What tells a result from the others of a run."""
    return {"index": row[0], "sample": row[1]} if n_samples > 1 else {"index": row[0]}


def complete_batch(complete, encoder, prompts, rows, settings, stream, show):
    """One batch of `complete_prompts` -> for each row {"ids", "text", "finish_reason"}, maybe with log-probabilities.

    rows: (index of the prompt, sample) for each result; show(row, text, ending) is told what becomes certain.
    """
    streams = [TextStream(encoder, settings["stop"]) for _ in rows]

    def on_token(row, ids):
        show(rows[row], streams[row].push(ids[-1]))
        return streams[row].stopped

    listen = stream or settings["stop"]
    seeds = [(settings["seed"] or 0, *row) for row in rows]
    ids = complete(prompts, seeds, on_token if listen else None)
    ids, logprobs = ids if settings["logprobs"] else (ids, None)
    results = []
    for n, row in enumerate(rows):
        for token_id in () if listen else ids[n]:
            streams[n].push(token_id)
        rest = streams[n].end()
        ended = streams[n].stopped or len(ids[n]) < settings["n_tokens_to_generate"]
        ending = {"finish_reason": "stop" if ended else "length"}
        if logprobs:
            ending |= {"logprobs": logprobs[n], "logprob": sum(logprobs[n])}
        show(row, rest, ending)
        results.append({"ids": ids[n], "text": streams[n].text, **ending})
    return results


class Job(NamedTuple):
    seed: int | None
    done: set  # (index, sample) of the results in the file
    write: Callable | None  # adds results to it


def try_to_lock(file, message):
    """Lock an open file as long as it is open. Raises ValueError with the message if another process has it locked."""
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError:
        raise ValueError(message) from None


@contextlib.contextmanager
def job_file(out, settings, records):
    """Open a results file, new or from a run that was broken off -> Job. Without a file: a Job with a seed alone.

    Beside FILE stands FILE.job with the settings, and it is held locked while the job runs. The results of a batch are
    on the disk before `write` returns. A last line that was cut off is taken away. Raises ValueError where the file
    belongs to a job with other settings or prompts, to no job, or to one that is running.
    """

    def with_seed(settings):
        if settings["seed"] is not None or settings["temperature"] == 0:
            return settings
        seed = secrets.randbelow(2**32)
        print(f"seed: {seed}", file=sys.stderr)  # so that the run can be repeated
        return {**settings, "seed": seed}

    if not out:
        yield Job(with_seed(settings)["seed"], set(), None)
        return
    settings = {**settings, "prompts": hashlib.sha256(json.dumps(records).encode()).hexdigest()}
    settings = json.loads(json.dumps(settings))  # as they come back from a file
    job_path = Path(f"{out}.job")
    with open(out, "ab+") as results:
        if fcntl:  # this file too, since it may have two names; on Windows nobody could read it then
            try_to_lock(results, f"{out}: another job is writing it")
        if results.tell() > 0 and not job_path.exists():
            raise ValueError(f"{out}: is there already, without {job_path.name} beside it: give another --out")
        with open(job_path, "a+", encoding="utf-8", errors="replace") as job:
            try_to_lock(job, f"{out}: another job is writing it")
            done, end = set(), 0
            if results.seek(0, os.SEEK_END) == 0:
                job.seek(0)
                first = job.readline()  # "{", or the beginning of it: a kill may have come in between
                if first and (not first.startswith("{") or is_json_object(first)):
                    raise ValueError(f"{job_path}: is there already and is no job's: give another --out")
                settings = with_seed(settings)
                job.truncate(0)
                job.write(json.dumps(settings, indent=1) + "\n")
                job.flush()
                os.fsync(job.fileno())
            else:
                job.seek(0)
                stored = parse_json(job.read(), job_path)
                if settings["seed"] is None:
                    settings["seed"] = seed = stored.get("seed")  # the one it began with
                    if seed is not None and (type(seed) is not int or seed < 0):
                        raise ValueError(f"{job_path}: seed {seed!r:.60} is not a whole number from 0 on")
                other = sorted(key for key in settings.keys() | stored.keys() if settings.get(key) != stored.get(key))
                if other:
                    raise ValueError(f"{out}: made with other settings ({listed(other)}): use those, or another --out")
                results.seek(0)
                for line in results:
                    if line.endswith(b"\n"):
                        result = parse_json(line.decode("utf-8", "replace"), f"{out}: a line of results")
                        row = result.get("index"), result.get("sample", 0)
                        limits = len(records), settings["n_samples"]
                        if not all(type(n) is int and 0 <= n < limit for n, limit in zip(row, limits)):
                            raise ValueError(f"{out}: holds a line that is no result of this job: take it out")
                        done.add(row)
                        end += len(line)
                results.truncate(end)

            def write(batch):
                results.write("".join(json.dumps(result) + "\n" for result in batch).encode())
                results.flush()
                os.fsync(results.fileno())

            yield Job(settings["seed"], done, write)


def blas_in_use():
    """The BLAS that NumPy calls and, if it is OpenBLAS, the kernel that it chose for this processor -> text."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    kernel = ""
    for path in Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*"):  # where the wheels have it
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                get_corename = getattr(library, name)
                get_corename.restype = ctypes.c_char_p
                kernel = f", kernel {get_corename().decode()}"
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}{kernel}"


# ---------------------------------------------------------------- commands


def inspect_model(model="tales", models_dir="models"):
    """Print what a model is made of: its architecture, its parameters by part, and the memory it takes.

    Args:
        model: a model's name, folder or weight file.
        models_dir: where models are looked for by name.
    """
    checkpoint = open_checkpoint(find_model(model, models_dir))
    config = read_config(checkpoint)
    tensors = check_tensors(checkpoint, config)
    encoder = load_encoder(checkpoint, config)
    path = checkpoint.path
    weight_files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    dtypes = sorted({tensor.dtype for tensor in tensors.values()})
    print(f"{path}: {', '.join(dtypes)}, {in_units(sum(file.stat().st_size for file in weight_files))} on disk")
    print()
    rows = {key: config[key] for key in ("n_vocab", "n_ctx", "n_embd", "n_layer", "n_head")}
    rows["d_head"], rows["ffn width"] = config["n_embd"] // config["n_head"], config["n_inner"]
    rows["tokens"] = "no tokenizer" if encoder.n_vocab is None else encoder.n_vocab
    for key, value in rows.items():
        print(f"{key:10} {value:>12}")
    print()

    parts = {}  # "h.3.attn.c_attn.weight" counts for "attn.c_attn", with all its layers
    for name, tensor in tensors.items():
        part = re.sub(r"^h\.\d+\.|\.(weight|bias)$", "", name)
        layers, n = parts.get(part, (0, 0))
        parts[part] = layers + name.endswith(".weight"), n + math.prod(tensor.shape)
    n_params = sum(n for _, n in parts.values())
    print("part         layers   parameters")
    for part, (layers, n) in parts.items():
        print(f"{part:12} {layers:6} {n:12,}  {n / n_params:6.1%}")
    print(f"{'sum':12} {'':6} {n_params:12,}")
    print()

    print(f"weights in memory, float32: {n_params:,} * 4 bytes = {in_units(n_params * 4)}")
    for batch in (1, 8):
        factors = (2, config["n_layer"], batch, config["n_head"], config["n_ctx"], rows["d_head"], 4)
        formula = "2 * n_layer * batch * n_head * n_ctx * d_head * 4 bytes"
        print(f"KV cache, batch {batch}: {formula} = {' * '.join(map(str, factors))} = {in_units(math.prod(factors))}")


def in_units(n_bytes):
    """A number of bytes for people: 6,329,552 -> "6.3 MB"."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


def download(model, models_dir="models"):
    """Download a model, unless it is here already, and print its path.

    Args:
        model: 124M, 355M, 774M, 1558M, distilgpt2, or an id of the Hugging Face hub, org/name.
        models_dir: the folder that gets it.
    """
    print(find_model(model, models_dir))


def tokenize(*texts, model="tales", models_dir="models", merges=False):
    """Print the tokens of each text with their ids.

    Args:
        texts: what to tokenize.
        model: whose tokenizer to use.
        models_dir: where models are looked for by name.
        merges: print how each token is put together as well, with the place of each merge in merges.txt, from 0.
    """
    if not texts:
        raise ValueError("no text: give at least one")
    encoder = load_encoder(open_checkpoint(find_model(model, models_dir)))
    for n, text in enumerate(texts):
        print("\n" * (n > 0), end="")
        for i in encoder.encode(text):
            token = encoder.decode_bytes([i])
            print(f"{i:6}  {in_quotes(token)}")
            if merges and token in encoder.merge_ranks:
                for left, right, rank in merges_of(token, encoder.merge_ranks):
                    print(f"        {rank:6}  {in_quotes(left)} + {in_quotes(right)}")


def in_quotes(token):
    """Bytes of a token as Python would write them: as text if they are UTF-8, else as bytes."""
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)


def merges_of(token, merge_ranks):
    """The merges that make a token out of its bytes, in order -> list of (left, right, rank).

    Byte-pair encoding (Sennrich et al. 2016, section 3.2): of all neighbours, join those whose merge was learnt first.
    """
    parts, steps = [bytes([byte]) for byte in token], []
    while len(parts) > 1:
        ranks = [merge_ranks.get(left + right, math.inf) for left, right in zip(parts, parts[1:])]
        i = ranks.index(min(ranks))
        steps.append((parts[i], parts[i + 1], ranks[i]))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return steps


def convert(model, out, models_dir="models", dtype=None):
    """Write a model in another format: as a .npz file, or as a folder with model.safetensors.

    Args:
        model: a model's name, folder or weight file.
        out: the file or folder to write; it must not exist yet.
        models_dir: where models are looked for by name.
        dtype: F32 or F16; by default F16 tensors stay F16, and all others become F32.
    """
    out = Path(out)
    if dtype not in (None, "F32", "F16"):
        raise ValueError(f"--dtype takes F32 or F16, not {dtype!r}")
    if out.suffix in (".safetensors", ".gguf", *PICKLES):
        raise ValueError(f"{out}: a name that ends in .npz, or a folder, is expected")
    if out.exists():
        raise ValueError(f"{out} exists already; choose another name, or remove it")
    checkpoint = open_checkpoint(find_model(model, models_dir))
    tensors = {}
    for name, tensor in check_tensors(checkpoint, read_config(checkpoint)).items():
        is_half = (dtype or tensor.dtype) == "F16"
        tensors[name] = tensor.float32().astype(np.float16) if is_half else tensor.float32()
    if out.suffix == ".npz":
        write_npz(out, tensors, checkpoint.files)
    else:
        part = Path(f"{out}.part")  # becomes `out` when it is whole
        if part.exists():
            raise ValueError(f"{part} exists already, maybe from an attempt that was broken off: remove it")
        part.mkdir(parents=True)
        try:
            for name, text in checkpoint.files.items():
                (part / name).write_text(text, encoding="utf-8", newline="\n")
            write_safetensors(part / "model.safetensors", tensors, {"format": "pt"})  # transformers wants to be told
            os.replace(part, out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    print(out)


COMMANDS = {"inspect": inspect_model, "tokenize": tokenize, "download": download, "convert": convert}

if __name__ == "__main__":
    run(COMMANDS)
