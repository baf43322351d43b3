"""Everything around the model: weight files, tokenizers, downloads and the command line.

    python utils.py inspect --model tales
    python utils.py tokenize "some text" --merges
    python utils.py download 124M
    python utils.py convert --model tales --out tales.npz

A model is a folder in Hugging Face's layout: `config.json`, `model.safetensors`, `vocab.json` and `merges.txt`. Other
formats are read into the same form. `load_model` turns it into what the `gpt2_v*.py` files work with: an encoder,
hparams and params.
"""
import math
import re
import sys
from pathlib import Path

import numpy as np

from gpt2_io.blas import blas_in_use
from gpt2_io.checkpoint import PICKLES, as_half, check_tensors, open_checkpoint, read_config, read_finite, whole_config
from gpt2_io.command_line import run
from gpt2_io.continuations import Continuations, StopAt, choose_seed, read_stop
from gpt2_io.cores import count_threads
from gpt2_io.errors import UserError, in_units, listed
from gpt2_io.hub import find_model
from gpt2_io.npz import write_npz
from gpt2_io.params import GPT2_124M, load_params, random_params
from gpt2_io.rules import check_beams, check_left, check_rules, print_beams, read_beams, read_rules
from gpt2_io.safetensors import write_folder
from gpt2_io.settings import (
    check_cache_rows,
    check_ids,
    check_inputs,
    check_kv_cache,
    check_lengths,
    check_limits,
    check_logits,
    check_mask,
    check_places,
    check_prompts,
    check_settings,
    check_weights,
    keep_end,
)
from gpt2_io.streams import print_texts
from gpt2_io.tokenizer import in_quotes, load_encoder, merges_of


def load_model(model="tales", models_dir="models", *, layout="", tokenizer=""):
    """Load a model -> (encoder, hparams, params).

    model, models_dir: see `find_model`. layout, tokenizer: see `open_checkpoint`. encoder: see `Encoder`. hparams,
    params: see `load_params`. What the file has and a GPT-2 does not, such as a value head, is named on stderr.
    Raises UserError or OSError with a message for the user.
    """
    checkpoint = open_checkpoint(find_model(model, models_dir), layout, tokenizer=tokenizer)
    for note in checkpoint.notes:
        print(f"note: {note}", file=sys.stderr)
    encoder = load_encoder(checkpoint, read_config(checkpoint))
    return encoder, *load_params(checkpoint, encoder.n_vocab, encoder.never_ids)


def encode_prompts(encoder, prompts):
    """Prompts -> list of lists of ids, each as typed; an empty prompt is `[encoder.eot_token]`, the start of a text."""
    if not prompts:
        raise UserError('no prompt: give at least one, as in "Once upon a time"')
    if any(prompt.endswith(" ") for prompt in prompts):
        hint = "hint: a prompt ends in a space; GPT-2 goes on better without it, for its words begin with one"
        print(hint, file=sys.stderr)
    return [encoder.encode(prompt) or [encoder.eot_token] for prompt in prompts]


