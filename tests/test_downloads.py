"""Downloads from a server that misbehaves: what arrives is whole and right, or nothing stands under the final name."""
import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
import urllib3
from fake_hub import FakeHub
from model_files import CONFIG, assert_one_line, make_tensors, make_vocab, merges_txt, safetensors_bytes
from tiny import ROOT, VERSIONS
from torch_files import torch_bytes

import utils
from gpt2_io.downloads import RETRY_PAUSES, fetch
from gpt2_io.errors import UserError
from gpt2_io.files import lock, locked, say_once
from gpt2_io.hub import find_model, has_weights

pytestmark = pytest.mark.usefixtures("clean_environment")

WEIGHTS = "/org/name/resolve/main/model.safetensors"
CONFIG_JSON = "/org/name/resolve/main/config.json"
FILES = {
    "config.json": json.dumps(CONFIG),
    "vocab.json": json.dumps(make_vocab()),
    "merges.txt": merges_txt(),
    "model.safetensors": safetensors_bytes(make_tensors()),
}
DATA = FILES["model.safetensors"]
PAUSES = RETRY_PAUSES


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A server with the model org/name; retries do not wait, and we are in an empty directory with models/."""
    (tmp_path / "elsewhere" / "models").mkdir(parents=True)  # else downloads go beside utils.py
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr("gpt2_io.downloads.RETRY_PAUSES", (0, 0, 0))
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add_model("org/name", FILES)
        yield hub


def leftovers(folder):
    return sorted(path.name for path in folder.glob("*") if path.suffix in (".part", ".lock"))


def assert_downloaded(folder):
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: data if isinstance(data, bytes) else data.encode() for name, data in FILES.items()
    }


# ---- what goes well


def test_a_model_is_downloaded_loaded_and_not_asked_for_again(hub, tmp_path):
    encoder, hparams, params = utils.load_model("org/name", tmp_path / "models")
    np.testing.assert_array_equal(params["wte"], make_tensors()["wte.weight"])
    assert_downloaded(tmp_path / "models" / "org" / "name")
    assert [path for path, _ in hub.requests][-1] == WEIGHTS  # last, so that weights mean a whole folder
    n = len(hub.requests)
    utils.load_model("org/name", tmp_path / "models")
    assert len(hub.requests) == n


def test_a_known_name_and_where_it_goes(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("gpt2_io.downloads.KNOWN_FILES", {})
    hub.add_model("openai-community/gpt2", FILES)
    hub.add_model("distilbert/distilgpt2", FILES)
    assert find_model("124M") == Path("models/124M")
    assert find_model("distilgpt2", "models") == Path("models/distilgpt2")
    assert find_model("124M", tmp_path / "new" / "dir") == tmp_path / "new" / "dir" / "124M"
    assert_downloaded(Path("models/124M"))


def test_command_download(hub, tmp_path, monkeypatch, edge):
    arguments = ["download", "org/name", "--models_dir", tmp_path / "m"]
    result = edge(utils.COMMANDS, *arguments)
    folder = tmp_path / "m" / "org" / "name"
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{folder}\n", "")  # no bar: not a terminal
    assert_downloaded(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert edge(utils.COMMANDS, *arguments).returncode == 0  # since it is here


@pytest.mark.parametrize("how", ["redirect", "without length", "chunked"])
def test_ways_of_sending(hub, tmp_path, how):
    for path in (WEIGHTS, CONFIG_JSON):
        hub.fault(path, how)
    find_model("org/name", tmp_path)
    assert_downloaded(tmp_path / "org" / "name")


def test_a_model_in_shards(hub, tmp_path):
    tensors = list(make_tensors().items())
    shards = {"model-1.safetensors": dict(tensors[:5]), "model-2.safetensors": dict(tensors[5:])}
    del hub.files[WEIGHTS]
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    hub.add_model("org/name", {file: safetensors_bytes(part) for file, part in shards.items()})
    hub.add_model("org/name", {"model.safetensors.index.json": json.dumps(index)})
    hub.fault(WEIGHTS.replace("model.s", "model-2.s"), *["cut"] * 4)
    with pytest.raises(ValueError, match="model-2.safetensors"):
        utils.load_model("org/name", tmp_path)
    assert not has_weights(tmp_path / "org" / "name")  # so the next run goes on
    _, _, params = utils.load_model("org/name", tmp_path)
    np.testing.assert_array_equal(params["wpe"], dict(tensors)["wpe.weight"])
    assert leftovers(tmp_path / "org" / "name") == []
    hub.add_model("org/evil", {**FILES, "model.safetensors.index.json": '{"weight_map": {"a": "../../evil"}}'})
    del hub.files["/org/evil/resolve/main/model.safetensors"]
    with pytest.raises(ValueError, match="evil.*plain name"):
        utils.load_model("org/evil", tmp_path)


def test_a_download_goes_on_in_the_very_directory(hub, tmp_path):
    """`org/name` is a folder here, but one that an earlier download left."""
    hub.fault(WEIGHTS, *["cut"] * 4)
    with pytest.raises(ValueError):
        find_model("org/name", ".")
    assert_downloaded(find_model("org/name", "."))


def test_a_model_with_tokenizer_json_alone(hub, tmp_path):
    del hub.files["/org/name/resolve/main/vocab.json"]
    utils.load_model("org/name", tmp_path)  # without a tokenizer it is a model still
    assert not (tmp_path / "org" / "name" / "vocab.json").exists()


# ---- what goes wrong half way


def test_a_connection_that_closes_half_way_is_resumed_by_the_next_run(hub, tmp_path):
    folder = tmp_path / "org" / "name"
    hub.fault(WEIGHTS, "cut", "cut", "cut", "cut")
    with pytest.raises(ValueError, match=r"the connection closed at \d+ of \d+ bytes|IncompleteRead"):
        find_model("org/name", tmp_path)
    part = folder / "model.safetensors.part"
    assert not (folder / "model.safetensors").exists()
    assert DATA.startswith(part.read_bytes()) and len(part.read_bytes()) == len(DATA) - len(DATA) // 16 - 1
    n_before = part.stat().st_size
    find_model("org/name", tmp_path)
    assert hub.ranges("model.safetensors")[-1] == f"bytes={n_before}-"
    assert_downloaded(folder)


def test_three_retries_with_growing_pauses(hub, tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr("gpt2_io.downloads.RETRY_PAUSES", PAUSES)
    monkeypatch.setattr(time, "sleep", pauses.append)
    hub.fault(WEIGHTS, "cut", 503, "cut")
    find_model("org/name", tmp_path)
    assert_downloaded(tmp_path / "org" / "name")
    assert len(pauses) == 3 and 0 < pauses[0] < pauses[1] < pauses[2]
    assert [r is not None for r in hub.ranges("model.safetensors")] == [False, True, True, True]


def test_a_server_that_does_not_resume_is_asked_from_the_start(hub, tmp_path):
    hub.fault(WEIGHTS, "cut", "ignore range")
    find_model("org/name", tmp_path)
    assert hub.ranges("model.safetensors") == [None, f"bytes={len(DATA) // 2}-"]
    assert_downloaded(tmp_path / "org" / "name")


def test_a_server_that_resumes_elsewhere_is_not_believed(hub, tmp_path):
    hub.fault(WEIGHTS, "cut", "wrong range")
    find_model("org/name", tmp_path)
    assert hub.ranges("model.safetensors")[-1] is None
    assert_downloaded(tmp_path / "org" / "name")


def test_a_part_that_is_whole_already(hub, tmp_path):
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "model.safetensors.part").write_bytes(DATA)
    find_model("org/name", tmp_path)
    assert_downloaded(folder)


@pytest.mark.parametrize("rest", [b"x" * (len(DATA) + 10), b"x" * 100])
def test_a_part_of_something_else_is_thrown_away(hub, tmp_path, rest):
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "model.safetensors.part").write_bytes(rest)
    hub.fault(WEIGHTS, "redirect", "redirect", "redirect")
    find_model("org/name", tmp_path)
    assert_downloaded(folder)


def test_a_cut_without_content_length_is_noticed_by_the_file_s_own_header(hub, tmp_path):
    hub.fault(WEIGHTS, "cut without length")
    hub.fault(CONFIG_JSON, "cut without length")
    find_model("org/name", tmp_path)
    assert_downloaded(tmp_path / "org" / "name")
    hub.fault(WEIGHTS, *["cut without length"] * 4)
    with pytest.raises(ValueError, match="not the whole file"):
        find_model("org/name", tmp_path / "again")
    assert [p.name for p in (tmp_path / "again/org/name").glob("model*")] == []


def test_a_list_of_merges_that_is_cut_without_content_length(hub, tmp_path):
    """A shorter list would be a list too, and texts would become other ids without a word."""
    hub.fault("/org/name/resolve/main/merges.txt", "cut without length")
    find_model("org/name", tmp_path)
    assert_downloaded(tmp_path / "org" / "name")
    assert hub.ranges("merges.txt") == [None, None]


def test_a_server_that_falls_silent(hub, tmp_path, monkeypatch):
    get = requests.get

    def impatient_once(url, **options):  # a healthy server on a busy machine may be slow, too
        is_first = url.endswith(WEIGHTS) and not hub.ranges("model.safetensors")
        return get(url, **{**options, "timeout": 0.1 if is_first else 60})

    monkeypatch.setattr(requests, "get", impatient_once)
    hub.fault(WEIGHTS, "stall")
    find_model("org/name", tmp_path)
    assert_downloaded(tmp_path / "org" / "name")


# ---- what is wrong altogether


def test_size_and_sha256_are_checked_where_they_are_known(hub, tmp_path):
    right = hashlib.sha256(DATA).hexdigest()
    url = hub.url + WEIGHTS
    fetch(url, tmp_path / "right", len(DATA), right)
    assert (tmp_path / "right").read_bytes() == DATA
    hub.fault(WEIGHTS, "other bytes")
    fetch(url, tmp_path / "mended", len(DATA), right)
    assert (tmp_path / "mended").read_bytes() == DATA
    with pytest.raises(ValueError, match="sha256"):
        fetch(url, tmp_path / "wrong", len(DATA), "0" * 64)
    with pytest.raises(ValueError, match=f"{len(DATA)} bytes, {len(DATA) + 1} are expected"):
        fetch(url, tmp_path / "wrong", len(DATA) + 1)
    assert not (tmp_path / "wrong").exists() and leftovers(tmp_path) == []


def test_what_the_hub_says_of_a_file_is_checked_too(hub, tmp_path):
    hub.fault(WEIGHTS, *["redirect", "other bytes"] * 4)
    with pytest.raises(ValueError, match="sha256"):
        find_model("org/name", tmp_path)
    assert not (tmp_path / "org" / "name" / "model.safetensors").exists()


def test_known_names_must_be_the_known_files(hub, tmp_path):
    hub.add_model("openai-community/gpt2", FILES)
    with pytest.raises(ValueError, match="1042301 are expected"):
        find_model("124M", tmp_path)
    assert not (tmp_path / "124M" / "vocab.json").exists()


ANSWERS = {
    401: ["401", "HF_TOKEN"],
    403: ["403", "terms", "HF_TOKEN"],
    404: ["404", "no such model"],
    418: ["418"],
    500: ["500", "4 attempts"],
    429: ["429", "4 attempts"],
    "web page": ["web page"],
    "web page as binary": ["web page"],
    "gzip": ["encoding"],
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_answer_has_its_own_line(hub, tmp_path, answer):
    hub.fault(CONFIG_JSON, *[answer] * 4)
    with pytest.raises(ValueError) as caught:
        utils.load_model("org/name", tmp_path)
    message = str(caught.value)
    assert "\n" not in message and "org/name" in message
    for word in [*ANSWERS[answer], "--model tales", "folder"]:
        assert word in message
    assert not (tmp_path / "org").exists()
    assert len(hub.requests) == (4 if answer in (500, 429) else 1)


def test_a_model_that_is_not_there(hub, tmp_path, edge):
    result = edge(VERSIONS[0].module.main, "x", "--model", "org/none", "--models_dir", tmp_path)
    assert_one_line(result, "org/none", "404", "--model tales", "folder")
    del hub.files[WEIGHTS]
    result = edge(utils.COMMANDS, "download", "org/name")
    assert_one_line(result, "org/name has none of model.safetensors", "pytorch_model.bin")


@pytest.mark.parametrize("cut", [False, True])
def test_a_model_in_pytorch_s_format(hub, tmp_path, cut):
    del hub.files[WEIGHTS]
    hub.add_model("org/name", {"pytorch_model.bin": torch_bytes(make_tensors())})
    path = "/org/name/resolve/main/pytorch_model.bin"
    hub.fault(path, *["cut without length"] * cut)
    np.testing.assert_array_equal(utils.load_model("org/name", tmp_path)[2]["wte"], make_tensors()["wte.weight"])
    assert hub.ranges("pytorch_model.bin") == [None] * (1 + cut)  # what came first was no whole file


def test_a_shard_that_is_not_there_is_named_with_its_index(hub, tmp_path):
    del hub.files[WEIGHTS]
    index = {"weight_map": {"wte.weight": "model-1.safetensors"}}
    hub.add_model("org/name", {"model.safetensors.index.json": json.dumps(index)})
    with pytest.raises(UserError, match="model-1.safetensors: 404.*though model.safetensors.index.json names it"):
        find_model("org/name", tmp_path)


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr("gpt2_io.downloads.RETRY_PAUSES", (0, 0, 0))
    for endpoint, words in (("http://127.0.0.1:9", "no answer"), ("nonsense", "nonsense"), ("http://", "URL")):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(ValueError, match=f"cannot get org/name: .*{words}.*--model tales") as caught:
            utils.load_model("org/name", tmp_path)
        assert "\n" not in str(caught.value)


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.fault(CONFIG_JSON, 401)
    with pytest.raises(ValueError, match="401.*token in HF_TOKEN is refused") as caught:
        find_model("org/name", tmp_path)
    assert "hf_secret" not in str(caught.value)
    assert hub.requests[-1][1]["Authorization"] == "Bearer hf_secret"
    with FakeHub() as cdn:
        cdn.files[WEIGHTS] = DATA
        answer = hub.answer

        def redirect(request):
            if request.path != WEIGHTS:
                return answer(request)
            other_name = cdn.url.replace("127.0.0.1", "localhost")
            return hub.send(request, 302, b"", {"Location": other_name + WEIGHTS})

        hub.answer = redirect
        find_model("org/name", tmp_path)
        assert "Authorization" not in cdn.requests[-1][1]


def test_the_token_of_hf_auth_login_after_hf_token(hub, tmp_path, monkeypatch):
    def sent():
        with contextlib.suppress(UserError):
            find_model("org/name", tmp_path / str(len(hub.requests)))
        return hub.requests[-1][1].get("Authorization")

    assert sent() is None
    (tmp_path / "no such cache").mkdir()
    (tmp_path / "no such cache" / "token").write_text("hf_file\n", encoding="utf-8")
    assert sent() == "Bearer hf_file"
    hub.fault(CONFIG_JSON, 401)
    with pytest.raises(UserError, match="the token in .*no such cache.token is refused") as caught:
        find_model("org/name", tmp_path / "x")
    assert "hf_file" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "mine"))
    assert sent() is None
    (tmp_path / "mine").write_text("hf_mine", encoding="utf-8")
    assert sent() == "Bearer hf_mine"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert sent() == "Bearer hf_secret"
    for spoilt in ("two words", "hf_ä".encode().decode("ascii", "surrogateescape")):  # bytes, in any locale
        monkeypatch.setenv("HF_TOKEN", spoilt)
        with pytest.raises(UserError, match="HF_TOKEN holds characters"):
            find_model("org/name", tmp_path / "y")


# ---- what no other attempt can mend, and how long to wait


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, which are not made."""
    made = []
    monkeypatch.setattr("gpt2_io.downloads.time.sleep", made.append)
    return made


