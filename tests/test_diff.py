"""Learn by diff: each version differs from the one before it in its idea and in nothing else.

tools/versions.py says which functions a step may change, and how large it may be. All others must be the same byte for
byte, comments and blank lines included, and in the same order.
"""
import ast
import re

import pytest
from tiny import NEIGHBOURS, ROOT, VERSIONS

import versions

STEPS = {(before.file, after.file): after for before, after in zip(versions.VERSIONS, versions.VERSIONS[1:])}
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
    assert set(old) - set(new) == STEPS[before, after].gone


@every_step
def test_functions_keep_their_order(before, after):
    """New functions may come in between."""
    old, new = parts(read(before)), parts(read(after))
    assert [name for name in new if name in old] == [name for name in old if name in new]


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
MORE_IMPORTS = {"gpt2_v5_exact": {"functools"}, "gpt2_v6_threads": {"concurrent.futures", "functools", "os"}}
MORE_IMPORTS |= {
    name: MORE_IMPORTS["gpt2_v6_threads"] | {"collections"}
    for name in ("gpt2_v7_continuous", "gpt2_v8_lookup", "gpt2_v9_beam")
}


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