def inspect_model(model="tales", models_dir="models", *, layout="", tokenizer=""):
    """Print what a model is made of: its architecture, its parameters by part, and the memory it takes.

    Args:
        model: a model's name, folder or weight file.
        models_dir: where models are looked for by name.
        layout: nanogpt, for linear weights [out, in] where the file does not tell.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
    """
    checkpoint = open_checkpoint(find_model(model, models_dir), layout, tokenizer=tokenizer)
    config = read_config(checkpoint)
    tensors = check_tensors(checkpoint, config)
    encoder = load_encoder(checkpoint, config)
    dtypes = sorted({tensor.dtype for tensor in tensors.values()})
    n_bytes = sum(file.stat().st_size for file in checkpoint.weight_files)
    print(f"{checkpoint.path}: {', '.join(dtypes)}, {in_units(n_bytes)} on disk")
    for line in (*checkpoint.recognised, *checkpoint.notes):
        print(f"- {line}")
    print()
    rows = {key: config[key] for key in ("n_vocab", "n_ctx", "n_embd", "n_layer", "n_head")}
    rows["d_head"], rows["ffn width"] = config["n_embd"] // config["n_head"], config["n_inner"]
    rows["tokens"] = "no tokenizer" if encoder.n_vocab is None else encoder.n_vocab
    rows["start id"] = "none" if encoder.start is None else encoder.start  # of an empty prompt
    rows["end ids"] = ", ".join(map(str, encoder.stop_ids)) or "none"
    for key, value in rows.items():
        print(f"{key:10} {value:>12}")
    if encoder.reason:
        print(encoder.reason)
    if encoder.never_ids:
        print(f"never generated, for padding alone or without a token: {listed(map(str, encoder.never_ids))}")
    print()

    parts = {}  # "h.3.attn.c_attn.weight" counts for "attn.c_attn", with all its layers
    for name, tensor in tensors.items():
        part = re.sub(r"^h\.\d+\.|\.(weight|bias)$", "", name)
        layers, n = parts.get(part, (0, 0))
        parts[part] = layers + name.endswith(".weight"), n + math.prod(tensor.shape)
    n_params = sum(n for _, n in parts.values())
    print("part         layers   parameters")
    for part, (layers, n) in parts.items():
        print(f"{part:12} {layers:6} {n:12,}  {n / n_params:6.1%}")
    print(f"{'sum':12} {'':6} {n_params:12,}")
    print()

    print(f"weights in memory, float32: {n_params:,} * 4 bytes = {in_units(n_params * 4)}")
    for batch in (1, 8):
        factors = (2, config["n_layer"], batch, config["n_head"], config["n_ctx"], rows["d_head"], 4)
        formula = "2 * n_layer * batch * n_head * n_ctx * d_head * 4 bytes"
        print(f"KV cache, batch {batch}: {formula} = {' * '.join(map(str, factors))} = {in_units(math.prod(factors))}")


def download(model, models_dir="models"):
    """Download a model, unless it is here already, and print its path.

    Args:
        model: 124M, 355M, 774M, 1558M, distilgpt2, or an id of the Hugging Face hub, org/name.
        models_dir: the folder that gets it.
    """
    print(find_model(model, models_dir))


def tokenize(*texts, model="tales", models_dir="models", tokenizer="", merges=False):
    """Print the tokens of each text with their ids.

    Args:
        texts: what to tokenize.
        model: whose tokenizer to use.
        models_dir: where models are looked for by name.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
        merges: print how each token is put together as well, with the place of each merge in merges.txt, from 0.
    """
    if not texts:
        raise UserError("no text: give at least one")
    path = find_model(model, models_dir, weights=False)
    encoder = load_encoder(open_checkpoint(path, weights=False, tokenizer=tokenizer))
    for n, text in enumerate(texts):
        print("\n" * (n > 0), end="")
        for i in encoder.encode(text):
            token = encoder.decode_bytes([i])
            print(f"{i:6}  {in_quotes(token)}")
            steps = merges_of(token, encoder.merges) if merges else []
            if steps and steps[-1][0] + steps[-1][1] == token:  # else it is no merge's
                for left, right, place in steps:
                    print(f"        {place:6}  {in_quotes(left)} + {in_quotes(right)}")


def convert(model, out, models_dir="models", dtype=None, *, layout="", tokenizer=""):
    """Write a model in another format: as a .npz file, or as a folder with model.safetensors.

    Args:
        model: a model's name, folder or weight file.
        out: the file or folder to write; it must not exist yet.
        models_dir: where models are looked for by name.
        dtype: F32 or F16; by default F16 tensors stay F16, and all others become F32.
        layout: nanogpt, for linear weights [out, in] where the file does not tell.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
    """
    out = Path(out)
    if dtype not in (None, "F32", "F16"):
        raise UserError(f"--dtype takes F32 or F16, not {dtype!r}")
    if out.suffix in (".safetensors", ".gguf", *PICKLES):
        raise UserError(f"{out}: a name that ends in .npz, or a folder, is expected")
    if out.exists():
        raise UserError(f"{out} exists already; choose another name, or remove it")
    checkpoint = open_checkpoint(find_model(model, models_dir), layout, tokenizer=tokenizer)
    config = read_config(checkpoint)
    stored, tensors, files = check_tensors(checkpoint, config), {}, whole_config(checkpoint.files, config)
    for name, tensor in stored.items():
        tensors[name] = read_finite(stored, name, checkpoint.path)
        if (dtype or tensor.dtype) == "F16":
            tensors[name] = as_half(tensors[name], name)
    if out.suffix == ".npz":
        write_npz(out, tensors, files)
    else:
        write_folder(out, tensors, files)
    print(out)


COMMANDS = {"inspect": inspect_model, "tokenize": tokenize, "download": download, "convert": convert}

if __name__ == "__main__":
    run(COMMANDS)
