"""The pages: nothing on them is out of date, every command and every line of code runs, every link leads somewhere."""
import json
import re
import shlex
import subprocess
import sys
import textwrap
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from tiny import ROOT, V0, random_model, random_prompts

import attention
import build
import gpt2_v2_padding
import gpt2_v3_kvcache
import measure

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in build.pages()}
VERSION_PAGES = [name for name in PAGES if re.fullmatch(r"docs/v\d+\.md", name)]
LINE_BY_LINE = VERSION_PAGES[:7]  # v0 to v6; the pages of v7 and later show what matters of larger diffs
WITH_EXERCISES = [*LINE_BY_LINE, "docs/v7.md", "docs/v8.md", "docs/v9.md"]
BUILT = {command for text in PAGES.values() for command in build.commands_of(text)}  # run by build.py --check
every_page = pytest.mark.parametrize("page", PAGES)


@pytest.fixture(scope="module")
def shell():
    """Commands run in a copy of the project, with the files that docs/jobs.md speaks of."""
    shell = build.Shell()
    (shell.root / "prompts.jsonl").write_text('{"prompt": "One day", "max_tokens": 2}\n', encoding="utf-8")
    (shell.root / "texts.txt").write_text("Once upon a time\n", encoding="utf-8")
    yield shell
    shell.close()


@pytest.mark.slow
def test_everything_is_up_to_date():
    """What `python docs/build.py --check` says, by the command itself."""
    command = [sys.executable, "docs/build.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=600)
    assert (result.returncode, result.stderr) == (0, "")


# ---- build.py finds what it should


@pytest.mark.parametrize(
    "old, new, same",
    [
        ("0.25 of 3", "0.26 of 3", True),
        ("0.25 of 3", "0.27 of 3", False),
        ("0.25 of 3", "0.25 of 4", False),
        ("-1.5e-05", "-1.6e-05", True),
        ("-1.5e-05", "1.5e-05", False),
        ("1.0 a", "1.0 b", False),
        ("1.0 2.0", "1.0", False),
        ("0.9", "0.90", False),
    ],
)
def test_floats_may_differ_in_their_last_place_and_nothing_else(old, new, same):
    assert build.same_text(old, new) is same


def test_data_of_pictures_is_compared_with_room_for_rounding():
    data = {"tokens": ["a"], "weights": [[0.25, 1.0]], "layer": 1}
    assert build.same_data(data, {**data, "weights": [[0.2501, 1.0]]})
    for other in ({"weights": [[0.26, 1.0]]}, {"weights": [[0.25]]}, {"tokens": ["b"]}, {"layer": 2}, {"more": 0}):
        assert not build.same_data(data, {**data, **other})


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, old, new, told",
    [
        (
            "gpt2_v3_kvcache.py", "T of the T_max slots", "T slots",
            ["docs/v3.md: line", "diffs/v3.diff", "diffs/v4.diff", "README.md: line", "docs/series.ipynb: line"],
        ),
        ("docs/v2.md", "[[-1 -1  0  1]]", "[[-1 -1  0  2]]", ["docs/v2.md: line"]),
        ("docs/v0.md", "scores, 'at' [-14.02", "scores, 'at' [-14.22", ["docs/v0.md: line"]),
        ("docs/series.ipynb", "k of ' m'    [ 0.89", "k of ' m'    [ 0.99", ["docs/series.ipynb: line"]),
        ("README.md", "| batch inference |", "| batches |", ["README.md: line"]),
        ("docs/pictures/v2_ragged.json", '"pad"', '"pads"', ["docs/pictures/v2_ragged.json"]),
        ("docs/pictures/v4_distribution.svg", "drawn-from", "drawn by", ["docs/pictures/v4_distribution.svg"]),
        ("docs/pictures.py", "height_ratios=[2.3, 4.1]", "height_ratios=[2, 4]", ["v2_ragged.svg", "v2_ragged_d"]),
        ("docs/v1.md", "build: diff v0 v1 ", "build: diff v0 v1 softmax ", ["nothing changes in softmax"]),
    ],
)  # fmt: skip
def test_what_drifts_is_found(name, old, new, told):
    shell = build.Shell()
    try:
        path = shell.root / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        status, output = shell.run("python docs/build.py --check")
        assert status == 1
        assert all(line in output for line in told)
        assert len(output.splitlines()) <= len(told) + 8  # what it says of other pages comes of the same edit
    finally:
        shell.close()


