"""PyTorch's files: tensors come out as they went in, and of what else is in them nothing is ever run."""
import pickle
import sys
import zipfile

import numpy as np
import pytest
from model_files import logits_of, make_tensors, write_folder
from tiny import ENDS
from torch_files import Raw, call, named, steps_of, storage, tensor, torch_bytes, zip_of

import utils
from gpt2_io.errors import UserError
from gpt2_io.pickles import read_torch

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def read(tmp_path):
    """Bytes of a file -> {name: StoredTensor}."""

    def call(data):
        (tmp_path / "x.bin").write_bytes(data)
        return read_torch(tmp_path / "x.bin")[0]

    return call


@pytest.mark.parametrize("dtype, name", [(np.float32, "F32"), (np.float16, "F16"), (np.float64, "F64")])
def test_tensors_of_each_type_whole_and_transposed(read, dtype, name):
    array = np.arange(6, dtype=dtype).reshape(2, 3) / 4
    tensors = read(torch_bytes({"a": array, "t": np.arange(6, dtype=dtype).reshape(3, 2).T, "n": dtype(7)[None]}))
    assert {key: (t.dtype, t.shape, t.n_bytes) for key, t in tensors.items()} == {
        "a": (name, (2, 3), array.nbytes), "t": (name, (2, 3), array.nbytes), "n": (name, (1,), array.itemsize),
    }  # fmt: skip
    np.testing.assert_array_equal(tensors["a"].float32(), array)
    np.testing.assert_array_equal(tensors["t"].float32(), np.arange(6).reshape(3, 2).T)
    assert all(t.float32().dtype == np.float32 and t.float32().flags.c_contiguous for t in tensors.values())


