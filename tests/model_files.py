"""Model files for the tests, written here and not by `utils`, so that neither can hide the other's faults."""

import json
import math
import os
import re
import struct
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
from tiny import ROOT

CONFIG = {
    "model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "vocab_size": 263, "n_positions": 16, "n_embd": 12, "n_head": 3, "n_layer": 2,
}  # fmt: skip


def logits_of(version, params, n_head, ids):
    """Logits [T, n_vocab] of one sequence, by any version."""
    return version.logits(SimpleNamespace(params=params, n_head=n_head), [list(ids)])[0]


def greedy(version, params, n_head, ids, n):
    """The n new ids that a version generates after one prompt."""
    return [int(i) for i in version.generate(SimpleNamespace(params=params, n_head=n_head), [list(ids)], n)[0]]


def make_tensors(config=CONFIG, seed=0, dtype=np.float32):
    """Random weights -> {name: array}, named and shaped as in Hugging Face's checkpoints."""
    rng = np.random.default_rng(seed)
    n_vocab, n_ctx, n_embd = config["vocab_size"], config["n_positions"], config["n_embd"]
    n_inner = config.get("n_inner") or 4 * n_embd
    shapes = {
        "wte.weight": [n_vocab, n_embd],
        "wpe.weight": [n_ctx, n_embd],
        "ln_f.weight": [n_embd],
        "ln_f.bias": [n_embd],
    }
    for i in range(config["n_layer"]):
        for ln in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{ln}.weight": [n_embd], f"h.{i}.{ln}.bias": [n_embd]}
        for name, n_in, n_out in (("attn.c_attn", n_embd, 3 * n_embd), ("attn.c_proj", n_embd, n_embd),
                                  ("mlp.c_fc", n_embd, n_inner), ("mlp.c_proj", n_inner, n_embd)):  # fmt: skip
            shapes |= {f"h.{i}.{name}.weight": [n_in, n_out], f"h.{i}.{name}.bias": [n_out]}
    return {name: rng.normal(0, 0.3, shape).astype(dtype) for name, shape in shapes.items()}


DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "uint8": "U8",
    "uint16": "BF16",
    "bool": "BOOL",
    "int64": "I64",
}


def safetensors_bytes(tensors, pad=True, edit=None):
    """The bytes of a safetensors file; uint16 arrays stand for BF16. edit(header) may spoil the header."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    if edit:
        edit(header)
    text = json.dumps(header).encode()
    text += b" " * ((-len(text)) % 8 if pad else (1 - len(text)) % 8)
    return struct.pack("<Q", len(text)) + text + data


def byte_characters():
    """GPT-2's characters for the 256 bytes, by the definition in OpenAI's encoder.py."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(rest)}


MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("in", "g"), ("Ð", "°")]


def make_vocab(merges=MERGES, eot=True):
    """256 bytes, the merges, `<|endoftext|>`: 263 tokens."""
    characters = byte_characters()
    order = sorted(range(256), key=lambda b: (ord(characters[b]) > 255, b))
    tokens = [characters[b] for b in order] + [left + right for left, right in merges] + ["<|endoftext|>"] * eot
    return {token: i for i, token in enumerate(tokens)}


def merges_txt(merges=MERGES):
    return "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)


