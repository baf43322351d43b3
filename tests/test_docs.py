"""The pages: nothing on them is out of date, every command and every line of code runs, every link leads somewhere."""
import json
import re
import shlex
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from tiny import ROOT, V0, random_model, random_prompts

import gpt2_v2_padding

sys.path.insert(0, str(ROOT / "docs"))

import attention  # noqa: E402
import build  # noqa: E402
import measure  # noqa: E402

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in build.pages()}
VERSION_PAGES = [name for name in PAGES if re.fullmatch(r"docs/v\d+\.md", name)]
BUILT = {command for text in PAGES.values() for command in build.commands_of(text)}  # run by build.py --check
every_page = pytest.mark.parametrize("page", PAGES)


@pytest.fixture(scope="module")
def shell():
    """Commands run in a copy of the project."""
    shell = build.Shell()
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
            ["docs/v3.md: line", "diffs/v3.diff", "diffs/v4.diff", "README.md: line"],
        ),
        ("docs/v2.md", "[[-1 -1  0  1]]", "[[-1 -1  0  2]]", ["docs/v2.md: line"]),
        ("README.md", "| batch inference |", "| batches |", ["README.md: line"]),
        ("docs/pictures/v2_ragged.json", '"row": 2', '"row": 1', ["docs/pictures/v2_ragged.json"]),
        ("docs/pictures/v4_distribution.svg", "drawn-from", "drawn by", ["docs/pictures/v4_distribution.svg"]),
        ("docs/pictures.py", 'shade = plt.get_cmap("Blues")', 'shade = plt.get_cmap("Reds")', ["v2_ragged.svg"]),
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
        assert len(output.splitlines()) <= len(told) + 2
    finally:
        shell.close()


def greedy_runs():
    """-> (prompt, tokens to generate) of the greedy commands whose output the pages show."""
    for line in {line for command in BUILT for line in command.splitlines()}:
        words = shlex.split(line)
        if re.match(r"gpt2_v\d", words[1]) and "--temperature" not in words:
            flags = words.index("--n_tokens_to_generate") if "--n_tokens_to_generate" in words else len(words)
            n = int(words[flags + 1]) if flags < len(words) else 40
            yield from ((prompt, n) for prompt in words[2:flags])


def test_greedy_texts_do_not_hang_by_a_hair():
    """The best two logits are 1e-3 or more apart at each step. Rounding moves them by 1e-5."""
    encoder, hparams, params = build.utils.load_model("tales")
    runs = list(greedy_runs())
    assert len(runs) >= 5
    for prompt, n in runs:
        ids = encoder.encode(prompt)
        new_ids = gpt2_v2_padding.generate([ids], params, hparams["n_head"], n)[0]
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
    assert len(PAGES[page].splitlines()) <= 150


def test_every_version_has_its_page():
    names = {f"docs/v{re.search(r'v([0-9]+)', path.name).group(1)}.md" for path in ROOT.glob("gpt2_v*.py")}
    assert names <= set(PAGES)


def without_code(page):
    return re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", PAGES[page])


def anchors(text):
    """The anchors that GitHub gives to the headings of a page."""
    found = set()
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


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_have_a_ground_of_their_own_and_are_used(path):
    """The first thing in them is a white rectangle as large as the picture, so a dark page does not show through."""
    text = path.read_text(encoding="utf-8")
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()
    first = re.search(r'(?s)<path d="([^"]*)"[^>]*style="fill: #ffffff"', text).group(1)
    assert {width, height} <= set(first.split())
    assert any(f"pictures/{path.name})" in page for page in PAGES.values())
    assert path.with_suffix(".json").exists()


# ---- every command runs


