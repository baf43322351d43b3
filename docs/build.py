"""Regenerates what the pages show: diffs, outputs of code and commands, tables, and the data of the pictures.

    python docs/build.py             # rewrite README.md, docs/*.md, docs/diffs and docs/pictures
    python docs/build.py --check     # write nothing; list what is out of date and end with status 1
    python docs/build.py --measure   # time the versions and try three BLAS kernels first: minutes, on an idle machine

Between `<!-- build: WHAT -->` and `<!-- end -->` of a page stands what this file writes there; what it may be is in
BLOCKS. Code and commands in such a block are written by hand, their output is not. Timings, and what depends on the
kernels of BLAS, are only read here, from docs/measured and benchmarks/results.json. Floats in outputs and in the data
of pictures count as equal if they differ by one unit of their last place, so that rounding elsewhere is no difference.
Drawing needs matplotlib (pip install -e '.[docs]'), and only where the data or the drawing changed.
"""
import ast
import concurrent.futures
import contextlib
import hashlib
import inspect
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS), str(ROOT / "benchmarks"), str(ROOT / "tools")]
if "--measure" not in sys.argv:  # before NumPy comes: small models gain nothing from threads that wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import bench  # noqa: E402
import measure as measuring  # noqa: E402
import pictures  # noqa: E402
import utils  # noqa: E402
import versions  # noqa: E402

COPIED = (
    "*.py", "*.md", "*.txt", "*.toml", "LICENSE", "gpt2_io", "docs", "tests", "tools", "benchmarks", "models/tales",
    ".ci",
)  # fmt: skip

VERSIONS = {version.name: ROOT / f"{version.file}.py" for version in versions.VERSIONS}


# ---------------------------------------------------------------- text files


def read(path):
    return path.read_text(encoding="utf-8")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def pages():
    """README.md and docs/*.md."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


def same_text(old, new):
    """Are two texts equal, but for floats that differ by one unit of their last place?"""
    if FLOAT.sub("0.0", old) != FLOAT.sub("0.0", new):
        return False
    return all(same_float(a, b) for a, b in zip(FLOAT.findall(old), FLOAT.findall(new)))


def same_float(a, b):
    """Do two floats as written have as many decimals, and differ by one unit of the last at most?"""
    decimals = [len(number.partition("e")[0].partition(".")[2]) for number in (a, b)]
    unit = 10.0 ** (int(a.partition("e")[2] or 0) - decimals[0])
    return decimals[0] == decimals[1] and math.isclose(float(a), float(b), rel_tol=0, abs_tol=1.01 * unit)


# ---------------------------------------------------------------- diffs


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


def neighbours():
    """-> [(version, its file, the file before)]."""
    names = list(VERSIONS)
    return [(new, VERSIONS[new], VERSIONS[old]) for old, new in zip(names, names[1:])]


def docstring_lines(path):
    """-> the numbers, from 0 on, of all lines of functions' docstrings."""
    functions = [node for node in ast.parse(read(path)).body if isinstance(node, ast.FunctionDef)]
    return {i for f in functions if ast.get_docstring(f) for i in range(f.body[0].lineno - 1, f.body[0].end_lineno)}


def part_of_each_line(path):
    """-> for each line of a file of the series the name of its function, or "docstring", "imports" or "end"."""
    lines, names, name = read(path).splitlines(), [], "docstring"
    for i, line in enumerate(lines):
        match = re.match(r"def (\w+)", line)
        if match:
            name = match.group(1)
        elif name == "docstring" and re.match(r"import |from ", line):
            name = "imports"
        elif line.startswith("if __name__"):
            name = "end"
        names.append(name)
        if match:  # the blank lines above belong to the function
            while not lines[i - 1]:
                i -= 1
                names[i] = name
    return names


