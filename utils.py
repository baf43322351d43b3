"""Everything around the model: weight files, tokenizers and the command line.

A model is a folder in Hugging Face's layout: `config.json`, `model.safetensors`, `vocab.json` and `merges.txt`.
`load_model` turns it into what the `gpt2_v*.py` files work with: an encoder, hparams and params.
"""
import inspect
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Callable, NamedTuple

import fire
import numpy as np
import tiktoken

EOT = "<|endoftext|>"


# ---------------------------------------------------------------- tensors in files


class StoredTensor(NamedTuple):
    """A tensor that still lies in its file: known without being read."""

    dtype: str  # the file's own word for it: "F32", "F16", "BF16", "Q4_K", ...
    shape: tuple
    nbytes: int  # in the file
    float32: Callable  # () -> float32 array of that shape; reads the file


# safetensors' names of types, and what NumPy calls them. NumPy has no bfloat16: its two bytes are read as an integer.
SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip
MAX_HEADER = 100_000_000  # bytes; the limit that the safetensors library sets too


def read_safetensors_header(path):
    """Read and check the description at the front of a safetensors file.

    The file is: 8 bytes, the length N of the header as a little-endian integer; N bytes of JSON,
    `{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}`; then the data, to which the
    offsets refer. Tensors must cover the data exactly, without gaps or overlaps, so no byte goes unexplained.

    Returns (header without `__metadata__`, position in the file where the data starts).
    Raises ValueError, naming file and tensor, for anything else. Nothing is read or allocated on the word of the
    header alone.
    """
    file_size = os.path.getsize(path)
    if file_size < 8:
        raise ValueError(f"{path}: not a safetensors file: {file_size} bytes, shorter than the 8 that give the header's length")
    with open(path, "rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if header_size > min(MAX_HEADER, file_size - 8):
            raise ValueError(
                f"{path}: not a whole safetensors file: a header of {header_size} bytes is announced, "
                f"the file has {file_size} and the limit is {MAX_HEADER}"
            )
        header = parse_json(file.read(header_size), f"{path}: header")
    header.pop("__metadata__", None)

    data_start, data_size = 8 + header_size, file_size - 8 - header_size
    for name, entry in header.items():
        where = f"{path}: tensor {name!r}"
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
            raise ValueError(f"{where}: needs dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
            raise ValueError(f"{where}: unknown dtype {dtype!r} (known: {', '.join(SAFETENSORS_DTYPES)})")
        if not is_list_of_sizes(shape):
            raise ValueError(f"{where}: shape {shape!r} is not a list of sizes")
        if not is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise ValueError(f"{where}: data_offsets {offsets!r} are not [begin, end] with 0 <= begin <= end")
        if offsets[1] > data_size:
            raise ValueError(f"{where}: ends at byte {offsets[1]} of the data, past its end at {data_size} (cut file?)")
        n_bytes = math.prod(shape) * np.dtype(SAFETENSORS_DTYPES[dtype]).itemsize
        if n_bytes != offsets[1] - offsets[0]:
            raise ValueError(f"{where}: {dtype} of shape {shape} takes {n_bytes} bytes, its data_offsets {offsets} hold {offsets[1] - offsets[0]}")

    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin = entry["data_offsets"][0]
        if begin != end:
            what = "overlaps the tensor before it" if begin < end else "leaves a gap before it"
            raise ValueError(f"{path}: tensor {name!r}: {what}: begins at byte {begin}, the last one ended at {end}")
        end = entry["data_offsets"][1]
    if end != data_size:
        raise ValueError(f"{path}: {data_size - end} bytes after the last tensor belong to none")
    return header, data_start


def read_safetensors(path):
    """Map a safetensors file into memory -> {name: StoredTensor}.

    F32 tensors are read-only views of the file: the operating system reads a page when it is first used. The other
    float types are converted to float32 when asked for. Raises ValueError as `read_safetensors_header` does.
    """
    header, data_start = read_safetensors_header(path)
    # np.asarray: a plain array on the same memory, without memmap's bookkeeping in every later operation.
    data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))[data_start:]

    def stored(name, dtype, shape, begin, end):
        def float32():
            raw = data[begin:end].view(SAFETENSORS_DTYPES[dtype]).reshape(shape)
            if dtype == "BF16":  # the upper half of a float32: put zeros below it
                return (raw.astype(np.uint32) << 16).view(np.float32)
            if dtype not in ("F64", "F32", "F16"):
                raise ValueError(f"{path}: tensor {name!r}: weights of type {dtype}; F32, F16, BF16 and F64 are supported")
            # Old files do not align their data. BLAS would then copy a weight in each product: copy it once, here.
            return np.require(raw, dtype=np.float32, requirements="A")

        return StoredTensor(dtype, tuple(shape), end - begin, float32)

    return {name: stored(name, e["dtype"], e["shape"], *e["data_offsets"]) for name, e in header.items()}


