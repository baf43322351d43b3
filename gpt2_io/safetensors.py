"""The safetensors format: tensors by name, read when they are asked for."""
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt2_io.errors import UserError, listed, naming_faults
from gpt2_io.files import has_file, parse_json, read_text, replacing


class StoredTensor(NamedTuple):
    """A tensor that still lies in its file: known without being read."""

    dtype: str  # the file's word for it: "F32", "F16", "BF16", "Q4_K", ...
    shape: tuple
    n_bytes: int  # in the file
    float32: Callable  # () -> float32 array of that shape; reads the file


def to_float32(array):
    """Floats as they lie in a file -> a float32 array that BLAS can use as it lies: itself if it is one, else a copy.

    Axes stored in the other order would be rounded differently in a product.
    """
    if array.dtype == np.uint16:  # bfloat16, the upper half of a float32: put zeros below it
        array = (array.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):  # a float64 that is too large becomes infinity, and that is noticed later
        return np.require(array, dtype=np.float32, requirements=["C", "A"])


# safetensors' names of types, and what NumPy calls them. NumPy has no bfloat16: its two bytes are read as an integer.
SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip
FLOATS = {"float64": "F64", "float32": "F32", "float16": "F16"}  # NumPy's names -> safetensors'
WEIGHTS = ("F64", "F32", "F16", "BF16")  # types that `to_float32` takes
MAX_HEADER = 100_000_000  # bytes; the limit that the safetensors library sets too


def read_safetensors_header(path):
    """Read and check the description at the front of a safetensors file.

    The file is: 8 bytes, the length N of the header as a little-endian integer; N bytes of JSON,
    `{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}`; then the data, to which the
    offsets refer. The tensors cover the data exactly, without gaps or overlaps, so no byte goes unexplained.

    Returns (header without `__metadata__`, position in the file where the data starts).
    Raises UserError, naming file and tensor, for anything else. Nothing is allocated on the word of the file alone.
    """
    file_size = os.path.getsize(path)
    if file_size < 8:
        raise UserError(f"{path}: {file_size} bytes, shorter than the 8 with which a safetensors file begins")
    with open(path, "rb") as file:
        begin = file.read(8)
        if begin == b"version ":
            raise UserError(f"{path}: a Git LFS pointer in place of the weights: get them with `git lfs pull`")
        header_size = int.from_bytes(begin, "little")
        if header_size > min(MAX_HEADER, file_size - 8):
            raise UserError(
                f"{path}: not a whole safetensors file: it announces a header of {header_size} bytes, "
                f"but has {file_size} itself, and {MAX_HEADER} is the limit"
            )
        header = parse_json(file.read(header_size), f"{path}: header")
    header.pop("__metadata__", None)

    data_start, data_size = 8 + header_size, file_size - 8 - header_size
    for name, entry in header.items():
        where = f"{path}: tensor {name!r:.100}"
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
            raise UserError(f"{where}: dtype, shape and data_offsets are expected, not {entry!r:.60}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str):
            raise UserError(f"{where}: dtype {dtype!r:.60} is not the name of one")
        if not is_list_of_sizes(shape):
            raise UserError(f"{where}: shape {shape!r:.60} is not a list of sizes")
        if not is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise UserError(f"{where}: data_offsets {offsets!r:.60} are not [begin, end] with 0 <= begin <= end")
        begin, end = offsets
        if end > data_size:
            raise UserError(f"{where}: ends at byte {end} of the data, which has {data_size}: a cut file?")
        # A type that came after this was written has an unknown size; it does no harm where nobody asks for the tensor.
        n_bytes = math.prod(shape) * np.dtype(SAFETENSORS_DTYPES.get(dtype, "V0")).itemsize
        if n_bytes != end - begin and dtype in SAFETENSORS_DTYPES:
            asked = f"{dtype} of shape {str(shape):.60} takes {n_bytes} bytes"
            raise UserError(f"{where}: {asked}, but there are {end - begin}")

    last_end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != last_end:
            fault = "overlaps the tensor before it" if begin < last_end else "leaves a gap before it"
            raise UserError(f"{path}: tensor {name!r:.100}: {fault}: begins at byte {begin}, not at {last_end}")
        last_end = end
    if last_end != data_size:
        raise UserError(f"{path}: {data_size - last_end} bytes after the last tensor belong to none")
    return header, data_start


def read_safetensors(path):
    """Map a safetensors file into memory -> {name: StoredTensor}.

    F32 tensors become read-only views of the file: the operating system reads a page of it when it is first used.
    Raises UserError as `read_safetensors_header` does.
    """
    header, data_start = read_safetensors_header(path)
    # np.asarray: a plain array on the same memory, without memmap's bookkeeping in every later operation.
    data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))[data_start:]

    def stored(name, dtype, shape, begin, end):
        def float32():
            with naming_faults(f"{path}: tensor {name!r:.100}"):  # [0, 2**62] takes no bytes; NumPy has no such array
                check_type(dtype)
                raw = data[begin:end]
                if data_start % 4:  # older files, OpenAI's GPT-2 among them, are not aligned: BLAS would copy each time
                    raw = np.fromfile(path, dtype=np.uint8, count=end - begin, offset=data_start + begin)
                return to_float32(raw.view(SAFETENSORS_DTYPES[dtype]).reshape(shape))

        return StoredTensor(dtype, tuple(shape), end - begin, float32)

    return {name: stored(name, e["dtype"], e["shape"], *e["data_offsets"]) for name, e in header.items()}


def read_weight_map(index_path):
    """An index of several files -> {tensor: file beside the index}. Raises UserError, also for files elsewhere."""
    weight_map = parse_json(read_text(index_path), index_path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UserError(f"{index_path}: weight_map, from tensors to files, is missing")
    for file in weight_map.values():
        if not isinstance(file, str) or not re.fullmatch(r"[\w-][\w.-]{,99}", file):  # a path could lead anywhere
            raise UserError(f"{index_path}: {file!r:.100} is not the plain name of a file in its folder")
    return weight_map


def read_shards(index_path, read):
    """Read the tensors that an index finds in several files beside it, each by read(path) -> {name: StoredTensor}."""
    weight_map = read_weight_map(index_path)
    tensors = {}
    for file in sorted(set(weight_map.values())):
        if not has_file(index_path.parent, file):
            raise UserError(f"{index_path}: {file} is missing")
        shard = read(index_path.parent / file)
        names = [name for name in weight_map if weight_map[name] == file]
        if set(names) != set(shard):
            wrong = listed(sorted(set(names) ^ set(shard)))
            raise UserError(f"{index_path}: these tensors are only in the list for {file} or only in it: {wrong}")
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


def check_type(dtype):
    """Raise UserError unless a tensor that is asked for is of a type that weights have."""
    if dtype not in WEIGHTS:
        raise UserError(f"weights of type {dtype:.60}; {', '.join(WEIGHTS)} are supported")


def is_list_of_sizes(value):
    return isinstance(value, list) and len(value) <= 32 and all(type(n) is int and 0 <= n < 2**63 for n in value)


def write_folder(folder, tensors, files):
    """Write a model as Hugging Face's folder, whole or not at all: `{name: array}` and `{file name: text}`."""
    part = Path(f"{folder}.part")  # becomes the folder when it is whole
    if part.exists():
        raise UserError(f"{part} exists already, maybe from an attempt that was broken off: remove it")
    part.mkdir(parents=True)
    try:
        for name, text in files.items():
            (part / name).write_text(text, encoding="utf-8", newline="\n")
        write_safetensors(part / "model.safetensors", tensors, {"format": "pt"})  # transformers wants to be told
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
