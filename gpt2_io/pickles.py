"""PyTorch's own format (`pytorch_model.bin`, `.pt`, `.pth`): tensors by name, and nothing that is in it is ever run.

It is a zip: a pickle says which tensors there are, and a file for each storage has their numbers. A pickle is a
program, and Python's own reader calls any function that it names. The reader here knows the few steps that a dict of
tensors takes; a function is no more to it than its name.
"""
import json
import math
import os
import pickletools
import re
import shlex
import zipfile
from typing import Any, NamedTuple

import numpy as np

from gpt2_io.errors import UserError, in_units, naming_faults
from gpt2_io.safetensors import SAFETENSORS_DTYPES, StoredTensor, check_type, is_list_of_sizes, to_float32

MAX_PICKLE = 2_000_000  # bytes; that of a GPT-2 of 48 layers, with its optimizer, has a 9th of it
BY_ITSELF = "if you trust who made it, save the model's state_dict() by itself, with torch"

STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
TYPES = re.compile(r"torch\.((storage\.)?\w+Storage|u?int\d+|b?float\d\w*|complex\d+|bool)")
REBUILD = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
PARAMETER, ORDERED_DICT = "torch._utils._rebuild_parameter", "collections.OrderedDict"
SAVED_ANEW = 'import sys, torch; f = sys.argv[1]; torch.save(torch.load(f, weights_only=True), f)'


class Name(NamedTuple):
    """A function, class or type that a pickle names."""

    name: str


class Storage(NamedTuple):
    dtype: str
    key: str  # the name of its file in the zip
    length: int  # numbers in it


class Tensor(NamedTuple):
    """A view of a storage, as the pickle has it: nothing is checked yet."""

    storage: Storage
    offset: Any
    shape: Any
    strides: Any
    dtype: str


def read_pickle(data):
    """A pickle of dicts, lists, numbers, texts and tensors -> the same, with a Tensor for each tensor.

    Raises UserError for every other step, by name, and what `pickletools` raises for what is no pickle.
    """
    stack, marks, memo = [], [], {}

    def items():
        """What was put on the stack since the last mark."""
        start = marks.pop()
        taken = stack[start:]
        del stack[start:]
        return taken

    def put(target, pairs):
        # Large numbers can be chosen so that a dict takes them for one another, and hours to tell them apart.
        keys_fit = all(isinstance(key, str) or (type(key) is int and abs(key) < 2**31) for key, _ in pairs)
        if not isinstance(target, dict) or not keys_fit:
            raise UserError("it is not a dict of tensors by name")
        target.update(pairs)

    for opcode, value, _ in pickletools.genops(data):
        step = opcode.name
        if step in ("PROTO", "FRAME"):
            continue
        elif step == "STOP":
            return stack.pop()
        elif step in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[step])
        elif step in ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"):
            stack.append(value)
        elif step in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[step]())
        elif step == "MARK":
            marks.append(len(stack))
        elif step == "TUPLE":
            stack.append(tuple(items()))
        elif step in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(step[-1])
            stack[-n:] = [tuple(stack[-n:])]
        elif step in ("APPEND", "APPENDS"):
            values = items() if step == "APPENDS" else [stack.pop()]
            if not isinstance(stack[-1], list):
                raise UserError("it is not a dict of tensors by name")
            stack[-1].extend(values)
        elif step in ("SETITEM", "SETITEMS"):
            values = items() if step == "SETITEMS" else [stack.pop(-2), stack.pop()]
            put(stack[-1], list(zip(values[::2], values[1::2])))
        elif step in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if value is None else value] = stack[-1]
        elif step in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif step in ("GLOBAL", "STACK_GLOBAL"):
            name = value.replace(" ", ".") if step == "GLOBAL" else ".".join([stack.pop(-2), stack.pop()])
            if not TYPES.fullmatch(name) and name not in (*REBUILD, PARAMETER, ORDERED_DICT):
                raise UserError(f"it asks for {name!r:.100}, which no tensor needs; nothing was run; {BY_ITSELF}")
            stack.append(Name(name))
        elif step == "BINPERSID":
            stack[-1] = storage_of(stack[-1])
        elif step == "REDUCE":
            arguments = stack.pop()
            stack[-1] = rebuild(stack[-1], arguments)
        elif step == "BUILD":  # attributes of an OrderedDict, such as the versions of modules: of no use here
            stack.pop()
            put(stack[-1], [])
        else:
            raise UserError(f"it has a step {step}, which no tensor needs; nothing was run; {BY_ITSELF}")
    raise UserError("it has no end")


def storage_of(value):
    """('storage', type, key, device, length), by which a pickle speaks of a file in the zip -> Storage."""
    kind, name, key, _, length = value
    if kind != "storage" or not isinstance(name, Name) or not isinstance(key, str) or type(length) is not int:
        raise UserError("it describes a storage in another way than PyTorch")
    name = name.name.split(".")[-1]
    return Storage(STORAGES.get(name, name), key, length)


