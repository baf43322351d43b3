"""gpt2_v5_exact.py: the same bits in float32, whatever the batch, the padding, the cache or the pieces.

What is marked `blas` is repeated by test_blas_kernels.py under the kernels that OpenBLAS has for other processors, with
one thread and with several, since how rows are rounded is up to those.
"""
import functools
import hashlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import verify as tool
from tiny import ROOT, VERSIONS, assert_same_bits, random_model, random_prompts

import gpt2_v5_exact as v5
import utils

V5 = next(version for version in VERSIONS if version.number == 5)

V4 = next(version for version in VERSIONS if version.number == 4)
# On both sides of blocks of 4 and 8 rows and of 64 keys.
LENGTHS = [1, 4, 5, 8, 9, 17, 63, 64, 65, 127, 129, 190]
PIECES = {"whole": [190], "halves": [100, 90], "ragged": [1, 7, 8, 9, 63, 64, 37, 1], "steps": [187, 1, 1, 1]}
SIZES = {
    "tiny": {"n_vocab": 17, "n_embd": 12, "n_head": 3, "n_layer": 2},
    "odd": {"n_vocab": 23, "n_embd": 35, "n_head": 5, "n_layer": 1},
    "768 wide": {"n_vocab": 50, "n_embd": 768, "n_head": 12, "n_layer": 2},  # as GPT-2 124M
}
WIDE = pytest.param("768 wide", marks=pytest.mark.slow)  # all lengths; the default run has the shorter ones, at the end


SHALLOW = {**SIZES["768 wide"], "n_layer": 1}


def model_of(size, dtype=np.float32):
    return random_model(dtype, n_ctx=192, **SIZES[size])


