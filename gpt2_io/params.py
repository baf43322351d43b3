"""A checkpoint -> params, the nested dicts of float32 arrays that the versions take."""
import math

import numpy as np

from gpt2_io.checkpoint import check_tensors, read_config, read_finite
from gpt2_io.errors import UserError, listed


def load_params(checkpoint, n_tokens=None, never_ids=()):
    """Checkpoint -> hparams, params.

    hparams: {"n_vocab", "n_ctx", "n_embd", "n_head", "n_layer"}, ints.
    params: float32 arrays in nested dicts, linear weights [in, out]:
    {"wte": [n_vocab, n_embd], "wpe": [n_ctx, n_embd], "blocks": [{"ln_1": {"g", "b"}, "attn": {"c_attn": {"w", "b"},
    "c_proj": {"w", "b"}}, "ln_2": ..., "mlp": {"c_fc": {"w", "b"}, "c_proj": {"w", "b"}}}], "ln_f": {"g", "b"}}.
    n_tokens, never_ids: of the encoder. What no text holds is never generated: rows of wte beyond the last token that
    texts hold are cut off, and those between others are filled by `never_the_best`.
    Raises UserError as `read_config` and `check_tensors` do, and for a tensor with NaN or infinity, by name.
    """
    config = read_config(checkpoint)
    tensors = check_tensors(checkpoint, config)
    config["n_vocab"] = min(config["n_vocab"], n_tokens or config["n_vocab"])
    while config["n_vocab"] - 1 in never_ids:
        config["n_vocab"] -= 1

    def array(name):
        return read_finite(tensors, name, checkpoint.path)

    def linear(name):
        return {"w": array(f"{name}.weight"), "b": array(f"{name}.bias")}

    def layer_norm(name):
        ln = {"g": array(f"{name}.weight"), "b": array(f"{name}.bias")}
        eps = config["layer_norm_epsilon"]
        return ln if eps == 1e-5 else {**ln, "eps": eps}  # 1e-5 is the default of the versions' layer_norm

    def c_attn(i):
        """Another scale of the attention scores goes into the queries, since (s * q) @ k = s * (q @ k)."""
        scale = 1.0 if config["scale_attn_weights"] else math.sqrt(config["n_embd"] // config["n_head"])
        if config["scale_attn_by_inverse_layer_idx"]:
            scale /= i + 1
        p = linear(f"h.{i}.attn.c_attn")
        if scale != 1.0:
            scales = np.ones(3 * config["n_embd"], dtype=np.float32)
            scales[: config["n_embd"]] = scale  # the first third of the columns makes the queries
            p = {"w": p["w"] * scales, "b": p["b"] * scales}
        return p

    blocks = [
        {
            "ln_1": layer_norm(f"h.{i}.ln_1"),
            "attn": {"c_attn": c_attn(i), "c_proj": linear(f"h.{i}.attn.c_proj")},
            "ln_2": layer_norm(f"h.{i}.ln_2"),
            "mlp": {"c_fc": linear(f"h.{i}.mlp.c_fc"), "c_proj": linear(f"h.{i}.mlp.c_proj")},
        }
        for i in range(config["n_layer"])
    ]
    params = {
        "wte": array("wte.weight")[: config["n_vocab"]],
        "wpe": array("wpe.weight"),
        "blocks": blocks,
        "ln_f": layer_norm("ln_f"),
    }
    between = [i for i in never_ids if i < config["n_vocab"]]
    if between:
        params["wte"] = never_the_best(params["wte"], between, **layer_norm("ln_f"), where=checkpoint.path)
    return {key: config[key] for key in ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer")}, params


def never_the_best(wte, ids, g, b, where, eps=None):
    """wte with other rows for these ids, which have the logit -1e10 after any text: they are never generated.

    A layer_norm takes off the mean. So what the last one gives, less b and divided by g, adds up to 0 after any text,
    and a row of 1 / g has the sum of b / g for a logit after any text. Times -1e10 / that sum, it is the row to use. As
    an embedding it means nothing, but it does no harm where the attention mask hides it, as it hides pads.
    Raises UserError where the sum is too near to 0 to be told from rounding, as without any b.
    """
    with np.errstate(all="ignore"):
        row = 1 / g.astype(np.float64)
        logit, terms = row @ b, len(row) + np.sum(np.abs(row * b))
        row *= -1e10 / logit
    if not (abs(logit) > 1e-4 * terms and np.max(np.abs(row)) < 1e15):
        raise UserError(
            f"{where}: the tokens {listed(map(str, ids))} are no part of any text, but nothing keeps this model from "
            "generating them: if they may be generated, take pad_token out of tokenizer_config.json and "
            "special_tokens_map.json, and pad_token_id out of config.json and generation_config.json"
        )
    wte = wte.copy()
    wte[ids] = row
    return wte


GPT2_124M = {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}


def random_params(hparams, seed=0):
    """hparams -> params with random float32 weights as a new GPT-2 has them: normal, deviation 0.02, gains near 1."""
    rng = np.random.default_rng(seed)
    n_vocab, n_ctx, n_embd, _, n_layer = hparams.values()

    def normal(*shape):
        array = rng.standard_normal(shape, dtype=np.float32)
        array *= 0.02
        return array

    def linear(n_in, n_out):
        return {"w": normal(n_in, n_out), "b": normal(n_out)}

    def layer_norm():
        return {"g": 1 + normal(n_embd), "b": normal(n_embd)}

    blocks = [
        {
            "ln_1": layer_norm(),
            "attn": {"c_attn": linear(n_embd, 3 * n_embd), "c_proj": linear(n_embd, n_embd)},
            "ln_2": layer_norm(),
            "mlp": {"c_fc": linear(n_embd, 4 * n_embd), "c_proj": linear(4 * n_embd, n_embd)},
        }
        for _ in range(n_layer)
    ]
    return {"wte": normal(n_vocab, n_embd), "wpe": normal(n_ctx, n_embd), "blocks": blocks, "ln_f": layer_norm()}
