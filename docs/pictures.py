"""The pictures of the pages: what each shows (DATA), and how that is drawn (DRAW). docs/build.py calls both.

The data comes from the bundled model through the functions of the versions, and is kept beside the picture as JSON; to
draw it needs matplotlib, to compare it does not. All pictures are 8 inches wide, to be read at 800 pixels, on white.
"""
from pathlib import Path

import numpy as np

import attention
import gpt2_v1_batching
import gpt2_v2_padding
import gpt2_v3_kvcache
import gpt2_v4_sampling
import measure
import utils

INK, DIM, PALE, GREY, LINE = "#222222", "#5f5f5f", "#eef3f8", "#c9c9c9", "#8a8a8a"
BLUE, PALE_BLUE, ORANGE = "#1f6fb4", "#9dc3e6", "#c05a2b"
RAGGED = ("One day", "There was a poor woodcutter who", "The king's daughter said")


def rounded(array):
    """Numbers with four decimals, for JSON."""
    return np.round(np.asarray(array, dtype=float), 4).tolist()


def token_names(encoder, ids):
    """Tokens as text, with the space that most begin with as a low line."""
    return [encoder.decode([i]).replace(" ", "␣").replace("\n", "⏎") for i in ids]


# ---------------------------------------------------------------- v1: shapes


def v1_shapes_data():
    """The shapes that go through v1, recorded from a run with two prompts of five tokens."""
    encoder, hparams, params = utils.load_model("tales")
    ids = [encoder.encode(text)[:5] for text in ("Once upon a time there", "The king said to the")]
    seen, kept = [], {}
    for name in ("linear", "attention"):
        kept[name] = getattr(gpt2_v1_batching, name)

        def recorded(*args, name=name, **options):
            result = kept[name](*args, **options)
            seen.append([name, [list(args[0].shape), list(result.shape)]])
            return result

        setattr(gpt2_v1_batching, name, recorded)
    try:
        one_block = {**params, "blocks": params["blocks"][:1]}
        logits = gpt2_v1_batching.gpt2(ids, **one_block, n_head=hparams["n_head"])
    finally:
        for name, function in kept.items():
            setattr(gpt2_v1_batching, name, function)
    sizes = {"B": 2, "T": 5, **{key: hparams[key] for key in ("n_embd", "n_head", "n_layer", "n_vocab")}}
    return {"sizes": sizes, "shapes": seen, "logits": list(logits.shape)}


def draw_v1_shapes(data, plt):
    s = data["sizes"]
    B, T, H = s["B"], s["T"], s["n_head"]
    qkv, heads, projected, hidden, back, logits = (shapes for _, shapes in data["shapes"])
    rows = [  # what happens, its shape, the shape in this run
        ("input_ids", "[B, T]", [B, T]),
        ("wte[input_ids] + wpe[:T]", "[B, T, n_embd]", qkv[0]),
        (f"one block of {s['n_layer']}:", "", ""),
        ("c_attn", "[B, T, 3*n_embd]", qkv[1]),
        ("reshape, transpose", "3 of [B, n_head, T, d_head]", heads[0]),
        ("q @ k.swapaxes(-1, -2)", "[B, n_head, T, T]", [B, H, T, T]),
        ("softmax(...) @ v", "[B, n_head, T, d_head]", heads[1]),
        ("swapaxes, reshape", "[B, T, n_embd]", projected[0]),
        ("c_proj", "[B, T, n_embd]", projected[1]),
        ("c_fc, gelu", "[B, T, 4*n_embd]", hidden[1]),
        ("c_proj", "[B, T, n_embd]", back[1]),
        ("ln_f, wte.T", "[B, T, n_vocab]", logits[1]),
    ]
    block = range(2, 11)
    figure, axes = plt.subplots(figsize=(8, 6.2))
    axes.set(xlim=(0, 100), ylim=(len(rows) - 0.3, -1.7))
    axes.axis("off")
    for x, text in ((4, "step"), (57, "shape"), (88, f"with B = {B}, T = {T}")):
        axes.text(x, -1.2, text, fontsize=12, weight="bold", ha="left" if x == 4 else "center", va="center", color=INK)
    axes.add_patch(plt.Rectangle((0.5, block[0] - 0.5), 99, len(block), facecolor=PALE, edgecolor="none"))
    for y, (step, formula, shape) in enumerate(rows):
        style = {"fontsize": 12, "va": "center", "family": "monospace"}
        if not formula:
            axes.text(4, y, step, color=BLUE, fontsize=12, va="center")
            continue
        axes.text(4, y, step, color=INK, **style)
        label = axes.text(57, y, formula, ha="center", color=INK, **style)
        axes.annotate(
            "B", xy=((formula.index("[B") + 1.5) / len(formula), 0.5), xycoords=label, ha="center", weight="bold",
            color=ORANGE, bbox={"facecolor": PALE if y in block else "white", "edgecolor": "none", "pad": 0.5}, **style,
        )  # fmt: skip
        axes.text(88, y, str(shape), ha="center", color=DIM, **style)
        if y:
            arrow, start = {"arrowstyle": "->", "color": LINE}, y - 0.85 - (y == block[0] + 1)
            axes.annotate("", xy=(2.2, y - 0.15), xytext=(2.2, start), arrowprops=arrow)
    return figure


