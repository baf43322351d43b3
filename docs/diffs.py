"""Diffs and pieces of the versions, as the pages show them: without the docstrings of functions."""
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import utils  # noqa: E402
import versions  # noqa: E402

VERSIONS = {version.name: ROOT / f"{version.file}.py" for version in versions.VERSIONS}


def read(path):
    return path.read_text(encoding="utf-8")


def fence(language, text):
    """Text as a Markdown block."""
    ticks = "```" + "`" * text.count("\n```")
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}\n"


def neighbours():
    """-> [(version, its file, the file before)]."""
    names = list(VERSIONS)
    return [(new, VERSIONS[new], VERSIONS[old]) for old, new in zip(names, names[1:])]


def git_diff(old, new, *options):
    """`git diff --no-index` of two files of the project, whatever git's settings on this machine are."""
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    command = ["git", "diff", "--no-index", "--no-color", "--no-ext-diff", *options, old.name, new.name]
    with tempfile.TemporaryDirectory() as folder:  # outside of any repository, with its own settings
        for path in (old, new):
            shutil.copy(path, folder)
        environment = {**os.environ, **settings}
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    if result.returncode not in (0, 1):
        raise utils.UserError(f"git diff: {result.stderr.strip()}")
    return result.stdout


def numstat(old, new):
    """-> lines added, lines removed."""
    added, removed = git_diff(old, new, "--numstat").split()[:2]
    return int(added), int(removed)


def label_lines(path):
    """-> for each line of a version the name of its function, "docstring", "imports" or "end".

    None: a line of a function's docstring. Blank lines belong to what follows them.
    """
    labels = []
    for node in ast.parse(read(path)).body:
        kinds = {ast.FunctionDef: "", ast.Expr: "docstring", ast.If: "end"}
        label = kinds.get(type(node), "imports") or node.name
        labels += [label] * (node.end_lineno - len(labels))
        if label == getattr(node, "name", None) and ast.get_docstring(node):
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            labels[first:last] = [None] * (last - first)
    return labels


def diff_lines(old, new):
    """Two versions as one list of (sign " ", "-" or "+", label as of label_lines, line)."""
    old, new = VERSIONS[old], VERSIONS[new]
    lines = git_diff(old, new, f"-U{10**6}").split("\n@@", 1)[1].splitlines()[1:]
    labels = {"-": iter(label_lines(old)), "+": iter(label_lines(new))}
    rows = []
    for line in lines:
        sign = line[0]
        found = [next(labels[side]) for side in "-+" if sign in (" ", side)]
        rows.append((sign, found[-1], line[1:]))
    return rows


def diff_rows(old, new):
    """As diff_lines, without the docstrings of functions."""
    return [row for row in diff_lines(old, new) if row[1] is not None]


def hunks_of(rows, name):
    """What changes in one function: lists of lines. An unchanged line between two changes joins them."""
    mine = [(sign, line) for sign, label, line in rows if label == name and line]
    changed = [sign != " " for sign, _ in mine]
    hunks, open_hunk = [], False
    for i, (sign, line) in enumerate(mine):
        shown = changed[i] or (0 < i < len(mine) - 1 and changed[i - 1] and changed[i + 1])
        if shown and not open_hunk:
            hunks.append([f"@@ {name} @@"])
        if shown:
            hunks[-1].append(sign + line)
        open_hunk = shown
    return hunks


def diff_block(old, new, *names):
    """A diff of the functions that are named; "generate:seed" is those of its hunks that have the word seed."""
    rows, lines = diff_rows(old, new), []
    for name in names:
        name, _, word = name.partition(":")
        hunks = [hunk for hunk in hunks_of(rows, name) if any(word in line for line in hunk)]
        if not hunks:
            raise utils.UserError(f"from {old} to {new} nothing changes in {name} {word}".rstrip())
        lines += [line for hunk in hunks for line in hunk]
    return fence("diff", "\n".join(lines))


def code_block(version, *names):
    """Functions of a version as they are in its file."""
    path = VERSIONS[version]
    rows = list(zip(label_lines(path), read(path).splitlines()))
    functions = ["\n".join(line for label, line in rows if label == name and line) for name in names]
    if "" in functions:
        raise utils.UserError(f"{version} has no function {names[functions.index('')]}")
    return fence("python", "\n\n\n".join(functions))


def diff_files():
    """-> {path: text} of the whole diffs, docs/diffs/v1.diff and so on."""
    return {DOCS / "diffs" / f"{name}.diff": git_diff(before, path) for name, path, before in neighbours()}
