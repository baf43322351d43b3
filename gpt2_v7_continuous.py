"""GPT-2 inference in plain NumPy, v7: no pads, and rows that come and go.

    python gpt2_v7_continuous.py "One day" "There was a poor woodcutter who" --n_tokens_to_generate 30

All that a forward pass has to know of a token is its id, its row in the cache and its position there. So a step takes a
flat list of tokens: of prompts that have just come, and of rows that are being continued. A row that ends gives its
place to the next prompt (continuous batching; Yu et al. 2022, Orca).
"""
import functools
import math
import os
from collections import deque
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


def mha(x, c_attn, c_proj, n_head, groups, kv_cache, slots):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2): x [N, n_embd] -> same shape."""
    x = linear(x, **c_attn)  # [N, n_embd] -> [N, 3*n_embd]
    q, k, v = np.split(x.reshape(len(x), 3 * n_head, -1), 3, axis=1)  # [N, 3*n_embd] -> 3 of [N, n_head, d_head]
    rows, position_ids = slots
    kv_cache[:, rows, :, position_ids] = np.stack((k, v), axis=1)  # [N, 2, n_head, d_head]
    x = np.empty_like(q)

    def attend(heads):
        for members, tokens, real, masks in groups:
            queries, (k, v) = q[tokens, heads].swapaxes(1, 2), kv_cache[:, members, heads]  # -> [R, n_head, n, d_head]
            x[tokens[real], heads] = attention(queries, k, v, masks).swapaxes(1, 2)[real]  # -> [n_real, n_head, d_head]

    parallel(attend, n_head, work=8 * TILE * sum(mask.size for *_, masks in groups for mask in masks))
    return linear(x.reshape(len(x), -1), **c_proj)  # [N, n_head, d_head] -> [N, n_embd]


def transformer_block(x, mlp, attn, ln_1, ln_2, n_head, groups, kv_cache, slots):
    """One pre-norm block (Radford et al. 2019, section 2.3): x -> same shape."""
    x = x + mha(layer_norm(x, **ln_1), **attn, n_head=n_head, groups=groups, kv_cache=kv_cache, slots=slots)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def gpt2(input_ids, rows, position_ids, wte, wpe, blocks, ln_f, head, n_head, kv_cache, wanted):
    """GPT-2 (Radford et al. 2019): N tokens -> logits [M, n_vocab] of the `wanted` ones, M places among the N.

    input_ids [N]; rows [N]: the row of the cache that each belongs to; position_ids [N]: its position in it. The tokens
    of a row go on from those that the cache holds, or replace its last ones, and are added to it.
    """
    input_ids = utils.check_inputs(input_ids, wte, n_head, n_axes=1)
    utils.check_cache_rows(kv_cache, wte, blocks, n_head)
    rows, position_ids, wanted = utils.check_places(rows, position_ids, wanted, len(input_ids), kv_cache, wpe)
    x = wte[input_ids] + wpe[position_ids]  # [N] -> [N, n_embd]
    for row, position in zip(rows.tolist(), position_ids.tolist()):
        del kv_cache["ids"][row][position:]
    # Where no row has been before, all rows are set to 0: even a weight of 0 times what was in memory could be NaN.
    n_slots = max(kv_cache["n_clean"], whole_blocks(np.max(position_ids) + 1))
    kv_cache["blocks"][..., kv_cache["n_clean"] : n_slots, :] = 0
    kv_cache["n_clean"] = n_slots
    groups, slots = group_by_row(rows, position_ids, kv_cache["blocks"]), (rows, position_ids)
    for block, block_cache in zip(blocks, kv_cache["blocks"]):
        x = transformer_block(x, **block, n_head=n_head, groups=groups, kv_cache=block_cache, slots=slots)
    logits = linear(layer_norm(x[wanted], **ln_f), **head)  # [N, n_embd] -> [M, n_embd] -> [M, n_vocab]
    for row, token_id in zip(rows.tolist(), input_ids.tolist()):  # last, so that a call that was broken off adds none
        kv_cache["ids"][row].append(token_id)
    return logits


def group_by_row(rows, position_ids, cached):
    """Tokens whose attention is computed at once -> groups (members, tokens, real, masks).

    members: a slice of R neighbouring rows of the cache. tokens [R, n]: the places of their tokens among the N.
    real [R, n]: False where a row has fewer than n. masks: see attention. The rows of a group have equally many blocks
    of queries, and as many blocks of keys are read in each as the longest has: a call for each row may cost more.
    """
    block = 2 * TILE * cached.shape[3] * cached.shape[5] * cached.itemsize  # bytes of 64 keys and values of a row
    runs, groups = [], []
    for row in np.unique(rows).tolist():
        places = np.flatnonzero(rows == row)
        new = row, places, math.ceil(len(places) / ROWS), math.ceil((position_ids[places[-1]] + 1) / TILE)
        run = [*runs[-1], new] if runs else [new]
        n_keys = [n for *_, n in run]
        wasted = (len(run) * max(n_keys) - sum(n_keys)) * block
        if len(run) == 1 or wasted > (len(run) - 1) * 400_000 or (run[-2][0] + 1, run[-2][2]) != (row, new[2]):
            runs.append([new])
        else:
            runs[-1] = run
    for run in runs:
        lengths = np.array([len(places) for _, places, *_ in run])
        real = np.arange(max(lengths)) < lengths[:, None]  # [R] -> [R, n]
        tokens = np.zeros(real.shape, dtype=int)
        tokens[real] = np.concatenate([places for _, places, *_ in run])
        masks = []  # for 64 queries each, up to the last block of keys that one of them sees: [R, 1, 64, n_k]
        for positions in np.split(np.where(real, position_ids[tokens], 0), range(TILE, max(lengths), TILE), axis=1):
            visible = np.arange(whole_blocks(np.max(positions) + 1)) <= positions[:, None, :, None]
            masks.append(np.where(visible, 0, -1e10).astype(cached.dtype))
        groups.append((slice(run[0][0], run[-1][0] + 1), tokens, real, masks))
    return groups


def init_kv_cache(wte, blocks, n_head, n_rows, T_max, n_bytes=None):
    """An empty cache of keys and values for n_rows rows of up to T_max tokens each. It belongs to the caller.

    All its memory is taken here: 2 * n_layer * n_rows * n_head * T_max * d_head * itemsize bytes, T_max in whole
    blocks. If this is more than n_bytes, it has fewer rows; raises UserError where not even one fits.
    "ids": for each row the tokens whose keys and values it holds. "n_reused": how many were copied and not computed.
    """
    utils.check_weights(wte, n_head)
    utils.check_settings(n_rows=n_rows, T_max=T_max, n_bytes=n_bytes)
    shape = len(blocks), 2, n_head, whole_blocks(T_max), wte.shape[1] // n_head
    n_row = math.prod(shape) * wte.itemsize  # bytes
    if n_bytes is not None and n_bytes < n_row:
        raise utils.UserError(f"n_bytes is {n_bytes}, but a row of {T_max} tokens takes {n_row} bytes in the cache")
    n_rows = n_rows if n_bytes is None or n_row == 0 else min(n_rows, n_bytes // n_row)
    cached = np.empty((*shape[:2], n_rows, *shape[2:]), wte.dtype)
    return {"blocks": cached, "n_clean": 0, "ids": [[] for _ in range(n_rows)], "n_reused": 0}


def count_shared(a, b):
    """How many ids two lists have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def take_row(kv_cache, running, ids):
    """The free row that loses least when it takes a text of these ids; `running` rows are not free."""
    lost = {}
    for row, held in enumerate(kv_cache["ids"]):
        if row not in running:
            n_shared = count_shared(ids, held)
            lost[row] = len(held) - n_shared, -n_shared
    return min(lost, key=lost.get)