# What is left to do of commands that would run this suite within itself, or change this machine: to see that they find
# tests, and that what they would install is in pyproject.toml. .ci/run does them for good.
COLLECT = re.compile(r"python -m pytest(?: -m (?:\w+|\"[^\"]*\"))?$")
INSTALL = re.compile(r"pip install (-r \S+|-e '\.\[[\w,]+\]'|\w+)(?: && |$)")
ELSEWHERE = {"git lfs pull"}  # what to do in a folder that came from somewhere else
NO_NETWORK = {"python utils.py download 124M": (2, "HF_HUB_OFFLINE")}
INSTEAD = {  # of an hour
    "python tools/fuzz.py all --runs 1000000 --seed 1 --out build/fuzz.json": "python tools/fuzz.py config --runs 300",
    "python tools/fuzz.py all --runs 10000 --guided=False": "python tools/fuzz.py vocab --runs 300 --guided=False",
    "python tools/load.py --n_prompts 2000 --batch_size 32 --model tales --seed 1 --out build/load.json": (
        "python tools/load.py --n_prompts 8 --batch_size 4 --model tales --seed 1 --out build/load.json"
    ),
    "python benchmarks/bench.py": "python benchmarks/bench.py --quick --only sequence --model tales",
    "python benchmarks/bench.py --goals": "python benchmarks/bench.py --goals --only context --model tales",
    "python benchmarks/bench.py --quick": "python benchmarks/bench.py --quick --only prefill --model tales",
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
SLOW_PARTS = r"pytest|docs/build\.py|benchmarks/|tools/|v5_exact.py verify"
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
        status, output = shell.run(command)
        expected = (0, 1) if command.startswith("git diff --no-index") else (0,)  # 1: the files differ
        assert status in expected, output
        assert output.strip()


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
    short = {"ROUNDS": 1, "N_NEW": 3, "N_STEPS": 310, "VERIFIED": {"tales": "the bundled model"}}
    for name, value in {"SPEED": speed, "KERNELS": kernels, "EXACT": exact, **short}.items():
        monkeypatch.setattr(measure, name, value)
    measure.measure_all()
    for path in (speed, kernels, exact):
        new, old = measure.load(path), measure.load(ROOT / "docs" / "measured" / path.name)
        assert list(new) == list(old)
    assert set(measure.load(speed)["seconds"]["one"]) == set(build.VERSIONS)
    for make in measure.TABLES.values():
        assert make(build.table)


# ---- every exercise can be done, and its test tells

ANSWERS = {  # command: (file, text, instead of it, does the command pass then)
    "python -m pytest tests/test_reference.py tests/test_traps.py": (
        "gpt2_v0.py",
        re.compile(r"(?s)    y = x \* x\n.*?    return y\n"),
        "    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))\n",
        True,
    ),
    "python -m pytest tests/test_reference.py -k softmax": (
        "gpt2_v0.py",
        re.compile(r"    x = .*np\.max\(x, axis=-1.*\n"),
        "    x = x - 0\n",
        False,
    ),
    'python -m pytest tests/test_equivalence.py -k "test_a_batch_of_one and v1"': (
        "gpt2_v1_batching.py",
        "x.swapaxes(1, 2).reshape(B, T, n_embd)",
        "x.reshape(B, T, n_embd)",
        False,
    ),
    "python -m pytest tests/test_equivalence.py -k v1": (
        "gpt2_v1_batching.py",
        re.compile(r"    x = x\.reshape\(B, T, 3, .*\n.*\n"),
        "    q, k, v = (y.reshape(B, T, n_head, -1).swapaxes(1, 2) for y in np.split(x, 3, axis=-1))\n",
        True,
    ),
    "python -m pytest tests/test_traps.py -k softmax": (
        "gpt2_v2_padding.py",
        "(x @ np.ones(x.shape[-1], x.dtype))[..., None]",
        "np.sum(x, axis=-1, keepdims=True)",
        False,
    ),
    "python -m pytest tests/test_padding.py": (
        "gpt2_v2_padding.py",
        "np.array([[0] * (T - len(ids)) + [1] * len(ids) for ids in prompts])",
        "(np.arange(T) >= T - np.array([[len(ids)] for ids in prompts])).astype(int)",
        True,
    ),
    'python -m pytest tests/test_cache.py -k "(k1_ or k4_) and v3"': (
        "gpt2_v3_kvcache.py",
        "np.tri(T, n_past + T, n_past, dtype=bool)",
        "np.tri(T, n_past + T, 0, dtype=bool)",
        False,
    ),
    "python -m pytest tests/test_cache.py tests/test_equivalence.py -k v3": (
        "gpt2_v3_kvcache.py",
        "np.tri(T, n_past + T, n_past, dtype=bool)",
        "(np.arange(n_past + T) <= n_past + np.arange(T)[:, None])",
        True,
    ),
    "python -m pytest tests/test_sampling.py -k top_k": (
        "gpt2_v4_sampling.py",
        re.compile(r"        bound = np\.sort.*\n.*\n.*\n"),
        '        ids = np.argsort(-row, kind="stable")[:top_k]\n',
        True,
    ),
    "python -m pytest tests/test_sampling.py -k s9": (
        "gpt2_v4_sampling.py",
        "generators = [np.random.default_rng(row_seed) for row_seed in seed]",
        "generators = [np.random.default_rng(seed[0])] * len(seed)",
        False,
    ),
    "python -m pytest tests/test_exact.py -k any_batch": (
        "gpt2_v5_exact.py",
        "np.cumsum(x, axis=-1)[..., -1:]",
        "np.sum(x, axis=-1, keepdims=True)",
        False,
    ),
    'python -m pytest tests/test_exact.py -k "any_batch or larger"': (
        "gpt2_v5_exact.py",
        "np.concatenate([x, np.zeros((*batch, -T % size, n), x.dtype)], axis=-2)",
        "np.pad(x, [(0, 0)] * len(batch) + [(0, -T % size), (0, 0)])",
        True,
    ),
}


def test_every_exercise_has_an_answer_here():
    assert set(EXERCISES) == set(ANSWERS)


@pytest.mark.slow
@pytest.mark.parametrize("command", ANSWERS)
def test_exercises(command):
    """Before, the command passes; with the answer it passes or fails, as the page says."""
    name, old, new, passes = ANSWERS[command]
    shell = build.Shell()
    try:
        path = shell.root / name
        text = path.read_text(encoding="utf-8")
        changed = text.replace(old, new) if isinstance(old, str) else old.sub(lambda match: new, text)
        assert changed != text
        assert shell.run(command)[0] == 0
        path.write_text(changed, encoding="utf-8")
        status, output = shell.run(command)
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
    """The weights that v0's softmax makes, head by head, while it runs."""
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


@pytest.mark.parametrize("flags, n", [("--head all", 6), ("--layer all --head 3", 6), ("--layer 5", 1)])
def test_all_heads_and_all_layers(shell, flags, n):
    status, output = shell.run(f'python docs/attention.py "The cat sat" {flags}')
    assert status == 0
    assert len(re.findall(r"(?m)^layer \d, head \d$", output)) == n
    assert output.count("1.00") >= n


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
def test_mistakes_are_one_line(shell, arguments, words):
    status, output = shell.run(f"python docs/attention.py {arguments}")
    assert status == 2
    assert output.startswith("error: ") and words in output and output.count("\n") == 1


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
