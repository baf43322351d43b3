"""The table "given X, what happens" of the README names a test for each of its rows."""
import ast
import functools
import re

from tiny import ROOT


@functools.cache
def functions_of(file):
    """The names of the functions in a file of tests."""
    tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_row_of_the_table_names_tests_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| given | what happens | test |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) > 25
    for row in table:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert test in functions_of(file), row
