"""The pictures of the pages: what each shows (DATA), and how that is drawn (DRAW). docs/build.py calls both.

The data comes from the bundled model through the functions of the versions, and is kept beside the picture as JSON; to
draw it needs matplotlib, to compare it does not. All are 8 inches wide, to be read at 800 pixels. Each is drawn twice,
in the colours of drawing.LIGHT and of drawing.DARK.
"""
import collections
import contextlib
from unittest import mock

import numpy as np

import attention
import drawing
import gpt2_v0
import gpt2_v2_padding
import gpt2_v3_kvcache
import gpt2_v4_sampling
import gpt2_v5_exact
import gpt2_v6_threads
import gpt2_v7_continuous
import gpt2_v8_lookup
import gpt2_v9_beam
import measure
import utils

SENTENCE, LAYER, HEAD = "The cat sat on the mat", 3, 0  # the example of all pages
SHORTER = "The cat sat on the"  # what v2 sets beside it, and v4 goes on from


def rounded(array):
    """Numbers with four decimals, for JSON."""
    return np.round(np.asarray(array, dtype=float), 4).tolist()


def token_names(encoder, ids):
    """Tokens as text, with the space that most begin with as a low line."""
    return [encoder.decode([i]).replace(" ", "␣").replace("\n", "⏎") for i in ids]


def empty_axes(plt, height, bottom, right=100):
    """A figure without axes, 8 inches wide; x goes from 0 to `right`, y down from 0 to `bottom`."""
    figure, axes = plt.subplots(figsize=(8, height))
    axes.set(xlim=(0, right), ylim=(bottom, 0))
    axes.axis("off")
    return figure, axes


def arrow(axes, c, start, end):
    style = {"arrowstyle": "-|>", "color": c.line, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 13, "linewidth": 1.3}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


# ---------------------------------------------------------------- v0: the flow of data, and the mask


def v0_flow_data():
    """The sizes that a run of v0 has on the example."""
    encoder, hparams, params = utils.load_model("tales")
    ids = encoder.encode(SENTENCE)
    logits = gpt2_v0.gpt2(ids, **params, n_head=hparams["n_head"])
    return {"T": len(ids), "n_embd": hparams["n_embd"], "n_layer": hparams["n_layer"], "logits": list(logits.shape)}


def draw_v0_flow(data, plt, c):
    figure, axes = empty_axes(plt, 3.5, 44)
    stream, above = 32, 12  # heights: of the x that all steps add to, and of the boxes that compute what is added
    axes.add_patch(plt.Rectangle((23.5, 1), 52, 40, facecolor=c.panel, edgecolor=c.grid))
    axes.text(49.5, 38, f"one block; there are {data['n_layer']}", ha="center", va="center", fontsize=11, color=c.dim)

    def box(x, y, width, text, face, size=11):
        drawing.cell(axes, x, y - 4.5, text, face, c.ink, size, c.line, width, 9)

    arrow(axes, c, (6, stream), (8.5, stream))
    arrow(axes, c, (20.5, stream), (79, stream))
    arrow(axes, c, (85, stream), (87, stream))
    box(0.5, stream, 5.5, "ids", c.ground)
    box(8.5, stream, 12, "wte[ids]\n+ wpe[:T]", c.pale_green)
    for x, norm, name, what, face in ((26, "ln_1", "mha", "from other tokens", c.pale_blue),
                                      (51, "ln_2", "ffn", "each by itself", c.pale_orange)):
        axes.plot([x, x], [stream, above + 8], color=c.line, linewidth=1.3)
        arrow(axes, c, (x, above + 9), (x, above + 4.5))
        arrow(axes, c, (x + 6.5, above), (x + 9, above))
        axes.plot([x + 17, x + 20.5], [above, above], color=c.line, linewidth=1.3)
        arrow(axes, c, (x + 20.5, above), (x + 20.5, stream - 2.6))
        box(x - 1.5, above, 8, norm, c.ground)
        box(x + 9, above, 8, name, face)
        axes.text(x + 8, above - 7.5, what, ha="center", va="center", fontsize=11, color=c.dim)
        axes.text(x + 20.5, stream, "+", ha="center", va="center", fontsize=15, color=c.ink, zorder=4, weight="bold",
                  bbox={"boxstyle": "circle,pad=0.12", "facecolor": c.ground, "edgecolor": c.line})
    for x in (36, 61.5):
        axes.text(x, stream + 2.2, "x, residual", ha="center", va="center", fontsize=10.5, color=c.dim)
    box(79, stream, 6, "ln_f", c.ground)
    box(87, stream, 12, "@ wte.T", c.pale_green)
    T, n_embd, shape = data["T"], data["n_embd"], data["logits"]
    for x, text in ((3, f"[T]\n[{T}]"), (14.5, f"x [T, n_embd]\n[{T}, {n_embd}]"),
                    (91.5, f"logits [T, n_vocab]\n{shape}")):
        axes.text(min(x, 89), stream - 9, text, ha="center", va="center", fontsize=10.5, color=c.dim, linespacing=1.4)
    return figure


