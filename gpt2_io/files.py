"""Files: read and checked, replaced whole or not at all, locked."""
import contextlib
import errno
import functools
import json
import os
import sys
from collections import Counter
from pathlib import Path

from gpt2_io.errors import UserError, naming_faults

try:
    import fcntl  # file locks, everywhere but on Windows
except ImportError:
    fcntl = None
    import msvcrt

ROOT = Path(__file__).resolve().parents[1]  # of the project
TEXT_FILES = (
    "config.json", "vocab.json", "merges.txt", "tokenizer.json",
    "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "generation_config.json",
)  # fmt: skip


@contextlib.contextmanager
def replacing(path):
    """`with replacing(path) as file`: write bytes to `path.part`, which becomes `path` only if all went well."""
    part = Path(f"{path}.part")
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_text(path):
    with naming_faults(path):
        return Path(path).read_text(encoding="utf-8")


def no_key_twice(pairs):
    """The keys and values of a JSON object -> dict. Raises UserError for a key that is there twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise UserError(f"{twice!r:.60} is there twice")
    return result


def parse_json(text, where):
    """A JSON object -> dict. Raises UserError, with `where`, for anything else and for a key that is there twice."""
    try:
        value = json.loads(text, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: a JSON object is expected, not {text[:20]!r}")
    return value


def has_file(folder, name):
    """Whether a model's folder has this file. Raises UserError for a link that leads out of the folder.

    With such links, a model from somebody else could have any file of this machine read. Hugging Face's cache is built
    of links, from `snapshots` to `blobs`: those are followed.
    """
    path = folder / name
    if not path.is_file():
        return False
    target = path.resolve()
    in_cache = target.parent.name == "blobs" and target.parent.parent.name.startswith("models--")
    if not in_cache and not target.is_relative_to(folder.resolve()):
        raise UserError(f"{path}: a link out of its folder, to {target}, which is not followed: put the file there")
    return True


@functools.cache
def say_once(text):
    print(text, file=sys.stderr)


@contextlib.contextmanager
def locked(path):
    """Hold a lock file, so that of two processes one waits until the other is done."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 (closed below, or by the next round)
        try:
            if not lock(file):
                print(f"waiting for another process that downloads {path.stem}", file=sys.stderr)
                while not lock(file, wait=True):
                    pass
        except OSError as error:  # downloads go on without: what arrives is checked
            say_once(f"note: this file system gives no locks ({error.strerror}): do not start a download of it twice")
        # The one before may have removed the file that was waited for: then the lock is worth nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        file.close()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file; an empty one stays behind there
            path.unlink()
        file.close()


TAKEN = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK)  # what systems say of a lock that another has


def lock(file, wait=False):
    """Lock an open file as long as it is open -> whether it is now, and not another process's.

    wait: wait for the other, if need be only for a while. Raises OSError where the file system gives no locks, as some
    network drives do.
    """
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        else:
            file.seek(1 << 30)  # beyond what is written: Windows lets nobody read what is locked
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        return False
    return True
