"""How likely a model finds texts: windows of long ones, log-probabilities of many at once, and what comes of them."""
import contextlib
import json
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from gpt2_io.errors import UserError
from gpt2_io.prompts import digest
from gpt2_io.text_ends import EOT


class Window(NamedTuple):
    """What one pass of the model is given of a text, n_ctx ids at most."""

    prefix: tuple  # ids that other windows begin with too; may be empty
    ids: list  # ids after them, one or more
    targets: list  # ids to score, as many as ids or fewer: the last follows the last of ids


def windows_of(ids, first, n_ctx, stride):
    """A text of whatever length -> windows in which each of ids[first:] is a target once, first being 1 or more.

    n_ctx + 1 ids fit into one window, since the last is not fed in. Of more ids, each window begins stride ids after
    the one before it, and scores what is new. What fits into one window gets all the context that there is.
    """
    begin = max(0, len(ids) - 1 - n_ctx) if len(ids) - first <= n_ctx else max(0, first + stride - 1 - n_ctx)
    windows = []
    while first < len(ids):
        end = min(begin + n_ctx + 1, len(ids))
        windows.append(Window((), ids[begin : end - 1], ids[first:end]))
        first, begin = end, begin + stride
    return windows


def score_texts(model, texts, n_rows=16, stride=None, n_top=0, count=lambda n: None):
    """Texts (ids, first) -> for each a list of (log-probability, whether it is the model's best, n_top best) of each
    of ids[first:].

    model: as in score_windows. first: 1 or more; the ids before it are context. A context that several texts have is
    computed once, and texts of like length run together, n_rows at a time, whatever order they come in. Of a text that
    is too long, the beginning of its context is left out, or it is read in windows, see windows_of.
    """
    n_ctx = model.hparams["n_ctx"]
    prefixes = [tuple(ids[: first - 1]) if len(ids) <= n_ctx + 1 else () for ids, first in texts]
    numbers = {prefix: n for n, prefix in enumerate(dict.fromkeys(prefixes))}
    groups, n_with = [numbers[prefix] for prefix in prefixes], Counter(prefixes)
    found = [[] for _ in texts]
    for batch in in_batches([len(ids) for ids, _ in texts], [len(prefix) for prefix in prefixes], groups, n_rows):
        windows, owners = [], []
        for n in batch:
            (ids, first), prefix = texts[n], prefixes[n]
            if prefix and n_with[prefix] > 1:
                new = [Window(prefix, ids[first - 1 : -1], ids[first:])]
            else:
                new = windows_of(ids, first, n_ctx, stride or n_ctx)
            windows += new
            owners += [n] * len(new)
        for n, scores in zip(owners, score_windows(model, windows, n_rows, n_top, count)):
            found[n] += scores
    return found


def in_batches(sizes, contexts, groups, n_rows):
    """Texts, by length, length of their context and its number -> lists of their places, the shortest first.

    Those that share a context come in one batch, however many they are; else n_rows texts of like length do.
    """
    sizes, contexts, groups = (np.array(numbers, dtype=int) for numbers in (sizes, contexts, groups))
    is_shared = (contexts > 0) & (np.bincount(groups)[groups] > 1)
    groups, contexts = np.where(is_shared, groups, -1), contexts * is_shared
    batch, last = [], None
    for n in np.lexsort((-sizes, groups, contexts)).tolist():
        if len(batch) >= n_rows and (groups[n] < 0 or groups[n] != last):
            yield batch
            batch = []
        batch.append(n)
        last = groups[n]
    if batch:
        yield batch