def greedy_runs():
    """-> (prompt, tokens to generate) of the greedy commands whose output the pages show."""
    for line in {line for command in BUILT for line in command.splitlines()}:
        words = shlex.split(line) if line.startswith("python gpt2_v") else ["--temperature"]
        if "--temperature" not in words:
            flags = words.index("--n_tokens_to_generate") if "--n_tokens_to_generate" in words else len(words)
            n = int(words[flags + 1]) if flags < len(words) else 40
            yield from ((prompt, n) for prompt in words[2:flags])


@pytest.mark.slow
def test_greedy_texts_do_not_hang_by_a_hair():
    """The best two logits are 1e-3 or more apart at each step. Rounding moves them by 1e-5."""
    encoder, hparams, params = build.utils.load_model("tales")
    runs = list(greedy_runs())
    assert len(runs) >= 5
    for prompt, n in runs:
        ids = encoder.encode(prompt)
        new_ids = gpt2_v3_kvcache.generate([ids], params, hparams["n_head"], n)[0]
        logits = gpt2_v2_padding.gpt2([ids + new_ids[:-1]], **params, n_head=hparams["n_head"])[0, len(ids) - 1 :]
        second, best = np.sort(logits, axis=-1)[:, -2:].T
        assert np.argmax(logits, axis=-1).tolist() == new_ids
        assert np.min(best - second) > 1e-3, prompt


@pytest.mark.kernels
@pytest.mark.parametrize("kernel", measure.CORETYPES)
def test_outputs_do_not_depend_on_the_kernel(kernel):
    """Greedy texts are chosen so that no two best logits are near each other, numbers are shown with few digits."""
    code = "import numpy, threadpoolctl; print(threadpoolctl.threadpool_info())"
    shell = build.Shell()
    try:
        shell.environment["OPENBLAS_CORETYPE"] = kernel
        if kernel.lower() not in shell.run(f"python -c {shlex.quote(code)}")[1].lower():
            pytest.skip(f"the kernels for {kernel} do not run on this processor")
        status, output = shell.run("python docs/build.py --check")
        assert status == 0, output
    finally:
        shell.close()


# ---- what pages look like


@pytest.mark.parametrize("page", VERSION_PAGES)
def test_pages_of_versions_are_short(page):
    """In words outside of code, of tables, and of the built lines that say how a table was measured."""
    text = re.sub(r"(?s)<!-- build: measured .*?<!-- end -->", "", PAGES[page])
    assert len(re.sub(r"(?ms)^ *```.*?^ *```$|^\|[^\n]*$", "", text).split()) <= 1100


@pytest.mark.parametrize("page", LINE_BY_LINE[1:])
def test_a_page_shows_every_line_that_changes(page):
    """But for docstrings, the top of a file, where its idea is named, and what a function shown whole replaces."""
    names = list(build.diffs.VERSIONS)
    name = Path(page).stem
    rows = build.diffs.diff_rows(names[names.index(name) - 1], name)
    shown = {line.lstrip("+-") for line in PAGES[page].splitlines()}
    whole = {label for found in re.findall(rf"build: code {name} (.*?) -->", PAGES[page]) for label in found.split()}
    rows = [row for row in rows if row[0] == "+" or row[1] not in whole]
    changed = [line for sign, label, line in rows if sign != " " and line and label != "docstring"]
    assert [line for line in changed if line not in shown] == []


