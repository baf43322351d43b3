"""Broken files of every kind, by `tools/fuzz.py`: each is loaded or refused in one clear line, fast and without memory.

Inputs that once found a fault lie in tests/faults and are read again here. The long runs are slow: strategies of
hypothesis, which know the form of each file, and ten thousand inputs of the tool's own.
"""
import contextlib
import io
import itertools
import json
import random
import signal
import struct
import sys
import time
import warnings
import zipfile

import fuzz
import fuzz_targets
import numpy as np
import pytest
import torch_files
from model_files import CONFIG, MERGES, make_tensors, make_vocab, merges_txt, write_folder
from tiny import random_model

import jobs
import utils
from gpt2_io.safetensors import SAFETENSORS_DTYPES

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The bound of a second is for recorded runs: a test must not fail because a machine is slow or busy."""
    monkeypatch.setattr(fuzz, "SECONDS", 20)


@pytest.fixture(scope="module")
def prepared():
    """A reader's target and folder, made once."""
    with contextlib.ExitStack() as stack:
        made = {}

        def call(name):
            if name not in made:
                made[name] = stack.enter_context(fuzz.prepared(name))
            return made[name]

        yield call


@pytest.fixture
def judge(prepared):
    def call(name, data):
        outcome, fault = fuzz.judge(name, *prepared(name), data)
        assert fault is None, (name, fault, data[:200])
        return outcome

    return call


# ---- inputs that found a fault


def marked(names):
    """As parameters: what the gguf package reads is `extra`."""
    return [pytest.param(name, marks=[pytest.mark.extra] * name.startswith("gguf")) for name in names]


FOUND = marked(sorted(path.name for path in fuzz.FAULTS.glob("*-*")))


@pytest.mark.parametrize("file", FOUND)
def test_what_found_a_fault_finds_none_now(judge, file):
    judge(file.rpartition("-")[0], (fuzz.FAULTS / file).read_bytes())


@pytest.mark.parametrize("file", FOUND)
def test_what_found_a_fault_is_no_traceback_on_the_command_line(prepared, edge, monkeypatch, tmp_path, file):
    name = file.rpartition("-")[0]
    target, folder = prepared(name)
    (folder / target.file).write_bytes((fuzz.FAULTS / file).read_bytes())
    if name in ("prompts", "results", "part"):
        model = random_model(np.float32, n_vocab=2048, n_embd=12, n_head=3, n_layer=1)
        loaded = fuzz_targets.ENCODER, {"n_head": 3, "n_ctx": 64}, model.params
        monkeypatch.setattr(utils, "load_model", lambda *_, **__: loaded)
        result = edge(jobs.COMMANDS, "complete", folder / "prompts", "-n", "1", "--out", folder / "out.jsonl")
        assert result.returncode != 1 or result.stderr.count("\n") == 1
        result.stderr = result.stderr if result.returncode == 2 else ""
    else:
        result = edge(utils.COMMANDS, "inspect", "--model", folder / target.file if name in ("npz", "gguf") else folder)
    assert result.returncode in (0, 1, 2)
    assert result.stderr.count("\n") == (result.returncode == 2) and len(result.stderr) < fuzz.MESSAGE + 10


# ---- the tool can fail


def read_outside(folder):
    return (folder.parent / "secret").read_bytes()


def work(folder):
    while True:
        pass


def warn(folder):
    warnings.warn("look", stacklevel=1)


def refuse_with(words):
    def read(folder):
        raise utils.UserError(words)

    return read


PLANTED = {
    "KeyError": lambda folder: {}["x"],
    "ValueError": lambda folder: int("x"),
    "SystemExit": lambda folder: sys.exit(2),
    "RecursionError": lambda folder: json.loads("[" * 100_000),
    "UserWarning": warn,
    "slow": lambda folder: time.sleep(3600),
    "slow, and at work": work,
    "memory": lambda folder: bytes(10_000_000),
    "outside": read_outside,
    "without words": refuse_with(" \n"),
    "say where": refuse_with("no good"),
    "characters": refuse_with("x" * 2000),
}


