"""llama.cpp's GGUF format, read with the gguf package."""
import json
import re

import numpy as np

from gpt2_io.errors import UserError, naming_faults
from gpt2_io.safetensors import StoredTensor, to_float32

# llama.cpp's names for the parts of a GPT-2. It keeps the four linear weights as [out, in].
GGUF_LINEARS = {"attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
GGUF_NAMES = {
    "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head",
    "attn_norm": "ln_1", "ffn_norm": "ln_2", **GGUF_LINEARS,
}  # fmt: skip


def read_gguf(path):
    """Read a .gguf file -> {name: StoredTensor}, {file name: text}: its metadata as config.json and tokenizer files.

    Needs the gguf package, which turns the quantised types into floats. Raises UserError, also for another
    architecture or tokenizer than GPT-2's.
    """
    try:
        import gguf
    except ImportError:
        raise UserError(f"{path}: GGUF files need the gguf package: pip install gguf") from None

    class Reader(gguf.GGUFReader):
        """The package's, which reads past the end of the file, and on and on, and makes an array of each number."""

        def _get(self, offset, dtype, count=1, **options):
            self.data = np.asarray(self.data)  # a plain array: views of it cost a fifth of what memmap's do
            values = super()._get(offset, dtype, count, **options)
            if len(values) != count:
                raise UserError(f"it is cut off, or the {count} values at byte {offset} are a mistake")
            return values

        def _get_field_parts(self, offset, raw_type):
            if raw_type == gguf.GGUFValueType.ARRAY:
                kind, length = self._get(offset, np.uint32), self._get(offset + 4, np.uint64)
                dtype = self.gguf_scalar_to_np.get(gguf.GGUFValueType(kind[0]))
                if dtype:
                    values = self._get(offset + 12, dtype, length[0])
                    types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind[0])]
                    return 12 + values.nbytes, [kind, length, values], [2], types
            return super()._get_field_parts(offset, raw_type)

    with naming_faults(f"{path}: not a whole GGUF file"):
        reader = Reader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    supported = {
        "general.architecture": ("gpt2",),
        "tokenizer.ggml.model": ("gpt2", None),
        "tokenizer.ggml.pre": ("gpt-2", "default", None),
    }
    for key, values in supported.items():
        if fields.get(key) not in values:
            raise UserError(f"{path}: {key} is {fields.get(key)!r:.60}; only {values[0]!r} is supported")

    def stored(tensor, transposed):
        shape = [int(n) for n in tensor.shape]  # GGUF counts axes from the inside, NumPy from the outside

        def float32():
            with naming_faults(f"{path}: tensor {tensor.name!r:.100}"):
                try:
                    values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape[::-1])
                except NotImplementedError:
                    raise UserError(f"the gguf package makes no floats of {dtype}") from None
            return to_float32(np.asarray(values.T if transposed else values))

        dtype = tensor.tensor_type.name
        return StoredTensor(dtype, tuple(shape if transposed else shape[::-1]), int(tensor.n_bytes), float32)

    tensors = {}
    for tensor in reader.tensors:
        block, part, kind = re.fullmatch(r"(?s)(?:blk\.(\d+)\.)?(.*?)((?:\.weight|\.bias)?)", tensor.name).groups()
        name = (f"h.{block}." if block else "") + GGUF_NAMES.get(part, part) + kind
        tensors[name] = stored(tensor, part in GGUF_LINEARS and kind == ".weight")

    with naming_faults(f"{path}: metadata"):
        config = {
            "model_type": "gpt2",
            "n_positions": fields.get("gpt2.context_length"),
            "n_embd": fields.get("gpt2.embedding_length"),
            "n_layer": fields.get("gpt2.block_count"),
            "n_head": fields.get("gpt2.attention.head_count"),
            "n_inner": fields.get("gpt2.feed_forward_length"),
            # A float32 in the file: the shortest decimal number that it can stand for is the one that was meant.
            "layer_norm_epsilon": float(str(np.float32(fields.get("gpt2.attention.layer_norm_epsilon", 1e-5)))),
            "vocab_size": tensors["wte.weight"].shape[0] if "wte.weight" in tensors else None,
            "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        }
        files = {"config.json": json.dumps(config)}
        if "tokenizer.ggml.tokens" in fields:
            tokens, merges = fields["tokenizer.ggml.tokens"], fields.get("tokenizer.ggml.merges", [])
            kinds = fields.get("tokenizer.ggml.token_type", [gguf.TokenType.NORMAL] * len(tokens))
            unused, added = (gguf.TokenType.UNUSED,), (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
            vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind not in unused}
            files["vocab.json"] = json.dumps(vocab)
            files["merges.txt"] = "#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)
            files["added_tokens.json"] = json.dumps({token: i for token, i in vocab.items() if kinds[i] in added})
    return tensors, files
