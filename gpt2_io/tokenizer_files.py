"""The files of a tokenizer, in either form, read into one."""
from typing import NamedTuple

from gpt2_io.errors import UserError, listed, naming_faults
from gpt2_io.files import parse_json
from gpt2_io.text_ends import EOT

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")


class OtherKind(UserError):
    """A tokenizer that may be sound, but is none like GPT-2's."""


class TokenizerFiles(NamedTuple):
    """What the files say: the same, whichever form they have."""

    vocab: dict  # token, in the characters that stand for bytes -> id
    merges: list  # pairs of tokens, the first learnt first
    added: dict  # text -> {"id"; the flags of `AddedTokens`; "fault", why it cannot be used}
    add_prefix_space: bool  # whether a text that begins without a space gets one
    before: list  # ids that every text begins with
    after: list  # ids that it ends with
    roles: dict  # "pad_token" -> its text or None, for those of ROLES that are named, and of LISTS -> a list


def read_tokenizer_files(files, where):
    """The text files of a checkpoint -> TokenizerFiles, or None without a tokenizer among them.

    Raises OtherKind for a tokenizer that is not GPT-2's kind, by the part that is not, and ValueError for spoilt files.
    """
    if "tokenizer.json" in files:
        vocab, merges, added, add_prefix_space, before, after = read_tokenizer_json(files, where)
    elif "vocab.json" in files and "merges.txt" in files:
        vocab, merges, added = read_vocab_and_merges(files, where)
        add_prefix_space, before, after = False, [], []
    else:
        return None
    config = parse_json(files.get("tokenizer_config.json", "{}"), f"{where}: tokenizer_config.json")
    add_prefix_space = config.get("add_prefix_space", add_prefix_space)  # transformers gives this file the last word
    roles, flags_of = read_roles(files, where)
    if EOT in vocab and not {"bos_token", "eos_token", "unk_token"} <= set(roles):  # it is the default of these
        flags_of.setdefault(EOT, {})
    with naming_faults(f"{where}: added tokens"):
        for text, flags in flags_of.items():
            added[text] = {"id": vocab.get(text), **flags, "content": text, **added.get(text, {}), "special": True}
        added.pop("", None)
        mark_faults(vocab, added)
    for ids, key in ((before, "bos_token"), (after, "eos_token")):
        text = roles.get(key, EOT)
        if "tokenizer.json" in files or text is None or not config.get(f"add_{key}"):  # tokenizer.json says it itself
            continue
        if added.get(text, {"fault": True}).get("fault"):
            raise OtherKind(f"{where}: tokenizer_config.json: add_{key}, but {text!r:.60} has no id that is certain")
        ids.append(added[text]["id"])
    return TokenizerFiles(vocab, merges, added, bool(add_prefix_space), before, after, roles)


def read_roles(files, where):
    """What special tokens are for -> {a key of ROLES: text or None, a key of LISTS: list of texts}, {text: flags}."""
    with naming_faults(f"{where}: special tokens"):
        roles, flags_of = {}, {}
        for name in ("tokenizer_config.json", "special_tokens_map.json"):  # the later one wins
            for key, value in parse_json(files.get(name, "{}"), name).items():
                if key in (*ROLES, *LISTS):
                    roles[key] = value
        for key, value in roles.items():
            tokens = value if key in LISTS and value else [value] if value else []
            tokens = [token if isinstance(token, dict) else {"content": token} for token in tokens]
            if not all(isinstance(token["content"], str) for token in tokens):
                raise ValueError(f"{key} {value!r:.60} is no text")
            flags_of |= {token["content"]: token for token in tokens}
            texts = [token["content"] for token in tokens]
            roles[key] = texts if key in LISTS else texts[0] if texts else None
        return roles, flags_of