def test_tls_is_named_and_not_tried_again(tmp_path, pauses):
    """A server that answers TLS without TLS."""

    def answer(server):
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            while connection.recv(1000):  # until the other side has enough
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=[server], daemon=True).start()
        with pytest.raises(UserError, match="TLS: .*(SSL|TLS).*REQUESTS_CA_BUNDLE") as caught:
            fetch(f"https://127.0.0.1:{server.getsockname()[1]}/x", tmp_path / "x")
    assert "Max retries" not in str(caught.value) and pauses == []


def test_a_certificate_that_is_not_trusted(tmp_path, monkeypatch, pauses):
    reason = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed"))

    def get(url, **options):
        raise requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(None, url, reason))

    monkeypatch.setattr(requests, "get", get)
    with pytest.raises(UserError, match="TLS: .*certificate verify failed: self-signed"):
        fetch("https://hub/x", tmp_path / "x")
    assert pauses == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_named_and_not_tried_again(tmp_path, monkeypatch, pauses, scheme):
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv(f"{scheme}_proxy", "http://me:secret@127.0.0.1:9")
    with pytest.raises(UserError, match="the proxy: .*HTTPS_PROXY") as caught:
        fetch(f"{scheme}://127.0.0.1:8/x", tmp_path / "x")
    assert "secret" not in str(caught.value) and pauses == []