@pytest.mark.blas
@pytest.mark.parametrize("size", ["tiny", "odd", WIDE])
def test_a_prompt_has_the_same_bits_alone_and_in_any_batch(size):
    model = model_of(size)
    prompts = random_prompts(LENGTHS, model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    batch = V5.logits(model, prompts)
    differ = [len(ids) for ids, x, y in zip(prompts, batch, alone) if not np.array_equal(x, y)]
    assert differ == [], f"of prompts of {LENGTHS} tokens, these lengths have other bits in the batch: {differ}"
    assert_same_bits(batch, alone)
    assert_same_bits(V5.logits(model, prompts[::-1]), alone[::-1])
    assert_same_bits(V5.logits(model, prompts[2:5]), alone[2:5])  # padded less, with fewer rows and fewer keys


@pytest.mark.blas
@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("size", ["tiny", WIDE])
def test_a_prompt_has_the_same_bits_through_the_cache_in_any_pieces(size, pieces):
    model = model_of(size)
    prompts = random_prompts(LENGTHS, model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.cached_logits(model, prompts, PIECES[pieces], spare=70), alone)


@pytest.mark.blas
@pytest.mark.parametrize("size", ["tiny", "odd"])
def test_64_rows_and_each_of_them_alone(size):
    model = model_of(size)
    prompts = random_prompts([*range(1, 64), 70], model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.logits(model, prompts), alone)
    assert_same_bits(V5.cached_logits(model, prompts, [3, 60, 1, 1, 5]), alone)


@pytest.mark.blas
def test_in_a_batch_and_through_the_cache_at_the_width_of_124m():
    model = random_model(np.float32, n_ctx=192, **SHALLOW)
    prompts = random_prompts([1, 9, 65], model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.logits(model, prompts), alone)
    assert_same_bits(V5.cached_logits(model, prompts, [9, 55, 1]), alone)


@pytest.mark.blas
@pytest.mark.parametrize("n_in", [768, 3072, 4000, 6400])
@pytest.mark.parametrize("n_out", [64, 100])
def test_a_row_is_multiplied_alike_in_any_company(n_in, n_out):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((70, n_in), dtype=np.float32)
    w, b = rng.standard_normal((n_in, n_out), dtype=np.float32), rng.standard_normal(n_out, dtype=np.float32)
    tiles = v5.tile_params({"wte": x[:5, :4], "blocks": [{"w": w}]})["blocks"][0]["w"]
    expected = v5.linear(x, tiles, b)
    np.testing.assert_allclose(expected, x.astype(float) @ w + b, rtol=1e-4, atol=1e-3)
    for rows in ([3], [69, 0], [7, 7, 7, 1], list(range(5)), list(range(9, 42)), list(range(70))[::-1]):
        assert_same_bits(v5.linear(x[rows], tiles, b), expected[rows])
        assert_same_bits(v5.linear(x[rows][:, None], tiles, b), expected[rows][:, None])


def test_tiles_are_the_weight_in_pieces():
    """n_parts is the smallest number of equal parts of at most 1023 rows; columns are filled up with zeros."""
    for n_in, n_parts in [(64, 1), (1023, 1), (1024, 2), (3072, 4), (6400, 8), (4000, 4)]:
        w = np.random.default_rng(0).standard_normal((n_in, 70), dtype=np.float32)
        params = v5.tile_params({"wte": w[:60, :20], "blocks": [{"c_fc": {"w": w, "b": w[0]}}]})
        tiles = params["blocks"][0]["c_fc"]["w"]
        assert tiles.shape == (n_parts, 2, n_in // n_parts, 64) and tiles.flags.c_contiguous
        whole = tiles.transpose(0, 2, 1, 3).reshape(n_in, 128)
        assert_same_bits(whole[:, :70], w)
        assert not np.any(whole[:, 70:])
        assert params["blocks"][0]["c_fc"]["b"] is not None
        assert_same_bits(params["head"]["w"][0, 0][:, :60], w[:60, :20].T)


@pytest.mark.blas
def test_near_to_v4():
    model = random_model(np.float32, n_ctx=192, **SHALLOW)
    prompts = random_prompts([3, 9, 65], model.n_vocab)
    for actual, expected in zip(V5.logits(model, prompts), V4.logits(model, prompts)):
        assert np.max(np.abs(actual - expected)) < 1e-4 * np.max(np.abs(expected))


@pytest.mark.parametrize("size", ["tiny", pytest.param("odd", marks=pytest.mark.slow)])
def test_in_longdouble_the_same_bits_as_v4_up_to_a_block_of_keys(size):
    """NumPy multiplies this type itself and adds in order, and there is one block to add."""
    model = model_of(size, np.longdouble)
    prompts = random_prompts([1, 9, 33, 64], model.n_vocab)
    assert_same_bits(V5.logits(model, prompts), V4.logits(model, prompts))
    assert_same_bits(V5.cached_logits(model, prompts, [5, 58, 1]), V4.logits(model, prompts))


@pytest.mark.parametrize("size", ["tiny", pytest.param("odd", marks=pytest.mark.slow)])
def test_in_longdouble_the_same_bits_alone_and_in_a_batch_beyond_a_block_of_keys(size):
    model = model_of(size, np.longdouble)
    prompts = random_prompts([1, 64, 65, 130], model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.logits(model, prompts), alone)
    assert_same_bits(V5.cached_logits(model, prompts, [50, 70, 10]), alone)


HASH = """
import hashlib
import numpy as np
from test_exact import LENGTHS, V5, model_of, random_prompts

model = model_of("768 wide")
logits = np.concatenate(V5.logits(model, random_prompts(LENGTHS[:8], model.n_vocab)))
print(hashlib.sha256(logits.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2", "4"])
def test_the_number_of_blas_threads_changes_no_bit(threads):
    """As does the whole of `pytest -m kernels`."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    child = subprocess.run([sys.executable, "-c", HASH], cwd=ROOT, env=environment, capture_output=True, check=True)
    model = model_of("768 wide")
    logits = np.concatenate(V5.logits(model, random_prompts(LENGTHS[:8], model.n_vocab)))
    assert child.stdout == hashlib.sha256(logits.tobytes()).hexdigest().encode() + os.linesep.encode()


@pytest.mark.blas
@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 1.0, "top_p": 0.95, "top_k": 12, "repetition_penalty": 1.1}],
    ids=["greedy", "sampled"],
)
def test_100_texts_of_50_tokens_are_the_same_alone_and_in_batches(sampling):
    model = model_of("tiny")
    params = V5.params(model)
    rng = np.random.default_rng(0)
    prompts = random_prompts(rng.integers(1, 140, size=100), model.n_vocab)

    def texts(batch):
        input_ids, mask = v5.left_pad([prompts[i] for i in batch])
        seeds = {"seed": [(3, int(i)) for i in batch]} if sampling else {}
        return v5.generate(input_ids, params, model.n_head, 50, mask, **seeds, **sampling)

    order = rng.permutation(100)
    batched = {i: ids for batch in np.split(order, [1, 4, 20, 60]) for i, ids in zip(batch, texts(batch))}
    different = [i for i in range(100) if texts([i])[0] != batched[i]]
    assert different == []