# ---------------------------------------------------------------- v2: a ragged batch


def v2_ragged_data():
    """Tokens, mask and positions of a ragged batch, and the attention weights of its row of middle length."""
    encoder, hparams, params = utils.load_model("tales")
    prompts = [encoder.encode(text) for text in RAGGED]
    input_ids, mask = gpt2_v2_padding.left_pad(prompts)
    positions = np.clip(np.cumsum(mask, axis=1) - 1, 0, None)
    row = sorted(range(len(prompts)), key=lambda b: len(prompts[b]))[1]
    weights = attention.attention_weights(input_ids, params, hparams["n_head"], mask)[0, row, 0]
    tokens = [["pad"] * (mask.shape[1] - len(ids)) + token_names(encoder, ids) for ids in prompts]
    batch = {"tokens": tokens, "mask": mask.tolist(), "positions": positions.tolist()}
    return {**batch, "row": row, "weights": rounded(weights)}


def draw_v2_ragged(data, plt):
    tokens, mask, positions = data["tokens"], np.array(data["mask"]), data["positions"]
    B, T = mask.shape
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 8.4), height_ratios=[2.1 * B, 1.0 * T + 2])
    for axes in (top, bottom):
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.xaxis.tick_top()
    for b in range(B):
        for t in range(T):
            real = mask[b, t]
            face, color = (PALE, INK) if real else (GREY, DIM)
            top.add_patch(plt.Rectangle((t - 0.5, b - 0.5), 1, 1, edgecolor="white", linewidth=2, facecolor=face))
            size = 10.5 if len(tokens[b][t]) < 8 else 9
            top.text(t, b - 0.28, tokens[b][t], ha="center", va="center", fontsize=size, color=color)
            top.text(t, b + 0.03, f"mask {mask[b, t]}", ha="center", va="center", fontsize=10, color=color)
            color = BLUE if real else DIM
            top.text(t, b + 0.31, f"pos {positions[b][t]}", ha="center", va="center", fontsize=10, color=color)
    top.set(xlim=(-0.5, T - 0.5), ylim=(B - 0.5, -0.5))
    top.set_xticks([])
    top.set_yticks(range(B), [f"row {b}" for b in range(B)], fontsize=11)
    top.set_title("input_ids, attention_mask and position_ids; pads are grey", fontsize=12.5)
    row, weights = data["row"], np.array(data["weights"])
    for q in range(T):
        for k in range(T):
            w, pad = weights[q, k], not (mask[row, q] and mask[row, k])
            shade = plt.get_cmap("Blues")(0.08 + 0.85 * w)
            face = GREY if pad else shade if k <= q else "white"
            bottom.add_patch(plt.Rectangle((k - 0.5, q - 0.5), 1, 1, facecolor=face, edgecolor="#dddddd"))
            if k <= q and not pad:
                color = "white" if w > 0.55 else INK
                bottom.text(k, q, f"{w:.2f}", ha="center", va="center", fontsize=10.5, color=color)
    bottom.set(xlim=(-0.5, T - 0.5), ylim=(T - 0.5, -0.5))
    bottom.set_xticks(range(T), tokens[row], fontsize=9.5)
    bottom.set_yticks(range(T), tokens[row], fontsize=10.5)
    bottom.xaxis.set_label_position("top")
    bottom.set_xlabel("key", fontsize=11)
    bottom.set_ylabel("query", fontsize=11)
    bottom.set_title(f"attention weights of row {row}, layer 0, head 0", fontsize=12.5)
    return figure