def v0_mask_data():
    encoder, _, _ = utils.load_model("tales")
    tokens = token_names(encoder, encoder.encode(SENTENCE))
    return {"tokens": tokens, "mask": np.where(np.tri(len(tokens), dtype=bool), 0, -1e10).tolist()}


def draw_mask(axes, mask, tokens, c, pads=0):
    """A mask [T, T] with its numbers; the columns of pads are grey."""
    for q, row in enumerate(mask):
        for k, value in enumerate(row):
            face, color = (c.pale_blue, c.ink) if value == 0 else (c.pad, c.ink) if k < pads else (c.ground, c.dim)
            drawing.cell(axes, k, q, "0" if value == 0 else "−1e10", face, color, 11, c.grid)
    drawing.label_tokens(axes, tokens, c, 11)


def draw_v0_mask(data, plt, c):
    figure, axes = plt.subplots(figsize=(8, 3.9))
    draw_mask(axes, data["mask"], data["tokens"], c)
    return figure


def attention_data():
    """The weights of one head over the example."""
    encoder, hparams, params = utils.load_model("tales")
    ids = encoder.encode(SENTENCE)
    weights = attention.attention_weights([ids], params, hparams["n_head"])[LAYER, 0, HEAD]
    return {"layer": LAYER, "head": HEAD, "tokens": token_names(encoder, ids), "weights": rounded(weights)}


def draw_attention(data, plt, c):
    figure, axes = plt.subplots(figsize=(8, 3.9))
    drawing.draw_head(axes, np.array(data["weights"]), data["tokens"], c)
    return figure


# ---------------------------------------------------------------- v1: shapes


def v1_shapes_data():
    encoder, hparams, _ = utils.load_model("tales")
    return {"B": 2, "T": len(encoder.encode(SENTENCE)), "n_embd": hparams["n_embd"], "n_head": hparams["n_head"]}


