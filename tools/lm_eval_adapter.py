"""EleutherAI's lm-evaluation-harness runs its tasks on the models of this project.

    pip install -e '.[eval]'
    python tools/lm_eval_adapter.py --model numpy_gpt2 --model_args model=tales --tasks arc_easy --batch_size 16

The flags are the harness's own. In Python: lm_eval.simple_evaluate(model=NumpyGPT2("tales"), tasks=[...]).
"""
import json
import sys
from pathlib import Path

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import gpt2_v8_lookup as gpt2  # noqa: E402
import jobs  # noqa: E402
import utils  # noqa: E402
from gpt2_io.scoring import score_texts  # noqa: E402

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # what tasks call the same


@register_model("numpy_gpt2")
class NumpyGPT2(TemplateLM):
    """A model as the harness calls it. Its numbers are those of the harness's own `hf` model, up to rounding."""

    def __init__(
        self, model="tales", models_dir="models", tokenizer="", batch_size=16, seed=0, max_batch_size=None, device=None
    ):
        """batch_size: how many texts run at once; it changes no result. seed: for tasks that draw.

        max_batch_size and device, which the harness hands over, mean nothing here.
        """
        super().__init__()
        self.model, self.seed = jobs.Model(model, models_dir, tokenizer), seed
        self.encoder, self.max_length = self.model.encoder, self.model.hparams["n_ctx"]
        self.batch_size = int(batch_size) if str(batch_size).isdigit() else 16  # "auto"
        self.name = f"{model} {tokenizer}".strip()

    @property
    def eot_token_id(self):
        return self.encoder.eot_token

    @property
    def tokenizer_name(self):
        return self.name  # by which the harness keeps its caches apart

    def tok_encode(self, string, add_special_tokens=None, **_):
        return self.encoder.encode(string)

    def score(self, pairs, disable_tqdm):
        """Pairs of ids, context and continuation -> for each its log-probability, and whether it is all greedy."""
        n_tokens = sum(len(continuation) for _, continuation in pairs)
        with tqdm(total=n_tokens, desc="scoring", unit="token", disable=disable_tqdm) as bar:
            texts = [(context + continuation, len(context)) for context, continuation in pairs]
            scores = score_texts(self.model, texts, self.batch_size, count=bar.update)
        return [(sum(logprob for logprob, *_ in score), all(is_best for _, is_best, _ in score)) for score in scores]

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_):
        found = self.score([(context, continuation) for _, context, continuation in requests], disable_tqdm)
        for (key, *_), answer in zip(requests, found):
            self.cache_hook.add_partial("loglikelihood", key, answer)
        return found

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        pairs, owners, sums = [], [], [0.0] * len(requests)
        for n, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            pairs += map(make_disjoint_window, windows)
            owners += [n] * (len(pairs) - len(owners))
        for n, (logprob, _) in zip(owners, self.score(pairs, disable_tqdm)):
            sums[n] += logprob
        for request, logprob in zip(requests, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, logprob)
        return sums

    def generate_until(self, requests, disable_tqdm=False):
        groups, found = {}, [None] * len(requests)  # of requests that share their settings
        for n, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(n)
        with tqdm(total=len(requests), desc="generating", unit="text", disable=disable_tqdm) as bar:
            for settings, places in groups.items():
                limit, stop, sampling = self.read_settings(json.loads(settings))
                prompts = [self.tok_encode(requests[n].args[0]) or [self.prefix_token_id] for n in places]
                prompts = [utils.keep_end(ids, limit + 1, self.max_length) for ids in prompts]  # as hf leaves room
                # In this order those that begin alike come one after the other, and what they share is computed once.
                order = sorted(range(len(places)), key=prompts.__getitem__)
                ends = utils.StopAt(self.encoder, stop)
                seeds = {"seed": [(self.seed, places[i]) for i in order]} if sampling.get("temperature") else {}
                gpt2.generate(
                    [prompts[i] for i in order], self.model.params, self.model.hparams["n_head"], limit,
                    n_rows=self.batch_size, stop_ids=self.encoder.stop_ids, on_token=ends, progress=False,
                    on_end=lambda *_: bar.update(), **sampling, **seeds,
                )  # fmt: skip
                for row, i in enumerate(order):
                    found[places[i]] = ends.text(row)
                    self.cache_hook.add_partial("generate_until", requests[places[i]].args, ends.text(row))
        return found

    def read_settings(self, settings):
        """What a task asks for -> number of new tokens, stop strings, settings of `generate`."""
        stop = settings.pop("until", None) or []
        stop = [stop] if isinstance(stop, str) else stop
        limits = [settings.pop(name, None) for name in LIMITS]
        limit = next((int(limit) for limit in limits if limit is not None), 256)
        sampling = {name: settings.pop(name) for name in SAMPLING if settings.get(name) is not None}
        if not settings.pop("do_sample", sampling.get("temperature", 0) > 0):
            sampling = {name: value for name, value in sampling.items() if name == "repetition_penalty"}
        else:
            sampling.setdefault("temperature", 1.0)
        if settings:
            raise utils.UserError(f"a task asks for {', '.join(settings)}, which generate does not have")
        if limit >= self.max_length:
            raise utils.UserError(f"a task asks for {limit} tokens: no room for a prompt in n_ctx, {self.max_length}")
        return limit, [text for text in stop if text], sampling


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except utils.UserError as error:
        sys.exit(f"error: {error}")
