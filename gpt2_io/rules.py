"""What may not be generated, and what is made more or less likely: rules of v9, from the command line and checked."""
import json
import math
import numbers
import sys

from gpt2_io.errors import UserError
from gpt2_io.settings import check_ids, check_settings
from gpt2_io.streams import show_everything

NOTHING = {"no_repeat_ngram_size": 0, "min_new_tokens": 0, "bad_words": [], "logit_bias": {}}


def check_rules(rules, n_vocab):
    """Rules, by the names of `apply_rules` -> those that rule something, as plain lists, dicts and ints.

    Raises UserError, by name, for a rule that is none, and for one of another type or with ids that are none.
    """
    if strange := sorted(rules.keys() - NOTHING.keys()):
        raise UserError(f"{strange[0]} is no setting; rules are {', '.join(NOTHING)}")
    rules = {**NOTHING, **rules}
    check_settings(no_repeat_ngram_size=rules["no_repeat_ngram_size"], min_new_tokens=rules["min_new_tokens"])
    words, bias = rules["bad_words"], rules["logit_bias"] or {}
    if isinstance(words, (str, bytes, dict, numbers.Number)):
        raise UserError(f"bad_words must be lists of ids, not {words!r:.60}")
    rules["bad_words"] = [check_ids(word, "a list of bad_words", n_vocab) for word in words or ()]
    if not all(rules["bad_words"]):
        raise UserError("a list of bad_words is empty")
    if not isinstance(bias, dict):
        raise UserError(f"logit_bias must be {{id: number}}, not {bias!r:.60}")
    check_ids(list(bias), "logit_bias", n_vocab)
    for value in bias.values():
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
            raise UserError(f"logit_bias adds numbers, not {value!r:.60}")
    rules["logit_bias"] = {int(token_id): float(value) for token_id, value in bias.items()}
    return {name: value for name, value in rules.items() if value != NOTHING[name]}


def read_rules(encoder, no_repeat_ngram_size, min_new_tokens, bad_words, logit_bias):
    """Rules as flags give them -> as `generate` and `beam_search` take them.

    bad_words: texts; each is ruled out as it stands, and behind a space. logit_bias: JSON, {"id": number}.
    """
    words = [encoder.encode(text) for word in bad_words if word for text in (word, f" {word}")]
    try:
        bias = {int(key): value for key, value in json.loads(logit_bias or "{}").items()}
    except (ValueError, AttributeError):
        raise UserError(f'--logit_bias takes JSON such as {{"13": -5}}, not {logit_bias!r:.60}') from None
    return {
        "no_repeat_ngram_size": no_repeat_ngram_size, "min_new_tokens": min_new_tokens,
        "bad_words": words, "logit_bias": bias,
    }  # fmt: skip


def print_beams(encoder, prompts, found, as_json):
    """Print what `beam_search` found: a text alone, several each behind its prompt, or a JSON object each."""
    show_everything(sys.stdout)
    several = len(prompts) * len(found[0]) > 1
    texts = []
    for index, (prompt, beams) in enumerate(zip(prompts, found)):
        for sample, (ids, score) in enumerate(beams):
            text = encoder.decode(ids)
            texts.append(prompt + text if several else text)
            if as_json:
                result = {"index": index, "sample": sample, "prompt": prompt, "ids": ids, "text": text, "score": score}
                print(json.dumps(result))
    if not as_json:
        print("\n\n".join(texts))
