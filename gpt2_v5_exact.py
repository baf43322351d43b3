"""GPT-2 inference in plain NumPy, v5: the same bits in float32, whatever the batch.

    python gpt2_v5_exact.py "The fox said" --temperature 0.8 --top_p 0.9 --seed 7 --n_samples 3
    python gpt2_v5_exact.py verify --model tales

How BLAS rounds a row depends on the shape of the call and the number of threads, not on other rows. So every call here
has one shape, or one that was seen to round alike: ROWS rows, KEYS keys, filled up with zeros. What is added up is
added in one order. The number of threads has to stay as it was when the model was loaded.
"""
import math
import numbers
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import utils

ROWS, KEYS = 8, 64  # 8 rows is the most that every slot of a call rounds alike for, on all BLAS kernels that were tried


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
    # A running sum adds one by one, however many keys there are; a product with ones is rounded by its shape.
    x /= np.cumsum(x, axis=-1)[..., -1:]
    return x


def layer_norm(x, g, b, eps=1e-5):
    """Layer normalization over the last axis (Ba et al. 2016, section 3), then scale g and shift b, both [n_embd]."""
    x = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(x * x, axis=-1, keepdims=True)
    x /= np.sqrt(variance + eps)
    return x * g + b


def linear(x, w, b=0, row_blocks=(ROWS,)):
    """x [B, T, n_in], w [n_in, n_out], b [n_out] -> [B, T, n_out], in calls of as many rows as row_blocks allows."""
    rows = x.reshape(-1, x.shape[-1])  # [B, T, n_in] -> [B*T, n_in]
    y = np.empty((len(rows), w.shape[-1]), x.dtype)
    start = 0
    while start < len(rows):
        n_rows = next((n for n in row_blocks if n <= len(rows) - start), ROWS)
        block = in_blocks(rows[start : start + n_rows], n_rows)[0]
        y[start : start + n_rows] = (block @ w)[: len(rows) - start]
        start += n_rows
    y += b
    return y.reshape(*x.shape[:-1], w.shape[-1])


def in_blocks(x, size=ROWS):
    """[..., T, n] -> [..., T/size rounded up, size, n], the last block filled up with zeros."""
    *batch, T, n = x.shape
    if T % size:
        x = np.concatenate([x, np.zeros((*batch, -T % size, n), x.dtype)], axis=-2)
    return x.reshape(*batch, -1, size, n)


def ffn(x, c_fc, c_proj):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3): x -> same shape."""
    x = gelu(linear(x, **c_fc))  # [B, T, n_embd] -> [B, T, 4*n_embd]
    return linear(x, **c_proj)  # [B, T, 4*n_embd] -> [B, T, n_embd]


def attention(q, k, v, mask):
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1).

    q [B, n_head, n_q, d_head], k and v [B, n_head, n_k, d_head], mask [B, 1, n_q, n_k] with 0 to see a key and -1e10 to
    hide it -> [B, n_head, n_q, d_head].
    """
    B, n_head, n_q, d_head = q.shape
    # NumPy multiplies np.longdouble itself, adding in order: there one block of all keys is exact.
    keys = k.shape[-2] if q.dtype == np.longdouble else KEYS
    q = in_blocks(q / math.sqrt(d_head))  # [B, n_head, n_q, d_head] -> [B, n_head, n_q/8, 8, d_head]
    blocks = [slice(start, start + keys) for start in range(0, k.shape[-2], keys)]
    scores = np.concatenate([q @ k[:, :, None, block].swapaxes(-1, -2) for block in blocks], axis=-1)
    scores = scores.reshape(B, n_head, -1, k.shape[-2])[:, :, :n_q]  # [..., n_q/8, 8, n_k] -> [B, n_head, n_q, n_k]
    scores += mask
    weights = in_blocks(softmax(scores, out=scores))  # [B, n_head, n_q, n_k] -> [B, n_head, n_q/8, 8, n_k]
    x = 0
    for block in blocks:  # in order; the weights of keys that are hidden are 0 and change nothing
        x = x + weights[..., block] @ v[:, :, None, block]
    return x.reshape(B, n_head, -1, d_head)[:, :, :n_q]  # [..., n_q/8, 8, d_head] -> [B, n_head, n_q, d_head]