def draw_v1_shapes(data, plt, c):
    figure, axes = empty_axes(plt, 7.6, 95)
    n_head, T, tall = data["n_head"], data["T"], 13  # the axis T is always 13 units high
    narrow = 2.1  # d_head
    wide = n_head * narrow  # n_embd

    def sheet(x, y, faces, width):
        """A row of B = 2 prompts one behind the other: strips of these colours, T lines."""
        for back in (1, 0):
            for i, face in enumerate(faces):
                corner = (x + i * width + 1.3 * back, y - 1.3 * back)
                axes.add_patch(plt.Rectangle(corner, width, tall, facecolor=face, edgecolor=c.ground, linewidth=0.7))
            corner = (x + 1.3 * back, y - 1.3 * back)
            frame = plt.Rectangle(corner, width * len(faces), tall, facecolor="none", edgecolor=c.ink, linewidth=0.9)
            axes.add_patch(frame)
        for t in range(1, T):
            axes.plot([x, x + width * len(faces)], [y + t * tall / T] * 2, color=c.ground, linewidth=0.7)

    def heads(x, y, face, width=narrow, gap=2.2):
        for h in range(n_head):
            sheet(x + h * (width + gap), y, [face], width)

    def label(x, y, text, color=c.ink, **options):
        axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 11, "color": color, **options})

    def code(x, y, text):
        label(x, y, text, c.dim, family="monospace", fontsize=10.5)

    colours = {"q": c.blue, "k": c.orange, "v": c.green}
    pale = {"q": c.pale_blue, "k": c.pale_orange, "v": c.pale_green}
    # x and c_attn
    sheet(8, 5, [c.pad], wide)
    arrow(axes, c, (5.5, 5), (5.5, 5 + tall))
    label(3.3, 5 + tall / 2, "T")
    arrow(axes, c, (8, 20.3), (8 + wide, 20.3))
    label(8 + wide / 2, 22.6, "n_embd")
    arrow(axes, c, (8 + wide + 0.8, 5 + tall), (8 + wide + 2.9, 3 + tall))
    label(8 + wide + 4.2, 4 + tall, "B")
    label(8 + wide / 2, 1.5, "x [B, T, n_embd]")
    code(36.5, 9.5, "c_attn")
    arrow(axes, c, (28, 11.5), (46, 11.5))
    strips = [shade[name] for name in "qkv" for h in range(n_head) for shade in ((pale, colours)[h % 2],)]
    sheet(49, 5, strips, narrow)
    for i, name in enumerate("qkv"):
        label(49 + (i + 0.5) * wide, 20.5, name, colours[name], weight="bold", fontsize=12)
    label(49 + 1.5 * wide, 1.5, "[B, T, 3*n_embd]")
    label(49 + 1.5 * wide, 23.4, "each strip is one head, d_head numbers wide", c.dim, fontsize=10.5)
    # the heads become an axis
    code(50, 27.2, "reshape, swapaxes(-2, -3), np.split")
    arrow(axes, c, (72, 25.2), (72, 29.5))
    for i, name in enumerate("qkv"):
        heads(6 + i * 32, 35, colours[name])
        label(18.5 + i * 32, 31.3, f"{name} [B, n_head, T, d_head]", colours[name])
    # scores
    code(38, 52.4, "q @ k.swapaxes(-1, -2)")
    arrow(axes, c, (18, 50), (18, 54.8))
    for h in range(n_head):
        x = 6 + h * (10.8 + 4.2)
        for back in (1, 0):
            corner = np.array([x + 1.3 * back, 58.5 - 1.3 * back])
            axes.add_patch(plt.Rectangle(corner, 10.8, tall, facecolor=c.ground, edgecolor=c.ink, linewidth=0.9))
            for t in range(T):
                size = (t + 1) * 10.8 / T, tall / T
                axes.add_patch(plt.Rectangle(corner + [0, t * tall / T], *size, facecolor=c.pad, edgecolor="none"))
    label(74, 54.4, "scores [B, n_head, T, T]")
    # the mean of the values, and the heads side by side again
    code(38, 75.5, "softmax(scores + mask) @ v")
    arrow(axes, c, (18, 73), (18, 77.8))
    heads(6, 81, c.green)
    code(46, 83.5, "swapaxes(-2, -3)")
    code(46, 86.2, "reshape")
    arrow(axes, c, (34, 88.5), (58, 88.5))
    sheet(61, 81, [pale["v"], colours["v"]] * (n_head // 2), narrow)
    label(87, 84.5, "[B, T, n_embd]")
    label(87, 88.5, "then c_proj", c.dim)
    return figure


# ---------------------------------------------------------------- v2: a ragged batch


def v2_ragged_data():
    """Tokens, mask and positions of a ragged batch, and the mask in attention of its shorter row."""
    encoder, _, _ = utils.load_model("tales")
    prompts = [encoder.encode(text) for text in (SENTENCE, SHORTER)]
    _, mask = gpt2_v2_padding.left_pad(prompts)
    positions = np.clip(np.cumsum(mask, axis=1) - 1, 0, None)
    visible = np.tri(mask.shape[1], dtype=bool) & (mask[1] == 1)
    tokens = [["pad"] * (mask.shape[1] - len(ids)) + token_names(encoder, ids) for ids in prompts]
    batch = {"tokens": tokens, "mask": mask.tolist(), "positions": positions.tolist()}
    return {**batch, "row_1": np.where(visible, 0, -1e10).tolist()}


def draw_v2_ragged(data, plt, c):
    tokens, mask, positions = data["tokens"], np.array(data["mask"]), data["positions"]
    B, T = mask.shape
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6.6), height_ratios=[2.3, 4.1])
    for b in range(B):
        for t in range(T):
            face = c.pale_blue if mask[b, t] else c.pad
            text = f"{tokens[b][t]}\nmask {mask[b, t]}\nposition {positions[b][t]}"
            drawing.cell(top, t, b, text, face, c.ink, 11, c.ground)
    top.set(xlim=(0, T), ylim=(B, 0))
    top.set_xticks([])
    top.set_yticks(np.arange(B) + 0.5, [f"row {b}" for b in range(B)], fontsize=11)
    top.tick_params(length=0, colors=c.ink)
    top.spines[:].set_visible(False)
    draw_mask(bottom, data["row_1"], tokens[1], c, pads=T - mask[1].sum())
    bottom.set_title("the mask of row 1 in attention", fontsize=12, color=c.ink, pad=10)
    return figure


# ---------------------------------------------------------------- v3: the cache, and time


