"""GPT-2 inference in plain NumPy, v6: all cores, and still the same bits.

    python gpt2_v6_threads.py "The fox said" --temperature 0.8 --top_p 0.9 --seed 7 --n_samples 3 --threads 2

Each product of a block of rows and a tile is one call of one shape, whichever thread makes it. So no bit can change.
"""
import functools
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

import utils

ROWS, TILE = 8, 64  # rows in a block; columns in a tile, and keys in a block
SMALL = 4_000_000  # multiplications, or as much other work, are not worth a thread: to wake one takes 30 microseconds


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
    """Softmax over the last axis, in blocks of 64: any shape -> same shape, rows add up to 1; in place with out=x."""
    x = np.subtract(x, np.max(x, axis=-1, keepdims=True), out=out)
    with np.errstate(under="ignore"):  # the weight of a masked score underflows to exactly 0, as it should
        np.exp(x, out=x)
    # A product with ones for each block of 64 keys, then the blocks in order: what is masked adds zeros at the end.
    sums = x.reshape(*x.shape[:-1], -1, 1, TILE) @ np.ones(TILE, x.dtype)  # [..., n_k] -> [..., n_k/64, 1]
    x /= np.cumsum(sums[..., 0], axis=-1)[..., -1:]
    return x


def layer_norm(x, g, b, eps=1e-5):
    """Layer normalization over the last axis (Ba et al. 2016, section 3), then scale g and shift b, both [n_embd]."""

    def norm(x):
        x = x - np.mean(x, axis=-1, keepdims=True)
        variance = np.mean(x * x, axis=-1, keepdims=True)
        x /= np.sqrt(variance + eps)
        return x * g + b

    return in_rows(norm, x, work=80)


