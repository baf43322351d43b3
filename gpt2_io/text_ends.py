"""Where a text starts and ends, which tokens are in none, and what all tokenizers refuse."""
import operator

from gpt2_io.errors import UserError, listed
from gpt2_io.files import parse_json

EOT = "<|endoftext|>"


def named_ids(files, where, key):
    """The ids that generation_config.json and config.json give under a key: none, one or a list each -> list.

    Raises UserError, by name, for anything else.
    """
    ids = []
    for name in ("generation_config.json", "config.json"):
        value = parse_json(files.get(name, "{}"), f"{where}: {name}").get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int for i in values):
            raise UserError(f"{where}: {name}: {key} {value!r:.60} is no id of a token, nor a list of ids")
        ids += [i for i in values if i not in ids]
    return ids


def find_ends(checkpoint, roles, all_ids, n_rows, made=()):
    """Where texts start and end -> start (or None), stop_ids, never_ids.

    roles: see TokenizerFiles; all_ids: {text: id}, empty without a tokenizer; made: ids of bytes and merges.
    A text ends at each id that generation_config.json or config.json names as eos_token_id and that the model can
    generate; where there is none, at `<|endoftext|>`. An empty prompt starts from the bos_token that the tokenizer
    names, or else bos_token_id, or else `<|endoftext|>`. Two kinds of ids are never generated: of a special token that
    is named as padding and as nothing else, and of rows of wte without a token; `load_params` sees to that.
    """
    known, where, files = set(all_ids.values()), checkpoint.path, checkpoint.files
    n_rows = max(known, default=-1) + 1 if n_rows is None else n_rows

    def usable(ids):
        return [i for i in ids if i is not None and 0 <= i < n_rows and (i in known or not known)]

    def ids_of(*texts):
        return [all_ids[text] for text in texts if text in all_ids]

    stop_ids = usable(named_ids(files, where, "eos_token_id"))
    stop_ids = stop_ids or usable(ids_of(EOT)) or usable(ids_of(roles.get("eos_token")))
    starts = [*ids_of(roles.get("bos_token")), *named_ids(files, where, "bos_token_id"), *ids_of(EOT), *stop_ids]
    start = next(iter(usable(starts)), None)
    if not all_ids:
        return start, tuple(stop_ids), ()
    pads = {*ids_of(roles.get("pad_token")), *named_ids(files, where, "pad_token_id")}
    named = [value if isinstance(value, list) else [value] for key, value in roles.items() if key != "pad_token"]
    others = {start, *stop_ids, *made, *ids_of(*(text for texts in named for text in texts))}
    gaps = set(range(min(n_rows, max(known) + 1))) - known
    return start, tuple(stop_ids), tuple(sorted(set(usable(pads)) - others | gaps))


def check_text(text):
    """Raise UserError for what is no text, or none that can be written as UTF-8."""
    if not isinstance(text, str):
        raise UserError(f"a text is expected, not {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = f"character {error.start} of a text is {text[error.start]!r}"
        raise UserError(f"{character}, half of a pair of surrogates, which is no character: take it out") from None


def check_in_vocabulary(ids, n_vocab):
    """Ids as a list of int. Raises UserError for those that are none, by value."""
    outside = [i for i in ids if not hasattr(i, "__index__") or not 0 <= i < n_vocab]
    if outside:
        raise UserError(f"ids outside of the vocabulary, 0 to {n_vocab - 1}: {listed(map(str, outside))}")
    return [operator.index(i) for i in ids]


def check_start(start):
    """The id from which an empty prompt starts. Raises UserError if it is None."""
    if start is None:
        raise UserError(f"this tokenizer has no {EOT} for an empty prompt to start from: give a prompt")
    return start
