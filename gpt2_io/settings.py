"""What the versions are given: settings, ids and masks, and within which limits. Each mistake is refused by name."""
import math
import numbers

import numpy as np

from gpt2_io.errors import UserError

WHOLE, NUMBER, SWITCH = (numbers.Integral, "a whole number"), (numbers.Real, "a number"), (bool, "True or False")
SETTINGS = {  # name -> kind, lowest, highest
    "n_head": (WHOLE, 1, math.inf), "n_tokens_to_generate": (WHOLE, 0, math.inf), "pad_id": (WHOLE, 0, 2**31 - 1),
    "B": (WHOLE, 1, math.inf), "T_max": (WHOLE, 1, math.inf), "chunk": (WHOLE, 1, math.inf),
    "n_logits": (WHOLE, 0, math.inf), "n_rows": (WHOLE, 1, math.inf), "n_bytes": (WHOLE, 1, math.inf),
    "n_draft": (WHOLE, 0, math.inf), "n_beams": (WHOLE, 1, 1000), "n_best": (WHOLE, 1, 1000),
    "length_penalty": (NUMBER, -50, 50), "no_repeat_ngram_size": (WHOLE, 0, math.inf),
    "min_new_tokens": (WHOLE, 0, math.inf), "n_samples": (WHOLE, 1, 100_000), "temperature": (NUMBER, 0, 1e30),
    "top_k": (WHOLE, 0, math.inf), "top_p": (NUMBER, 0, 1), "min_p": (NUMBER, 0, 1), "seed": (WHOLE, 0, 2**128 - 1),
    "repetition_penalty": (NUMBER, 1e-30, 1e30), "batch_size": (WHOLE, 1, math.inf), "logprobs": (SWITCH, 0, 1),
    "rows": (WHOLE, 1, math.inf), "progress": (SWITCH, 0, 1), "threads": (WHOLE, 1, math.inf),
}  # fmt: skip
CALLBACKS = ("on_token", "on_end")
OPTIONAL = ("chunk", "n_bytes", "n_logits", "seed", "threads", *CALLBACKS)  # None is as good as not given
DEFAULT_ROWS = 16  # of jobs
NEUTRAL = {"top_k": 0, "top_p": 1, "min_p": 0, "seed": None, "n_samples": 1}  # all that makes sense at temperature 0


def check_settings(**settings):
    """Raise UserError, by name, for a value of another kind or beyond its limits; True is no number, nor is "3".

    seed may also be a list with an item for each row: a seed, or a tuple (seed, number, ...), a stream of that seed.
    """
    for name, value in settings.items():
        if value is None and name in OPTIONAL:
            continue
        if name in CALLBACKS:
            if not callable(value):
                raise UserError(f"{name} must be a function, not {value!r:.60}")
        elif name == "seed" and is_list(value):
            for row in value:
                first, *stream = row if is_list(row) and len(row) else [row]
                check_one("seed", first)
                for number in stream:  # 32 bits each, so that no two streams are the same
                    check_one("seed", number, highest=2**32 - 1)
        else:
            check_one(name, value)
    if settings.get("temperature") == 0:
        idle = [n for n in NEUTRAL if n in settings and (is_list(settings[n]) or settings[n] != NEUTRAL[n])]
        if idle:
            raise UserError(f"{', '.join(idle)} changes nothing at temperature 0: give --temperature 1 too, or another")


def choose_rows(rows, batch_size):
    """How many texts run at once. Raises UserError where both flags are given, which mean the same, and differ."""
    check_settings(rows=rows)
    if batch_size is None:
        return rows
    check_settings(batch_size=batch_size)
    if rows not in (DEFAULT_ROWS, batch_size):
        raise UserError("--rows and --batch_size mean the same: give one of them")
    return batch_size


def check_one(name, value, highest=None):
    (kind, what), low, high = SETTINGS[name]
    high = highest or high
    value = float(value) if isinstance(value, np.floating) else value  # 1e30 is no float16 to compare with
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool) or not low <= value <= high:
        limit = "" if kind is bool else f", {low} or more" if high == math.inf else f", from {low} to {high}"
        raise UserError(f"{name} must be {what}{limit}, not {value!r:.60}")


def is_list(value):
    """Whether its items come in an order and are not letters or bytes."""
    return isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def check_ids(ids, name, n_vocab=2**31):
    """ids as a list of int. Raises UserError unless they are whole numbers from 0 to n_vocab - 1."""
    listed = [None] if isinstance(ids, (str, bytes, dict)) or not np.iterable(ids) else list(ids)
    if not all(isinstance(i, numbers.Integral) and not isinstance(i, bool) and 0 <= i < n_vocab for i in listed):
        limit = f"whole numbers from 0 to {n_vocab - 1}"
        raise UserError(f"{name} must be a list of ids of tokens, {limit}, not {ids!r:.60}")
    return [int(i) for i in listed]