def linear(x, w, b):
    """x [..., n_in], w in tiles [n_parts, n_tiles, n_in/n_parts, 64], b [n_out] -> [..., n_out].

    Each call of BLAS multiplies one block of rows by one tile. All calls have one shape, so the bits of a result depend
    on its row and its tile alone: not on other rows, nor on how many there are. They are too small for BLAS to start
    threads, and too small for it to copy the tile into an order of its own first, which takes longer than the product.
    """
    n_parts, n_tiles, n, _ = w.shape
    rows = x.reshape(-1, n_parts, n).swapaxes(0, 1)  # [..., n_in] -> [n_parts, n_rows, n_in/n_parts]
    parts = in_blocks(rows, fewest_rows(n, TILE, x.dtype))  # -> [n_parts, n_blocks, 8, n_in/n_parts]
    y, bias = np.empty((*parts.shape[1:3], n_tiles, TILE), x.dtype), np.resize(b, (n_tiles, TILE))
    size = max(8, 2048 // max(rows.shape[1], 1))  # so many tiles that their products are moved while in the cache

    def multiply(tiles):
        products = functools.reduce(np.add, (part @ tile for part, tile in zip(parts, w[:, tiles, None])))  # in order
        np.add(products.transpose(1, 2, 0, 3), bias[tiles], out=y[:, :, tiles])  # from [n_tiles, n_blocks, 8, 64]

    parallel(multiply, n_tiles, work=w[:, 0].size * y[..., 0, 0].size, at_once=size)
    return y.reshape(-1, n_tiles * TILE)[: rows.shape[1], : len(b)].reshape(*x.shape[:-1], len(b))


def in_blocks(x, fewest):
    """[..., T, n] -> [..., T/8 rounded up, 8, n], filled up with zeros; or one block of `fewest` if T is no more."""
    *batch, T, n = x.shape
    rows = fewest if T <= fewest else ROWS
    if T % rows:
        x = np.concatenate([x, np.zeros((*batch, -T % rows, n), x.dtype)], axis=-2)
    return x.reshape(*batch, -1, rows, n)


def parallel(function, n, work, at_once=None):
    """Call function(slice) for parts of 0 to n that make up the whole, in as many threads as pay.

    work: multiplications for each of the n; at_once: how many a part has at most. An exception reaches the caller when
    no thread is at work any more.
    """
    step, n_threads = at_once or max(n, 1), max(1, min(use_threads.n, n, n * work // SMALL))
    starts = [n * i // n_threads for i in range(n_threads + 1)]

    def share(start, stop):
        for i in range(start, stop, step):
            function(slice(i, min(i + step, stop)))

    others = [pool(use_threads.n, os.getpid()).submit(share, *part) for part in zip(starts[1:], starts[2:])]
    try:
        share(*starts[:2])  # the first one here
    finally:
        errors = [other.exception() for other in others]  # waits
    for error in filter(None, errors):
        raise error


@functools.cache
def pool(n_threads, pid):
    """Threads that sleep until there is work. A process that was forked has none of its parent's, and gets its own."""
    return ThreadPoolExecutor(n_threads)


def use_threads(n=None):
    """Let `parallel` use n threads from now on, or as many as this process has cores, or OMP_NUM_THREADS says."""
    utils.check_settings(threads=n)
    use_threads.n = n or utils.count_threads()


use_threads()


def in_rows(function, x, work):
    """function of x [..., n], which works on each row for itself. work: for each number."""
    rows, y = x.reshape(-1, x.shape[-1]), np.empty(x.shape, x.dtype)
    flat = y.reshape(rows.shape)

    def some(part):
        flat[part] = function(rows[part])

    parallel(some, len(rows), work=work * x.shape[-1])
    return y


def ffn(x, c_fc, c_proj):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3): x -> same shape."""
    x = in_rows(gelu, linear(x, **c_fc), work=40)  # [..., n_embd] -> [..., 4*n_embd]
    return linear(x, **c_proj)  # [..., 4*n_embd] -> [..., n_embd]


def attention(q, k, v, masks):
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1).

    q [..., n_q, d_head], k and v [..., n_slots, d_head], a mask [..., n_q, n_k] for each 64 queries with 0 to see a key
    and -1e10 to hide it -> [..., n_q, d_head]. Blocks of queries are multiplied by blocks of 64 keys.
    """
    *batch, n_q, d_head = q.shape
    fewest = max(fewest_rows(d_head, TILE, q.dtype), fewest_rows(TILE, d_head, q.dtype))
    q, outputs = q / math.sqrt(d_head), np.empty(q.shape, q.dtype)
    for start, mask in zip(range(0, n_q, TILE), masks):
        n_q, n_k = mask.shape[-2:]
        queries = in_blocks(q[..., start : start + TILE, :], fewest)[..., None, :, :]  # -> [..., n_q/8, 1, 8, d_head]
        keys, values = (x[..., :n_k, :].reshape(*batch, 1, n_k // TILE, TILE, d_head) for x in (k, v))
        scores = np.empty((*queries.shape[:-3], queries.shape[-2], n_k // TILE, TILE), q.dtype)
        blocks = scores.swapaxes(-2, -3)  # the same memory as [..., n_q/8, n_k/64, 8, 64]
        np.matmul(queries, keys.swapaxes(-1, -2), out=blocks)
        scores = scores.reshape(*batch, -1, n_k)[..., :n_q, :]  # the same memory as [..., n_q, n_k]
        scores += mask
        softmax(scores, out=scores)
        x = np.sum(blocks @ values, axis=-3)  # in order: [..., n_q/8, n_k/64, 8, d_head] -> [..., n_q/8, 8, d_head]
        outputs[..., start : start + TILE, :] = x.reshape(*batch, -1, d_head)[..., :n_q, :]
    return outputs


def mha(x, c_attn, c_proj, n_head, masks, kv_cache, slots):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2): x [..., T, n_embd] -> same shape."""
    shape = x.shape
    x = linear(x, **c_attn)  # [..., T, n_embd] -> [..., T, 3*n_embd]
    x = x.reshape(*shape[:-1], 3 * n_head, -1).swapaxes(-2, -3)  # [..., T, 3*n_embd] -> [..., 3*n_head, T, d_head]
    q, k, v = np.split(x, 3, axis=-3)  # [..., 3*n_head, T, d_head] -> 3 of [..., n_head, T, d_head]
    rows, columns, positions = slots
    kv_cache[:, rows, :, positions] = np.stack((k, v))[:, rows, :, columns]  # [n_real, 2, n_head, d_head]
    x, (k, v) = np.empty_like(q), kv_cache
    axis = 0 if len(x) >= use_threads.n else 1  # the rows of the batch, or the heads

    def attend(part):
        i = (part,) if axis == 0 else (slice(None), part)
        x[i] = attention(q[i], k[i], v[i], [mask[part] if axis == 0 else mask for mask in masks])

    work = 8 * TILE * sum(mask[0].size for mask in masks) * (x[..., 0, 0].size // x.shape[axis])
    parallel(attend, x.shape[axis], work=work)
    x = x.swapaxes(-2, -3).reshape(shape)  # [..., n_head, T, d_head] -> [..., T, n_embd]
    return linear(x, **c_proj)


def transformer_block(x, mlp, attn, ln_1, ln_2, n_head, masks, kv_cache, slots):
    """One pre-norm block (Radford et al. 2019, section 2.3): x -> same shape."""
    x = x + mha(layer_norm(x, **ln_1), **attn, n_head=n_head, masks=masks, kv_cache=kv_cache, slots=slots)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def gpt2(input_ids, wte, wpe, blocks, ln_f, head, n_head, attention_mask=None, kv_cache=None, n_logits=None):
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
    # A key's slot is its position. A block of slots is set to 0 when it is entered: 0 times a leftover could be NaN.
    new = real[:, n_past:]
    slots = *np.nonzero(new), position_ids[new]  # row, column and position of all but pads
    n_before = np.max(np.sum(kv_cache["real"], axis=1))
    kv_cache["blocks"][..., whole_blocks(n_before) : whole_blocks(np.max(position_ids) + 1), :] = 0
    masks = []  # for 64 queries each, up to the last block of keys that one of them sees
    for positions in np.split(position_ids, range(TILE, T, TILE), axis=1):
        visible = np.arange(whole_blocks(np.max(positions) + 1)) <= positions[:, None, :, None]  # -> [B, 1, 64, n_k]
        masks.append(np.where(visible, 0, -1e10).astype(x.dtype))
    for block, block_cache in zip(blocks, kv_cache["blocks"]):
        x = transformer_block(x, **block, n_head=n_head, masks=masks, kv_cache=block_cache, slots=slots)
    x = x if n_logits is None else x[:, max(T - int(n_logits), 0) :]  # [B, T, n_embd] -> [B, n_logits, n_embd]
    logits = linear(layer_norm(x, **ln_f), **head)  # [..., T, n_embd] -> [..., T, n_vocab]
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

    All its memory is taken here: 2 * n_layer * B * n_head * T_max * d_head * itemsize bytes, T_max in whole blocks.
    """
    utils.check_weights(wte, n_head)
    utils.check_settings(B=B, T_max=T_max)
    shape = len(blocks), 2, B, n_head, whole_blocks(T_max), wte.shape[1] // n_head
    return {"length": 0, "real": np.ones((B, 0), dtype=bool), "blocks": np.empty(shape, wte.dtype)}


def prefill(input_ids, params, n_head, kv_cache, attention_mask=None, chunk=None):
    """Put the prompts into the cache: input_ids [B, T] -> logits [B, n_vocab] of the last position."""
    utils.check_settings(chunk=chunk)
    input_ids = utils.check_inputs(input_ids, params["wte"], n_head, n_axes=2)
    B, T = input_ids.shape
    real = utils.check_mask(attention_mask, (B, T), last_real=True)
    utils.check_kv_cache(kv_cache, real, params["wte"], params["wpe"], params["blocks"], n_head)
    chunk = chunk or max(32, 512 // B)  # small arrays are fast, and the keys of later chunks need no scores
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


def tile_params(params):
    """params -> the same with each weight [n_in, n_out] in tiles [n_parts, n_tiles, n_in/n_parts, 64], and the head.

    The head makes logits, 64 tokens a tile. What a last tile lacks is 0. n_parts is the smallest number of equal parts
    of at most 1023 rows: then 8 rows times a tile are below 2^19 multiplications, where OpenBLAS starts threads.
    """

    def tile(w):
        n_in, n_out = w.shape
        n_parts = next(n for n in range(1, n_in + 1) if n_in % n == 0 and n_in // n <= 1023)
        fewest_rows(n_in // n_parts, TILE, w.dtype)  # find out now
        w = np.pad(w, ((0, 0), (0, -n_out % TILE)))
        return np.ascontiguousarray(w.reshape(n_parts, n_in // n_parts, -1, TILE).swapaxes(1, 2))

    def tiled(tree):
        return {k: tiled(x) if isinstance(x, dict) else tile(x) if k == "w" else x for k, x in tree.items()}

    head = {"w": tile(params["wte"].T), "b": np.zeros(len(params["wte"]), params["wte"].dtype)}
    return {**params, "head": head, "blocks": [tiled(block) for block in params["blocks"]]}


@functools.cache
def fewest_rows(n, m, dtype):
    """4 if BLAS rounds a row times [n, m] in any slot of 4 rows, which are faster, as in any of 8, or else 8.

    Raises UserError where not even 8 slots are alike.
    """
    rng = np.random.default_rng(0)
    rows, matrix = rng.standard_normal((16, 1, n)).astype(dtype), rng.standard_normal((n, m)).astype(dtype)
    orders = matrix, np.asfortranarray(matrix)  # as tiles and as keys lie in memory
    eight, four = (np.concatenate([np.matmul(np.repeat(rows, size, 1), w) for w in orders]) for size in (8, 4))
    if np.any(eight != eight[:, :1]):
        raise utils.UserError("BLAS rounds the rows of a block differently here: gpt2_v4_sampling.py is as exact")
    return 4 if np.array_equal(four, eight[:, :4]) else 8


def whole_blocks(n):
    """n rounded up to whole blocks of 64."""
    return TILE * math.ceil(n / TILE)


def penalize_repetition(logits, seen, penalty):
    """Make tokens that were seen less likely (Keskar et al. 2019, section 4.1): logits [B, n_vocab] -> the same.

    seen: B lists of ids, of which each counts once. A logit above 0 is divided by the penalty, one below multiplied.
    """
    logits = np.copy(logits)
    for row, ids in zip(logits, seen):
        ids = np.array(ids, dtype=int)
        row[ids] = np.where(row[ids] < 0, row[ids] * penalty, row[ids] / penalty)
    return logits


def are_best(x, n, lowest):
    """Which of x [n_vocab] are the n highest, the lowest of which is given -> booleans; ties go by lower id."""
    best = x >= lowest
    surplus = np.count_nonzero(best) - n
    if surplus > 0:
        best[np.flatnonzero(x == lowest)[-surplus:]] = False
    return best


def keep_top_k(logits, top_k):
    """Rule out, with -inf, all but the top_k best (Fan et al. 2018, section 5.1): logits [n_vocab] -> the same."""
    if not 0 < top_k < len(logits):  # 0 is off
        return logits
    return np.where(are_best(logits, top_k, lowest=np.partition(logits, -top_k)[-top_k]), logits, -np.inf)


def keep_top_p(weights, top_p):
    """Set to 0 all but the nucleus (Holtzman et al. 2020, section 3.1): weights [n_vocab] -> the same; 1 is off.

    The nucleus is the fewest heaviest that add up to a share of top_p or more. The one that crosses top_p belongs to
    it, as in Hugging Face's library (OpenAI's sample.py leaves it out).
    """
    if top_p == 1:
        return weights
    ordered = np.sort(weights)[::-1]  # the heaviest first
    last = find_share(ordered, max(top_p - 1e-6, 1e-9))  # a float32 sum may miss top_p by its rounding
    return weights * are_best(weights, last + 1, lowest=ordered[last])


def find_share(weights, share):
    """Where the running sum of weights [n] reaches a share, above 0 up to 1, of the whole -> index."""
    # A running sum over all weights would be the slowest call here: so one over sums of blocks, then one in a block.
    block = 256
    sums = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), block)))
    target = share * sums[-1]
    b = int(np.searchsorted(sums, target))
    target -= sums[b - 1] if b > 0 else 0
    sums = np.cumsum(weights[b * block : (b + 1) * block])
    return b * block + int(np.searchsorted(sums, min(target, sums[-1])))


def draw(logits, generator, temperature, top_k, top_p, min_p):
    """Draw a token from softmax(logits / temperature), or from what top_k, top_p and min_p leave: [n_vocab] -> id.

    min_p (Nguyen et al. 2024, section 3) rules out tokens less likely than min_p times the best.
    """
    logits = keep_top_k(logits, int(top_k))
    with np.errstate(over="ignore", under="ignore"):  # far behind the best, a weight of 0 is what is meant
        weights = np.exp((logits - np.max(logits)) / max(float(temperature), 1e-30))  # the best has weight 1
    weights = keep_top_p(weights, top_p)
    weights *= weights >= min_p
    # The inverse of the cumulative distribution: an even number from 0 to 1 falls on a token as often as it weighs.
    return find_share(weights, 1 - generator.random())


def sample(logits, generators=(), temperature=0.0, top_k=0, top_p=1.0, min_p=0.0):
    """Choose a token per row: logits [B, n_vocab] -> ids [B]. Temperature 0 takes the best one, ties by lower id.

    generators: a np.random.Generator per row, so that a row draws the same numbers in any batch. Raises UserError for
    a setting that makes no sense, and where a row's best logit is NaN or infinite.
    """
    utils.check_settings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    utils.check_logits(logits)
    if temperature == 0:
        return np.argmax(logits, axis=-1)  # [B, n_vocab] -> [B]
    rows = zip(logits, generators, strict=True)
    return np.array([draw(row, generator, temperature, top_k, top_p, min_p) for row, generator in rows])


def log_softmax(logits):
    """Logarithm of the softmax over the last axis: any shape -> same shape."""
    with np.errstate(over="ignore", under="ignore"):
        x = logits - np.max(logits, axis=-1, keepdims=True)
        return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def row_generators(seed, B, n_samples):
    """A generator of random numbers for each row of the result; sample s of prompt b has the stream (seed, b, s).

    seed: a whole number, None for a fresh one, or a list with a seed or a stream for each row.
    """
    if not hasattr(seed, "__len__"):
        seed = [(seed, b, s) for b in range(B) for s in range(n_samples)]
    if len(seed) != B * n_samples:
        raise utils.UserError(f"seed has {len(seed)} row seeds for {B} prompts with n_samples {n_samples}")
    rows = [row if hasattr(row, "__len__") else (row,) for row in seed]
    return [np.random.default_rng(np.random.SeedSequence(first, spawn_key=stream)) for first, *stream in rows]


def generate(
    input_ids, params, n_head, n_tokens_to_generate, attention_mask=None, temperature=0.0, top_k=0, top_p=1.0,
    min_p=0.0, repetition_penalty=1.0, seed=None, n_samples=1, stop_ids=(), on_token=None, logprobs=False,
    progress=True,
):
    """Sampling, or greedy decoding at temperature 0: input_ids [B, T] -> at most n_tokens_to_generate new ids a row.

    attention_mask [B, T] as from left_pad; without it all tokens are real. Raises UserError before any compute where a
    prompt and the new tokens do not fit into n_ctx, or where the last column is not real.

    The result is n_samples lists of int for each prompt, one prompt's after the other's. A list ends before the first
    id that is in stop_ids, or with an id for which on_token(row, id, logprob) returned a true value; logprob is the
    logarithm of the probability that the model itself gave the id, or None without logprobs.
    progress: whether a terminal shows a bar. seed: see row_generators. What a row chooses depends on its prompt and its
    seed, never on the batch: exactly so, whatever the type of the weights.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    switches = {"logprobs": logprobs, "progress": progress}
    utils.check_settings(**sampling, seed=seed, n_samples=n_samples, repetition_penalty=repetition_penalty, **switches)
    input_ids = utils.check_inputs(input_ids, params["wte"], n_head, n_axes=2)
    B, T = input_ids.shape
    real = utils.check_mask(attention_mask, (B, T), last_real=True)
    utils.check_lengths(np.sum(real, axis=1), n_tokens_to_generate, n_ctx=len(params["wpe"]))
    kv_cache = init_kv_cache(params["wte"], params["blocks"], n_head, B, T_max=T + n_tokens_to_generate)
    generators = row_generators(seed, B, n_samples)
    stop_ids = utils.check_ids(stop_ids if np.iterable(stop_ids) else [stop_ids], "stop_ids", len(params["wte"]))
    prompts = [ids[mask].tolist() for ids, mask in zip(input_ids, real)]
    output_ids, next_ids = [[] for _ in generators], np.zeros(B * n_samples, dtype=int)
    running = list(range(B * n_samples))
    for i in tqdm(range(n_tokens_to_generate), "generating", disable=None if progress else True, leave=False):
        if i == 0:
            logits = prefill(input_ids, params, n_head, kv_cache, attention_mask)
            if n_samples > 1:  # each prompt was prefilled once; its samples go on from copies of its row
                logits = np.repeat(logits, n_samples, axis=0)
                kv_cache["real"] = np.repeat(kv_cache["real"], n_samples, axis=0)
                kv_cache["blocks"] = np.repeat(kv_cache["blocks"], n_samples, axis=2)
        else:
            logits = decode_one_token(next_ids, params, n_head, kv_cache)
        # Finished rows stay in the batch, since to take them out the cache would be copied. Nothing is chosen for them.
        logits = logits if len(running) == len(logits) else logits[running]
        scores = logits
        if repetition_penalty != 1:
            seen = [prompts[row // n_samples] + output_ids[row] for row in running]
            scores = penalize_repetition(logits, seen, repetition_penalty)
        next_ids[running] = ids = sample(scores, [generators[row] for row in running], **sampling)
        chosen = log_softmax(logits)[np.arange(len(ids)), ids].tolist() if logprobs else [None] * len(ids)
        for row, token_id, logprob in zip(running[:], ids.tolist(), chosen):
            stopped = token_id in stop_ids
            if not stopped:
                output_ids[row].append(token_id)
                stopped = on_token is not None and on_token(row, token_id, logprob)
            if stopped:
                running.remove(row)
        if not running:
            break
    return output_ids


def main(
    *prompts, n_tokens_to_generate=40, model="tales", models_dir="models", tokenizer="", json=False, temperature=0.0,
    top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed: int = None, n_samples=1, stop=(), ignore_eos=False,
    stream=False, logprobs=False, threads: int = None,
):
    """Print what the model writes after each prompt.

    Args:
        prompts: one or more prompts, as text.
        n_tokens_to_generate: how many tokens to add, at most.
        model: a model's name or folder.
        models_dir: where models are looked for by name.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
        json: print a JSON object a line instead of plain text.
        temperature: 0 takes the best token each time; 1 samples as the model was trained, less is safer, more wilder.
        top_k: choose among the top_k best tokens only; 0 is off.
        top_p: choose among the best tokens that have this probability together; 1 is off.
        min_p: choose among tokens at least min_p times as likely as the best; 0 is off.
        repetition_penalty: above 1, tokens that were there before become less likely.
        seed: a whole number that makes the choices repeatable; without it a fresh one is drawn and shown.
        n_samples: how many continuations of each prompt.
        stop: end a continuation before this text; can be given several times.
        ignore_eos: do not end a continuation at the end of a text, <|endoftext|>.
        stream: print text as it is made.
        logprobs: add each token's log-probability and their sum to the JSON.
        threads: how many to use; without it, as many as there are cores.
    """
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "n_samples": n_samples}
    settings |= {"repetition_penalty": repetition_penalty, "seed": seed}
    utils.check_settings(**settings, n_tokens_to_generate=n_tokens_to_generate)
    stop = utils.read_stop(stop)
    use_threads(threads)
    encoder, hparams, params = utils.load_model(model, models_dir, tokenizer=tokenizer)
    params = tile_params(params)
    input_ids, attention_mask = left_pad(utils.encode_prompts(encoder, prompts))
    settings |= {"seed": utils.choose_seed(seed, temperature), "stop_ids": () if ignore_eos else encoder.stop_ids}
    with utils.Continuations(encoder, prompts, n_tokens_to_generate, n_samples, stop, stream, json, logprobs) as texts:
        settings |= {"on_token": texts.on_token, "logprobs": logprobs, "progress": not stream}
        generate(input_ids, params, hparams["n_head"], n_tokens_to_generate, attention_mask, **settings)


if __name__ == "__main__":
    utils.run(main)
