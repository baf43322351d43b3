"""gpt2_v5_exact.py: the same bits in float32, whatever the batch, the padding, the cache or the pieces.

What is marked `blas` is repeated by test_blas_kernels.py under the kernels that OpenBLAS has for other processors, with
one thread and with two, since how rows are rounded is up to those.
"""
import sys

import numpy as np
import pytest
from tiny import V0, VERSIONS, Model, assert_same_bits, random_model, random_prompts

import gpt2_v4_sampling as v4
import gpt2_v5_exact as v5
import utils

V5 = next(version for version in VERSIONS if version.number == 5)

# On both sides of blocks of 8 rows and of 64 keys, and longer than the largest blocks of rows together.
LENGTHS = [1, 7, 8, 9, 17, 63, 64, 65, 127, 128, 129, 190]
SHORTER = [1, 8, 9, 64, 65, 72]
PIECES = {"whole": [190], "halves": [100, 90], "ragged": [1, 7, 8, 9, 63, 64, 37, 1], "steps": [187, 1, 1, 1]}
SIZES = {
    "tiny": {"n_vocab": 17, "n_embd": 12, "n_head": 3, "n_layer": 2},
    "odd": {"n_vocab": 23, "n_embd": 35, "n_head": 5, "n_layer": 1},
    "768 wide": {"n_vocab": 50, "n_embd": 768, "n_head": 12, "n_layer": 2},  # as GPT-2 124M
}
WIDE = pytest.param("768 wide", marks=pytest.mark.slow)  # all lengths; the default run has the shorter ones, at the end


def model_of(size, dtype=np.float32, larger_blocks=False):
    model = random_model(dtype, n_ctx=192, **SIZES[size])
    return model._replace(params=v5.with_row_blocks(model.params, model.n_head)) if larger_blocks else model


@pytest.mark.blas
@pytest.mark.parametrize("larger_blocks", [False, True], ids=["8 rows", "larger blocks"])
@pytest.mark.parametrize("size", ["tiny", "odd", WIDE])
def test_a_prompt_has_the_same_bits_alone_and_in_any_batch(size, larger_blocks):
    model = model_of(size, larger_blocks=larger_blocks)
    prompts = random_prompts(LENGTHS, model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.logits(model, prompts), alone)
    assert_same_bits(V5.logits(model, prompts[::-1]), alone[::-1])
    assert_same_bits(V5.logits(model, prompts[2:5]), alone[2:5])  # padded less, with fewer rows and fewer keys


@pytest.mark.blas
@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("size", ["tiny", WIDE])
def test_a_prompt_has_the_same_bits_through_the_cache_in_any_pieces(size, pieces):
    model = model_of(size, larger_blocks=True)
    prompts = random_prompts(LENGTHS, model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.cached_logits(model, prompts, PIECES[pieces], spare=70), alone)


@pytest.mark.blas
@pytest.mark.parametrize("size", ["tiny", "odd", WIDE])
def test_larger_blocks_of_rows_change_no_bit(size):
    prompts = random_prompts(LENGTHS, SIZES[size]["n_vocab"])
    assert_same_bits(V5.logits(model_of(size, larger_blocks=True), prompts), V5.logits(model_of(size), prompts))


@pytest.mark.blas
def test_in_a_batch_and_through_the_cache_at_the_width_of_124m():
    model = model_of("768 wide")
    prompts = random_prompts(SHORTER, model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.logits(model, prompts), alone)
    assert_same_bits(V5.cached_logits(model, prompts, [9, 60, 1, 1, 1]), alone)


@pytest.mark.blas
def test_near_to_v4():
    model = model_of("768 wide")
    prompts = random_prompts([3, 9, 65], model.n_vocab)
    input_ids, mask = v4.left_pad(prompts)
    expected = v4.gpt2(input_ids, **model.params, n_head=model.n_head, attention_mask=mask)
    actual = v5.gpt2(input_ids, **model.params, n_head=model.n_head, attention_mask=mask)
    assert np.max(np.abs(actual - expected)[mask > 0]) < 1e-4 * np.max(np.abs(expected))


@pytest.mark.parametrize("size", ["tiny", "odd"])
def test_in_longdouble_the_same_bits_as_v0(size):
    """With more keys than a block has, too: NumPy adds products of this type in order, so v5 takes all keys at once."""
    model = model_of(size, np.longdouble)
    prompts = random_prompts([1, 9, 64, 65, 130], model.n_vocab)
    assert_same_bits(V5.logits(model, prompts), V0.logits(model, prompts))


@pytest.mark.blas
@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 1.0, "top_p": 0.95, "top_k": 12, "repetition_penalty": 1.1}],
    ids=["greedy", "sampled"],
)
def test_100_texts_of_50_tokens_are_the_same_alone_and_in_batches(sampling):
    model = model_of("tiny")
    rng = np.random.default_rng(0)
    prompts = random_prompts(rng.integers(1, 140, size=100), model.n_vocab)

    def texts(batch):
        input_ids, mask = v5.left_pad([prompts[i] for i in batch])
        seeds = [(3, int(i)) for i in batch]
        return v5.generate(input_ids, model.params, model.n_head, 50, mask, seed=seeds, **sampling)

    order = rng.permutation(100)
    batched = {i: ids for batch in np.split(order, [1, 4, 20, 60]) for i, ids in zip(batch, texts(batch))}
    different = [i for i in range(100) if texts([i])[0] != batched[i]]
    assert different == []


