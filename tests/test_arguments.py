"""No argument of a wrong type, shape or range passes in silence: an error, and a cache that is left as it was.

For each argument a test says what is right. Everything else has to be refused: here a list of what people and programs
pass by mistake, and as `extra` whatever hypothesis thinks of.
"""
import collections
import math
import numbers

import numpy as np
import pytest
from tiny import ENDS, VERSIONS, random_model

import utils
import versions

MODEL = random_model(np.float32)
IDS, MASK = [[1, 2, 3], [4, 5, 6]], [[0, 1, 1], [1, 1, 1]]

JUNK = [
    None, True, False, np.True_, 0, -1, 5, 10**30, 2**63, np.int64(-3), 1.0, 0.5, -0.5, math.nan, math.inf, 1j,
    np.float32(1.5), np.array(3), np.array(-1), "", "3", "text", b"", b"ab", bytearray(b"ab"), object(), int, len,
    range(0), slice(3), NotImplemented,
    [], [[]], [[], []], {}, {1: 2}, {0: IDS, 1: MASK}, set(), {1, 2}, frozenset([3]), iter([]), (),
    [None], [True], ["3"], "345", [3], [1.0], [-1], [17], [2**63], [10**30], [math.nan], [[1, 2, 3]], [[1, 2], [3]],
    [[1, [2]], [3]], [[1, True, 2], [3, 4, 5]], [[True] * 3] * 2, [["1", "2", "3"]] * 2, [[1.0, 2.0, 3.0]] * 2,
    [[1, 2, None]] * 2, [[1, 2, -3]] * 2, [[1, 2, 17]] * 2, [[1, 2, 2**64]] * 2, [IDS], [[1, 1, 0], [1, 1, 1]],
    [[2, 1, 1]] * 2, [[-1, 1, 1]] * 2, [[math.nan] * 3] * 2, [[0.5, 1, 1]] * 2, [b"abc", b"abc"], ["abc", "def"],
    np.zeros(3), np.zeros((2, 3)), np.zeros((2, 3, 1), int), np.zeros((2, 3), bool), np.zeros((2, 3), complex),
    np.zeros((2, 3), object), np.zeros((2, 0), int), np.zeros((0, 3), int), np.zeros((3, 2), int), np.ones((2, 4)),
    np.ones((1, 3)), np.ones((2, 1)), np.array([["a"]]), np.array(["2020-01-01"], "M8[D]"), np.full((2, 3), 17),
    np.full((2, 3), 255, np.uint8), np.full((1, 17), np.nan), np.full((2, 17), np.inf), np.zeros((1, 1, 17)),
    [np.random.default_rng(0)] * 3, [np.random.default_rng(0)], [5, 6], ["a", "b"], np.random.default_rng(0),
    MODEL._replace(params={}),
]  # fmt: skip


def is_whole(value, low=0, high=math.inf):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= value <= high


def is_number(value, low, high):
    value = float(value) if isinstance(value, np.floating) else value
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and low <= value <= high


def is_ids(value, sets=False, top=16):
    kinds = (list, tuple, range) + (set, frozenset) * sets
    listed = isinstance(value, kinds) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return listed and all(is_whole(i, 0, top) for i in value)


def is_batch(value):
    """Lists of ids of one length, and at least one id."""
    listed = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 2)
    return listed and all(map(is_ids, value)) and len({len(row) for row in value}) == 1 and len(value[0]) > 0


def is_mask(value, last_real=False):
    """0 and 1, as numbers or booleans, in the shape of IDS."""
    if value is None:
        return True
    is_list = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 2)
    if not is_list or len(value) != 2 or not all(isinstance(row, (list, tuple, np.ndarray)) for row in value):
        return False
    rows = [list(row) for row in value]
    marks = [isinstance(i, (numbers.Number, np.bool_)) and i in (0, 1) for row in rows for i in row]
    return all(marks) and all(len(row) == 3 for row in rows) and (not last_real or all(row[-1] == 1 for row in rows))


def is_seed(value):
    if isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and value.ndim > 0):
        streams = [row if isinstance(row, (list, tuple, np.ndarray)) else [row] for row in value]
        return len(streams) == 2 and all(len(row) and all(is_whole(i, 0) for i in row) for row in streams)
    return value is None or is_whole(value, 0, 2**128 - 1)


def is_stop_ids(value):
    if isinstance(value, collections.abc.Iterator) or (isinstance(value, np.ndarray) and value.size == 0):
        return True
    return is_whole(value, 0, 16) or is_ids(value, sets=True)


def is_lists_of_ids(value):
    listed = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 2)
    return listed and len(value) > 0 and all(is_ids(ids, top=2**31) and len(ids) for ids in value)


