"""Tokenizers of other kinds than GPT-2's, through the tokenizers package where it is installed."""
import contextlib
import re

from gpt2_io.errors import UserError
from gpt2_io.settings import check_ids
from gpt2_io.text_ends import check_in_vocabulary, check_start, check_text, find_ends
from gpt2_io.tokenizer_files import read_roles


class NoEncoder:
    """In place of a tokenizer that is missing or of another kind: ids stand for text, "464 11" or "[464, 11]"."""

    n_vocab, merges = None, {}

    def __init__(self, reason, ends, n_rows):
        self.reason, (self.start, self.stop_ids, self.never_ids), self.n_rows = reason, ends, n_rows

    def encode(self, text):
        """Ids as text -> list of ids. Raises UserError for any other text."""
        check_text(text)
        if not re.fullmatch(r"\s*\[?[\s,0-9]*\]?\s*", text):
            raise UserError(
                f'{self.reason}; or give ids for text, as "464 11", or take a tokenizer from elsewhere: --tokenizer '
                "FOLDER"
            )
        ids = [int(digits[:18]) for digits in re.findall("[0-9]+", text)]  # of thousands of digits Python makes no int
        return check_ids(ids, "a prompt", self.n_rows or 2**31)

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        return "".join(f" {i}" for i in ids)

    def decode_bytes(self, ids):
        return self.decode(ids).encode()

    def text_decoder(self):
        return lambda ids, final=False: self.decode(ids)

    @property
    def eot_token(self):
        """The id from which an empty prompt starts. Raises UserError if the config names none."""
        return check_start(self.start)


@contextlib.contextmanager
def naming_panics(where):
    """Turn what the tokenizers package raises into a UserError: it has no class of its own, and panics besides."""
    try:
        yield
    except (UserError, ImportError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as fault:
        raise UserError(f"{where}: {fault!s:.200}") from None


class OtherEncoder:
    """Any tokenizer.json, through the tokenizers package: the same methods as `Encoder` has."""

    merges = {}

    def __init__(self, tokenizer, reason, n_rows, ends):
        self.tokenizer, self.reason, self.n_rows = tokenizer, reason, n_rows
        self.start, self.stop_ids, self.never_ids = ends
        self.n_vocab = max(tokenizer.get_vocab().values()) + 1
        # What is decoded goes on from a prompt. By itself, some kinds would take the space off its beginning; so it is
        # decoded behind a token that has a text.
        self.front = tokenizer.encode("a", add_special_tokens=False).ids
        self.front_text = tokenizer.decode(self.front, skip_special_tokens=False)

    def encode(self, text):
        """text -> list of ids. Raises UserError for a lone surrogate, and for a token that the model cannot take."""
        check_text(text)
        with naming_panics("the tokenizers package"):
            ids = self.tokenizer.encode(text).ids
        for i in ids:
            if i in self.never_ids or (self.n_rows is not None and i >= self.n_rows):
                reason = "is there for padding alone" if i in self.never_ids else f"has id {i}, beyond the model's wte"
                raise UserError(f"the text holds the token {self.tokenizer.id_to_token(i)!r:.60}, which {reason}")
        return ids

    def encode_batch(self, texts):
        """Texts -> list of lists of ids, as `encode` gives them."""
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        """Ids -> the text that they make behind another one. Raises UserError for ids outside of the vocabulary."""
        ids = check_in_vocabulary(ids, self.n_vocab)
        return self.tokenizer.decode([*self.front, *ids], skip_special_tokens=False).removeprefix(self.front_text)

    def decode_bytes(self, ids):
        """Ids -> bytes of that text."""
        return self.decode(ids).encode()

    def text_decoder(self):
        """A function for ids as they come: (ids, final=False) -> the text that is whole by now and was not before."""
        seen, shown = [], 0

        def add(ids, final=False):
            nonlocal shown
            seen.extend(ids)
            text = self.decode(seen)
            if text.endswith("\ufffd") and not final:  # a character that may not be whole yet
                return ""
            new, shown = text[shown:], max(shown, len(text))
            return new

        return add

    @property
    def eot_token(self):
        """The id from which an empty prompt starts. Raises UserError if the tokenizer has none for it."""
        return check_start(self.start)


def no_tokenizer(path):
    """What is in place of a tokenizer in a model's folder, or beside its file, and the way out -> text."""
    folder = path if path.is_dir() else path.parent
    for pattern, kind in (("vocab.txt", "BertTokenizerFast"), ("*.model", "AutoTokenizer")):
        for file in sorted(folder.glob(pattern)):
            made = f"{kind}.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
            return f"{file.name} is not read: with transformers, {made} makes a tokenizer for --tokenizer NEW_FOLDER"
    return "no tokenizer: vocab.json and merges.txt, or tokenizer.json, are missing there"


def other_encoder(checkpoint, n_rows, error):
    """tokenizer.json of another kind, of which `error` says why -> OtherEncoder, or NoEncoder without the package."""
    files, where = checkpoint.files, checkpoint.path
    if "tokenizer.json" not in files:
        return NoEncoder(str(error), find_ends(checkpoint, {}, {}, n_rows), n_rows)
    try:
        with naming_panics(f"{error}; the tokenizers package"):
            import tokenizers

            tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
            tokenizer.no_truncation()  # of training, like padding
            tokenizer.no_padding()
            vocab, special = tokenizer.get_vocab(), tokenizer.get_added_tokens_decoder()
            made = [i for i in vocab.values() if i not in special]
            ends = find_ends(checkpoint, read_roles(files, where)[0], vocab, n_rows, made)
            return OtherEncoder(tokenizer, f"{error}: used through the tokenizers package", n_rows, ends)
    except ImportError:
        return NoEncoder(f"{error}: pip install tokenizers", find_ends(checkpoint, {}, {}, n_rows), n_rows)
    except UserError as fault:
        return NoEncoder(str(fault), find_ends(checkpoint, {}, {}, n_rows), n_rows)
