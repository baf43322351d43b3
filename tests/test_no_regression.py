"""What must not grow, counted instead of timed: a change that makes a version slow goes red on any machine.

Counted are the products that NumPy hands to BLAS, their multiplications, and the bytes of new arrays.
"""
import functools
import math
import tracemalloc

import numpy as np
import pytest
from tiny import BATCHING, CACHING, VERSIONS, random_model, where_the_model_is_new

MATRIX_PRODUCTS = ("matmul", "matvec", "vecmat", "vecdot")  # those of NumPy's ufuncs that sum products
UNCOUNTED = ("dot", "vdot", "inner", "tensordot", "einsum")  # functions that would escape the count
every_version = pytest.mark.parametrize("version", where_the_model_is_new(CACHING), ids=str)
ONE_BLAS_CALL_A_PRODUCT = [version for version in CACHING if not version.has_one_shape]


class Counted(np.ndarray):
    """An array that writes down every matrix product in which it, or anything computed from it, takes part."""

    products = []  # of the operands' shapes

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        arrays = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(x) if isinstance(x, Counted) else x for x in out)
        result = getattr(ufunc, method)(*arrays, **options)
        if ufunc.__name__ in MATRIX_PRODUCTS:
            Counted.products.append((np.shape(arrays[0]), np.shape(arrays[1])))
        if out is not None:
            return out[0]
        return result.view(Counted) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function, types, arguments, options):
        assert function.__name__ not in UNCOUNTED, f"np.{function.__name__} is not counted here: write it with @"
        return super().__array_function__(function, types, arguments, options)


