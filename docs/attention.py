"""Attention weights of a text, as a table or as a picture, computed with the functions of gpt2_v2_padding.py.

    python docs/attention.py "The cat sat on the mat" --layer 3 --head 0
    python docs/attention.py "The cat sat on the mat" --layer 3 --head all --png heads.png
"""
import sys
from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import drawing  # noqa: E402
import gpt2_v2_padding as gpt2  # noqa: E402
import utils  # noqa: E402


def attention_weights(input_ids, params, n_head, attention_mask=None):
    """input_ids [B, T] -> weights [n_layer, B, n_head, T, T]: row t of a head tells how much token t takes from each.

    The model is run block by block, as in `gpt2`. In each the weights are what `attention` does to values that are the
    rows of the identity: weights @ identity = weights.
    """
    input_ids = np.asarray(input_ids)
    B, T = input_ids.shape
    real = utils.check_mask(attention_mask, (B, T))
    x = params["wte"][input_ids] + params["wpe"][np.clip(np.cumsum(real, axis=1) - 1, 0, None)]
    visible = np.tri(T, dtype=bool) & real[:, None, None, :]
    mask = np.where(visible, 0, -1e10).astype(x.dtype)  # [B, 1, T, T]
    identity = np.eye(T, dtype=x.dtype)
    weights = []
    for block in params["blocks"]:
        qkv = gpt2.linear(gpt2.layer_norm(x, **block["ln_1"]), **block["attn"]["c_attn"])
        heads = qkv.reshape(B, T, 3 * n_head, -1).swapaxes(1, 2)  # [B, T, 3*n_embd] -> [B, 3*n_head, T, d_head]
        q, k, _ = np.split(heads, 3, axis=1)  # 3 of [B, n_head, T, d_head]
        weights.append(gpt2.attention(q, k, identity, mask))
        x = gpt2.transformer_block(x, **block, n_head=n_head, mask=mask)
    return np.array(weights)


def as_table(weights, tokens):
    """weights [T, T] -> text: a row for each query, a column for each key, two decimals, the future blank."""
    names = [repr(token)[1:-1] for token in tokens]
    first, width = max(map(len, names)), [max(4, len(name)) for name in names]
    lines = [" " * first + "".join(f"  {name:>{w}}" for name, w in zip(names, width))]
    for t, name in enumerate(names):
        cells = [f"{weights[t, s]:.2f}" for s in range(t + 1)]
        lines.append(f"{name:<{first}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(cells, width)))
    return "\n".join(line.rstrip() for line in lines)


def draw(weights, tokens, titles, path):
    """Draw heads, weights [n, T, T], as a grid of heat maps into a PNG file."""
    plt = drawing.import_pyplot()
    n, T = len(weights), len(tokens)
    columns = int(np.ceil(np.sqrt(n)))
    rows = int(np.ceil(n / columns))
    side = max(3.2, 0.42 * T + 1.4)
    size = {"figsize": (columns * side, rows * side), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, columns, **size)
    for i, ax in enumerate(axes.flat):
        if i < n:
            drawing.draw_head(ax, weights[i], tokens, numbers=n == 1, size=10, rotation=60)
            ax.set_title(titles[i], fontsize=11)
        else:
            ax.axis("off")
    figure.savefig(path, dpi=150, facecolor="white")
    plt.close(figure)


def choose(value, n, what):
    """ "0" or "all" -> the numbers meant, of n layers or heads."""
    if value == "all":
        return list(range(n))
    if not value.isdecimal() or int(value) >= n:
        raise utils.UserError(f"--{what} must be a whole number below {n}, or all, not {value!r}")
    return [int(value)]


def main(*prompts, layer="0", head="0", png: str = None, model="tales", models_dir="models"):
    """Print how much each token attends to each.

    Args:
        prompts: one text.
        layer: a number from 0 on, or all.
        head: a number from 0 on, or all.
        png: draw into this file too.
        model: a model's name or folder.
        models_dir: where models are looked for by name.
    """
    if len(prompts) != 1:
        raise utils.UserError(f"give one text, not {len(prompts)}")
    encoder, hparams, params = utils.load_model(model, models_dir)
    input_ids = utils.encode_prompts(encoder, prompts)
    utils.check_lengths([len(input_ids[0])], 0, hparams["n_ctx"])
    layers, heads = choose(layer, hparams["n_layer"], "layer"), choose(head, hparams["n_head"], "head")
    weights = attention_weights(input_ids, params, hparams["n_head"])[:, 0]  # [n_layer, n_head, T, T]
    tokens = [encoder.decode([i]) for i in input_ids[0]]
    chosen = [weights[i, h] for i in layers for h in heads]
    titles = [f"layer {i}, head {h}" for i in layers for h in heads]
    print("\n\n".join(f"{title}\n{as_table(table, tokens)}" for title, table in zip(titles, chosen)))
    if png:
        draw(chosen, tokens, titles, png)


if __name__ == "__main__":
    utils.run(main)