def v3_cache_data():
    """Which slots of the cache are written after prefill and after each step of a generation of one row."""
    encoder, hparams, params = utils.load_model("tales")
    ids, n_new = encoder.encode(SENTENCE), 5
    T_max = len(ids) + n_new
    cache = gpt2_v3_kvcache.init_kv_cache(params["wte"], params["blocks"], hparams["n_head"], 1, T_max)
    cache["blocks"].fill(np.nan)
    ids, written = np.array([ids]), []
    for i in range(n_new):
        if i == 0:
            logits = gpt2_v3_kvcache.prefill(ids, params, hparams["n_head"], cache)
        else:
            logits = gpt2_v3_kvcache.decode_one_token(ids[:, -1], params, hparams["n_head"], cache)
        written.append(np.all(np.isfinite(cache["blocks"]), axis=(0, 1, 2, 3, 5)).astype(int).tolist())  # [T_max]
        ids = np.append(ids, np.argmax(logits, axis=-1)[:, None], axis=1)
    return {"tokens": token_names(encoder, ids[0]), "written": written, "shape": list(cache["blocks"].shape)}


def draw_v3_cache(data, plt, c):
    written, tokens = np.array(data["written"]), data["tokens"]
    n, T_max = written.shape
    figure, axes = plt.subplots(figsize=(8, 3.9))
    axes.set(xlim=(-2.1, T_max + 1.9), ylim=(n + 0.1, -1.9))
    axes.axis("off")
    for step in range(n):
        for t in range(T_max):
            new = written[step, t] and (step == 0 or not written[step - 1, t])
            face = c.orange if new else c.pale_blue if written[step, t] else c.ground
            drawing.cell(axes, t, step + 0.08, "", face, c.ink, 1, c.line, 1, 0.84)
        name = "prefill" if step == 0 else f"decode {step}"
        axes.text(-0.2, step + 0.5, name, ha="right", va="center", fontsize=11, color=c.ink)
        best = tokens[written[step].sum()]
        axes.text(T_max + 0.2, step + 0.5, f"→ {best}", ha="left", va="center", fontsize=11, color=c.ink)
    for t in range(T_max):
        axes.text(t + 0.5, -0.15, tokens[t], ha="center", va="bottom", fontsize=11, color=c.ink)
    axes.text(T_max + 0.2, -0.15, "chosen", ha="left", va="bottom", fontsize=11, color=c.dim)
    legend = {"written in this step": c.orange, "read, not computed again": c.pale_blue, "empty": c.ground}
    for x, (text, face) in zip((0, 4.1, 9.1), legend.items()):
        drawing.cell(axes, x, -1.7, "", face, c.ink, 1, c.line, 0.45, 0.45)
        axes.text(x + 0.6, -1.47, text, va="center", fontsize=11, color=c.ink)
    return figure


def v3_time_data():
    """Milliseconds per token along one text, without the cache and with it, as measured."""
    steps = measure.load(measure.SPEED)["steps"]
    return {name: [float(f"{1e3 * t:.3g}") for t in times] for name, times in steps.items()}


def draw_v3_time(data, plt, c):
    figure, axes = plt.subplots(figsize=(8, 4.0))
    labels = {"v2": "v2: the whole text again for each token", "v3": "v3: one token, keys and values from the cache"}
    for (name, text), color in zip(labels.items(), (c.orange, c.blue)):
        axes.plot(np.arange(2, len(data[name]) + 1), data[name][1:], color=color, linewidth=1.8, label=text)
    axes.set(xlim=(0, len(data["v2"])), ylim=(0, 1.05 * max(data["v2"][1:])))
    axes.set_xlabel("token generated", fontsize=11.5, color=c.ink)
    axes.set_ylabel("ms per token", fontsize=11.5, color=c.ink)
    axes.tick_params(labelsize=11, colors=c.dim)
    axes.grid(color=c.grid)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(c.line)
    axes.legend(fontsize=11.5, frameon=False, loc="upper left", labelcolor=c.ink)
    return figure


# ---------------------------------------------------------------- v4: one distribution