def check_prompts(prompts, n_vocab=2**31):
    """Prompts, lists of ids, as lists of int. Raises UserError where there is none, or one is empty or no such list."""
    listed = None if isinstance(prompts, (str, bytes, dict, set)) or not np.iterable(prompts) else list(prompts)
    if not listed:
        raise UserError(f"prompts must be lists of ids, a list for each, and at least one, not {prompts!r:.60}")
    for i, ids in enumerate(listed):
        if isinstance(ids, (set, frozenset)):
            raise UserError(f"prompt {i} must be a list of ids: a set has no order")
        listed[i] = check_ids(ids, f"prompt {i}", n_vocab)
        if not listed[i]:
            raise UserError(f"prompt {i} has no tokens; start from the <|endoftext|> token")
    return listed


def check_weights(wte, n_head):
    """Raise UserError where n_head does not fit the weights, or where they are of a type that is too small."""
    check_settings(n_head=n_head)
    if wte.shape[1] % n_head:
        raise UserError(f"n_head {n_head} does not fit the weights, whose n_embd is {wte.shape[1]}")
    if wte.dtype == np.float16:
        raise UserError("the weights are float16, in which a mask of -1e10 is infinite: convert them to float32")


def check_inputs(input_ids, wte, n_head, n_axes):
    """input_ids as an array of n_axes. Raises UserError unless they are ids of tokens, and n_head fits the weights."""
    check_weights(wte, n_head)
    array = as_array(input_ids, "the prompts")
    if array.ndim != n_axes or array.size == 0:
        shape = "a list of ids, [T]" if n_axes == 1 else "a list of ids for each prompt, [B, T]"
        raise UserError(f"input_ids must be {shape}, and not empty; its shape is {list(array.shape)}")
    # NumPy would count a negative id from the end of wte, and take True among numbers for 1.
    has_bool = array is not input_ids and any(isinstance(i, bool) for i in np.array(input_ids, dtype=object).flat)
    if array.dtype.kind not in "iu" or np.any(array < 0) or np.any(array >= len(wte)) or has_bool:
        raise UserError(f"input_ids must be ids of the model's tokens, whole numbers from 0 to {len(wte) - 1}")
    return array.astype(int)


def check_mask(attention_mask, shape, last_real=False):
    """attention_mask [B, T] as booleans, all True where it is None. Raises UserError for another one.

    shape: that of input_ids. last_real: the last column has to be real, because the text goes on from there.
    """
    mask = as_array(np.ones(shape) if attention_mask is None else attention_mask, "the rows of attention_mask")
    if mask.shape != shape or not np.all((mask == 0) | (mask == 1)):
        raise UserError(f"attention_mask must have the shape {list(shape)} of input_ids, and hold 0 and 1 only")
    if last_real and not np.all(mask[:, -1] == 1):
        raise UserError("attention_mask has pads on the right; pads go on the left, as left_pad puts them")
    return mask == 1


def check_logits(logits):
    """Raise UserError unless logits are an array [B, n_vocab] of floats, and the best one of each row is finite."""
    if not isinstance(logits, np.ndarray) or logits.ndim != 2 or logits.dtype.kind != "f" or logits.size == 0:
        raise UserError("logits must be an array of floats, [B, n_vocab], and not empty")
    if not np.all(np.isfinite(np.max(logits, axis=-1))):  # NaN counts as the highest
        raise UserError("the logits hold NaN or infinity: the weights are damaged, or do not fit the model")


def as_array(rows, what):
    try:
        return np.asarray(rows)
    except ValueError:  # NumPy speaks of an inhomogeneous shape
        message = f"{what} have different lengths: left_pad of gpt2_v2_padding.py makes them one batch"
        raise UserError(message) from None


def check_lengths(lengths, n_tokens_to_generate, n_ctx):
    """Raise UserError unless each prompt, given by its length in tokens, and what is to follow it fit into n_ctx."""
    check_settings(n_tokens_to_generate=n_tokens_to_generate)
    check_limits(lengths, [n_tokens_to_generate] * len(lengths), n_ctx)


