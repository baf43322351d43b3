"""Files of prompts in, files of results out: thousands of them, whatever happens in between.

    python jobs.py complete prompts.jsonl --out results.jsonl
    python jobs.py score texts.txt

The same command goes on where it was broken off. docs/jobs.md has the rest.
"""
import contextlib
import functools
import os
import shutil
import sys
import tempfile
from array import array

import numpy as np

import gpt2_v6_threads  # score looks at whole texts, one batch after the other
import gpt2_v9_beam as gpt2
import utils
from gpt2_io.continuations import Continuation, read_stop
from gpt2_io.errors import UserError
from gpt2_io.prompts import WRITE, Index, Line, PromptFile, digest, open_prompts
from gpt2_io.results import Progress, fingerprint, open_results
from gpt2_io.rules import NOTHING, check_rules, read_beams, read_bias, words_of
from gpt2_io.scoring import Scoring
from gpt2_io.settings import DEFAULT_ROWS, NEUTRAL, check_ids, check_settings, choose_rows, keep_end

# ---------------------------------------------------------------- what depends on the version


def prepare(params):
    """params as utils.load_model gives them -> as the version takes them."""
    return gpt2.tile_params(params)


def complete_batch(model, prompts, n_tokens_to_generate, rows, settings, seeds, on_token, on_end):
    """Continue lists of ids that share their settings; on_token(row, id, logprob) gets the tokens, and ends a row.

    n_tokens_to_generate: a number for each. seeds: (seed, number, sample) for each sample of each prompt, or None at
    temperature 0. on_end(row, ids) is called as soon as a row has ended.
    """
    settings = {**settings, "seed": seeds, "on_token": on_token, "on_end": on_end, "progress": False, "n_rows": rows}
    settings["stop_ids"] = () if settings.pop("ignore_eos") else model.encoder.stop_ids
    gpt2.generate(prompts, model.params, model.hparams["n_head"], n_tokens_to_generate, **settings)


def search_batch(model, prompts, n_tokens_to_generate, rows, settings, rules, on_end):
    """Search the best continuations of lists of ids by beams; on_end(number, [(ids, score), ...]) gets a prompt's."""
    search = {name: settings[name] for name in ("n_beams", "n_best", "length_penalty", "early_stopping")}
    search |= {"stop_ids": () if settings["ignore_eos"] else model.encoder.stop_ids, "n_rows": rows, **rules}
    gpt2.beam_search(
        prompts, model.params, model.hparams["n_head"], n_tokens_to_generate, **search, on_end=on_end, progress=False
    )


# ---------------------------------------------------------------- both commands

RESERVED = ("error", "key", "check")  # keys that any result may have


class Model:
    """A model that is ready to run: its encoder, hparams, params, and a fingerprint of these and of both versions."""

    version = gpt2_v6_threads  # for score

    def __init__(self, name, models_dir, tokenizer=""):
        self.encoder, self.hparams, params = utils.load_model(name, models_dir, tokenizer=tokenizer)
        self.fingerprint = fingerprint([gpt2.__name__, self.version.__name__], self.encoder, self.hparams, params)
        self.params = prepare(params)

    def encode(self, prompt):
        """Text or ids -> ids. Raises UserError for what the model has no tokens for."""
        if isinstance(prompt, str):
            return self.encoder.encode(prompt)
        if not isinstance(prompt, list) or not prompt:
            raise UserError(f"a text or a list of ids is expected, not {prompt!r:.60}")
        return check_ids(prompt, "a prompt", self.hparams["n_vocab"])