def v4_distribution_data(n_best=11):
    """Probabilities of the best tokens after a prompt, and of all others together, under several settings."""
    encoder, hparams, params = utils.load_model("tales")
    v4, ids = gpt2_v4_sampling, encoder.encode(SHORTER)
    logits = v4.gpt2([ids], **params, n_head=hparams["n_head"], n_logits=1)[0, -1]  # [n_vocab]
    best = np.argsort(-logits, kind="stable")[:n_best]
    shown = {}
    for name, temperature, top_k, top_p in (
        ("temperature 1", 1, 0, 1), ("temperature 0.5", 0.5, 0, 1), ("temperature 2", 2, 0, 1), ("top-k 4", 1, 4, 1),
        ("top-p 0.4", 1, 0, 0.4),
    ):  # fmt: skip
        weights = v4.keep_top_p(v4.softmax(v4.keep_top_k(logits, top_k) / temperature), top_p)
        p = weights / np.sum(weights)
        shares = [*rounded(p[best]), round(1 - float(p[best].sum()), 4)]
        shown[name] = [value or None for value in shares]  # None: ruled out
    names = [*token_names(encoder, best), f"{len(logits) - n_best:,} others"]
    return {"prompt": SHORTER, "tokens": names, "settings": shown}


def draw_v4_distribution(data, plt, c):
    settings, tokens = data["settings"], data["tokens"]
    figure, all_axes = plt.subplots(1, len(settings), figsize=(8, 4.3), sharey=True, sharex=True)
    y = np.arange(len(tokens)) + 0.35 * (np.arange(len(tokens)) == len(tokens) - 1)  # the others stand apart
    for axes, (name, p) in zip(all_axes, settings.items()):
        axes.barh(y, [value or 0 for value in p], color=[c.blue] * (len(p) - 1) + [c.pad], height=0.72)
        for height, value in zip(y, p):
            text = "out" if value is None else f"{value:.2f}" if value >= 0.005 else "<.01"
            axes.text((value or 0) + 0.03, height, text, va="center", fontsize=10, color=c.ink if value else c.dim)
        axes.set_title(name, fontsize=11, color=c.ink)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.spines["left"].set_color(c.line)
        axes.tick_params(length=0, colors=c.ink)
        axes.set_xticks([])
        axes.set(xlim=(0, 1.25), ylim=(y[-1] + 0.6, -0.6))
    all_axes[0].set_yticks(y, tokens, fontsize=11)
    figure.suptitle(f'the next token after "{data["prompt"]}"', fontsize=12, color=c.ink)
    return figure


# ---------------------------------------------------------------- v5: tiles


def v5_tiles_data():
    """The tiles of a weight, c_fc of block 0, and the rows of the ragged batch of v2's page, in blocks."""
    encoder, _, params = utils.load_model("tales")
    v5, weight = gpt2_v5_exact, params["blocks"][0]["mlp"]["c_fc"]["w"]
    tiles = v5.tile_params(params)["blocks"][0]["mlp"]["c_fc"]["w"]  # [n_parts, n_tiles, n_in/n_parts, 64]
    _, mask = v5.left_pad([encoder.encode(text) for text in (SENTENCE, SHORTER)])
    blocks = v5.in_blocks(np.ones((mask.size, 1)), v5.ROWS)  # [n_blocks, 8, 1]: 1 for a row, 0 for what fills up
    kinds = np.where(mask == 1, [[0], [1]], 2).ravel().tolist()  # prompt 0, prompt 1, pad
    kinds += [3] * (blocks.size - mask.size)
    return {"weight": list(weight.shape), "tiles": list(tiles.shape), "blocks": list(blocks.shape), "rows": kinds}


def draw_v5_tiles(data, plt, c):
    n_in, _ = data["weight"]
    _, n_tiles, _, width = data["tiles"]
    n_blocks, size, _ = data["blocks"]
    figure, axes = empty_axes(plt, 6.2, 77)
    left, wide, top, tall, tile = 5, 19, 37, 2.0, 5.3  # of x; of w each tile is `tile` wide
    right, block, chosen = 34, 2.0 * size, (1, 4)

    def label(x, y, text, color=c.ink, **options):
        axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 11, "color": color, **options})

    for i in range(n_tiles):  # the weight
        face = c.pale_orange if i == chosen[1] else c.panel
        drawing.cell(axes, right + i * tile, 5, "", face, c.ink, 1, c.line, tile - 0.6, 22)
    label(right + n_tiles * tile / 2, 2, f"w [{n_in}, {n_tiles * width}]: {n_tiles} tiles of [{n_in}, {width}]")
    faces = (c.pale_blue, c.pale_green, c.pad, c.ground)
    for b in range(n_blocks):  # the rows, and what comes out
        y = top + b * (block + 2)
        for i, kind in enumerate(data["rows"][b * size : (b + 1) * size]):
            drawing.cell(axes, left, y + i * tall, "", faces[kind], c.ink, 1, c.grid, wide, tall)
        frame = {"facecolor": "none", "edgecolor": c.orange if b == chosen[0] else c.line}
        axes.add_patch(plt.Rectangle((left, y), wide, block, linewidth=2 if b == chosen[0] else 1, **frame))
        for i in range(n_tiles):
            face = c.orange if (b, i) == chosen else c.ground
            drawing.cell(axes, right + i * tile, y, "", face, c.ink, 1, c.line, tile - 0.6, block)
    label(left + wide / 2, top - 6, f"x: {n_blocks} blocks of [{size}, {n_in}]")
    label(left + wide / 2, top - 2.7, "rows of the batch", c.dim, fontsize=10.5)
    x, y = right + (chosen[1] + 0.45) * tile, top + chosen[0] * (block + 2)
    arrow(axes, c, (x, 27.6), (x, y - 0.4))
    arrow(axes, c, (left + wide + 0.6, y + block / 2), (right + chosen[1] * tile - 0.4, y + block / 2))
    label(right + (chosen[1] + 1.3) * tile, top - 4.5, f"[{size}, {n_in}] @ [{n_in}, {width}] -> [{size}, {width}]",
          ha="left", fontsize=11)
    names = {"prompt 0": c.pale_blue, "prompt 1": c.pale_green, "pad": c.pad, "zeros": c.ground}
    for x, (text, face) in zip((5, 24, 43, 56), names.items()):
        drawing.cell(axes, x, 73.5, "", face, c.ink, 1, c.line, 3, 2)
        label(x + 4, 74.5, text, ha="left")
    return figure