def test_the_page_of_v0_shows_the_whole_model():
    shown = set(PAGES["docs/v0.md"].splitlines())
    labels = build.diffs.label_lines(build.diffs.VERSIONS["v0"])
    lines = build.diffs.read(build.diffs.VERSIONS["v0"]).splitlines()
    left_out = ("docstring", "imports", "main", "end", None)
    assert [line for label, line in zip(labels, lines) if label not in left_out and line and line not in shown] == []


def test_every_version_has_its_page():
    names = {f"docs/v{re.search(r'v([0-9]+)', path.name).group(1)}.md" for path in ROOT.glob("gpt2_v*.py")}
    assert names <= set(PAGES)


def without_code(page):
    return re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", PAGES[page])


def anchors(text):
    """The anchors of a page: those that it names, and those that GitHub gives to its headings."""
    found = set(re.findall(r'<a id="([^"]+)"></a>', text))
    for title in re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text)):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        kept = (c for c in title if c in "-_ " or unicodedata.category(c)[0] in "LN")
        anchor = "".join(kept).replace(" ", "-")
        found.add(anchor if anchor not in found else f"{anchor}-1")
    return found


@every_page
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", without_code(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


@every_page
def test_pictures_have_alternative_text(page):
    for text, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", PAGES[page]):
        assert len(text) > 40, target
        assert (ROOT / page).parent.joinpath(target).exists()


def test_every_picture_is_used_in_light_and_dark():
    for name in build.pictures.DATA:
        light, dark = f"pictures/{name}.svg", f"pictures/{name}_dark.svg"
        uses = [page for page in PAGES.values() if light in page]
        assert uses
        for page in uses:
            assert f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">![' in page or f"docs/{light}" in page
    files = {path.stem for path in (ROOT / "docs" / "pictures").iterdir()}
    assert files == {name + theme for name in build.pictures.DATA for theme in build.pictures.THEMES}


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_have_a_ground_of_their_own(path):
    """The first thing in them is a rectangle as large as the picture, so no page shows through."""
    text = path.read_text(encoding="utf-8")
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()
    ground = build.pictures.THEMES["_dark" if path.stem.endswith("_dark") else ""].ground
    first = re.search(rf'(?s)<path d="([^"]*)"[^>]*style="fill: {ground}"', text).group(1)
    assert {width, height} <= set(first.split())


# ---- every command runs


# What is left to do of commands that would run this suite within itself, or change this machine: to see that they find
# tests, and that what they would install is in pyproject.toml. .ci/run does them for good.
COLLECT = re.compile(r"python -m pytest(?: -m (?:\w+|\"[^\"]*\"))?(?: -n 0)?$")
INSTALL = re.compile(r"pip install (-r \S+|-e '\.\[[\w,]+\]'|[\w.=]+)(?: && |$)")
ELSEWHERE = {  # these need a clone, the next is refused (test_packaging.py), and the last needs Ray (test_ray.py)
    "git lfs pull", *(f"git checkout {path.name}" for path in build.diffs.VERSIONS.values()), "pip install .",
    "python jobs.py complete prompts.jsonl --out results/ --ray",
}  # fmt: skip
NO_NETWORK = {"python utils.py download 124M": (2, "HF_HUB_OFFLINE")}
INSTEAD = {
    "python gpt2_v5_exact.py PROMPT --seed SEED": "python gpt2_v5_exact.py Once --seed 3 --temperature 1",
    'python gpt2_v4_sampling.py "464 11" --model FOLDER': 'python gpt2_v4_sampling.py "464 11"',
    # of an hour each
    "python tools/fuzz.py all --runs 1000000 --seed 1 --out build/fuzz.json": "python tools/fuzz.py config --runs 300",
    "python tools/fuzz.py all --runs 10000 --guided=False": "python tools/fuzz.py vocab --runs 300 --guided=False",
    "python tools/load.py --n_prompts 2000 --batch_size 32 --model tales --seed 1 --out build/load.json": (
        "python tools/load.py --n_prompts 8 --batch_size 4 --model tales --seed 1 --out build/load.json"
    ),
    "python tools/verify.py": "python tools/verify.py --max_length 5",
    "python benchmarks/bench.py": "python benchmarks/bench.py --quick --only sequence --model tales",
    "python benchmarks/bench.py --goals": "python benchmarks/bench.py --goals --only context --model tales",
    "python benchmarks/bench.py --quick": "python benchmarks/bench.py --quick --only prefill --model tales",
    "python benchmarks/bench_jobs.py":
        "python benchmarks/bench_jobs.py --only lookup-tales-code-8 --rounds 1 --out build/j.json",
}
NO_WEIGHTS = "python -m pytest tests/test_real_weights.py -rs"


