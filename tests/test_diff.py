"""Learn by diff: each version differs from the one before it in its idea and in nothing else.

STEPS says which functions a step may change. All others must be the same byte for byte, comments and blank lines
included, and in the same order. It also bounds the size of a step, so that growth is a decision that somebody takes
here.
"""
import ast
import re
from typing import NamedTuple

import pytest
from tiny import NEIGHBOURS, ROOT, VERSIONS


class Step(NamedTuple):
    changed: set  # functions, or parts of the file as `parts` names them, that are in both files and differ
    new: set  # functions that are in the later file only
    most_added: int  # lines
    most_removed: int


# The aim is 50 lines added and 20 removed. v3 is more: a cache, two ways to fill it, and a place for it in four
# functions. v4 is about several ways to choose, and adds a function for each. v5 makes every product of small
# ones.
STEPS = {
    ("gpt2_v0", "gpt2_v1_batching"): Step(
        changed={"docstring", "linear", "gpt2", "generate", "main"},
        new=set(),
        most_added=20,
        most_removed=18,
    ),
    ("gpt2_v1_batching", "gpt2_v2_padding"): Step(
        changed={"docstring", "gpt2", "generate", "main"},
        new={"left_pad"},
        most_added=37,
        most_removed=14,
    ),
    ("gpt2_v2_padding", "gpt2_v3_kvcache"): Step(
        changed={"docstring", "mha", "transformer_block", "gpt2", "generate"},
        new={"init_kv_cache", "prefill", "decode_one_token"},
        most_added=64,
        most_removed=16,
    ),
    ("gpt2_v3_kvcache", "gpt2_v4_sampling"): Step(
        changed={"docstring", "generate", "main"},
        new={
            "penalize_repetition", "are_best", "keep_top_k", "keep_top_p", "find_share", "draw", "sample",
            "log_softmax", "row_generators",
        },
        most_added=175,
        most_removed=16,
    ),
    ("gpt2_v4_sampling", "gpt2_v5_exact"): Step(
        changed={
            "docstring", "imports", "softmax", "linear", "attention", "mha", "transformer_block", "gpt2",
            "init_kv_cache", "generate", "main",
        },
        new={"in_blocks", "tile_params", "fewest_rows", "whole_blocks"},
        most_added=120,
        most_removed=34,
    ),
}  # fmt: skip

every_version = pytest.mark.parametrize("version", VERSIONS, ids=str)
every_step = pytest.mark.parametrize(
    "before, after", [(before.name, after.name) for before, after in NEIGHBOURS], ids=lambda name: name
)


def read(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


def parts(source):
    """The text of a file in order, cut into {"docstring", "imports", each function by name, "end"}.

    A part goes on to the start of the next one, so comments and blank lines between functions belong to the function
    above them, and no byte of the file is left out.
    """
    starts = [(0, "docstring")]
    starts.append((re.search(r"^(import|from) ", source, re.MULTILINE).start(), "imports"))
    starts += [(match.start(), match.group(1)) for match in re.finditer(r"^def (\w+)", source, re.MULTILINE)]
    starts.append((source.index('if __name__ == "__main__":'), "end"))
    stops = [start for start, _ in starts[1:]] + [len(source)]
    return {name: source[start:stop] for (start, name), stop in zip(starts, stops)}


def test_every_step_is_in_the_table():
    assert [step for step in NEIGHBOURS if (step[0].name, step[1].name) not in STEPS] == []


@every_version
def test_parts_leave_nothing_out(version):
    """Otherwise a change could hide between the parts, or two functions of one name behind each other."""
    source = read(version.name)
    assert "".join(parts(source).values()) == source
    functions = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert functions == [name for name in parts(source) if name not in ("docstring", "imports", "end")]


@every_step
def test_a_step_changes_what_its_idea_touches_and_nothing_else(before, after):
    old, new = parts(read(before)), parts(read(after))
    assert {name for name in old if name in new and old[name] != new[name]} == STEPS[before, after].changed
    assert set(new) - set(old) == STEPS[before, after].new
    assert set(old) - set(new) == set()


@every_step
def test_functions_keep_their_order(before, after):
    """New functions may come in between."""
    old, new = parts(read(before)), parts(read(after))
    assert [name for name in new if name in old] == list(old)


def added_and_removed(old, new):
    """Numbers of lines that a smallest diff adds and removes, as `git diff --no-index --minimal --numstat` counts them.

    All lines that are not in the longest common subsequence are added or removed. Counted here, so that the numbers
    depend neither on git and its version, nor on its settings.
    """
    old, new = old.splitlines(), new.splitlines()
    row = [0] * (len(new) + 1)  # row[j]: length of the longest common subsequence of the old lines so far and new[:j]
    for line in old:
        previous = row
        row = [0]
        for j, other in enumerate(new):
            row.append(previous[j] + 1 if line == other else max(previous[j + 1], row[j]))
    return len(new) - row[-1], len(old) - row[-1]


def test_added_and_removed():
    assert added_and_removed("a\nb\nc\n", "a\nc\n") == (0, 1)
    assert added_and_removed("a\nb\nc\n", "a\nB\nc\nd\n") == (2, 1)
    assert added_and_removed("a\nb\n", "b\na\n") == (1, 1)


@every_step
def test_the_size_of_a_step(before, after):
    added, removed = added_and_removed(read(before), read(after))
    assert added <= STEPS[before, after].most_added
    assert removed <= STEPS[before, after].most_removed


# ---- what no version contains

ALLOWED_IMPORTS = {"math", "numpy", "tqdm", "utils"}
MORE_IMPORTS = {"gpt2_v5_exact": {"functools"}}


@every_version
def test_imports(version):
    """NumPy does the work; a reader needs to know nothing else."""
    imported = set()
    for node in ast.walk(ast.parse(read(version.name))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert {"numpy", "utils"} <= imported <= ALLOWED_IMPORTS | MORE_IMPORTS.get(version.name, set())


@every_version
def test_no_marks_of_what_is_new(version):
    """The diff shows it. Nor does code stand there as a comment, or a flag that switches between versions."""
    source = read(version.name)
    assert not re.search(r"#\s*(NEW|CHANGED|ADDED|TODO|FIXME|XXX)\b", source)
    compared = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    names = [node.id for comparison in compared for node in ast.walk(comparison) if isinstance(node, ast.Name)]
    assert [name for name in names if "version" in name.lower()] == []
    comments = [line.strip()[1:].strip() for line in source.splitlines() if line.strip().startswith("#")]
    assert [comment for comment in comments if is_code(comment)] == []


def is_code(comment):
    """Whether a comment is a statement of Python: an assignment, a call, a return and so on, not a word or two."""
    try:
        tree = ast.parse(comment)
    except SyntaxError:
        return False
    return any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in tree.body)


@every_version
def test_no_bare_assert(version):
    """`python -O` leaves them out, and their message helps nobody: mistakes of the user raise ValueError."""
    assert not [node for node in ast.walk(ast.parse(read(version.name))) if isinstance(node, ast.Assert)]


@every_version
def test_no_global_random_numbers(version):
    """np.random.seed makes runs depend on each other, and np.random.choice refuses float32 probabilities."""
    assert set(re.findall(r"np\.random\.(\w+)", read(version.name))) <= {"default_rng", "Generator", "SeedSequence"}


@every_version
def test_lines_are_short_and_end_cleanly(version):
    lines = read(version.name).split("\n")
    assert lines[-1] == ""
    assert [line for line in lines if len(line) > 120 or line != line.rstrip() or "\t" in line] == []