# ---------------------------------------------------------------- v3: the cache, and time


def v3_cache_data():
    """Which slots of the cache are written after prefill and after each step of a generation of one row."""
    encoder, hparams, params = utils.load_model("tales")
    ids, n_new = encoder.encode("There was once a king who"), 5
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


def draw_v3_cache(data, plt):
    written, tokens = np.array(data["written"]), data["tokens"]
    n, T_max = written.shape
    figure, axes = plt.subplots(figsize=(8, 4.3))
    axes.set(xlim=(-2.1, T_max + 1.7), ylim=(n + 0.75, -1.75))
    axes.axis("off")
    for step in range(n):
        for t in range(T_max):
            new = written[step, t] and (step == 0 or not written[step - 1, t])
            face = ORANGE if new else PALE_BLUE if written[step, t] else "white"
            axes.add_patch(plt.Rectangle((t, step + 0.08), 1, 0.84, facecolor=face, edgecolor=LINE))
        name = "prefill" if step == 0 else f"decode {step}"
        axes.text(-0.2, step + 0.5, name, ha="right", va="center", fontsize=11.5, color=INK)
        best = tokens[written[step].sum()]
        axes.text(T_max + 0.2, step + 0.5, f"→ {best}", ha="left", va="center", fontsize=11, color=INK)
    for t in range(T_max):
        axes.text(t + 0.5, -0.15, tokens[t], ha="center", va="bottom", fontsize=9.5, color=INK)
    axes.text(T_max + 0.2, -0.15, "argmax", ha="left", va="bottom", fontsize=10, color=DIM)
    legend = (0, ORANGE, "written in this step"), (4.1, PALE_BLUE, "read, not computed again"), (9, "white", "empty")
    for x, face, text in legend:
        axes.add_patch(plt.Rectangle((x, -1.55), 0.45, 0.42, facecolor=face, edgecolor=LINE))
        axes.text(x + 0.6, -1.34, text, va="center", fontsize=10.5, color=INK)
    shape = f"kv_cache[\"blocks\"]: [n_layer, 2, B, n_head, T_max, d_head] = {data['shape']}; drawn is the axis T_max"
    axes.text(T_max / 2, n + 0.5, shape, ha="center", va="center", fontsize=10, color=DIM)
    return figure


def v3_time_data():
    """Milliseconds per token along one text, without the cache and with it, as measured."""
    steps = measure.load(measure.SPEED)["steps"]
    return {name: [float(f"{1e3 * t:.3g}") for t in times] for name, times in steps.items()}


def draw_v3_time(data, plt):
    figure, axes = plt.subplots(figsize=(8, 4.2))
    labels = {"v2": "v2: the whole text again for each token", "v3": "v3: one token, keys and values from the cache"}
    for (name, text), color in zip(labels.items(), (ORANGE, BLUE)):
        axes.plot(np.arange(2, len(data[name]) + 1), data[name][1:], color=color, linewidth=1.8, label=text)
    axes.set(xlim=(0, len(data["v2"])), ylim=(0, 1.05 * max(data["v2"][1:])))
    axes.set_xlabel("token generated", fontsize=11.5)
    axes.set_ylabel("ms per token", fontsize=11.5)
    axes.tick_params(labelsize=10.5)
    axes.grid(color="#e4e4e4")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=11.5, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3)
    return figure


# ---------------------------------------------------------------- v4: one distribution


PROMPT = "The wolf opened his"


def v4_distribution_data():
    """The best tokens after a prompt and their probabilities under several settings."""
    encoder, hparams, params = utils.load_model("tales")
    ids = encoder.encode(PROMPT)
    logits = gpt2_v4_sampling.gpt2([ids], **params, n_head=hparams["n_head"], n_logits=1)[:, -1]  # [1, n_vocab]
    settings = {
        "temperature 1": {}, "temperature 0.5": {"temperature": 0.5}, "temperature 2": {"temperature": 2.0},
        "top-k 4": {"top_k": 4}, "top-p 0.9": {"top_p": 0.9},
    }  # fmt: skip
    best = np.argsort(-logits[0], kind="stable")[:14]
    shown = {}
    for name, options in settings.items():
        p = probabilities(logits, **options)[best]
        shown[name] = [value if exact > 0 else None for value, exact in zip(rounded(p), p)]  # None: ruled out
    return {"prompt": PROMPT, "tokens": token_names(encoder, best), "settings": shown}