def mha(x, c_attn, c_proj, n_head, mask, kv_cache, slots):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2): x -> same shape."""
    B, T, n_embd = x.shape
    x = linear(x, **c_attn)  # [B, T, n_embd] -> [B, T, 3*n_embd]
    x = x.reshape(B, T, 3, n_head, n_embd // n_head)  # [B, T, 3*n_embd] -> [B, T, 3, n_head, d_head]
    q, k, v = x.transpose(2, 0, 3, 1, 4)  # [B, T, 3, n_head, d_head] -> 3 of [B, n_head, T, d_head]
    # A key's slot in the cache is its position, in whatever column its token came.
    for cache, new in zip(kv_cache, (k, v)):
        cache[np.arange(B)[:, None], :, slots] = new.swapaxes(1, 2)  # [B, T, n_head, d_head]
    k, v = kv_cache[:, :, :, : mask.shape[-1]]  # [2, B, n_head, n_slots, d_head] -> 2 views of [B, n_head, n_k, d_head]
    x = attention(q, k, v, mask)
    x = x.swapaxes(1, 2).reshape(B, T, n_embd)  # [B, n_head, T, d_head] -> [B, T, n_embd]
    return linear(x, **c_proj)


def transformer_block(x, mlp, attn, ln_1, ln_2, n_head, mask, kv_cache, slots):
    """One pre-norm block (Radford et al. 2019, section 2.3): x -> same shape."""
    x = x + mha(layer_norm(x, **ln_1), **attn, n_head=n_head, mask=mask, kv_cache=kv_cache, slots=slots)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def gpt2(
    input_ids, wte, wpe, blocks, ln_f, n_head, attention_mask=None, kv_cache=None, n_logits=None, row_blocks=(ROWS,)
):
    """GPT-2 (Radford et al. 2019): input_ids [B, T] -> logits [B, T, n_vocab], scores of the token after each.

    With a kv_cache the T tokens follow the n_past that it holds, and their keys and values are added to it. n_logits
    limits the logits to the last positions. attention_mask [B, n_past + T or more] is 1 for real tokens and 0 for pads;
    without it all are real. Logits of pads mean nothing. row_blocks is for the product that makes the logits.
    """
    input_ids = np.asarray(input_ids)
    check_ids(input_ids, n_vocab=len(wte))
    B, T = input_ids.shape
    if kv_cache is None:
        kv_cache = init_kv_cache(wte, blocks, n_head, B, T)
    n_past, n_rows, T_max = kv_cache["length"], kv_cache["blocks"].shape[2], kv_cache["blocks"].shape[-2] - 1
    if n_rows != B or n_past + T > T_max:
        raise ValueError(f"kv_cache holds {n_past} of {T_max} tokens in {n_rows} rows: no room for {T} more in {B}")
    if attention_mask is None:
        attention_mask = np.ones((B, n_past + T), dtype=int)
    real = np.asarray(attention_mask, dtype=bool)[:, : n_past + T]
    if real.shape != (B, n_past + T):
        raise ValueError(f"attention_mask must be {[B, n_past + T]} or wider, not {list(np.shape(attention_mask))}")
    # Positions count real tokens. A pad has none: without the clip its -1 would silently be the last row of wpe.
    position_ids = np.clip(np.cumsum(real, axis=1) - 1, 0, None)[:, n_past:]  # [B, n_past+T] -> [B, T]
    x = wte[input_ids] + wpe[position_ids]  # [B, T] -> [B, T, n_embd]
    slots = np.where(real[:, n_past:], position_ids, -1)  # [B, T]; pads go to the last slot, which no query looks at
    n_k = KEYS * (1 + np.max(position_ids) // KEYS)  # more keys than a row has are hidden from it and change nothing
    visible = np.arange(n_k) <= position_ids[:, None, :, None]  # -> [B, 1, T, n_k]
    mask = np.where(visible, 0, -1e10).astype(x.dtype)  # [B, 1, T, n_k]
    for block, block_cache in zip(blocks, kv_cache["blocks"]):
        x = transformer_block(x, **block, n_head=n_head, mask=mask, kv_cache=block_cache, slots=slots)
    kv_cache["length"] += T
    if n_logits is not None:
        x = x[:, max(T - n_logits, 0) :]  # [B, T, n_embd] -> [B, n_logits, n_embd]
    return linear(layer_norm(x, **ln_f), wte.T, row_blocks=row_blocks)  # [B, T, n_embd] -> [B, T, n_vocab]


def left_pad(prompts, pad_id=0):
    """Lists of ids -> input_ids [B, T] and attention_mask [B, T], 1 = real; T is the length of the longest prompt.

    Pads stand on the left, so that the last column is a real token in every row, the one to continue from.
    """
    prompts = list(prompts)
    check_lengths([len(ids) for ids in prompts], 0, n_ctx=math.inf)
    T = max(len(ids) for ids in prompts)
    input_ids = np.array([[pad_id] * (T - len(ids)) + list(ids) for ids in prompts])
    attention_mask = np.array([[0] * (T - len(ids)) + [1] * len(ids) for ids in prompts])
    return input_ids, attention_mask


def check_ids(input_ids, n_vocab):
    """Raise ValueError unless all are ids of tokens, 0 to n_vocab - 1. NumPy would count negative ones from the end."""
    if input_ids.dtype.kind not in "iu" or np.any(input_ids < 0) or np.any(input_ids >= n_vocab):
        raise ValueError(f"input_ids must be whole numbers from 0 to {n_vocab - 1}, the ids of the model's tokens")


def check_lengths(lengths, n_tokens_to_generate, n_ctx):
    """Raise ValueError unless every prompt, given by its length in tokens, and what is to follow it fit into n_ctx."""
    if n_tokens_to_generate < 0:
        raise ValueError(f"n_tokens_to_generate must be 0 or more, not {n_tokens_to_generate}")
    if len(lengths) == 0:
        raise ValueError("there is no prompt")
    for i, length in enumerate(lengths):
        if length == 0:
            raise ValueError(f"prompt {i} has no tokens; start from the <|endoftext|> token")
        if length + n_tokens_to_generate > n_ctx:
            raise ValueError(
                f"prompt {i} has {length} tokens and {n_tokens_to_generate} are to be generated, but the model's limit "
                f"n_ctx is {n_ctx}: shorten the prompt or generate fewer"
            )


def init_kv_cache(wte, blocks, n_head, B, T_max):
    """An empty cache of keys and values for B rows of up to T_max tokens each. It belongs to the caller.

    All its memory is taken here: 2 * n_layer * B * n_head * n_slots * d_head * itemsize bytes, where n_slots is T_max
    rounded up to whole blocks of KEYS, and one more for pads. All are 0 at first: 0 times a leftover could be NaN.
    """
    n_slots = KEYS * math.ceil(T_max / KEYS) + 1
    return {"length": 0, "blocks": np.zeros((len(blocks), 2, B, n_head, n_slots, wte.shape[1] // n_head), wte.dtype)}


def prefill(input_ids, params, n_head, kv_cache, attention_mask=None, chunk=None):
    """Put the prompts into the cache: input_ids [B, T] -> logits [B, n_vocab] of the last position."""
    B, T = input_ids.shape
    chunk = chunk or max(32, 256 // B)  # small arrays are fast, and the keys of later chunks need no scores
    for start in range(0, T, chunk):
        cached = {"attention_mask": attention_mask, "kv_cache": kv_cache, "n_logits": int(start + chunk >= T)}
        logits = gpt2(input_ids[:, start : start + chunk], **params, n_head=n_head, **cached)
    return logits[:, -1]


def decode_one_token(input_ids, params, n_head, kv_cache, attention_mask=None):
    """Put one more token per row into the cache: input_ids [B] -> logits [B, n_vocab]."""
    return gpt2(input_ids[:, None], **params, n_head=n_head, attention_mask=attention_mask, kv_cache=kv_cache)[:, -1]


def with_row_blocks(params, n_head, sizes=(512, 256, 128, 64, 32, 16)):
    """params -> params that let `linear` take more rows at a time, where this machine's BLAS rounds them as it does 8.

    Each shape of the model is tried with each size, slot by slot and bit by bit. Raises ValueError where not even the
    slots of a block of 8 rows are rounded alike, because nothing here would be exact.
    """
    rng, tried = np.random.default_rng(0), {}

    def alike(w, sizes):
        key = w.shape, w.strides
        if key not in tried:
            x = rng.standard_normal((max(sizes, default=ROWS), len(w))).astype(w.dtype)
            expected = np.concatenate([block @ w for block in in_blocks(x)])
            turned = [np.roll(np.roll(x[:ROWS], slot, axis=0) @ w, -slot, axis=0) for slot in range(ROWS)]
            if not all(np.array_equal(y, expected[:ROWS]) for y in turned):
                raise ValueError("BLAS rounds the rows of a block differently here, so gpt2_v4_sampling.py is as exact")
            products = {n: np.concatenate([block @ w for block in in_blocks(x, n)]) for n in sizes}
            tried[key] = (*(n for n in sizes if np.array_equal(products[n], expected)), ROWS)
        return tried[key]

    d_head = params["wte"].shape[1] // n_head
    keys = rng.standard_normal((KEYS, d_head)).astype(params["wte"].dtype)
    alike(keys.T, sizes=()), alike(keys, sizes=())  # the two products of attention are made with ROWS alone
    blocks = [
        {
            **block,
            "attn": {name: {**p, "row_blocks": alike(p["w"], sizes)} for name, p in block["attn"].items()},
            "mlp": {name: {**p, "row_blocks": alike(p["w"], sizes)} for name, p in block["mlp"].items()},
        }
        for block in params["blocks"]
    ]
    few = [n for n in sizes if n <= 64]  # logits are wanted of one position of each prompt
    return {**params, "blocks": blocks, "row_blocks": alike(params["wte"].T, few)}


def penalize_repetition(logits, seen, penalty):
    """Make tokens that were seen less likely (Keskar et al. 2019, section 4.1): logits [B, n_vocab] -> the same.

    seen: B lists of ids, of which each counts once. A logit above 0 is divided by the penalty, one below multiplied.
    """
    if penalty == 1:
        return logits
    logits = np.copy(logits)
    for row, ids in zip(logits, seen):
        ids = np.array(ids, dtype=int)  # indexing would make one out of the list each time
        row[ids] = np.where(row[ids] < 0, row[ids] * penalty, row[ids] / penalty)
    return logits


def apply_temperature(logits, temperature):
    """Sharpen (below 1) or flatten (above 1) the distribution (Ackley et al. 1985): logits [B, n_vocab] -> the same."""
    with np.errstate(over="ignore"):  # far below the best, -inf is what is meant
        return (logits - np.max(logits, axis=-1, keepdims=True)) / max(float(temperature), 1e-30)


def keep_top_k(logits, top_k):
    """Rule out all but the top_k best tokens (Fan et al. 2018, section 5.1): logits [B, n_vocab] -> the same.

    Ties go by lower id. What is ruled out gets -inf. top_k 0, or more than there are tokens, rules out none.
    """
    n_vocab = logits.shape[-1]
    if not 0 < top_k < n_vocab:
        return logits
    kept = np.full_like(logits, -np.inf)
    # Sorting all tokens would take longer than the model. At least top_k of them reach the top_k-th best of the maxima
    # of small blocks, and not many more: only those are sorted.
    block_starts = np.arange(0, n_vocab, max(1, n_vocab // (4 * top_k)))
    for row, kept_row in zip(logits, kept):
        bound = np.sort(np.maximum.reduceat(row, block_starts))[-top_k]
        ids = np.flatnonzero(row >= bound)
        ids = ids[np.argsort(-row[ids], kind="stable")][:top_k]
        kept_row[ids] = row[ids]
    return kept


def find_share(weights, share):
    """The token at which the running sum of weights [n_vocab] crosses a share, above 0 up to 1, of the whole -> id."""
    block = 256  # sums of blocks first, then one by one within a block: a running sum over all would be slow
    sums = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), block)))
    target = share * sums[-1]
    b = int(np.searchsorted(sums, target))
    target -= sums[b - 1] if b > 0 else 0
    sums = np.cumsum(weights[b * block : (b + 1) * block])
    return b * block + int(np.searchsorted(sums, min(target, sums[-1])))


def ahead_of(weights, i):
    """weights [n_vocab] -> the same for tokens that rank ahead of i, heavier or as heavy with a lower id; else 0."""
    ahead = weights > weights[i]
    ahead[:i] |= weights[:i] == weights[i]
    return weights * ahead


def draw(logits, generators, top_p=1.0, min_p=0.0):
    """Draw a token per row from the nucleus (top-p) of softmax(logits), one generator per row: [B, n_vocab] -> ids [B].

    The nucleus (Holtzman et al. 2020, section 3.1) is the fewest best tokens that add up to a probability of top_p or
    more: the one that crosses top_p belongs, as in Hugging Face's library (OpenAI's sample.py leaves it out), and the
    best one always does. min_p (Nguyen et al. 2024, section 3) rules out tokens less likely than min_p times the best.
    """
    ids = []
    for row, generator in zip(logits, generators, strict=True):
        with np.errstate(under="ignore"):
            weights = np.exp(row - np.max(row))  # the best has weight 1
        if top_p < 1:  # a sum may miss top_p by its rounding; and none ahead, as of the best, is never enough
            enough = max(top_p - 1e-6, 1e-9) * np.sum(weights)
        if min_p > 0:
            weights *= weights >= min_p
        i = find_share(weights, 1 - generator.random())
        # No sorting: if the tokens ahead of i are enough, then neither it nor any behind it is in the nucleus. To draw
        # again among those ahead leaves the odds within the nucleus as they are.
        while top_p < 1 and np.sum(ahead := ahead_of(weights, i)) >= enough:
            weights = ahead
            i = find_share(weights, 1 - generator.random())
        ids.append(i)
    return np.array(ids)


def sample(logits, generators=(), temperature=0.0, top_k=0, top_p=1.0, min_p=0.0):
    """Choose a token per row: logits [B, n_vocab] -> ids [B]. Temperature 0 chooses the best one, ties by lower id.

    generators: a np.random.Generator per row, so that a row draws the same numbers in any batch. Raises ValueError for
    a setting that makes no sense, and for logits with NaN or +inf or nothing but -inf.
    """
    check_sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    best = np.argmax(logits, axis=-1)  # [B, n_vocab] -> [B]
    check_logits(np.take_along_axis(logits, best[:, None], axis=-1))  # argmax finds NaN too
    if temperature == 0:
        return best
    ids = []
    for row, generator in zip(logits, generators, strict=True):  # one at a time: it fits the processor's caches
        row = keep_top_k(row[None], top_k)  # [n_vocab] -> [1, n_vocab]
        kept = np.flatnonzero(row > -np.inf) if top_k > 0 else slice(None)  # the rest is nothing but work
        i = draw(apply_temperature(row[:, kept], temperature), [generator], top_p, min_p)  # [1, n_kept] -> [1]
        ids.extend(i if top_k == 0 else kept[i])
    return np.array(ids)


def check_logits(best):
    """Raise ValueError where the best logits of rows, any shape, show that a row is of no use."""
    if not np.all(np.isfinite(best)):
        raise ValueError("the logits hold NaN or infinity: the weights are damaged, or do not fit the model")


def check_sampling(**settings):
    """Raise ValueError, by name, for a setting that makes no sense."""
    limits = {
        "temperature": (numbers.Real, 0, 1e30), "top_k": (numbers.Integral, 0, math.inf),
        "top_p": (numbers.Real, 0, 1), "min_p": (numbers.Real, 0, 1),
        "repetition_penalty": (numbers.Real, 1e-30, 1e30), "n_samples": (numbers.Integral, 1, math.inf),
        "seed": (numbers.Integral, 0, math.inf), "batch_size": (numbers.Integral, 1, math.inf),
        "chunk": (numbers.Integral, 1, math.inf),
    }  # fmt: skip
    for name, value in settings.items():
        kind, low, high = limits[name]
        if not isinstance(value, kind) or not low <= value <= high:
            what = "a whole number" if kind is numbers.Integral else "a number"
            limit = f"{low} or more" if high == math.inf else f"from {low} to {high}"
            raise ValueError(f"{name} must be {what}, {limit}, not {value!r}")


def log_softmax(logits):
    """Logarithm of the softmax over the last axis: any shape -> same shape. Raises ValueError as `sample` does."""
    best = np.max(logits, axis=-1, keepdims=True)
    check_logits(best)
    with np.errstate(over="ignore", under="ignore"):
        x = logits - best
        return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def score(prompts, params, n_head, batch_size=16, chunk=32):
    """How likely the model finds texts: lists of ids -> for each {"logprobs", "logprob", "perplexity"}.

    logprobs: the natural logarithm of the probability of each id but the first, which is only looked back on (put
    <|endoftext|> there to have a text scored from its first word); logprob: their sum; perplexity: exp of minus their
    mean. Raises ValueError for a text of less than two ids or longer than n_ctx, and for logits that are not finite.
    """
    check_sampling(batch_size=batch_size, chunk=chunk)
    if len(prompts) == 0:
        return []
    check_lengths([len(ids) for ids in prompts], 0, n_ctx=len(params["wpe"]))
    if any(len(ids) < 2 for ids in prompts):
        raise ValueError("a text needs two tokens or more to be scored; <|endoftext|> can stand in front")
    scores = []
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        input_ids, attention_mask = left_pad(batch)
        check_ids(input_ids, n_vocab=len(params["wte"]))
        B, T = input_ids.shape
        kv_cache = init_kv_cache(params["wte"], params["blocks"], n_head, B, T)
        chunks = []
        for start in range(0, T - 1, chunk):  # a chunk at a time: logits for all positions would be large
            stop = min(start + chunk, T - 1)
            ids, next_ids = input_ids[:, start:stop], input_ids[:, start + 1 : stop + 1]
            logits = gpt2(ids, **params, n_head=n_head, attention_mask=attention_mask, kv_cache=kv_cache)
            chunks.append(np.take_along_axis(log_softmax(logits), next_ids[..., None], axis=-1)[..., 0])
        for ids, row in zip(batch, np.concatenate(chunks, axis=1)):  # [B, T-1]
            logprobs = row[T - len(ids) :].tolist()  # without those of pads
            with np.errstate(over="ignore"):
                perplexity = np.exp(-sum(logprobs) / len(logprobs)).item()
            scores.append({"logprobs": logprobs, "logprob": sum(logprobs), "perplexity": perplexity})
    return scores


def generate(
    input_ids, params, n_head, n_tokens_to_generate, attention_mask=None, temperature=0.0, top_k=0, top_p=1.0,
    min_p=0.0, repetition_penalty=1.0, seed=None, n_samples=1, stop_ids=(), on_token=None, logprobs=False,
):
    """Sampling, or greedy decoding at temperature 0: input_ids [B, T] -> at most n_tokens_to_generate new ids a row.

    attention_mask [B, T] as from left_pad; without it all tokens are real. Raises ValueError before any compute where a
    prompt and the new tokens do not fit into n_ctx, or where the last column is not real.

    The result is n_samples lists of int for each prompt, one prompt's after the other's. A list ends before the first
    id that is in stop_ids, or with an id for which on_token(row, its new ids so far) returned a true value. With
    logprobs the result is a pair: the ids, and for each of them the log-probability that the model itself gave it.

    seed: an int, from which sample s of prompt b takes the row seed (seed, b, s), or a list with a row seed for each
    list of the result; None is a fresh one. What a row chooses depends on its prompt and its row seed, to the bit, and
    never on the batch.
    """
    check_sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    check_sampling(repetition_penalty=repetition_penalty, n_samples=n_samples)
    input_ids = np.asarray(input_ids)
    if attention_mask is None:
        attention_mask = np.ones(input_ids.shape, dtype=int)
    attention_mask = np.asarray(attention_mask, dtype=bool)
    if input_ids.ndim != 2 or attention_mask.shape != input_ids.shape:
        raise ValueError("input_ids and attention_mask must be [B, T] both; left_pad makes them from lists of ids")
    B, T = input_ids.shape
    check_lengths(np.sum(attention_mask, axis=1).tolist(), n_tokens_to_generate, n_ctx=len(params["wpe"]))
    if not np.all(attention_mask[:, -1]):
        raise ValueError("attention_mask has pads on the right; pads go on the left, as left_pad puts them")
    if not hasattr(seed, "__len__"):
        seed = np.random.SeedSequence().entropy if seed is None else seed
        check_sampling(seed=seed)
        seed = [(seed, b, s) for b in range(B) for s in range(n_samples)]
    for row_seed in seed:  # each an int or several
        for number in np.atleast_1d(np.array(row_seed, dtype=object)):
            check_sampling(seed=number)
    if len(seed) != B * n_samples:
        raise ValueError(f"seed has {len(seed)} row seeds for {B} prompts with n_samples {n_samples}")
    generators = [np.random.default_rng(row_seed) for row_seed in seed]
    stop_ids = {stop_ids} if isinstance(stop_ids, numbers.Integral) else set(stop_ids)
    prompts = [ids[mask].tolist() for ids, mask in zip(input_ids, attention_mask)]
    attention_mask = np.pad(attention_mask, ((0, 0), (0, n_tokens_to_generate)), constant_values=1)  # new: real
    kv_cache = init_kv_cache(params["wte"], params["blocks"], n_head, B, T_max=T + n_tokens_to_generate)
    output_ids, output_logprobs = [[] for _ in generators], [[] for _ in generators]
    next_ids = np.zeros(B * n_samples, dtype=int)
    running = list(range(B * n_samples))
    for i in tqdm(range(n_tokens_to_generate), "generating", disable=None if on_token is None else True, leave=False):
        if i == 0:
            logits = prefill(input_ids, params, n_head, kv_cache, attention_mask)
            if n_samples > 1:  # each prompt was prefilled once; its samples go on from copies of its row
                logits, attention_mask = (np.repeat(x, n_samples, axis=0) for x in (logits, attention_mask))
                kv_cache["blocks"] = np.repeat(kv_cache["blocks"], n_samples, axis=2)
        else:
            logits = decode_one_token(next_ids, params, n_head, kv_cache, attention_mask)
        # Finished rows stay in the batch, since to take them out the cache would be copied. Nothing is chosen for them.
        logits = logits if len(running) == len(logits) else logits[running]
        seen = [prompts[r // n_samples] + output_ids[r] for r in running]
        scores = penalize_repetition(logits, seen, repetition_penalty)
        ids = sample(scores, [generators[r] for r in running], temperature, top_k, top_p, min_p)
        next_ids[running] = ids
        if logprobs:
            chosen = np.take_along_axis(log_softmax(logits), ids[:, None], axis=-1)[:, 0].tolist()
        for n, r in enumerate(list(running)):
            finished = ids[n] in stop_ids
            if not finished:
                output_ids[r].append(int(ids[n]))
                output_logprobs[r] += chosen[n : n + 1] if logprobs else []
                finished = on_token is not None and on_token(r, output_ids[r])
            if finished:
                running.remove(r)
        if not running:
            break
    return (output_ids, output_logprobs) if logprobs else output_ids


def main(
    *prompts, n_tokens_to_generate=40, model="tales", models_dir="models", json=False, temperature=0.0, top_k=0,
    top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed: int = None, n_samples=1, stop=(), ignore_eos=False,
    stream=False, logprobs=False, prompts_file=None, out=None, batch_size=16,
):
    """Print what the model writes after each prompt.

    Args:
        prompts: one or more prompts, as text.
        n_tokens_to_generate: how many tokens to add, at most.
        model: a model's name or folder.
        models_dir: where models are looked for by name.
        json: print a JSON object a line instead of plain text.
        temperature: 0 takes the best token each time; 1 samples as the model was trained, less is safer, more wilder.
        top_k: choose among the top_k best tokens only; 0 is off.
        top_p: choose among the best tokens that have this probability together; 1 is off.
        min_p: choose among tokens at least min_p times as likely as the best; 0 is off.
        repetition_penalty: above 1, tokens that were there before become less likely.
        seed: a whole number that makes the choices repeatable; without it a fresh one is drawn and shown.
        n_samples: how many continuations of each prompt.
        stop: end a continuation before this text; can be given several times.
        ignore_eos: do not end a continuation at <|endoftext|>.
        stream: print text as it is made.
        logprobs: add each token's log-probability and their sum to the JSON.
        prompts_file: a file with a prompt a line, or JSON lines with "prompt" and maybe "id"; - is standard input.
        out: write JSON lines to this file; started again after a break, the same command does what is left.
        batch_size: how many prompts to run at once.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling |= {"repetition_penalty": repetition_penalty, "n_samples": n_samples}
    check_sampling(**sampling, batch_size=batch_size, seed=0 if seed is None else seed)
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    utils.check_output(stop, stream, out)
    records = utils.read_prompts(prompts, prompts_file)
    encoder, hparams, params = utils.load_model(model, models_dir)
    params = with_row_blocks(params, hparams["n_head"])
    prompt_ids = utils.encode_prompts(encoder, [record["prompt"] for record in records])
    check_lengths([len(ids) for ids in prompt_ids], n_tokens_to_generate, hparams["n_ctx"])

    def complete(batch, seeds, on_token):
        input_ids, attention_mask = left_pad(batch)
        settings = {**sampling, "seed": seeds, "on_token": on_token, "logprobs": logprobs}
        settings["stop_ids"] = () if ignore_eos else (encoder.eot,)
        return generate(input_ids, params, hparams["n_head"], n_tokens_to_generate, attention_mask, **settings)

    settings = {**sampling, "seed": seed, "batch_size": batch_size, "n_tokens_to_generate": n_tokens_to_generate}
    settings |= {"stop": stop, "ignore_eos": ignore_eos, "logprobs": logprobs, "model": model, "models_dir": models_dir}
    utils.complete_prompts(complete, encoder, records, prompt_ids, settings, stream, json or logprobs, out)


