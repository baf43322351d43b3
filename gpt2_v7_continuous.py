"""GPT-2 inference in plain NumPy, v7: no pads, and rows that come and go.

    python gpt2_v7_continuous.py "One day" "There was a poor woodcutter who" --n_tokens_to_generate 30

All that a forward pass has to know of a token is its id, its row in the cache and its position. So a step takes a flat
list of tokens, those of a prompt that has just come next to the single ones of rows that are being continued.
"""
import functools
import math
from collections import deque

import numpy as np
from tqdm import tqdm

import utils

ROWS, TILE = 8, 64  # rows in a block; columns in a tile, and keys in a block


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
    # A product with ones for each block of 64 keys, then the blocks in order: what is masked adds zeros at the end.
    blocks = x.reshape(*x.shape[:-1], -1, 1, TILE) @ np.ones((TILE, 1), x.dtype)  # [..., n_k] -> [..., n_k/64, 1, 1]
    x /= np.cumsum(blocks[..., 0, 0], axis=-1)[..., -1:]
    return x


def layer_norm(x, g, b, eps=1e-5):
    """Layer normalization over the last axis (Ba et al. 2016, section 3), then scale g and shift b, both [n_embd]."""
    x = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(x * x, axis=-1, keepdims=True)
    x /= np.sqrt(variance + eps)
    return x * g + b