def tokenizer_json(vocab=None, merges=MERGES, added=(), **changes):
    vocab = make_vocab() if vocab is None else vocab
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {**flags, "id": vocab["<|endoftext|>"], "content": "<|endoftext|>"},
        *({**flags, **token} for token in added),
    ]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
    model |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "vocab": vocab}
    model["merges"] = [" ".join(merge) for merge in merges]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    whole |= {"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
    return json.dumps({**whole, **changes}, ensure_ascii=False)


def write_folder(folder, config=CONFIG, tensors=None, tokenizer=True, prefix=""):
    """A model folder; tensors default to `make_tensors(config)`. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = make_tensors(config) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(
        safetensors_bytes({prefix + name: array for name, array in tensors.items()})
    )
    if tokenizer:
        (folder / "vocab.json").write_text(json.dumps(make_vocab()), encoding="utf-8")
        (folder / "merges.txt").write_text(merges_txt(), encoding="utf-8")
    return folder


GGUF_PARTS = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def gguf_name(name):
    top = {"wte.weight": "token_embd.weight", "wpe.weight": "position_embd.weight", "lm_head.weight": "output.weight"}
    if name in top or name.startswith("ln_f."):
        return top.get(name, name.replace("ln_f", "output_norm"))
    layer, part, kind = re.fullmatch(r"h\.(\d+)\.(.+)\.(weight|bias)", name).groups()
    return f"blk.{layer}.{GGUF_PARTS[part]}.{kind}"


def write_gguf(
    path, config=CONFIG, tensors=None, quantize=None, architecture="gpt2", vocab=None, model="gpt2", pre="gpt-2"
):
    """A .gguf file as llama.cpp makes it from a GPT-2; quantize: {tensor name: type of the gguf package}."""
    import gguf

    tensors = make_tensors(config) if tensors is None else tensors
    vocab = make_vocab() if vocab is None else vocab
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config.get("n_inner") or 4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    if vocab:
        names = {i: token for token, i in vocab.items()}
        n_rows = len(tensors["wte.weight"])
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([names.get(i, f"[PAD{i}]") for i in range(n_rows)])
        kinds = {"<|endoftext|>": gguf.TokenType.CONTROL}
        writer.add_token_types(
            [kinds.get(names[i], gguf.TokenType.NORMAL) if i in names else gguf.TokenType.UNUSED for i in range(n_rows)]
        )
        writer.add_token_merges([" ".join(merge) for merge in MERGES])
        writer.add_eos_token_id(vocab["<|endoftext|>"])
    for name, array in tensors.items():
        if re.search(r"(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight$", name):
            array = np.ascontiguousarray(array.T)
        kind = (quantize or {}).get(name)
        if kind is None:
            writer.add_tensor(gguf_name(name), array)
        else:
            writer.add_tensor(gguf_name(name), gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_huge_folder(folder, n_layer=12, n_embd=768, n_head=12, n_vocab=50257, n_ctx=1024):
    """A model of 124M's size, F32, all zeros, as a sparse file: written in no time and without the disk."""
    config = {
        **CONFIG,
        "vocab_size": n_vocab,
        "n_positions": n_ctx,
        "n_embd": n_embd,
        "n_head": n_head,
        "n_layer": n_layer,
    }
    shapes = {
        name: list(array.shape)
        for name, array in make_tensors({**config, "vocab_size": 1, "n_positions": 1, "n_layer": 0}).items()
    }
    shapes |= {"wte.weight": [n_vocab, n_embd], "wpe.weight": [n_ctx, n_embd]}
    for i in range(n_layer):
        linears = {"attn.c_attn": [n_embd, 3 * n_embd], "attn.c_proj": [n_embd, n_embd]}
        linears |= {"mlp.c_fc": [n_embd, 4 * n_embd], "mlp.c_proj": [4 * n_embd, n_embd]}
        for name, shape in {"ln_1": [n_embd], "ln_2": [n_embd], **linears}.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + 4 * math.prod(shape)]}
        end += 4 * math.prod(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write_folder(folder, config, tensors={"x": np.zeros(1, np.float32)})
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


SETTINGS = ("HF_", "HUGGINGFACE_", "XDG_", "PYTHONIOENCODING", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


def command(*arguments, script="utils.py", cwd=ROOT, env=None, **options):
    """Run a script of the project -> CompletedProcess, with its output as text; offline unless env says otherwise."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(SETTINGS)}
    clean |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(ROOT / "no such folder"), "NO_PROXY": "127.0.0.1"}
    clean |= {"PYTHONIOENCODING": "utf-8", **(env or {})}
    arguments = [sys.executable, *(str(argument) for argument in (ROOT / script, *arguments))]
    if os.name == "posix":  # as bytes, since the tests may run in a C locale themselves
        arguments = [argument.encode("utf-8", "surrogateescape") for argument in arguments]
    options = {"capture_output": True, "encoding": "utf-8", "timeout": 60, **options}
    return subprocess.run(arguments, cwd=cwd, env=clean, **options)


def assert_one_line(result, *words):
    """The command ended as a user's mistake does: status 2, nothing on stdout, one line on stderr with these words."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert str(word) in result.stderr, result.stderr