# ---------------------------------------------------------------- v7 and v8: what a real run does, step by step


@contextlib.contextmanager
def recorded(module):
    """While this lasts, the list that it gives gets (ids, rows) of each forward pass of a version."""
    calls, gpt2 = [], module.gpt2

    def recording(input_ids, rows, *args, **options):
        calls.append((np.array(input_ids).tolist(), np.array(rows).tolist()))
        return gpt2(input_ids, rows, *args, **options)

    module.gpt2 = recording
    try:
        yield calls
    finally:
        module.gpt2 = gpt2


def held_out(encoder):
    """Tales that the bundled model was not trained on, in paragraphs."""
    path = utils.Path(__file__).resolve().parents[1] / "models" / "tales" / "held_out.txt"
    return path.read_text(encoding="utf-8").split("\n\n")


def v7_rows_data(n_texts=24, n_rows=8, most=60):
    """Greedy texts to the end of their paragraph, by v6 and by v7 -> [text, row, first step, step after it] of each."""
    encoder, hparams, params = utils.load_model("tales")
    params, n_head = gpt2_v7_continuous.tile_params(params), hparams["n_head"]
    prompts = [encoder.encode(text)[:6] for text in held_out(encoder) if len(text) > 100][:n_texts]
    new_line, batches, begin = encoder.encode("\n")[0], [], 0
    for first in range(0, n_texts, n_rows):
        lengths = collections.Counter()

        def count(row, token_id, logprob, lengths=lengths):
            lengths[row] += 1
            return token_id == new_line

        batch, mask = gpt2_v6_threads.left_pad(prompts[first : first + n_rows])
        gpt2_v6_threads.generate(batch, params, n_head, most, mask, on_token=count, progress=False)
        batches += [[first + row, row, begin, begin + n] for row, n in sorted(lengths.items())]
        begin += max(lengths.values())
    flat, chosen = {}, collections.Counter()
    with recorded(gpt2_v7_continuous) as calls:

        def place(text, token_id, logprob):
            step = len(calls) - 1
            row = list(dict.fromkeys(calls[step][1]))[chosen[step]]  # each row of a step chooses, in their order
            chosen[step] += 1
            flat.setdefault(text, [text, row, step, 0])[3] = step + 1
            return token_id == new_line

        gpt2_v7_continuous.generate(prompts, params, n_head, most, n_rows, on_token=place, progress=False)
    return {"n_rows": n_rows, "batches": batches, "continuous": [flat[text] for text in sorted(flat)]}


