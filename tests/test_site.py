"""The site in headless Chromium, as a reader opens it from a folder; and the notebook, run in Jupyter."""
import json
import re
import shutil
import sys

import numpy as np
import pytest
from tiny import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import build  # noqa: E402
import notebook  # noqa: E402

pytestmark = pytest.mark.site
PHONE, DESK = {"width": 360, "height": 740, "mobile": True}, {"width": 1280, "height": 900, "mobile": False}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site in a folder of its own -> the folder, whose name has a space and a letter that URLs must quote."""
    import website

    return website.write_site(tmp_path_factory.mktemp("the site é"))


def names(site):
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium, driven by its own driver, so that nothing is downloaded."""
    from selenium import webdriver

    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("there is no chromium, or no chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    no_network = "--host-resolver-rules=MAP * ~NOTFOUND"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", no_network):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def show(chromium, site):
    """show(name of a page, screen) loads it and returns Chromium."""

    def show(name, screen=DESK, theme="light"):
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**screen, "deviceScaleFactor": 1})
        media = [{"name": "prefers-color-scheme", "value": theme}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        path, _, anchor = name.partition("#")
        chromium.get("about:blank")  # else a page that differs in its anchor alone is not loaded again
        chromium.get((site / path).as_uri() + "#" * bool(anchor) + anchor)
        return chromium

    return show


def texts(driver, selector):
    return driver.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)


def too_wide(driver, screen):
    """By how many pixels a page is wider than the screen. A phone's innerWidth would grow with the page."""
    return driver.execute_script("return document.documentElement.scrollWidth") - screen["width"]


def press(driver, selector, *keys):
    """Keys as a reader presses them, in an element that has the focus."""
    driver.execute_script("document.querySelector(arguments[0]).focus()", selector)
    for key in keys:
        driver.switch_to.active_element.send_keys(key)


def click(driver, selector):
    driver.find_element("css selector", selector).click()


def choose(driver, name, value):
    click(driver, f"#{name} option[value='{value}']")


# ---- every page


def test_there_is_a_page_for_each_page_and_each_diff(site):
    found = set(names(site))
    assert {"index.html", "live.html", "diffs.html"} <= found
    assert {f"{path.stem}.html" for path in build.DOCS.glob("*.md")} <= found
    assert {f"diff_{name}.html" for name, *_ in build.diffs.neighbours()} <= found