def mark_faults(vocab, added):
    """Put a "fault" to added tokens about whose id the libraries would not agree: better no id than a wrong one."""
    end = len(vocab)  # the tokenizers package goes on counting here, whatever id the files give
    for text, flags in sorted(added.items(), key=lambda item: (item[1]["id"] is None, item[1]["id"] or 0)):
        right = vocab.get(text, end)
        if flags["id"] is None:
            flags["fault"] = "the tokenizer's files name it, but give it no id"
        elif flags["id"] != right:
            flags["fault"] = f"the files give it id {flags['id']}, and the tokenizers package gives it {right}"
        if text not in vocab and flags["id"] is not None:
            end = max(end, flags["id"] + 1)


def read_tokenizer_json(files, where):
    """tokenizer.json -> vocab, merges, added, add_prefix_space, before, after: see `TokenizerFiles`."""
    tokenizer = parse_json(files["tokenizer.json"], f"{where}: tokenizer.json")
    with naming_faults(f"{where}: tokenizer.json"):
        model, splitter = tokenizer["model"], tokenizer.get("pre_tokenizer") or {}
        before, after, others = read_post_processor(tokenizer.get("post_processor"))
        of_another_kind = {
            f"model {model.get('type')}": model.get("type", "BPE") != "BPE",
            f"pre_tokenizer {splitter.get('type')}": splitter.get("type") != "ByteLevel",
            "pre_tokenizer without use_regex": not splitter.get("use_regex", True),
            **dict.fromkeys(others, True),
            "normalizer": tokenizer.get("normalizer"),
        }
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"):
            of_another_kind[key] = model.get(key)
        other = listed(name for name, is_there in of_another_kind.items() if is_there)
        if not other:
            merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
            if not all(len(merge) == 2 and isinstance("".join(merge), str) for merge in merges):
                raise ValueError("merges are pairs of tokens")
            if not isinstance(model["vocab"], dict):
                raise ValueError("a vocabulary is an object, from tokens to ids")
            added = {flags["content"]: {**flags, "id": flags["id"]} for flags in tokenizer.get("added_tokens") or []}
            return dict(model["vocab"]), merges, added, splitter.get("add_prefix_space", False), before, after
    raise OtherKind(f"{where}: tokenizer.json: not GPT-2's kind of tokenizer, byte-level BPE, but with {other}")


def read_post_processor(processor):
    """What tokenizer.json puts around every text -> tokens before, tokens after, names of what else it does."""
    if processor is None or processor["type"] == "ByteLevel":
        return [], [], []
    if processor["type"] == "Sequence":
        processors = [one for one in processor["processors"] if one["type"] != "ByteLevel"]
        if len(processors) > 1:
            return [], [], ["several post_processors"]
        return read_post_processor(processors[0] if processors else None)
    if processor["type"] != "TemplateProcessing":
        return [], [], [f"post_processor {processor['type']}"]
    parts = [next(iter(item.items())) for item in processor["single"]]  # [("SpecialToken", {"id": "<s>"}), ...]
    ids = [[] if kind == "Sequence" else processor["special_tokens"][part["id"]]["ids"] for kind, part in parts]
    at = ids.index([])
    return sum(ids[:at], []), sum(ids[at:], []), ["a text twice"] if ids.count([]) > 1 else []


def read_vocab_and_merges(files, where):
    """vocab.json, merges.txt and the files about added tokens -> vocab, merges, added: see `TokenizerFiles`."""
    vocab = parse_json(files["vocab.json"], f"{where}: vocab.json")
    merges = []
    for number, line in enumerate(files["merges.txt"].split("\n"), start=1):
        if not line or line.startswith("#version"):
            continue
        merges.append(tuple(line.split(" ")))
        if len(merges[-1]) != 2:
            raise UserError(f"{where}: merges.txt, line {number}: two tokens are expected, not {line!r:.60}")

    def read(name):
        return parse_json(files.get(name, "{}"), f"{where}: {name}")

    with naming_faults(f"{where}: added tokens"):
        added = {text: {"content": text, "id": i} for text, i in read("added_tokens.json").items()}
        for i, flags in read("tokenizer_config.json").get("added_tokens_decoder", {}).items():
            added[flags["content"]] = {**flags, "id": int(i)}
    return vocab, merges, added