def score_windows(model, windows, n_rows, n_top=0, count=lambda n: None):
    """Windows -> for each its targets' (log-probability, whether it is the model's best, n_top best) in lists.

    model: has version, a module with the functions of gpt2_v4_sampling.py, and the params and hparams for it.
    n_rows run at once; a prefix that several windows have is computed once.
    n_top best: [[id, log-probability], ...], ties by lower id. count(n) is told of each batch how many targets it had.
    """
    version, params, n_head = model.version, model.params, model.hparams["n_head"]
    found = [None] * len(windows)
    numbers = {prefix: n for n, prefix in enumerate(dict.fromkeys(w.prefix for w in windows if w.prefix))}
    if numbers:
        input_ids, mask = version.left_pad(list(numbers))
        T_max = input_ids.shape[1] + max(len(w.ids) for w in windows if w.prefix)
        shared = version.init_kv_cache(params["wte"], params["blocks"], n_head, len(numbers), T_max)
        version.prefill(input_ids, params, n_head, shared, mask)
    for with_prefix in (False, True):
        some = [i for i, window in enumerate(windows) if bool(window.prefix) == with_prefix]
        some.sort(key=lambda i: len(windows[i].ids))  # so that few pads are needed
        for begin in range(0, len(some), n_rows):
            batch = some[begin : begin + n_rows]
            input_ids, mask = version.left_pad([windows[i].ids for i in batch])
            if with_prefix:
                rows = [numbers[windows[i].prefix] for i in batch]
                cache = {**shared, "real": shared["real"][rows], "blocks": shared["blocks"][:, :, rows]}
            else:
                cache = version.init_kv_cache(params["wte"], params["blocks"], n_head, *input_ids.shape)
            targets = [windows[i].targets for i in batch]
            scores = score_batch(model, input_ids, mask, cache, targets, n_top)
            for i, score in zip(batch, scores):
                found[i] = score
            count(sum(map(len, targets)))
    return found


