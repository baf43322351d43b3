"""Files of prompts or texts: a line each, or JSON lines that may carry settings of their own."""
import contextlib
import hashlib
import json
import math
import os
import stat
import sys
import tempfile
from array import array
from typing import NamedTuple

import numpy as np

from gpt2_io.errors import UserError, listed
from gpt2_io.files import no_key_twice
from gpt2_io.rules import NOTHING, check_alone, read_bias
from gpt2_io.settings import NEUTRAL, check_ids, check_settings, is_list
from gpt2_io.text_ends import EOT

MAX_LINE = 1 << 26  # bytes; what is read at once has a limit, or a file without line breaks would fill the memory
MAX_COPY = 1 << 30  # bytes of what is no file and has to be copied into one

HONOURED = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "n_tokens_to_generate", "stop",
    "ignore_eos", "logprobs", *NOTHING,
)  # fmt: skip
ALSO = {"max_tokens": "n_tokens_to_generate", "max_new_tokens": "n_tokens_to_generate"}  # other names
ELSEWHERE = {  # settings that other programs know, and the value at which they change nothing
    "n": 1, "n_samples": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0, "echo": False,
    "suffix": "", "stream": False, "truncate": None, "n_beams": 1, "n_best": 1, "length_penalty": 1,
    "early_stopping": False,
}  # fmt: skip


class Line(NamedTuple):
    """A line of the file, understood."""

    parts: dict  # "prompt", "completion" or "text" -> as it stands there
    settings: dict  # those of HONOURED that the line has
    shown: dict  # what its result repeats: all but the settings
    identity: bytes  # 16 bytes: its id, or else the whole line
    content: bytes  # 16 bytes: the whole line


def finite(text):
    """A number of JSON -> float. Raises ValueError for one that JSON could not hold when it is written again."""
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text:.60} is no number of JSON")


READ = json.JSONDecoder(object_pairs_hook=no_key_twice, parse_float=finite, parse_constant=finite).decode
WRITE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True).encode


def digest(*parts):
    """16 bytes that stand for values of JSON, or for bytes; of those only the last may be of any length."""
    raw = [p if isinstance(p, (bytes, bytearray)) else WRITE(p).encode("utf-8", "surrogatepass") + b"\0" for p in parts]
    return hashlib.sha256(b"".join(raw)).digest()[:16]


@contextlib.contextmanager
def open_prompts(path):
    """Open a file that can be read from any place: `with open_prompts(path) as file`. "-" is standard input.

    What is no file (a pipe, standard input) is copied into one that nobody else sees and that is gone at the end.
    """
    if path == "-" and not sys.stdin:
        raise UserError("standard input is closed, but - reads from it")
    with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as source:
        mode = stat.S_IFIFO if path == "-" else os.fstat(source.fileno()).st_mode
        if stat.S_ISREG(mode):
            yield source
            return
        if stat.S_ISCHR(mode):
            raise UserError(f"{path}: a device: give a file, or - for standard input")
        with tempfile.TemporaryFile() as copy:
            while piece := source.read(1 << 16):
                copy.write(piece)
                if copy.tell() > MAX_COPY:
                    raise UserError(f"{name_of(path)}: more than {MAX_COPY} bytes: put it into a file")
            yield copy


def name_of(path):
    return "standard input" if path == "-" else path