def reuse(kv_cache, row, ids, others):
    """Let a row begin with what some row of the cache holds of the same ids -> whether it may go on now.

    Keys and values are copied: they have the same bits as if they were computed again. others: texts that are running.
    It is better to wait where one of these is about to compute what is needed here, too.
    """
    worth = 2 * ROWS  # fewer tokens are computed as quickly
    cached, ids = kv_cache["ids"], ids[:-1]  # the last one is fed in, for its logits
    shared = [count_shared(ids, held) for held in cached]
    source = max(range(len(cached)), key=lambda other: (shared[other], other == row))
    if max((count_shared(ids, text) for text in others), default=0) >= shared[source] + worth:
        return False
    n = shared[source] if shared[source] >= worth else 0
    del cached[row][n if source == row else 0 :]
    if source != row:
        kv_cache["blocks"][:, :, row, :, :n] = kv_cache["blocks"][:, :, source, :, :n]
        cached[row] += ids[:n]
    kv_cache["n_reused"] += n
    return True


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


def next_tokens(running, cached, chunk):
    """What each row feeds in next -> {row: ids}: what its text has more than the cache, `chunk` tokens in all.

    A text that is continued has one token and always gets its turn; the rest is for prompts, in the order they came.
    """
    left = {row: job["text"][len(cached[row]) :] for row, job in running.items() if job["has_begun"]}
    room = max(chunk - sum(len(ids) == 1 for ids in left.values()), 1)
    for row, ids in left.items():
        if len(ids) > 1:
            left[row] = ids[:room]
            room -= len(left[row])
    return left


