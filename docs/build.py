"""Regenerates what the pages show: diffs, outputs of code and commands, tables, and the data of the pictures.

    python docs/build.py             # rewrite README.md, docs/*.md, docs/diffs, docs/pictures and docs/series.ipynb
    python docs/build.py --check     # write nothing; list what is out of date and end with status 1
    python docs/build.py --site      # write the pages as a site into site/, see website.py; open site/index.html
    python docs/build.py --measure   # time the versions and try three BLAS kernels first: minutes, on an idle machine

Between `<!-- build: WHAT -->` and `<!-- end -->` of a page stands what this file writes there. WHAT is one of:

    python [numpy>=2]         code, written by hand, and what it prints; the blocks of a page share their names
    sh [STATUS]               commands, written by hand, and what they print
    output COMMAND            what a command prints
    code v0 NAME ...          functions of a version, from diffs.py
    diff v0 v1 NAME ...       what changes in functions, from diffs.py
    versions, measured NAME   tables; their figures were measured before, see measure.py

Floats in outputs and in the data of pictures count as equal if they differ by one unit of their last place, so that
rounding elsewhere is no difference. Drawing needs matplotlib (pip install -e '.[docs]'), and only where the data or the
drawing changed.
"""
import contextlib
import hashlib
import importlib.util
import inspect
import io
import json
import math
import os
import re
import shlex
import sys
import traceback
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS), str(ROOT / "benchmarks")]
if "--measure" not in sys.argv:  # before NumPy comes: small models gain nothing from threads that wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import bench  # noqa: E402
import diffs  # noqa: E402
import drawing  # noqa: E402
import measure as measuring  # noqa: E402
import notebook  # noqa: E402
import pictures  # noqa: E402
import utils  # noqa: E402
import versions  # noqa: E402
from blocks import BLOCK, first_fence, pages  # noqa: E402
from diffs import fence, read  # noqa: E402
from shell import Shell  # noqa: E402


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


# ---------------------------------------------------------------- what counts as equal


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


