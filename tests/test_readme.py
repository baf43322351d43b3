"""The table "given X, what happens" of the README names a test for each of its rows."""
import ast
import re

from tiny import ROOT


def test_each_row_of_the_table_names_tests_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| given | what happens | test |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) > 25
    for row in table:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
            assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, row