def diff_rows(old, new):
    """The two files as one list of (sign " ", "-" or "+"; part of the file; line), without functions' docstrings."""
    rows, parts, at = [], [part_of_each_line(old), part_of_each_line(new)], [0, 0]
    docstrings = [docstring_lines(old), docstring_lines(new)]
    text = git_diff(old, new, f"-U{10**6}")
    for line in text.split("\n@@", 1)[1].splitlines()[1:]:
        sign = line[:1]
        side = 0 if sign == "-" else 1
        if at[side] not in docstrings[side]:
            rows.append((sign, parts[side][at[side]], line[1:]))
        at[0] += sign in " -"
        at[1] += sign in " +"
    return rows


def diff_block(old, new, *names):
    """A diff of some functions, or of whatever else `part_of_each_line` names; without names, of all that differ.

    "generate:seed" stands for those hunks of generate that have the word seed. To keep a page short, docstrings are
    left out, and unchanged lines stand only where one alone separates two changes.
    """
    rows = diff_rows(VERSIONS[old], VERSIONS[new])
    changed = list(dict.fromkeys(part for sign, part, _ in rows if sign != " "))
    if missing := {name.partition(":")[0] for name in names} - set(changed):
        raise utils.UserError(f"from {old} to {new} nothing changes in {', '.join(sorted(missing))}")
    hunks = []
    for name in names or changed:
        name, _, word = name.partition(":")
        mine = [(sign, line) for sign, part, line in rows if part == name]
        while mine and not mine[0][1]:
            del mine[0]
        while mine and not mine[-1][1]:
            del mine[-1]
        changes = [i for i, (sign, _) in enumerate(mine) if sign != " "]
        shown = {*changes, *(i + 1 for i in changes if i + 2 in changes)}
        own = []
        for i, (sign, line) in enumerate(mine):
            if i in shown:
                if i - 1 not in shown:
                    own.append([f"@@ {name} @@"])
                own[-1].append((sign + line).rstrip())
        hunks += [hunk for hunk in own if any(word in line for line in hunk)]
    return fence("diff", "\n".join(line for hunk in hunks for line in hunk))


def code_block(version, *names):
    """Functions of a version as they are in its file, without their docstrings."""
    lines, names_of_lines = read(VERSIONS[version]).splitlines(), part_of_each_line(VERSIONS[version])
    left_out = docstring_lines(VERSIONS[version])
    functions = []
    for name in names:
        mine = [line for i, line in enumerate(lines) if names_of_lines[i] == name and i not in left_out]
        if not mine:
            raise utils.UserError(f"{version} has no function {name}")
        functions.append("\n".join(mine).strip("\n"))
    return fence("python", "\n\n\n".join(functions))


def numstat(old, new):
    added, removed = git_diff(old, new, "--numstat").split()[:2]
    return int(added), int(removed)


# ---------------------------------------------------------------- code and commands


def fence(language, text):
    ticks = "```" + "`" * text.count("\n```")
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}\n"


def first_fence(body, language):
    """The code that stands by hand in a block."""
    match = re.match(rf"(?s)```{language}\n(.*?)```\n", body)
    if not match:
        raise utils.UserError(f"a block of this kind begins with ```{language}")
    return match.group(1)


def python_block(body, condition=None):
    """Code, then what it prints. condition "numpy>=2": leave the block as it is where NumPy is older."""
    code = first_fence(body, "python")
    if condition == "numpy>=2" and int(np.__version__.split(".")[0]) < 2:
        return body
    return fence("python", code) + fence("text", run_python(code))


def run_python(code):
    """What code prints, at the top of the project; an error that nothing catches ends it as on a terminal."""
    out, here = io.StringIO(), os.getcwd()
    try:
        os.chdir(ROOT)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            exec(compile(code, "page", "exec"), {"__name__": "__main__"})
    except Exception as error:
        out.write(traceback.format_exception_only(error)[-1])
    finally:
        os.chdir(here)
    return out.getvalue()


def copy_project(folder):
    """The files of the project, and nothing that lies beside them, into an empty folder."""
    for pattern in COPIED:
        for path in ROOT.glob(pattern):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, target)


