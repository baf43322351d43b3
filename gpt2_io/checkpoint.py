"""Any format -> a checkpoint: its config and its tensors, checked by name and shape."""
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt2_io.errors import UserError, listed
from gpt2_io.files import TEXT_FILES, has_file, parse_json, read_text
from gpt2_io.gguf import read_gguf
from gpt2_io.layouts import arrange, what_it_is
from gpt2_io.npz import read_npz
from gpt2_io.pickles import read_torch
from gpt2_io.safetensors import read_safetensors, read_shards, read_weight_map


class Checkpoint(NamedTuple):
    """A model as it was found, whatever the format: the tensors and the text files of a Hugging Face folder."""

    path: Path
    tensors: dict  # name -> StoredTensor
    files: dict  # "config.json" -> its text, and so on for those of TEXT_FILES that there are
    weight_files: tuple = ()  # paths
    recognised: tuple = ()  # what was done so that names and shapes are Hugging Face's
    notes: tuple = ()  # what whoever uses the model should know


PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
WEIGHTS = (  # of a folder, the first that is there
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
INDEX = re.compile(r"(pytorch_)?model\.(safetensors|bin)\.index(\.\w+)?\.json")  # of shards; maybe of a variant, fp16
OPENAI_FILES = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}  # OpenAI's names of the same


def open_checkpoint(path, layout="", weights=True, tokenizer=""):
    """A model folder or weight file -> Checkpoint, with nothing but headers and small text files read.

    Text files are those in the folder; a .npz or .gguf file brings its own, else those beside it count.
    layout: "nanogpt" where linear weights are [out, in] and the file does not tell (see `arrange`).
    weights: False for the text files alone, as for a folder that has a tokenizer and no weights that are read.
    tokenizer: a folder whose tokenizer is taken in place of the model's own.
    Raises UserError for what is none of these: what it is, and what would work.
    """
    path = Path(path)
    if layout not in ("", "nanogpt"):
        raise UserError(f"--layout takes nanogpt, not {layout!r:.60}")
    if not weights:
        return Checkpoint(path, {}, with_tokenizer_of(tokenizer, read_text_files(path)))
    weight_file = path
    if path.is_dir():
        weight_file = next((path / name for name in WEIGHTS if has_file(path, name)), None)
        if weight_file is None:
            kinds = (".safetensors", ".npz", ".gguf", *PICKLES)
            others = sorted(p for p in path.iterdir() if INDEX.fullmatch(p.name) or p.suffix in kinds)
            others.sort(key=lambda p: p.suffix != ".json")  # an index before its shards
            hint = f"; to use {others[0].name}, give its path" if others else ""
            raise UserError(f"{path}: {what_it_is(path) or f'no model.safetensors in this folder{hint}'}")
    tensors, files, weight_files = read_weights(weight_file)
    if weight_file.suffix not in (".npz", ".gguf") or not files:
        files |= read_text_files(path)
    files = with_tokenizer_of(tokenizer, files)
    tensors, recognised, notes = arrange(tensors, files, layout, path)
    if has_file(path if path.is_dir() else path.parent, "adapter_config.json"):
        notes.append("there is an adapter beside the weights (adapter_config.json): it is not applied")
    return Checkpoint(path, tensors, files, tuple(weight_files), tuple(recognised), tuple(notes))


def read_weights(path):
    """A weight file, or an index of several -> {name: StoredTensor}, {file name: text} in it, paths of the files."""
    what = what_it_is(path) if path.suffix not in (".safetensors", ".npz", ".gguf", ".json") else None
    if what:
        raise UserError(f"{path}: {what}")
    if INDEX.fullmatch(path.name):
        read = read_safetensors if "safetensors" in path.name else lambda shard: read_torch(shard)[0]
        files = sorted(set(read_weight_map(path).values()))
        return read_shards(path, read), {}, [path.parent / file for file in files]
    if path.suffix == ".safetensors":
        return read_safetensors(path), {}, [path]
    for suffixes, read in (((".npz",), read_npz), ((".gguf",), read_gguf), (PICKLES, read_torch)):
        if path.suffix in suffixes:
            return *read(path), [path]
    raise UserError(f"{path}: not a model: a folder, a .safetensors, .npz, .gguf or .bin file is expected")


def read_text_files(path):
    """The text files of a model in a folder, or beside a file -> {name in Hugging Face's layout: text}."""
    folder = path if path.is_dir() else path.parent
    found = {name: read_text(folder / name) for name in TEXT_FILES if has_file(folder, name)}
    if "vocab.json" not in found and has_file(folder, "encoder.json"):  # as OpenAI and picoGPT name the same
        found |= {name: read_text(folder / old) for old, name in OPENAI_FILES.items() if has_file(folder, old)}
    if "config.json" not in found and has_file(folder, "hparams.json"):
        sizes = parse_json(read_text(folder / "hparams.json"), f"{folder}: hparams.json")
        renamed = {"n_vocab": "vocab_size", "n_ctx": "n_positions"}
        found["config.json"] = json.dumps({renamed.get(key, key): value for key, value in sizes.items()})
    return found


def with_tokenizer_of(folder, files):
    """A model's text files, with the tokenizer of a folder in place of its own; "" leaves them as they are."""
    if not folder:
        return files
    others = read_text_files(Path(folder))
    if "tokenizer.json" not in others and not {"vocab.json", "merges.txt"} <= set(others):
        raise UserError(f"--tokenizer {folder}: no tokenizer.json there, nor vocab.json and merges.txt")
    of_model = ("config.json", "generation_config.json")
    own = {name: text for name, text in files.items() if name in of_model}
    return {**{name: text for name, text in others.items() if name not in of_model}, **own}


# All of them are 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), which is what `gelu` computes.
GELU_NAMES = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")


