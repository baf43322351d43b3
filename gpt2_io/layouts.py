"""GPT-2s as other code saves them, brought into the layout of Hugging Face; and what is not a GPT-2 says what it is."""
import re
import shlex

import numpy as np

from gpt2_io.errors import UserError, listed
from gpt2_io.files import has_file, parse_json, read_text
from gpt2_io.safetensors import StoredTensor

# What training code puts before the names: data-parallel and compiled modules, value heads, modules in modules.
PREFIXES = re.compile(r"(?:(?:module|_orig_mod|(?:pretrained_|base_)?model|gpt|gpt2|backbone|transformer)\.)*")
# OpenAI's own names, "model/h3/attn/c_attn/w", as in the TensorFlow checkpoints that picoGPT downloads.
OPENAI = re.compile(r"model/(?:h(?P<layer>\d+)/)?(?P<part>[\w/]+?)(?:/(?P<kind>[wbg]))?")
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # the causal mask, in old files
HEADS = re.compile(r"(v_head|value_head|score|classifier|multiple_choice_head|qa_outputs|summary)\..+")
LINEARS = re.compile(r"h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")


def arrange(tensors, files, layout, where):
    """Tensors as a file has them -> tensors with Hugging Face's names and shapes, what was recognised, what to say.

    tensors: {name: StoredTensor}; files: {file name: text}; layout: "nanogpt", or "" to find out. The last two that
    come back are lists of texts. Raises UserError for two tensors of one name, an adapter, and a layout in doubt.
    """
    found, recognised, notes, heads = {}, [], [], []
    for full_name, tensor in tensors.items():
        name = full_name[PREFIXES.match(full_name).end() :]
        if "lora_" in name:
            raise UserError(f"{where}: {an_adapter(where)}")
        openai = OPENAI.fullmatch(name)
        if openai:
            name, tensor = as_hugging_face(tensor, **openai.groupdict())
        elif len(name) < len(full_name):
            recognised.append(f"prefix {full_name[: len(full_name) - len(name)]!r:.60} taken off")
        if name in found:
            raise UserError(f"{where}: {name:.100} is there twice, with and without a prefix such as 'transformer.'")
        if HEADS.fullmatch(name):
            heads.append(name)
        elif not MASKS.fullmatch(name):
            found[name] = tensor
    if any(OPENAI.fullmatch(name) for name in tensors):
        recognised.append("OpenAI's names")
    if heads:
        notes.append(f"left out: {listed(heads)}, a head that is no language model's")
    if "lm_head.weight" in found and "wte.weight" not in found:
        recognised.append("lm_head.weight used as wte.weight")

    widths = [t.shape for name, t in found.items() if name.endswith("attn.c_attn.weight") and len(t.shape) == 2]
    is_turned = bool(widths) and all(n_out == 3 * n_in for n_out, n_in in widths)  # [out, in]
    has_biases = any(name.endswith(".bias") for name in found)
    if is_turned or layout == "nanogpt":
        config = parse_json(files.get("config.json", "{}"), f"{where}: config.json")
        # The square attn.c_proj fits either way, and a script that turns what does not fit leaves it as it was. So the
        # shapes of the others are not enough: nanoGPT shows itself by what it leaves out, or in its own words.
        if layout != "nanogpt" and has_biases and "block_size" not in config:
            raise UserError(
                f"{where}: the linear weights are [out, in], as nanoGPT stores them, but nothing else says that it is "
                "nanoGPT's, and attn.c_proj, a square, could lie either way. If all of them are [out, in]: "
                f"python utils.py convert --model {shlex.quote(str(where))} --out FOLDER --layout nanogpt, then "
                "--model FOLDER"
            )
        recognised.append("nanoGPT's layout, linear weights [out, in]")
        found = {name: turned(t) if LINEARS.fullmatch(name) else t for name, t in found.items()}
        if not has_biases:
            recognised.append("no biases, so zeros")
            for name in [n for n in found if LINEARS.fullmatch(n) or re.search(r"ln_[12f]\.weight$", n)]:
                found[name.removesuffix("weight") + "bias"] = zeros(found[name].dtype, found[name].shape[-1:])
        if "activation_function" not in config:
            notes.append(
                "nanoGPT computes gelu by erf since 2023, and by tanh before, as GPT-2 does; here it is by tanh, which "
                "may move logits in their fourth digit. Its files do not tell; activation_function in config.json would"
            )
    return found, list(dict.fromkeys(recognised)), notes


