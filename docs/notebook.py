"""docs/series.ipynb: the pages of v0 to v3 as one notebook, with the outputs that the pages show."""
import json
import re

from blocks import BLOCK, DOCS, first_fence

PATH = DOCS / "series.ipynb"
SERIES = ("v0", "v1", "v2", "v3")
TITLE = """# GPT-2 in NumPy, v0 to v3

The [README](../README.md) says what this is, [start here](start.md) what a language model does. This notebook has the \
pages of the first four versions. `docs/build.py` makes it from them: change those, not this."""
SETUP = """# Run from the top of the project, wherever the notebook was opened.
import os, sys
from pathlib import Path

root = next(folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "utils.py").exists())
os.chdir(root)
sys.path.insert(0, str(root))
"""


def for_notebook(text):
    """A page's Markdown without what notebooks do not show: marks of build.py, and pictures for dark pages."""
    text = re.sub(r"<!-- (build: .*?|end) -->\n?", "", text)
    return re.sub(r"<picture>.*?(!\[.*?\]\(.*?\))</picture>", r"\1", text).strip()


def parts(page):
    """A page -> [(code or None, text that it prints or Markdown)], a part for each Python block and each heading."""
    at, found, text = 0, [], ""
    for match in BLOCK.finditer(page):
        text += page[at : match.start()]
        if match[2].split()[0] == "python":
            code = first_fence(match[3], "python")
            printed = re.search(r"(?s)```text\n(.*?)```\n", match[3][len(code) :])
            found += [(None, text), (code, printed[1] if printed else "")]
            text = ""
        else:
            text += match[0]
        at = match.end()
    found.append((None, text + page[at:]))
    for code, text in found:
        pieces = [text] if code else re.split(r"\n(?=## )", for_notebook(text))
        yield from ((code, piece) for piece in pieces if code or piece.strip())


def cell(name, kind, source, **more):
    lines = source.strip("\n").splitlines(keepends=True)
    return {"cell_type": kind, "id": name, "metadata": {}, **more, "source": lines}


def notebook(pages):
    """Pages by name, as {"v0": Markdown} -> the text of the notebook."""
    cells = [cell("title", "markdown", TITLE), cell("setup", "code", SETUP, execution_count=1, outputs=[])]
    count = 1
    for name in SERIES:
        for i, (code, text) in enumerate(parts(pages[name])):
            if code is None:
                cells.append(cell(f"{name}-{i}", "markdown", text))
                continue
            count += 1
            stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
            more = {"execution_count": count, "outputs": [stream] if text else []}
            cells.append(cell(f"{name}-{i}", "code", code, **more))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
