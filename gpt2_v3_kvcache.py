"""GPT-2 inference in plain NumPy, v3: no key or value is computed twice.

    python gpt2_v3_kvcache.py "One day" "There was a poor woodcutter who"
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


def mha(x, c_attn, c_proj, n_head, mask, kv_cache):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2): x [..., T, n_embd] -> same shape."""
    shape = x.shape
    x = linear(x, **c_attn)  # [..., T, n_embd] -> [..., T, 3*n_embd]
    x = x.reshape(*shape[:-1], 3 * n_head, -1).swapaxes(-2, -3)  # [..., T, 3*n_embd] -> [..., 3*n_head, T, d_head]
    q, k, v = np.split(x, 3, axis=-3)  # [..., 3*n_head, T, d_head] -> 3 of [..., n_head, T, d_head]
    n_k = mask.shape[-1]  # the keys cached before and these T
    kv_cache[..., n_k - shape[-2] : n_k, :] = k, v  # into T of the T_max slots
    k, v = kv_cache[..., :n_k, :]  # [2, B, n_head, T_max, d_head] -> 2 of [B, n_head, n_k, d_head]
    x = attention(q, k, v, mask)
    x = x.swapaxes(-2, -3).reshape(shape)  # [..., n_head, T, d_head] -> [..., T, n_embd]
    return linear(x, **c_proj)


def transformer_block(x, mlp, attn, ln_1, ln_2, n_head, mask, kv_cache):
    """One pre-norm block (Radford et al. 2019, section 2.3): x -> same shape."""
    x = x + mha(layer_norm(x, **ln_1), **attn, n_head=n_head, mask=mask, kv_cache=kv_cache)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def gpt2(input_ids, wte, wpe, blocks, ln_f, n_head, attention_mask=None, kv_cache=None, n_logits=None):
    """GPT-2 (Radford et al. 2019): input_ids [B, T] -> logits [B, T, n_vocab], scores of the token after each.

    attention_mask [B, T] is 1 for real tokens and 0 for pads; without it all are real. Logits of pads mean nothing.
    With a kv_cache the T tokens follow those that it holds, and are added to it. n_logits: of how many last positions.
    """
    input_ids = utils.check_inputs(input_ids, wte, n_head, n_axes=2)
    T = input_ids.shape[-1]
    real = utils.check_mask(attention_mask, input_ids.shape)
    if kv_cache is None:
        kv_cache = init_kv_cache(wte, blocks, n_head, *input_ids.shape)
    utils.check_settings(n_logits=n_logits)
    utils.check_kv_cache(kv_cache, real, wte, wpe, blocks, n_head)
    n_past = kv_cache["length"]
    real = np.append(kv_cache["real"], real, axis=1)  # [B, T] -> [B, n_past+T]
    # Positions count real tokens. A pad has none: without the clip its -1 would silently be the last row of wpe.
    position_ids = np.clip(np.cumsum(real, axis=1) - 1, 0, None)[:, n_past:]  # [B, n_past+T] -> [B, T]
    x = wte[input_ids] + wpe[position_ids]  # [B, T] -> [B, T, n_embd]
    # Query 0 is the token at n_past: it sees the keys before it, so the triangle starts there.
    visible = np.tri(T, n_past + T, n_past, dtype=bool) & real[:, None, None, :]  # -> [B, 1, T, n_past+T]
    mask = np.where(visible, 0, -1e10).astype(x.dtype)  # [B, 1, T, n_past+T]
    for block, block_cache in zip(blocks, kv_cache["blocks"]):
        x = transformer_block(x, **block, n_head=n_head, mask=mask, kv_cache=block_cache)
    x = x if n_logits is None else x[:, max(T - int(n_logits), 0) :]  # [B, T, n_embd] -> [B, n_logits, n_embd]
    logits = linear(layer_norm(x, **ln_f), wte.T)  # [..., T, n_embd] -> [..., T, n_vocab]
    kv_cache.update(length=n_past + T, real=real)  # last, so that a call that was broken off can be made again
    return logits


def left_pad(prompts, pad_id=0):
    """Lists of ids -> input_ids [B, T] and attention_mask [B, T], 1 = real; T is the length of the longest prompt.

    Pads stand on the left, so that the last column is a real token in every row, the one to continue from.
    """
    prompts = utils.check_prompts(prompts)
    utils.check_settings(pad_id=pad_id)
    T = max(len(ids) for ids in prompts)
    input_ids = np.array([[pad_id] * (T - len(ids)) + ids for ids in prompts])
    attention_mask = np.array([[0] * (T - len(ids)) + [1] * len(ids) for ids in prompts])
    return input_ids, attention_mask