def write_safetensors(path, tensors, metadata=None):
    """Write `{name: float32 or float16 array}` as a safetensors file, whole or not at all.

    metadata: {str: str}, stored under `__metadata__`. Raises ValueError for another dtype.
    """
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in tensors.items():
        dtype = {"float32": "F32", "float16": "F16"}.get(array.dtype.name)
        if dtype is None:
            raise ValueError(f"{path}: tensor {name!r}: {array.dtype} is not written, only float32 and float16")
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)  # spaces, so that the data starts aligned for every dtype
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)


class replacing:
    """`with replacing(path) as file`: write bytes to `path.part`, which becomes `path` only if all went well."""

    def __init__(self, path):
        self.path, self.part = Path(path), Path(f"{path}.part")

    def __enter__(self):
        self.file = open(self.part, "wb")
        return self.file

    def __exit__(self, kind, error, trace):
        self.file.close()
        if kind is None:
            os.replace(self.part, self.path)
        else:
            self.part.unlink()


def is_list_of_sizes(value):
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def parse_json(text, where):
    """A JSON object -> dict. Raises ValueError, beginning with `where`, for anything else and for a key given twice."""

    def unique(pairs):
        if len(pairs) != len(dict(pairs)):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            raise ValueError(f"{twice!r} is given twice")
        return dict(pairs)

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a JSON object is expected, found {type(value).__name__}")
    return value


# ---------------------------------------------------------------- from a checkpoint to params


class Checkpoint(NamedTuple):
    """A model as it was found, whatever the format: the tensors and the text files of a Hugging Face folder."""

    path: Path
    tensors: dict  # name -> StoredTensor
    files: dict  # "config.json" -> its text, and so on for those of TEXT_FILES that exist


TEXT_FILES = ("config.json", "vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "added_tokens.json")


def open_checkpoint(path):
    """A model folder -> Checkpoint, with nothing but headers and small text files read."""
    path = Path(path)
    weights = path / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"{path}: no model.safetensors in this folder")
    return Checkpoint(path, read_safetensors(weights), read_text_files(path))


def read_text_files(folder):
    files = {}
    for name in TEXT_FILES:
        if (folder / name).is_file():
            try:
                files[name] = (folder / name).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{folder / name}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    return files


# All of them are 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), which is what `gelu` computes.
GELU_NAMES = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")


