"""The bundled model is as good as its card says, with the arithmetic of this project."""
import math
import re

import numpy as np
import pytest
from tiny import ROOT

import gpt2_v1_batching
import gpt2_v3_kvcache
import utils

FOLDER = ROOT / "models" / "tales"


def test_the_folder_is_small_and_whole():
    names = {"config.json", "model.safetensors", "vocab.json", "merges.txt", "README.md", "held_out.txt", "SOURCES.md"}
    assert {path.name for path in FOLDER.iterdir()} == names
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10_000_000


def test_ids_stand_in_gpt2s_order():
    """256 bytes, then merges, `<|endoftext|>` last."""
    encoder, hparams, _ = utils.load_model("tales")
    assert [encoder.decode_bytes([i]) for i in (0, 255)] == [b"!", b"\xad"]
    assert all(len(encoder.decode_bytes([i])) > 1 for i in range(256, hparams["n_vocab"]))
    assert encoder.eot_token == hparams["n_vocab"] - 1


@pytest.mark.slow
def test_held_out_loss_is_that_of_the_card():
    """Consecutive windows of n_ctx, each token predicted once, `<|endoftext|>` before each story."""
    encoder, hparams, params = utils.load_model("tales")
    stories = (FOLDER / "held_out.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    stories = [story.strip() for story in stories]
    ids = np.array([i for story in stories for i in (encoder.eot_token, *encoder.encode(story))])
    nats = 0.0
    for start in range(0, len(ids) - 1, hparams["n_ctx"]):
        window = ids[start : start + hparams["n_ctx"] + 1]
        logits = gpt2_v1_batching.gpt2(window[None, :-1], **params, n_head=hparams["n_head"])[0].astype(np.float64)
        logits -= np.max(logits, axis=-1, keepdims=True)
        logprobs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
        nats -= np.sum(logprobs[np.arange(len(window) - 1), window[1:]])
    bits = nats / math.log(2) / sum(len(story.encode()) for story in stories)
    card = float(re.search(r"\*\*([\d.]+) bits per byte", (FOLDER / "README.md").read_text(encoding="utf-8")).group(1))
    assert abs(bits - card) < 0.002
    assert bits < 1.33


def test_greedy_texts_are_made_of_words():
    """Of the words that it writes after a few beginnings, nearly all are words of the held-out stories."""
    encoder, hparams, params = utils.load_model("tales")
    known = set(re.findall(r"[a-z]+", (FOLDER / "held_out.txt").read_text(encoding="utf-8").lower()))
    prompts = ["Once upon a time", "There was once", "The king said", "One day", "The fox", "An old woman"]
    input_ids, mask = gpt2_v3_kvcache.left_pad([encoder.encode(prompt) for prompt in prompts])
    texts = map(encoder.decode, gpt2_v3_kvcache.generate(input_ids, params, hparams["n_head"], 60, mask))
    words = [word for text in texts for word in re.findall(r"[a-z]+", text.lower())[:-1]]  # the last may be cut
    assert len(words) > 200
    assert sum(word in known for word in words) > 0.95 * len(words)
