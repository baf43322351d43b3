"""Files of `torch.save`, written without PyTorch, byte by byte, so that hostile ones can be written as well."""

import io
import struct
import zipfile
from typing import NamedTuple

STORAGES = {"float32": "Float", "float16": "Half", "float64": "Double", "uint16": "BFloat16", "int64": "Long",
            "uint8": "Byte", "bool": "Bool"}  # fmt: skip


class Raw(NamedTuple):
    """Steps of a pickle as they are, in place of a value."""

    steps: bytes


def named(name):
    module, _, function = name.rpartition(".")
    return Raw(f"c{module}\n{function}\n".encode())


def call(function, *arguments):
    return Raw(steps_of(named(function)) + steps_of(arguments) + b"R")


def storage(kind, key, length):
    return Raw(steps_of(("storage", named(f"torch.{kind}Storage"), key, "cpu", length)) + b"Q")


def tensor(kind, key, length, offset, shape, strides):
    empty = call("collections.OrderedDict")
    return call("torch._utils._rebuild_tensor_v2", storage(kind, key, length), offset, shape, strides, False, empty)


def steps_of(value):
    """A value -> the steps of protocol 2 that put it on the stack."""
    if isinstance(value, Raw):
        return value.steps
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return b"(" + b"".join(map(steps_of, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(steps_of, value)) + b"e"
    return b"}(" + b"".join(steps_of(key) + steps_of(item) for key, item in value.items()) + b"u"


def zip_of(steps, storages=(), more=(), kind=zipfile.ZIP_STORED, byteorder=b"little"):
    """The steps of a pickle without its end, and {key: bytes} of storages -> the bytes of a file of torch.save."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", kind) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + steps + b".")
        archive.writestr("archive/byteorder", byteorder)
        for key, data in dict(storages).items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", b"3\n")
        for name, data in dict(more).items():
            archive.writestr(f"archive/{name}", data)
    return made.getvalue()


def torch_bytes(tensors, place=None, **others):
    """{name: array} -> the bytes of a file of torch.save; uint16 arrays stand for BF16.

    place: a key under which the tensors stand, beside others, as in a training checkpoint.
    """
    storages, values = {}, {}
    for i, (name, array) in enumerate(tensors.items()):
        storages[str(i)] = array.ravel(order="K").tobytes()  # as it lies in memory
        strides = tuple(step // array.itemsize for step in array.strides)
        values[name] = tensor(STORAGES[array.dtype.name], str(i), array.size, 0, array.shape, strides)
    return zip_of(steps_of(values if place is None else {place: values, **others}), storages)