def read_config(checkpoint):
    """Check a checkpoint's config.json -> dict.

    Keys: those of hparams, and n_inner, layer_norm_epsilon, scale_attn_weights, scale_attn_by_inverse_layer_idx.
    Raises ValueError for what is missing, not a size, or a feature that the series does not have, by name.
    """
    where = f"{checkpoint.path}: config.json"
    if "config.json" not in checkpoint.files:
        raise ValueError(f"{where} is missing; it says how many heads the model has, which the weights do not")
    config = parse_json(checkpoint.files["config.json"], where)
    config = {key: value for key, value in config.items() if value is not None}  # null is "as usual"

    def refuse(key, instead):
        raise ValueError(f"{where}: {key} is {config[key]!r}, which is not supported; {instead}")

    if config.get("model_type", "gpt2") != "gpt2":
        refuse("model_type", "only 'gpt2' is")
    if config.get("activation_function", "gelu_new") not in GELU_NAMES:
        refuse("activation_function", f"these are: {', '.join(GELU_NAMES)}")
    if config.get("add_cross_attention", False):
        refuse("add_cross_attention", "only decoders by themselves are")

    sizes = {"n_vocab": "vocab_size", "n_ctx": "n_positions", "n_embd": "n_embd", "n_head": "n_head", "n_layer": "n_layer"}
    if "n_positions" not in config and "n_ctx" in config:
        sizes["n_ctx"] = "n_ctx"
    missing = [key for key in sizes.values() if key not in config]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")
    config.setdefault("n_inner", 4 * config["n_embd"])
    for key in (*sizes.values(), "n_inner"):
        if type(config[key]) is not int or config[key] < 1:
            refuse(key, "a whole number above 0 is expected")
    if config["n_embd"] % config["n_head"]:
        refuse("n_head", f"n_embd {config['n_embd']} is not a multiple of it")

    features = {"layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
    for key, default in features.items():
        features[key] = config.get(key, default)
        if type(features[key]) is not type(default):
            refuse(key, f"a {type(default).__name__} is expected")
    if not 0 < features["layer_norm_epsilon"] < 1:
        refuse("layer_norm_epsilon", "a small number above 0 is expected")
    return {**{key: config[name] for key, name in sizes.items()}, "n_inner": config["n_inner"], **features}


def expected_shapes(config):
    """The names of a GPT-2's tensors, as in OpenAI's and Hugging Face's checkpoints, with the shapes a config gives them."""
    n_embd, n_inner = config["n_embd"], config["n_inner"]
    shapes = {"wte.weight": (config["n_vocab"], n_embd), "wpe.weight": (config["n_ctx"], n_embd)}
    for i in range(config["n_layer"]):
        for ln in ("ln_1", "ln_2"):
            shapes[f"h.{i}.{ln}.weight"] = shapes[f"h.{i}.{ln}.bias"] = (n_embd,)
        linears = {"attn.c_attn": (n_embd, 3 * n_embd), "attn.c_proj": (n_embd, n_embd), "mlp.c_fc": (n_embd, n_inner), "mlp.c_proj": (n_inner, n_embd)}
        for name, (n_in, n_out) in linears.items():
            shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = (n_in, n_out), (n_out,)
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (n_embd,)
    return shapes


def check_tensors(checkpoint, config):
    """The tensors that a GPT-2 of this config has -> {name: StoredTensor}, in order.

    A prefix `transformer.` is taken off; the buffers `attn.bias` and `attn.masked_bias` (the causal mask, in old
    files) are left out; an `lm_head.weight` is left out if it is `wte`, which GPT-2 uses in its place.
    Raises ValueError for missing, unexpected and wrongly shaped tensors, by name, before any weight is used.
    """
    where, found = checkpoint.path, {}
    for full_name, tensor in checkpoint.tensors.items():
        name = full_name[len("transformer.") :] if full_name.startswith("transformer.") else full_name
        if name in found:
            raise ValueError(f"{where}: {name} is there twice, with and without the prefix 'transformer.'")
        if not re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name):
            found[name] = tensor
    lm_head = found.pop("lm_head.weight", None)

    if config["n_layer"] > len(found):  # before a list of expected names is made from a number that may be absurd
        raise ValueError(f"{where}: config.json gives {config['n_layer']} layers, the weights are {len(found)} tensors in all")
    shapes = expected_shapes(config)
    missing, unexpected = [n for n in shapes if n not in found], [n for n in found if n not in shapes]
    if missing or unexpected:
        parts = [f"{kind} tensors: {listed(names)}" for kind, names in (("missing", missing), ("unexpected", unexpected)) if names]
        raise ValueError(f"{where}: not the tensors of a GPT-2 with {config['n_layer']} layers; {'; '.join(parts)}")
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise ValueError(f"{where}: {name} has shape {list(found[name].shape)}, the config asks for {list(shape)}")
    if lm_head is not None and not is_tied(lm_head, found["wte.weight"]):
        raise ValueError(f"{where}: lm_head.weight differs from wte.weight; only models whose output layer is wte (tie_word_embeddings) are supported")
    return {name: found[name] for name in shapes}