def counted(tree):
    """Arrays in dicts and lists -> the same, counted."""
    if isinstance(tree, dict):
        return {key: counted(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [counted(value) for value in tree]
    return tree.view(Counted) if isinstance(tree, np.ndarray) else tree


def count(function):
    """Call it -> the products it made, as a list of (BLAS calls, rows of each, length of its sums, columns)."""
    Counted.products = []
    function()
    found = []
    for a, b in Counted.products:
        a, b = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
        assert a[-1] == b[-2]
        found.append((math.prod(np.broadcast_shapes(a[:-2], b[:-2])), a[-2], a[-1], b[-1]))
    return found


def multiplications(products):
    return sum(math.prod(product) for product in products)


def weights_of(model):
    """How many weights a token is multiplied with on its way to its logits."""
    linears = [part for block in model.params["blocks"] for part in (*block["attn"].values(), *block["mlp"].values())]
    return sum(linear["w"].size for linear in linears)


def after_prompt(version, model, B, T, T_max):
    """A cache that holds a random prompt of T tokens in each of B rows, with room for T_max in all."""
    cache = version.new_cache(model, B, T_max)
    ids = np.random.default_rng(T).integers(0, model.n_vocab, (B, T))
    version.module.prefill(ids, version.params(model), model.n_head, cache)
    return cache


def decode_step(version, model, cache, B):
    """-> a function that decodes one token per row."""
    params = version.params(model)
    return lambda: version.module.decode_one_token(np.zeros(B, int), params, model.n_head, cache)


def counted_decode(version, B, n_past):
    """The products of a decode step behind n_past tokens -> (model, products)."""
    model = random_model(np.float32, n_ctx=200)
    model = model._replace(params=counted(model.params))
    cache = counted(after_prompt(version, model, B, n_past, T_max=200))
    return model, count(decode_step(version, model, cache, B))


# ---- products


@pytest.mark.parametrize("B", [1, 2, 3, 8])
@pytest.mark.parametrize("version", where_the_model_is_new(ONE_BLAS_CALL_A_PRODUCT), ids=str)
def test_a_decode_step_makes_no_more_blas_calls_than_it_must(version, B):
    model, products = counted_decode(version, B, n_past=20)
    n_layer = len(model.params["blocks"])
    assert len(products) <= 7 * n_layer + 1  # 4 linear ones; scores, their sums, weighted values; logits
    per_linear = B if B <= 2 else 1  # two matrix-vector products are faster than one of matrices
    per_head = 3 * B * model.n_head
    assert sum(calls for calls, *_ in products) <= n_layer * (4 * per_linear + per_head) + per_linear
    if B <= 2:
        assert all(rows == 1 for _, rows, *_ in products)


@pytest.mark.parametrize("B", [1, 2, 3, 8])
@pytest.mark.parametrize("version", where_the_model_is_new(ONE_BLAS_CALL_A_PRODUCT), ids=str)
def test_a_decode_step_multiplies_each_weight_once_per_row(version, B):
    n_past = 20
    model, products = counted_decode(version, B, n_past)
    n_embd = model.params["wte"].shape[1]
    per_key = 2 * n_embd + model.n_head  # a score, its share of their sum, a weighted value, in all heads
    attention = len(model.params["blocks"]) * (n_past + 1) * per_key
    assert multiplications(products) <= B * (weights_of(model) + model.params["wte"].size + attention)


@every_version
def test_only_attention_grows_with_the_tokens_before(version):
    early, late = (counted_decode(version, 3, n_past)[1] for n_past in (5, 60))  # of one block of keys, in v5
    assert len(early) == len(late)
    assert sum(calls for calls, *_ in early) == sum(calls for calls, *_ in late)
    model, later = counted_decode(version, 3, n_past=150)
    n_embd, n_layer = model.params["wte"].shape[1], len(model.params["blocks"])
    # A full pass would add all weights for each of the tokens. A block of keys may be rounded up to 64, a row to 8.
    most = 8 * n_layer * 3 * (145 + 64) * (2 * n_embd + 2 * model.n_head)
    assert multiplications(later) - multiplications(early) <= most


@pytest.mark.parametrize("version", where_the_model_is_new(v for v in BATCHING if not v.has_one_shape), ids=str)
def test_a_batch_reads_each_weight_once(version):
    """In a full pass of 3 rows or more, each linear layer is one BLAS call for the whole batch."""
    model = random_model(np.float32)
    params = counted(version.params(model))
    ids = np.random.default_rng(0).integers(0, model.n_vocab, (5, 9))
    products = count(lambda: version.module.gpt2(ids, **params, n_head=model.n_head))
    linear = [product for product in products if product[1] == 5 * 9]
    assert len(linear) == 4 * len(params["blocks"]) + 1
    assert all(calls == 1 for calls, *_ in linear)


@pytest.mark.parametrize("version", VERSIONS[:1], ids=str)
def test_v0_makes_the_products_of_the_formulas_and_no_more(version):
    model = random_model(np.float32)
    params, n_layer = counted(model.params), len(model.params["blocks"])
    products = count(lambda: version.module.gpt2(list(range(9)), **params, n_head=model.n_head))
    assert len(products) <= n_layer * (4 + 3 * model.n_head) + 1


# ---- logits


@pytest.mark.parametrize("version", CACHING, ids=str)
def test_generation_makes_logits_for_one_position_per_row(version):
    model = random_model(np.float32, n_vocab=101)  # of no other size here
    model = model._replace(params=counted(model.params))
    prompts = [list(range(40)), list(range(9)), list(range(17))]
    products = count(lambda: version.generate(model, prompts, 6))
    if version.has_one_shape:  # no other product here is of two tiles, and 101 tokens are; 4 rows fill up a block
        products = [(n_rows, 101) for calls, n_rows, _, n_columns in products if (calls, n_columns) == (2, 64)]
    else:
        products = [(calls * n_rows, n_columns) for calls, n_rows, _, n_columns in products]
    rows = [n_rows for n_rows, n_columns in products if n_columns == 101]
    assert len(rows) == 6 and max(rows) <= (4 if version.has_one_shape else len(prompts))


@pytest.mark.parametrize("version", CACHING, ids=str)
def test_a_prompt_goes_through_the_model_once(version):
    """Not once per chunk, and not once more for the first token: multiplications are those of a pass over 40 tokens."""
    model = random_model(np.float32)
    model = model._replace(params=counted(model.params))
    B, T, n_new = 3, 40, 6
    products = count(lambda: version.generate(model, [list(range(1, 11)) * 4] * B, n_new))
    n_embd, n_layer, n_tokens = model.params["wte"].shape[1], len(model.params["blocks"]), T + n_new - 1
    if version.has_one_shape:
        n_tokens, T = T + 8 * (n_new - 1), 64
    weights = B * n_tokens * weights_of(model) + 8 * n_new * model.params["wte"].size
    attention = n_layer * B * n_tokens * (T + n_new) * (2 * n_embd + 2 * model.n_head)
    assert multiplications(products) <= weights + attention


# ---- memory


def peak_bytes(function):
    """Call it -> bytes of what it had in memory at once, at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@every_version
def test_no_step_copies_a_part_of_the_cache(version):
    """A copy of one layer's keys would already be more than all new arrays of a step."""
    model = random_model(np.float32, n_vocab=50, n_ctx=700, n_embd=128, n_head=2, n_layer=1)
    cache = after_prompt(version, model, 2, T=600, T_max=650)
    keys = cache["blocks"].nbytes / 2
    step = decode_step(version, model, cache, 2)
    step()  # whatever is allocated only once
    assert peak_bytes(step) < keys
    large = version.new_cache(model, B=2, T_max=20_000)
    ids = np.array([[1, 2, 3]] * 2)
    prefill = functools.partial(version.module.prefill, ids, version.params(model), model.n_head, large)
    assert peak_bytes(prefill) < large["blocks"].nbytes / 2 / 20


@every_version
def test_what_a_decode_step_allocates_grows_by_scores_alone(version):
    model = random_model(np.float32, n_vocab=50, n_ctx=1000, n_embd=128, n_head=2, n_layer=1)
    peaks = {}
    for n_past in (100, 800):
        cache = after_prompt(version, model, 2, n_past, T_max=900)
        step = decode_step(version, model, cache, 2)
        step()
        peaks[n_past] = peak_bytes(step)
    scores = 2 * 2 * (800 - 100) * 4  # of 2 rows and 2 heads
    if version.has_one_shape:
        scores *= 8  # blocks of 8 queries
    masks = 2 * (800 - 100) * 8 * 4  # as integers, positions, booleans and numbers
    assert peaks[800] - peaks[100] < 4 * scores + masks


@every_version
def test_the_cache_stays_where_it_is_and_what_it_holds_is_not_written_again(version):
    model = random_model(np.float32)
    cache = after_prompt(version, model, 3, T=20, T_max=30)
    array, before = cache["blocks"], cache["blocks"].copy()
    decode_step(version, model, cache, 3)()
    assert cache["blocks"] is array
    changed = np.any((array != before) & ~(np.isnan(array) & np.isnan(before)), axis=(0, 1, 2, 3, 5))
    assert np.flatnonzero(changed).tolist() == [20]
    assert cache["length"] == 21


@every_version
def test_a_long_prompt_needs_no_array_of_all_pairs_of_tokens(version):
    """A prompt is taken in pieces: scores of each token with each other would be larger than all else here."""
    model = random_model(np.float32, n_vocab=50, n_ctx=1024, n_embd=16, n_head=4)
    ids = np.random.default_rng(0).integers(0, 50, (1, 1000))
    cache = version.new_cache(model, 1, 1000)
    scores = 4 * 1000 * 1000 * 4
    peak = peak_bytes(lambda: version.module.prefill(ids, version.params(model), model.n_head, cache))
    assert peak < 0.75 * scores
