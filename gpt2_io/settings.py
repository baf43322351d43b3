"""The settings of all versions: what kind of value each takes, and within which limits."""
import math
import numbers

from gpt2_io.errors import UserError

WHOLE, NUMBER = (numbers.Integral, "a whole number"), (numbers.Real, "a number")
SETTINGS = {  # name -> kind, lowest, highest
    "n_head": (WHOLE, 1, math.inf), "n_tokens_to_generate": (WHOLE, 0, math.inf), "pad_id": (WHOLE, 0, math.inf),
    "chunk": (WHOLE, 1, math.inf), "n_logits": (WHOLE, 0, math.inf), "n_samples": (WHOLE, 1, math.inf),
    "temperature": (NUMBER, 0, 1e30), "top_k": (WHOLE, 0, math.inf), "top_p": (NUMBER, 0, 1), "min_p": (NUMBER, 0, 1),
    "repetition_penalty": (NUMBER, 1e-30, 1e30), "seed": (WHOLE, 0, 2**128 - 1), "batch_size": (WHOLE, 1, math.inf),
}  # fmt: skip
OPTIONAL = ("chunk", "n_logits", "seed")  # None is as good as not given
NEUTRAL = {"top_k": 0, "top_p": 1, "min_p": 0, "seed": None, "n_samples": 1}  # at temperature 0 nothing else makes sense


def check_settings(**settings):
    """Raise UserError, by name, for a value of another kind or beyond its limits; True is no number, nor is "3"."""
    for name, value in settings.items():
        (kind, what), low, high = SETTINGS[name]
        if value is None and name in OPTIONAL:
            continue
        for one in value if name == "seed" and hasattr(value, "__len__") else [value]:  # a list of row seeds
            if not isinstance(one, kind) or isinstance(one, bool) or not low <= one <= high:
                limit = f"{low} or more" if high == math.inf else f"from {low} to {high}"
                raise UserError(f"{name} must be {what}, {limit}, not {one!r:.60}")
    if settings.get("temperature") == 0:
        idle = [name for name, value in NEUTRAL.items() if name in settings and settings[name] is not value]
        idle = [name for name in idle if hasattr(settings[name], "__len__") or settings[name] != NEUTRAL[name]]
        if idle:
            raise UserError(f"{', '.join(idle)} changes nothing at temperature 0: give --temperature 1 too, or another")


def check_ids(ids, name, n_vocab=math.inf):
    """ids as a list of int. Raises UserError unless they are whole numbers from 0 to n_vocab - 1."""
    ids = list(ids) if hasattr(ids, "__iter__") else None
    if ids is None or not all(isinstance(i, numbers.Integral) and not isinstance(i, bool) and 0 <= i < n_vocab for i in ids):
        upto = "" if n_vocab == math.inf else f" to {n_vocab - 1}"
        raise UserError(f"{name} must be a list of ids of tokens, whole numbers from 0{upto}, not {ids!r:.60}")
    return [int(i) for i in ids]


def check_prompts(prompts):
    """Prompts, lists of ids, as lists of int. Raises UserError where there is none, or one is empty or no such list."""
    if not hasattr(prompts, "__len__") or len(prompts) == 0:
        raise UserError(f"prompts must be lists of ids, a list for each, and at least one, not {prompts!r:.60}")
    prompts = [check_ids(ids, f"prompt {i}") for i, ids in enumerate(prompts)]
    if not all(prompts):
        raise UserError(f"prompt {prompts.index([])} has no tokens; start from the <|endoftext|> token")
    return prompts