def score_batch(model, input_ids, mask, kv_cache, targets, n_top):
    """A batch for score_windows -> for each row a list of what its targets get."""
    B, T = input_ids.shape
    next_ids = np.zeros((B, T), dtype=int)
    for row, ids in zip(next_ids, targets):
        row[T - len(ids) :] = ids
    first = T - max(map(len, targets))
    scores = [[] for _ in targets]
    chunk = max(1, 256 // B)  # logits of all positions at once would be large
    for begin in range(0, T, chunk):
        ids = input_ids[:, begin : begin + chunk]
        end = begin + ids.shape[1]
        wanted = max(0, end - max(begin, first))
        known = {"attention_mask": mask[:, begin:end], "kv_cache": kv_cache, "n_logits": wanted}
        known["n_head"] = model.hparams["n_head"]
        logits = model.version.gpt2(ids, **model.params, **known)  # [B, wanted, n_vocab]
        if not wanted:
            continue
        logprobs = model.version.log_softmax(logits)
        right = next_ids[:, end - wanted : end]  # [B, wanted]
        of_right = np.take_along_axis(logprobs, right[..., None], axis=-1)[..., 0]
        is_best = np.argmax(logits, axis=-1) == right
        for row, ids in enumerate(targets):
            for column in range(max(0, T - len(ids) - (end - wanted)), wanted):
                top = best_of(logprobs[row, column], n_top) if n_top else None
                scores[row].append((float(of_right[row, column]), bool(is_best[row, column]), top))
    return scores


def best_of(logprobs, n):
    """The n best of [n_vocab] -> [[id, log-probability], ...], ties by lower id."""
    n = min(n, len(logprobs))
    lightest = np.partition(logprobs, -n)[-n]
    ids = np.flatnonzero(logprobs >= lightest)
    ids = ids[np.argsort(-logprobs[ids], kind="stable")][:n]
    return [[int(i), float(logprobs[i])] for i in ids]


class Total:
    """Log-probability, tokens and bytes of several texts, and what follows from them."""

    def __init__(self):
        self.n_texts = self.n_tokens = self.n_bytes = 0
        self.logprob = 0.0

    def add(self, logprob, n_tokens, n_bytes):
        self.n_texts, self.logprob = self.n_texts + 1, self.logprob + logprob
        self.n_tokens, self.n_bytes = self.n_tokens + n_tokens, self.n_bytes + n_bytes

    def summary(self):
        """-> {"perplexity", "bits_per_byte", ...}; None, JSON's null, for a number beyond what a float holds."""
        loss = -self.logprob / self.n_tokens if self.n_tokens else None
        return {
            "n_texts": self.n_texts, "n_tokens": self.n_tokens, "logprob": self.logprob, "loss": loss,
            "bits_per_byte": -self.logprob / math.log(2) / self.n_bytes if self.n_bytes else None,
            "perplexity": perplexity(self.logprob, self.n_tokens),
        }  # fmt: skip


def perplexity(logprob, n_tokens):
    """exp of minus the mean log-probability, or None where that is beyond what a float holds."""
    return math.exp(-logprob / n_tokens) if n_tokens and -logprob / n_tokens < 709 else None


class Scoring:
    """What `score` makes of a line."""

    fields = (
        "logprob", "perplexity", "n_tokens", "n_bytes", "is_greedy", "ids", "tokens", "logprobs", "is_best",
        "top_logprobs",
    )  # fmt: skip

    def __init__(self, model, stride, n_top, last_tokens, whole):
        self.model, self.n_top, self.last_tokens, self.whole = model, n_top, last_tokens, whole
        self.n_ctx, self.start = model.hparams["n_ctx"], []
        with contextlib.suppress(UserError):  # without it, the first token of a text is only looked back on
            self.start = [model.encoder.eot_token]
        self.stride, self.total = self.n_ctx if stride is None else stride, Total()
        if not 1 <= self.stride <= self.n_ctx:
            raise UserError(f"--stride must be from 1 to n_ctx, {self.n_ctx}, not {stride}")

    def plan(self, line):
        """-> ids, and from which on they count. Raises UserError for a line that cannot be done."""
        parts = line.parts
        if "completion" in parts:
            if parts.keys() != {"prompt", "completion"}:
                raise UserError('"completion" goes with "prompt", and "text" stands alone')
            context, text = self.model.encode(parts["prompt"]), parts["completion"]
            context = context or [self.model.encoder.eot_token]
            ids = context + (self.model.encode(text) if text else [])
        elif parts.keys() != {"text"}:
            raise UserError('a "text" is expected, or a "prompt" with its "completion"')
        else:
            text = parts["text"]
            if self.whole:  # what stands around an end of text, a line break as a rule, is layout
                ids = [i for piece in text.split(EOT) for i in (*self.start, *self.model.encode(piece.strip()))]
            else:
                ids = self.model.encode(text)
                if isinstance(text, str) and ids[:1] != self.start:
                    ids = self.start + ids
            context = ids[:1]
        if len(ids) == len(context):
            raise UserError("nothing to score: a text needs a token after the one that it begins with")
        return ids, max(len(context), len(ids) - (self.last_tokens or len(ids)))

    def work_of(self, line):
        """For Index. Lines of a group begin with the same prompt."""
        ids, first = self.plan(line)
        group = digest(ids[:first]).hex() if "completion" in line.parts and len(ids) <= self.n_ctx + 1 else ""
        return (first if group else 0, group), len(ids), digest(ids, first, self.stride, self.n_top), 0

    def check(self, index):
        pass

    def batches(self, index, todo, rows):
        contexts = np.array([length for length, _ in index.names])[index.groups[todo]]
        for batch in in_batches(index.sizes[todo], contexts, index.groups[todo], rows):
            yield todo[batch].tolist()

    def run(self, lines, seeds, rows, progress, write):
        """Make the results of lines; write([(number of the line, 0, result), ...]) gets them."""
        texts = [self.plan(line) for line in lines]
        scores = score_texts(self.model, texts, rows, self.stride, self.n_top, progress.count)
        write([(n, 0, self.result(ids[first:], score)) for n, ((ids, first), score) in enumerate(zip(texts, scores))])

    def result(self, ids, score):
        logprobs, is_best, tops = map(list, zip(*score))
        pieces = [self.model.encoder.decode_bytes([i]) for i in ids]
        result = {"logprob": sum(logprobs), "perplexity": perplexity(sum(logprobs), len(ids)), "n_tokens": len(ids)}
        has_text = self.model.encoder.n_vocab is not None
        result |= {"n_bytes": sum(len(piece) for i, piece in zip(ids, pieces) if [i] != self.start) * has_text}
        tokens = [piece.decode("utf-8", "replace") for piece in pieces]
        result |= {"is_greedy": all(is_best), "ids": ids, "tokens": tokens, "logprobs": logprobs, "is_best": is_best}
        return result | {"top_logprobs": tops} if self.n_top else result

    def see(self, result):
        self.total.add(result["logprob"], result["n_tokens"], result["n_bytes"])

    def end(self):
        print(json.dumps(self.total.summary()), flush=True)