def commands(page):
    """All commands of a page that build.py does not run: lines of blocks, and code within text that is a command."""
    text = build.BLOCK.sub("", PAGES[page])
    lines = [line for block in re.findall(r"(?ms)^```(?:sh)?\n(.*?)^```$", text) for line in block.splitlines()]
    lines = [line.partition("  #")[0].strip() for line in lines if re.match(r"(python|git|pip) ", line)]
    lines += re.findall(r"`((?:python|git|pip) [^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))
    return [line for line in dict.fromkeys(lines) if line not in BUILT]


COMMANDS = {command: page for page in PAGES for command in commands(page)}
EXERCISES = [c for c, page in COMMANDS.items() if page in VERSION_PAGES and c.startswith("python -m pytest ")]
SLOW_PARTS = r"pytest|docs/build\.py|benchmarks/|tools/"
SLOW = [c for c in COMMANDS if re.search(SLOW_PARTS, c) and c not in EXERCISES]
FAST = [c for c in COMMANDS if c not in SLOW and c not in EXERCISES and c not in ELSEWHERE]


def run(shell, command):
    for what in INSTALL.findall(command):
        name = shlex.split(what)[-1]
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        if what.startswith("-r"):
            assert (ROOT / name).exists()
        elif what.startswith("-e"):
            assert set(name[2:-1].split(",")) <= set(re.findall(r"(?m)^(\w+) = \[", project))
        else:
            assert f'"{name}>=' in project
    command = INSTALL.sub("", command)
    command = INSTEAD.get(command, command)
    if COLLECT.match(command):
        status, output = shell.run(f"{command} --collect-only")
        assert status == 0, output
    elif command in NO_NETWORK:
        expected, word = NO_NETWORK[command]
        status, output = shell.run(command)
        assert status == expected and word in output and len(output.splitlines()) == 1
    elif command == NO_WEIGHTS:
        status, output = shell.run(command)
        assert status in (0, 5) and re.search(r"weights not found|\d+ passed", output)  # 5: no tests
    elif command:
        results = shell.root / "results.jsonl"
        results.unlink(missing_ok=True)  # of another job
        status, output = shell.run(command)
        expected = (0, 1) if command.startswith("git diff --no-index") else (0,)  # 1: the files differ
        assert status in expected, output
        assert output.strip() or "--out" in command


@pytest.mark.parametrize("command", FAST)
def test_commands(shell, command):
    run(shell, command)


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in SLOW if "--measure" not in c])
def test_slow_commands(command):
    shell = build.Shell()  # of its own, as some of them write files
    try:
        run(shell, command)
    finally:
        shell.close()