@pytest.mark.blas
def test_scores_and_logprobs_are_the_same_alone_and_in_a_batch():
    model = model_of("tiny")
    prompts = random_prompts([2, 9, 65, 130], model.n_vocab)
    alone = [v5.score([ids], model.params, model.n_head)[0] for ids in prompts]
    assert v5.score(prompts, model.params, model.n_head) == alone


class Uneven(np.ndarray):
    """A matrix whose products are rounded otherwise in the first row of blocks of more than `even_up_to` rows.

    NumPy multiplies in np.longdouble, so that no kernel of BLAS has a say in it.
    """

    even_up_to = 0

    def __array_ufunc__(self, ufunc, method, x, w, **kwargs):
        assert ufunc is np.matmul and method == "__call__" and not kwargs
        y = (np.asarray(x, np.longdouble) @ np.asarray(w, np.longdouble)).astype(w.dtype)
        if y.shape[-2] > self.even_up_to:
            y[..., 0, :] = np.nextafter(y[..., 0, :], np.inf, dtype=y.dtype)
        return y


def uneven_model(even_up_to):
    model = model_of("tiny")
    kind = type("Uneven", (Uneven,), {"even_up_to": even_up_to})
    mlp = model.params["blocks"][0]["mlp"]
    block = {**model.params["blocks"][0], "mlp": {**mlp, "c_fc": {**mlp["c_fc"], "w": mlp["c_fc"]["w"].view(kind)}}}
    return Model({**model.params, "blocks": [block]}, model.n_head, model.n_vocab, model.n_ctx)


def test_sizes_that_round_otherwise_are_not_used():
    params = v5.with_row_blocks(uneven_model(even_up_to=64).params, n_head=3)
    assert params["blocks"][0]["mlp"]["c_fc"]["row_blocks"] == (64, 32, 16, 8)
    params = v5.with_row_blocks(uneven_model(even_up_to=8).params, n_head=3)
    assert params["blocks"][0]["mlp"]["c_fc"]["row_blocks"] == (8,)


def test_a_blas_that_rounds_slots_differently_is_refused():
    with pytest.raises(ValueError, match="BLAS rounds the rows of a block differently"):
        v5.with_row_blocks(uneven_model(even_up_to=7).params, n_head=3)


def test_pads_and_slots_that_were_never_written_do_not_matter():
    model = model_of("tiny")
    prompts = random_prompts([3, 70], model.n_vocab)
    alone = [V5.logits(model, [ids])[0] for ids in prompts]
    assert_same_bits(V5.cached_logits(model, prompts, [70], spare=100), alone)  # its cache begins full of a number


def verify(monkeypatch, **settings):
    """-> the exit status of the command."""
    model = model_of("tiny")
    hparams = {"n_vocab": 17, "n_ctx": 192, "n_embd": 12, "n_head": 3, "n_layer": 2}
    monkeypatch.setattr(utils, "load_model", lambda *_: (None, hparams, model.params))
    with pytest.raises(SystemExit) as stopped:
        v5.verify(**settings)
    return stopped.value.code


@pytest.mark.blas
def test_verify_counts_no_bit(monkeypatch, capsys):
    assert verify(monkeypatch) == 0
    out = capsys.readouterr().out
    assert "gpt2_v5_exact.py: " in out and "alone, 0 bits differ" in out
    assert "gpt2_v4_sampling.py: " in out and "BLAS: " in out and "rows at a time: up to " in out


def test_verify_fails_where_bits_differ(monkeypatch, capsys):
    """What v4 does in v5's place: products of whatever shape. np.sum, so that it shows on every kernel of BLAS."""

    def softmax(x, out):
        x = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return x / np.sum(x, axis=-1, keepdims=True)

    monkeypatch.setattr(v5, "softmax", softmax)
    assert verify(monkeypatch) == 1
    assert "alone, 0 bits differ" not in capsys.readouterr().out.splitlines()[2]


@pytest.mark.parametrize("settings", [{"n_rounds": 0}, {"batch_size": 0}, {"max_length": 0}, {"seed": -1}], ids=str)
def test_a_verify_that_would_compare_nothing_is_refused(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}.* must be .*or more, not"):
        v5.verify(**settings)


def test_verify_is_a_command(monkeypatch, capsys):
    command = "gpt2_v5_exact.py verify --n_rounds 1 --batch_size 2 --max_length 70"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as stopped:
        utils.run(v5.main, verify=v5.verify)
    assert stopped.value.code == 0
    assert "alone, 0 bits differ" in capsys.readouterr().out


@pytest.mark.extra
@pytest.mark.slow
def test_any_lengths_orders_pieces_and_batches():
    import hypothesis
    from hypothesis import strategies as st

    model = model_of("tiny", larger_blocks=True)
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