def as_hugging_face(tensor, layer, part, kind):
    """A tensor by OpenAI's name, in its parts -> Hugging Face's name, and the tensor without a leading axis of 1."""
    name = ("" if layer is None else f"h.{layer}.") + part.replace("/", ".") + (".bias" if kind == "b" else ".weight")
    if kind != "w" or tensor.shape[:1] != (1,):
        return name, tensor
    shape = tensor.shape[1:]
    return name, tensor._replace(shape=shape, float32=lambda: tensor.float32().reshape(shape))


def turned(tensor):
    """A StoredTensor with its axes in the other order."""
    return tensor._replace(shape=tensor.shape[::-1], float32=lambda: np.ascontiguousarray(tensor.float32().T))


def zeros(dtype, shape):
    return StoredTensor(dtype, shape, 0, lambda: np.zeros(shape, np.float32))


def an_adapter(path):
    """What to say of a LoRA and its kind, in a folder or a file: its name is in the adapter_config.json there."""
    folder = path if path.is_dir() else path.parent
    known = has_file(folder, "adapter_config.json")
    config = parse_json(read_text(folder / "adapter_config.json"), folder / "adapter_config.json") if known else {}
    base = f"{config.get('base_model_name_or_path') or 'another model'!s:.100}"
    return (
        f"a {config.get('peft_type', 'LoRA')!s:.20} adapter of {base}, which are changes and no model: with the peft "
        "package, AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER)"
    )


TENSORFLOW = (
    "a TensorFlow checkpoint of OpenAI's: its tokenizer is read, its weights are not. --model 124M (355M, 774M, 1558M) "
    "gets the same ones; for others, where tensorflow is installed: python -c 'import sys, numpy, tensorflow as tf; "
    "r = tf.train.load_checkpoint(sys.argv[1]); numpy.savez(sys.argv[1] + \"/model.npz\", **{n: r.get_tensor(n) for n "
    "in r.get_variable_to_shape_map() if n.startswith(\"model/\")})' FOLDER, and then --model FOLDER/model.npz"
)
SAVED_BY_TRANSFORMERS = "with transformers 4, GPT2LMHeadModel.from_pretrained(FOLDER, {}).save_pretrained(NEW_FOLDER)"
BY_NAME = {  # pattern of a file's name -> what it is, and the way out
    r".*\.onnx(_data)?": "an ONNX graph, where weights have lost their names: take the folder it was exported from",
    r".*\.h5": f"weights of Keras: {SAVED_BY_TRANSFORMERS.format('from_tf=True')}",
    r".*\.msgpack": f"weights of Flax: {SAVED_BY_TRANSFORMERS.format('from_flax=True')}",
    r"model\.ckpt(-\d+)?\.(index|meta|data-.+)": TENSORFLOW,
}  # fmt: skip
GGML = (
    "ggml's format before GGUF, which llama.cpp has left: take the folder that it was made from, or a .gguf that "
    "llama.cpp's convert_hf_to_gguf.py makes of that"
)
BY_BEGIN = {  # first bytes of a file -> what it is, and the way out
    b"lmgg": GGML, b"fmgg": GGML, b"tjgg": GGML,  # "ggml", "ggmf" and "ggjt", as little-endian numbers
    b"GGUF": "a GGUF file: give it a name that ends in .gguf",
    (20240326).to_bytes(4, "little"): (
        "llm.c's checkpoint: its dev/eval/export_hf.py --input FILE --output FOLDER makes a folder that is read"
    ),
    b"\x89HDF": f"weights of Keras: {SAVED_BY_TRANSFORMERS.format('from_tf=True')}",
    b"vers": "a Git LFS pointer in place of the file: get it with `git lfs pull`",
}  # fmt: skip


def what_it_is(path):
    """A file or folder that is read as no model -> what it is and the way out, as text, or None for the unknown."""
    if path.is_dir():
        if has_file(path, "adapter_config.json"):
            return an_adapter(path)
        if has_file(path, "hparams.json"):
            return TENSORFLOW
        for file in sorted([*path.iterdir(), *path.glob("onnx/*.onnx")]):
            of_interest = file.suffix == ".bin" or any(re.fullmatch(pattern, file.name) for pattern in BY_NAME)
            what = what_it_is(file) if of_interest and has_file(path, file.relative_to(path)) else None
            if what:
                return f"{file.relative_to(path)} is {what}"
        return None
    by_name = [what for pattern, what in BY_NAME.items() if re.fullmatch(pattern, path.name)]
    if by_name:
        return by_name[0]
    with open(path, "rb") as file:
        return BY_BEGIN.get(file.read(4))