def linear(x, w, b):
    """x [..., n_in], w in tiles [n_parts, n_tiles, n_in/n_parts, 64], b [n_out] -> [..., n_out].

    Each call of BLAS multiplies one block of rows by one tile. All calls have one shape, so the bits of a result depend
    on its row and its tile alone: not on other rows, nor on how many there are. They are too small for BLAS to start
    threads, and too small for it to copy the tile into an order of its own first, which takes longer than the product.
    """
    n_parts, n_tiles, n, _ = w.shape
    rows = x.reshape(-1, n_parts * n)  # [..., n_in] -> [n_rows, n_in]
    parts = np.split(in_blocks(rows, fewest_rows(n, TILE, x.dtype)), n_parts, axis=-1)  # of [n_blocks, 8, n_in/n_parts]
    y = np.empty((*parts[0].shape[:2], n_tiles, TILE), x.dtype)
    size = max(8, 2048 // max(len(rows), 1))  # so many tiles that what they give is still in the cache when it is moved
    for tiles in (slice(start, start + size) for start in range(0, n_tiles, size)):
        products = [part @ tile for part, tile in zip(parts, w[:, tiles, None])]  # of [n_tiles, n_blocks, 8, 64]
        y[:, :, tiles] = functools.reduce(np.add, products).transpose(1, 2, 0, 3)  # the parts are added in order
    return (y.reshape(-1, n_tiles * TILE)[: len(rows), : len(b)] + b).reshape(*x.shape[:-1], len(b))


def in_blocks(x, fewest):
    """[..., T, n] -> [..., T/8 rounded up, 8, n], filled up with zeros; or one block of `fewest` if T is no more."""
    *batch, T, n = x.shape
    rows = fewest if T <= fewest else ROWS
    if T % rows:
        x = np.concatenate([x, np.zeros((*batch, -T % rows, n), x.dtype)], axis=-2)
    return x.reshape(*batch, -1, rows, n)


def ffn(x, c_fc, c_proj):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3): x -> same shape."""
    x = gelu(linear(x, **c_fc))  # [..., n_embd] -> [..., 4*n_embd]
    return linear(x, **c_proj)  # [..., 4*n_embd] -> [..., n_embd]


def attention(q, k, v, masks):
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1).

    q [..., n_q, d_head], k and v [..., n_slots, d_head], a mask [..., n_q, n_k] for each 64 queries with 0 to see a key
    and -1e10 to hide it -> [..., n_q, d_head]. Blocks of queries are multiplied by blocks of 64 keys.
    """
    *batch, n_q, d_head = q.shape
    fewest = max(fewest_rows(d_head, TILE, q.dtype), fewest_rows(TILE, d_head, q.dtype))
    outputs = []
    for queries, mask in zip(np.split(q / math.sqrt(d_head), range(TILE, n_q, TILE), axis=-2), masks):
        n_q, n_k = mask.shape[-2:]
        queries = in_blocks(queries, fewest)[..., None, :, :]  # [..., n_q, d_head] -> [..., n_q/8, 1, 8, d_head]
        keys, values = (x[..., :n_k, :].reshape(*batch, 1, n_k // TILE, TILE, d_head) for x in (k, v))
        scores = np.empty((*queries.shape[:-3], queries.shape[-2], n_k // TILE, TILE), q.dtype)
        blocks = scores.swapaxes(-2, -3)  # the same memory as [..., n_q/8, n_k/64, 8, 64]
        np.matmul(queries, keys.swapaxes(-1, -2), out=blocks)
        scores = scores.reshape(*batch, -1, n_k)[..., :n_q, :]  # the same memory as [..., n_q, n_k]
        scores += mask
        softmax(scores, out=scores)
        x = np.sum(blocks @ values, axis=-3)  # in order: [..., n_q/8, n_k/64, 8, d_head] -> [..., n_q/8, 8, d_head]
        outputs.append(x.reshape(*batch, -1, d_head)[..., :n_q, :])
    return np.concatenate(outputs, axis=-2)


def mha(x, c_attn, c_proj, n_head, groups, kv_cache, slots):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2): x [N, n_embd] -> same shape."""
    x = linear(x, **c_attn)  # [N, n_embd] -> [N, 3*n_embd]
    q, k, v = np.split(x.reshape(len(x), 3 * n_head, -1), 3, axis=1)  # [N, 3*n_embd] -> 3 of [N, n_head, d_head]
    rows, position_ids = slots
    kv_cache[:, rows, :, position_ids] = np.stack((k, v), axis=1)
    x = np.empty_like(q)
    for tokens, taken, where, masks in groups:
        y = attention(q[tokens].swapaxes(1, 2), *kv_cache[:, where], masks)  # -> [R, n_head, n, d_head]
        x[tokens[taken]] = y.swapaxes(1, 2)[taken]
    return linear(x.reshape(len(x), -1), **c_proj)  # [N, n_head, d_head] -> [N, n_embd]


def group_by_row(rows, position_ids, dtype):
    """Tokens whose attention is computed at once -> groups (tokens, taken, where, masks).

    Rows of up to 8 tokens are a group together, since each has one block of queries; a longer row is one of its own.
    tokens [R, n]: for each of R neighbouring rows, `where` in the cache, n places in the step. taken [R, n]: False
    where a row has fewer tokens, or none. masks: as attention wants them.
    """
    groups, of_row = [], [np.flatnonzero(rows == row) for row in range(np.max(rows) + 1)]
    short = [row for row, tokens in enumerate(of_row) if 0 < len(tokens) <= ROWS]
    together = [range(short[0], short[-1] + 1)] if short else []
    for members in [*together, *([row] for row, tokens in enumerate(of_row) if len(tokens) > ROWS)]:
        found = [of_row[row] if row in short or len(members) == 1 else [] for row in members]
        n = max(len(tokens) for tokens in found)
        taken = np.arange(n) < np.array([len(tokens) for tokens in found])[:, None]  # [R, n]
        tokens = np.zeros(taken.shape, dtype=int)
        tokens[taken] = np.concatenate(found)
        masks = make_masks(np.where(taken, position_ids[tokens], 0), dtype)
        groups.append((tokens, taken, slice(members[0], members[-1] + 1), masks))
    return groups


def transformer_block(x, mlp, attn, ln_1, ln_2, n_head, groups, kv_cache, slots):
    """One pre-norm block (Radford et al. 2019, section 2.3): x -> same shape."""
    x = x + mha(layer_norm(x, **ln_1), **attn, n_head=n_head, groups=groups, kv_cache=kv_cache, slots=slots)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def gpt2(input_ids, rows, position_ids, wte, wpe, blocks, ln_f, head, n_head, kv_cache, wanted):
    """GPT-2 (Radford et al. 2019): N tokens -> logits [M, n_vocab] of the M `wanted` ones, by their place among the N.

    input_ids [N]; rows [N]: each token's row in the cache; position_ids [N]: its position there. Keys and values of all
    positions before must be in the cache already, or be among the N.
    """
    input_ids = utils.check_inputs(input_ids, wte, n_head, n_axes=1)
    rows, position_ids, wanted = (np.array(x, dtype=int) for x in (rows, position_ids, wanted))
    x = wte[input_ids] + wpe[position_ids]  # [N] -> [N, n_embd]
    # Where no row has come before, all rows are set to 0: even a weight of 0 times what was in memory could be NaN.
    n_slots = max(kv_cache["n_clean"], whole_blocks(np.max(position_ids) + 1))
    kv_cache["blocks"][..., kv_cache["n_clean"] : n_slots, :] = 0
    kv_cache["n_clean"] = n_slots
    groups = group_by_row(rows, position_ids, x.dtype)
    slots = rows, position_ids
    for block, block_cache in zip(blocks, kv_cache["blocks"]):
        x = transformer_block(x, **block, n_head=n_head, groups=groups, kv_cache=block_cache, slots=slots)
    return linear(layer_norm(x[wanted], **ln_f), **head)  # [M, n_embd] -> [M, n_vocab]


def make_masks(position_ids, dtype):
    """position_ids [R, n] -> a mask [R, 1, 64, n_k] for each 64 queries, n_k whole blocks of keys that one of them sees."""
    masks = []
    for positions in np.split(position_ids, range(TILE, position_ids.shape[1], TILE), axis=1):
        visible = np.arange(whole_blocks(np.max(positions) + 1)) <= positions[:, None, :, None]
        masks.append(np.where(visible, 0, -1e10).astype(dtype))
    return masks


def init_kv_cache(wte, blocks, n_head, n_rows, T_max, n_bytes=math.inf):
    """An empty cache of keys and values for n_rows rows of up to T_max tokens each. It belongs to the caller.

    T_max is rounded up to whole blocks of 64. All memory is taken here:
    2 * n_layer * n_rows * n_head * T_max * d_head * itemsize bytes. There are fewer rows where this is over n_bytes.
    "ids": the tokens of which each row holds keys and values. "n_reused": how many of them were copied, not computed.
    """
    utils.check_weights(wte, n_head)
    utils.check_settings(n_rows=n_rows, T_max=T_max)
    row = 2 * len(blocks) * whole_blocks(T_max) * wte.shape[1] * wte.itemsize
    if row > n_bytes:
        raise utils.UserError(f"a row of {T_max} tokens takes {row} bytes in the cache, which may have {n_bytes}")
    n_rows = int(min(n_rows, n_bytes // row))
    blocks = np.empty((len(blocks), 2, n_rows, n_head, whole_blocks(T_max), wte.shape[1] // n_head), wte.dtype)
    return {"blocks": blocks, "n_clean": 0, "ids": [[] for _ in range(n_rows)], "n_reused": 0}


def reuse(kv_cache, row, ids, others):
    """Let a row begin with what it or another row holds of the same ids already -> whether it may go on now.

    The keys and values are copied: they have the same bits as if they were computed. others: {row: ids} of rows that
    are running; where one of them is about to compute what is wanted, it is better to wait.
    """
    cached = kv_cache["ids"]
    shared = {other: count_shared(ids[:-1], others.get(other, cached[other])) for other in range(len(cached))}
    source = max(shared, key=lambda other: (shared[other], other == row))
    n = shared[source] if shared[source] >= TILE else 0  # less is computed as quickly
    if n > len(cached[source]):
        return False
    if source != row:
        kv_cache["blocks"][:, :, row, :, : whole_blocks(n)] = kv_cache["blocks"][:, :, source, :, : whole_blocks(n)]
    cached[row] = ids[:n]
    kv_cache["n_reused"] += n
    return True


def count_shared(a, b):
    """How many ids two lists have in common at their beginning."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.array(a[:n]) != np.array(b[:n]))
    return int(differ[0]) if len(differ) else n


def tile_params(params):
    """params -> the same with each weight [n_in, n_out] in tiles [n_parts, n_tiles, n_in/n_parts, 64], and the head.

    The head makes logits, 64 tokens a tile. What a last tile lacks is 0. n_parts is the smallest number of equal parts
    of at most 1953 rows: then 8 rows times a tile are below 10^6 multiplications, from which on OpenBLAS would copy.
    """

    def tile(w):
        n_in, n_out = w.shape
        n_parts = next(n for n in range(1, n_in + 1) if n_in % n == 0 and n_in // n <= 1953)
        fewest_rows(n_in // n_parts, TILE, w.dtype)  # find out now
        w = np.pad(w, ((0, 0), (0, -n_out % TILE)))
        return np.ascontiguousarray(w.reshape(n_parts, n_in // n_parts, -1, TILE).swapaxes(1, 2))

    def tiled(tree):
        return {k: tiled(x) if isinstance(x, dict) else tile(x) if k == "w" else x for k, x in tree.items()}

    head = {"w": tile(params["wte"].T), "b": np.zeros(len(params["wte"]), params["wte"].dtype)}
    return {**params, "head": head, "blocks": [tiled(block) for block in params["blocks"]]}


@functools.cache
def fewest_rows(n, m, dtype):
    """4 if BLAS rounds a row times [n, m] alike in each slot of a block of 4, which is faster, and of 8; or else 8.

    Raises UserError where not even the slots of a block of 8 are alike, because nothing here would be exact.
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
    with np.errstate(under="ignore"):
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
    prompts, params, n_head, n_tokens_to_generate, n_rows=16, temperature=0.0, top_k=0, top_p=1.0,
    min_p=0.0, repetition_penalty=1.0, seed=None, n_samples=1, stop_ids=(), on_token=None, logprobs=False,
    progress=True, chunk=256, kv_cache=None, on_end=None,
):
    """Sampling, or greedy decoding at temperature 0: lists of ids -> at most n_tokens_to_generate new ids for each.

    n_rows run at once, and where one ends the next prompt takes its place. A step has at most `chunk` tokens of prompts
    beside one of each row that is continued, so that none of those waits long. n_tokens_to_generate may also be a list,
    a number for each prompt. kv_cache: one to go on with, as for the next turn of a conversation. Raises UserError
    before any compute where a prompt and the new tokens do not fit into n_ctx.

    The result is n_samples lists of int for each prompt, one prompt's after the other's. A list ends before the first
    id that is in stop_ids, or with an id for which on_token(row, id, logprob) returned a true value; logprob is the
    logarithm of the probability that the model itself gave the id, or None without logprobs. on_end(row, ids) is told
    each list when it is whole. Rows of the result are meant here, not of the cache.
    progress: whether a terminal shows a bar. seed: see row_generators. What a row chooses depends on its prompt and its
    seed, to the bit, and never on the other rows.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    switches = {"logprobs": logprobs, "progress": progress}
    utils.check_settings(**sampling, seed=seed, n_samples=n_samples, repetition_penalty=repetition_penalty, **switches)
    utils.check_settings(n_rows=n_rows, chunk=chunk or 0)
    prompts = utils.check_prompts(prompts)
    limits = utils.check_ids(np.broadcast_to(n_tokens_to_generate, len(prompts)), "n_tokens_to_generate")
    for ids, limit in zip(prompts, limits):
        utils.check_inputs(ids, params["wte"], n_head, n_axes=1)
        utils.check_lengths([len(ids)], limit, n_ctx=len(params["wpe"]))
    if kv_cache is None:
        T_max = max(len(ids) + max(limit - 1, 0) for ids, limit in zip(prompts, limits))
        n_rows = min(n_rows, len(prompts) * n_samples)
        kv_cache = init_kv_cache(params["wte"], params["blocks"], n_head, n_rows, T_max)
    cached = kv_cache["ids"]
    generators = row_generators(seed, len(prompts), n_samples)
    stop_ids = utils.check_ids([stop_ids] if isinstance(stop_ids, int) else stop_ids, "stop_ids", len(params["wte"]))
    texts = [list(ids) for ids in prompts for _ in range(n_samples)]  # they grow
    limits = [len(ids) + limit for ids, limit in zip(prompts, limits) for _ in range(n_samples)]
    waiting = deque(r for r, limit in enumerate(limits) if limit > len(texts[r]))
    running, begun = {}, set()  # {row of the cache: row of the result}; rows of the cache that have begun
    bar = tqdm(total=len(waiting), desc="generating", disable=None if progress else True, leave=False)
    while waiting or running:
        for row in range(len(cached)):
            if row not in running and waiting:
                running[row] = waiting.popleft()
        for row in sorted(running.keys() - begun, key=running.get):
            if reuse(kv_cache, row, texts[running[row]], {other: texts[running[other]] for other in begun}):
                begun.add(row)
        # What each row has not yet fed in: one token of those that are continued, which go first, more of prompts.
        left = {row: texts[running[row]][len(cached[row]) :] for row in sorted(begun, key=running.get)}
        input_ids, rows, position_ids, wanted = [], [], [], {}
        for row in sorted(left, key=lambda row: len(left[row]) > 1):
            ids = left[row][: max(chunk - len(input_ids), 1)]
            rows += [row] * len(ids)
            position_ids += range(len(cached[row]), len(cached[row]) + len(ids))
            input_ids += ids
            if len(ids) == len(left[row]):
                wanted[row] = len(input_ids) - 1
        step = {"rows": rows, "position_ids": position_ids, "wanted": [*wanted.values()]}
        logits = gpt2(input_ids, **step, **params, n_head=n_head, kv_cache=kv_cache)  # [n_wanted, n_vocab]
        for row, token_id in zip(rows, input_ids):
            cached[row].append(token_id)
        for row, row_logits in zip(wanted, logits[:, None]):
            r, scores = running[row], row_logits  # [1, n_vocab]
            if repetition_penalty != 1:
                scores = penalize_repetition(row_logits, [texts[r]], repetition_penalty)
            token_id = int(sample(scores, generators[r : r + 1], **sampling)[0])
            logprob = log_softmax(row_logits)[0, token_id].item() if logprobs else None
            stopped = token_id in stop_ids
            if not stopped:
                texts[r].append(token_id)
                stopped = on_token is not None and on_token(r, token_id, logprob)
            if stopped or len(texts[r]) == limits[r]:
                del running[row]
                begun.remove(row)
                bar.update()
                if on_end is not None:
                    on_end(r, texts[r][len(prompts[r // n_samples]) :])
    bar.close()
    return [text[len(prompts[r // n_samples]) :] for r, text in enumerate(texts)]


def main(
    *prompts, n_tokens_to_generate=40, model="tales", models_dir="models", json=False, temperature=0.0, top_k=0,
    top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed: int = None, n_samples=1, stop=(), ignore_eos=False,
    stream=False, logprobs=False,
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
        ignore_eos: do not end a continuation at the end of a text, <|endoftext|>.
        stream: print text as it is made.
        logprobs: add each token's log-probability and their sum to the JSON.
    """
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "n_samples": n_samples}
    settings |= {"repetition_penalty": repetition_penalty, "seed": seed}
    utils.check_settings(**settings, n_tokens_to_generate=n_tokens_to_generate)
    stop = utils.read_stop(stop)
    encoder, hparams, params = utils.load_model(model, models_dir)
    params = tile_params(params)
    prompt_ids = utils.encode_prompts(encoder, prompts)
    settings |= {"seed": utils.choose_seed(seed, temperature), "stop_ids": () if ignore_eos else encoder.stop_ids}
    with utils.Continuations(encoder, prompts, n_tokens_to_generate, n_samples, stop, stream, json, logprobs) as texts:
        settings |= {"on_token": texts.on_token, "logprobs": logprobs, "progress": not stream}
        generate(prompt_ids, params, hparams["n_head"], n_tokens_to_generate, **settings)


if __name__ == "__main__":
    utils.run(main)
