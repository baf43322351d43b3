"""A job cut into batches that any machine can make: what each process knows, what is there already, what is missing.

A batch is some lines of one piece of the prompts, and has a file of results of its own. The files are the only memory.
"""
import copy
import secrets
import socket
import sys
from types import SimpleNamespace

import numpy as np

from gpt2_io import folders
from gpt2_io.blas import blas_in_use
from gpt2_io.errors import UserError, listed
from gpt2_io.prompts import Index, digest, ranks_of, row_seed

DIGESTS = ("contents", "identities", "works", "labels")  # of each line, 16 bytes
NUMBERS = ("numbers", "sizes", "groups", "draws")  # number: in its piece


class Job:
    """What every process of a job knows. The weights travel apart from it.

    make_task(Model, False) -> what is made of a line, Completing of jobs.py; kinds: for PromptFile.
    """

    def __init__(self, make_task, model, out, rows, seed, n_samples, kinds):
        self.make_task, self.model = make_task, with_params(model, None)
        self.out, self.rows, self.seed, self.n_samples = out, rows, seed, n_samples
        self.task, self.reader = make_task(self.model, False), folders.Reader(kinds)
        self.columns = None  # of files of Parquet: name -> kind

    def look(self, piece):
        """What has to be known of all lines at once -> for each piece of a piece, as Index has it.

        "mistake" is the line that nobody understands.
        """
        return map(self.look_at, folders.cut(piece))

    def look_at(self, piece):
        lines, columns = [], {}
        for i, text in self.reader.texts(piece).items():
            try:
                line = self.reader.understand(piece, text)
            except UserError:
                return {"piece": piece, "mistake": i}
            error = ""
            try:
                group, size, work, draws = self.task.work_of(line)
                group = int.from_bytes(digest(group)[:7], "big")
            except UserError as mistake:
                group, size, work, draws, error = -1, 0, bytes(16), 0, str(mistake)
            label = folders.label_of(line.shown, error)
            lines.append((line.content, line.identity, work, label, i, size, group, draws))
            values = {**line.shown, **({"seed": line.settings["seed"]} if "seed" in line.settings else {})}
            folders.add_kinds(columns, {name: folders.kind_of(value) for name, value in values.items()})
        found = dict(zip((*DIGESTS, *NUMBERS), zip(*lines))) or dict.fromkeys((*DIGESTS, *NUMBERS), ())
        found |= {name: b"".join(found[name]) for name in DIGESTS}
        found |= {name: np.array(found[name], dtype=np.int64) for name in NUMBERS}
        return {**found, "piece": piece, "columns": columns}

    def look_at_results(self, path):
        """-> key and mark of each line of a file of results, 16 bytes, or zeros for one that was edited."""
        keys, marks = bytearray(), bytearray()
        for line in folders.unpack(self.out, path, self.task.fields):
            shown, result, key = line or ({}, {}, "")
            keys += bytes.fromhex(key) or bytes(16)
            sample = shown.pop("sample", 0)
            label = folders.label_of(shown, result.get("error", ""))
            marks += folders.mark(key, sample, label) if line else bytes(16)
        return [{"path": path, "keys": bytes(keys), "marks": bytes(marks)}]

    def make(self, batch):
        """Make the results of a batch and write its file -> what to tell."""
        task, piece, n_tokens = self.task, batch["piece"], []
        texts = self.reader.texts(piece)
        lines = [self.reader.understand(piece, texts.get(i)) for i in batch["numbers"].tolist()]
        if b"".join(line.content for line in lines) != batch["contents"]:
            raise UserError(f"{piece.path}: it was changed while the job ran: start the job again, which goes on")
        results = {}  # key -> result; there may be some of lines with the same key and another label
        for path in batch["sources"]:
            found = folders.unpack(self.out, path, task.fields)
            results |= {key: result for _, result, key in filter(None, found) if key}
        groups, given = {}, set(results)
        for n, (line, keys) in enumerate(zip(lines, batch["keys"])):
            if keys[0] and not given.issuperset(keys):  # equal lines are made once
                given.update(keys)
                groups.setdefault(task.group_of(line)[0], []).append(n)
        for group in groups.values():
            chosen, keys = [lines[n] for n in group], [batch["keys"][n] for n in group]
            ranks = batch["ranks"][group].tolist()
            seeds = [row_seed(self.seed, rank, line.identity) for rank, line in zip(ranks, chosen)]
            seeds = [line.settings.get("seed", seed) for line, seed in zip(chosen, seeds)]

            def write(found, keys=keys):
                results.update({keys[n][sample]: result for n, sample, result in found})

            task.run(chosen, seeds, self.rows, SimpleNamespace(count=n_tokens.append), write)
        written = []
        for n, line in enumerate(lines):
            for sample in np.flatnonzero(batch["wanted"][n]).tolist():
                shown = {**line.shown, "sample": sample} if self.n_samples > 1 else line.shown
                key = batch["keys"][n][sample]
                written.append((shown, results[key] if key else error_of(task, line), key))
        folders.write_whole(self.out, batch["name"], folders.pack(written, self.columns))
        kind = f"NumPy {np.__version__}, {blas_in_use()}"
        done = {"name": batch["name"], "n_lines": len(lines), "n_tokens": sum(n_tokens)}
        return [{**done, "kind": kind, "machine": socket.gethostname()}]


def with_params(model, params):
    model = copy.copy(model)
    model.params = params
    return model


def error_of(task, line):
    try:
        task.plan(line)
    except UserError as error:
        return {"error": str(error)}
    raise RuntimeError("the line was an error when it was looked at")


class FarIndex(Index):
    """As Index, of lines that were looked at elsewhere; with the key and the mark of each result."""

    def __init__(self, looks, job):
        looks = sorted(looks, key=lambda look: look["piece"])
        for look in looks:
            if "mistake" in look:
                job.reader.complain(look["piece"], look["mistake"])
        self.looks = [look for look in looks if len(look["numbers"])]
        for name in DIGESTS:
            setattr(self, name, b"".join(look[name] for look in self.looks))
        for name in NUMBERS:
            setattr(self, name, np.concatenate([[], *(look[name] for look in self.looks)]).astype(np.int64))
        self.ranks, self.n_samples = ranks_of(self.contents), job.n_samples
        self.keys, marks = [], bytearray()
        for i, group in enumerate(self.groups.tolist()):
            for sample in range(job.n_samples):
                key = "" if group < 0 else self.key(i, job.seed, job.model.fingerprint, sample)
                self.keys.append(bytes.fromhex(key) or bytes(16))
                marks += folders.mark(key, sample, self.labels[16 * i : 16 * i + 16])
        self.keys, self.marks = b"".join(self.keys), bytes(marks)

    def __len__(self):
        return len(self.groups)

    def batches(self, missing, sources, n, suffix):
        """Lines with missing results [n_lines, n_samples] -> {name of the file: batch}, of n lines at most each.

        Lines of one piece, with equal ones side by side. sources: path -> the lines whose results are there by key.
        """
        run, batches, first = secrets.token_hex(4), {}, 0
        works = np.frombuffer(self.works, dtype="S16")
        for look in self.looks:
            lines = np.arange(first, first + len(look["numbers"]))
            first += len(lines)
            lines = lines[missing[lines].any(axis=1)]
            lines = lines[np.lexsort((works[lines], -self.sizes[lines], self.groups[lines]))]
            for some in (lines[i : i + n] for i in range(0, len(lines), n)):
                name = f"{run}-{len(batches):06}{suffix}"
                batch = {"name": name, "piece": look["piece"], "numbers": self.numbers[some], "ranks": self.ranks[some]}
                batch["contents"] = b"".join(self.contents[16 * i : 16 * i + 16] for i in some)
                batch["keys"], batch["wanted"] = [self.keys_of(i) for i in some], missing[some]
                batch["sources"] = sorted({sources[key] for keys in batch["keys"] for key in keys if key in sources})
                batches[name] = batch
        return batches

    def keys_of(self, i):
        """The keys of a line's samples, empty where it is an error."""
        keys = (self.keys[16 * j : 16 * j + 16] for j in range(i * self.n_samples, (i + 1) * self.n_samples))
        return ["" if self.groups[i] < 0 else key.hex() for key in keys]