class Shell:
    """Runs commands in a copy of the project, in which `python` is the Python that runs this."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root, tools = Path(self.folder.name) / "project", Path(self.folder.name) / "bin"
        copy_project(self.root)
        for name, call in {"python": "", "pip": " -m pip --disable-pip-version-check"}.items():
            write(tools / name, f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{call} "$@"\n')
            (tools / name).chmod(0o755)
        self.environment = {
            **os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "GIT_CONFIG_GLOBAL": os.devnull,
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        self.pool, self.jobs = concurrent.futures.ThreadPoolExecutor(os.cpu_count()), {}

    def begin(self, commands):
        """Run commands that will be asked for, side by side."""
        for command in commands:
            self.jobs[command] = self.pool.submit(self.run, command)

    def result(self, command):
        """As `run`, once for each command."""
        if command not in self.jobs:
            self.begin([command])
        return self.jobs[command].result()

    def run(self, command, timeout=600):
        """-> the exit status, and what a reader would see on a terminal."""
        result = subprocess.run(
            ["bash", "-c", command], cwd=self.root, env=self.environment, timeout=timeout, encoding="utf-8",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return result.returncode, result.stdout

    def close(self):
        self.pool.shutdown(cancel_futures=True)
        self.folder.cleanup()


def sh_block(shell, body, expected="0"):
    """Commands, then what they print. expected: the exit status of the last one, 2 for a mistake that a page shows."""
    commands = first_fence(body, "sh")
    return fence("sh", commands) + output_block(shell, commands, int(expected))


def output_block(shell, command, expected=0):
    """What a command prints."""
    status, output = shell.result(command)
    if status != expected:
        raise utils.UserError(f"{command.strip()} ended with status {status}: {output[-500:]}")
    return fence("text", output)


# ---------------------------------------------------------------- tables


def table(header, rows):
    """A Markdown table: text columns to the left, columns of numbers to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    is_number = [all(re.match(r"[-+−]?[\d.,]+\b|–?$", row[i]) for row in rows) for i in range(len(header))]
    lines = [header, ["--:" if number else "---" for number in is_number], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def versions_table():
    """The README's table of versions."""
    speed = measuring.relative_speed()
    before, rows = None, []
    for (name, path), version in zip(VERSIONS.items(), versions.VERSIONS):
        size = "" if before is None else "+{} −{}".format(*numstat(before, path))
        title = f"[{path.name}]({path.name})"
        page = f"docs/{name}.md"
        idea = f"[{version.idea}]({page})" if (ROOT / page).exists() else version.idea
        one, eight = ("–" if n is None else f"{n:.3g}" for n in speed.get(name, (None, None)))
        rows.append([title, idea, len(read(path).splitlines()), size, version.adds, one, eight])
        before = path
    header = ["file", "idea, and its page", "lines", "diff", "adds", "speed, 1 prompt", "speed, 8 prompts"]
    return table(header, rows)


# ---------------------------------------------------------------- the whole


def blocks(shell):
    """What may stand between the marks: {WHAT: function(body, *words) -> what to write there}."""
    return {
        "python": lambda body, *words: python_block(body, *words),
        "sh": lambda body, *words: sh_block(shell, body, *words),
        "output": lambda body, *words: output_block(shell, shlex.join(words)),
        "diff": lambda body, *words: diff_block(*words),
        "code": lambda body, *words: code_block(*words),
        "versions": lambda body: versions_table(),
        "measured": lambda body, what: measuring.TABLES[what](table),
        "benchmark": lambda body: bench.report(measuring.load(bench.HERE / "results.json")),
    }


BLOCK = re.compile(r"(<!-- build: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def commands_of(page):
    """The commands whose output a page shows, as its blocks ask for them."""
    for _, what, body, _ in BLOCK.findall(page):
        kind, *words = shlex.split(what)
        if kind == "output":
            yield shlex.join(words)
        elif kind == "sh":
            yield first_fence(body, "sh")


def rebuild(path, kinds, problems):
    """A page as it should be. What cannot be made is added to the problems, and stays as it is."""

    def replace(match):
        begin, what, body, end = match.groups()
        try:
            kind, *words = shlex.split(what)
            if kind not in kinds:
                raise utils.UserError(f"nothing is called {kind}")
            new = kinds[kind](body, *words)
        except Exception as error:
            problems.append(f"{path.relative_to(ROOT)}: build: {what}: {error}")
            new = body
        return begin + (body if same_text(body, new) else new) + end

    return BLOCK.sub(replace, read(path))


def diff_files():
    """-> {path: text} of the whole diffs, docs/diffs/v1.diff and so on."""
    return {DOCS / "diffs" / f"{name}.diff": git_diff(before, path) for name, path, before in neighbours()}


def first_difference(old, new):
    """Where two texts begin to differ, in one line."""
    old, new = old.splitlines(), new.splitlines()
    for i, (a, b) in enumerate(zip(old, new), 1):
        if not same_text(a, b):
            return f"line {i} is {a.strip()!r}, should be {b.strip()!r}"
    return f"{len(old)} lines, should be {len(new)}"


def same_data(a, b):
    """Is the data of a picture the same, but for rounding? Floats in it have four decimals."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same_data(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same_data(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 2.01e-4
    return a == b


def data_text(data):
    """A picture's data as JSON, an innermost list a line."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match.group().split()), text) + "\n"


def stamp(name, text):
    """What a picture carries inside: the sha256 of its data and of the code that draws it."""
    return "drawn-from " + hashlib.sha256((text + inspect.getsource(pictures.DRAW[name])).encode()).hexdigest()


def build_pictures(check, problems):
    """Compare, or else write, docs/pictures/NAME.json and NAME.svg."""
    for name, make in pictures.DATA.items():
        data_path, picture = (DOCS / "pictures" / f"{name}{end}" for end in (".json", ".svg"))
        data = make()
        old = json.loads(read(data_path)) if data_path.exists() else None
        if not same_data(old, json.loads(data_text(data))):
            if check:
                problems.append(f"{data_path.relative_to(ROOT)}: the data has changed")
                continue
            write(data_path, data_text(data))
        text = read(data_path)
        if not picture.exists() or stamp(name, text) not in read(picture):
            if check:
                problems.append(f"{picture.relative_to(ROOT)}: was drawn from other data or by other code")
            else:
                pictures.draw(name, json.loads(text), picture, stamp(name, text))


def build(check=False):
    """Rewrite everything, or with check only compare -> list of problems, one line each."""
    problems, shell = [], Shell()
    try:
        kinds = blocks(shell)
        shell.begin(command for path in pages() for command in commands_of(read(path)))
        wanted = {**diff_files(), **{path: rebuild(path, kinds, problems) for path in pages()}}
    finally:
        shell.close()
    for path, text in wanted.items():
        old = read(path) if path.exists() else ""
        if old != text and check:
            problems.append(f"{path.relative_to(ROOT)}: {first_difference(old, text)}")
        elif old != text:
            write(path, text)
    for path in (DOCS / "diffs").glob("*"):
        if path not in wanted:
            problems.append(f"{path.relative_to(ROOT)}: of no version that there is")
    build_pictures(check, problems)
    return problems


def main(check=False, measure=False):
    """Regenerate what the pages show.

    Args:
        check: write nothing, list what is out of date, and end with status 1 if anything is.
        measure: time the versions and try three BLAS kernels first.
    """
    if measure:
        measuring.measure_all()
    problems = build(check)
    if problems:
        hint = "python docs/build.py brings the pages up to date" if check else "these need a hand"
        print(*problems, hint, sep="\n", file=sys.stderr)
        sys.exit(1)
    print("all pages are up to date")


if __name__ == "__main__":
    utils.run(main)