@pytest.mark.slow
def test_measuring(monkeypatch, tmp_path):
    """`python docs/build.py --measure`, with one short round."""
    speed, kernels, exact = (tmp_path / f"{name}.json" for name in ("speed", "kernels", "exact"))
    exact.write_text(json.dumps({"cost": measure.load(measure.EXACT)["cost"]}), encoding="utf-8")
    short = {"ROUNDS": 1, "N_NEW": 3, "N_STEPS": 310, "VERIFIED": {"tales": ("the bundled model", 2)}}
    for name, value in {"SPEED": speed, "KERNELS": kernels, "EXACT": exact, **short}.items():
        monkeypatch.setattr(measure, name, value)
    measure.measure_all()
    for path in (speed, kernels, exact):
        new, old = measure.load(path), measure.load(ROOT / "docs" / "measured" / path.name)
        assert list(new) == list(old)
    assert set(measure.load(speed)["seconds"]["one"]) == set(build.diffs.VERSIONS)
    for make in measure.TABLES.values():
        assert make(build.table)


# ---- every exercise can be done, and its test tells


def exercises():
    """-> [(page, text, command, answer)]: the answer is the diff that the page shows, folded."""
    for page in WITH_EXERCISES:
        section = PAGES[page].partition("## Exercises")[2]
        for text in re.split(r"(?m)^\d\. ", section)[1:]:
            answer = re.search(r"(?ms)^   ```diff\n(.*?)^   ```$", text)
            commands = re.findall(r"`(python -m pytest [^`]+)`", text)
            yield page, text, commands[0], answer and textwrap.dedent(answer[1])


def with_answer(code, answer):
    """A file's text in which the lines of an answer that begin with - stand replaced by those that begin with +."""
    lines = answer.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    assert code.count(old) == 1, old
    return code.replace(old, new)


@pytest.mark.parametrize("page", WITH_EXERCISES)
def test_exercises_have_what_a_learner_needs(page):
    name = build.diffs.VERSIONS[Path(page).stem].name
    assert f"`git checkout {name}` undoes an edit" in PAGES[page]
    mine = [exercise for exercise in exercises() if exercise[0] == page]
    assert len(mine) >= 2
    for _, text, _, answer in mine:
        assert "<summary>Hint</summary>" in text and "<summary>Answer</summary>" in text
        assert ("stays green" in text) != ("goes red" in text)
        with_answer((ROOT / name).read_text(encoding="utf-8"), answer)


@pytest.mark.slow
@pytest.mark.parametrize("page, text, command, answer", list(exercises()))
def test_exercises(page, text, command, answer):
    """Before, the command passes; with the answer of the page it passes or fails, as the page says."""
    shell = build.Shell()
    try:
        path = shell.root / build.diffs.VERSIONS[Path(page).stem].name
        assert shell.run(command)[0] == 0
        path.write_text(with_answer(path.read_text(encoding="utf-8"), answer), encoding="utf-8")
        status, output = shell.run(command)
        passes = "stays green" in text
        assert status == (0 if passes else 1), output
        assert re.search(r"\d+ passed" if passes else r"\d+ failed", output)
    finally:
        shell.close()


# ---- code that build.py does not run


def test_only_the_program_about_kernels_is_left_to_this_file():
    """All other Python blocks stand between marks of build.py, which runs them, or takes them from the files."""
    left = [page for page, text in PAGES.items() if "```python" in build.BLOCK.sub("", text)]
    assert left == ["docs/exactness.md"]
    assert build.BLOCK.sub("", PAGES["docs/exactness.md"]).count("```python") == 1


@pytest.mark.slow
def test_the_program_about_kernels(shell):
    """In np.longdouble no bit differs. How many do in float32 depends on the kernel."""
    (shell.root / "program.py").write_text(measure.kernel_program(), encoding="utf-8")
    status, output = shell.run("python program.py")
    assert status == 0, output
    rows = measure.parse_program_output(output.splitlines())
    kept = measure.load(measure.KERNELS)["seen"]
    assert all([row[:2] for row in rows] == [row[:2] for row in seen] for seen in kept.values())
    assert all(n == 0 for dtype, _, n, _, _ in rows if dtype == "longdouble")
    assert all(float(most) < 1e-3 for *_, most in rows)


# ---- docs/attention.py


