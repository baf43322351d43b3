"""Added tokens, as `<|endoftext|>` is one: found in a text as they stand, before anything is split and merged."""
import functools
import re

import tiktoken

# Unicode's White_Space, which is Rust's \s. Python's takes \x1c to \x1f for blanks, too.
BLANKS = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
AFTER = re.compile(f"[{BLANKS}]*")


@functools.cache
def word_finder():
    """An encoding that keeps of a text what Rust's \\w is: letters, marks, digits, joiners, and `_` with its kind."""
    # Python's \w lacks marks and joiners, and knows the Unicode of another year. tiktoken is written in Rust.
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding("words", pat_str=r"\w", mergeable_ranks=ranks, special_tokens={})


def is_word(character):
    """Whether a character, or "" at the edge of a text, belongs to a word."""
    return bool(word_finder().encode_ordinary(character))


class AddedTokens:
    """Finds added tokens in a text as the tokenizers package does.

    There are two passes: first those that are not "normalized", as special tokens are unless their flags say otherwise;
    then the others, in what is left. In each pass the leftmost token wins, then the longest.
    """

    def __init__(self, added):
        """added: {text: flags}, with the flags of tokenizer.json: normalized, special, single_word, lstrip, rstrip."""
        self.passes = []
        for is_normalized in (False, True):
            tokens = {
                text: flags for text, flags in added.items()
                if text and bool(flags.get("normalized", not flags.get("special", False))) == is_normalized
            }  # fmt: skip
            if tokens:
                pattern = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
                self.passes.append((tokens, re.compile(pattern)))

    def split(self, text):
        """text -> list of its pieces: texts, none of them empty, and flags of the tokens that stand between them."""
        pieces = [text]
        for tokens, pattern in self.passes:
            parts = [find(piece, tokens, pattern) if isinstance(piece, str) else [piece] for piece in pieces]
            pieces = [piece for part in parts for piece in part]
        return [piece for piece in pieces if piece]


def find(text, tokens, pattern):
    """One pass over one text -> list of texts, some of them empty, and flags."""
    pieces, start = [], 0
    for match in pattern.finditer(text):
        flags, (begin, end) = tokens[match.group()], match.span()
        if flags.get("single_word") and (is_word(text[max(begin - 1, 0) : begin]) or is_word(text[end : end + 1])):
            continue
        before = text[start:begin]  # nothing, where the token before went on as far as here with its rstrip
        stop = AFTER.match(text, end).end() if flags.get("rstrip") else end
        if flags.get("lstrip"):
            pieces += [before.rstrip(BLANKS), flags] if start < stop else []  # else that token has all of this one, too
        else:
            pieces += [before, flags]
        start = stop
    return [*pieces, text[start:]]
