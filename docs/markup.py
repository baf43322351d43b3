"""Markdown and code as HTML, for the site."""
import unicodedata

import utils

try:
    import markdown_it
    import pygments
    import pygments.formatters
    import pygments.lexers
except ImportError as error:
    raise utils.UserError(f"the site needs {error.name}: pip install -e '.[site]'") from None

LEXERS = {"python": "python", "diff": "diff", "sh": "bash", "json": "json"}


def highlight(code, language=""):
    lexer = pygments.lexers.get_lexer_by_name(LEXERS.get(language, "text"), stripnl=False)
    return pygments.highlight(code, lexer, pygments.formatters.HtmlFormatter(nowrap=True))


def slug(title, used):
    """The anchor that GitHub gives to a heading."""
    kept = (c for c in title.lower() if c in "-_ " or unicodedata.category(c)[0] in "LN")
    anchor = "".join(kept).replace(" ", "-")
    return anchor if anchor not in used else f"{anchor}-1"


def render(text):
    """Markdown, as GitHub understands it -> HTML with an anchor at each heading."""
    code = {"highlight": lambda code, language, _: f'<pre class="code">{highlight(code, language)}</pre>'}
    markdown = markdown_it.MarkdownIt("commonmark", code).enable("table")
    tokens, used = markdown.parse(text), set()
    for token, inline in zip(tokens, tokens[1:]):
        if token.type == "heading_open":
            title = "".join(part.content for part in inline.children if part.type in ("text", "code_inline"))
            token.attrSet("id", slug(title, used))
            used.add(token.attrs["id"])
    body = markdown.renderer.render(tokens, markdown.options, {})
    return body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def style():
    """The colours of code, light and dark, as CSS."""
    light, dark = (
        pygments.formatters.HtmlFormatter(style=name).get_style_defs(".code") for name in ("default", "github-dark")
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