class Folder:
    """What is there of a job's results. Lines that are alike in key and label are as good as each other: they count."""

    def __init__(self, job, is_parquet):
        self.job, self.suffix = job, folders.SUFFIXES[is_parquet]
        self.paths = [path for path, _ in folders.list_files(job.out)]
        other = [path for path in self.paths if not path.endswith(self.suffix)]
        if other:
            what = "is there already and is no file of this job's results"
            raise UserError(f"{other[0]}: {what}, which end in {self.suffix}: give another --out")

    def compare(self, index, looks):
        """looks: at the results -> which results are missing [n_lines, n_samples], and {key: where it is} of those."""
        self.index, self.looks = index, sorted(looks, key=lambda look: look["path"])
        keys, marks = (b"".join(look[name] for look in self.looks) for name in ("keys", "marks"))
        is_damaged = as_array(marks) == b""
        for look in self.looks:
            numbers = np.flatnonzero(as_array(look["marks"]) == b"") + 1
            if len(numbers) == len(look["marks"]) // 16 > 0:
                raise UserError(f"{look['path']}: holds no result of jobs.py: give another --out")
            if len(numbers):
                what = f"edited or cut, so made again: line {listed(map(str, numbers))}"
                print(f"{look['path']}: {what}", file=sys.stderr)
        n_found = np.count_nonzero(as_array(keys) != b"")
        if n_found and not np.isin(as_array(keys), as_array(index.keys)[as_array(index.keys) != b""]).any():
            what = f"{self.job.out}: none of its {n_found} results is of this job"
            why = "a result belongs to its prompt, settings, seed, model and version of the program"
            raise UserError(f"{what} ({why}): give another --out")
        self.is_wanted = ~is_damaged & (ranks_of(marks) < count_in(marks, index.marks))
        missing = ranks_of(index.marks) >= count_in(index.marks, marks)
        there = set(as_array(index.keys)[missing].tolist()) & set(as_array(keys).tolist()) - {b""}
        sources = {}
        for look in self.looks if there else ():
            for i in range(0, len(look["keys"]), 16):
                if look["keys"][i : i + 16].rstrip(b"\0") in there:
                    sources[look["keys"][i : i + 16].hex()] = look["path"]
        return missing.reshape(-1, index.n_samples), sources

    def finish(self, batches):
        """Take out what is no result of this job, or is there twice, now that all others are there.

        And what a job that was killed has written after this one began: its lines were made again.
        """
        mine, known = {name.partition("-")[0] for name in batches}, {look["path"] for look in self.looks}
        for path, _ in folders.list_files(self.job.out):
            if path not in known and path.rpartition("/")[2].partition("-")[0] not in mine:
                (look,) = self.job.look_at_results(path)
                if np.isin(as_array(look["marks"]), as_array(self.index.marks)).all():
                    folders.remove(self.job.out, path)
        first = 0
        for look in self.looks:
            n = len(look["marks"]) // 16
            if not self.is_wanted[first : first + n].all():
                folders.keep(self.job.out, look["path"], self.is_wanted[first : first + n])
            first += n
        folders.remove_parts(self.job.out)


def as_array(digests):
    return np.frombuffer(digests, dtype="S16")


def count_in(digests, others):
    """How often each of some digests is among others."""
    ordered = np.sort(as_array(others))
    left, right = (np.searchsorted(ordered, as_array(digests), side) for side in ("left", "right"))
    return right - left