class PromptFile:
    """Reads lines of an open file, all of them in order or one by its place, so that none has to stay in memory.

    parts: the keys of JSON lines that hold what the model is given, "prompt" or others; of a line of plain text the
    last one. settings: of the job, which lines may change; None where they have none. reserved: keys of results, which
    a line must not have. whole: whether the file is one text, None to have it so where it holds `<|endoftext|>`.
    model: the only one that lines may name. Raises UserError, with the line, for what is neither text nor JSON lines.
    """

    def __init__(self, file, path, parts=("prompt",), settings=None, reserved=(), whole=False, model=None):
        self.file, self.where, self.parts, self.model = file, name_of(path), parts, model
        self.settings = settings
        self.known = {*parts, *((*HONOURED, *ALSO, *ELSEWHERE) if settings else ())}
        self.reserved = {*reserved} - {*parts}
        self.is_json = self.whole = False
        first = next(self.texts(), None)
        if first is None:
            raise UserError(f"{self.where}: no {parts[-1]}s in it")
        self.is_json = self.begins_json(*first[1:])
        self.whole = not self.is_json and (self.holds_eot() if whole is None else whole)

    def begins_json(self, number, text):
        """Whether the first line is a JSON object; a broken one, or an array of them, would make no sense as text."""
        if not text.startswith(("{", "[")):
            return False
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            message = f"begins like JSON and is not valid: a prompt like that goes into JSON lines, {self.example()}"
            raise UserError(f"{self.where}, line {number}: {message}") from None
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            raise UserError(f"{self.where}, line {number}: a JSON array: put each item on a line, as {self.example()}")
        return isinstance(value, dict)

    def example(self):
        return json.dumps({self.parts[-1]: "..."})

    def holds_eot(self):
        self.file.seek(0)
        before = b""
        while piece := self.file.read(1 << 16):
            if EOT.encode() in before + piece:
                return True
            before = piece[-len(EOT) :]
        return False

    def texts(self):
        """Each line that is not blank -> place in the file, number from 1, text."""
        place = number = 0
        while True:
            self.file.seek(place)
            data = self.file.readline(MAX_LINE + 1)
            if not data:
                return
            number += 1
            text = self.decode(data, number)
            if text.strip():
                yield place, number, text
            place += len(data)

    def decode(self, data, number):
        if len(data) > MAX_LINE:
            raise UserError(f"{self.where}, line {number}: more than {MAX_LINE} bytes: is it a file of prompts?")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.where}, line {number}: not UTF-8 text (byte {error.start})") from None
        return text.removeprefix("\ufeff").rstrip("\r\n") if number == 1 else text.rstrip("\r\n")

    def lines(self):
        """Each line -> its place in the file and its Line."""
        if self.whole:
            yield 0, self.at(0)
            return
        for place, number, text in self.texts():
            yield place, self.understand(text, f"{self.where}, line {number}")

    def at(self, place, content=None):
        """The Line at a place. Raises UserError where it is not the one with this content any more."""
        self.file.seek(place)
        if self.whole:
            data = self.file.read(MAX_LINE + 1)
            line = self.understand(self.decode(data, 1), self.where)
        else:
            text = self.decode(self.file.readline(MAX_LINE + 1), 1 if place == 0 else 2)
            line = self.understand(text, self.where)
        if content not in (None, line.content):
            raise UserError(f"{self.where}: it was changed while the job ran: start the job again, which goes on")
        return line

    def understand(self, text, where):
        """One line -> Line. Raises UserError, with `where`, for a setting that makes no sense."""
        content = digest(text.encode("utf-8"))
        if not self.is_json:
            return Line({self.parts[-1]: text}, {}, {self.parts[-1]: text}, content, content)
        try:
            record = READ(text)
            if not isinstance(record, dict):
                raise ValueError("a JSON object is expected, as in the first line")
            if text.count("[") + text.count("{") > 100:  # Python writes a little less deep than it reads
                WRITE([record] * 3)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid: {error}") from None
        own = [key for key in record if key in self.known]
        shown = {key: record[key] for key in record if key not in own or key in self.parts} if own else record
        if "custom_id" in record and isinstance(record.get("body"), dict):  # OpenAI's batches: the request is in there
            body = record["body"]
            if twice := [key for key in record if key in self.known and key in body]:
                raise UserError(f"{where}: {twice[0]} is there twice, in body too")
            rest = {key: body[key] for key in body if key not in self.known}
            shown = {**shown, "body": rest, **{key: body[key] for key in self.parts if key in body}}
            record = {**record, **body}
            own = [key for key in record if key in self.known]
        elif record.get("model", self.model) != self.model:
            raise UserError(f"{where}: model {record['model']!r:.60}: a job runs one model, --model {self.model}")
        settings = settings_of(record, own, self.settings, where) if len(own) > 1 and self.settings else {}
        if not self.reserved.isdisjoint(shown):
            clash = listed(sorted(self.reserved & shown.keys()))
            raise UserError(f"{where}: {clash}: so the results call something: use another name")
        parts = {key: record[key] for key in self.parts if record.get(key) is not None}
        name = record.get("id", record.get("custom_id"))
        return Line(parts, settings, shown, content if name is None else digest(name, b"id"), content)