def is_logits(value):
    """Whatever their number of rows, which the generators must have too."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim == 2 and np.all(np.isfinite(value))


RIGHT = {  # what need not be refused
    "n_head": lambda value: is_whole(value, 1) and 12 % value == 0,
    "n_tokens_to_generate": lambda value: is_whole(value, 0, 60),
    "chunk": lambda value: value is None or is_whole(value, 1),
    "n_logits": lambda value: value is None or is_whole(value, 0),
    "pad_id": lambda value: is_whole(value, 0, 2**31 - 1),
    "B": lambda value: is_whole(value, 1),
    "T_max": lambda value: is_whole(value, 1),
    "temperature": lambda value: is_number(value, 0, 1e30),
    "top_k": lambda value: is_whole(value, 0),
    "top_p": lambda value: is_number(value, 0, 1),
    "min_p": lambda value: is_number(value, 0, 1),
    "repetition_penalty": lambda value: is_number(value, 1e-30, 1e30),
    "seed": is_seed,
    "n_samples": lambda value: is_whole(value, 1, 100_000),
    "stop_ids": is_stop_ids,
    "logprobs": lambda value: isinstance(value, bool),
    "progress": lambda value: isinstance(value, bool),
    "on_token": lambda value: value is None or callable(value),
    "on_end": lambda value: value is None or callable(value),
    "n_rows": lambda value: is_whole(value, 1),
    "n_bytes": lambda value: value is None or is_whole(value, 1),
    "n_draft": lambda value: is_whole(value, 0),
    "rows": lambda value: is_ids(value, top=1) and len(value) == 3,
    "position_ids": lambda value: is_ids(value, top=8) and len(value) == 3,
    "wanted": lambda value: is_ids(value, top=2),
    "prompts": is_lists_of_ids,
    "logits": is_logits,
    "generators": lambda value: isinstance(value, list) and list(map(type, value)) == [np.random.Generator],
    "params": lambda value: False,
    "kv_cache": lambda value: value is None,
}  # fmt: skip
CACHE = object()  # stands for a cache that is in use
OWN_ERRORS = ("on_token", "on_end", "generators", "params", "kv_cache")  # of which Python may say what is wrong
NO_NAMES = (*OWN_ERRORS, "input_ids", "attention_mask", "logits", "prompts", "rows")  # need not be named


def calls_of(version):
    """The functions of a version that users call -> {name: (function, right arguments, and which of them to try)}."""
    module, known = version.module, {"n_head": MODEL.n_head}
    more = {"attention_mask": MASK} if version.pads else {}
    input_ids = IDS if version.batches else IDS[0]
    params = {"params": version.params(MODEL)}
    generation = {"input_ids": input_ids, **params, **known, "n_tokens_to_generate": 2, **more}
    calls = {"gpt2": {"input_ids": input_ids, **version.params(MODEL), **known, **more}, "generate": generation}
    if version.is_flat:
        weights = {name: version.params(MODEL)[name] for name in ("wte", "blocks")}
        calls["init_kv_cache"] = {**weights, **known, "n_rows": 2, "T_max": 9, "n_bytes": None}
        calls["gpt2"] |= {"input_ids": IDS[0], "rows": [1] * 3, "position_ids": [2, 3, 4], "wanted": [2]}
        calls["gpt2"]["kv_cache"] = calls["generate"]["kv_cache"] = CACHE
        calls["generate"] |= {"prompts": IDS, "n_rows": 2, "n_bytes": None, "chunk": 2, "on_end": None}
        calls["generate"] |= {"n_draft": 7} if version.number > 7 else {}
        del calls["generate"]["input_ids"]
    if version.pads:
        calls["left_pad"] = {"prompts": [[1, 2], [3]], "pad_id": 0}
    if version.caches:
        weights = {name: version.params(MODEL)[name] for name in ("wte", "blocks")}
        calls["init_kv_cache"] = {**weights, **known, "B": 2, "T_max": 9}
        calls["gpt2"] |= {"kv_cache": CACHE, "n_logits": 1}
        calls["prefill"] = {"input_ids": IDS, **params, **known, "kv_cache": CACHE, **more, "chunk": 2}
        calls["decode_one_token"] = {"input_ids": [1, 2], **params, **known, "kv_cache": CACHE}
    if hasattr(module, "sample"):
        choices = {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.01}
        calls["sample"] = {"logits": np.ones((1, 17), np.float32), "generators": [np.random.default_rng(0)], **choices}
        calls["generate"] |= {
            **choices, "repetition_penalty": 1.1, "seed": 7, "n_samples": 1, "stop_ids": (3,), "on_token": None,
            "logprobs": True, "progress": False,
        }  # fmt: skip
    return calls


def right_for(version, function, name):
    if version.is_flat and name == "input_ids":
        return lambda value: is_ids(value) and len(value) == 3
    if version.is_flat and name == "prompts":
        return lambda value: is_lists_of_ids(value) and all(map(is_ids, value))
    if version.is_flat and name == "n_tokens_to_generate":
        return lambda value: is_whole(value, 0, 60) or (is_ids(value, top=60) and len(value) == 2)
    if name == "input_ids" and version.batches and function != "decode_one_token":
        return is_batch
    if name == "input_ids":
        length = 2 if function == "decode_one_token" else None
        return lambda value: is_ids(value) and len(value) > 0 and length in (None, len(value))
    if name == "attention_mask":
        return lambda value: is_mask(value, last_real=function != "gpt2")
    if name == "kv_cache" and function != ("generate" if version.is_flat else "gpt2"):
        return lambda value: False
    return RIGHT[name]


def with_cache(version, arguments):
    """The arguments, with a cache that is in use where they need one -> those, the cache"""
    if not version.caches and not version.is_flat:
        return arguments, None
    cache = version.new_cache(MODEL, 2, 9)
    if version.is_flat:
        call = {**version.params(MODEL), "n_head": MODEL.n_head, "kv_cache": cache, "wanted": []}
        version.module.gpt2([7, 8, 9], [0, 1, 1], [0, 0, 1], **call)
    else:
        version.module.prefill([[7, 8], [9, 10]], version.params(MODEL), MODEL.n_head, cache)
    return {name: cache if value is CACHE else value for name, value in arguments.items()}, cache


def refuser(version, function, name):
    """-> a function that asserts that a wrong value in the place of the right one is refused, and no cache written."""
    arguments, cache = with_cache(version, calls_of(version)[function])
    kind = Exception if name in OWN_ERRORS else utils.UserError

    def state():
        return cache and [x.tobytes() if isinstance(x, np.ndarray) else repr(x) for x in cache.values()]

    before, call = state(), getattr(version.module, function)

    def assert_refused(wrong):
        try:
            with pytest.raises(kind) as raised:
                call(**{**arguments, name: wrong})
        except BaseException as error:
            raise AssertionError(f"{function}({name}={wrong!r:.200}): {error!r:.200}") from error
        if name not in NO_NAMES and type(wrong) is not int:
            assert name in str(raised.value)
        assert state() == before

    return assert_refused


def is_new(version, function):
    """Whether a function is another one than in the version before. If not, it checks its arguments as that does."""
    entry = versions.VERSIONS[version.number]
    return version is VERSIONS[0] or function in entry.changed | entry.new


CASES = [
    (version, function, name)
    for version in VERSIONS
    for function, arguments in calls_of(version).items()
    for name in arguments
    if (name in RIGHT or name in ("input_ids", "attention_mask")) and is_new(version, function)
]
NEWEST = {(function, name): version for version, function, name in CASES}
every_argument = pytest.mark.parametrize(  # of the newest of each function, and of those before it as `slow`
    "version, function, name",
    [pytest.param(*case, marks=[pytest.mark.slow] * (NEWEST[case[1:]] is not case[0])) for case in CASES],
    ids=str,
)


@pytest.mark.parametrize("version", ENDS, ids=str)
def test_the_right_arguments_are_taken(version):
    """Otherwise all would be refused below."""
    for function, arguments in calls_of(version).items():
        getattr(version.module, function)(**with_cache(version, arguments)[0])


@every_argument
def test_what_is_passed_by_mistake_is_refused(version, function, name):
    assert_refused, right = refuser(version, function, name), right_for(version, function, name)
    wrong = [value for value in JUNK if not right(value)]
    assert len(wrong) > 40
    wrong = wrong[:: 4 if name in OWN_ERRORS else 1]  # found out late, one is as good as another
    for value in wrong:
        assert_refused(value)


@pytest.mark.extra
@every_argument
def test_whatever_hypothesis_thinks_of_is_refused(version, function, name):
    import hypothesis
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    small = st.integers(-3, 20) | st.sampled_from([2**31, 2**63, 2**64, 10**30, -(2**63)])
    one = st.none() | st.booleans() | small | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
    one |= st.sampled_from([1j, np.int8(3), np.uint8(200), np.float16(0.5), np.bool_(1)])
    shapes = [(), (1,), (2,), (3,), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (2, 4), (2, 3, 1), (0, 3), (1, 17)]
    shapes = st.sampled_from(shapes)
    dtypes = st.sampled_from([np.int64, np.int8, np.uint8, np.float32, np.float64, bool, complex, "U2", "S2", object])
    arrays = st.tuples(shapes, dtypes, st.integers(-2, 20)).map(lambda case: np.full(case[0], case[2]).astype(case[1]))
    floats = hnp.arrays(np.float32, shapes, elements=st.floats(width=32))
    rows = st.lists(st.integers(0, 16) | one, max_size=4)
    nested = st.lists(rows, max_size=3) | st.lists(rows.map(tuple), max_size=3).map(tuple)
    nested |= st.lists(st.lists(small, min_size=3, max_size=3), min_size=2, max_size=2)
    anything = one | rows | nested | st.lists(nested, max_size=2) | arrays | floats | st.sets(small, max_size=3)
    anything |= st.dictionaries(small, small, max_size=2) | st.sampled_from(JUNK)
    assert_refused, right = refuser(version, function, name), right_for(version, function, name)

    @hypothesis.settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @hypothesis.given(anything)
    def check(value):
        hypothesis.assume(not right(value))
        assert_refused(value)

    check()


def test_swapped_arguments_are_refused():
    """In all versions, n_head and n_tokens_to_generate in each other's place."""
    for version in VERSIONS:
        with pytest.raises(utils.UserError, match="^n_head 40 does not fit the weights, whose n_embd is 12$"):
            version.module.generate(IDS if version.batches else IDS[0], version.params(MODEL), 40, MODEL.n_head)
