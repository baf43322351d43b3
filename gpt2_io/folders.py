"""Prompts and results in many files, wherever PyArrow reaches: a folder, a network's drive, `s3://...`.

Files of prompts are read in pieces: some bytes of a text, or a row group of a Parquet file. A row of Parquet counts as
the line of JSON that says the same. Results are files that are written once, in one step each.
"""
import functools
import io
import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as parquet

from gpt2_io.errors import UserError
from gpt2_io.files import parse_json
from gpt2_io.prompts import MAX_LINE, PromptFile, digest
from gpt2_io.results import check_of, result_line, sync_folder

PIECE = 1 << 20  # bytes of a text that are read at once


@functools.cache
def open_place(place):
    """A path or URI -> the file system that it is on, and its path there."""
    if "://" not in place:
        return pa.fs.LocalFileSystem(), os.path.abspath(place)
    try:
        return pa.fs.FileSystem.from_uri(place)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"{place:.200}: no path, and no URI that PyArrow knows: {error}") from None


def is_local(place):
    return open_place(place)[0].type_name == "local"


def list_files(place):
    """A file, or all files of a folder in the order of their names -> [(path, bytes)]. Hidden ones (._) are no part."""
    system, root = open_place(place)
    info = system.get_file_info(root)
    if info.type == pa.fs.FileType.NotFound:
        raise FileNotFoundError(2, "No such file or folder", place)
    if info.type == pa.fs.FileType.File:
        return [(info.path, info.size)]
    found = system.get_file_info(pa.fs.FileSelector(root, recursive=True))
    names = [(info.path[len(root) :].strip("/").split("/"), info) for info in found]
    files = [info for name, info in names if info.is_file and not any(part.startswith((".", "_")) for part in name)]
    return sorted((info.path, info.size) for info in files)


# ---------------------------------------------------------------- prompts


class Piece(NamedTuple):
    """Lines of a file: those that begin in these bytes, or a row group of a Parquet file, `begin`."""

    place: str  # what the job was given
    path: str
    begin: int
    end: int

    @property
    def is_parquet(self):
        return self.path.endswith((".parquet", ".pq"))