def is_tied(lm_head, wte):
    if lm_head.shape != wte.shape:
        return False
    a, b = lm_head.float32(), wte.float32()
    return all(np.array_equal(a[i : i + 1024], b[i : i + 1024]) for i in range(0, len(a), 1024))


def listed(names, limit=10):
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def load_params(checkpoint, n_tokens=None):
    """Checkpoint -> hparams, params.

    hparams: {"n_vocab", "n_ctx", "n_embd", "n_head", "n_layer"}, ints.
    params: float32 arrays in nested dicts, linear weights [in, out]:
    {"wte": [n_vocab, n_embd], "wpe": [n_ctx, n_embd], "blocks": [{"ln_1": {"g", "b"}, "attn": {"c_attn": {"w", "b"},
    "c_proj": {"w", "b"}}, "ln_2": ..., "mlp": {"c_fc": {"w", "b"}, "c_proj": {"w", "b"}}}], "ln_f": {"g", "b"}}.
    n_tokens: tokens that the tokenizer has. Rows of wte beyond them are cut off, so that they are never generated.
    Raises ValueError as `read_config` and `check_tensors` do.
    """
    config = read_config(checkpoint)
    tensors = check_tensors(checkpoint, config)
    if n_tokens is not None:
        config["n_vocab"] = min(config["n_vocab"], n_tokens)

    def linear(name):
        return {"w": tensors[f"{name}.weight"].float32(), "b": tensors[f"{name}.bias"].float32()}

    def layer_norm(name):
        ln = {"g": tensors[f"{name}.weight"].float32(), "b": tensors[f"{name}.bias"].float32()}
        eps = config["layer_norm_epsilon"]
        return ln if eps == 1e-5 else {**ln, "eps": eps}  # 1e-5 is the default of the versions' layer_norm

    def c_attn(i):
        """Other scalings of the attention scores go into the queries: (s * q) @ k = s * (q @ k)."""
        scale = 1.0 if config["scale_attn_weights"] else math.sqrt(config["n_embd"] // config["n_head"])
        if config["scale_attn_by_inverse_layer_idx"]:
            scale /= i + 1
        p = linear(f"h.{i}.attn.c_attn")
        if scale != 1.0:
            column_scale = np.ones(3 * config["n_embd"], dtype=np.float32)
            column_scale[: config["n_embd"]] = scale  # the first third makes the queries
            p = {"w": p["w"] * column_scale, "b": p["b"] * column_scale}
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
        "wte": tensors["wte.weight"].float32()[: config["n_vocab"]],
        "wpe": tensors["wpe.weight"].float32(),
        "blocks": blocks,
        "ln_f": layer_norm("ln_f"),
    }
    return {key: config[key] for key in ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer")}, params


# ---------------------------------------------------------------- tokenizer

# How GPT-2 splits text into words before any merge; this spelling (tiktoken's) is the original pattern, only faster.
SPLIT_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def byte_alphabet():
    """The printable character that stands for each byte in GPT-2's vocabulary files -> {character: byte}.

    Printable bytes stand for themselves; the others, in order, for the characters from 256 on: the space is "Ġ".
    """
    plain = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(others)}}


class Encoder(tiktoken.Encoding):
    """A tiktoken Encoding that takes `<|endoftext|>` and added tokens in a text for what they are."""

    def __init__(self, name, merges, specials, added, eot):
        """merges: {bytes: id}, in merge order; specials: {text: id}, all other tokens; added: those found in text."""
        super().__init__(name, pat_str=SPLIT_PATTERN, mergeable_ranks=merges, special_tokens=specials)
        self.added, self.eot = added, eot

    def encode(self, text):
        """text -> list of ids. Added tokens in the text, `<|endoftext|>` first of all, are one id each."""
        return super().encode(text, allowed_special=self.added, disallowed_special=())

    def decode(self, ids):
        """Ids -> text; bytes that are not UTF-8 become U+FFFD. Raises ValueError for an id that is no token."""
        try:
            return super().decode([int(i) for i in ids])
        except (KeyError, OverflowError):
            raise ValueError(f"ids outside of the vocabulary of {self.n_vocab} tokens: {list(ids)}") from None

    @property
    def eot_token(self):
        """The id of `<|endoftext|>`, from which an empty prompt starts."""
        return self.eot


