"""Tiny random models, and one way to call every version of the series.

The suite finds the versions in tools/versions.py, and what each can do by what it defines, so that a new version takes
part without an edit here.
"""
import functools
import importlib
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import versions

ROOT = Path(__file__).resolve().parents[1]

# ---- versions


class Version:
    """A file of the series, called in one way: with a list of prompts, each a list of ids, whatever it takes itself."""

    def __init__(self, path):
        self.name = path.stem
        self.number = int(re.match(r"gpt2_v(\d+)", self.name).group(1))
        self.module = importlib.import_module(self.name)
        self.batches = self.number > 0
        self.pads = hasattr(self.module, "left_pad")
        self.caches = hasattr(self.module, "prefill")  # with columns, the same for all rows of a batch
        self.is_flat = hasattr(self.module, "group_by_row")  # tokens with their rows and positions instead of a batch
        # From v5 on, weights are in tiles and all calls of BLAS have one shape, so they are others than before; and a
        # key's slot in the cache is its position and not its column.
        self.has_one_shape = hasattr(self.module, "tile_params")
        self.tiled = []  # (params of a model, the same in tiles)

    def params(self, model):
        """The model's params in the form that the version takes, made once for each of the last few models."""
        if not self.has_one_shape:
            return model.params
        known = [tiled for params, tiled in self.tiled if params is model.params]
        if not known:
            known = [like(self.module.tile_params(model.params), model.params["wte"])]
            self.tiled = [(model.params, known[0]), *self.tiled[:7]]
        return known[0]

    def weight(self, w):
        """A weight [n_in, n_out] in the form that `linear` takes."""
        if not self.has_one_shape:
            return w
        return self.module.tile_params({"wte": w, "blocks": [{"w": w}]})["blocks"][0]["w"]

    def logits(self, model, prompts):
        """gpt2 on all prompts, in one batch if the version has batches -> a list of [length of the prompt, n_vocab]."""
        if not self.batches:
            return [self.module.gpt2(ids, **self.params(model), n_head=model.n_head) for ids in prompts]
        if self.is_flat:
            return self.cached_logits(model, prompts, [max(map(len, prompts))])
        if not self.pads:
            return list(self.module.gpt2(prompts, **self.params(model), n_head=model.n_head))
        input_ids, mask = self.module.left_pad(prompts)
        logits = self.module.gpt2(input_ids, **self.params(model), n_head=model.n_head, attention_mask=mask)
        return real_rows(logits, prompts)

    def generate(self, model, prompts, n):
        """generate for all prompts, in one batch if the version has batches -> a list of lists of n ids."""
        if not self.batches:
            return [self.module.generate(ids, self.params(model), model.n_head, n) for ids in prompts]
        if not self.pads:  # which is a list of any lengths where is_flat
            return self.module.generate(prompts, self.params(model), model.n_head, n)
        input_ids, mask = self.module.left_pad(prompts)
        return self.module.generate(input_ids, self.params(model), model.n_head, n, attention_mask=mask)

    def new_cache(self, model, B, T_max):
        """An empty KV cache for versions that have one, full of NaN: memory that was never written must not matter."""
        cache = self.module.init_kv_cache(model.params["wte"], model.params["blocks"], model.n_head, B, T_max)
        cache["blocks"].fill(np.nan)
        return cache

    def n_slots(self, T_max):
        """The slots of a cache for T_max tokens: with one shape, whole blocks of 64."""
        return -(-T_max // 64) * 64 if self.has_one_shape else T_max

    def keys_and_values(self, cache, prompts):
        """What a cache holds for padded prompts -> for each [n_layer, 2, n_head, length of the prompt, d_head]."""
        T = cache["length"]
        found = []
        for b, ids in enumerate(prompts):
            first = 0 if self.has_one_shape else T - len(ids)
            found.append(cache["blocks"][:, :, b, :, first : first + len(ids)])
        return found

    def cached_logits(self, model, prompts, pieces, spare=0):
        """As `logits`, with the columns of the padded batch given to gpt2 in pieces of these widths, through one cache.

        spare: slots of the cache that stay empty.
        """
        if self.is_flat:
            return self.flat_logits(model, prompts, pieces, spare)
        input_ids, mask = self.module.left_pad(prompts)
        B, T = input_ids.shape
        assert sum(pieces) == T
        cache, parts, start = self.new_cache(model, B, T + spare), [], 0
        for width in pieces:
            stop = start + width
            known = {"attention_mask": mask[:, start:stop], "kv_cache": cache}
            parts.append(self.module.gpt2(input_ids[:, start:stop], **self.params(model), n_head=model.n_head, **known))
            start = stop
        return real_rows(np.concatenate(parts, axis=1), prompts)

    def flat_logits(self, model, prompts, pieces, spare):
        """The same tokens in each call, without the pads, and with logits of all of them."""
        T = max(map(len, prompts))
        assert sum(pieces) == T
        cache, parts, start = self.new_cache(model, len(prompts), T + spare), [[] for _ in prompts], 0
        for width in pieces:
            columns = [(row, start + i - T + len(ids)) for row, ids in enumerate(prompts) for i in range(width)]
            rows, positions = zip(*[place for place in columns if place[1] >= 0])
            input_ids = [prompts[row][position] for row, position in zip(rows, positions)]
            known = {"n_head": model.n_head, "kv_cache": cache, "wanted": range(len(rows))}
            logits = self.module.gpt2(input_ids, rows, positions, **self.params(model), **known)
            for row, row_logits in zip(rows, logits):
                parts[row].append(row_logits)
            start += width
        return [np.array(part) for part in parts]

    def __repr__(self):
        return self.name


def like(tree, array):
    """New arrays in dicts and lists -> the same, of the array's class, which may count, and as read-only as it is."""
    if isinstance(tree, dict):
        return {key: like(value, array) for key, value in tree.items()}
    if isinstance(tree, list):
        return [like(value, array) for value in tree]
    if not isinstance(tree, np.ndarray):
        return tree
    tree = tree.view(type(array))
    tree.flags.writeable = tree.flags.writeable and array.flags.writeable
    return tree


def real_rows(array, prompts):
    """A padded batch [B, T, ...] -> a list with the real positions of each prompt, [length of the prompt, ...]."""
    return [row[len(row) - len(ids) :] for row, ids in zip(array, prompts)]


VERSIONS = [Version(ROOT / f"{version.file}.py") for version in versions.VERSIONS]
V0 = VERSIONS[0]


def first_and_last(some):
    """Versions as parameters, for what code does that they share: the first and the last, and as `slow` the others."""
    first, *between, last = some
    return [first, *(pytest.param(version, marks=pytest.mark.slow) for version in between), last]


def last_of(some):
    """As `first_and_last`, with the first as `slow` too."""
    return [pytest.param(version, marks=pytest.mark.slow) for version in some[:-1]] + some[-1:]


ENDS = first_and_last(VERSIONS)
BATCHING = [version for version in VERSIONS if version.batches and not version.is_flat]
PADDING = [version for version in VERSIONS if version.pads]
CACHING = [version for version in VERSIONS if version.caches]
FLAT = [version for version in VERSIONS if version.is_flat]
NEIGHBOURS = list(zip(VERSIONS, VERSIONS[1:]))
MODEL = {"gelu", "softmax", "layer_norm", "linear", "ffn", "attention", "mha", "transformer_block", "gpt2"}


def where_the_model_is_new(some):
    """Versions, or pairs of neighbours, as parameters: `slow` where the model is that of the version before.

    To the byte, that is, as test_diff.py makes sure. Their `generate` is tested for every version.
    """
    parameters = []
    for one in some:
        version = one if isinstance(one, Version) else one[1]
        entry = versions.VERSIONS[version.number]
        same = version.number > 0 and not MODEL & (entry.changed | entry.new)
        values = [one] if isinstance(one, Version) else one
        parameters.append(pytest.param(*values, marks=[pytest.mark.slow] * same))
    return parameters


# ---- models


class Model(NamedTuple):
    params: dict
    n_head: int
    n_vocab: int
    n_ctx: int


@functools.cache
def random_model(dtype=np.longdouble, n_vocab=17, n_ctx=64, n_embd=12, n_head=3, n_layer=2, seed=0):
    """A model with random weights, the same one for each dtype up to rounding.

    Nothing is 0 or 1, no bias and no gain, and weights are large enough for peaked attention and for gelu's bend: a
    part of the model that is left out or wrong shows. Arrays are read-only: a version that writes into them fails.
    """
    rng = np.random.default_rng(seed)

    def normal(*shape, std, mean=0):
        array = dtype(std) * rng.standard_normal(shape).astype(dtype) + dtype(mean)  # uses all bits of a longdouble
        array.flags.writeable = False
        return array

    def linear(n_in, n_out):
        return {"w": normal(n_in, n_out, std=1.4 / n_in**0.5), "b": normal(n_out, std=0.2)}

    def layer_norm():
        return {"g": normal(n_embd, std=0.3, mean=1), "b": normal(n_embd, std=0.1)}

    def block():
        return {
            "ln_1": layer_norm(),
            "attn": {"c_attn": linear(n_embd, 3 * n_embd), "c_proj": linear(n_embd, n_embd)},
            "ln_2": layer_norm(),
            "mlp": {"c_fc": linear(n_embd, 4 * n_embd), "c_proj": linear(4 * n_embd, n_embd)},
        }

    params = {
        "wte": normal(n_vocab, n_embd, std=0.3),
        "wpe": normal(n_ctx, n_embd, std=1),
        "blocks": [block() for _ in range(n_layer)],
        "ln_f": layer_norm(),
    }
    return Model(params, n_head, n_vocab, n_ctx)


SIZES = {
    "tiny": {"n_vocab": 17, "n_embd": 12, "n_head": 3, "n_layer": 2},
    "odd": {"n_vocab": 23, "n_embd": 35, "n_head": 5, "n_layer": 1},  # no size is even, so no BLAS kernel fits it whole
    "wide": {"n_vocab": 50, "n_embd": 64, "n_head": 4, "n_layer": 1},
}


def position_model(n_ctx=8):
    """A model that says where it is: the best id after each token is the position that the token was given.

    It has no blocks: its state is 10 * (one-hot of the position) + (one-hot of the id), and its output matrix the
    identity.
    """
    identity = np.eye(n_ctx)
    ln_f = {"g": np.ones(n_ctx), "b": np.zeros(n_ctx)}
    params = {"wte": identity, "wpe": 10 * identity, "blocks": [], "ln_f": ln_f}
    return Model(params, n_head=1, n_vocab=n_ctx, n_ctx=n_ctx)


def random_prompts(lengths, n_vocab=17, seed=0):
    """Prompts of these lengths, each a list of ids."""
    rng = np.random.default_rng(seed)
    return [rng.integers(n_vocab, size=length).tolist() for length in lengths]


# ---- assertions


def assert_same_bits(actual, expected):
    """Two arrays, or two lists of arrays, are equal to the last bit, in dtype and shape too, and hold no NaN."""
    if isinstance(expected, list):
        assert len(actual) == len(expected) > 0
        for a, e in zip(actual, expected):
            assert_same_bits(a, e)
        return
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert expected.size > 0
    assert np.all(np.isfinite(expected))  # assert_array_equal takes NaN for equal to NaN
    np.testing.assert_array_equal(actual, expected)