def read_config(checkpoint):
    """Check a checkpoint's config.json -> dict.

    Keys: those of hparams, and n_inner, layer_norm_epsilon, scale_attn_weights, scale_attn_by_inverse_layer_idx,
    tie_word_embeddings. Raises UserError, by name, for what is missing, no size, or a feature
    that is not supported.
    """
    where = f"{checkpoint.path}: config.json"
    if "config.json" not in checkpoint.files:
        hint = "without it nobody knows how many heads the model has: put it beside the weights"
        raise UserError(f"{where} is missing; {hint}")
    config = parse_json(checkpoint.files["config.json"], where)
    config = {key: value for key, value in config.items() if value is not None}  # null means "as usual"

    def refuse(key, instead):
        raise UserError(f"{where}: {key} {config[key]!r:.60} is not supported: {instead}")

    if config.get("model_type", "gpt2") != "gpt2":
        refuse("model_type", "only gpt2 is")
    if config.get("activation_function", "gelu_new") not in GELU_NAMES:
        refuse(
            "activation_function",
            f"GPT-2's gelu_new is, with its synonyms ({', '.join(GELU_NAMES[1:])}): each gpt2_v*.py spells out that "
            "one in its own lines; use transformers for this model",
        )
    if config.get("add_cross_attention", False):
        refuse("add_cross_attention", "only a decoder by itself is")

    n_ctx = next((key for key in ("n_positions", "n_ctx", "block_size") if key in config), "n_positions")
    sizes = {"n_vocab": "vocab_size", "n_ctx": n_ctx, "n_embd": "n_embd", "n_head": "n_head", "n_layer": "n_layer"}
    missing = [key for key in sizes.values() if key not in config]
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} missing")
    for key in (*sizes.values(), "n_inner"):
        if type(config.get(key, 1)) is not int or not 0 < config.get(key, 1) < 2**31:
            refuse(key, "it must be a whole number above 0, and no larger than GPT-2 can be")
    if config["n_embd"] % config["n_head"]:
        refuse("n_head", f"n_embd {config['n_embd']} cannot be divided by it")

    features = {
        "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    }  # fmt: skip
    for key, default in features.items():
        features[key] = config.get(key, default)
        if type(features[key]) is not type(default):
            refuse(key, f"a {type(default).__name__} is expected")
    if not 0 < features["layer_norm_epsilon"] < 1:
        refuse("layer_norm_epsilon", "it must be a small number above 0")
    return {
        **{key: config[name] for key, name in sizes.items()},
        "n_inner": config.get("n_inner", 4 * config["n_embd"]),
        **features,
    }


def whole_config(files, config):
    """A model's text files, with what other programs look for in config.json and nanoGPT and OpenAI leave out.

    config: from `read_config`. A config.json that has it all keeps its bytes.
    """
    found = json.loads(files["config.json"])
    if {"model_type", "n_positions"} <= found.keys():
        return files
    return {**files, "config.json": json.dumps({"model_type": "gpt2", "n_positions": config["n_ctx"], **found})}


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

    An `lm_head.weight` that equals `wte.weight` is left out: GPT-2 uses the one matrix in both places. It may be there
    under either name. Raises UserError for missing, unexpected and wrongly shaped tensors, by name, before any weight
    is used.
    """
    where, found = checkpoint.path, dict(checkpoint.tensors)
    lm_head = found.pop("lm_head.weight", None)
    if not config["tie_word_embeddings"] and (lm_head is None or "wte.weight" not in found):
        lacking = "lm_head.weight" if lm_head is None else "wte.weight"
        raise UserError(f"{where}: config.json says tie_word_embeddings false, but there is no {lacking}")
    if "wte.weight" not in found and lm_head is not None:
        found["wte.weight"], lm_head = lm_head, None

    if config["n_layer"] > len(found):  # before names are made up from a number that may be absurd
        raise UserError(f"{where}: {len(found)} tensors in all, but config.json says n_layer {config['n_layer']}")
    shapes = expected_shapes(config)
    strange = {
        "missing": [name for name in shapes if name not in found],
        "unexpected": [name for name in found if name not in shapes],
    }
    if any(strange.values()):
        faults = "; ".join(f"{kind}: {listed(names)}" for kind, names in strange.items() if names)
        raise UserError(f"{where}: not the tensors of a GPT-2 with {config['n_layer']} layers; {faults}")
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise UserError(f"{where}: {name} has shape {list(found[name].shape)}, config.json asks for {list(shape)}")
    if lm_head is not None:
        found["wte.weight"] = tie(lm_head, found["wte.weight"], where)
    return {name: found[name] for name in shapes}


def tie(lm_head, wte, where):
    """One tensor for both ends of the model -> the StoredTensor to use as wte. Raises UserError if they differ."""
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
    raise UserError(
        f"{where}: lm_head.weight differs from wte.weight (tie_word_embeddings false), which is not supported: in the "
        "models that are, wte serves as both; use transformers for this one"
    )


def read_finite(tensors, name, where):
    """A tensor as float32, without NaN and infinity: one of them would spread to all logits, in silence."""
    x = tensors[name].float32()
    with np.errstate(all="ignore"):
        squares = np.vdot(x, x)  # by far the fastest way to read all numbers; finite only if they are
    if not np.isfinite(squares) and not np.all(np.isfinite(x)):
        raise UserError(f"{where}: {name} holds NaN or infinity; the file is damaged, get it again")
    return x


def as_half(array, name):
    """A finite float32 array -> float16. Raises UserError, by name, where a number would become infinite."""
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    if not np.all(np.isfinite(half)):
        largest = np.max(np.abs(array))
        raise UserError(f"{name}: {largest:g} would become infinite in F16, which ends at 65504: use --dtype F32")
    return half