def differing_bits(version, params, n_head, prompts, rng):
    """Logits of prompts in one batch, padded, also cached and in pieces -> how many were compared with those of each
    prompt alone, and how many bits differ. version: a module with the functions of this one; prompts: lists of ids.
    """
    alone = [version.gpt2([ids], **params, n_head=n_head)[0] for ids in prompts]
    order = rng.permutation(len(prompts))
    input_ids, attention_mask = version.left_pad([prompts[i] for i in order])
    B, T = input_ids.shape
    call = {**params, "n_head": n_head, "attention_mask": attention_mask}
    whole = version.gpt2(input_ids, **call)
    kv_cache = version.init_kv_cache(params["wte"], params["blocks"], n_head, B, T)
    last = max(1, T - 4)  # these last ones one by one, what is before them in three pieces
    cuts = [0, *np.sort(rng.integers(0, last, 2)).tolist(), *range(last, T + 1)]
    pieces = [input_ids[:, start:stop] for start, stop in zip(cuts, cuts[1:]) if start < stop]
    cached = np.concatenate([version.gpt2(ids, **call, kv_cache=kv_cache) for ids in pieces], axis=1)
    n_logits = n_bits = 0
    for logits in (whole, cached):  # [B, T, n_vocab]
        for row, i in zip(logits, order):
            different = row[-len(prompts[i]) :].view(np.uint32) ^ alone[i].view(np.uint32)
            n_logits, n_bits = n_logits + different.size, n_bits + int(np.unpackbits(different.view(np.uint8)).sum())
    return n_logits, n_bits