def choose(jobs, logits, sampling, repetition_penalty, stop_ids, on_token, logprobs):
    """Choose the next token of each job's text by logits [n_jobs, n_vocab], and whether the text ends with it."""
    scores = logits
    if repetition_penalty != 1:
        scores = penalize_repetition(logits, [job["text"] for job in jobs], repetition_penalty)
    ids = sample(scores, [job["generator"] for job in jobs], **sampling)
    chosen = log_softmax(logits)[np.arange(len(ids)), ids].tolist() if logprobs else [None] * len(ids)
    for job, token_id, logprob in zip(jobs, ids.tolist(), chosen):
        job["has_ended"] = token_id in stop_ids
        if not job["has_ended"]:
            job["text"].append(token_id)
            stopped = on_token is not None and on_token(job["row"], token_id, logprob)
            job["has_ended"] = stopped or len(job["text"]) == job["limit"]


def generate(
    prompts, params, n_head, n_tokens_to_generate, n_rows=16, temperature=0.0, top_k=0, top_p=1.0,
    min_p=0.0, repetition_penalty=1.0, seed=None, n_samples=1, stop_ids=(), on_token=None, logprobs=False,
    progress=True, chunk=None, n_bytes=None, kv_cache=None, on_end=None,
):
    """Sampling, or greedy decoding at temperature 0: lists of ids -> at most n_tokens_to_generate new ids for each.

    n_tokens_to_generate: for all prompts, or a list with a number for each. Raises UserError before any compute where a
    prompt and the new tokens do not fit into n_ctx, or not into the cache.
    At most n_rows texts run at once, and no more than a cache of n_bytes holds. A step feeds in a token of each; those
    that have just come share what is left of `chunk` tokens, 256 by default, so that nobody waits long.
    kv_cache: one to go on with, with rows of its own, as for the next turn of a conversation. See init_kv_cache.

    The result is n_samples lists of int for each prompt, one prompt's after the other's. A list ends before the first
    id that is in stop_ids, or with an id for which on_token(row, id, logprob) returned a true value; logprob is the
    logarithm of the probability that the model itself gave the id, or None without logprobs. on_end(row, ids) gets each
    list as soon as it is whole. Here a row is one of the result.
    progress: whether a terminal shows a bar. seed: see row_generators. What a row chooses depends on its prompt and its
    seed, never on the other rows: exactly so, whatever the type of the weights.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    switches = {"logprobs": logprobs, "progress": progress}
    utils.check_settings(**sampling, seed=seed, n_samples=n_samples, repetition_penalty=repetition_penalty, **switches)
    utils.check_settings(n_rows=n_rows, chunk=chunk, n_bytes=n_bytes, on_token=on_token, on_end=on_end)
    prompts = utils.check_prompts(prompts, len(params["wte"]))
    n_new = utils.check_limits([len(ids) for ids in prompts], n_tokens_to_generate, n_ctx=len(params["wpe"]))
    T_max = [len(ids) + max(n - 1, 0) for ids, n in zip(prompts, n_new)]  # the last new token is not fed in
    generators = row_generators(seed, len(prompts), n_samples)
    stop_ids = utils.check_ids(stop_ids if np.iterable(stop_ids) else [stop_ids], "stop_ids", len(params["wte"]))
    if kv_cache is None:
        n_rows = min(n_rows, len(generators))
        kv_cache = init_kv_cache(params["wte"], params["blocks"], n_head, n_rows, max(T_max), n_bytes)
    utils.check_cache_rows(kv_cache, params["wte"], params["blocks"], n_head, T_max)
    choice = {"sampling": sampling, "repetition_penalty": repetition_penalty, "stop_ids": stop_ids}
    choice |= {"on_token": on_token, "logprobs": logprobs}
    prompts, n_new = ([x for x in xs for _ in range(n_samples)] for xs in (prompts, n_new))
    output_ids, waiting = [[] for _ in prompts], deque(row for row, n in enumerate(n_new) if n)
    if on_end is not None:
        for row in np.flatnonzero(np.array(n_new) == 0).tolist():
            on_end(row, [])
    running = {}  # row of the cache -> what is made in it
    with tqdm(total=sum(n_new), desc="generating", disable=None if progress else True, leave=False) as bar:
        while waiting or running:
            while waiting and len(running) < min(n_rows, len(kv_cache["ids"])):
                row = waiting.popleft()
                job = {"row": row, "text": list(prompts[row]), "limit": len(prompts[row]) + n_new[row]}
                job |= {"generator": generators[row], "has_begun": False, "has_ended": False}
                running[take_row(kv_cache, running, job["text"])] = job
            for row, job in running.items():
                if not job["has_begun"]:
                    others = [other["text"] for other in running.values() if other["has_begun"]]
                    job["has_begun"] = reuse(kv_cache, row, job["text"], others)
            fed = next_tokens(running, kv_cache["ids"], chunk or 256)
            tokens = [(i, row, len(kv_cache["ids"][row]) + n) for row in fed for n, i in enumerate(fed[row])]
            input_ids, rows, position_ids = np.array(tokens).T  # [N, 3] -> 3 of [N]
            wanted = [n for n, (_, row, position) in enumerate(tokens) if position + 1 >= len(running[row]["text"])]
            logits = gpt2(input_ids, rows, position_ids, **params, n_head=n_head, kv_cache=kv_cache, wanted=wanted)
            if wanted:
                choose([running[rows[n]] for n in wanted], logits, **choice)
                bar.update(len(wanted))
            for row, job in [(row, job) for row, job in running.items() if job["has_ended"]]:
                del running[row]
                output_ids[job["row"]] = job["text"][len(prompts[job["row"]]) :]
                bar.total -= max(job["limit"] - len(job["text"]) - 1, 0)
                bar.set_postfix(reused=kv_cache["n_reused"])
                if on_end is not None:
                    on_end(job["row"], output_ids[job["row"]])
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
    prompt_ids = utils.encode_prompts(encoder, prompts)
    settings |= {"seed": utils.choose_seed(seed, temperature), "stop_ids": () if ignore_eos else encoder.stop_ids}
    with utils.Continuations(encoder, prompts, n_tokens_to_generate, n_samples, stop, stream, json, logprobs) as texts:
        settings |= {"on_token": texts.on_token, "logprobs": logprobs, "progress": not stream}
        generate(prompt_ids, params, hparams["n_head"], n_tokens_to_generate, **settings)


if __name__ == "__main__":
    utils.run(main)