def settings_of(record, names, job, where):
    """The settings in a JSON line, of those names, checked -> dict. null is as good as not given."""
    settings = {}
    for key in sorted(names):
        name, value = ALSO.get(key, key), record[key]
        if value is None:
            continue
        if key in ELSEWHERE and WRITE(value) != WRITE(ELSEWHERE[key]):
            raise UserError(f"{where}: {key} {value!r:.60} in a line is not supported: take it out")
        if name not in HONOURED:
            continue
        if settings.get(name, value) != value:
            raise UserError(f"{where}: {name} is there twice, as {key} too")
        try:
            settings[name] = checked(name, value)
        except UserError as error:
            raise UserError(f"{where}: {str(error).replace(name, key)}") from None
    if "n_beams" in job:
        try:
            check_alone(settings)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    elif settings.get("temperature", job["temperature"]) == 0:
        idle = [name for name in NEUTRAL if settings.get(name, NEUTRAL[name]) != NEUTRAL[name]]
        if idle and not (idle == ["seed"] and "temperature" in settings):  # a seed may stand in all lines
            message = f"{', '.join(idle)} changes nothing at temperature 0: give the line a temperature"
            raise UserError(f"{where}: {message}, or the job")
    return settings


def checked(name, value):
    """The value of a setting. Raises UserError, by name, for one that makes no sense."""
    if name == "stop":
        value = [value] if isinstance(value, str) else value
        if not is_list(value) or not all(isinstance(text, str) and text for text in value):
            raise UserError(f"stop must be a text or a list of texts, none empty, not {value!r:.60}")
        return list(value)
    if name == "bad_words":
        value = [value] if isinstance(value, str) else value
        if not is_list(value) or not all(isinstance(word, (str, list)) and word for word in value):
            raise UserError(f"bad_words must be a text or a list of texts, or of ids, none empty, not {value!r:.60}")
        return [word if isinstance(word, str) else check_ids(word, "a list of bad_words") for word in value]
    if name == "logit_bias":
        return read_bias(value)
    if name in ("ignore_eos", "logprobs") and not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, not {value!r:.60}")
    if name == "n_tokens_to_generate" and value == "full":
        return value
    if name == "seed" and is_list(value):
        raise UserError(f"seed must be a whole number, not {value!r:.60}")
    if name != "ignore_eos":
        check_settings(**{name: value})
    return value


def ranks_of(digests):
    """16 bytes for each of some lines -> the how manieth of equal ones each is, from 0."""
    order = np.argsort(lines := np.frombuffer(digests, dtype="V16").view("S16"), kind="stable")
    begins = np.flatnonzero(np.append(True, lines[order][1:] != lines[order][:-1]))
    ranks = np.empty(len(lines), dtype=int)
    ranks[order] = np.arange(len(lines)) - np.repeat(begins, np.diff(np.append(begins, len(lines))))
    return ranks


def row_seed(seed, rank, identity):
    """The job's seed, the how manieth of equal lines, and what a line is -> 53 bits, as every reader of JSON holds."""
    return int.from_bytes(digest(b"%d %d " % (seed, rank) + identity)[:8], "big") >> 11


class Index:
    """What has to be known of all lines at once, some 80 bytes each. Lines are numbered from 0.

    work_of(Line) -> group, number of tokens, digest of all that its result depends on but the job's seed, draws. It
    raises UserError for a line that cannot be done. draws: 0 is for no random numbers, 1 for those of a seed of its
    own, 2 for the job's.
    """

    def __init__(self, prompts, work_of):
        self.places, self.sizes, self.groups, self.draws = array("q"), array("q"), array("q"), array("b")
        contents, identities, works, self.names = bytearray(), bytearray(), bytearray(), {}
        for place, line in prompts.lines():
            try:
                group, size, content, draws = work_of(line)
            except UserError:
                group, size, content, draws = None, 0, bytes(16), 0
            self.places.append(place)
            self.sizes.append(size)
            self.groups.append(-1 if group is None else self.names.setdefault(group, len(self.names)))
            self.draws.append(draws)
            contents += line.content
            identities += line.identity
            works += content
        self.groups, self.sizes = np.array(self.groups), np.array(self.sizes)
        self.contents, self.identities, self.works = contents, identities, works
        self.names = list(self.names)
        self.ranks = ranks_of(contents)

    def __len__(self):
        return len(self.places)

    def line(self, prompts, i):
        return prompts.at(self.places[i], bytes(self.contents[16 * i : 16 * i + 16]))

    def seed(self, i, seed):
        """The seed of a line: from the job's, its id or text, and how many equal lines came before; not its place."""
        return row_seed(seed, self.ranks[i], self.identities[16 * i : 16 * i + 16])

    def key(self, i, seed, model, sample):
        """What tells the result of a line from every other -> 32 characters. model: its fingerprint, 16 bytes."""
        drawn = () if self.draws[i] == 0 else (sample,) if self.draws[i] == 1 else (sample, self.seed(i, seed))
        return digest(model + self.works[16 * i : 16 * i + 16] + b"%r" % (drawn,)).hex()
