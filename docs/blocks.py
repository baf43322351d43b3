"""The pages, and the blocks on them that docs/build.py fills."""
import re
from pathlib import Path

import utils

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BLOCK = re.compile(r"(<!-- build: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages():
    """README.md and docs/*.md."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def first_fence(body, language):
    """The code that stands by hand in a block."""
    match = re.match(rf"(?s)```{language}\n(.*?)```\n", body)
    if not match:
        raise utils.UserError(f"a block of this kind begins with ```{language}")
    return match.group(1)