def plant(monkeypatch, read, seconds=20):
    def target(folder):
        (folder.parent / "secret").write_bytes(b"x")
        return fuzz_targets.Target("file", [b"abc"], fuzz_targets.change_bytes, read)

    monkeypatch.setitem(fuzz.TARGETS, "planted", (target, 1))
    monkeypatch.setattr(fuzz, "SECONDS", seconds)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_reader_with_a_fault_is_found(monkeypatch, tmp_path, capsys, fault):
    if fault.startswith("slow") and not hasattr(signal, "setitimer"):
        pytest.skip("this system has no timers that would end it")
    plant(monkeypatch, PLANTED[fault], 0.01 if fault.startswith("slow") else 20)
    with pytest.raises(SystemExit) as stopped:
        fuzz.main("planted", runs=2, guided=False, faults=str(tmp_path / "faults"), out=str(tmp_path / "out.json"))
    assert stopped.value.code == 1
    (kept,) = (tmp_path / "faults").iterdir()
    assert kept.name.startswith("planted-") and f"{kept.name}: " in capsys.readouterr().out
    count = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["readers"]["planted"]
    assert count["inputs"] == count["fault"] == 2 and fault.partition(",")[0] in count["faults"][kept.name]


def test_a_reader_without_a_fault_passes_with_the_same_inputs_for_the_same_seed(monkeypatch, tmp_path, capsys):
    seen = []

    def read(folder):
        seen.append((folder / "file").read_bytes())
        if len(seen) % 2:
            raise utils.UserError(f"{folder}: no")

    plant(monkeypatch, read)
    for seed in (1, 1, 2):
        fuzz.main("planted", runs=20, seed=seed, guided=False, faults=str(tmp_path / "faults"))
    a, b, c = seen[:21], seen[21:42], seen[42:]
    assert a == b != c
    assert not (tmp_path / "faults").exists()
    assert capsys.readouterr().out.splitlines()[-1].split()[:5] == ["all", "20", "10", "10", "0"]


@pytest.mark.slow
@pytest.mark.extra
def test_inputs_guided_by_atheris(tmp_path, capsys):
    fuzz.main("config", runs=500, guided=True, faults=str(tmp_path / "faults"), out=str(tmp_path / "out.json"))
    count = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["readers"]["config"]
    assert count["inputs"] == 500 and count["loaded"] > 3 and count["refused"] > 3 and count["fault"] == 0


def test_a_name_that_is_no_reader():
    with pytest.raises(ValueError, match="no reader 'pickle'.*safetensors"):
        fuzz.main("pickle")


# ---- large files: what takes a power of their size shows here

N = 100_000
LARGE = {
    "deep lists": b"[" * N,
    "deep lists, closed": b"[" * N + b"]" * N,
    "deep objects": b'{"a":' * N,
    "a deep value": b'{"a": ' + b"[" * N + b"]" * N + b"}",
    "a huge number": b'{"a": ' + b"9" * N + b"}",
    "a number of 4300 digits": b'{"n_embd": ' + b"9" * 4300 + b"}",
    "many keys, the last twice": b"{" + b"".join(b'"%d":1,' % i for i in range(N)) + b'"99999":1}',
    "long keys": b'{"' + b"x" * 1_000_000 + b'": 1, "' + b"x" * 1_000_000 + b'": 1}',
    "a long token": b'{"' + b"[" * 70_000 + b'": 263}',
    "one line": b"x" * 1_000_000,
    "one line of a prompt": b'{"prompt": "' + b"x " * 500_000 + b'"}',
    "many lines": b"a b\n" * N,
    "nothing": b"",
    "zeros": bytes(1_000_000),
    "no UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "with a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "carriage returns": b"a b\r" * 1000,
    "lone surrogates": b'{"\\ud800": 1, "prompt": "\\ud800", "weight_map": {"\\ud800": "\\udfff"}}',
}


@pytest.mark.slow
@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("name", marked(fuzz.TARGETS))
def test_large_and_odd_files(judge, name, large):
    data = LARGE[large]
    judge(name, data)
    if name == "safetensors":
        judge(name, struct.pack("<Q", len(data)) + data)


# ---- strategies of hypothesis

BIG_INTS = [0, 1, 2, 3, -1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400, 10**4200]
NAMES = [*make_tensors(fuzz_targets.SMALL), "transformer.wte.weight", "lm_head.weight", "h.0.attn.bias"]
HOSTILE = [
    "..", ".", "", "/", "../secret.safetensors", "sub/../../secret.safetensors", "/etc/passwd", "link.safetensors",
    "sub", "a.safetensors", "b.safetensors", "c.safetensors", "config.json", "model.safetensors.index.json", "C:\\x",
    "a\\b", "~/x", "\0", "a\n", "\ud800", "x" * 300, "x" * 9000,
]  # fmt: skip


class Strategies:
    """Built when a test asks for them: hypothesis is not there in a plain installation."""

    def __init__(self, seeds):
        """seeds: valid files."""
        self.seeds = seeds
        from hypothesis import strategies as st

        self.st = st
        self.text = st.text(st.characters(), max_size=20)  # with surrogates
        self.number = st.sampled_from(BIG_INTS) | st.integers() | st.floats()
        scalars = st.none() | st.booleans() | self.number | self.text | st.sampled_from(HOSTILE)

        def boxes(inner):
            return st.lists(inner, max_size=4) | st.dictionaries(self.text, inner, max_size=4)

        self.any = st.recursive(scalars, boxes, max_leaves=12)

    def json(self, value):
        """Values -> bytes: ASCII or not, with or without a byte order mark."""

        def dump(value, ascii_only, mark):
            return mark + json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")

        return self.st.builds(dump, value, self.st.booleans(), self.st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf"]))

    def object_with_keys_twice(self, keys):
        st = self.st
        pairs = st.lists(st.tuples(st.sampled_from(keys) | self.text, self.any), max_size=8)
        return pairs.map(lambda p: ("{" + ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in p) + "}").encode())

    def changed(self, base, keys=()):
        """A dict with some of its values, at any depth, replaced by anything; keys may be added."""
        st = self.st

        def change(changes, additions):
            copy = {**json.loads(json.dumps(base)), **additions}
            for path, value in changes:
                box, steps = copy, iter(path)
                for step in steps:
                    inside = list(box) if isinstance(box, dict) else list(range(len(box)))
                    if not inside:
                        break
                    key = inside[step % len(inside)]
                    if step % 3 and isinstance(box[key], (dict, list)):
                        box = box[key]
                    else:
                        box[key] = value
                        break
            return copy

        path = st.lists(st.integers(0, 1000), min_size=1, max_size=4)
        changes = st.lists(st.tuples(path, self.any), max_size=3)
        additions = st.dictionaries(st.sampled_from([*keys, "a"]), self.any, max_size=3)
        return st.builds(change, changes, additions)

    def safetensors(self):
        st = self.st
        sizes = st.lists(st.integers(0, 4) | st.sampled_from(BIG_INTS), max_size=4)
        dtypes = st.sampled_from([*SAFETENSORS_DTYPES, "F8", "", 1, None])
        entry = st.fixed_dictionaries(
            {"dtype": dtypes, "shape": sizes | self.any, "data_offsets": st.lists(self.number, max_size=3) | self.any}
        )
        odd = st.dictionaries(st.sampled_from(NAMES) | self.text, entry | self.any, max_size=5)
        small = st.lists(st.integers(0, 4), max_size=3)
        shapes = st.dictionaries(st.sampled_from(NAMES) | self.text, small, max_size=20)
        right = st.sampled_from([{name: list(a.shape) for name, a in make_tensors(fuzz_targets.SMALL).items()}])

        def consistent(shapes, dtypes):
            header, end = {}, 0
            for (name, shape), dtype in zip(shapes.items(), itertools.cycle(dtypes)):
                begin, end = end, end + int(np.prod(shape)) * np.dtype(SAFETENSORS_DTYPES[dtype]).itemsize
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
            return header

        known = [*SAFETENSORS_DTYPES, *["F32", "F16", "F64", "BF16"] * 3]
        some = st.lists(st.sampled_from(known), min_size=1, max_size=4)
        header = odd | st.builds(consistent, shapes | right, some)

        def whole(header, seed, off):
            text = json.dumps(header).encode()
            offsets = [entry.get("data_offsets") for entry in header.values() if isinstance(entry, dict)]
            ends = [o[-1] for o in offsets if isinstance(o, list) and o and type(o[-1]) is int and 0 <= o[-1] < 10_000]
            body = random.Random(seed).randbytes(max(ends, default=0)) if seed else bytes(max(ends, default=0))
            return struct.pack("<Q", (len(text) + off) % 2**64) + text + body

        off = st.sampled_from([0] * 8 + [1, -1, 2**40, 2**63])
        return st.builds(whole, header, st.integers(0, 5), off)

    def index(self):
        st = self.st
        files = st.sampled_from(HOSTILE) | self.text | self.any
        odd = st.dictionaries(st.sampled_from(NAMES), files, max_size=20)
        valid = json.loads(self.seeds[0])
        changes = st.dictionaries(st.sampled_from(list(valid["weight_map"])), files, max_size=2)
        near = changes.map(lambda changes: {**valid["weight_map"], **changes})
        index = st.fixed_dictionaries({"weight_map": odd | near | self.any}, optional={"metadata": self.any})
        return self.json(index) | self.object_with_keys_twice(["weight_map", "metadata"])

    def npz(self):
        st = self.st

        def npy(array):
            with io.BytesIO() as file:
                np.save(file, array, allow_pickle=True)
                return file.getvalue()

        arrays = [np.ones(2, np.float32), np.asfortranarray(np.ones((3, 2), np.float16)), np.array(1.0)]
        arrays += [np.array([print, {}], object), np.ones(2, np.int64), np.ones(2, complex), np.array(["a"])]
        arrays += [
            np.zeros(2, [("a", "<f4")]),
            np.array([1e300]),
            np.ones(2, ">f4"),
            np.ones(2, np.longdouble),
            np.zeros((0, 3)),
        ]
        arrays += list(make_tensors(fuzz_targets.SMALL).values())

        bomb = b"bomb"  # stands for what it unpacks to, which hypothesis should not carry around

        def raw(version, descr, order, shape, rest):
            header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}".encode("utf-8", "replace")
            length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
            return b"\x93NUMPY" + bytes(version) + length + header + rest

        descr = st.sampled_from(["'<f4'", "'O'", "'<f4", "1", "[('a', '<f4')]", "('<f4', (2,))", "'V0'", "'f4,f4'"])
        shape = st.sampled_from(["()", "(2,)", "(-1,)", "(2**3,)", "(True,)", f"({10**30},)", f"({2**62}, 4)", "[2]"])
        shape |= st.sampled_from(["(0, 9)", "(" * 300, "-" * 9000 + "1", "(2L,)", "'", "(" + "1," * 5000 + ")"])
        version = st.sampled_from([(1, 0), (2, 0), (3, 0), (0, 0), (9, 9)])
        raws = st.builds(raw, version, descr, st.sampled_from(["False", "1"]), shape, st.binary(max_size=40))
        content = st.sampled_from(list(map(npy, arrays))) | raws | st.binary(max_size=40) | st.just(bomb)
        files = st.sampled_from(["config.json", "vocab.json", "merges.txt"])
        texts = st.tuples(files, self.json(self.any) | st.binary() | st.just(bomb))
        names = st.sampled_from([f"{name}.npy" for name in NAMES] + [" ", "../x", "/x", "x/", "\u2028"])
        members = st.lists(st.tuples(names, content) | texts, max_size=6)

        def archive(members, whole, kind, cut):
            made = io.BytesIO()
            with warnings.catch_warnings(), zipfile.ZipFile(made, "w", kind, compresslevel=1) as archive:
                warnings.simplefilter("ignore")  # names that are there twice
                whole = {**make_tensors(fuzz_targets.SMALL)} if whole else {}
                known = [("config.json", json.dumps(fuzz_targets.SMALL))] if whole else []
                for name, content in [*known, *((f"{n}.npy", npy(a)) for n, a in whole.items()), *members]:
                    archive.writestr(name, bytes(3_000_000) if content == bomb else content)
            return made.getvalue()[:cut]

        kinds = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
        return st.builds(archive, members, st.booleans(), kinds, st.none() | st.none() | st.integers(0, 3000))

    def torch(self):
        st = self.st
        numbers = st.sampled_from([0, 1, 2, 3, *BIG_INTS[:-1]])
        leaves = st.none() | st.booleans() | numbers | st.sampled_from(["0", "1", "storage", "cpu", "é", "x" * 300])
        names = [
            "torch.FloatStorage", "torch.HalfStorage", "torch.UntypedStorage", "torch.float8_e5m2", "os.system",
            "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter",
            "collections.OrderedDict", "builtins.eval", "torch.storage._load_from_bytes",
        ]  # fmt: skip
        sizes = st.lists(numbers, max_size=3).map(tuple)
        kinds, keys = st.sampled_from(["Float", "Half", "Byte", "Odd"]), st.sampled_from(["0", "1", "7"])
        tensors = st.builds(torch_files.tensor, kinds, keys, numbers, numbers, sizes, sizes)
        steps = st.binary(max_size=6).map(torch_files.Raw)

        def called(function, arguments):
            return torch_files.Raw(torch_files.steps_of(function) + torch_files.steps_of(arguments) + b"R")

        def larger(inner):
            lists = st.lists(inner, max_size=7)
            keys = st.sampled_from(["model", "model_args", *NAMES]) | st.integers(0, 3)
            return lists | lists.map(tuple) | st.builds(called, inner, inner) | st.dictionaries(keys, inner, max_size=5)

        single = leaves | st.sampled_from(names).map(torch_files.named) | tensors | steps
        values = st.recursive(single, larger, max_leaves=12).map(torch_files.steps_of)
        odd = values.map(lambda steps: torch_files.zip_of(steps, {"0": bytes(12), "1": bytes(6)}))
        whole = st.sampled_from(self.seeds)
        return odd | whole | st.builds(lambda data, n: data[:n], whole, st.integers(0, 5000))

    def config(self):
        keys = [*fuzz_targets.SMALL, "n_ctx", "add_cross_attention", "eos_token_id"]
        changed = self.changed(json.loads(self.seeds[0]), keys)
        return self.json(changed) | self.json(self.any) | self.object_with_keys_twice(keys)

    def vocab(self):
        st = self.st
        tokens = st.sampled_from([*make_vocab()]) | self.text
        ids = st.integers(-2, 300) | self.any
        changes = st.dictionaries(tokens, ids, max_size=4)
        left_out = st.lists(st.sampled_from([*make_vocab()]), max_size=1)

        def change(changes, left_out):
            return {token: i for token, i in {**make_vocab(), **changes}.items() if token not in left_out}

        return self.json(st.builds(change, changes, left_out))

    def merges(self):
        st = self.st
        odd = st.lists(st.sampled_from([*make_vocab()]) | self.text, max_size=3).map(" ".join)
        lines = st.lists(st.sampled_from([" ".join(merge) for merge in MERGES]) | odd, max_size=8)
        lines |= st.just(merges_txt().split("\n"))
        ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])
        return st.builds(lambda lines, end: end.join(lines).encode("utf-8", "surrogatepass"), lines, ends)

    def tokenizer_json(self):
        return self.json(self.changed(fuzz_targets.TOKENIZER, ["normalizer", "pre_tokenizer", "added_tokens", "model"]))

    def tokenizer_config(self):
        keys = ["added_tokens_decoder", "add_prefix_space", "pad_token"]
        return self.json(self.changed(fuzz_targets.TOKENIZER_CONFIG, keys))

    def added_tokens(self):
        st = self.st
        tokens = st.sampled_from(["<s>", "he", "Ġ", " ", ""]) | self.text
        return self.json(st.dictionaries(tokens, st.integers(0, 300) | self.any, max_size=4))

    def special_tokens_map(self):
        base = {"bos_token": "a", "eos_token": fuzz_targets.FLAGS}
        return self.json(self.changed(base, ["pad_token", "<|endoftext|>"]))

    def gguf(self):
        st = self.st
        place = st.integers(0, 400) | st.integers(0, 9000)
        places = st.lists(st.tuples(place, st.sampled_from(BIG_INTS[:11])), max_size=3)

        def change(seed, places, width, cut):
            data = bytearray(seed)
            for place, number in places:
                data[place : place + width] = (number % 256**width).to_bytes(width, "little")
            return bytes(data[:cut])

        cut = st.none() | st.integers(0, 9000)
        return st.builds(change, st.sampled_from(self.seeds), places, st.sampled_from([1, 4, 8]), cut)

    def prompts(self):
        st = self.st
        record = st.fixed_dictionaries({"prompt": self.text | self.any}, optional={"id": self.any, "text": self.any})
        good = st.fixed_dictionaries({"prompt": self.text}, optional={"id": self.any})
        deep = b'{"prompt": "a", "id": ' + b"[" * 900 + b"]" * 900 + b"}"
        line = self.json(record) | self.text.map(lambda text: text.encode("utf-8", "surrogatepass"))
        line |= st.binary(max_size=9) | st.sampled_from([b"\0", b"\r", b"", b"x" * 1_000_000, deep])
        lines = st.lists(line, max_size=8) | st.lists(self.json(good), max_size=8)
        ends = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n"])
        return st.builds(lambda lines, end: end.join(lines), lines, ends)

    def results(self):
        """Cut at any byte, with lines in another order, twice, or replaced by other JSON."""
        st = self.st
        lines = self.seeds[0].splitlines(keepends=True)
        key = st.fixed_dictionaries({"key": self.any}, optional={"check": self.any, "ids": self.any})
        odd = self.json(self.any | key).map(lambda text: text + b"\n") | st.binary(max_size=9)
        lines = st.lists(st.sampled_from(lines) | odd, max_size=6) | st.permutations(lines)
        return st.builds(lambda lines, cut: b"".join(lines)[:cut], lines, st.none() | st.integers(0, 900))

    part = results


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_files_of_the_right_form_with_odd_things_in_them(prepared, judge, name):
    import hypothesis

    target, folder = prepared(name)
    seen = set()

    @hypothesis.settings(max_examples=300, derandomize=True, deadline=None, database=None)
    @hypothesis.given(getattr(Strategies(target.seeds), name)())
    def check(data):
        seen.add(judge(name, data))

    check()
    assert seen == {"loaded", "refused"}  # both ends were reached


@pytest.mark.slow
def test_ten_thousand_inputs(tmp_path):
    shares = {name: share for name, (_, share) in fuzz.TARGETS.items() if name != "gguf" or fuzz.HAS_GGUF}
    for name, share in shares.items():
        count = fuzz.plain(name, -(-10_000 * share // sum(shares.values())), 1, tmp_path / "faults")
        assert not count["faults"], (name, count["faults"])
        assert count["loaded"] > 3 and count["refused"] > 3, (name, count)  # both ends were reached


# ---- out of the folder, over links


def link(path, to):
    try:
        path.symlink_to(to)
    except OSError:
        pytest.skip("this system makes no symbolic links")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.json", "merges.txt"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path, name):
    folder = write_folder(tmp_path / "m")
    (folder / name).rename(tmp_path / name)
    link(folder / name, tmp_path / name)
    with pytest.raises(ValueError, match=f"{name}.*link"):
        utils.load_model(folder)


def test_a_link_in_an_index_is_not_followed_out_of_the_folder(prepared, judge):
    target, folder = prepared("index")
    assert judge("index", target.seeds[0]) == "loaded"
    assert judge("index", target.seeds[1]) == "refused"  # the same, with a link to what would fit in


def test_links_within_a_folder_to_a_folder_and_of_hugging_face_s_cache_are_followed(tmp_path):
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").rename(folder / "other.json")
    link(folder / "config.json", "other.json")
    link(tmp_path / "n", folder)
    utils.load_model(tmp_path / "n")
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    (folder / "model.safetensors").rename(blobs / "1234")
    link(folder / "model.safetensors", blobs / "1234")
    utils.load_model(folder)


# ---- what the fuzzer led to, and does not see itself


def test_the_table_of_an_npz_is_read_once_and_not_for_each_tensor(tmp_path, monkeypatch):
    """Else a file with some thousand tensors, all of them small, would take minutes."""
    folder = write_folder(tmp_path / "m")
    utils.convert(str(folder), str(tmp_path / "m.npz"))
    opened, init = [], zipfile.ZipFile.__init__

    def count(archive, *args, **kwargs):
        opened.append(args)
        init(archive, *args, **kwargs)

    monkeypatch.setattr(zipfile.ZipFile, "__init__", count)
    utils.load_model(tmp_path / "m.npz")
    assert len(opened) == 1


@pytest.mark.parametrize("value", [260.0, True, [260, None], "a", [[260]], {"260": 260}])
def test_an_end_of_text_that_is_no_whole_number_is_refused(tmp_path, value):
    """260.0 and true equal an id, but no list can be indexed with them."""
    folder = write_folder(tmp_path / "m", {**CONFIG, "eos_token_id": value})
    with pytest.raises(utils.UserError, match="config.json: eos_token_id .* is no id of a token, nor a list of ids"):
        utils.load_model(folder)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_packed_as_numpy_does_not_is_refused(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "m.npz", "w", kind) as archive:
        archive.writestr("config.json", json.dumps(CONFIG))
    with pytest.raises(ValueError, match="m.npz: tensor 'config.json': packed in another way"):
        utils.load_model(tmp_path / "m.npz")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", bytes(30_000_000))
    with pytest.raises(ValueError, match="m.npz: .*would unpack to 30.0 MB"):
        utils.load_model(tmp_path / "m.npz")
