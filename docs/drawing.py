"""What the pictures share: colours for light and for dark pages, and the heat map of attention weights."""
from types import SimpleNamespace

import numpy as np

import utils

LIGHT = SimpleNamespace(
    ground="#ffffff", ink="#1f2328", dim="#59636e", line="#8a939d", grid="#d9dee3", panel="#eef3f8", pad="#c9ced4",
    blue="#1f6fb4", pale_blue="#a9cdeb", orange="#c2571f", pale_orange="#f2c3a4", green="#2b7a4b", pale_green="#b5dcc3",
    low="#eef3f8", high="#08519c",
)  # fmt: skip
DARK = SimpleNamespace(
    ground="#0d1117", ink="#e6edf3", dim="#9da7b3", line="#7d8590", grid="#30363d", panel="#161d27", pad="#3d444d",
    blue="#58a6ff", pale_blue="#234a77", orange="#f0883e", pale_orange="#6b3a18", green="#56d38a", pale_green="#1f5034",
    low="#161d27", high="#6cb6ff",
)  # fmt: skip


def import_pyplot():
    try:
        import matplotlib
    except ImportError:
        raise utils.UserError("drawing needs matplotlib: pip install -e '.[docs]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def shade(c, weight):
    """The colour of a weight from 0 to 1, and one for letters upon it."""
    low, high = (np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) for color in (c.low, c.high))
    face = low + (high - low) * weight
    dark_face = face.mean() < 140
    return tuple(face / 255), "#ffffff" if dark_face else "#1f2328"


def cell(axes, x, y, text, face, color, size, edge, width=1, height=1):
    """A rectangle with a text in its middle; x and y are those of its corner."""
    import matplotlib.patches

    axes.add_patch(matplotlib.patches.Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, linewidth=0.8))
    middle = {"ha": "center", "va": "center"}
    axes.text(x + width / 2, y + height / 2, text, fontsize=size, color=color, **middle)


def label_tokens(axes, tokens, c, size, rotation=0):
    """Tokens as the labels of rows, the queries, and of columns, the keys."""
    T = len(tokens)
    axes.set(xlim=(0, T), ylim=(T, 0))
    turned = {"rotation": rotation, "ha": "left", "rotation_mode": "anchor"} if rotation else {}
    axes.set_xticks(np.arange(T) + 0.5, tokens, fontsize=size, **turned)
    axes.set_yticks(np.arange(T) + 0.5, tokens, fontsize=size)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("key: the token that is looked at", fontsize=size, color=c.dim, labelpad=7)
    axes.set_ylabel("query: the token that looks", fontsize=size, color=c.dim)
    axes.tick_params(length=0, colors=c.ink)
    axes.spines[:].set_visible(False)


def draw_head(axes, weights, tokens, c=LIGHT, numbers=True, size=11, rotation=0):
    """Draw weights [T, T] as a heat map with the tokens on both axes; the future stays empty."""
    for t in range(len(tokens)):
        for s in range(t + 1):
            face, color = shade(c, weights[t, s])
            cell(axes, s, t, f"{weights[t, s]:.2f}" if numbers else "", face, color, size, c.ground)
    label_tokens(axes, tokens, c, size, rotation)
