"""What may not be generated, and what is made more or less likely: rules of v9, from the command line and checked."""
import json
import numbers

from gpt2_io.continuations import read_stop
from gpt2_io.errors import UserError
from gpt2_io.settings import NEUTRAL, check_ids, check_settings
from gpt2_io.streams import print_texts

NOTHING = {"no_repeat_ngram_size": 0, "min_new_tokens": 0, "bad_words": [], "logit_bias": {}}
ALONE = {**NEUTRAL, "temperature": 0, "repetition_penalty": 1, "stop": (), "stream": False, "logprobs": False}


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
    rules["logit_bias"] = check_bias(bias, n_vocab)
    return {name: value for name, value in rules.items() if value != NOTHING[name]}


def check_bias(bias, n_vocab=2**31):
    """logit_bias as {int: float}. Raises UserError for ids that are none, and for what is no number."""
    for value in bias.values():
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not abs(value) <= 1e30:
            raise UserError(f"logit_bias adds numbers from -1e30 to 1e30, not {value!r:.60}")
    return dict(zip(check_ids(list(bias), "logit_bias", n_vocab), map(float, bias.values())))


def check_left(is_left):
    """Raise UserError where rules have left nothing: booleans, one for each row."""
    if not all(is_left):
        raise UserError("the rules leave no token to go on with: let them rule out fewer, or generate fewer")


def read_beams(n_beams, n_best, length_penalty, early_stopping, others):
    """Flags of a search by beams -> settings of `beam_search`, or {} where n_beams is 1.

    others: settings that make no sense there, {name: value}. Raises UserError for one that is given, and for flags of
    beams where there are none.
    """
    search = {"n_beams": n_beams, "n_best": n_best, "length_penalty": length_penalty}
    search["early_stopping"] = {"true": True, "false": False}.get(early_stopping.lower(), early_stopping)
    check_settings(n_beams=n_beams, length_penalty=length_penalty)
    if n_beams == 1 and (n_best != 1 or length_penalty != 1 or search["early_stopping"]):
        raise UserError("n_best, length_penalty and early_stopping are for beams: give --n_beams 4 too, or another")
    check_beams(n_beams, n_best, search["early_stopping"])
    if n_beams == 1:
        return {}
    check_alone(others)
    return search


def check_alone(settings):
    """Raise UserError where settings, {name: value}, have what makes no sense with beams."""
    if given := [name for name, value in ALONE.items() if (settings.get(name) or value) != value]:
        raise UserError(f"{', '.join(given)} goes without beams only: take it out, or n_beams")


def check_beams(n_beams, n_best, early_stopping):
    """Raise UserError unless n_best are at most n_beams, and early_stopping is one of three."""
    check_settings(n_beams=n_beams, n_best=n_best)
    if n_best > n_beams:
        raise UserError(f"n_best {n_best} is more than n_beams {n_beams}: so many are found at most")
    if not isinstance(early_stopping, bool) and early_stopping != "never":
        raise UserError(f"early_stopping must be True, False or never, not {early_stopping!r:.60}")


def read_rules(encoder, no_repeat_ngram_size, min_new_tokens, bad_words, logit_bias):
    """Rules as flags give them -> as `generate` and `beam_search` take them.

    bad_words: texts. logit_bias: JSON, {"id": number}.
    """
    rules = {"no_repeat_ngram_size": no_repeat_ngram_size, "min_new_tokens": min_new_tokens}
    words = words_of(encoder, read_stop(bad_words, "bad_words"))
    return {**rules, "bad_words": words, "logit_bias": read_bias(logit_bias)}


def words_of(encoder, words):
    """Texts, and lists of ids, that must not come -> lists of ids. A text is ruled out behind a space, too."""
    texts = [text for word in words if isinstance(word, str) for text in (word, f" {word}")]
    return [*map(encoder.encode, texts), *(word for word in words if not isinstance(word, str))]


def read_bias(bias):
    """JSON {"id": number}, as a text or read already -> {id: number}."""
    try:
        bias = json.loads(bias or "{}") if isinstance(bias, str) else bias
        ids = {int(key): value for key, value in bias.items()}
    except (ValueError, AttributeError, RecursionError):
        raise UserError(f'logit_bias takes JSON such as {{"13": -5}}, not {bias!r:.60}') from None
    if len(ids) < len(bias):
        raise UserError(f"logit_bias has an id twice: {bias!r:.60}")
    return check_bias(ids)


def print_beams(encoder, prompts, found, n_tokens_to_generate, n_best, as_json):
    """Print what `beam_search` found as `Continuations` does, the best of a prompt first; in JSON with "score"."""
    check_left([bool(beams) for beams in found])
    rows = [(index, sample, *beam) for index, beams in enumerate(found) for sample, beam in enumerate(beams)]
    texts = [encoder.decode(ids) for _, _, ids, _ in rows]
    if not as_json:
        return print_texts([prompts[index] for index, *_ in rows], None, texts)
    for (index, sample, ids, score), text in zip(rows, texts):
        result = {"index": index, "sample": sample} if n_best > 1 else {"index": index}
        ending = {"finish_reason": "stop" if len(ids) < n_tokens_to_generate else "length", "score": score}
        print(json.dumps({**result, "prompt": prompts[index], "ids": ids, "text": text, **ending}))
