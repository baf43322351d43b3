"""Texts to ids and back, as Hugging Face's tokenizers do it for a GPT-2."""
import codecs
import math
import re

import tiktoken

from gpt2_io.added_tokens import AddedTokens
from gpt2_io.errors import UserError, naming_faults
from gpt2_io.other_tokenizers import NoEncoder, no_tokenizer, other_encoder
from gpt2_io.text_ends import check_in_vocabulary, check_start, check_text, find_ends
from gpt2_io.tokenizer_files import OtherKind, read_tokenizer_files

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


def merges_of(token, merges):
    """The merges that are made within a token's bytes, in order -> list of (left, right, place).

    merges: {(left, right): place in the list, from 0}. Byte-pair encoding (Sennrich et al. 2016, section 3.2): of all
    neighbours, join those whose merge was learnt first; of equal ones the first.
    """
    parts, steps = [token[i : i + 1] for i in range(len(token))], []
    while len(parts) > 1:
        places = [merges.get(pair, math.inf) for pair in zip(parts, parts[1:])]
        i = places.index(min(places))
        if places[i] == math.inf:
            break
        steps.append((parts[i], parts[i + 1], places[i]))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return steps


def reachable_tokens(merges):
    """The tokens that merges make of their own bytes -> {token: place of the last merge}.

    merges: {(left, right): place}, in the order of places. tiktoken has no such list: it joins any neighbours that are
    a token together, those of the lowest rank first, and takes a word that is a token at once. That comes to the same
    if it knows these tokens alone, each with its last merge for a rank: what its own bytes do not become comes up
    nowhere else, since within these bytes the same merges are made whatever is around them.
    """
    last, split = {}, {}
    for (left, right), place in merges.items():
        token = left + right
        if token in split or any(len(part) > 1 and part not in split for part in (left, right)):
            # Made in several ways, or of what comes later: only making all merges can tell, which takes much longer.
            steps = {left + right: merges_of(left + right, merges) for left, right in merges}
            return {t: made[-1][2] for t, made in steps.items() if made and made[-1][0] + made[-1][1] == t}
        split[token] = left, right
        # Undo the merges on both sides of the border, the last one first. If at some time the two that meet there
        # could have been merged before that, they were, and the token does not come about.
        a, b, limit = left, right, place
        while merges.get((a, b), limit) >= limit:
            if last.get(a, -1) > last.get(b, -1):
                limit, a = last[a], split[a][1]
            elif b in last:  # of two equal merges, the one to the left was made first
                limit, b = last[b] + 1, split[b][0]
            elif len(a) == len(b) == 1:
                last[token] = place
                break
            else:  # one of them never comes about itself
                break
    return last