def test_a_proxy_that_wants_a_password(hub, tmp_path, pauses):
    hub.fault(CONFIG_JSON, 407)
    with pytest.raises(UserError, match="407, the proxy wants a name and a password"):
        find_model("org/name", tmp_path)
    assert len(hub.requests) == 1 and pauses == []


NOW = 1_700_000_000  # Tue, 14 Nov 2023 22:13:20 GMT
WAITS = {  # headers of a 429 -> seconds before the next attempt
    "seconds": ({"Retry-After": "40"}, 40),
    "a date": ({"Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, 60),
    "a date in the past": ({"Retry-After": "Tue, 14 Nov 2000 22:14:20 GMT"}, 0),
    "nonsense": ({"Retry-After": "soon"}, 0),
    "the hub's own": ({"RateLimit": '"api";r=0;t=55'}, 55),
    "both": ({"Retry-After": "40", "RateLimit": '"api";r=0;t=55'}, 40),
    "none": ({}, 0),
}


@pytest.mark.parametrize("how, status", [*((how, 429) for how in WAITS), ("seconds", 503)])
def test_the_wait_that_a_server_asks_for_is_kept(hub, tmp_path, monkeypatch, pauses, capsys, how, status):
    monkeypatch.setattr("gpt2_io.downloads.time.time", lambda: NOW)
    headers, seconds = WAITS[how]
    hub.fault(WEIGHTS, (status, headers), (status, headers))
    find_model("org/name", tmp_path)
    assert pauses == [seconds, seconds]
    assert capsys.readouterr().err.count(f"{status}; waiting {seconds} seconds, as it asks") == (2 if seconds else 0)
    assert_downloaded(tmp_path / "org" / "name")


def test_a_wait_of_hours_is_told_and_not_sat_out(hub, tmp_path, pauses):
    hub.fault(CONFIG_JSON, (429, {"Retry-After": "7200"}))
    with pytest.raises(UserError, match="429, it asks for 7200 seconds; the next run goes on"):
        find_model("org/name", tmp_path)
    assert pauses == [] and len(hub.requests) == 1


# ---- disks and neighbours


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def no_locks(request, monkeypatch):
    """A file system without locks, as some network drives are."""
    fcntl = pytest.importorskip("fcntl", reason="Windows has locks of another kind")

    def flock(file, how):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    say_once.cache_clear()
    return os.strerror(request.param)


def test_downloads_go_on_where_there_are_no_locks_and_say_so_once(hub, tmp_path, no_locks, capsys):
    find_model("org/name", tmp_path)
    assert_downloaded(tmp_path / "org" / "name")
    assert capsys.readouterr().err.count(f"note: this file system gives no locks ({no_locks})") == 1


def test_a_lock_that_another_has_is_told_from_one_that_nobody_gets(tmp_path, monkeypatch):
    with open(tmp_path / "x", "ab") as ours, open(tmp_path / "x", "ab") as theirs:
        assert lock(theirs) and not lock(ours)


def test_a_full_disk_says_so_and_leaves_no_final_name(hub, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(OSError, match="cannot write the download: No space left on device.*needed"):
        find_model("org/name", tmp_path)
    assert list((tmp_path / "org" / "name").iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a device that is always full")
def test_a_disk_that_fills_up_meanwhile(hub, tmp_path, edge):
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "model.safetensors.part").symlink_to("/dev/full")
    result = edge(utils.COMMANDS, "download", "org/name", "--models_dir", tmp_path)
    assert_one_line(result, folder, "No space left on device")
    assert not (folder / "model.safetensors").exists()


def test_a_read_only_disk_and_a_file_in_the_way(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OSError, match="cannot write the download: Not a directory"):
        find_model("org/name", tmp_path / "file")

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "x")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(OSError, match="cannot write the download: Read-only file system"):
        find_model("org/name", tmp_path)
    assert hub.requests == []


def test_two_processes_at_once_get_one_right_file(hub, tmp_path):
    hub.fault(WEIGHTS, "hold")
    arguments = [sys.executable, str(ROOT / "utils.py"), "download", "org/name", "--models_dir", str(tmp_path)]
    with ThreadPoolExecutor(1) as threads:
        here = threads.submit(find_model, "org/name", tmp_path)
        assert hub.half_way.wait(60)
        there = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert there.stderr.readline().startswith(b"waiting for another process")
        hub.go.set()
        here.result(60)
        _, err = there.communicate(timeout=60)
        assert there.returncode == 0, err
    assert_downloaded(tmp_path / "org" / "name")
    assert hub.ranges("model.safetensors") == [None]  # the one waited for the other


def test_many_threads_at_once_get_one_right_file(hub, tmp_path):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: fetch(hub.url + WEIGHTS, tmp_path / "w"), range(8)))  # raises what they raise
    assert (tmp_path / "w").read_bytes() == DATA and leftovers(tmp_path) == []
    assert len(hub.requests) == 1


@pytest.mark.parametrize("nth", [0, 1])
def test_a_lock_file_that_another_removes_meanwhile_is_made_anew(tmp_path, monkeypatch, nth):
    path, stat, calls = tmp_path / "w.lock", os.stat, []

    def removed_meanwhile(name, **options):
        if name == path:
            if len(calls) == nth:
                path.unlink()
            calls.append(name)
        return stat(name, **options)

    monkeypatch.setattr(os, "stat", removed_meanwhile)
    with locked(path):
        assert os.listdir(tmp_path) == ["w.lock"]


def test_a_process_that_dies_leaves_no_lock_behind(hub, tmp_path):
    code = "import os, sys\nfrom gpt2_io.files import locked\nwith locked(sys.argv[1]): os._exit(1)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "w.lock")], cwd=ROOT, check=False, timeout=60)
    assert (tmp_path / "w.lock").exists()
    fetch(hub.url + WEIGHTS, tmp_path / "w")
    assert leftovers(tmp_path) == []


def test_generation_with_a_model_that_is_downloaded_first(hub, tmp_path, edge):
    for version in VERSIONS:
        result = edge(version.module.main, "the", "--model", "org/name", "--n_tokens_to_generate", 3)
        assert result.returncode == 0, result.stderr