def test_bf16_and_a_part_of_a_storage(read):
    values = np.array([1.5, -2.25, 3e-5, 4.0], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    found = read(torch_bytes({"b": bf16}))["b"].float32()
    np.testing.assert_array_equal(found, (bf16.astype(np.uint32) << 16).view(np.float32))
    data = np.arange(12, dtype=np.float32)
    steps = steps_of({"part": tensor("Float", "0", 12, 5, (2, 2), (3, 1))})
    np.testing.assert_array_equal(read(zip_of(steps, {"0": data.tobytes()}))["part"].float32(), [[5, 6], [8, 9]])


def test_an_unused_tensor_of_another_type_does_no_harm(read):
    tensors = read(torch_bytes({"mask": np.ones(3, np.uint8), "a": np.ones(2, np.float32)}))
    tensors["a"].float32()
    with pytest.raises(UserError, match="'mask'.*U8"):
        tensors["mask"].float32()
    newer = call("torch._utils._rebuild_tensor_v3", storage("Untyped", "0", 3), 0, (3,), (1,), False,
                 call("collections.OrderedDict"), named("torch.float8_e4m3fn"))  # fmt: skip
    with pytest.raises(UserError, match="'new'.*float8_e4m3fn"):
        read(zip_of(steps_of({"new": newer}), {"0": b"123"}))["new"].float32()


@pytest.mark.parametrize("version", ENDS, ids=str)
def test_a_folder_with_pytorch_model_bin(tmp_path, version):
    folder = write_folder(tmp_path / "m")
    expected = logits_of(version, utils.load_model(folder)[2], 3, [1, 4, 7])
    (folder / "model.safetensors").unlink()
    named = {f"transformer.{name}": array for name, array in make_tensors().items()}
    (folder / "pytorch_model.bin").write_bytes(torch_bytes(named))
    np.testing.assert_array_equal(logits_of(version, utils.load_model(folder)[2], 3, [1, 4, 7]), expected)


def test_shards_and_safetensors_first(tmp_path):
    folder = write_folder(tmp_path / "m")
    expected = utils.load_model(folder)[2]["wpe"]
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    utils.load_model(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").unlink()
    tensors = list(make_tensors().items())
    for file, part in (("a.bin", dict(tensors[:5])), ("b.bin", dict(tensors[5:]))):
        (folder / file).write_bytes(torch_bytes(part))
    places = {name: "a.bin" if i < 5 else "b.bin" for i, (name, _) in enumerate(tensors)}
    index = str({"weight_map": places}).replace("'", '"')
    (folder / "pytorch_model.bin.index.json").write_text(index, encoding="utf-8")
    np.testing.assert_array_equal(utils.load_model(folder)[2]["wpe"], expected)


def test_a_training_checkpoint_of_nanogpt_is_a_model_by_itself(tmp_path, capsys):
    shapes = {name: a for name, a in make_tensors().items() if not name.endswith(".bias")}
    turned = {f"_orig_mod.transformer.{n}": a.T if ".c_" in n else a for n, a in shapes.items()}
    args = {"n_layer": 2, "n_head": 3, "n_embd": 12, "block_size": 16, "bias": False, "vocab_size": 263}
    path = tmp_path / "ckpt.pt"
    loss = tensor("Float", "0", 263 * 12, 0, (), ())  # by itself at the top
    others = {"best_val_loss": loss, "model_args": args, "iter_num": 7, "optimizer": {"state": {0: [1]}}}
    path.write_bytes(torch_bytes(turned, "model", **others))
    _, hparams, params = utils.load_model(path)
    assert hparams == {"n_vocab": 263, "n_ctx": 16, "n_embd": 12, "n_head": 3, "n_layer": 2}
    np.testing.assert_array_equal(params["blocks"][1]["attn"]["c_proj"]["w"], shapes["h.1.attn.c_proj.weight"])
    assert not params["blocks"][0]["ln_1"]["b"].any()
    assert "erf" in capsys.readouterr().err  # what the file does not tell is said


# ---- hostile

RAN = []


class Bomb:
    def __reduce__(self):
        return RAN.append, ("ran",)


def by_python(value, protocol):
    data = pickle.dumps(value, protocol)
    return data[2:-1]


EVAL = call("builtins.eval", "RAN.append(1)")
A = ("Float", "0")
HOSTILE = {
    "os.system": call("os.system", "touch ran"),
    "eval": EVAL,
    "eval of Python 2": call("__builtin__.eval", "1"),
    "getattr": call("builtins.getattr", named("torch.FloatStorage"), "from_file"),
    "a name of two dots": Raw(steps_of("os") + steps_of("path.join") + b"\x93"),
    "a name on the stack": Raw(steps_of("posix") + steps_of("system") + b"\x93" + steps_of(("touch ran",)) + b"R"),
    "a name that is no text": Raw(steps_of(1) + steps_of(2) + b"\x93"),
    "torch.load": call("torch.load", "x"),
    "a pickle in a storage": call("torch.storage._load_from_bytes", "x"),
    "INST": Raw(b"(X\x01\x00\x00\x00aios\nsystem\n"),
    "OBJ": Raw(b"(cos\nsystem\nX\x01\x00\x00\x00ao"),
    "NEWOBJ": Raw(steps_of(named("torch.FloatStorage")) + b")\x81"),
    "NEWOBJ_EX": Raw(steps_of(named("torch.FloatStorage")) + b")}\x92"),
    "EXT1": Raw(b"\x82\x01"),
    "PERSID": Raw(b"Px\n"),
    "REDUCE of a text": Raw(steps_of("os.system") + b")R"),
    "REDUCE of a type": call("torch.FloatStorage", 3),
    "REDUCE without arguments": Raw(steps_of(named("torch._utils._rebuild_tensor_v2")) + b"NR"),
    "an OrderedDict of pairs": call("collections.OrderedDict", [("a", 1)]),
    "BUILD of a type": Raw(steps_of(named("torch.FloatStorage")) + steps_of({"__init__": EVAL}) + b"b"),
    "BUILD of a tensor": Raw(steps_of(tensor("Float", "0", 2, 0, (2,), (1,))) + steps_of({"dtype": 1}) + b"b"),
    "a parameter of no tensor": call("torch._utils._rebuild_parameter", "x", False, None),
    "a storage of a text": Raw(steps_of("x") + b"Q"),
    "a storage of five texts": Raw(steps_of(tuple("abcde")) + b"Q"),
    "a tensor of no storage": call("torch._utils._rebuild_tensor_v2", "x", 0, (2,), (1,), False, None),
    "a key that is a tuple": Raw(b"}" + steps_of((1,)) + steps_of(1) + b"s"),
    "a key that is a list": Raw(b"}" + steps_of([1]) + steps_of(1) + b"s"),
    "items for a number": Raw(b"K\x01(" + steps_of("a") + steps_of(1) + b"u"),
    "append to a text": Raw(steps_of("a") + steps_of(1) + b"a"),
    "append to a dict": Raw(b"}" + steps_of(1) + b"a"),
    "the stack ends": Raw(b"R"),
    "no mark": Raw(b"t"),
    "a memo that was not made": Raw(b"h\x07"),
    "bytes": Raw(b"U\x01a"),
    "a long text": Raw(b"\x8d" + b"\xff" * 8),
    "a number of 2**31 digits": Raw(b"\x8b\xff\xff\xff\x7f"),
    "outside by length": tensor(*A, 2, 0, (3,), (1,)),
    "outside by stride": tensor(*A, 2, 0, (2,), (2,)),
    "outside by offset": tensor(*A, 2, 1, (2,), (1,)),
    "a negative offset": tensor(*A, 2, -1, (1,), (1,)),
    "a negative stride": tensor(*A, 2, 1, (2,), (-1,)),
    "a negative size": tensor(*A, 2, 0, (-2,), (1,)),
    "a stride of 0": tensor(*A, 2, 0, (2**40,), (0,)),
    "sizes that overflow": tensor(*A, 2, 0, (2**62, 4), (0, 0)),
    "sizes of 10**300": tensor(*A, 2, 0, (10**300,), (1,)),
    "more strides than sizes": tensor(*A, 2, 0, (2,), (1, 1)),
    "sizes that are a text": tensor(*A, 2, 0, "ab", "ab"),
    "sizes that are a number": tensor(*A, 2, 0, 2, 1),
    "an offset that is a text": tensor(*A, 2, "0", (2,), (1,)),
    "many axes": tensor(*A, 2, 0, (1,) * 99, (1,) * 99),
    "a storage that is longer than its file": tensor(*A, 4, 0, (4,), (1,)),
    "a storage of another type": tensor("Double", "0", 2, 0, (2,), (1,)),
    "a storage that is not there": tensor("Float", "7", 2, 0, (2,), (1,)),
    "a storage elsewhere": tensor("Float", "../data.pkl", 2, 0, (2,), (1,)),
}  # fmt: skip


@pytest.fixture
def nothing_runs(read, tmp_path, monkeypatch):
    """Python's own reader of pickles may not be used, and what a pickle could call leaves a trace."""
    monkeypatch.chdir(tmp_path)
    for name in ("loads", "load", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *args, **options: pytest.fail("a pickle was opened"))
    read(torch_bytes({"a": np.ones(1, np.float32)}))  # what it imports is there now
    events = []
    watched = [True]
    sys.addaudithook(lambda event, args: watched and events.append(event))
    yield
    watched.clear()
    assert not {"os.system", "subprocess.Popen", "exec", "compile", "import", "pickle.find_class"} & set(events)
    assert RAN == [] and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_in_one_line_and_runs_nothing(read, nothing_runs, name):
    for steps in (steps_of({"a": HOSTILE[name]}), HOSTILE[name].steps):
        with pytest.raises(UserError) as caught:
            read(zip_of(steps, {"0": np.ones(2, np.float32).tobytes()}))
        message = str(caught.value)
        assert "x.bin: " in message and "\n" not in message and len(message) < 400


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_python_pickles_to_run_code_is_refused_in_each_protocol(read, protocol):
    with pytest.raises(UserError, match="which no tensor needs; nothing was run"):
        read(zip_of(by_python({"a": Bomb()}, protocol)))
    assert RAN == []


def test_shared_parts_that_would_grow_without_end_cost_nothing(read):
    """A list that holds twice a list that holds twice ...: 2**60 in all, which nobody may walk through."""
    steps = b"".join(bytes([ord("q"), i]) + b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e" for i in range(60))
    steps = b"(]" + steps + b"t"
    with pytest.raises(UserError, match="no tensors"):
        read(zip_of(steps_of({"a": Raw(steps)})))


def test_keys_that_a_dict_could_hardly_tell_apart_are_refused(read):
    """Of 100,000 numbers that Python's hash makes one, each would be compared with all before it."""
    good = tensor("Float", "0", 1, 0, (1,), (1,))
    assert read(zip_of(steps_of({"a": good, "state": {5: 1}}), {"0": bytes(4)}))
    with pytest.raises(UserError, match="not a dict of tensors by name"):
        read(zip_of(steps_of({"a": good, "state": {2**61 - 1: 1}}), {"0": bytes(4)}))


def test_zips_that_torch_does_not_write(read, tmp_path):
    steps = steps_of({"a": tensor("Float", "0", 10**6, 0, (10**6,), (1,))})
    with pytest.raises(UserError, match="would unpack to 4.0 MB"):
        read(zip_of(steps, {"0": bytes(4 * 10**6)}, kind=zipfile.ZIP_DEFLATED))
    good = torch_bytes({"a": np.ones(100, np.float32)})
    central = good.index(b"PK\x01\x02")  # of the first file: 4 bytes each for the two sizes stand 20 bytes behind
    huge = (2**31 - 2).to_bytes(4, "little")
    for where in (central + 20, central + 24):
        with pytest.raises(UserError, match="would unpack to 2.1 GB"):
            read(good[:where] + huge + good[where + 4 :])
    with pytest.raises(UserError, match="up to 2.0 MB"):  # steps of one byte each would take minutes
        read(zip_of(b"N" * 2_000_001))
    with pytest.raises(UserError, match="big-endian"):
        read(zip_of(steps_of({}), byteorder=b"big"))
    with pytest.raises(UserError, match="TorchScript"):
        read(zip_of(steps_of({}), more={"constants.pkl": b"x"}))
    for n in (0, 1, 30, len(good) // 2, len(good) - 30):
        with pytest.raises(UserError, match="x.bin"):
            read(good[:n])
    spoilt = good.replace(np.ones(100, np.float32).tobytes(), np.ones(100, np.float32).tobytes()[:-1] + b"\x40")
    with pytest.raises(UserError, match="'a'"):
        read(spoilt)["a"].float32()


@pytest.mark.reference
def test_what_torch_writes_is_read_and_a_whole_object_is_not(tmp_path):
    import torch

    linear = torch.nn.Linear(3, 5)
    for protocol in (2, 4, 5):
        torch.save(linear.state_dict(), tmp_path / "x.pt", pickle_protocol=protocol)
        found = read_torch(tmp_path / "x.pt")[0]
        np.testing.assert_array_equal(found["weight"].float32(), linear.weight.detach().numpy())
    torch.save(dict(linear.named_parameters()), tmp_path / "x.pt")  # parameters, not tensors
    np.testing.assert_array_equal(read_torch(tmp_path / "x.pt")[0]["bias"].float32(), linear.bias.detach().numpy())
    torch.save(linear, tmp_path / "x.pt")
    with pytest.raises(UserError, match="torch.nn.modules.linear.Linear"):
        read_torch(tmp_path / "x.pt")
    torch.save(linear.state_dict(), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match="before 1.6"):
        read_torch(tmp_path / "x.pt")
    torch.jit.save(torch.jit.script(linear), tmp_path / "x.pt")
    with pytest.raises(UserError, match="TorchScript"):
        read_torch(tmp_path / "x.pt")