def pieces_of(place, n_most=10_000):
    """What a job was given -> pieces, about n_most. A Parquet file is one of them; `cut` knows its parts."""
    files = [(path, size) for path, size in list_files(place) if size]
    step, pieces = max(PIECE, sum(size for _, size in files) // n_most), []
    for path, size in files:
        whole = Piece(place, path, 0, size)
        starts = [0] if whole.is_parquet else range(0, size, step)
        pieces += [whole._replace(begin=begin, end=begin + step) for begin in starts]
    return pieces


def cut(piece):
    """A Parquet file -> its row groups. A piece of a text stays one."""
    if not piece.is_parquet:
        return [piece]
    with open_parquet(piece) as file:
        return [piece._replace(begin=i, end=i + 1) for i in range(file.num_row_groups)]


def open_parquet(piece):
    system, _ = open_place(piece.place)
    try:
        return parquet.ParquetFile(system.open_input_file(piece.path))
    except pa.ArrowInvalid as error:
        raise UserError(f"{piece.path}: no Parquet file: {error}") from None


def read_lines(piece):
    """-> the lines as bytes, as in a file of JSON lines or text."""
    system, _ = open_place(piece.place)
    if not piece.is_parquet:
        with system.open_input_file(piece.path) as file:
            return lines_from(file, piece.begin, piece.end)
    with open_parquet(piece) as file:
        rows = file.read_row_group(piece.begin).to_pylist()
    return [json_of(row, piece.path) for row in rows]


def lines_from(file, begin, end):
    """The lines that begin in these bytes of a file; the last one is read to its end, but for one without any end."""
    start = max(begin - 1, 0)
    file.seek(start)
    data = file.read(end - start)
    if begin:  # what stands before the first line break belongs to the piece before
        data = data.partition(b"\n")[2]
    parts, n_more = [data], 0
    while data and not data.endswith(b"\n") and n_more <= MAX_LINE:
        data = file.read(1 << 16)
        rest, line_break, _ = data.partition(b"\n")
        parts.append(rest + line_break)
        n_more += len(rest)
        data = b"\n" if line_break else data
    return b"".join(parts).removesuffix(b"\n").split(b"\n") if parts[0] else []


def json_of(row, path):
    """A row of Parquet -> its line of JSON. What is null is not there."""
    texts = []
    for name, value in row.items():
        try:
            texts += [f"{json.dumps(name)}: {json.dumps(value)}"] if value is not None else []
        except TypeError:
            what = f"{type(value).__name__}, which JSON cannot say"
            raise UserError(f"{path}: column {name:.60} holds {what}: leave it out") from None
    return ("{" + ", ".join(texts) + "}").encode()


def number_of(piece, i):
    """The number, from 1, that line i of a piece has in its file."""
    if piece.is_parquet:
        with open_parquet(piece) as file:
            return sum(file.metadata.row_group(group).num_rows for group in range(piece.begin)) + i + 1
    system, _ = open_place(piece.place)
    n_before, place, end = 1 if piece.begin else 0, 0, max(piece.begin - 1, 0)
    with system.open_input_file(piece.path) as file:
        while place < end:
            data = file.read(min(1 << 20, end - place))
            n_before, place = n_before + data.count(b"\n"), place + len(data)
    return n_before + i + 1


class Reader:
    """Understands the lines of pieces, each file by its own first line as the local job does. kinds: for PromptFile."""

    def __init__(self, kinds):
        self.kinds, self.files, self.last = kinds, {}, (None, {})

    def texts(self, piece):
        """-> {number in the piece: text} of the lines that are not blank; what is no text is None."""
        if self.last[0] != piece:  # batches of a piece come one after the other
            texts = {i: self.decode(piece, data, i) for i, data in enumerate(read_lines(piece))}
            self.last = piece, {i: text for i, text in texts.items() if text is None or text.strip()}
        return self.last[1]

    def decode(self, piece, data, i):
        try:
            return self.file_of(piece).decode(data, 1 if i == piece.begin == 0 else 2)
        except UserError:
            return None

    def understand(self, piece, text, number="?"):
        """-> Line. Raises UserError for one that makes no sense."""
        if text is None:
            raise UserError("no text")
        return self.file_of(piece).understand(text, f"{piece.path}, {'row' if piece.is_parquet else 'line'} {number}")

    def complain(self, piece, i):
        """Raise what is wrong with a line, under the number that it has in its file."""
        number, data = number_of(piece, i), read_lines(piece)[i]
        self.understand(piece, self.file_of(piece).decode(data, number), number)
        raise UserError(f"{piece.path}, line {number}: it was changed while the job ran: start the job again")

    def file_of(self, piece):
        if piece.path not in self.files:
            head = b"{}" if piece.is_parquet else self.head(piece)
            self.files[piece.path] = PromptFile(io.BytesIO(head), piece.path, **self.kinds)
        return self.files[piece.path]

    def head(self, piece):
        """A file up to its first line that is not blank."""
        system, _ = open_place(piece.place)
        with system.open_input_file(piece.path) as file:
            head = b""
            while data := file.read(1 << 16):
                head, place = head + data, 0
                for line in io.BytesIO(head):
                    place += len(line)
                    is_blank = not line.decode("utf-8", "replace").replace("\ufeff", "").strip()
                    if not is_blank and (line.endswith(b"\n") or len(line) > MAX_LINE):
                        return head[:place]
        return head


# ---------------------------------------------------------------- results

SUFFIXES = {False: ".jsonl", True: ".parquet"}
TYPES = {
    "switch": pa.bool_(), "whole": pa.int64(), "number": pa.float64(), "text": pa.string(),
    "wholes": pa.list_(pa.int64()), "numbers": pa.list_(pa.float64()), "json": pa.string(),
}  # fmt: skip
FIELDS = {  # of results: what they are in Parquet
    "ids": "wholes", "text": "text", "finish_reason": "text", "logprobs": "numbers", "logprob": "number",
    "cut_ids": "wholes", "cut_text": "text", "cut_logprobs": "numbers", "n_left_out": "whole", "seed": "whole",
    "score": "number", "error": "text", "key": "text", "check": "text",
}  # fmt: skip


def kind_of(value):
    """What a value of JSON is in Parquet -> a name of TYPES. What has no type of its own there stays JSON, as text."""
    if isinstance(value, bool):
        return "switch"
    if isinstance(value, int):
        return "whole" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "text" if value.encode("utf-8", "replace") == value.encode("utf-8", "surrogatepass") else "json"
    if isinstance(value, list) and all(kind_of(item) == "whole" for item in value):
        return "wholes"
    return "json"


def add_kinds(kinds, others):
    """Names and kinds of values, and those of others; a name whose values are of several kinds is JSON."""
    for name, kind in others.items():
        kinds[name] = kind if kinds.get(name, kind) == kind else "json"


def columns_of(looks, n_samples, fields):
    """The columns of a Parquet file of results: what is handed through, as all lines have it, then the fields."""
    kinds = {}
    for look in looks:
        add_kinds(kinds, look["columns"])
    seed = kinds.pop("seed", "whole")
    known = {name: kind for name, kind in FIELDS.items() if name in (*fields, "error", "key", "check")}
    return {**kinds, **({"sample": "whole"} if n_samples > 1 else {}), **known, "seed": seed}


def mark(key, sample, label):
    """16 bytes that tell a line of results from all others: its key, and what it repeats, its label."""
    return digest(key, sample, label)


def label_of(shown, error=""):
    """16 bytes for what a line repeats of its prompt, and the error of one that could not be done."""
    return digest({**shown, "error": error})


def pack(lines, kinds):
    """Lines, (what it repeats, fields of its result, key) each -> the bytes of a file. kinds: None for JSON lines."""
    if kinds is None:
        return b"".join(result_line(*line) for line in lines)
    rows = [{**shown, **result, "key": key or None, "check": check_of(key, result)} for shown, result, key in lines]
    as_json = [name for name, kind in kinds.items() if kind == "json"]
    arrays = []
    for name, kind in kinds.items():
        values = [row.get(name) for row in rows]
        if kind == "json":
            values = [json.dumps(row[name]) if name in row else None for row in rows]
        arrays.append(pa.array(values, TYPES[kind]))
    schema = pa.schema([(name, TYPES[kind]) for name, kind in kinds.items()], {"json": json.dumps(as_json)})
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays(arrays, schema=schema), file)
    return file.getvalue()


