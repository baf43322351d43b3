"""The data of the site's living page: what gpt2_v3_kvcache.py computes for a dozen sentences and for a ragged batch."""
from unittest import mock

import numpy as np

import gpt2_v3_kvcache as gpt2
import utils

SENTENCES = (
    "The cat sat on the mat",
    "Once upon a time there was a king",
    "The fox said to the crow",
    "One day the wolf came to the door",
    "The old woman had two sons",
    "In the forest stood a little house",
    "The princess looked into the well",
    "There was a poor woodcutter who",
    "The king gave him a golden ring",
    "She opened the door and went in",
    "The bear was hungry and the snow was deep",
    "They lived happily ever after",
)
BATCH = ("The old woman had two sons", "One day", "The cat sat on")
N_NEW = 6


def run(prompts, encoder, params, n_head, n_new=N_NEW):
    """Prefill and decode as `generate` does, greedily -> a dict for each step, with what went in and what came out.

    weights are [n_layer, B, n_head, T, n_k], visible is [B, T, n_k] with True where the mask is 0.
    """
    attention, steps = gpt2.attention, []

    def attention_seen(q, k, v, mask):
        step["visible"] = mask[:, 0] == 0
        step["weights"].append(attention(q, k, np.eye(k.shape[-2], dtype=k.dtype), mask))  # weights @ identity
        return attention(q, k, v, mask)

    ids, real = gpt2.left_pad([encoder.encode(prompt) for prompt in prompts])
    cache = gpt2.init_kv_cache(params["wte"], params["blocks"], n_head, len(ids), ids.shape[1] + n_new)
    with mock.patch.object(gpt2, "attention", attention_seen):
        for i in range(n_new):
            step = {"ids": ids, "weights": []}
            if i == 0:
                logits = gpt2.prefill(ids, params, n_head, cache, real)
            else:
                logits = gpt2.decode_one_token(ids[:, 0], params, n_head, cache)
            steps.append({**step, "real": cache["real"], "logits": logits})
            ids = np.argmax(logits, axis=-1)[:, None]
    return steps


def best_tokens(encoder, logits, n=4):
    """-> [[token, percent], ...] of the most likely tokens; logits [n_vocab]."""
    shares = 100 * gpt2.softmax(logits)
    return [[encoder.decode([i]), round(float(shares[i]), 1)] for i in np.argsort(-logits)[:n].tolist()]


def percents(weights):
    """[..., n] of 0 to 1 -> whole percents, as lists."""
    return np.rint(100 * weights).astype(int).tolist()


def sentence_data(text, encoder, params, n_head):
    """Prompt, new tokens, and for each step the weights [n_layer][n_head][T][n_k] in percent and the best tokens."""
    steps = run([text], encoder, params, n_head)
    return {
        "text": text,
        "tokens": [encoder.decode([i]) for step in steps for i in step["ids"][0].tolist()],
        "steps": [
            {
                "weights": [percents(layer[0]) for layer in step["weights"]],
                "best": best_tokens(encoder, step["logits"][0]),
            }
            for step in steps
        ],
    }


def batch_data(prompts, encoder, params, n_head):
    """For each step and row: attention mask and position of all slots that are full, and who sees which key."""
    steps = run(prompts, encoder, params, n_head, n_new=4)
    ids = np.concatenate([step["ids"] for step in steps], axis=1).tolist()
    real = steps[-1]["real"]
    rows = [[encoder.decode([i]) if is_real else "pad" for i, is_real in zip(*row)] for row in zip(ids, real)]
    return {
        "prompts": prompts,
        "rows": rows,
        "steps": [
            {
                "real": step["real"].astype(int).tolist(),
                "positions": np.clip(np.cumsum(step["real"], axis=1) - 1, 0, None).tolist(),  # as in `gpt2`
                "visible": step["visible"].astype(int).tolist(),
                "next": [encoder.decode([i]) for i in np.argmax(step["logits"], axis=-1).tolist()],
            }
            for step in steps
        ],
    }


def data():
    encoder, hparams, params = utils.load_model("tales")
    n_head = hparams["n_head"]
    return {
        "n_layer": hparams["n_layer"],
        "n_head": n_head,
        "sentences": [sentence_data(text, encoder, params, n_head) for text in SENTENCES],
        "batch": batch_data(BATCH, encoder, params, n_head),
    }