def test_links_resolve(site):
    import website

    files = {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    files = {name: text.decode() if name.endswith(".html") else text for name, text in files.items()}
    assert website.lost_links(files) == []
    for target in ("nowhere.html", "v0.html#nowhere", "#nowhere", "pictures/none.svg"):
        lost = website.lost_links({**files, "x.html": f'<a href="{target}">'})
        assert lost == [f"site/x.html: {target} leads nowhere"]


def test_the_check_of_the_pages_looks_at_the_site():
    shell = build.Shell()
    try:
        path = shell.root / "docs" / "glossary.md"
        path.write_text(path.read_text(encoding="utf-8") + "\n[x](v0.md#nowhere)\n", encoding="utf-8")
        status, output = shell.run("python docs/build.py --check")
        assert status == 1 and "site/glossary.html: v0.html#nowhere leads nowhere" in output
        path.write_text(path.read_text(encoding="utf-8").replace("v0.md#nowhere", "v0.md"), encoding="utf-8")
        status, output = shell.run("python docs/build.py --site")
        assert status == 0 and (shell.root / "site" / "index.html").exists() and output.strip().endswith("index.html")
    finally:
        shell.close()


def test_nothing_comes_from_the_network(site):
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css", ".js"):
            text = path.read_text(encoding="utf-8")
            assert not any(f'{kind}="http' in text.replace('<a href="http', "") for kind in ("src", "href", "srcset"))
            assert path.suffix != ".css" or "url(" not in text and "@import" not in text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_loads_without_errors_and_fits_a_phone(site, show, theme):
    wrong = {}
    for name in names(site):
        driver = show(name, PHONE, theme)
        wide = too_wide(driver, PHONE)
        broken = driver.execute_script("return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
        dark = driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
        told = [entry["message"] for entry in driver.get_log("browser")]
        if wide > 0 or broken or told or dark != (theme == "dark") or not driver.title:
            wrong[name] = (wide, broken, told, dark)
    assert wrong == {}


def test_an_error_would_be_seen(site, show):
    """A page with an error in its script, a picture that is missing, and a wide thing."""
    text = '<title>x</title><img src="none.svg"><div style="width:3000px">x</div><script>nothing.at.all</script>'
    (site / "broken.html").write_text(f'<meta name="viewport" content="width=device-width">{text}', encoding="utf-8")
    driver = show("broken.html", PHONE)
    (site / "broken.html").unlink()
    told = " ".join(entry["message"] for entry in driver.get_log("browser"))
    assert "none.svg" in told and "nothing is not defined" in told
    assert too_wide(driver, PHONE) > 0


# ---- diffs and search


@pytest.mark.parametrize("name", list(build.diffs.VERSIONS)[1:])
def test_each_change_has_words_beside_it_and_the_rest_is_folded(show, name):
    driver, version = show(f"diff_{name}.html"), next(v for v in build.versions.VERSIONS if v.name == name)
    changed = texts(driver, "main section > h2")
    assert {*version.changed, *version.new} <= set(changed)
    assert all(text.strip() for text in texts(driver, ".hunk aside"))
    for sides in driver.find_elements("css selector", ".hunk .sides"):
        assert sides.find_elements("css selector", ".plus, .minus")
    folded = texts(driver, "details.same:not([open]) summary")
    assert len(folded) > 4 and not any(line.split()[0] in changed for line in folded)
    told = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", (build.DOCS / f"{name}.md").read_text(encoding="utf-8"))
    ours = "What the file says about itself. What the file needs. Only its docstring changes. Gone in the new file."
    words = re.sub(r"\*", "", " ".join(texts(driver, ".hunk aside"))).split()
    assert set(words) - set(told.split()) - set(ours.split()) == set()  # they are the page's


def test_the_two_sides_are_the_two_files(show):
    driver = show("diff_v3.html")
    script = """
        document.querySelectorAll('details').forEach(d => d.open = true);
        return [1, 3].map(i => [...document.querySelectorAll('.sides tr')].map(tr => tr.cells)
            .filter(c => c[i - 1].textContent).map(c => [Number(c[i - 1].textContent), c[i].textContent]))"""
    for side, name in zip(driver.execute_script(script), ("v2", "v3")):
        lines = build.diffs.VERSIONS[name].read_text(encoding="utf-8").splitlines()
        assert len(side) > 30
        assert all(lines[number - 1] == text for number, text in side)


def test_explanations_go_to_the_lines_that_they_name():
    import side_by_side

    groups = [("f", "x = wte[i]"), ("f", "y = np.tri(T)"), ("g", "y = wte.T")]
    items = ["- `y` comes from `np.tri`.", "- It goes on.", "- In `g`, `np.tri`.", "- `wte`."]
    assert side_by_side.place(items, groups) == [[], items[:2], items[2:]]
    assert side_by_side.place(["- Nothing."], groups) == [["- Nothing."], [], []]  # what fits nothing is not said twice
    assert side_by_side.place(["- `f` is `x`, `wte`."], groups)[2] == ["- `f` is `x`, `wte`."]  # g is not left alone
    assert side_by_side.place(["- `f` is `x`.", "- `y`."], groups[::2]) == [["- `f` is `x`."], ["- `y`."]]


def test_search(show):
    driver = show("v0.html")
    press(driver, "body", "/", *"kv cache prefill")
    found = texts(driver, "#results a")
    assert any(line.startswith("v3: a KV cache") for line in found)
    press(driver, "#search input", "\ue015", "\ue007")  # arrow down, enter
    assert driver.current_url.startswith(driver.execute_script("return new URL(ROOT, location).href"))
    assert "v0.html" not in driver.current_url
    driver = show("v0.html")
    press(driver, "#search input", *"cache xyzzyx")
    assert texts(driver, "#results li") == ["Nothing has all these words."]
    press(driver, "#search input", "\ue00c")  # escape
    assert not driver.find_element("id", "results").is_displayed()


def test_search_from_a_page_in_a_folder(show):
    driver = show("files/gpt2_v0.py.html")
    press(driver, "#search input", *"glossary logits", "\ue007")
    assert driver.current_url.endswith(".html") or "#" in driver.current_url
    assert "/files/" not in driver.current_url and driver.title


# ---- the living page


@pytest.fixture(scope="module")
def data():
    import live

    return json.loads(json.dumps(live.data()))


def heat(driver):
    return [[int(x) for x in line.split()[1:]] for line in texts(driver, "#heat tbody tr")]


def test_weights_of_the_chosen_sentence_layer_and_head(show, data):
    driver = show("live.html")
    assert len(data["sentences"]) >= 12
    for sentence, layer, head in ((0, 3, 0), (4, 3, 0), (4, 5, 2)):
        choose(driver, "sentence", sentence)
        choose(driver, "layer", layer)
        choose(driver, "head", head)
        rows = data["sentences"][sentence]["steps"][0]["weights"][layer][head]
        assert heat(driver) == [row[: t + 1] for t, row in enumerate(rows)]
    click(driver, "#heat tbody tr:nth-child(1)")
    assert "“The” gives most, 100 %, to “The”" in texts(driver, "#told")[0]
    press(driver, "#heat", "\ue015", "\ue015", "\ue013")  # down, down, up
    assert texts(driver, "#heat .chosen th") == ["·old"]
    assert driver.get_log("browser") == []


def test_weights_are_those_of_the_model(data):
    import attention

    encoder, hparams, params = build.utils.load_model("tales")
    ids = [encoder.encode(data["sentences"][0]["text"])]
    weights = attention.attention_weights(ids, params, hparams["n_head"])[:, 0]
    shown = np.array(data["sentences"][0]["steps"][0]["weights"]) / 100
    np.testing.assert_allclose(shown, weights, atol=0.0051)


def test_prefill_and_decode_fill_slots(show, data):
    driver, first = show("live.html"), data["sentences"][0]
    n_prompt, n_steps = len(first["steps"][0]["weights"][0][0]), len(first["steps"])

    def slots():
        kinds = driver.execute_script("return [...document.querySelectorAll('#slots li')].map(e => e.className)")
        return [kinds.count(kind) for kind in ("full", "new", "empty")]

    assert slots() == [0, 0, n_prompt + n_steps]
    click(driver, "#cache [data-go='1']")
    assert slots() == [0, n_prompt, n_steps]
    assert "slots 0 to 6 are written" in texts(driver, "#cache .told")[0]
    assert texts(driver, "#best tr")[0].split()[0] == "es"
    press(driver, "#cache [data-go='1']", "\ue014")  # arrow right
    assert slots() == [n_prompt, 1, n_steps - 1]
    assert "“es” goes in alone and is written to slot 7" in texts(driver, "#cache .told")[0]
    weights = first["steps"][1]["weights"][3][0][0]
    assert [int(text) for text in texts(driver, "#slots i") if text] == weights
    press(driver, "#cache [data-go='1']", "\ue007", *["\ue014"] * 20)  # enter, and further than there is to go
    assert slots() == [n_prompt + n_steps - 2, 1, 1]
    assert "the last slot stays empty" in texts(driver, "#cache .told")[0]
    press(driver, "#cache [data-go='-1']", "\ue012")  # arrow left
    assert slots() == [n_prompt + n_steps - 3, 1, 2]
    click(driver, "#cache [data-go='0']")
    assert slots()[2] == n_prompt + n_steps
    click(driver, "#cache [data-go='1']")
    choose(driver, "sentence", 1)  # starts over
    assert slots()[:2] == [0, 0]
    assert driver.get_log("browser") == []


def test_a_ragged_batch_shows_mask_and_positions(show, data):
    driver, batch = show("live.html"), data["batch"]

    def check(step, row):
        seen = [line.replace("-1e10", "-1").split() for line in texts(driver, "#mask tbody tr")]
        wanted = [[0 if sees else -1 for sees in keys] for keys in batch["steps"][step]["visible"][row]]
        assert [[int(x) for x in line[1:]] for line in seen] == wanted
        for name in ("mask", "position"):
            lines = [line.split(name)[1].split() for line in texts(driver, "#rows tr") if name in line.split()]
            wanted = batch["steps"][step]["real" if name == "mask" else "positions"]
            assert [[int(x) for x in line] for line in lines] == wanted

    check(0, 1)
    click(driver, "#rows [data-row='2']")
    check(0, 2)
    click(driver, "#batch [data-go='1']")
    check(1, 2)
    press(driver, "#rows [data-row='2']", "\ue013", "\ue014")  # up, right: the focus goes with the row
    check(2, 1)
    press(driver, "#batch [data-go='-1']", *["\ue012"] * 9)
    check(0, 1)
    assert driver.get_log("browser") == []


def test_the_living_page_works_on_a_phone(show, data):
    driver = show("live.html", PHONE)
    for sentence in range(len(data["sentences"])):
        choose(driver, "sentence", sentence)
        for _ in data["sentences"][sentence]["steps"]:
            click(driver, "#cache [data-go='1']")
        assert too_wide(driver, PHONE) <= 0
    for _ in data["batch"]["steps"]:
        click(driver, "#batch [data-go='1']")
    assert too_wide(driver, PHONE) <= 0
    assert driver.get_log("browser") == []


# ---- the notebook


def test_the_notebook_prints_what_it_shows(tmp_path):
    """Run from the folder that it lies in. The tests' guard sees to it that no cell reaches for the network."""
    import nbclient
    import nbformat

    shown = nbformat.read(notebook.PATH, as_version=4)
    nbformat.validate(shown)
    ran = nbformat.from_dict(json.loads(json.dumps(shown)))
    resources = {"metadata": {"path": notebook.PATH.parent}}
    nbclient.NotebookClient(ran, timeout=300, kernel_name="python3", resources=resources).execute()
    cells = [(a, b) for a, b in zip(shown.cells, ran.cells) if a.cell_type == "code"]
    assert len(cells) > 12
    for a, b in cells:
        old, new = ("".join(output.get("text", output.output_type) for output in x.outputs) for x in (a, b))
        assert build.same_text(old, new), f"{a.id}: {build.first_difference(old, new)}"
