"""NumPy's .npz format: a zip of arrays, with the text files of the model beside them."""
import math
import os
import zipfile

import numpy as np

from gpt2_io.errors import UserError, in_units, naming_faults
from gpt2_io.files import TEXT_FILES, replacing
from gpt2_io.safetensors import FLOATS, StoredTensor, to_float32

NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MAX_UNPACKED = 64  # times the size of a .npz; deflate packs zeros to a 1000th, weights to a half at best


def read_npz(path):
    """Read a .npz file -> {name: StoredTensor}, {file name: text}.

    A .npz is a zip of .npy files, one for each tensor; each is read when it is asked for. `write_npz` puts the text
    files of the model beside them. Python objects are never unpickled. Raises UserError, naming file and tensor.
    """

    def stored(member, name, dtype, shape, n_bytes):
        def float32():
            with naming_faults(f"{path}: tensor {name!r:.100}"), archive.open(member) as file:
                if dtype.kind != "f":
                    raise UserError(f"an array of dtype {dtype}, not of floats")
                return to_float32(np.lib.format.read_array(file, allow_pickle=False))

        return StoredTensor(FLOATS.get(dtype.name, dtype.name), shape, n_bytes, float32)

    tensors, files = {}, {}
    with naming_faults(f"{path}: not a whole .npz file"):
        archive = zipfile.ZipFile(path)  # stays open for the tensors: each time, it would read its whole table again
    unpacked = sum(max(member.file_size, member.compress_size) for member in archive.infolist())
    packed = os.path.getsize(path)
    if unpacked > 1_000_000 + MAX_UNPACKED * packed:
        sizes = f"{in_units(packed)} that would unpack to {in_units(unpacked)}"
        raise UserError(f"{path}: {sizes}: a zip bomb? No weights shrink to a {MAX_UNPACKED}th")
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        with naming_faults(f"{path}: tensor {name!r:.100}"):
            if name in tensors or name in files:
                raise UserError("it is there twice")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError("packed in another way than NumPy's two, np.savez and np.savez_compressed")
            with archive.open(member) as file:
                if name in TEXT_FILES:
                    files[name] = file.read().decode("utf-8")
                    continue
                version = np.lib.format.read_magic(file)
                if version not in NPY_HEADERS:
                    raise UserError(f"version {version} of the .npy format; 1.0 and 2.0 are supported")
                shape, _, dtype = NPY_HEADERS[version](file)
                n_bytes, n_found = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
                if n_bytes != n_found and not dtype.hasobject:
                    asked = f"{dtype} of shape {str(list(shape)):.60}"
                    raise UserError(f"{asked} takes another number of bytes than the {n_found} of the file")
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
