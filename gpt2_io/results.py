"""Results of many prompts: printed, streamed, or added to a file that can be gone on with."""
import contextlib
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from gpt2_io.errors import UserError, listed
from gpt2_io.files import fcntl, is_json_object, parse_json, try_to_lock
from gpt2_io.streams import TextStream, print_texts

MAX_ROWS = 100_000  # continuations at once: logits alone take 800 MB then, with as few tokens as the bundled model has


def check_output(stop, stream, out):
    """Raise UserError for flags of `complete_prompts` that make no sense; in good time, before a model is loaded."""
    if "" in stop:
        raise UserError("--stop needs a text that is not empty")
    if out == "":
        raise UserError("--out needs the name of a file")
    if stream and out:
        raise UserError("--stream prints and --out writes a file: choose one")
    if out and os.path.exists(out) and not os.path.isfile(out):
        raise UserError(f"--out {out}: not a plain file")


def complete_prompts(complete, encoder, records, prompt_ids, settings, stream=False, as_json=False, out=None):
    """Continue many prompts, batch by batch, and print the results or add them to a file.

    complete(lists of ids, row seeds, on_token) -> for each prompt n_samples lists of new ids, or with "logprobs" a pair
    of those and their log-probabilities; it is called once for each batch, and on_token is for `generate` of
    gpt2_v4_sampling.py. records: from `read_prompts`; prompt_ids: their ids. settings: all that the results depend on,
    among it "seed", "temperature", "n_samples", "stop", "n_tokens_to_generate", "logprobs", "batch_size".
    stream: print text as it comes, for one prompt as it is, for several as JSON lines {"index", "text"}.
    as_json: print a JSON object a result. out: add those to this file, and leave out what is in it already.
    """
    n_samples, batch_size = settings["n_samples"], settings["batch_size"]
    n_rows = n_samples * min(batch_size, len(records))
    if n_rows > MAX_ROWS:
        raise UserError(f"{n_rows} continuations at once; {MAX_ROWS} is the limit: lower --n_samples or --batch_size")
    by_length = sorted(range(len(records)), key=lambda i: len(prompt_ids[i]))  # so that a batch needs few pads
    batches = [sorted(by_length[start : start + batch_size]) for start in range(0, len(records), batch_size)]
    batches = [[(i, sample) for i in batch for sample in range(n_samples)] for batch in batches]
    plain_stream = stream and not as_json and len(records) * n_samples == 1

    def show(row, text, ending=None):
        if plain_stream:
            print(text, end="" if ending is None else "\n", flush=True)
        elif stream and (text or ending):
            print(json.dumps({**name_of(row, n_samples), "text": text, **(ending or {})}), flush=True)

    texts, n_tokens, began = {}, 0, time.monotonic()
    with job_file(out, settings, records) as job:
        left = [rows for rows in batches if not job.done.issuperset(rows)]
        n_done = len(records) - sum(map(len, left)) // n_samples
        silent = None if len(batches) > 1 and not stream else True  # None: a bar where stderr is a terminal
        bar = tqdm(total=len(records), initial=n_done, unit="prompt", disable=silent)
        for rows in left:
            prompts = [prompt_ids[i] for i, sample in rows if sample == 0]
            results = complete_batch(complete, encoder, prompts, rows, {**settings, "seed": job.seed}, stream, show)
            results = [{**name_of(row, n_samples), **records[row[0]], **result} for row, result in zip(rows, results)]
            if out:
                job.write([result for row, result in zip(rows, results) if row not in job.done])
            elif as_json and not stream:
                print("\n".join(map(json.dumps, results)), flush=True)
            elif not stream:
                texts.update(zip(rows, (result["text"] for result in results)))
            n_tokens += sum(len(result["ids"]) for result in results)
            bar.set_postfix_str(f"{n_tokens / (time.monotonic() - began):.0f} tokens/s")
            bar.update(len(prompts))
        bar.close()
    if texts:
        print_texts([records[i]["prompt"] for i, _ in sorted(texts)], None, [texts[row] for row in sorted(texts)])


def name_of(row, n_samples):
    """What tells a result from the others of a run."""
    return {"index": row[0], "sample": row[1]} if n_samples > 1 else {"index": row[0]}