def run_job(make_task, path, out, rows, model, models_dir, tokenizer, seed=0, n_samples=1, **kinds):
    """Do what is missing of a job, write its results in order, and say how many lines could not be done.

    make_task(Model, whether the file is one text) -> Completing or Scoring; kinds: for PromptFile.
    """
    check_settings(seed=seed, n_samples=n_samples)
    if out == "":
        raise UserError("--out needs the name of a file")
    if out and out != "-" and path != "-" and os.path.exists(out) and os.path.samefile(path, out):
        raise UserError(f"{out}: holds the prompts: give another --out")
    with contextlib.ExitStack() as at_end:
        prompts = PromptFile(at_end.enter_context(open_prompts(path)), path, model=model, **kinds)
        model = Model(model, models_dir, tokenizer)
        task = make_task(model, prompts.whole)
        index = Index(prompts, task.work_of)
        task.check(index)
        is_shown = out in (None, "-")  # then the file is one that nobody sees
        out = os.path.join(at_end.enter_context(tempfile.TemporaryDirectory()), "results") if is_shown else out
        n_lines = len(index) * n_samples

        def key(line):
            i, sample = divmod(line, n_samples)
            if index.groups[i] < 0:
                return ""
            return index.key(i, seed, model.fingerprint, sample)

        def repeated(line, sample):
            return {**line.shown, "sample": sample} if n_samples > 1 else line.shown

        def shown():
            for i in range(len(index)):
                line, error = index.line(prompts, i), {}
                if index.groups[i] < 0:
                    try:
                        task.plan(line)
                    except UserError as mistake:
                        error = {"error": str(mistake)}
                yield from ({**repeated(line, sample), **error} for sample in range(n_samples))

        keys = np.fromiter(map(key, range(n_lines)), dtype="S32", count=n_lines)
        n_errors = int(np.count_nonzero(index.groups < 0))
        results = at_end.enter_context(open_results(out, keys, task.fields))
        progress = Progress(len(index), n_errors)
        at_end.callback(progress.close)
        progress.done(results.n_done(n_samples))

        def write(batch, lines, found):
            """Put results, (number of the line in the batch, sample, fields) each, on the disk."""
            missing = results.missing
            found = [(batch[n] * n_samples + sample, repeated(lines[n], sample), result) for n, sample, result in found]
            results.add([result for result in found if missing[result[0]]])
            progress.done(results.n_done(n_samples))

        todo = np.unique(np.unique(keys, return_index=True)[1] // n_samples)  # of lines with the same key only one
        todo = todo[results.missing.reshape(-1, n_samples).any(axis=1)[todo]]
        for batch in task.batches(index, todo, rows):
            lines = [index.line(prompts, i) for i in batch]
            seeds = [line.settings.get("seed", index.seed(i, seed)) for i, line in zip(batch, lines)]
            try:
                task.run(lines, seeds, rows, progress, functools.partial(write, batch, lines))
            except MemoryError as error:
                raise MemoryError(f"{error}: the same command with a smaller --rows goes on from here") from None
        results.finish(shown(), task.see)
        progress.close()
        if is_shown and sys.stdout:
            sys.stdout.flush()
            with open(out, "rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
        task.end()
    if n_errors:
        where = "" if is_shown else f' in {out}: see "error" there'
        print(f"{n_errors} of {len(index)} prompts could not be done{where}", file=sys.stderr)
        sys.exit(1)


# ---------------------------------------------------------------- complete


class Completing:
    """What `complete` makes of a line."""

    fields = (
        "ids", "text", "finish_reason", "logprobs", "logprob", "cut_ids", "cut_text", "cut_logprobs", "n_left_out",
        "seed",
    )  # fmt: skip

    def __init__(self, model, settings, n_samples, truncate, flags):
        self.model, self.settings, self.n_samples, self.truncate = model, settings, n_samples, truncate
        self.flags = flags  # that make no sense unless a line draws
        if "n_beams" in settings:
            self.fields = (*self.fields, "score")
        self.rules_of(settings)  # a mistake in the job's is found here
        self.plain = self.group_of(Line({}, {}, {}, b"", b""))

    def plan(self, line):
        """-> ids, number of new tokens, number of ids left out in front. Raises UserError for what cannot be done."""
        if "prompt" not in line.parts:
            raise UserError('no "prompt" in it')
        ids = self.model.encode(line.parts["prompt"]) or [self.model.encoder.eot_token]
        n = line.settings.get("n_tokens_to_generate", self.settings["n_tokens_to_generate"])
        n_ctx = self.model.hparams["n_ctx"]
        kept = keep_end(ids, 1 if n == "full" else n, n_ctx)
        if len(kept) < len(ids) and (self.truncate is None or not kept):
            asked = "" if n == "full" else f" and {n} are to be generated"
            message = f"the prompt has {len(ids)} tokens{asked}, but the model's limit n_ctx is {n_ctx}"
            raise UserError(f"{message}: shorten it, generate fewer, or --truncate left")
        if line.settings:
            self.rules_of(line.settings)
        return kept, max(n_ctx - len(kept), 1) if n == "full" else n, len(ids) - len(kept)

    def rules_of(self, settings):
        """Settings -> (those that are no rules, rules with ids). Raises UserError for rules that make no sense."""
        rules = {name: settings[name] for name in NOTHING if name in settings}
        rules["bad_words"] = words_of(self.model.encoder, rules.get("bad_words", ()))
        rest = {name: value for name, value in settings.items() if name not in NOTHING}
        return rest, check_rules(rules, self.model.hparams["n_vocab"])

    def settings_of(self, line):
        """All settings of a line, its own or else the job's; without those that change nothing at temperature 0."""
        settings = {**self.settings, **line.settings}
        return settings if settings["temperature"] else {**settings, **NEUTRAL}

    def group_of(self, line):
        """Lines of a group share a batch: all their settings but stop strings, seeds and lengths -> as text, draws."""
        settings = self.settings_of(line)
        draws = 0 if settings["temperature"] == 0 else 1 if "seed" in line.settings else 2
        draws = 1 if "n_beams" in settings else draws  # the second best is another text, too
        rest = [settings.pop(name, None) for name in ("stop", "seed", "n_tokens_to_generate")]
        group = WRITE(settings)
        return group, digest(group.encode() + b"\0", rest), draws

    def work_of(self, line):
        """For Index."""
        ids, n, n_left_out = self.plan(line)
        group, rest, draws = self.group_of(line) if line.settings else self.plain
        return group, len(ids), digest(rest + array("q", [n, n_left_out, *ids]).tobytes()), draws

    def check(self, index):
        if self.flags and not any(index.draws):
            raise UserError(f"{', '.join(self.flags)} changes nothing at temperature 0: give --temperature 1 too")

    def batches(self, index, todo, rows):
        """Of one group, and of like length, since all get rows as long as the longest; these first, for memory's sake.

        A batch has 8 times as many texts as run at once: a row whose text ends is given to the next one.
        """
        order = todo[np.lexsort((-index.sizes[todo], index.groups[todo]))]
        for group in np.split(order, np.flatnonzero(np.diff(index.groups[order])) + 1):
            n = max(8 * rows // self.n_samples, 1)
            yield from (group[first : first + n].tolist() for first in range(0, len(group), n))

    def run(self, lines, seeds, rows, progress, write):
        """Make the results of lines; write([(number of the line, sample, result), ...]) gets them, `rows` at a time.

        One at a time would have the disk wait for each; all at once, a kill would cost more.
        """
        plans, settings = [self.plan(line) for line in lines], self.settings_of(lines[0])
        settings["n_samples"] = n_samples = self.n_samples if settings["temperature"] else 1
        limits, prompts = [n for _, n, _ in plans], [ids for ids, _, _ in plans]
        settings, rules = self.rules_of(settings)
        for name in ("stop", "seed", "n_tokens_to_generate"):  # each line has its own
            settings.pop(name, None)
        stops = [self.settings_of(line)["stop"] for line in lines for _ in range(n_samples)]
        new_rows, found = [Continuation(self.model.encoder, stop) for stop in stops], []

        def on_token(row, token_id, logprob):
            progress.count(1)
            return new_rows[row].add(token_id, logprob)

        def add(n, sample, continuation, more):
            left_out = {"n_left_out": plans[n][2]} if plans[n][2] else {}
            found.append((n, sample, {**continuation.result(limits[n], settings["logprobs"]), **left_out, **more}))
            if len(found) == rows:
                write(found)
                found.clear()

        def on_end(row, _):
            n, sample = divmod(row, n_samples)
            add(n, sample, new_rows[row], {"seed": seeds[n]} if settings["temperature"] else {})

        def on_found(n, beams):
            for sample in range(settings["n_best"]):
                ids, score = beams[sample] if sample < len(beams) else ([], None)  # there may be no more
                continuation = Continuation(self.model.encoder, ())
                for token_id in ids:
                    continuation.add(token_id, None)
                progress.count(len(ids))
                add(n, sample, continuation, {} if score is None else {"score": score})

        row_seeds = [(seed, 0, sample) for seed in seeds for sample in range(n_samples)]
        row_seeds = row_seeds if settings["temperature"] else None
        if "n_beams" in settings:
            search_batch(self.model, prompts, limits, rows, settings, rules, on_found)
        else:
            complete_batch(self.model, prompts, limits, rows, {**settings, **rules}, row_seeds, on_token, on_end)
        if found:
            write(found)

    def see(self, result):
        pass

    def end(self):
        pass


def complete(
    file, *, out=None, n_tokens_to_generate: str = "40", rows=DEFAULT_ROWS, batch_size: int = None, model="tales",
    models_dir="models", temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed: int = None,
    n_samples=1, stop=(), ignore_eos=False, logprobs=False, truncate: str = None, tokenizer="", n_beams=1, n_best=1,
    length_penalty=1.0, early_stopping="False", no_repeat_ngram_size=0, min_new_tokens=0, bad_words=(), logit_bias="",
    ray=False, ray_address: str = None, actors: int = None, parquet=False,
):
    """Continue each prompt of a file, and write a line of JSON for each.

    Args:
        file: a prompt a line, or JSON lines with "prompt" and maybe "id" and settings; - is standard input.
        out: the file of results; without it they are printed at the end.
        n_tokens_to_generate: how many tokens to add, at most, or full for as many as the model has room for.
        rows: how many continuations to make at once.
        batch_size: the same as rows.
        model: a model's name or folder.
        models_dir: where models are looked for by name.
        temperature: 0 takes the best token each time; 1 samples as the model was trained, less is safer, more wilder.
        top_k: choose among the top_k best tokens only; 0 is off.
        top_p: choose among the best tokens that have this probability together; 1 is off.
        min_p: choose among tokens at least min_p times as likely as the best; 0 is off.
        repetition_penalty: above 1, tokens that were there before become less likely.
        seed: a whole number, 0 by default; what each line draws comes from it and from the line, not from its place.
        n_samples: how many continuations of each prompt.
        stop: end a continuation before this text; can be given several times.
        ignore_eos: do not end a continuation at the end of a text, <|endoftext|>.
        logprobs: add each token's log-probability and their sum.
        truncate: left, to leave out the beginning of a prompt that is too long.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
        n_beams: above 1, search for the best whole continuation with so many beams.
        n_best: how many of the best continuations of each prompt to write, up to n_beams.
        length_penalty: a beam's score is its sum of log-probabilities divided by its length to this power.
        early_stopping: True, False or never: when a search by beams ends, see docs/v9.md.
        no_repeat_ngram_size: above 0, no run of so many tokens comes twice.
        min_new_tokens: do not end before so many tokens.
        bad_words: a text that must not come; can be given several times.
        logit_bias: JSON with what to add to the logits of ids, as {"13": -5}.
        ray: run on Ray, on many machines; file and out may be folders and URIs then, and out is a folder.
        ray_address: of a Ray that runs, auto for the one here; without it, one is started on this machine.
        actors: with ray, how many processes hold the model; without it, one a core.
        parquet: with ray, write Parquet in place of JSON lines.
    """
    if truncate not in (None, "left"):
        raise UserError(f"--truncate takes left, not {truncate!r:.60}")
    if n_tokens_to_generate != "full":
        try:
            n_tokens_to_generate = int(n_tokens_to_generate)
        except ValueError:
            message = f"--n_tokens_to_generate takes a whole number or full, not {n_tokens_to_generate!r:.60}"
            raise UserError(message) from None
        check_settings(n_tokens_to_generate=n_tokens_to_generate)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    settings |= {"repetition_penalty": repetition_penalty, "logprobs": logprobs}
    for name, value in settings.items():  # one by one, since a line may have a temperature of its own
        check_settings(**{name: value})
    settings |= {"n_tokens_to_generate": n_tokens_to_generate, "stop": list(read_stop(stop)), "ignore_eos": ignore_eos}
    given = {**settings, "seed": seed, "n_samples": n_samples}
    beams = read_beams(n_beams, n_best, length_penalty, early_stopping, given)
    settings |= {"no_repeat_ngram_size": no_repeat_ngram_size, "min_new_tokens": min_new_tokens, **beams}
    settings |= {"bad_words": list(read_stop(bad_words, "bad_words")), "logit_bias": read_bias(logit_bias)}
    flags = [name for name in NEUTRAL if given[name] != NEUTRAL[name] and temperature == 0]
    def make_task(model, is_whole):
        return Completing(model, settings, n_samples, truncate, flags)

    kinds = {"settings": settings, "reserved": ("sample", *RESERVED, *Completing.fields, *["score"] * bool(beams))}
    n_lines, rows, seed = n_best if beams else n_samples, choose_rows(rows, batch_size), seed or 0
    given = [name for name, value in (("ray_address", ray_address), ("actors", actors), ("parquet", parquet)) if value]
    if ray:
        from gpt2_io import ray_jobs  # needs packages of its own

        load, kinds["model"] = functools.partial(Model, model, models_dir, tokenizer), model
        where = gpt2.use_threads, file, out, rows, seed, n_lines, ray_address, actors, parquet
        return ray_jobs.run_job(make_task, load, *where, **kinds)
    if given:
        raise UserError(f"--{given[0]} is for jobs on Ray: give --ray too")
    run_job(make_task, file, out, rows, model, models_dir, tokenizer, seed, n_lines, **kinds)


# ---------------------------------------------------------------- score


def score(
    file, *, out=None, stride: int = None, top_logprobs=0, last_tokens: int = None, whole: bool = None,
    rows=DEFAULT_ROWS, batch_size: int = None, model="tales", models_dir="models", tokenizer="",
):
    """Say how likely the model finds each text of a file, and on the last line all of them together.

    Args:
        file: a text a line, or JSON lines with "text", or with "prompt" and "completion"; - is standard input.
        out: the file of results; without it they are printed at the end. The last line is printed in any case.
        stride: texts beyond n_ctx are scored in windows, each this many tokens after the one before; n_ctx by default.
        top_logprobs: add this many of the likeliest tokens in each place.
        last_tokens: score only so many tokens at the end of each text.
        whole: the file is one text; it is by default if it is no JSON and holds <|endoftext|>.
        rows: how many texts, or windows of them, to score at once.
        batch_size: the same as rows.
        model: a model's name or folder.
        models_dir: where models are looked for by name.
        tokenizer: a folder whose tokenizer is taken in place of the model's own.
    """
    for name, value, low in (("top_logprobs", top_logprobs, 0), ("last_tokens", last_tokens, 1)):
        if value is not None and value < low:
            raise UserError(f"--{name} must be {low} or more, not {value}")
    def make_task(model, is_whole):
        return Scoring(model, stride, top_logprobs, last_tokens, is_whole)

    kinds = {"parts": ("prompt", "completion", "text"), "reserved": (*RESERVED, *Scoring.fields), "whole": whole}
    run_job(make_task, file, out, choose_rows(rows, batch_size), model, models_dir, tokenizer, **kinds)


COMMANDS = {"complete": complete, "score": score}

if __name__ == "__main__":
    utils.run(COMMANDS)
