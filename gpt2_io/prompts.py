"""Prompts from the command line or from a file."""
import contextlib
import itertools
import json
import sys

from gpt2_io.errors import UserError
from gpt2_io.files import is_json_object

MAX_PROMPTS = 1 << 28  # bytes of a file of prompts; without a limit, /dev/zero would fill the memory


def read_prompts(prompts, prompts_file=None):
    """Prompts from the command line or from a file -> list of {"prompt": text}, with "id" where the file gives one.

    prompts_file: a path, or "-" for standard input; UTF-8 with a prompt a line, or JSON lines with "prompt" and, if
    wanted, "id". Blank lines are passed over. Raises UserError for a line that is neither, by its number.
    """
    if prompts_file is None:
        return [{"prompt": prompt} for prompt in prompts]
    if prompts:
        raise UserError("give prompts or --prompts_file, not both")
    where = "standard input" if prompts_file == "-" else prompts_file
    if prompts_file == "-" and not sys.stdin:
        raise UserError("standard input is closed, but --prompts_file - reads from it")
    with contextlib.nullcontext(sys.stdin.buffer) if prompts_file == "-" else open(prompts_file, "rb") as file:
        pieces = iter(lambda: file.read(1 << 16), b"")  # read(n) would set n bytes aside, however small the file is
        data = b"".join(itertools.islice(pieces, MAX_PROMPTS // (1 << 16) + 1))
    if len(data) > MAX_PROMPTS:
        raise UserError(f"{where}: more than {MAX_PROMPTS} bytes: is it a file of prompts? Else split it")
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text (byte {error.start})") from None
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not lines:
        raise UserError(f"{where}: no prompts in it")
    if not is_json_object(lines[0][1]):
        return [{"prompt": line} for _, line in lines]
    records = []
    for number, line in lines:
        record = json.loads(line) if is_json_object(line) else {}
        if not isinstance(record.get("prompt"), str):
            raise UserError(f'{where}, line {number}: not a JSON object with a text "prompt", as the first line is')
        if is_deep(record.get("id")):
            raise UserError(f'{where}, line {number}: "id" has lists in lists in lists, too deep to be written again')
        records.append({key: record[key] for key in ("prompt", "id") if key in record})
    return records


def is_deep(value, limit=100):
    """Whether a JSON value is nested deeper than this. Python writes a little less deep than it reads."""
    level = [value]
    for _ in range(limit):
        boxes = [box.values() if isinstance(box, dict) else box for box in level if isinstance(box, (dict, list))]
        level = [value for box in boxes for value in box]
        if not level:
            return False
    return True
