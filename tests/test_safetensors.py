"""The safetensors reader and writer: what is in a file comes out, and a spoilt file is refused at once, by name."""
import json
import struct
import tracemalloc

import numpy as np
import pytest
from model_files import CONFIG, make_tensors, safetensors_bytes, write_folder, write_huge_folder

import utils
from gpt2_io.safetensors import read_safetensors, write_safetensors

pytestmark = pytest.mark.usefixtures("clean_environment")


def write(path, data):
    path.write_bytes(data)
    return path


def a_and_b(edit=None, data=b"", **changes):
    """A file of two tensors, a [2, 3] and b [4], float32; `edit` spoils the header, `data` is added at the end."""
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.float32)}

    def change(header):
        for key, value in changes.items():
            header["a"][key] = value
        if edit:
            edit(header)

    return safetensors_bytes(tensors, edit=change) + data


def test_a_good_file(tmp_path):
    tensors = read_safetensors(write(tmp_path / "x.safetensors", a_and_b()))
    assert list(tensors) == ["a", "b"]
    assert tensors["a"].dtype == "F32" and tensors["a"].shape == (2, 3) and tensors["a"].n_bytes == 24
    np.testing.assert_array_equal(tensors["a"].float32(), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(tensors["b"].float32(), [0, 1, 2, 3])


def raw(header, data=b""):
    return struct.pack("<Q", len(header)) + header + data


def shift_by_4(header):
    header["a"].update(data_offsets=[4, 28])
    header["b"].update(data_offsets=[28, 44])


SPOILT = {
    "nothing": (b"", ["shorter"]),
    "seven bytes": (b"1234567", ["shorter"]),
    "header longer than the file": (struct.pack("<Q", 1000) + b"{}", ["header", "1000"]),
    "header longer than 100 MB": (struct.pack("<Q", 2**63) + b"{}", ["header"]),
    "header not JSON": (raw(b"{nonsense"), ["JSON"]),
    "header not UTF-8": (raw(b'{"\xff": 1}'), ["JSON"]),
    "header nested too deep": (raw(b'{"a":' + b"[" * 200_000), ["JSON"]),
    "header an array": (raw(b"[1, 2]"), ["object"]),
    "a tensor twice": (raw(b'{"a": {}, "a": {}}'), ["'a'", "twice"]),
    "entry no object": (raw(b'{"a": 3}'), ["'a'"]),
    "entry without shape": (a_and_b(lambda h: h["a"].pop("shape")), ["'a'", "shape"]),
    "dtype no text": (a_and_b(dtype=["F32"]), ["'a'", "dtype"]),
    "shape no list": (a_and_b(shape=6), ["'a'", "shape"]),
    "shape of too many axes": (a_and_b(shape=[10**30] * 1000), ["'a'", "shape"]),
    "shape negative": (a_and_b(shape=[-2, -3]), ["'a'", "shape"]),
    "shape of fractions": (a_and_b(shape=[2.0, 3.0]), ["'a'", "shape"]),
    "shape of booleans": (a_and_b(shape=[True, 6]), ["'a'", "shape"]),
    "shape too large": (a_and_b(shape=[2**40, 2**40]), ["'a'", "bytes"]),
    "shape too small": (a_and_b(shape=[2, 2]), ["'a'", "bytes"]),
    "offsets negative": (a_and_b(data_offsets=[-24, 0]), ["'a'", "data_offsets"]),
    "offsets reversed": (a_and_b(data_offsets=[24, 0]), ["'a'", "data_offsets"]),
    "offsets three": (a_and_b(data_offsets=[0, 12, 24]), ["'a'", "data_offsets"]),
    "offsets no numbers": (a_and_b(data_offsets=["0", "24"]), ["'a'", "data_offsets"]),
    "offsets past the end": (a_and_b(lambda h: h["b"].update(data_offsets=[24, 40 + 2**40])), ["'b'", "end"]),
    "offsets overlap": (a_and_b(lambda h: h["b"].update(data_offsets=[20, 36])), ["'b'", "overlap"]),
    "gap between tensors": (a_and_b(lambda h: h["b"].update(data_offsets=[28, 44]), data=b"1234"), ["'b'", "gap"]),
    "gap at the front": (a_and_b(shift_by_4, data=b"1234"), ["'a'", "gap"]),
    "bytes at the end": (a_and_b(data=b"1234"), ["4 bytes"]),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", ["git lfs pull"]),
    "cut in the data": (a_and_b()[:-1], ["'b'", "cut"]),
    "cut in the header": (a_and_b()[:60], ["header"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_refused_by_name_without_a_large_allocation(tmp_path, name):
    data, words = SPOILT[name]
    path = write(tmp_path / "spoilt.safetensors", data)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:
            read_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000 + 4 * len(data)
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    for word in words:
        assert word in message


def test_every_cut_of_a_file_is_noticed(tmp_path):
    whole = a_and_b()
    for n in range(0, len(whole), 3):
        with pytest.raises(ValueError, match="x.safetensors"):
            read_safetensors(write(tmp_path / "x.safetensors", whole[:n]))


def test_a_spoilt_byte_in_the_header_never_gives_anything_but_a_valueerror(tmp_path):
    whole = bytearray(a_and_b())
    rng = np.random.default_rng(0)
    for _ in range(100):
        spoilt = bytearray(whole)
        spoilt[rng.integers(8, len(whole) - 40)] = rng.integers(0, 256)
        try:
            for tensor in read_safetensors(write(tmp_path / "x.safetensors", bytes(spoilt))).values():
                tensor.float32()
        except ValueError:
            pass


def test_f32_is_a_view_of_the_file_that_nobody_can_write(tmp_path):
    path = write(tmp_path / "x.safetensors", a_and_b())
    array = read_safetensors(path)["a"].float32()
    assert type(array) is np.ndarray and not array.flags.owndata and not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


def test_unaligned_data_is_copied_once_so_that_blas_need_not_copy_it_every_time(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    array = read_safetensors(write(tmp_path / "x.safetensors", safetensors_bytes(tensors, pad=False)))[
        "a"
    ].float32()
    assert array.flags.aligned
    np.testing.assert_array_equal(array, tensors["a"])


def test_f16_bf16_and_f64_become_float32_exactly(tmp_path):
    values = np.array([0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 3.0e-5], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    path = write(
        tmp_path / "x.safetensors",
        safetensors_bytes({"h": values.astype(np.float16), "b": bf16, "d": values.astype(np.float64)}),
    )
    tensors = read_safetensors(path)
    assert [tensors[name].dtype for name in "hbd"] == ["F16", "BF16", "F64"]
    np.testing.assert_array_equal(tensors["h"].float32(), values.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(tensors["b"].float32(), (bf16.astype(np.uint32) << 16).view(np.float32))
    np.testing.assert_array_equal(tensors["d"].float32(), values)
    for tensor in tensors.values():
        assert tensor.float32().dtype == np.float32


def test_other_dtypes_may_be_there_but_are_no_weights(tmp_path):
    path = write(
        tmp_path / "x.safetensors",
        safetensors_bytes({"mask": np.ones((1, 1, 3, 3), np.uint8), "a": np.ones(2, np.float32)}),
    )
    tensors = read_safetensors(path)
    tensors["a"].float32()
    with pytest.raises(ValueError, match="'mask'.*U8"):
        tensors["mask"].float32()


def test_empty_tensors_and_scalars(tmp_path):
    path = write(
        tmp_path / "x.safetensors",
        safetensors_bytes({"none": np.ones((0, 3), np.float32), "one": np.float32(7).reshape(())}),
    )
    tensors = read_safetensors(path)
    assert tensors["none"].float32().shape == (0, 3) and tensors["one"].float32() == 7


def test_what_is_written_is_read_and_the_form_is_the_format_s(tmp_path):
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "t": np.ones((3, 5), np.float16).T,
        "ä": np.zeros((0,), np.float32),
    }
    path = tmp_path / "x.safetensors"
    write_safetensors(path, tensors, {"format": "pt"})
    data = path.read_bytes()
    header_size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + header_size])
    assert header_size % 8 == 0 and header["__metadata__"] == {"format": "pt"} and header["t"]["shape"] == [5, 3]
    found = read_safetensors(path)
    for name in tensors:
        np.testing.assert_array_equal(found[name].float32(), tensors[name].astype(np.float32))
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_writing_is_whole_or_not_at_all(tmp_path):
    path = write(tmp_path / "x.safetensors", b"the file before")

    class Broken(dict):
        def values(self):
            yield np.ones(3, np.float32)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_safetensors(path, Broken(a=np.ones(3, np.float32), b=np.ones(3, np.float32)))
    assert path.read_bytes() == b"the file before" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="'a'.*int64"):
        write_safetensors(path, {"a": np.ones(3, np.int64)})


# ---- several files with an index


def write_shards(folder, shards, weight_map=None, prefix="transformer."):
    """shards: {file name: {tensor: array}}; the index maps every tensor to its file, or is weight_map."""
    write_folder(folder)
    (folder / "model.safetensors").unlink()
    for file, tensors in shards.items():
        (folder / file).write_bytes(safetensors_bytes({prefix + name: array for name, array in tensors.items()}))
    weight_map = (
        {prefix + name: file for file, tensors in shards.items() for name in tensors}
        if weight_map is None
        else weight_map
    )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8"
    )
    return folder


def two_shards(seed=0):
    tensors = list(make_tensors(CONFIG, seed).items())
    return {
        "model-00001-of-00002.safetensors": dict(tensors[:9]),
        "model-00002-of-00002.safetensors": dict(tensors[9:]),
    }


def test_shards_give_the_same_model_as_one_file(tmp_path):
    _, hparams, params = utils.load_model(write_shards(tmp_path / "shards", two_shards()))
    _, hparams_1, params_1 = utils.load_model(write_folder(tmp_path / "one"))
    assert hparams == hparams_1
    np.testing.assert_array_equal(params["wte"], params_1["wte"])
    np.testing.assert_array_equal(
        params["blocks"][1]["mlp"]["c_proj"]["w"], params_1["blocks"][1]["mlp"]["c_proj"]["w"]
    )


@pytest.mark.parametrize(
    "file",
    ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\\b", "~/x", "C:x.safetensors", "x\n"],
)
def test_an_index_cannot_lead_out_of_the_folder(tmp_path, file):
    folder = write_shards(tmp_path / "m", two_shards(), weight_map={"wte.weight": file})
    (tmp_path / "secret.safetensors").write_bytes(safetensors_bytes({"wte.weight": np.ones(1, np.float32)}))
    with pytest.raises(ValueError, match="plain name"):
        utils.load_model(folder)


def test_shards_that_are_missing_or_hold_something_else_are_named(tmp_path):
    folder = write_shards(tmp_path / "m", two_shards())
    shard = folder / "model-00002-of-00002.safetensors"
    shard.rename(folder / "elsewhere")
    with pytest.raises(ValueError, match="model-00002-of-00002.safetensors is missing"):
        utils.load_model(folder)
    shard.write_bytes(safetensors_bytes({"other": np.ones(1, np.float32)}))
    with pytest.raises(ValueError, match="model-00002.*other"):
        utils.load_model(folder)
    for index in ("[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "{"):
        (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
        with pytest.raises(ValueError, match="index.json"):
            utils.load_model(folder)


# ---- cost


def test_a_model_loads_without_a_copy_of_its_weights(tmp_path):
    folder = write_huge_folder(tmp_path / "huge", n_layer=2, n_vocab=5000)  # 75 MB
    tracemalloc.start()
    try:
        _, hparams, params = utils.load_model(folder)
        assert params["wte"].shape[1] == 768 and hparams["n_layer"] == 2
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
