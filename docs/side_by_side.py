"""Diffs of neighbours for the site: the old file, the new one, and beside each change what the page says about it."""
import html
import itertools
import re
import shlex

import diffs
from blocks import DOCS
from diffs import read
from markup import highlight, render


def explanations(version, before):
    """What the page of a version says below its blocks of code -> [(functions, [Markdown, ...])]."""
    page, found = DOCS / f"{version}.md", []
    text = read(page) if page.exists() else ""
    for what, rest in re.findall(r"(?s)<!-- build: ([^>]*) -->.*?<!-- end -->(.*?)(?=<!-- build:|\n#|\Z)", text):
        kind, *names = shlex.split(what)
        if (kind, names[:2]) == ("diff", [before, version]) or (kind, names[:1]) == ("code", [version]):
            functions = [name.partition(":")[0] for name in names[1 + (kind == "diff") :]]
            items = re.split(r"\n(?=- )|\n\n", rest.strip())
            found.append((functions, [item for item in items if item and not item.startswith("<picture")]))
    return found


def groups_of(rows, same=3):
    """Rows (sign, ...) of one function -> lists of rows, one for each change with the lines around it.

    same: so many equal lines, or more, between two changes part them.
    """
    groups, quiet = [[]], 0
    for row in rows:
        if row[0] != " " and quiet >= same and any(sign != " " for sign, *_ in groups[-1]):
            groups.append([])
        quiet = 0 if row[0] != " " else quiet + 1
        groups[-1].append(row)
    return groups


