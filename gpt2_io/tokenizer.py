"""Text -> ids and ids -> text: GPT-2's byte-level BPE, from a model's own files."""
import math
import re

import tiktoken

from gpt2_io.errors import UserError, listed, naming_faults
from gpt2_io.files import parse_json

EOT = "<|endoftext|>"
# How GPT-2 splits text into words before any merge; this spelling (tiktoken's) means the same as the original, faster.
SPLIT_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
MAX_BLANKS = 500_000  # on end; tiktoken's stack would not be large enough for a million


def byte_alphabet():
    """The printable character that stands for each byte in GPT-2's vocabulary files -> {character: byte}.

    Printable bytes stand for themselves; for the others, in order, stand the characters from 256 on: "Ġ" is the space.
    """
    plain = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(others)}}


class Encoder(tiktoken.Encoding):
    """A tiktoken Encoding that takes `<|endoftext|>` and other added tokens in a text for what they are.

    merge_ranks: {bytes of a merged token: the merge's place in merges.txt, from 0}.
    """

    def __init__(self, tokens, merge_ranks, others, added, eot, n_rows, add_prefix_space):
        """tokens: {bytes: id} of single bytes and merges; others: {text: id} of all the rest.

        added: {text: {"id", and the flags that the tokenizers package gives to added tokens}}; eot: id or None;
        n_rows: of wte, or None; add_prefix_space: whether a space is put before a text that begins without one.
        """
        super().__init__("gpt2", pat_str=SPLIT_PATTERN, mergeable_ranks=tokens, special_tokens=others)
        self.merge_ranks, self.eot, self.n_rows, self.add_prefix_space = merge_ranks, eot, n_rows, add_prefix_space
        self.known = {*tokens.values(), *others.values()}
        self.added = added
        longest_first = sorted(added, key=len, reverse=True)
        self.added_pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # (?!) is found nowhere

    def encode(self, text, *, allowed_special="all", disallowed_special=()):
        """text -> list of ids. Added tokens in the text, `<|endoftext|>` first of all, become one id each.

        The keywords are tiktoken's, with other defaults. Raises UserError for a token that the model has no row for.
        """
        if allowed_special != "all":
            return super().encode(text, allowed_special=allowed_special, disallowed_special=disallowed_special)
        ids, start = [], 0
        for match in self.added_pattern.finditer(text):
            flags, (begin, end) = self.added[match.group()], match.span()
            neighbours = text[max(begin - 1, 0) : begin] + text[end : end + 1]
            if flags.get("single_word") and re.search(r"\w", neighbours):
                continue
            before = text[start:begin].rstrip() if flags.get("lstrip") else text[start:begin]
            ids += [*self.encode_ordinary(before), flags["id"]]
            start = re.compile(r"\s*").match(text, end).end() if flags.get("rstrip") else end
        ids += self.encode_ordinary(text[start:])
        if self.n_rows is not None and max(ids, default=0) >= self.n_rows:
            token = in_quotes(self.decode_bytes([max(ids)]))
            reason = f"wte ends at {self.n_rows - 1}: is this the model's tokenizer?"
            raise UserError(f"token {token} has id {max(ids)}, but {reason}")
        return ids

    def encode_ordinary(self, text):
        """text -> list of ids, none but those that merges make. Raises UserError for too many blanks on end."""
        if len(text) > MAX_BLANKS and max(map(len, re.findall(r"\s+", text)), default=0) > MAX_BLANKS:
            raise UserError(f"a text has more than {MAX_BLANKS} blanks or line breaks on end: take some out")
        if self.add_prefix_space and text and not text.startswith(" "):
            text = " " + text
        return super().encode_ordinary(text)

    def decode_bytes(self, ids):
        """Ids -> bytes. Raises UserError for ids outside of the vocabulary; a gap in the numbering says nothing."""
        ids = [int(i) for i in ids]
        outside = [str(i) for i in ids if not 0 <= i < self.n_vocab]
        if outside:
            raise UserError(f"ids outside of the vocabulary, 0 to {self.n_vocab - 1}: {listed(outside)}")
        return super().decode_bytes([i for i in ids if i in self.known])

    def decode(self, ids, errors="replace"):
        """Ids -> text. Bytes that are not UTF-8, as of a character cut in two, become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors=errors)

    @property
    def stop_ids(self):
        """Ids at which a text ends."""
        return () if self.eot is None else (self.eot,)

    @property
    def eot_token(self):
        """The id of `<|endoftext|>`, from which an empty prompt starts. Raises UserError if the tokenizer has none."""
        if self.eot is None:
            raise UserError(f"this tokenizer has no {EOT} for an empty prompt to start from: give a prompt")
        return self.eot


class NoEncoder:
    """In place of the tokenizer that a model lacks: its weights can be used with ids, and text is refused."""

    n_vocab = None

    def __init__(self, where):
        self.where = where

    def refuse(self, *_):
        raise UserError(f"{self.where}: no tokenizer: vocab.json and merges.txt, or tokenizer.json, are missing there")

    encode = decode = decode_bytes = refuse
    eot_token = property(refuse)


def load_encoder(checkpoint, config=None):
    """The tokenizer of a checkpoint -> Encoder, or NoEncoder where there is none.

    config: from `read_config`, for the size of wte and the end-of-text id. Raises UserError for a tokenizer that is
    not GPT-2's kind, by the part that is not.
    """
    where, files = checkpoint.path, checkpoint.files
    if "tokenizer.json" in files:
        vocab, merges, added, add_prefix_space = read_tokenizer_json(files, where)
    elif "vocab.json" in files and "merges.txt" in files:
        vocab, merges, added, add_prefix_space = read_vocab_and_merges(files, where)
    else:
        return NoEncoder(where)

    all_ids = {**vocab, **{text: flags["id"] for text, flags in added.items()}}
    if not all(isinstance(text, str) for text in all_ids):
        raise UserError(f"{where}: the tokens of a vocabulary must be texts")
    ids_fit = all(type(i) is int and 0 <= i < 2**31 for i in all_ids.values())
    if not ids_fit or len(set(all_ids.values())) != len(all_ids):
        raise UserError(f"{where}: the ids of a vocabulary must be different whole numbers from 0 on")
    alphabet = byte_alphabet()
    tokens = {bytes([byte]): vocab[character] for character, byte in alphabet.items() if character in vocab}
    if len(tokens) != 256:
        raise UserError(f"{where}: the vocabulary has {len(tokens)} of the 256 bytes, so it is not byte-level BPE")
    merge_ranks, last_id = {}, -1
    for rank, (left, right) in enumerate(merges):
        is_known = left and right and all(token in vocab for token in (left, right, left + right))
        name = f"merge {rank} ({left:.60} {right:.60})"
        if not is_known or not alphabet.keys() >= {*left, *right}:
            raise UserError(f"{where}: {name}: it, or what it makes, is not in the vocabulary")
        # tiktoken is given no list of merges: of all neighbours it joins those that make the lowest id.
        if vocab[left + right] <= last_id:
            raise UserError(
                f"{where}: {name} makes id {vocab[left + right]}, the one before it {last_id}: "
                "only vocabularies in the order of their merges are supported"
            )
        last_id = vocab[left + right]
        token = bytes(alphabet[character] for character in left + right)
        tokens[token], merge_ranks[token] = last_id, rank
    merged = set(tokens.values())
    others = {text: i for text, i in all_ids.items() if i not in merged}
    config = config or {"n_vocab": None, "eos_token_id": None}
    eot = all_ids.get(EOT, config["eos_token_id"])
    eot = eot if type(eot) is int and eot in all_ids.values() else None  # 1.0 and true are in [1] as well
    with naming_faults(f"{where}: tokenizer"):  # as of a token that is no Unicode
        return Encoder(tokens, merge_ranks, others, added, eot, config["n_vocab"], add_prefix_space)


def read_tokenizer_json(files, where):
    """tokenizer.json -> vocab {token: id}, merges [(left, right)], added {text: flags and id}, add_prefix_space."""
    tokenizer = parse_json(files["tokenizer.json"], f"{where}: tokenizer.json")
    with naming_faults(f"{where}: tokenizer.json"):
        model, splitter = tokenizer["model"], tokenizer.get("pre_tokenizer") or {}
        post = tokenizer.get("post_processor") or {"type": "ByteLevel"}
        of_another_kind = {
            f"model {model.get('type')}": model.get("type", "BPE") != "BPE",
            f"pre_tokenizer {splitter.get('type')}": splitter.get("type") != "ByteLevel",
            "pre_tokenizer without use_regex": not splitter.get("use_regex", True),
            f"post_processor {post['type']}": post["type"] not in ("ByteLevel", "TemplateProcessing"),
            "post_processor that adds tokens": post.get("special_tokens"),
            "normalizer": tokenizer.get("normalizer"),
        }
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"):
            of_another_kind[key] = model.get(key)
        if any(of_another_kind.values()):
            names = listed(name for name, is_there in of_another_kind.items() if is_there)
            raise UserError(f"only GPT-2's kind, byte-level BPE, is supported, not {names}")
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        if not all(len(merge) == 2 and isinstance("".join(merge), str) for merge in merges):
            raise UserError("merges are pairs of tokens")
        if not isinstance(model["vocab"], dict):
            raise UserError("a vocabulary is an object, from tokens to ids")
        added = {flags["content"]: {**flags, "id": flags["id"]} for flags in tokenizer.get("added_tokens") or []}
        added.pop("", None)
        return dict(model["vocab"]), merges, added, splitter.get("add_prefix_space", False)


def read_vocab_and_merges(files, where):
    """vocab.json, merges.txt and the files about added tokens -> what `read_tokenizer_json` returns."""
    vocab = parse_json(files["vocab.json"], f"{where}: vocab.json")
    merges = []
    for number, line in enumerate(files["merges.txt"].split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        merges.append(tuple(line.split(" ")))
        if len(merges[-1]) != 2:
            raise UserError(f"{where}: merges.txt, line {number}: two tokens are expected, not {line!r:.60}")

    def read(name):
        return parse_json(files.get(name, "{}"), f"{where}: {name}")

    config = read("tokenizer_config.json")
    with naming_faults(f"{where}: added tokens"):
        added = {text: {"id": i} for text, i in read("added_tokens.json").items()}
        for i, flags in config.get("added_tokens_decoder", {}).items():
            added[flags["content"]] = {**flags, "id": int(i)}
        # Special tokens that are named without an id are in the vocabulary.
        named = [(EOT, EOT), *read("special_tokens_map.json").items(), *config.items()]
        for key, text in named:
            text = text["content"] if isinstance(text, dict) and "content" in text else text
            if key.endswith(("_token", EOT)) and text in vocab:
                added.setdefault(text, {"id": vocab[text]})
    return vocab, merges, added, config.get("add_prefix_space", False)


def in_quotes(token):
    """Bytes of a token as Python would write them: as text if they are UTF-8, else as bytes."""
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)


def merges_of(token, merge_ranks):
    """The merges that make a token out of its bytes, in order -> list of (left, right, rank).

    Byte-pair encoding (Sennrich et al. 2016, section 3.2): of all neighbours, join those whose merge was learnt first.
    """
    parts, steps = [bytes([byte]) for byte in token], []
    while len(parts) > 1:
        ranks = [merge_ranks.get(left + right, math.inf) for left, right in zip(parts, parts[1:])]
        i = ranks.index(min(ranks))
        steps.append((parts[i], parts[i + 1], ranks[i]))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return steps