def verify(model="tales", models_dir="models", n_rounds=3, batch_size=6, max_length=150, seed=0):
    """Check on this machine that a prompt has the same logits, to the bit, in any batch, padded, cached and in chunks.

    Exit status 0 if no bit differs, 1 otherwise. Beside it stands how many differ in gpt2_v4_sampling.py.

    Args:
        model: a model's name or folder, or "random" for random weights in the shape of 124M.
        models_dir: where models are looked for by name.
        n_rounds: how many batches are made.
        batch_size: prompts in a batch.
        max_length: length of the longest prompt, in tokens.
        seed: a whole number that makes the prompts.
    """
    import gpt2_v4_sampling

    check_sampling(batch_size=batch_size, seed=seed)
    if n_rounds < 1 or max_length < 1:
        raise ValueError(f"n_rounds and max_length must be 1 or more, not {n_rounds} and {max_length}")
    if model == "random":
        hparams, params = utils.GPT2_124M, utils.random_params(utils.GPT2_124M)
    else:
        _, hparams, params = utils.load_model(model, models_dir)
    exact = with_row_blocks(params, hparams["n_head"])
    print(f"BLAS: {utils.blas_in_use()}")
    rows = [exact["blocks"][0]["mlp"]["c_fc"]["row_blocks"][0], exact["row_blocks"][0]]
    print(f"rows at a time: up to {rows[0]}, for logits up to {rows[1]}")
    max_length, n_bits = min(max_length, hparams["n_ctx"]), {}
    for version, weights in ((sys.modules[__name__], exact), (gpt2_v4_sampling, params)):
        rng, counts = np.random.default_rng(seed), np.zeros(2, dtype=int)
        for _ in tqdm(range(n_rounds), "verifying", disable=None, leave=False):
            lengths = [max_length, *rng.integers(1, max_length + 1, batch_size - 1)]
            prompts = [rng.integers(0, hparams["n_vocab"], length).tolist() for length in lengths]
            counts += differing_bits(version, weights, hparams["n_head"], prompts, rng)
        name = Path(version.__file__).name
        print(f"{name}: {counts[0]:,} logits compared with those of each prompt alone, {counts[1]:,} bits differ")
        n_bits[name] = counts[1]
    sys.exit(1 if n_bits["gpt2_v5_exact.py"] else 0)


if __name__ == "__main__":
    utils.run(main, verify=verify)
