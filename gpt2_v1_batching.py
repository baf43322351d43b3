"""GPT-2 inference in plain NumPy, v1: a batch of prompts of one length.

    python gpt2_v1_batching.py "Once upon a time" "There was once a king"
"""
import math

import numpy as np
from tqdm import tqdm

import utils


def gelu(x):
    """Gaussian error linear unit (Hendrycks & Gimpel 2016, section 2): any shape -> same shape.

    As GPT-2 approximates it: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
    """
    # In place, since this is the widest array of the model and each new one costs more time than the arithmetic on it.
    # Python floats leave float32 as it is; np.sqrt(2 / np.pi) would turn the whole model into float64.
    y = x * x
    y *= 0.044715
    y += 1
    y *= x  # x + 0.044715 * x^3, without the slow x**3
    y *= math.sqrt(2 / math.pi)
    np.tanh(y, out=y)
    y += 1
    y *= x
    y *= 0.5
    return y


def softmax(x, out=None):
    """Softmax over the last axis: any shape -> same shape, each row adds up to 1; in place with out=x."""
    x = np.subtract(x, np.max(x, axis=-1, keepdims=True), out=out)
    with np.errstate(under="ignore"):  # the weight of a masked score underflows to exactly 0, as it should
        np.exp(x, out=x)
    # np.sum adds in blocks, so zeros in front (masked keys) would regroup its terms; a product with ones does not.
    x /= (x @ np.ones(x.shape[-1], x.dtype))[..., None]
    return x


def layer_norm(x, g, b, eps=1e-5):
    """Layer normalization over the last axis (Ba et al. 2016, section 3), then scale g and shift b, both [n_embd]."""
    x = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(x * x, axis=-1, keepdims=True)
    x /= np.sqrt(variance + eps)
    return x * g + b


def linear(x, w, b=0):
    """x [..., n_in], w [n_in, n_out], b [n_out] -> [..., n_out]."""
    # NumPy would make one BLAS call per row of the batch, each reading all of w; flattened rows read it once. Up to two
    # rows are left as they are, because one token of each is then a matrix-vector product, which is faster still.
    rows = x.reshape(-1, x.shape[-1]) if len(x) > 2 else x  # [B, T, n_in] -> [B*T, n_in]
    return (rows @ w + b).reshape(*x.shape[:-1], w.shape[-1])


def ffn(x, c_fc, c_proj):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3): x -> same shape."""
    x = gelu(linear(x, **c_fc))  # [..., n_embd] -> [..., 4*n_embd]
    return linear(x, **c_proj)  # [..., 4*n_embd] -> [..., n_embd]


def attention(q, k, v, mask):
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1).

    q [..., n_q, d_head], k and v [..., n_k, d_head], mask [..., n_q, n_k] with 0 to see a key and -1e10 to hide it
    -> [..., n_q, d_head].
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)  # [..., n_q, d_head] -> [..., n_q, n_k]
    scores += mask
    return softmax(scores, out=scores) @ v  # [..., n_q, n_k] -> [..., n_q, d_head]


def mha(x, c_attn, c_proj, n_head, mask):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2): x [..., T, n_embd] -> same shape."""
    shape = x.shape
    x = linear(x, **c_attn)  # [..., T, n_embd] -> [..., T, 3*n_embd]
    x = x.reshape(*shape[:-1], 3 * n_head, -1).swapaxes(-2, -3)  # [..., T, 3*n_embd] -> [..., 3*n_head, T, d_head]
    q, k, v = np.split(x, 3, axis=-3)  # [..., 3*n_head, T, d_head] -> 3 of [..., n_head, T, d_head]
    x = attention(q, k, v, mask)
    x = x.swapaxes(-2, -3).reshape(shape)  # [..., n_head, T, d_head] -> [..., T, n_embd]
    return linear(x, **c_proj)


def transformer_block(x, mlp, attn, ln_1, ln_2, n_head, mask):
    """One pre-norm block (Radford et al. 2019, section 2.3): x -> same shape."""
    x = x + mha(layer_norm(x, **ln_1), **attn, n_head=n_head, mask=mask)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def gpt2(input_ids, wte, wpe, blocks, ln_f, n_head):
    """GPT-2 (Radford et al. 2019): input_ids [B, T] -> logits [B, T, n_vocab], scores of the token after each."""
    input_ids = utils.check_inputs(input_ids, wte, n_head, n_axes=2)
    T = input_ids.shape[-1]
    utils.check_lengths([T], 0, n_ctx=len(wpe))
    x = wte[input_ids] + wpe[:T]  # [..., T] -> [..., T, n_embd]
    mask = np.where(np.tri(T, dtype=bool), 0, -1e10).astype(x.dtype)  # [T, T]
    for block in blocks:
        x = transformer_block(x, **block, n_head=n_head, mask=mask)
    return linear(layer_norm(x, **ln_f), wte.T)  # [..., T, n_embd] -> [..., T, n_vocab]


def generate(input_ids, params, n_head, n_tokens_to_generate):
    """Greedy decoding: input_ids [B, T] -> the n_tokens_to_generate new ids of each row, B lists of int.

    Raises UserError before any compute where a prompt and the new tokens do not fit into n_ctx.
    """
    input_ids = utils.check_inputs(input_ids, params["wte"], n_head, n_axes=2)
    B, T = input_ids.shape
    utils.check_lengths([T], n_tokens_to_generate, n_ctx=len(params["wpe"]))
    output_ids = np.empty((B, n_tokens_to_generate), dtype=int)
    for i in tqdm(range(n_tokens_to_generate), "generating", disable=None, leave=False):
        ids = np.append(input_ids, output_ids[:, :i], axis=1)  # [B, T] -> [B, T+i]
        logits = gpt2(ids, **params, n_head=n_head)[:, -1]  # [B, T+i] -> [B, n_vocab]
        output_ids[:, i] = np.argmax(logits, axis=-1)  # [B, n_vocab] -> [B]
    return output_ids.tolist()


def main(*prompts, n_tokens_to_generate=40, model="tales", models_dir="models", tokenizer="", json=False):
    """Print what the model writes after each prompt, choosing the best token each time.

    Args:
        prompts: one or more prompts of the same length in tokens, as text.
        n_tokens_to_generate: how many tokens to add.
        model: a model's name or folder.
        models_dir: where models are looked for by name.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
        json: print a JSON object a line instead of plain text.
    """
    encoder, hparams, params = utils.load_model(model, models_dir, tokenizer=tokenizer)
    input_ids = utils.encode_prompts(encoder, prompts)
    output_ids = generate(input_ids, params, hparams["n_head"], n_tokens_to_generate)
    utils.print_texts(prompts, output_ids, [encoder.decode(ids) for ids in output_ids], json)


if __name__ == "__main__":
    utils.run(main)