def rebuild(function, arguments):
    """What PyTorch's functions for tensors would make of these arguments -> dict or Tensor."""
    name = function.name if isinstance(function, Name) else type(function).__name__
    if name == ORDERED_DICT and arguments == ():
        return {}
    if name == PARAMETER and isinstance(arguments[0], Tensor):
        return arguments[0]
    if name in REBUILD and isinstance(arguments[0], Storage):
        dtype = arguments[6].name.split(".")[-1] if name == REBUILD[1] else arguments[0].dtype
        return Tensor(*arguments[:4], dtype)
    raise UserError(f"it calls {name!r:.100} with something that makes no tensor; nothing was run")


def read_torch(path):
    """Read a file of `torch.save` -> {name: StoredTensor}, {file name: text}.

    The tensors of the dict under "model", "state_dict" or "model_state_dict", else of the whole. nanoGPT's sizes
    (`model_args`) become a config.json. Numbers are read when they are asked for. Raises UserError, naming file and
    tensor, also for what PyTorch wrote before 1.6, for TorchScript, and for any pickle but a dict of tensors.
    """
    with open(path, "rb") as file:
        begin = file.read(512)
    if not begin.startswith(b"PK"):
        if begin.startswith(b"\x80") or begin[257:262] == b"ustar":
            raise UserError(
                f"{path}: PyTorch's format before 1.6, or another pickle, which can run any code when it is opened. If "
                f"it is PyTorch's, write it anew: python -c '{SAVED_ANEW}' {shlex.quote(str(path))}"
            )
        raise UserError(f"{path}: not a file of torch.save, nor anything else that is known here")
    with naming_faults(f"{path}: not a whole file of torch.save"):
        archive = zipfile.ZipFile(path)  # stays open for the tensors
    members = {member.filename: member for member in archive.infolist()}
    pickle = next((name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")), None)
    folder = (pickle or "").removesuffix("data.pkl")
    if f"{folder}constants.pkl" in members:
        raise UserError(f"{path}: TorchScript, a program: save the state_dict() of the model that it was made of")
    # Of the two sizes of a member a hostile zip makes one huge, and that much memory would be set aside.
    unpacked = sum(max(member.file_size, member.compress_size) for member in archive.infolist())
    size = os.path.getsize(path)
    if unpacked > size or len(members) != len(archive.infolist()) or any(m.compress_type for m in members.values()):
        raise UserError(f"{path}: {in_units(size)} would unpack to {in_units(unpacked)}: PyTorch writes no such zip")
    if pickle is None or members[pickle].file_size > MAX_PICKLE:
        limit = in_units(MAX_PICKLE)
        raise UserError(f"{path}: no description of tensors in it, as torch.save writes it (data.pkl, up to {limit})")
    with naming_faults(f"{path}: its pickle is spoilt, or more than tensors"):
        if f"{folder}byteorder" in members and archive.read(f"{folder}byteorder") != b"little":
            raise UserError("its numbers are big-endian, which is not supported")
        whole = read_pickle(archive.read(pickle))
    whole = whole if isinstance(whole, dict) else {}
    # The whole comes last: beside its model, nanoGPT keeps the best loss, as a tensor.
    places = [*(whole.get(key) for key in ("model", "state_dict", "model_state_dict")), whole]
    for place in places:
        found = {k: v for k, v in place.items() if isinstance(v, Tensor)} if isinstance(place, dict) else {}
        if found:
            break
    else:
        raise UserError(f"{path}: no tensors by name in it, as a state_dict() has them")

    def stored(name, tensor):
        storage, offset, shape, strides, kind = tensor
        member, is_known = members.get(f"{folder}data/{storage.key}"), kind in SAFETENSORS_DTYPES
        dtype = np.dtype(SAFETENSORS_DTYPES.get(kind, "u1"))
        if not all(is_list_of_sizes(list(x)) for x in (shape, strides, [offset])) or len(shape) != len(strides):
            raise UserError("shape, strides and offset are no sizes")
        n_bytes = math.prod(shape) * dtype.itemsize
        if member is None or (is_known and member.file_size != storage.length * dtype.itemsize):
            raise UserError(f"its storage {storage.key!r:.60} is missing, or of another length than it says")
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides))
        if is_known and (n_bytes > member.file_size or (n_bytes and last >= storage.length)):
            raise UserError(f"shape {list(shape)!s:.60} leads out of its storage of {storage.length} numbers")

        def float32():
            with naming_faults(f"{path}: tensor {name!r:.100}"):
                check_type(kind)
                raw, steps = archive.read(member), [step * dtype.itemsize for step in strides]
                return to_float32(np.ndarray(shape, dtype, raw, offset * dtype.itemsize, steps))

        return StoredTensor(kind, tuple(shape), n_bytes, float32)

    tensors = {}
    for name, tensor in found.items():
        with naming_faults(f"{path}: tensor {name!r:.100}"):
            tensors[str(name)] = stored(name, tensor)
    arguments = whole.get("model_args")
    if not isinstance(arguments, dict):
        return tensors, {}
    config = {str(key): value for key, value in arguments.items() if type(value) in (int, float, bool, str)}
    return tensors, {"config.json": json.dumps({"model_type": "gpt2", **config})}
