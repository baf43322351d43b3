"""Models by name: in a folder, in Hugging Face's cache, or downloaded."""
import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
from pathlib import Path

from tqdm import tqdm

from gpt2_io.checkpoint import open_checkpoint
from gpt2_io.errors import UserError, in_units
from gpt2_io.files import ROOT, TEXT_FILES, locked, parse_json, read_text
from gpt2_io.safetensors import read_safetensors_header, read_weight_map

HUB = {  # name -> id on the hub
    "124M": "openai-community/gpt2",
    "355M": "openai-community/gpt2-medium",
    "774M": "openai-community/gpt2-large",
    "1558M": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
KNOWN_FILES = {  # (hub id, file) -> size and sha256
    ("openai-community/gpt2", "model.safetensors"): (
        548_105_171,
        "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    ),
    ("openai-community/gpt2", "vocab.json"): (
        1_042_301,
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    ),
    ("openai-community/gpt2", "merges.txt"): (
        456_318,
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    ),
}
RETRY_PAUSES = (1, 2, 4)  # seconds before the second, third and fourth attempt
TIMEOUT = (10, 30)  # seconds to connect, and without a byte


def has_files(folder, *names):
    return all((folder / name).is_file() for name in names)


def has_weights(folder):
    weights = ("model.safetensors", "model.safetensors.index.json")
    return has_files(folder, "config.json") and any(has_files(folder, name) for name in weights)


def find_model(model, models_dir="models"):
    """The path of a model's folder or weight file, downloaded first if need be.

    model: a path, the name of something in models_dir, a name of `HUB`, or a hub id `org/name`; looked for in this
    order, then in an existing Hugging Face cache, then on the hub, unless HF_HUB_OFFLINE=1. A relative models_dir is
    also looked for beside the versions, so that commands work from any directory.
    Raises UserError that says what is wrong and what would work, and OSError where a download cannot be written.
    """
    model = str(model)
    if not model or not str(models_dir):
        raise UserError("--model and --models_dir need a name, as in --model tales")
    places = [Path(models_dir), ROOT / models_dir]
    paths = [Path(model), *(place / model for place in places)]
    if model == "tales":  # comes with the project, whatever models_dir is
        paths.append(ROOT / "models" / model)
    for path in paths:
        # A folder in which a download broke off has no weights yet: the download goes on.
        if path.is_file() or has_weights(path) or has_files(path, "config.json", "pytorch_model.bin"):
            return path
    repo = HUB.get(model, model)
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo, re.ASCII)
    is_download = is_hub_id and (model in HUB or any(path.is_dir() for path in paths[1:]))
    for path in paths:
        if path.is_dir() and not is_download:
            open_checkpoint(path)  # raises what is wrong with its weights, if that is it
            raise UserError(f"{path}: no config.json in this folder")
    if not is_hub_id:
        raise UserError(
            f"no model {model!r}: no such file or folder, none in {models_dir}, "
            f"no known name (tales, {', '.join(HUB)}) and no hub id (org/name)"
        )
    cached = find_in_cache(repo)
    if cached:
        return cached
    try:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UserError("it is not on this machine, and HF_HUB_OFFLINE is set")
        place = next((place for place in places if place.is_dir()), places[0])
        return download_model(repo, place / model)
    except UserError as error:
        raise UserError(
            f"cannot get {model}: {error}; what works: the bundled model (--model tales), a folder (--model path)"
        ) from None


def find_in_cache(repo):
    """The snapshot of a model in the cache of Hugging Face's libraries, if it is there with all its files, or None."""
    env = os.environ.get
    home = Path(env("HF_HOME") or Path(env("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    # os.path, since a Path raises RuntimeError where nobody knows a home, as for a user without a name in a container.
    cache = Path(os.path.expanduser(env("HF_HUB_CACHE") or env("HUGGINGFACE_HUB_CACHE") or home / "hub"))
    # The models of `HUB` had ids without an organisation once, such as "gpt2".
    for name in [repo, repo.split("/")[1]] if repo in HUB.values() else [repo]:
        folder = cache / f"models--{name.replace('/', '--')}"
        commit = read_text(folder / "refs" / "main").strip() if has_files(folder, "refs/main") else "*"
        for snapshot in sorted(folder.glob(f"snapshots/{commit}")):
            has_tokenizer = has_files(snapshot, "tokenizer.json") or has_files(snapshot, "vocab.json", "merges.txt")
            if has_weights(snapshot) and has_tokenizer:
                return snapshot
    return None


class NotOnServer(UserError):
    """The server answered that there is no such file."""


class Interrupted(Exception):
    """An attempt to download failed in a way that another may not."""


def download_model(repo, folder):
    """Download a model of the hub -> its folder. The weights come last, so a folder with weights is complete.

    HF_ENDPOINT is the address of the hub or a mirror. Raises UserError, or OSError where it cannot be written.
    """
    url = f"{(os.environ.get('HF_ENDPOINT') or 'https://huggingface.co').rstrip('/')}/{repo}/resolve/main"

    def get(name, to=None):
        fetch(f"{url}/{name}", to or folder / name, *KNOWN_FILES.get((repo, name), (None, None)))

    def get_weights():
        try:
            return get("model.safetensors")
        except NotOnServer:
            pass
        index = folder / "model.safetensors.index.json"
        unfinished = folder / "index.json"  # the index gets its name when all files it speaks of are there
        try:
            get("model.safetensors.index.json", unfinished)
        except NotOnServer:
            raise UserError(
                f"{repo} has no model.safetensors; a pytorch_model.bin is not read: a pickle can run any code"
            ) from None
        for name in sorted(set(read_weight_map(unfinished).values())):
            get(name)
        os.replace(unfinished, index)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        get("config.json")
        for name in TEXT_FILES:
            with contextlib.suppress(NotOnServer):
                get(name)
        get_weights()
    except OSError as error:
        raise OSError(f"{folder}: cannot write the download: {error.strerror or error}") from None
    return folder


def fetch(url, path, size=None, sha256=None):
    """Download a file to `path.part`, going on where an earlier attempt ended, check it, and move it to `path`.

    size, sha256: what it must be, where that is known. Retries after RETRY_PAUSES what another attempt may mend.
    Raises NotOnServer, UserError, or OSError for a disk that is full or read-only; then nothing is at `path`.
    """
    import requests  # here, so that no command on the bundled model waits for it

    part = path.with_name(f"{path.name}.part")
    with locked(path.with_name(f"{path.name}.lock")):
        if path.exists():
            return
        for pause in (*RETRY_PAUSES, None):
            try:
                check_download(part, path.name, *fetch_part(requests, url, part, size, sha256))
                break
            except (requests.ConnectionError, requests.Timeout):
                reason = "no answer (no network?)"
            except requests.RequestException as error:
                raise UserError(f"{url}: {error}") from None
            except (Interrupted, requests.packages.urllib3.exceptions.HTTPError) as error:
                reason = error
            if pause is None:
                raise UserError(f"{url}: {reason}, in {len(RETRY_PAUSES) + 1} attempts; the next run goes on there")
            time.sleep(pause)
        os.replace(part, path)


def fetch_part(requests, url, part, size, sha256):
    """One attempt: append to `part` what is missing, or write it anew -> size and sha256 that it must have, or None."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    if os.environ.get("HF_TOKEN"):
        token = os.environ["HF_TOKEN"].strip()
        if not re.fullmatch("[!-~]+", token):  # a message of requests would show it
            raise UserError("HF_TOKEN holds characters that no token has")
        headers["Authorization"] = f"Bearer {token}"  # requests drops it where another host takes over
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
    except OSError as error:
        if isinstance(error, requests.RequestException):
            raise
        raise UserError(f"{url}: {error}") from None  # certificates that are not there; no disk has to do with it
    with response:
        for answer in (*response.history, response):  # the hub tells what it knows of a large file while it redirects
            tag = answer.headers.get("X-Linked-Etag", "").strip('"')
            size = size or as_size(answer.headers.get("X-Linked-Size"))
            sha256 = sha256 or (tag if re.fullmatch("[0-9a-f]{64}", tag) else None)

        status = response.status_code
        # "bytes FIRST-LAST/TOTAL"; "bytes */TOTAL" where nothing is left to send
        first, _, in_all = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if status == 416 and as_size(in_all) == have:
            return size or have, sha256  # `part` was whole already
        if status == 416 or (status == 206 and as_size(first.partition("-")[0]) != have):
            part.unlink(missing_ok=True)
            raise Interrupted("the server does not go on where the last attempt ended")
        if status == 401:
            known = "Authorization" in headers
            fault = "the token in HF_TOKEN is refused" if known else "set HF_TOKEN, or check the name"
            raise UserError(f"{url}: 401, the server wants to know who asks: {fault}")
        if status == 403:
            raise UserError(f"{url}: 403, not allowed: accept the model's terms on its page, as the owner of HF_TOKEN")
        if status in (404, 410):
            raise NotOnServer(f"{url}: {status}, there is no such model or file")
        if status in (408, 429) or status >= 500:
            raise Interrupted(f"the server answers {status}")
        if status not in (200, 206):
            raise UserError(f"{url}: the server answers {status} {response.reason}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise UserError(f"{url}: the server sends the file in an encoding that was not asked for")

        start = have if status == 206 else 0
        length = as_size(response.headers.get("Content-Length"))
        total = as_size(in_all) if length is None else start + length
        if None not in (size, total) and size != total:
            raise UserError(f"{url}: the server has {total} bytes, {size} are expected: another file?")
        total = size or total

        def read():  # from below requests, which would lose what comes just before a connection closes
            return response.raw.read(1 << 16, decode_content=False)

        data = read()
        is_page = re.match(rb"\s*<(!doctype|html)", data, re.IGNORECASE)
        if is_page or response.headers.get("Content-Type", "").startswith("text/html"):
            raise UserError(f"{url}: a web page came instead of the file: a login page, or a proxy in between?")
        if total and shutil.disk_usage(part.parent).free < total - start:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {in_units(total - start)} are needed")
        bar = tqdm(desc=part.stem, total=total, initial=start, unit="B", unit_scale=True, disable=None)
        with open(part, "ab" if start else "wb") as file, bar:
            while data:
                file.write(data)
                bar.update(len(data))
                data = read()
    if total and part.stat().st_size < total:
        raise Interrupted(f"the connection closed at {part.stat().st_size} of {total} bytes")
    return total, sha256


def as_size(text):
    """A number in a header -> int, or None for one that is missing or none."""
    return int(text) if text and text.isdecimal() else None


def check_download(part, name, size, sha256):
    """Raise Interrupted, and remove `part`, if it is not what it must be: then the next attempt starts from nothing."""
    fault = None
    if size and part.stat().st_size != size:
        fault = f"{part.stat().st_size} bytes came instead of {size}"
    elif sha256 and sha256_of(part) != sha256:
        fault = f"the file that came has another sha256 than {sha256}"
    else:
        try:  # where the server tells nothing, the file itself does
            if name.endswith(".safetensors"):
                read_safetensors_header(part)
            elif name.endswith(".json"):
                parse_json(read_text(part), name)
            elif name == "merges.txt" and not size and not read_text(part).endswith("\n"):
                raise UserError("its last line has no end")
        except UserError as error:
            fault = f"what came is not the whole file: {error}"
    if fault:
        part.unlink()
        raise Interrupted(fault)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
