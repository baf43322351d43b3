"""Continuations that end at stop strings: what v4 and later print, and what a job writes."""
import json
import re
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterable

from gpt2_io.errors import UserError
from gpt2_io.streams import TextStream, print_texts, show_everything

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}  # what a shell passes on as it is typed


def choose_seed(seed, temperature):
    """The seed that was given, or where tokens are drawn without one a fresh one, shown so that they can be again."""
    if seed is None and temperature:
        seed = secrets.randbelow(2**32)
        print(f"seed: {seed}", file=sys.stderr)
    return seed


def read_stop(stop, name="stop"):
    r"""Stop strings, one or several -> a tuple. A backslash is read as in Python: \n is a line break, \\ is \."""
    stop = check_stop(stop, name)
    return tuple(re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[0]), text, flags=re.S) for text in stop)


def check_stop(stop, name="stop"):
    """Stop strings, one or several -> a tuple. Raises UserError for what is no text, or an empty one."""
    stop = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else (stop,)
    if not all(isinstance(text, str) and text for text in stop):
        raise UserError(f"--{name} needs a text that is not empty")
    return stop


class Continuations:
    """Takes the tokens of all rows as they come and prints their texts, at the end or, with stream, at once.

    Rows are numbered as `generate` of gpt2_v4_sampling.py does: n_samples for the first prompt, then for the next.
    stop: texts before which a continuation ends; they are looked for in the continuation alone, not across its prompt.
    stream: one text as it is, several as JSON lines {"index", "text"}, the last of each with "finish_reason".
    as_json, or logprobs: a JSON object a row, {"index", "sample", "prompt", "ids", "text", "finish_reason"}; "sample"
    only where there are several; with logprobs also those, and "logprob", their sum.
    """

    def __init__(self, encoder, prompts, n_tokens_to_generate, n_samples=1, stop=(), stream=False, as_json=False,
                 logprobs=False):  # fmt: skip
        self.prompts, self.n_tokens_to_generate, self.n_samples = prompts, n_tokens_to_generate, n_samples
        self.stream, self.as_json, self.with_logprobs = stream, as_json or logprobs, logprobs
        self.plain = stream and not self.as_json and len(prompts) * n_samples == 1
        self.streams = [TextStream(encoder, stop) for _ in range(len(prompts) * n_samples)]
        self.ids, self.logprobs = [[] for _ in self.streams], [[] for _ in self.streams]

    def on_token(self, row, token_id, logprob):
        """The next token of a row -> whether its text has come to its end. For `generate`."""
        self.ids[row].append(token_id)
        self.logprobs[row].append(logprob)
        self.show(row, self.streams[row].push(token_id))
        return self.streams[row].stopped

    def name_of(self, row):
        index, sample = divmod(row, self.n_samples)
        return {"index": index, "sample": sample} if self.n_samples > 1 else {"index": index}

    def show(self, row, text, ending=None):
        if self.plain:
            print(text, end="" if ending is None else "\n", flush=True)
        elif self.stream and (text or ending):
            print(json.dumps({**self.name_of(row), "text": text, **(ending or {})}), flush=True)

    def __enter__(self):
        show_everything(sys.stdout)
        return self

    def __exit__(self, exception, *_):
        if exception is not None:
            return
        for row, stream in enumerate(self.streams):
            rest = stream.end()
            is_stop = stream.stopped or len(self.ids[row]) < self.n_tokens_to_generate
            ending = {"finish_reason": "stop" if is_stop else "length"}
            if self.with_logprobs:
                ending |= {"logprobs": self.logprobs[row], "logprob": sum(self.logprobs[row])}
            self.show(row, rest, ending)
            prompt = self.prompts[row // self.n_samples]
            if self.as_json and not self.stream:
                result = {"prompt": prompt, "ids": self.ids[row], "text": stream.text, **ending}
                print(json.dumps({**self.name_of(row), **result}), flush=True)
        if not self.as_json and not self.stream:
            prompts = [prompt for prompt in self.prompts for _ in range(self.n_samples)]
            print_texts(prompts, self.ids, [stream.text for stream in self.streams])


class Continuation:
    """One continuation of a job while its tokens come in."""

    def __init__(self, encoder, stop):
        self.stream, self.ids, self.logprobs, self.ends = TextStream(encoder, stop), [], [], [0]

    def add(self, token_id, logprob):
        """The next token -> whether a stop string ends the text."""
        self.ids.append(token_id)
        self.logprobs.append(logprob)
        self.stream.push(token_id)
        self.ends.append(len(self.stream.text) + len(self.stream.held))
        return self.stream.stopped

    def whole(self):
        """No more tokens -> the text, and how many ids belong to it: up to the one in which it ends."""
        self.stream.end()
        text, n = self.stream.text, len(self.ids)
        return text, next(n for n, end in enumerate(self.ends) if end >= len(text)) if self.stream.stopped else n

    def result(self, limit, with_logprobs):
        """-> dict. ids and logprobs end with the token in which the text ends; cut is what came after that.

        limit: how many tokens it could have had.
        """
        (text, n), stopped = self.whole(), self.stream.stopped
        reason = "stop" if stopped or n < limit else "length"
        result = {"ids": self.ids[:n], "text": text, "finish_reason": reason}
        if with_logprobs:
            result |= {"logprobs": self.logprobs[:n], "logprob": sum(self.logprobs[:n], 0.0)}
        if stopped:
            result |= {"cut_ids": self.ids[n:], "cut_text": self.stream.held}
            result |= {"cut_logprobs": self.logprobs[n:]} if with_logprobs else {}
        return result


class StopAt:
    r"""Ends the texts that `generate` makes at stop strings, for callers in Python; one for each call of `generate`.

        ends = utils.StopAt(encoder, ["\n", "The end"])
        gpt2.generate(..., on_token=ends)
        ends.text(0)  # of row 0 of the result, without the stop string

    The result of `generate` has the tokens of the stop string, too. They are looked for in the new text alone.
    """

    def __init__(self, encoder, stop):
        stop = check_stop(stop)
        self.rows = defaultdict(lambda: Continuation(encoder, stop))

    def __call__(self, row, token_id, logprob=None):
        return self.rows[row].add(token_id, logprob)

    def text(self, row):
        """What a row says before its stop string."""
        return self.rows[row].whole()[0]

    def ids(self, row):
        """The ids of this text; the last of them may hold the beginning of the stop string."""
        return self.rows[row].ids[: self.rows[row].whole()[1]]