def load_encoder(checkpoint):
    """The tokenizer of a checkpoint -> Encoder. Raises ValueError for one that is missing or not GPT-2's kind."""
    where, files = checkpoint.path, checkpoint.files
    if not {"vocab.json", "merges.txt"} <= set(files):
        raise ValueError(f"{where}: no tokenizer: vocab.json and merges.txt are needed")
    vocab = parse_json(files["vocab.json"], f"{where}: vocab.json")
    lines = files["merges.txt"].split("\n")
    merges = [line.split(" ") for line in lines[lines[0].startswith("#version") :] if line]
    return build_encoder(vocab, merges, {EOT} & set(vocab), where)


def build_encoder(vocab, merges, added, where):
    alphabet = byte_alphabet()
    ids = {token: vocab[token] for token in alphabet if token in vocab}
    if len(ids) != 256:
        raise ValueError(f"{where}: the vocabulary has {len(ids)} of the 256 bytes; it is not GPT-2's kind (byte-level BPE)")
    last = -1
    for n, merge in enumerate(merges):
        if len(merge) != 2 or not {*merge, "".join(merge)} <= set(vocab):
            raise ValueError(f"{where}: merge {n} ({' '.join(merge)!r}) is not two tokens that make a third of the vocabulary")
        # tiktoken merges in the order of ids, so that order must be the order of the merges.
        if vocab["".join(merge)] <= last:
            raise ValueError(f"{where}: merge {n} ({' '.join(merge)!r}) makes id {vocab[''.join(merge)]}, after {last}: ids must follow the merges")
        last = ids["".join(merge)] = vocab["".join(merge)]
    mergeable = {bytes(alphabet[c] for c in token): i for token, i in ids.items()}
    specials = {token: i for token, i in vocab.items() if token not in ids}
    return Encoder("gpt2", mergeable, specials, set(added), specials.get(EOT))


# ---------------------------------------------------------------- models by name


def find_model(model, models_dir="models"):
    """A folder, or the name of one in models_dir -> its path. Raises ValueError where there is none."""
    models_dir = Path(models_dir)
    # A relative models_dir is also looked for beside this file, so that commands work from any directory.
    for folder in (Path(model), models_dir / model, Path(__file__).parent / models_dir / model):
        if (folder / "config.json").is_file():
            return folder
    raise ValueError(f"no model {model!r}: no such folder, and none in {models_dir}; the bundled model is 'tales'")


def load_model(model="tales", models_dir="models"):
    """Load a model -> (encoder, hparams, params).

    model: a folder, or the name of a folder in models_dir. encoder: see `Encoder`. hparams, params: see `load_params`.
    Raises ValueError or OSError with a message for the user.
    """
    checkpoint = open_checkpoint(find_model(model, models_dir))
    encoder = load_encoder(checkpoint)
    return encoder, *load_params(checkpoint, encoder.n_vocab)


# ---------------------------------------------------------------- the command line


def encode_prompts(encoder, prompts):
    """Prompts -> list of lists of ids, each as typed; an empty prompt is `[encoder.eot_token]`, the start of a text."""
    if any(prompt.endswith(" ") for prompt in prompts):
        print("hint: a prompt ends in a space; GPT-2 goes on better without it (its words begin with their space)", file=sys.stderr)
    return [encoder.encode(prompt) or [encoder.eot_token] for prompt in prompts]


def print_texts(prompts, ids, texts, as_json=False):
    """Print results on stdout: one text alone, several each behind its prompt, or one JSON object a line.

    ids: new ids of each prompt; texts: the continuations. JSON: {"prompt", "ids", "text"}.
    """
    write_anything(sys.stdout)
    if as_json:
        for prompt, new_ids, text in zip(prompts, ids, texts):
            print(json.dumps({"prompt": prompt, "ids": [int(i) for i in new_ids], "text": text}))
    elif len(prompts) == 1:
        print(texts[0])
    else:
        print("\n\n".join(prompt + text for prompt, text in zip(prompts, texts)))