def test_attention_weights_are_those_of_v0(monkeypatch):
    """The weights that v0's softmax makes, block by block, while it runs."""
    model, prompts = random_model(), random_prompts([9])
    seen, softmax = [], V0.module.softmax
    monkeypatch.setattr(V0.module, "softmax", lambda x, **known: seen.append(softmax(x, **known).copy()) or seen[-1])
    V0.logits(model, prompts)
    weights = attention.attention_weights(prompts, model.params, model.n_head)
    assert weights.shape == (2, 1, 3, 9, 9)
    np.testing.assert_array_equal(weights[:, 0].reshape(6, 9, 9), np.array(seen).reshape(6, 9, 9))


def test_attention_weights_do_not_see_pads():
    model, prompts = random_model(), random_prompts([9, 4])
    input_ids, mask = gpt2_v2_padding.left_pad(prompts)
    weights = attention.attention_weights(input_ids, model.params, model.n_head, mask)
    alone = attention.attention_weights(prompts[1:], model.params, model.n_head)
    np.testing.assert_array_equal(weights[:, 1, :, 5:, 5:], alone[:, 0])
    assert not np.any(weights[:, 1, :, 5:, :5])


def test_the_table_of_attention_weights():
    weights = np.array([[1, 0, 0], [0.25, 0.75, 0], [0, 0.126, 0.874]])
    assert attention.as_table(weights, ["a", " long", "\n"]).splitlines() == [
        "          a   long    \\n",
        "a      1.00",
        " long  0.25   0.75",
        "\\n     0.00   0.13  0.87",
    ]


@pytest.mark.parametrize("flags, n", [("--head all", 6), ("--layer all --head 3", 6)])
def test_all_heads_and_all_layers(edge, flags, n):
    result = edge(attention.main, "The cat sat", *flags.split())
    assert result.returncode == 0
    assert len(re.findall(r"(?m)^layer \d, head \d$", result.stdout)) == n
    assert result.stdout.count("1.00") >= n


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("x --layer 6", "--layer must be a whole number below 6"),
        ("x --head -1", "--head must be a whole number below 6"),
        ("x --head some", "'some'"),
        ("x y", "one text, not 2"),
        ("", "one text, not 0"),
    ],
)
def test_mistakes_are_one_line(edge, arguments, words):
    result = edge(attention.main, *arguments.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and words in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.extra
@pytest.mark.parametrize("head", ["0", "all"])
def test_attention_as_a_picture(shell, head):
    status, output = shell.run(f'python docs/attention.py "The cat sat on the mat" --head {head} --png heads.png')
    assert status == 0, output
    data = (shell.root / "heads.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") > 300  # pixels wide


@pytest.mark.extra
def test_pictures_are_drawn_again_where_their_data_changed():
    shell = build.Shell()
    try:
        pictures = shell.root / "docs" / "pictures"
        before = {path.name: path.read_bytes() for path in pictures.iterdir()}
        (pictures / "attention.json").unlink()
        (pictures / "v3_cache.svg").unlink()
        assert shell.run("python docs/build.py") == (0, "all pages are up to date\n")
        after = {path.name: path.read_bytes() for path in pictures.iterdir()}
        assert set(after) == set(before)
        assert all(b"drawn-from" in after[name] for name in after if name.endswith(".svg"))
        assert shell.run("python docs/build.py --check")[0] == 0
    finally:
        shell.close()


@pytest.mark.reference
def test_attention_weights_are_those_of_transformers():
    import torch
    import transformers

    encoder, hparams, params = build.utils.load_model("tales")
    ids = encoder.encode("The king said to the old woman that the king was dead")
    folder = str(ROOT / "models" / "tales")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), output_attentions=True).attentions
    weights = attention.attention_weights([ids], params, hparams["n_head"])
    assert len(expected) == len(weights) == hparams["n_layer"]
    for ours, layer in zip(weights, expected):
        np.testing.assert_allclose(ours, layer.numpy(), rtol=0, atol=1e-5)