class Encoder:
    """The tokenizer of a model, with a tiktoken.Encoding inside that splits and merges.

    n_vocab: one more than the highest id. merges: {(left, right): place in the list}, of bytes. eot_token, stop_ids,
    never_ids: ids where an empty prompt starts, at which a text ends, and that are in none, see `find_ends`.
    """

    reason = ""  # of the encoders for other kinds: why they are used

    def __init__(self, files, ids, merges, others, n_rows, ends):
        """files: TokenizerFiles; ids: {bytes: id}; merges: {(left, right): place}; others: {id: text} of other tokens.

        n_rows: of wte, or None; ends: (start, stop_ids, never_ids), see `find_ends`.
        """
        self.tokens = {**{i: token for token, i in ids.items()}, **{i: text.encode() for i, text in others.items()}}
        self.merges, self.n_vocab, self.n_rows = merges, max(self.tokens) + 1, n_rows
        self.start, self.stop_ids, self.never_ids = ends
        self.before, self.after, self.add_prefix_space = files.before, files.after, files.add_prefix_space
        self.added = AddedTokens(files.added)
        ranks = {bytes([byte]): byte for byte in range(256)}
        ranks |= {token: 256 + place for token, place in reachable_tokens(merges).items()}
        self.ids = {rank: ids[token] for token, rank in ranks.items()}
        self.encoding = tiktoken.Encoding("gpt2", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})

    def encode(self, text):
        """text -> list of ids. Added tokens in the text, `<|endoftext|>` first of all, become one id each.

        Raises UserError for a lone surrogate, for too many blanks on end, and for a token that the model cannot take.
        """
        check_text(text)
        if len(text) > MAX_BLANKS:
            parts = (text[i : i + MAX_BLANKS // 2] for i in range(0, len(text), MAX_BLANKS // 2))
            # Where no part is blank, there is no need to look more closely.
            if any(map(str.isspace, parts)) and max(map(len, re.findall(r"\s+", text))) > MAX_BLANKS:
                raise UserError(f"a text has more than {MAX_BLANKS} blanks or line breaks on end: take some out")
        ids = list(self.before)
        for piece in self.added.split(text):
            if isinstance(piece, str):
                if self.add_prefix_space and not piece.startswith(" "):
                    piece = " " + piece
                ids += map(self.ids.__getitem__, self.encoding.encode_ordinary(piece))
            else:
                ids.append(self.check_added(piece))
        ids += self.after
        if self.n_rows is not None and max(ids, default=0) >= self.n_rows:
            token = in_quotes(self.tokens[max(ids)])
            reason = f"wte ends at {self.n_rows - 1}: is this the model's tokenizer?"
            raise UserError(f"token {token} has id {max(ids)}, but {reason}")
        return ids

    def check_added(self, flags):
        """The id of an added token. Raises UserError if it has none that is certain, or is for padding alone."""
        fault = flags.get("fault")
        if flags["id"] in self.never_ids:
            fault = "it is there for padding alone"
        if fault:
            raise UserError(f"the text holds the token {flags['content']!r:.60}: {fault}; take it out")
        return flags["id"]

    def encode_batch(self, texts):
        """Texts -> list of lists of ids, as `encode` gives them."""
        return [self.encode(text) for text in texts]

    def decode_bytes(self, ids):
        """Ids -> bytes. Raises UserError for ids outside of the vocabulary; a gap in the numbering says nothing."""
        ids = check_in_vocabulary(ids, self.n_vocab)
        return b"".join([self.tokens.get(i, b"") for i in ids])

    def decode(self, ids):
        """Ids -> text. Bytes that are not UTF-8, as of a character cut in two, become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def text_decoder(self):
        """A function for ids as they come: (ids, final=False) -> the text that is whole by now and was not before."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda ids, final=False: decoder.decode(self.decode_bytes(ids), final)

    @property
    def eot_token(self):
        """The id from which an empty prompt starts. Raises UserError if the tokenizer has none for it."""
        return check_start(self.start)


def load_encoder(checkpoint, config=None):
    """The tokenizer of a checkpoint -> Encoder; NoEncoder where it has none, or one of another kind than GPT-2's.

    config: from `read_config`, for the size of wte. Raises UserError for a tokenizer that is spoilt.
    """
    where, n_rows = checkpoint.path, (config or {}).get("n_vocab")
    try:
        files = read_tokenizer_files(checkpoint.files, where)
    except OtherKind as error:
        return other_encoder(checkpoint, n_rows, error)
    if files is None:
        return NoEncoder(f"{where}: {no_tokenizer(where)}", find_ends(checkpoint, {}, {}, n_rows), n_rows)
    vocab, added_ids = files.vocab, {text: flags["id"] for text, flags in files.added.items()}
    all_ids = {**{text: i for text, i in added_ids.items() if i is not None}, **vocab}
    if not all(isinstance(text, str) for text in all_ids):
        raise UserError(f"{where}: the tokens of a vocabulary must be texts")
    ids_fit = all(type(i) is int and 0 <= i < 2**31 for i in all_ids.values())
    if not ids_fit or len(set(all_ids.values())) != len(all_ids):
        raise UserError(f"{where}: the ids of a vocabulary must be different whole numbers from 0 on")

    alphabet = byte_alphabet()
    table = {**dict.fromkeys(range(256), "\uffff"), **{ord(character): byte for character, byte in alphabet.items()}}
    as_bytes = {}  # token, as the files spell it -> bytes
    for token in vocab:
        try:
            as_bytes[token] = token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            pass  # none that merges could make: an added token, spelt as it is
    n_bytes = sum(character in as_bytes for character in alphabet)
    if n_bytes != 256:
        raise UserError(f"{where}: the vocabulary has {n_bytes} of the 256 bytes, so it is not byte-level BPE")
    merges = {}
    for place, (left, right) in enumerate(files.merges):
        pair = as_bytes.get(left), as_bytes.get(right)
        if not all(pair) or left + right not in as_bytes:
            name = f"merge {place} ({left:.60} {right:.60})"
            raise UserError(f"{where}: {name}: it, or what it makes, is not in the vocabulary")
        merges.pop(pair, None)  # where it is there twice, the later place counts
        merges[pair] = place
    made = {vocab[character] for character in alphabet} | {vocab[left + right] for left, right in files.merges}
    unmade = [text for text, token in as_bytes.items() if vocab[text] not in made and text not in added_ids]
    if len(unmade) > max(16, len(vocab) // 100):  # a few may be special tokens that no file names as such
        raise UserError(f"{where}: no merge makes {len(unmade)} of {len(vocab)} tokens: the merges are not whole")
    ends = find_ends(checkpoint, files.roles, all_ids, n_rows, made)
    others = {i: text for text, i in all_ids.items() if text not in as_bytes}
    with naming_faults(f"{where}: tokenizer"):  # as of a token that is no Unicode
        return Encoder(files, {token: vocab[text] for text, token in as_bytes.items()}, merges, others, n_rows, ends)


def in_quotes(token):
    """Bytes of a token as Python would write them: as text if they are UTF-8, else as bytes."""
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)