def rounding(worse):
    """np.matmul in np.longdouble, so that no kernel of BLAS has a say in it, with `worse` blocks of rows rounded
    otherwise in their first row. worse: a function of the number of rows."""

    def matmul(x, w):
        y = (np.asarray(x, np.longdouble) @ np.asarray(w, np.longdouble)).astype(w.dtype)
        if worse(y.shape[-2]):
            y[..., 0, :] = np.nextafter(y[..., 0, :], np.inf, dtype=y.dtype)
        return y

    return matmul


@pytest.fixture
def forget():
    """What was found out about BLAS is forgotten, before a test and after."""
    v5.fewest_rows.cache_clear()
    yield
    v5.fewest_rows.cache_clear()


def test_blocks_of_4_are_used_where_they_round_as_blocks_of_8_do(monkeypatch, forget):
    monkeypatch.setattr(np, "matmul", rounding(lambda rows: False))
    assert v5.fewest_rows(12, 64, np.dtype(np.float32)) == 4
    v5.fewest_rows.cache_clear()
    monkeypatch.setattr(np, "matmul", rounding(lambda rows: rows < 8))
    assert v5.fewest_rows(12, 64, np.dtype(np.float32)) == 8


def test_a_blas_that_rounds_slots_differently_is_refused(monkeypatch, forget):
    monkeypatch.setattr(np, "matmul", rounding(lambda rows: rows == 8))
    with pytest.raises(utils.UserError, match="BLAS rounds the rows of a block differently"):
        v5.tile_params(model_of("tiny").params)


@pytest.mark.blas
def test_where_4_and_8_rows_do_not_agree_all_blocks_have_8(monkeypatch):
    """The same bits still, and no product has less than 8 rows, but for the sums of weights."""
    monkeypatch.setattr(v5, "fewest_rows", lambda *shape: 8)
    sizes, in_blocks = set(), v5.in_blocks
    monkeypatch.setattr(v5, "in_blocks", lambda *args: (y := in_blocks(*args), sizes.add(y.shape[-2]))[0])
    model = model_of("tiny")
    prompts = random_prompts([1, 4, 5, 9, 65], model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.logits(model, prompts), alone)
    assert_same_bits(V5.cached_logits(model, prompts, [61, 1, 1, 1, 1]), alone)
    assert sizes == {8}


@pytest.mark.blas
@pytest.mark.parametrize("d_head", [1, 4, 7, 12, 64, 80])
def test_what_is_found_out_about_blas_is_true(d_head):
    """Each slot of a block of 8, and of 4 where these are used, with other neighbours, rounds a row as any other."""
    rng = np.random.default_rng(3)
    for n, m in ((d_head, 64), (64, d_head)):
        tile = rng.standard_normal((n, m), dtype=np.float32)
        for w in (tile, np.asfortranarray(tile)):
            x = rng.standard_normal((8, n), dtype=np.float32)
            expected = x @ w
            for size in {8, v5.fewest_rows(n, m, w.dtype)}:
                for slot in range(size):
                    block = rng.standard_normal((8, size, n), dtype=np.float32)
                    block[:, slot] = x
                    assert_same_bits((block @ w)[:, slot], expected)


def test_pads_and_slots_that_were_never_written_do_not_matter():
    model = model_of("tiny")
    prompts = random_prompts([3, 70], model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.cached_logits(model, prompts, [70], spare=100), alone)  # its cache begins full of NaN
    assert_same_bits(V5.cached_logits(model, prompts, [68, 1, 1], spare=100), alone)


def test_a_block_of_the_cache_is_written_when_it_is_entered():
    """Not all of it at the start: memory that is never used is never touched."""
    model = model_of("tiny")
    cache = V5.new_cache(model, 2, 192)
    for n_tokens, n_written in ((60, 64), (3, 64), (1, 64), (1, 128), (64, 192)):
        v5.gpt2(random_prompts([n_tokens] * 2), **V5.params(model), n_head=3, kv_cache=cache)
        untouched = np.any(np.isnan(cache["blocks"]), axis=(0, 1, 2, 3, 5))
        assert np.flatnonzero(untouched).tolist() == [*range(n_written, 192)]


def test_keys_that_no_query_sees_are_not_multiplied(monkeypatch):
    """A prompt of 192 tokens has 3 chunks of 64 queries, which see 1, 2 and 3 blocks of keys."""
    model, seen = model_of("tiny"), []
    softmax = v5.softmax
    monkeypatch.setattr(v5, "softmax", lambda x, out: (seen.append(x.shape), softmax(x, out))[1])
    V5.logits(model, random_prompts([192]))
    assert seen == [(1, 3, 64, 64), (1, 3, 64, 128), (1, 3, 64, 192)] * 2