def fit(item, function, text):
    """How well an explanation fits a change of a function: how many of the names that it has in code the change has.

    One that begins with a function's name belongs to that function.
    """
    names, first = re.findall(r"`([^`\n]+)`", item), re.match(r"(?:- )?(?:In )?`(\w+)`", item)
    found = [name for name in names if name != function and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    return len(found) + (100 if first and first[1] == function else 0.5 * (function in names))


def place(items, groups):
    """Explanations of functions, and their changes -> the items for each change.

    groups: [(function, its changed lines as one text)]. An item goes to the change that it fits best; of equal ones to
    the next from the place of the item before. A function that is left without one shares that which fits it best, if
    one fits at all.
    """
    placed, last = [[] for _ in groups], 0
    for item in items:
        scores = [fit(item, *group) for group in groups]
        if max(scores) > 0:
            last = max([*range(last, len(groups)), *range(last)], key=scores.__getitem__)
        placed[last].append(item)
    told = {function for (function, _), mine in zip(groups, placed) if mine}
    for i, (function, text) in enumerate(groups):
        if items and function not in told:
            best = max(items, key=lambda item: fit(item, function, text))  # noqa: B023 (used at once)
            if fit(best, function, text) > 0:
                placed[i].append(best)
                told.add(function)
    return placed


def sides(group):
    """Rows (sign, number, HTML) of a change -> a table, the old file on the left and the new one on the right."""
    lines, waiting = [], []  # waiting: lines of the old file without a partner yet

    def line(old, new):
        cells = ""
        for row, kind in ((old, "minus"), (new, "plus")):
            sign, number, text = row or ("", "", "")
            name = "none" if row is None else kind if sign != " " else "twice" if kind == "minus" else ""
            cells += f'<td class="number {name}">{number}</td><td class="code {name}">{text}</td>'
        lines.append(f"<tr>{cells}</tr>")

    for row in [*group, (" ", 0, 0, "")]:
        sign, old, new, text = row
        if sign == "-":
            waiting.append((sign, old, text))
        elif sign == "+":
            line(waiting.pop(0) if waiting else None, (sign, new, text))
        else:
            while waiting:
                line(waiting.pop(0), None)
            if new:
                line((sign, old, text), (sign, new, text))
    widths = '<colgroup><col class="number"><col><col class="number"><col></colgroup>'
    return f'<table class="sides">{widths}<tbody>{"".join(lines)}</tbody></table>'


def owners_of(labels):
    """Labels of a file's lines (diffs.label_lines) -> the same, with a function's name for its docstring, too."""
    return list(itertools.accumulate(labels, lambda above, label: label or above))


def diff_page(version, before):
    """-> Markdown's HTML of a diff, and its changes for which the page has no words."""
    texts = {"-": read(diffs.VERSIONS[before]), "+": read(diffs.VERSIONS[version])}
    colored = {side: highlight(text, "python").splitlines() for side, text in texts.items()}
    at, functions, last, begun, explained = {"-": 0, "+": 0}, {}, {}, set(), set()
    labels = diffs.label_lines(diffs.VERSIONS[version])
    owners = {"-": owners_of(diffs.label_lines(diffs.VERSIONS[before])), "+": owners_of(labels)}
    for sign, name, line in diffs.diff_lines(before, version):
        for side in "-+":
            at[side] += sign in (" ", side)
        side = "-" if sign == "-" else "+"
        if name == "docstring" and "imports" in functions:
            name, label = None, last[side]  # a call between functions belongs to the function above it
        else:
            label = name or owners[side][at[side] - 1]
        last.update(dict.fromkeys("-+", label) if sign == " " else {side: label})
        if line.strip() or (label, sign) in begun:  # blank lines in front of a function tell nothing
            begun |= {(label, sign), (label, "-"), (label, "+")} if sign == " " else {(label, sign)}
            functions.setdefault(label, []).append((sign, at["-"], at["+"], colored[side][at[side] - 1]))
        if sign != " " and name and line.strip():  # more than its docstring changes
            explained.add(name)

    first = {name: min([row[2] for row in rows if row[0] != "-"] or [rows[0][2]]) for name, rows in functions.items()}
    functions = {name: functions[name] for name in sorted(first, key=first.get)}  # in the order of the new file
    groups = {name: groups_of(rows) for name, rows in functions.items() if any(sign != " " for sign, *_ in rows)}
    words = {name: [[] for _ in mine] for name, mine in groups.items()}
    for names, items in explanations(version, before):
        known = [(name, i) for name in dict.fromkeys(names) if name in groups for i in range(len(groups[name]))]
        changed = [
            (name, re.sub("<[^>]*>", "", html.unescape(" ".join(row[3] for row in groups[name][i] if row[0] != " "))))
            for name, i in known
        ]
        for (name, i), mine in zip(known, place(items, changed) if known else []):
            words[name][i] += mine

    body, silent = [], []
    for name, rows in functions.items():
        if name not in groups:
            code = "\n".join(row[3] for row in rows).strip("\n")
            size = len([row for row in rows if row[3].strip()])
            body.append(f'<details class="same"><summary><code>{name}</code> unchanged, {size} lines</summary>')
            body.append(f'<pre class="code">{code}</pre></details>')
            continue
        body.append(f'<section id="{name}"><h2><code>{name}</code></h2>')
        note = {"docstring": "What the file says about itself.", "imports": "What the file needs."}.get(name)
        note = note or ("" if name in explained else "Only its docstring changes.")
        if name not in labels:
            note = "Gone in the new file."
        joined = []  # a change without words of its own stands beside those of the one before it, or after
        for group, mine in zip(groups[name], words[name]):
            if joined and (not mine or not joined[-1][1]):
                joined[-1] = (joined[-1][0] + group, joined[-1][1] + mine)
            else:
                joined.append((group, mine))
        for group, mine in joined:
            if not mine and not note:
                silent.append(f"{version}: {name}")
            text = render("\n".join(mine) or note)
            body.append(f'<div class="hunk">{sides(group)}<aside>{text}</aside></div>')
        body.append("</section>")
    old, new = diffs.VERSIONS[before].name, diffs.VERSIONS[version].name
    head = f"# From {before} to {version}\n\n[{old}](../{old}) on the left, [{new}](../{new}) on the right."
    if (DOCS / f"{version}.md").exists():
        head += f" The words beside a change are those of [the page of {version}]({version}.md)."
    return render(head) + "\n".join(body), silent