def check_limits(lengths, n_tokens_to_generate, n_ctx):
    """The same for a list with a number for each prompt, or one number for all -> such a list of int."""
    limits = list(n_tokens_to_generate) if is_list(n_tokens_to_generate) else [n_tokens_to_generate] * len(lengths)
    if len(limits) != len(lengths):
        raise UserError(f"n_tokens_to_generate has {len(limits)} numbers for {len(lengths)} prompts")
    for i, (length, limit) in enumerate(zip(lengths, limits)):
        check_settings(n_tokens_to_generate=limit)
        if int(length) + max(int(limit) - 1, 0) > n_ctx:  # the last new token is not fed in
            raise UserError(
                f"prompt {i} has {length} tokens and {limit} are to be generated, but the model's limit "
                f"n_ctx is {n_ctx}: shorten the prompt or generate fewer"
            )
    return [int(limit) for limit in limits]


def keep_end(ids, n_tokens_to_generate, n_ctx):
    """Cut a prompt from the left -> its last ids, as many as leave room for what is to follow; none where there is no
    room."""
    room = n_ctx - max(n_tokens_to_generate - 1, 0)  # the last new token is not fed in
    return ids[max(len(ids) - room, 0) :] if room > 0 else []


def check_kv_cache(kv_cache, real, wte, wpe, blocks, n_head):
    """Raise UserError unless a cache of v3 is of this model and batch, and new tokens fit into it and into n_ctx.

    real [B, T]: which of the new tokens are no pads.
    """
    if not isinstance(kv_cache, dict) or kv_cache.keys() != {"length", "real", "blocks"}:
        raise UserError("kv_cache must be a cache as init_kv_cache makes it")
    (B, T), n_past, cached = real.shape, kv_cache["length"], kv_cache["blocks"]
    T_max = cached.shape[-2]
    if n_past + T > T_max:
        raise UserError(f"kv_cache holds {n_past} of {T_max} tokens: no room for {T} more")
    shape = len(blocks), 2, B, n_head, T_max, wte.shape[1] // n_head
    if cached.shape != shape or cached.dtype != wte.dtype or kv_cache["real"].shape != (B, n_past):
        raise UserError(f"kv_cache is of another model or batch: it has {cached.shape[2]} rows, input_ids {B}")
    check_lengths(np.sum(kv_cache["real"], axis=1) + np.sum(real, axis=1), 0, n_ctx=len(wpe))


def check_cache_rows(kv_cache, wte, blocks, n_head, T_max=()):
    """Raise UserError unless a cache of v7 is of this model, and each of its rows has room for T_max tokens, a list."""
    check_weights(wte, n_head)
    if not isinstance(kv_cache, dict) or kv_cache.keys() != {"blocks", "n_clean", "ids", "n_reused"}:
        raise UserError("kv_cache must be a cache as init_kv_cache makes it")
    cached = kv_cache["blocks"]
    shape = len(blocks), 2, len(kv_cache["ids"]), n_head, cached.shape[-2], wte.shape[1] // n_head
    if cached.shape != shape or cached.dtype != wte.dtype:
        raise UserError("kv_cache is of another model")
    for i, n in enumerate(T_max):
        if n > cached.shape[-2]:
            room = cached.shape[-2]
            raise UserError(f"prompt {i} and its new tokens take {n} slots of kv_cache, whose rows have {room}")


def check_places(rows, position_ids, wanted, n_tokens, kv_cache, wpe):
    """rows, position_ids and wanted of v7 as arrays. Raises UserError where they are not, or leave a gap in a row."""
    n_slots = min(kv_cache["blocks"].shape[-2], len(wpe))
    found = []
    for name, places, n in (
        ("rows", rows, len(kv_cache["ids"])), ("position_ids", position_ids, n_slots), ("wanted", wanted, n_tokens),
    ):  # fmt: skip
        array = as_array(places, name)
        if name == "wanted" and array.size == 0:
            array = array.astype(int)
        if array.ndim != 1 or array.dtype.kind not in "iu" or np.any(array < 0) or np.any(array >= n):
            raise UserError(f"{name} must be a list of whole numbers from 0 to {n - 1}, not {places!r:.60}")
        if name != "wanted" and len(array) != n_tokens:
            raise UserError(f"{name} has {len(array)} numbers for {n_tokens} tokens")
        found.append(array.astype(int))
    ends = {}
    for row, position in zip(found[0].tolist(), found[1].tolist()):
        n_held = len(kv_cache["ids"][row])
        if position != ends.get(row, min(position, n_held)):
            message = f"position_ids: row {row} has a token at position {position}, but the one before it there"
            raise UserError(f"{message} is {ends.get(row, n_held) - 1}")
        ends[row] = position + 1
    return found