def unpack(place, path, fields):
    """A file of results -> (what it repeats, fields of its result, key) of each line, or None for one that was edited.

    The key of an error is empty.
    """
    with open_place(place)[0].open_input_file(path) as file:
        if not path.endswith(SUFFIXES[True]):
            return [understand_result(line, fields) for line in io.BytesIO(file.read())]
        try:
            table = parquet.read_table(file)
        except pa.ArrowInvalid:
            return [None]
    as_json = json.loads((table.schema.metadata or {}).get(b"json", b"[]"))
    rows = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    rows = [{name: json.loads(row[name]) if name in as_json else row[name] for name in row} for row in rows]
    return [split_result(row, fields) for row in rows]


def understand_result(data, fields):
    try:
        return split_result(parse_json(data.decode("utf-8"), ""), fields) if data.endswith(b"\n") else None
    except ValueError:
        return None


def split_result(line, fields):
    fields = {*fields, "error"}
    result, key = {name: line[name] for name in line if name in fields}, line.get("key", "")
    if line.get("check") != check_of(key, result):
        return None
    return {name: line[name] for name in line if name not in fields and name not in ("key", "check")}, result, key


def write_whole(place, name, data):
    """Write a file in a folder in one step: nobody sees a part of it."""
    system, root = open_place(place)
    part, path = f"{root}/.{name}.{secrets.token_hex(4)}.part", f"{root}/{name}"
    if not is_local(place):
        with system.open_output_stream(part) as file:
            file.write(data)
        system.move(part, path)
        return
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path)
    finally:
        Path(part).unlink(missing_ok=True)


def keep(place, path, is_kept):
    """Leave only some lines in a file of results, or remove it if none is left."""
    if not is_kept.any():
        return remove(place, path)
    with open_place(place)[0].open_input_file(path) as file:
        data = io.BytesIO(file.read())
    if path.endswith(SUFFIXES[True]):
        kept = io.BytesIO()
        parquet.write_table(parquet.read_table(data).filter(pa.array(is_kept)), kept)
        data = [kept.getvalue()]
    else:
        data = [line for line, is_one in zip(data, is_kept) if is_one]
    write_whole(place, path.rpartition("/")[2], b"".join(data))


def remove(place, path):
    open_place(place)[0].delete_file(path)


def make_folder(place):
    system, root = open_place(place)
    info = system.get_file_info(root)
    if info.type == pa.fs.FileType.File:
        raise UserError(f"--out {place}: is a file, but --ray writes into a folder")
    system.create_dir(root, recursive=True)


def exists(place, name):
    system, root = open_place(place)
    return system.get_file_info(f"{root}/{name}").is_file


def remove_parts(place):
    """Remove what kills have left of files."""
    system, root = open_place(place)
    for info in system.get_file_info(pa.fs.FileSelector(root)):
        if info.base_name.startswith(".") and info.base_name.endswith(".part"):
            system.delete_file(info.path)
