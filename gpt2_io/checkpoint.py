"""Any format -> a checkpoint: its config and its tensors, checked by name and shape."""
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt2_io.errors import UserError, listed
from gpt2_io.files import TEXT_FILES, has_file, parse_json, read_text
from gpt2_io.gguf import read_gguf
from gpt2_io.npz import read_npz
from gpt2_io.safetensors import read_safetensors, read_sharded_safetensors


class Checkpoint(NamedTuple):
    """A model as it was found, whatever the format: the tensors and the text files of a Hugging Face folder."""

    path: Path
    tensors: dict  # name -> StoredTensor
    files: dict  # "config.json" -> its text, and so on for those of TEXT_FILES that there are


PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_checkpoint(path):
    """A model folder or weight file -> Checkpoint, with nothing but headers and small text files read.

    Text files are those in the folder; a .npz or .gguf file brings its own, else those beside it count.
    Raises UserError for what is none of these, with what would work.
    """
    path = Path(path)
    if path.suffix in PICKLES and not path.is_dir():
        raise UserError(
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
            raise UserError(f"{path}: no model.safetensors in this folder{hint}")
    elif path.suffix == ".safetensors":
        tensors, files = read_safetensors(path), {}
    elif path.suffix == ".npz":
        tensors, files = read_npz(path)
    elif path.suffix == ".gguf":
        tensors, files = read_gguf(path)
    else:
        raise UserError(f"{path}: not a model: a folder, a .safetensors, .npz or .gguf file is expected")
    folder = path if path.is_dir() else path.parent
    files = files or {name: read_text(folder / name) for name in TEXT_FILES if has_file(folder, name)}
    return Checkpoint(path, tensors, files)


# All of them are 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), which is what `gelu` computes.
GELU_NAMES = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")


def read_config(checkpoint):
    """Check a checkpoint's config.json -> dict.

    Keys: those of hparams, and n_inner, layer_norm_epsilon, scale_attn_weights, scale_attn_by_inverse_layer_idx,
    eos_token_id (or None). Raises UserError, by name, for what is missing, no size, or a feature not supported.
    """
    where = f"{checkpoint.path}: config.json"
    if "config.json" not in checkpoint.files:
        raise UserError(f"{where} is missing; without it nobody knows how many heads the model has")
    config = parse_json(checkpoint.files["config.json"], where)
    config = {key: value for key, value in config.items() if value is not None}  # null means "as usual"

    def refuse(key, instead):
        raise UserError(f"{where}: {key} {config[key]!r:.60} is not supported: {instead}")

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
        raise UserError(f"{where}: {', '.join(missing)} missing")
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
    Raises UserError for missing, unexpected and wrongly shaped tensors, by name, before any weight is used.
    """
    where, found = checkpoint.path, {}
    for full_name, tensor in checkpoint.tensors.items():
        name = full_name.removeprefix("transformer.")
        if name in found:
            raise UserError(f"{where}: {name:.100} is there twice, with and without the prefix 'transformer.'")
        if not re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name):
            found[name] = tensor
    lm_head = found.pop("lm_head.weight", None)

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
        f"{where}: lm_head.weight differs from wte.weight (tie_word_embeddings false), which is not supported: "
        "in the models that are, wte serves as both"
    )
