"""The pages as a site of plain files: python docs/build.py --site writes it to site/. Open site/index.html.

It needs markdown-it-py and Pygments (pip install -e '.[site]'), no server and no network. Beside the pages it has the
diffs (side_by_side.py), a page that is alive (live.py), the files that pages link to, and a search. The frame of the
pages, and the JavaScript, is in docs/web.
"""
import html
import json
import os
import re
from pathlib import PurePosixPath
from string import Template

import diffs
import live
from blocks import DOCS, ROOT, pages
from diffs import read
from markup import highlight, render, style
from side_by_side import diff_page

WEB = DOCS / "web"
LINK = re.compile(r'\b(href|src|srcset)="([^"]*)"')
FIRST = ["index", "start", *diffs.VERSIONS, "live", "glossary", "diffs"]  # in the line of links; others follow
NAMES = {"index": "GPT-2 in NumPy", "diffs": "all diffs", "live": "watch it work"}


# ---------------------------------------------------------------- addresses


def address(path):
    """Where the site has a file or folder of the project; path is relative to the project."""
    path = PurePosixPath(path)
    if path.suffix in (".svg", ".png"):
        return f"pictures/{path.name}"
    if path == PurePosixPath("README.md"):
        return "index.html"
    if path == PurePosixPath("docs/diffs"):
        return "diffs.html"
    if path.parent == PurePosixPath("docs/diffs"):
        return f"diff_{path.stem}.html"
    if path.parent == PurePosixPath("docs") and path.suffix == ".md":
        return f"{path.stem}.html"
    return f"files/{path}" if path.suffix == ".ipynb" else f"files/{path}.html"


def with_addresses(body, path, linked):
    """HTML made of a page in which links lead to the site's files. What they link to is added to the set linked."""

    def replace(match):
        kind, target = match.groups()
        target, _, anchor = html.unescape(target).partition("#")
        if not target or re.match(r"\w+:", target):
            return match.group()
        target = os.path.relpath((path.parent / target).resolve(), ROOT).replace(os.sep, "/")
        linked.add(target)
        return f'{kind}="{address(target)}{"#" * bool(anchor)}{anchor}"'

    return LINK.sub(replace, body)


# ---------------------------------------------------------------- the whole


def sections(name, title, body):
    """What the search knows of a page: [address, page, heading, text] for each heading."""
    body = re.sub(r'(?s)<(noscript|table class="sides"|details class="same")\b.*?</(noscript|table|details)>', "", body)
    body = re.sub(r"</?(span|code|a|strong|em)\b[^>]*>", "", body)  # these part no words
    parts = re.split(r'(?s)<h[123](?: id="([^"]*)")?>(.*?)</h[123]>', body)
    found = []
    for anchor, heading, text in zip(parts[1::3], parts[2::3], parts[3::3]):
        heading, text = (" ".join(html.unescape(re.sub("<[^>]*>", " ", part)).split()) for part in (heading, text))
        found.append([name + (f"#{anchor}" if anchor else ""), title, heading, text])
    return found


def make_site():
    """-> ({name: text or bytes} of all files, changes without words)."""
    bodies, linked, silent = {}, set(), []  # bodies: {name: (kind, path that its links are relative to, HTML)}
    for path in pages():
        text = re.sub(r"<!-- (build: .*?|end) -->\n?", "", read(path))
        bodies[address(path.relative_to(ROOT).as_posix())] = ("page", path, render(text))
    listed = "# All diffs\n"
    for version, new, old in diffs.neighbours():
        before = next(name for name, path in diffs.VERSIONS.items() if path == old)
        body, without = diff_page(version, before)
        silent += without
        bodies[f"diff_{version}.html"] = ("diff", DOCS / f"{version}.md", body)
        listed += f"\n- [from {old.name} to {new.name}](diffs/{version}.diff)"
    bodies["diffs.html"] = ("page", DOCS / "diffs.md", render(listed))
    links = {version: f"{version}.md" for version in diffs.VERSIONS}
    bodies["live.html"] = ("live", DOCS / "live.md", Template(read(WEB / "live.html")).substitute(links))

    bodies = {name: (kind, with_addresses(body, path, linked)) for name, (kind, path, body) in bodies.items()}
    files = {}
    for target in sorted(linked):
        path, name = ROOT / target, address(target)
        if path.suffix in (".svg", ".png", ".ipynb"):
            files[name] = path.read_bytes()
        elif name not in bodies and path.exists():
            text = "\n".join(sorted(p.name for p in path.iterdir())) if path.is_dir() else read(path)
            code = highlight(text, {".py": "python", ".json": "json"}.get(path.suffix, ""))
            bodies[name] = ("file", f'<h1>{target}</h1><pre class="code">{code}</pre>')

    order = [f"{name}.html" for name in FIRST if f"{name}.html" in bodies]
    order += [name for name, (kind, _) in bodies.items() if kind == "page" and name not in order]
    index = []
    for name, (kind, body) in bodies.items():
        root = "../" * name.count("/")
        heading = re.search(r"(?s)<h1[^>]*>(.*?)</h1>", body)
        title = re.sub("<[^>]*>", "", heading.group(1)) if heading else name
        if kind != "file":
            index += sections(name, html.unescape(title), body)
        nav = " ".join(
            f'<a href="{root}{other}"{" aria-current=page" * (other == name)}>{NAMES.get(other[:-5], other[:-5])}</a>'
            for other in order
        )
        scripts = "".join(f'<script src="{file}"></script>\n' for file in ("live_data.js", "live.js") if kind == "live")
        known = {"title": title, "nav": nav, "root": root, "kind": kind, "body": body, "scripts": scripts}
        files[name] = Template(read(WEB / "page.html")).substitute(known)
    files["style.css"] = style() + read(WEB / "style.css")
    files["search.js"], files["live.js"] = read(WEB / "search.js"), read(WEB / "live.js")
    files["search_index.js"] = f"const SEARCH_INDEX = {json.dumps(index, ensure_ascii=False)};\n"
    files["live_data.js"] = f"const LIVE = {json.dumps(live.data(), ensure_ascii=False, separators=(',', ':'))};\n"
    return files, silent


def lost_links(files):
    """Links of the site that lead nowhere, one line each."""
    anchors = {name: re.findall(r'\bid="([^"]+)"', text) for name, text in files.items() if name.endswith(".html")}
    lost = []
    for name in anchors:
        for _, target in LINK.findall(files[name]):
            if re.match(r"\w+:", target):
                continue
            path, _, anchor = html.unescape(target).partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(name), path)).replace(os.sep, "/") if path else name
            if path not in files or anchor and anchor not in anchors[path]:
                lost.append(f"site/{name}: {target} leads nowhere")
    return lost


def problems():
    """What is wrong with the site that the pages make, one line each."""
    files, silent = make_site()
    return lost_links(files) + [f"the page of {change} changes, but nothing is said about it" for change in silent]


def write_site(folder):
    """Write the site into a folder, over what was there -> the folder."""
    for name, text in make_site()[0].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder
