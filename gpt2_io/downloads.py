"""Downloads that arrive whole and right, or not at all."""
import contextlib
import email.utils
import errno
import hashlib
import math
import os
import re
import shutil
import sys
import time
import zipfile

from tqdm import tqdm

from gpt2_io.checkpoint import WEIGHTS
from gpt2_io.errors import UserError, in_units
from gpt2_io.files import TEXT_FILES, locked, parse_json, read_text
from gpt2_io.safetensors import read_safetensors_header, read_weight_map

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
MAX_WAIT = 900  # seconds; a server that asks for more is not asked again
TIMEOUT = (10, 30)  # seconds to connect, and without a byte


class NotOnServer(UserError):
    """The server answered that there is no such file."""


class Interrupted(Exception):
    """An attempt to download failed in a way that another may not; wait: the seconds that the server asks for, or 0."""

    def __init__(self, reason, wait=0):
        super().__init__(reason)
        self.wait = wait


def hugging_face_home():
    """The folder in which Hugging Face's libraries keep what they know, as a text."""
    env = os.environ.get
    # os.path, since a Path raises RuntimeError where nobody knows a home, as for a user without a name in a container.
    return os.path.expanduser(env("HF_HOME") or os.path.join(env("XDG_CACHE_HOME") or "~/.cache", "huggingface"))


def download_model(repo, folder):
    """Download a model of the hub -> its folder. The weights come last, so a folder with weights is complete.

    HF_ENDPOINT is the address of the hub or a mirror. Raises UserError, or OSError where it cannot be written.
    """
    url = f"{(os.environ.get('HF_ENDPOINT') or 'https://huggingface.co').rstrip('/')}/{repo}/resolve/main"

    def get(name, to=None):
        fetch(f"{url}/{name}", to or folder / name, *KNOWN_FILES.get((repo, name), (None, None)))

    def get_weights():
        unfinished = folder / "index.json"  # an index gets its name when all files it speaks of are there
        for name in WEIGHTS:
            is_index = name.endswith(".json")
            with contextlib.suppress(NotOnServer):
                get(name, unfinished if is_index else None)
                if is_index:
                    for shard in sorted(set(read_weight_map(unfinished).values())):
                        get_shard(shard, name)
                    os.replace(unfinished, folder / name)
                return
        raise UserError(f"{repo} has none of {', '.join(WEIGHTS)}")

    def get_shard(name, index):
        try:
            get(name)
        except NotOnServer as error:
            raise UserError(f"{error}, though {index} names it") from None

    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        get("config.json")
        for name in TEXT_FILES:
            with contextlib.suppress(NotOnServer):
                get(name)
        get_weights()
    except OSError as error:
        raise OSError(f"{folder}: cannot write the download: {error.strerror or error}") from None
    except UserError:  # a mistyped name leaves no folders behind
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise
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
            except requests.exceptions.SSLError as error:
                raise UserError(
                    f"{url}: TLS: {cause_of(error)}: is the address right? Behind a proxy that opens TLS, "
                    "REQUESTS_CA_BUNDLE must name the file with its certificate"
                ) from None
            except requests.exceptions.ProxyError as error:
                hint = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
                raise UserError(f"{url}: the proxy: {cause_of(error)}: {hint}") from None
            except (requests.ConnectionError, requests.Timeout):
                reason, wait = "no answer (no network?)", 0
            except requests.RequestException as error:
                raise UserError(f"{url}: {error}") from None
            except (Interrupted, requests.packages.urllib3.exceptions.HTTPError) as error:
                reason, wait = error, getattr(error, "wait", 0)
            if pause is None or wait > MAX_WAIT:
                how_often = f"it asks for {wait} seconds" if wait > MAX_WAIT else f"in {len(RETRY_PAUSES) + 1} attempts"
                raise UserError(f"{url}: {reason}, {how_often}; the next run goes on there")
            if wait:
                print(f"{path.name}: {reason}; waiting {wait} seconds, as it asks", file=sys.stderr)
            time.sleep(max(pause, wait))
        os.replace(part, path)


def fetch_part(requests, url, part, size, sha256):
    """One attempt: append to `part` what is missing, or write it anew -> size and sha256 that it must have, or None."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    token, whose = find_token()
    if token:
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
            fault = f"the token in {whose} is refused" if token else "set HF_TOKEN, or hf auth login, or check the name"
            raise UserError(f"{url}: 401, the server wants to know who asks: {fault}")
        if status == 403:
            raise UserError(f"{url}: 403, not allowed: accept the model's terms on its page, as the owner of {whose}")
        if status == 407:
            raise UserError(f"{url}: 407, the proxy wants a name and a password: HTTPS_PROXY=http://NAME:PASSWORD@HOST")
        if status in (404, 410):
            raise NotOnServer(f"{url}: {status}, there is no such model or file")
        if status in (408, 429) or status >= 500:
            raise Interrupted(f"the server answers {status}", wait_of(response.headers))
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


def find_token():
    """The token for the hub, or None, and where it was found: HF_TOKEN, else the file that `hf auth login` writes."""
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(hugging_face_home(), "token")
    token, whose = os.environ.get("HF_TOKEN", "").strip(), "HF_TOKEN"
    if not token and os.access(path, os.R_OK):
        token, whose = read_text(path).strip(), path
    if not re.fullmatch("[!-~]*", token):  # a message of requests would show it
        raise UserError(f"{whose} holds characters that no token has")
    return token or None, whose


def wait_of(headers):
    """Seconds that a server asks to wait, rounded up: Retry-After (RFC 9110, 10.2.3), or t= in the hub's RateLimit."""
    asked = headers.get("Retry-After", "").strip()
    if asked.isdecimal():
        return int(asked)
    with contextlib.suppress(TypeError, ValueError):
        return max(0, math.ceil(email.utils.parsedate_to_datetime(asked).timestamp() - time.time()))
    reset = re.search(r"(?:^|;)\s*t=(\d{1,9})\b", headers.get("RateLimit", ""))
    return int(reset[1]) if reset else 0


def cause_of(error):
    """What lies at the bottom of an error of requests, without the layers that it is wrapped in -> text."""
    while error.args and isinstance(getattr(error.args[0], "reason", error.args[0]), Exception):
        error = getattr(error.args[0], "reason", error.args[0])
    return str(error.args[-1] if error.args else error)[:200]


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
            elif name.endswith(".bin") and not zipfile.is_zipfile(part) and open_first(part) == b"PK":
                raise UserError("a zip has its table at its end, and it is not there")
            elif name.endswith(".json"):
                parse_json(read_text(part), name)
            elif name == "merges.txt" and not size and not read_text(part).endswith("\n"):
                raise UserError("its last line has no end")
        except UserError as error:
            fault = f"what came is not the whole file: {error}"
    if fault:
        part.unlink()
        raise Interrupted(fault)


def open_first(path):
    with open(path, "rb") as file:
        return file.read(2)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