def draw_v7_rows(data, plt, c):
    n_rows, faces = data["n_rows"], (c.pale_blue, c.pale_green, c.pale_orange)
    last = max(end for *_, end in data["batches"])
    figure, panels = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True)
    names = {"batches": "v6, three batches, each as long as its longest row", "continuous": "v7, rows come and go"}
    for axes, (kind, name) in zip(panels, names.items()):
        places = data[kind]
        n_steps = max(end for *_, end in places)
        axes.add_patch(plt.Rectangle((0, 0), n_steps, n_rows, facecolor=c.pad, edgecolor="none"))
        for text, row, begin, end in places:
            number = str(text + 1) if end - begin > 2 * len(str(text + 1)) else ""
            drawing.cell(axes, begin, row, number, faces[text % 3], c.ink, 9, c.ground, end - begin)
        used = sum(end - begin for *_, begin, end in places) / (n_steps * n_rows)
        axes.set_title(f"{name}: {n_steps} steps, {used:.0%} of the places used", loc="left", fontsize=11, color=c.ink)
        axes.set(xlim=(0, last), ylim=(n_rows, 0))
        axes.set_yticks([0.5, n_rows - 0.5], ["1", f"{n_rows}"], fontsize=10)
        axes.set_ylabel("row", fontsize=11, color=c.dim)
        axes.tick_params(length=0, colors=c.dim, labelsize=10)
        axes.spines[:].set_visible(False)
    panels[1].set_xlabel("step; a number is that of a text, and grey is a place that is paid for and not used",
                         fontsize=11, color=c.dim)
    return figure


def v8_guesses_data(prompt="One day the wolf came to the door", n_new=90):
    """A greedy text by v8 -> for each step the right guesses, the token behind them, and the wrong guesses."""
    encoder, hparams, params = utils.load_model("tales")
    params, ids, steps = gpt2_v8_lookup.tile_params(params), encoder.encode(prompt), []
    with recorded(gpt2_v8_lookup) as calls:

        def keep(row, token_id, logprob):
            if len(steps) < len(calls):
                first = len(ids) if not steps else 1  # where the guesses begin among what is fed in
                steps.append({"guess": calls[-1][0][first:], "kept": []})
            steps[-1]["kept"].append(token_id)

        gpt2_v8_lookup.generate([ids], params, hparams["n_head"], n_new, on_token=keep, progress=False)
    found = []
    for step in steps:
        n = len(step["kept"]) - 1
        kept, wrong = token_names(encoder, step["kept"]), token_names(encoder, step["guess"][n:])
        found.append({"right": kept[:n], "own": kept[n:], "wrong": wrong})
    return {"prompt": prompt, "steps": found}


def draw_v8_guesses(data, plt, c):
    kinds = {"right": (c.pale_green, c.ink), "own": (c.pale_blue, c.ink), "wrong": (c.ground, c.orange)}
    tokens, x, y = [], 0, 0
    for step in data["steps"]:
        for kind in kinds:
            for text in step[kind]:
                width = 1.1 * len(text) + 1.2
                x, y = (0, y + 1) if x + width > 100 else (x, y)
                tokens.append((x, y, width, text, kind))
                x += width
        x += 0.8  # so that steps stand apart
    figure, axes = empty_axes(plt, 0.27 * (y + 3), y + 3)
    for x, line, width, text, kind in tokens:
        drawing.cell(axes, x, line, text, *kinds[kind], 9.5, c.orange if kind == "wrong" else c.grid, width, 0.84)
    names = {"own": "chosen by the model alone", "right": "guessed, and right", "wrong": "guessed, wrong, thrown away"}
    for x, (kind, name) in zip((0, 33, 60), names.items()):
        drawing.cell(axes, x, y + 2, "", *kinds[kind], 1, c.orange if kind == "wrong" else c.line, 3, 0.84)
        axes.text(x + 4, y + 2.42, name, ha="left", va="center", fontsize=11, color=c.ink)
    return figure


# ---------------------------------------------------------------- v9: the tree of a search


def v9_tree_data(n_beams=3, n_new=7):
    """The beams after each step of a search, each with its token, its sum and the beam it grew from; then the ended."""
    encoder, hparams, params = utils.load_model("tales")
    v9, ids = gpt2_v9_beam, encoder.encode(SHORTER)
    params, steps, grow = v9.tile_params(params), [], gpt2_v9_beam.grow

    def watch(search, *args, **settings):
        goes_on = grow(search, *args, **settings)
        steps.append([(beam[len(ids) :], total) for total, beam, _ in search["beams"]])
        return goes_on

    with mock.patch.object(v9, "grow", watch):
        (found,) = v9.beam_search([ids], params, hparams["n_head"], n_new, n_beams=n_beams, n_best=n_beams)
    steps[-1], before, tree = found, [[]], []
    for beams in steps:
        names = token_names(encoder, [beam[-1] for beam, _ in beams])
        parents = [before.index(beam[:-1]) for beam, _ in beams]
        tree.append([[*node, round(value, 4)] for *node, (_, value) in zip(names, parents, beams)])
        before = [beam for beam, _ in beams]
    (greedy,) = v9.generate([ids], params, hparams["n_head"], n_new, progress=False)
    return {"prompt": SHORTER, "steps": tree, "greedy": token_names(encoder, greedy)}