def complete_batch(complete, encoder, prompts, rows, settings, stream, show):
    """One batch of `complete_prompts` -> for each row {"ids", "text", "finish_reason"}, maybe with log-probabilities.

    rows: (index of the prompt, sample) for each result; show(row, text, ending) is told what becomes certain.
    """
    streams = [TextStream(encoder, settings["stop"]) for _ in rows]

    def on_token(row, ids):
        show(rows[row], streams[row].push(ids[-1]))
        return streams[row].stopped

    listen = stream or settings["stop"]
    seeds = [(settings["seed"] or 0, *row) for row in rows]
    ids = complete(prompts, seeds, on_token if listen else None)
    ids, logprobs = ids if settings["logprobs"] else (ids, None)
    results = []
    for n, row in enumerate(rows):
        for token_id in () if listen else ids[n]:
            streams[n].push(token_id)
        rest = streams[n].end()
        ended = streams[n].stopped or len(ids[n]) < settings["n_tokens_to_generate"]
        ending = {"finish_reason": "stop" if ended else "length"}
        if logprobs:
            ending |= {"logprobs": logprobs[n], "logprob": sum(logprobs[n])}
        show(row, rest, ending)
        results.append({"ids": ids[n], "text": streams[n].text, **ending})
    return results


class Job(NamedTuple):
    seed: int | None
    done: set  # (index, sample) of the results in the file
    write: Callable | None  # adds results to it


@contextlib.contextmanager
def job_file(out, settings, records):
    """Open a results file, new or from a run that was broken off -> Job. Without a file: a Job with a seed alone.

    Beside FILE stands FILE.job with the settings, and it is held locked while the job runs. The results of a batch are
    on the disk before `write` returns. A last line that was cut off is taken away. Raises UserError where the file
    belongs to a job with other settings or prompts, to no job, or to one that is running.
    """

    def with_seed(settings):
        if settings["seed"] is not None or settings["temperature"] == 0:
            return settings
        seed = secrets.randbelow(2**32)
        print(f"seed: {seed}", file=sys.stderr)  # so that the run can be repeated
        return {**settings, "seed": seed}

    if not out:
        yield Job(with_seed(settings)["seed"], set(), None)
        return
    settings = {**settings, "prompts": hashlib.sha256(json.dumps(records).encode()).hexdigest()}
    settings = json.loads(json.dumps(settings))  # as they come back from a file
    job_path = Path(f"{out}.job")
    with open(out, "ab+") as results:
        if fcntl:  # this file too, since it may have two names; on Windows nobody could read it then
            try_to_lock(results, f"{out}: another job is writing it")
        if results.tell() > 0 and not job_path.exists():
            raise UserError(f"{out}: is there already, without {job_path.name} beside it: give another --out")
        with open(job_path, "a+", encoding="utf-8", errors="replace") as job:
            try_to_lock(job, f"{out}: another job is writing it")
            done, end = set(), 0
            if results.seek(0, os.SEEK_END) == 0:
                job.seek(0)
                first = job.readline()  # "{", or the beginning of it: a kill may have come in between
                if first and (not first.startswith("{") or is_json_object(first)):
                    raise UserError(f"{job_path}: is there already and is no job's: give another --out")
                settings = with_seed(settings)
                job.truncate(0)
                job.write(json.dumps(settings, indent=1) + "\n")
                job.flush()
                os.fsync(job.fileno())
            else:
                job.seek(0)
                stored = parse_json(job.read(), job_path)
                if settings["seed"] is None:
                    settings["seed"] = seed = stored.get("seed")  # the one it began with
                    if seed is not None and (type(seed) is not int or seed < 0):
                        raise UserError(f"{job_path}: seed {seed!r:.60} is not a whole number from 0 on")
                other = sorted(key for key in settings.keys() | stored.keys() if settings.get(key) != stored.get(key))
                if other:
                    raise UserError(f"{out}: made with other settings ({listed(other)}): use those, or another --out")
                results.seek(0)
                for line in results:
                    if line.endswith(b"\n"):
                        result = parse_json(line.decode("utf-8", "replace"), f"{out}: a line of results")
                        row = result.get("index"), result.get("sample", 0)
                        limits = len(records), settings["n_samples"]
                        if not all(type(n) is int and 0 <= n < limit for n, limit in zip(row, limits)):
                            raise UserError(f"{out}: holds a line that is no result of this job: take it out")
                        done.add(row)
                        end += len(line)
                results.truncate(end)

            def write(batch):
                results.write("".join(json.dumps(result) + "\n" for result in batch).encode())
                results.flush()
                os.fsync(results.fileno())

            yield Job(settings["seed"], done, write)
