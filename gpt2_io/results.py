"""Files of results: each line knows what it is the result of, so that a job can be broken off, changed, and go on.

While a job runs, results are added to FILE.part, some at a time, and are on the disk before the job goes on. At the end
they are written in the order of the prompts to FILE.new, which becomes FILE in one step, and FILE.part goes.
A line ends with "key", which says what it is the result of, and "check", which shows whether it was edited.
"""
import contextlib
import errno
import filecmp
import json
import os
import socket
import stat
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpt2_io.errors import UserError, listed
from gpt2_io.files import lock, parse_json
from gpt2_io.prompts import digest

FIRST_LINE = b'{"part": "results of jobs.py, as they came"}\n'  # of FILE.part: nobody else's file begins so
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)  # what file systems without locks answer


def fingerprint(versions, encoder, hparams, params):
    """16 bytes that stand for what makes a result: the versions' names, all tokens, hparams, and a sample of params."""
    tokens = [encoder.decode_bytes([i]).hex() for i in range(encoder.n_vocab or 0)]
    return digest(versions, hparams, tokens, *map(str, encoder.stop_ids), digest_of_arrays(params))


def digest_of_arrays(tree):
    """Names, shapes, types and a sample of the values, 4096 or more of each array -> 32 characters."""
    if isinstance(tree, dict):
        return digest({name: digest_of_arrays(value) for name, value in tree.items()}).hex()
    if isinstance(tree, list):
        return digest(*map(digest_of_arrays, tree)).hex()
    array = np.asarray(tree)
    sample = array.reshape(-1)[:: max(1, array.size // 4096)]
    return digest(array.shape, array.dtype.name, sample.tobytes().hex()).hex()


def to_line(result):
    """A dict -> a line of JSON, UTF-8 as people read it. Half a surrogate pair, which is no UTF-8, stays escaped."""
    return (json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")


def check_of(key, result):
    """What shows whether a result, or an error, whose key is empty, was edited."""
    return digest(key, result).hex()[:12]


def result_line(shown, result, key):
    """What a line repeats, the fields of its result, and its key, empty for an error -> a line of JSON."""
    named = {"key": key} if key else {}
    return to_line({**shown, **result, **named, "check": check_of(key, result)})


@contextlib.contextmanager
def open_results(out, keys, fields):
    """Open the results of a job, maybe begun before: `with open_results(...) as results`.

    out: the file; keys: of all its lines in order, arrays of 32 characters, empty for a line that needs no result;
    fields: what a result may have, all else in a line is only repeated from the prompts.
    Raises UserError where the file is no results', where it has none of this job's, or where another job writes it.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(out).st_mode):  # which raises OSError for links in a circle
            raise UserError(f"--out {out}: not a plain file")
    out = os.path.realpath(out)  # a link stays one
    new = f"{out}.new"
    if os.path.lexists(new) and (os.path.isdir(new) or not os.path.exists(f"{out}.part")):  # a job has both at its end
        raise UserError(f"{new}: results are put in order there, but this is no job's: move it away")
    with open_locked(f"{out}.part") as part:
        results = Results(out, part, keys, fields)
        try:
            yield results
        finally:
            results.close()


@contextlib.contextmanager
def open_locked(path):
    """Open a file to be read and added to, which no other process does meanwhile. Raises UserError if one does."""
    with contextlib.ExitStack() as at_end:
        while True:
            file = open(path, "ab+", buffering=0)  # noqa: SIM115 (closed below, or by the next round)
            try:
                has_locks = True
                try:
                    if not lock(file):
                        raise UserError(f"{path}: another job is writing it")
                except OSError as error:
                    if error.errno not in NO_LOCKS:
                        raise
                    has_locks = False
                # The one before may have removed the file in between: then the lock is worth nothing.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                        break
            except BaseException:
                file.close()
                raise
            file.close()
        at_end.enter_context(file)
        if not has_locks:
            at_end.enter_context(lock_by_file(f"{path}.lock"))
        yield file


@contextlib.contextmanager
def lock_by_file(path):
    """Hold a file whose existence is the lock, for file systems without locks. One left by a kill counts for nothing.

    That can be told on the same machine only. Elsewhere it has to be removed by hand, as the UserError says.
    """
    name = f"{os.getpid()} on {socket.gethostname()}"
    for _ in range(2):
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(name)
            break
        except FileExistsError:
            owner = Path(path).read_text(encoding="utf-8", errors="replace")
            process, _, host = owner.partition(" on ")
            if host == socket.gethostname() and process.isdigit() and not is_running(int(process)):
                os.unlink(path)
                continue
            message = f"another job is writing it, process {owner:.60}; this file system has no locks: "
            raise UserError(f"{path}: {message}if that process is no more, remove this file") from None
    try:
        yield
    finally:
        os.unlink(path)


def is_running(process):
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Results:
    """What is there of a job's results, in FILE and in FILE.part, and what is missing.

    missing: for each line whether its result is still to be made.
    """

    def __init__(self, out, part, keys, fields):
        self.out, self.part, self.keys = out, part, keys
        self.fields = {*fields, "error"}
        self.order = np.argsort(keys, kind="stable")
        self.sorted = keys[self.order]
        is_repeated = self.sorted[1:] == self.sorted[:-1]
        self.shared = [key.decode() for key in np.unique(self.sorted[1:][is_repeated]) if key]
        self.sources, self.places = np.zeros(len(keys), dtype=np.int8), np.zeros(len(keys), dtype=np.int64)
        self.old = open(out, "rb") if os.path.exists(out) else None  # noqa: SIM115 (see close)
        n_found = self.read(self.old, out, 1, 0) if self.old else 0
        n_found += self.begin_part()
        if n_found and not self.sources.any():
            what = "a result belongs to its prompt, settings, seed, model and version of the program"
            raise UserError(f"{out}: none of its {n_found} results is of this job ({what}): give another --out")

    def begin_part(self):
        """Read FILE.part, or begin it -> number of results in it."""
        self.part.seek(0)
        begin = self.part.read(len(FIRST_LINE))
        if not FIRST_LINE.startswith(begin):
            raise UserError(f"{self.part.name}: is there already and is no job's: give another --out")
        if begin != FIRST_LINE:  # nothing, or what a kill has left of it
            self.part.truncate(0)
            self.write(FIRST_LINE)
            return 0
        with open(self.part.name, "rb") as buffered:
            n_found = self.read(buffered, self.part.name, 2, len(FIRST_LINE))
            end = buffered.seek(0, os.SEEK_END)
            if self.cut:  # the last line, by a kill
                end -= self.cut
        self.part.truncate(end)
        return n_found

    def read(self, file, name, source, place):
        """Look at all lines of a file -> how many are results of whatever job. Names those that are damaged."""
        file.seek(place)
        n_found, damaged, twice, self.cut = 0, [], [], 0
        for number, data in enumerate(file, start=2 if place else 1):
            result = self.parse(data)
            if result is None and source == 2 and not data.endswith(b"\n"):
                self.cut = len(data)
            elif result is None:
                damaged.append(str(number))
            elif result["key"]:  # not an error
                n_found += 1
                lines = self.lines_of(result["key"])
                if len(lines) and np.count_nonzero(self.sources[lines] == source) == len(lines):
                    twice.append(str(number))
                else:  # a result that equal lines share may be there for each of them
                    mine = lines[self.sources[lines] != source][:1]
                    self.sources[mine], self.places[mine] = source, place
            place += len(data)
        if damaged and not n_found:
            raise UserError(f"{name}, line {damaged[0]}: not a result of jobs.py: give another --out")
        if damaged:
            print(f"{name}: edited or cut, so made again: line {listed(damaged)}", file=sys.stderr)
        if twice:
            print(f"{name}: there twice, so left out: line {listed(twice)}", file=sys.stderr)
        for key in self.shared:
            lines = self.lines_of(key)
            found = lines[self.sources[lines] == source][:1]
            if len(found):
                self.sources[lines], self.places[lines] = source, self.places[found]
        return n_found

    def parse(self, data):
        """A line -> the fields of its result and "key", empty for an error; None if it is not as it was written."""
        try:
            line = parse_json(data.decode("utf-8"), self.out)
            result = {key: line[key] for key in line if key in self.fields}
            is_whole = data.endswith(b"\n") and line["check"] == check_of(line.get("key", ""), result)
        except (ValueError, KeyError):
            return None
        return {**result, "key": line.get("key", "")} if is_whole else None

    def lines_of(self, key):
        """The lines of the file that have this key; equal prompts without a seed of their own share one."""
        key = key.encode()
        return self.order[slice(*(np.searchsorted(self.sorted, key, side) for side in ("left", "right")))]

    @property
    def missing(self):
        return (self.sources == 0) & (self.keys != b"")

    def n_done(self, n_samples):
        """Prompts of which no result is missing."""
        return int(np.count_nonzero(~self.missing.reshape(-1, n_samples).any(axis=1)))

    def add(self, results):
        """Put results, (line of the file, what it repeats, fields of the result) each, on the disk."""
        place, data = os.fstat(self.part.fileno()).st_size, b""
        for line, shown, result in results:
            key = self.keys[line].decode()
            lines = self.lines_of(key)
            self.sources[lines], self.places[lines] = 2, place + len(data)
            data += result_line(shown, result, key)
        self.write(data)

    def write(self, data):
        while data:
            data = data[self.part.write(data) :]
        os.fsync(self.part.fileno())

    def finish(self, shown, see=lambda result: None):
        """Write all lines in order, and put the file in its place in one step. see(result) is told of each in turn.

        shown: for each line what it repeats, with "error" where it needs no result.
        """
        new = f"{self.out}.new"
        try:
            with open(new, "wb") as file, open(self.part.name, "rb") as part:
                for line, before in enumerate(shown):
                    if not self.keys[line]:
                        file.write(result_line(before, {"error": before["error"]}, ""))
                        continue
                    source = self.old if self.sources[line] == 1 else part
                    source.seek(self.places[line])
                    result = self.parse(source.readline())
                    if result is None or result.pop("key").encode() != self.keys[line]:
                        raise UserError(f"{source.name}: it was changed while the job ran: start the job again")
                    see(result)
                    file.write(result_line(before, result, self.keys[line].decode()))
                file.flush()
                os.fsync(file.fileno())
            if self.old and filecmp.cmp(new, self.out, shallow=False):
                os.unlink(new)
            else:
                self.close()
                os.replace(new, self.out)
                sync_folder(self.out)
        finally:
            Path(new).unlink(missing_ok=True)
        with contextlib.suppress(PermissionError):  # Windows removes no open file; an empty one stays behind there
            self.part.truncate(0)
            os.unlink(self.part.name)

    def close(self):
        if self.old:
            self.old.close()


def sync_folder(path):
    """Hand the renaming of a file to the disk."""
    if os.name == "posix":
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError:  # some file systems have no such thing
            pass
        finally:
            os.close(folder)


class Progress:
    """Shows on stderr how far a job is: a bar on a terminal, else a line every 30 seconds."""

    def __init__(self, n_prompts, n_errors):
        self.n_prompts, self.errors = n_prompts, f"{n_errors} errors"
        self.n_before, self.n_done, self.n_tokens = None, 0, 0
        self.began = self.told = time.monotonic()
        self.bar = tqdm(total=n_prompts, unit="prompt", disable=None)  # None: on a terminal only

    def done(self, n):
        """n prompts are done by now. The first call tells what was there before."""
        if self.n_before is None:
            self.n_before = self.bar.initial = self.bar.last_print_n = n
        self.n_done = self.bar.n = n
        self.tell(every=0)

    def count(self, n):
        """n more tokens."""
        self.n_tokens += n
        self.tell(every=0.5)

    def tell(self, every):
        now = time.monotonic()
        if now - self.told < (30 if self.bar.disable else every):
            return
        self.told, seconds, n_new = now, max(now - self.began, 1e-9), self.n_done - self.n_before
        speed = f"{self.n_tokens / seconds:.0f} tokens/s"
        if not self.bar.disable:
            self.bar.set_postfix_str(f"{speed}, {self.errors}")  # and draws
            return
        left = tqdm.format_interval(seconds * (self.n_prompts - self.n_done) / n_new) if n_new else "unknown time"
        done = f"{self.n_done} of {self.n_prompts} prompts"
        print(f"{done}, {speed}, {left} left, {self.errors}", file=sys.stderr, flush=True)

    def close(self):
        self.bar.close()