def draw_v9_tree(data, plt, c):
    steps, n_new = data["steps"], len(data["steps"])
    n_beams, apart, wide, tall, top = max(map(len, steps)), 13, 9.6, 8, 7
    figure, axes = empty_axes(plt, 3.7, apart * n_beams + 11, right=apart * n_new)
    grown_from = {(t - 1, parent) for t in range(1, n_new) for _, parent, _ in steps[t]}
    best, greedy = {}, {}  # step -> which beam of it
    for t in reversed(range(n_new)):
        best[t] = steps[t + 1][best[t + 1]][1] if t + 1 < n_new else 0
    for t, token in enumerate(data["greedy"]):
        found = [i for i, (name, parent, _) in enumerate(steps[t]) if (name, parent) == (token, greedy.get(t - 1, 0))]
        if not found:  # it is no beam any more
            break
        greedy[t] = found[0]
    for t, beams in enumerate(steps):
        is_last = t + 1 == n_new
        title = f"step {t + 1}" + "\nscore" * is_last
        axes.text(apart * t + 1 + wide / 2, 3, title, ha="center", va="center", fontsize=10.5, color=c.dim)
        for i, (token, parent, value) in enumerate(beams):
            x, y, color = apart * t + 1, apart * i + top, c.line
            color = c.blue if best[t] == i else c.orange if greedy.get(t) == i else color
            width = 1 if color == c.line else 2.2
            if t > 0:
                ends = apart * parent + top + tall / 2, y + tall / 2
                axes.plot([x - apart + wide, x], ends, color=color, linewidth=width, zorder=0)
            is_alive = is_last or (t, i) in grown_from
            face = c.pale_blue if best[t] == i else c.pale_orange if greedy.get(t) == i else c.grid
            text = f"{token}\n{value:.2f}".replace("-", "−")
            drawing.cell(axes, x, y, text, face if is_alive else c.ground, c.ink if is_alive else c.dim, 10.5, color,
                         wide, tall)
    legend = {"the best": c.pale_blue, "greedy": c.pale_orange, "another beam": c.grid, "not gone on with": c.ground}
    y = apart * n_beams + top
    for x, (text, face) in zip((1, 17, 31, 53), legend.items()):
        drawing.cell(axes, x, y, "", face, c.ink, 1, c.line, 2.6, 2.6)
        axes.text(x + 3.6, y + 1.3, text, va="center", fontsize=10.5, color=c.ink)
    return figure


# ---------------------------------------------------------------- all of them

DATA = {
    "v0_flow": v0_flow_data,
    "v0_mask": v0_mask_data,
    "attention": attention_data,
    "v1_shapes": v1_shapes_data,
    "v2_ragged": v2_ragged_data,
    "v3_cache": v3_cache_data,
    "v3_time": v3_time_data,
    "v4_distribution": v4_distribution_data,
    "v5_tiles": v5_tiles_data,
    "v7_rows": v7_rows_data,
    "v8_guesses": v8_guesses_data,
    "v9_tree": v9_tree_data,
}
DRAW = {
    "v0_flow": draw_v0_flow,
    "v0_mask": draw_v0_mask,
    "attention": draw_attention,
    "v1_shapes": draw_v1_shapes,
    "v2_ragged": draw_v2_ragged,
    "v3_cache": draw_v3_cache,
    "v3_time": draw_v3_time,
    "v4_distribution": draw_v4_distribution,
    "v5_tiles": draw_v5_tiles,
    "v7_rows": draw_v7_rows,
    "v8_guesses": draw_v8_guesses,
    "v9_tree": draw_v9_tree,
}
THEMES = {"": drawing.LIGHT, "_dark": drawing.DARK}  # what follows the name of a file, and the colours


def draw(name, data, theme, path, stamp=""):
    """Draw one picture as SVG, with letters as outlines so that no font is needed, and the stamp as its description."""
    plt, c = drawing.import_pyplot(), THEMES[theme]
    settings = {"svg.fonttype": "path", "svg.hashsalt": name, "font.family": "DejaVu Sans", "axes.facecolor": c.ground}
    with plt.rc_context({**plt.rcParamsDefault, **settings}):
        figure = DRAW[name](data, plt, c)
        figure.set_layout_engine("constrained")
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"metadata": {"Date": None, "Creator": None, "Description": stamp}} if path.suffix == ".svg" else {}
        figure.savefig(path, facecolor=c.ground, **kept)
        plt.close(figure)