def probabilities(logits, temperature=1.0, top_k=0, top_p=1.0):
    """What v4 draws from: its own temperature and top-k; top-p by its definition, since `draw` never sorts."""
    v4 = gpt2_v4_sampling
    p = v4.softmax(v4.apply_temperature(v4.keep_top_k(logits, top_k), temperature))[0]
    order = np.argsort(-p, kind="stable")
    before = np.cumsum(p[order]) - p[order]  # probability of the tokens ahead of each
    p[order[before >= top_p - 1e-6]] = 0
    return p / p.sum()


def draw_v4_distribution(data, plt):
    settings, tokens = data["settings"], data["tokens"]
    figure, all_axes = plt.subplots(1, len(settings), figsize=(8, 4.6), sharey=True, sharex=True)
    limit = max(p[0] for p in settings.values())
    y = np.arange(len(tokens))
    for axes, (name, p) in zip(all_axes, settings.items()):
        axes.barh(y, [value or 0 for value in p], color=BLUE, height=0.72)
        for i, value in enumerate(p):
            text = "out" if value is None else f"{value:.2f}" if value >= 0.005 else "<.01"
            color = DIM if value is None else INK
            axes.text((value or 0) + 0.03 * limit, i, text, va="center", fontsize=9, color=color)
        axes.set_title(name, fontsize=11)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks([])
        axes.set(xlim=(0, 1.42 * limit), ylim=(len(tokens) - 0.4, -0.6))
    all_axes[0].set_yticks(y, tokens, fontsize=10.5)
    figure.suptitle(f'next token after "{data["prompt"]}": the best {len(tokens)} and their probabilities', fontsize=12)
    return figure


# ---------------------------------------------------------------- attention

SENTENCE = "The king said to the old woman that the king was dead"


def attention_data():
    """The weights of one head over a sentence: a head of those that look at earlier words more than at the first."""
    encoder, hparams, params = utils.load_model("tales")
    ids = encoder.encode(SENTENCE)
    weights = attention.attention_weights([ids], params, hparams["n_head"])[:, 0]  # [n_layer, n_head, T, T]
    # The most telling head: most weight, over all queries, on one key that is neither the first nor the query itself.
    others = weights * np.tri(len(ids), k=-1)
    others[..., 0] = 0
    layer, head = np.unravel_index(np.argmax(others.max(axis=-1).sum(axis=-1)), weights.shape[:2])
    chosen = {"layer": int(layer), "head": int(head)}
    return {**chosen, "tokens": token_names(encoder, ids), "weights": rounded(weights[layer, head])}


def draw_attention(data, plt):
    figure, axes = plt.subplots(figsize=(8, 6.6))
    title = f"attention weights, layer {data['layer']}, head {data['head']}"
    attention.draw_head(axes, np.array(data["weights"]), data["tokens"], title)
    return figure


# ---------------------------------------------------------------- all of them

DATA = {
    "v1_shapes": v1_shapes_data,
    "v2_ragged": v2_ragged_data,
    "v3_cache": v3_cache_data,
    "v3_time": v3_time_data,
    "v4_distribution": v4_distribution_data,
    "attention": attention_data,
}
DRAW = {
    "v1_shapes": draw_v1_shapes,
    "v2_ragged": draw_v2_ragged,
    "v3_cache": draw_v3_cache,
    "v3_time": draw_v3_time,
    "v4_distribution": draw_v4_distribution,
    "attention": draw_attention,
}


def draw(name, data, path, stamp):
    """Draw one picture as SVG, with letters as outlines so that no font is needed, and the stamp as its description."""
    plt = attention.import_pyplot()
    settings = {"svg.fonttype": "path", "svg.hashsalt": name, "font.family": "DejaVu Sans"}
    with plt.rc_context({**plt.rcParamsDefault, **settings}):
        figure = DRAW[name](data, plt)
        figure.set_layout_engine("constrained")
        metadata = {"Date": None, "Creator": None, "Description": stamp}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, facecolor="white", metadata=metadata)
        plt.close(figure)