@pytest.mark.blas
@pytest.mark.parametrize("n_rows", [1, 4, 5, 8, 33])
def test_rows_are_normed_alike_in_any_company(n_rows):
    rng = np.random.default_rng(1)
    for width in (12, 35, 768):
        x = rng.standard_normal((40, 3, width), dtype=np.float32)
        g, b = rng.standard_normal((2, width), dtype=np.float32)
        for function in (v5.gelu, functools.partial(v5.layer_norm, g=g, b=b)):
            assert_same_bits(function(x[5 : 5 + n_rows]), function(x)[5 : 5 + n_rows])
            assert_same_bits(function(x[5 : 5 + n_rows, -1:]), function(x)[5 : 5 + n_rows, -1:])


# ---- tools/verify.py


def verify(*arguments, **environment):
    """-> exit status and output of the command."""
    command = [sys.executable, "tools/verify.py", *arguments]
    environment = {**os.environ, **environment}
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    return child.returncode, child.stdout, child.stderr


@pytest.mark.slow
def test_verify_counts_no_bit():
    status, out, err = verify("--max_length", "9")
    assert status == 0, err
    assert ", BLAS: " in out and "one BLAS thread:" in out and "all BLAS threads (" in out and "a new process:" in out
    assert "in pieces: 145 rows, " in out and "one token at a time: 145 rows, " in out
    assert "logits compared, 0 bits differ" in out.splitlines()[-2]
    assert len(out.splitlines()[-1].removeprefix("hash of the logits: ")) == 64


@pytest.mark.slow
@pytest.mark.parametrize("version", [version.name for version in VERSIONS])
def test_verify_any_version(version):
    status, out, _ = verify(version, "--max_length", "40")
    number = int(re.search("gpt2_v([0-9]+)", version)[1])
    assert status in ((0,) if number >= 5 else (0, 1))
    assert out.count("bits differ") > 3 and "hash of the logits: " in out
    if number > 5:
        assert out.splitlines()[-1] == verify("gpt2_v5_exact", "--max_length", "40")[1].splitlines()[-1]


def test_verify_fails_where_bits_differ(monkeypatch, tmp_path, capsys):
    """A version like v5 in which the weights are added as np.sum likes to."""
    def softmax(x, out):
        x -= np.max(x, axis=-1, keepdims=True)
        np.exp(x, out=x)
        x /= np.sum(x, axis=-1, keepdims=True)

    monkeypatch.setattr(v5, "softmax", softmax)
    monkeypatch.setattr(tool, "ROWS", (1, 3))
    tool.measure("gpt2_v5_exact", "tales", "models", 150, 0, tmp_path / "logits.npy")
    found = json.loads(capsys.readouterr().out)
    assert sum(bits for _, _, bits in found["ways"].values()) > 0


def test_verify_counts_bits():
    a = np.array([1.0, 2.0], np.float32)
    assert tool.bits_that_differ(a, a.copy()) == 0
    assert tool.bits_that_differ(a, np.nextafter(a, np.float32(0))) > 1
    assert tool.bits_that_differ(np.zeros(2, np.float32), -np.zeros(2, np.float32)) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["gpt2_v77"], "no version 'gpt2_v77'; there are gpt2_v0, "),
        (["utils"], "no version 'utils'"),
        (["--max_length", "0"], "T_max must be"),
        (["--seed", "-1"], "seed must be"),
    ],
    ids=str,
)
def test_a_verify_that_would_compare_nothing_is_refused(edge, arguments, message):
    result = edge(tool.verify, *arguments)
    assert (result.returncode, result.stdout) == (2, "") and message in result.stderr


@pytest.mark.extra
@pytest.mark.slow
def test_any_lengths_orders_pieces_and_batches():
    import hypothesis
    from hypothesis import strategies as st

    model = model_of("tiny")
    all_ids = random_prompts([150] * 20, model.n_vocab)

    @hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
    @hypothesis.given(st.data())
    def check(data):
        lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=12))
        prompts = [ids[:length] for ids, length in zip(data.draw(st.permutations(all_ids)), lengths)]
        pieces, left = [], max(lengths)
        while left:
            pieces.append(data.draw(st.integers(1, left)))
            left -= pieces[-1]
        alone = [V5.logits(model, [ids])[0] for ids in prompts]
        assert_same_bits(V5.logits(model, prompts), alone)
        assert_same_bits(V5.cached_logits(model, prompts, pieces), alone)

    check()
