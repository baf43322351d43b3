"""The tables "given X, what happens" name a test for each of their rows."""
import functools
import re

import pytest
from tiny import ROOT

HEAD = "| given | what happens | test |"
PAGES = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if HEAD in path.read_text("utf-8")]


@functools.cache
def functions_of(file):
    """The names of the functions in a file of tests."""
    return set(re.findall(r"(?m)^def (\w+)", (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_row_of_the_tables_names_tests_that_exist(path):
    for table in path.read_text(encoding="utf-8").split(HEAD)[1:]:
        rows = table.split("\n\n")[0].strip().splitlines()[1:]
        assert rows
        for row in rows:
            named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
            assert named, row
            for file, test in named:
                assert test in functions_of(file), row


def test_the_page_about_checkpoints_has_the_most():
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert sum(line.endswith("` |") for line in text.splitlines()) > 40