def same_data(a, b):
    """Is the data of a picture the same, but for rounding? Floats in it have four decimals."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same_data(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same_data(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 2.01e-4
    return a == b


def first_difference(old, new):
    """Where two texts begin to differ, in one line."""
    old, new = old.splitlines(), new.splitlines()
    for i, (a, b) in enumerate(zip(old, new), 1):
        if not same_text(a, b):
            return f"line {i} is {a.strip()!r}, should be {b.strip()!r}"
    return f"{len(old)} lines, should be {len(new)}"


# ---------------------------------------------------------------- blocks of a page


class Session:
    """The Python blocks of a page, run in order at the top of the project, as if typed one after the other."""

    def __init__(self):
        self.names, self.options = {"__name__": "__main__"}, {}

    def block(self, body, condition=None):
        """Code, then what it prints. condition "numpy>=2": leave the block as it is where NumPy is older."""
        code = first_fence(body, "python")
        if condition == "numpy>=2" and int(np.__version__.split(".")[0]) < 2:
            return body
        printed = self.run(code)
        return fence("python", code) + (fence("text", printed) if printed else "")

    def run(self, code):
        """What code prints; an error that nothing catches ends it as on a terminal."""
        out, here = io.StringIO(), os.getcwd()
        try:
            os.chdir(ROOT)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), np.printoptions(**self.options):
                exec(compile(code, "page", "exec"), self.names)
                self.options = np.get_printoptions()
        except Exception as error:
            out.write(traceback.format_exception_only(error)[-1])
        finally:
            os.chdir(here)
        return out.getvalue()


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


def table(header, rows):
    """A Markdown table: text columns to the left, columns of numbers to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    is_number = [all(re.match(r"[-+−]?[\d.,]+\b|–?$", row[i]) for row in rows) for i in range(len(header))]
    lines = [header, ["--:" if number else "---" for number in is_number], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def versions_table():
    """The README's table of versions."""
    speed, rows, before = measuring.relative_speed(), [], None
    for version in versions.VERSIONS:
        name, path = version.name, diffs.VERSIONS[version.name]
        diff = ""
        if before is not None:
            diff = "[+{} −{}](docs/diffs/{}.diff)".format(*diffs.numstat(before, path), name)
        page = f"docs/{name}.md"
        idea = f"[{version.idea}]({page})" if (ROOT / page).exists() else version.idea
        rows.append([f"[{path.name}]({path.name})", idea, diff, version.adds, speed.get(name, "–")])
        before = path
    header = ["file", "its one idea, explained on its page", "diff to read", "adds", "speed with one prompt, v0 = 1"]
    return table(header, rows)


def kinds_of_blocks(shell):
    """What may stand between the marks of one page: {kind: function(body, *words) -> what to write there}."""
    return {
        "python": Session().block,
        "sh": lambda body, *words: sh_block(shell, body, *words),
        "output": lambda body, *words: output_block(shell, shlex.join(words)),
        "diff": lambda body, *words: diffs.diff_block(*words),
        "code": lambda body, *words: diffs.code_block(*words),
        "versions": lambda body: versions_table(),
        "measured": lambda body, what: measuring.TABLES[what](table),
    }


def commands_of(page):
    """The commands whose output a page shows, as its blocks ask for them."""
    for _, what, body, _ in BLOCK.findall(page):
        kind, *words = shlex.split(what)
        if kind == "output":
            yield shlex.join(words)
        elif kind == "sh":
            yield first_fence(body, "sh")


def rebuild(path, shell, problems):
    """A page as it should be. What cannot be made is added to the problems, and stays as it is."""
    kinds = kinds_of_blocks(shell)

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


# ---------------------------------------------------------------- pictures


def data_text(data):
    """A picture's data as JSON, an innermost list a line."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match.group().split()), text) + "\n"


def stamp(name, text):
    """What a picture carries inside: the sha256 of its data and of the code that draws it."""
    code = inspect.getsource(pictures.DRAW[name]) + inspect.getsource(drawing)
    return "drawn-from " + hashlib.sha256((text + code).encode()).hexdigest()


def build_pictures(check, problems):
    """Compare, or else write, docs/pictures/NAME.json, NAME.svg and NAME_dark.svg."""
    for name, make in pictures.DATA.items():
        path = DOCS / "pictures" / f"{name}.json"
        data = make()
        old = json.loads(read(path)) if path.exists() else None
        if not same_data(old, json.loads(data_text(data))):
            if check:
                problems.append(f"{path.relative_to(ROOT)}: the data has changed")
                continue
            write(path, data_text(data))
        text = read(path)
        for theme in pictures.THEMES:
            picture = path.with_name(f"{name}{theme}.svg")
            if picture.exists() and stamp(name, text) in read(picture):
                continue
            if check:
                problems.append(f"{picture.relative_to(ROOT)}: was drawn from other data or by other code")
            else:
                pictures.draw(name, json.loads(text), theme, picture, stamp(name, text))


# ---------------------------------------------------------------- the whole


def build(check=False):
    """Rewrite everything, or with check only compare -> list of problems, one line each."""
    problems, shell = [], Shell()
    try:
        shell.begin(command for path in pages() for command in commands_of(read(path)))
        wanted = {**diffs.diff_files(), **{path: rebuild(path, shell, problems) for path in pages()}}
        if measuring.RESULTS.exists():
            wanted[bench.HERE / "results.md"] = bench.report(measuring.load(measuring.RESULTS))
    finally:
        shell.close()
    wanted[notebook.PATH] = notebook.notebook({path.stem: text for path, text in wanted.items()})
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
    if check and importlib.util.find_spec("markdown_it"):
        import website  # it needs the packages of the extra "site"

        problems += website.problems()
    return problems


def main(check=False, measure=False, site=False):
    """Regenerate what the pages show.

    Args:
        check: write nothing, list what is out of date, and end with status 1 if anything is.
        measure: time the versions and try three BLAS kernels first.
        site: write the pages, as they are, as a site into the folder site.
    """
    if site:
        import website

        print(f"{website.write_site(ROOT / 'site') / 'index.html'}")
        return
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