def write_anything(stream):
    """Let a stream that cannot show a character (a Windows console, LC_ALL=C) print its number instead of failing."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def run(main):
    """Run a function, or one of a dict of functions, as a command: the edge where mistakes become one line.

    Prompts and flags without a typed default arrive as typed; the default of a flag says whether its value is a whole
    number, a number or a switch. After `--` everything is a prompt, also what starts with a dash. ValueError and
    OSError end as one line on stderr and exit status 2; Ctrl-C ends quietly with 130; any other error is a bug and
    keeps its traceback.
    """
    write_anything(sys.stdout)
    write_anything(sys.stderr)
    try:
        call_with_fire(main, sys.argv[1:], Path(sys.argv[0]).name)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as in `... | head`; keep Python from trying again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # what a shell reports for SIGPIPE
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        message = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        print("error:", " ".join(message.split()), file=sys.stderr)
        sys.exit(2)


TYPED = "\0"  # before an argument that is no flag: keeps fire's hands off "-" and "--x"; no real argument contains it


def call_with_fire(main, argv, name):
    if isinstance(main, dict):
        if argv[:1] in (["--help"], ["-h"]):
            return fire.Fire(main, command=["--help"], name=name)
        if not argv or argv[0] not in main:
            raise ValueError(f"{argv[0]!r} is no command; " * bool(argv) + f"commands: {', '.join(main)}")
        return call_with_fire(main[argv[0]], argv[1:], f"{name} {argv[0]}")

    parameters = inspect.signature(main).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is not p.VAR_POSITIONAL}
    texts, flags, argv = [], {}, list(argv)
    while argv:
        argument = argv.pop(0)
        if argument == "--":
            texts += argv
            break
        if not re.match("--|-[a-zA-Z]", argument):
            texts.append(argument)
            continue
        key, equals, value = argument.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if key in ("help", "h"):
            return fire.Fire(main, command=["--help"], name=name)
        if key not in defaults and len(key) == 1 and len([n for n in defaults if n[0] == key]) == 1:
            key = next(n for n in defaults if n[0] == key)
        negated = key[2:] if key.startswith("no") else ""
        if key not in defaults and not equals and isinstance(defaults.get(negated), bool):
            key, equals, value = negated, "=", "False"
        if key not in defaults:
            known = ", ".join(f"--{n}" for n in defaults)
            raise ValueError(f"unknown flag {argument!r}; known: {known} (a text that starts with a dash goes after --)")
        if not equals and isinstance(defaults[key], bool):
            value = "True"
        elif not equals:
            if not argv or argv[0].startswith("--"):
                raise ValueError(f"--{key} needs a value")
            value = argv.pop(0)
        flags[key] = value
    try:
        inspect.signature(main).bind(*texts, **flags)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None

    fire.decorators.SetParseFn(parse_text)(main)
    for key, default in defaults.items():
        fire.decorators.SetParseFn(parser_for(key, default), key)(main)
    command = [f"--{key}={value}" for key, value in flags.items()] + [TYPED + text for text in texts]
    return fire.Fire(main, command=command, name=name)


def parse_text(text):
    """An argument as typed. Where Python took it for ASCII (LC_ALL=C), its bytes are read as UTF-8 after all."""
    return text.removeprefix(TYPED).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parser_for(key, default):
    """The function that turns the text of flag `key` into a value of its default's type."""

    def parse(text):
        text = parse_text(text)
        try:
            if isinstance(default, bool):
                return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
            value = type(default)(text)
            if value != value:
                raise ValueError
            return value
        except (KeyError, ValueError):
            kind = {bool: "True or False", int: "a whole number", float: "a number"}[type(default)]
            raise ValueError(f"--{key} takes {kind}, not {text!r}") from None

    return parse if isinstance(default, (bool, int, float)) else parse_text


if __name__ == "__main__":
    run({})
