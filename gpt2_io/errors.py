"""What the user did wrong, as one class, and words for the one line that says so."""
import contextlib
import struct
import tokenize as python_tokens
import warnings
import zipfile
import zlib


class UserError(ValueError):
    """What the user did wrong: the message says what, and what to do."""


FAULTS = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, EOFError, RuntimeError,
    zipfile.BadZipFile, zlib.error, struct.error,
    SyntaxError, python_tokens.TokenError, MemoryError,  # from Python's parser, which NumPy gives the headers of arrays
)  # fmt: skip


@contextlib.contextmanager
def naming_faults(where):
    """Turn what libraries raise for a broken file into a UserError that begins with `where`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says it, or it is none
            yield
    except OSError as error:
        if error.filename:  # then it says where itself
            raise
        raise UserError(f"{where}: {error}") from None
    except FAULTS as error:
        raise UserError(f"{where}: {str(error) or type(error).__name__:.700}") from None


def listed(names, limit=10):
    """Names for a message, of any number, length and kind of characters -> text."""
    names = [f"{name:.60}" if name.strip() and name.isprintable() else repr(name[:60]) for name in names]
    shown = ", ".join(names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def in_units(n_bytes):
    """A number of bytes for people: 6,329,552 -> "6.3 MB"."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