def init_kv_cache(wte, blocks, n_head, B, T_max):
    """An empty cache of keys and values for B rows of up to T_max tokens each, pads included. It belongs to the caller.

    All its memory is taken here: 2 * n_layer * B * n_head * T_max * d_head * itemsize bytes.
    """
    utils.check_weights(wte, n_head)
    utils.check_settings(B=B, T_max=T_max)
    shape = len(blocks), 2, B, n_head, T_max, wte.shape[1] // n_head
    return {"length": 0, "real": np.ones((B, 0), dtype=bool), "blocks": np.empty(shape, wte.dtype)}


def prefill(input_ids, params, n_head, kv_cache, attention_mask=None, chunk=None):
    """Put the prompts into the cache: input_ids [B, T] -> logits [B, n_vocab] of the last position."""
    utils.check_settings(chunk=chunk)
    input_ids = utils.check_inputs(input_ids, params["wte"], n_head, n_axes=2)
    B, T = input_ids.shape
    real = utils.check_mask(attention_mask, (B, T), last_real=True)
    utils.check_kv_cache(kv_cache, real, params["wte"], params["wpe"], params["blocks"], n_head)
    chunk = chunk or max(32, 256 // B)  # small arrays are fast, and the keys of later chunks need no scores
    cache = dict(kv_cache)  # of the same arrays, so the caller's has its new length only after the last chunk
    for i in range(0, T, chunk):
        ids, mask = input_ids[:, i : i + chunk], real[:, i : i + chunk]
        logits = gpt2(ids, **params, n_head=n_head, attention_mask=mask, kv_cache=cache, n_logits=int(i + chunk >= T))
    kv_cache.update(cache)
    return logits[:, -1]


def decode_one_token(input_ids, params, n_head, kv_cache):
    """Put one more token per row into the cache: input_ids [B] -> logits [B, n_vocab]."""
    input_ids = utils.check_inputs(input_ids, params["wte"], n_head, n_axes=1)
    return prefill(input_ids[:, None], params, n_head, kv_cache)  # as a prompt of one token: [B] -> [B, 1]


def generate(input_ids, params, n_head, n_tokens_to_generate, attention_mask=None):
    """Greedy decoding: input_ids [B, T] -> the n_tokens_to_generate new ids of each row, B lists of int.

    attention_mask [B, T] as from left_pad; without it all tokens are real. Raises UserError before any compute where a
    prompt and the new tokens do not fit into n_ctx, or where the last column is not real.
    """
    input_ids = utils.check_inputs(input_ids, params["wte"], n_head, n_axes=2)
    B, T = input_ids.shape
    real = utils.check_mask(attention_mask, (B, T), last_real=True)
    utils.check_lengths(np.sum(real, axis=1), n_tokens_to_generate, n_ctx=len(params["wpe"]))
    kv_cache = init_kv_cache(params["wte"], params["blocks"], n_head, B, T_max=T + n_tokens_to_generate)
    output_ids = np.empty((B, n_tokens_to_generate), dtype=int)
    for i in tqdm(range(n_tokens_to_generate), "generating", disable=None, leave=False):
        if i == 0:
            logits = prefill(input_ids, params, n_head, kv_cache, attention_mask)
        else:
            logits = decode_one_token(output_ids[:, i - 1], params, n_head, kv_cache)
        output_ids[:, i] = np.argmax(logits, axis=-1)  # [B, n_vocab] -> [B]
    return output_ids.tolist()


def main(*prompts, n_tokens_to_generate=40, model="tales", models_dir="models", tokenizer="", json=False):
    """Print what the model writes after each prompt, choosing the best token each time.

    Args:
        prompts: one or more prompts, as text.
        n_tokens_to_generate: how many tokens to add.
        model: a model's name or folder.
        models_dir: where models are looked for by name.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
        json: print a JSON object a line instead of plain text.
    """
    encoder, hparams, params = utils.load_model(model, models_dir, tokenizer=tokenizer)
    input_ids, attention_mask = left_pad(utils.encode_prompts(encoder, prompts))
    output_ids = generate(input_ids, params, hparams["n_head"], n_tokens_to_generate, attention_mask)
    utils.print_texts(prompts, output_ids, [encoder.decode(ids) for ids in output_ids], json)


if __name__ == "__main__":
    utils.run(main)
