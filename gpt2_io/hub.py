"""Models by name: in a folder, in Hugging Face's cache, or downloaded."""
import difflib
import os
import re
from pathlib import Path

from gpt2_io.checkpoint import WEIGHTS, open_checkpoint
from gpt2_io.downloads import download_model, hugging_face_home
from gpt2_io.errors import UserError
from gpt2_io.files import ROOT, read_text

HUB = {  # name -> id on the hub
    "124M": "openai-community/gpt2",
    "355M": "openai-community/gpt2-medium",
    "774M": "openai-community/gpt2-large",
    "1558M": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}


def same_models():
    """Every name of a model of `HUB` -> all its names, ours first: "gpt2" and "openai-community/gpt2" are "124M"."""
    groups = [list(dict.fromkeys([name, repo.split("/")[1], repo])) for name, repo in HUB.items()]
    return {name: group for group in groups for name in group}


def has_files(folder, *names):
    return all((folder / name).is_file() for name in names)


def has_weights(folder):
    return has_files(folder, "config.json") and any(has_files(folder, name) for name in WEIGHTS)


def has_tokenizer(folder):
    sets = (["tokenizer.json"], ["vocab.json", "merges.txt"], ["encoder.json", "vocab.bpe"])
    return any(has_files(folder, *names) for names in sets)


def find_model(model, models_dir="models", weights=True):
    """The path of a model's folder or weight file, downloaded first if need be.

    model: a path, the name of something in models_dir, a name of `HUB` or a synonym of one, or a hub id `org/name`;
    looked for in this order, then in an existing Hugging Face cache, then on the hub, unless HF_HUB_OFFLINE=1. A
    relative models_dir is also looked for beside the versions, so that commands work from any directory.
    weights: False where a tokenizer is all that is wanted: then a folder with one is enough.
    Raises UserError that says what is wrong and what would work, and OSError where a download cannot be written.
    """
    model = str(model)
    if not model or not str(models_dir):
        raise UserError("--model and --models_dir need a name, as in --model tales")
    names = same_models().get(model, [model])
    places = [Path(models_dir), ROOT / models_dir]
    paths = [Path(model), *(place / name for name in dict.fromkeys([model, *names]) for place in places)]
    if model == "tales":  # comes with the project, whatever models_dir is
        paths.append(ROOT / "models" / model)
    for path in paths:
        # A folder in which a download broke off has no weights yet: the download goes on.
        if path.is_file() or has_weights(path) or (not weights and has_tokenizer(path)):
            return path
    repo = HUB.get(names[0], model)
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo, re.ASCII)
    is_download = is_hub_id and (names[0] in HUB or any(path.is_dir() for path in paths[1:]))
    for path in paths:
        if path.is_dir() and not is_download:
            open_checkpoint(path)  # raises what is wrong with its weights, if that is it
            raise UserError(f"{path}: no config.json in this folder")
    if not is_hub_id:
        known = ", ".join(name for name in ("tales", *same_models()) if "/" not in name)
        raise UserError(
            f"no model {model!r}{nearest(model, places)}: no such file or folder, none in {models_dir}, "
            f"no known name ({known}) and no hub id (org/name)"
        )
    cached = find_in_cache(repo)
    if cached:
        return cached
    try:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UserError("it is not on this machine, and HF_HUB_OFFLINE is set")
        place = next((place for place in places if place.is_dir()), places[0])
        return download_model(repo, place / names[0])
    except UserError as error:
        known = "the bundled model (--model tales), a folder (--model path)"
        raise UserError(f"cannot get {model}{nearest(model, places)}: {error}; what works: {known}") from None


def nearest(model, places):
    """A name that is much like this one -> " (did you mean NAME?)", or "" where there is none."""
    known = {"tales": "tales", **{name.lower(): name for name in same_models()}}
    for place in places:
        for path in [*place.glob("*"), *place.glob("*/*")]:
            name = path.relative_to(place).as_posix()
            if has_weights(path) or (path.is_file() and path.parent == place):
                known[name.lower()] = name
    close = difflib.get_close_matches(model.lower(), known, n=1, cutoff=0.75)
    return f" (did you mean {known[close[0]]}?)" if close and known[close[0]] != model else ""


def find_in_cache(repo):
    """The snapshot of a model in the cache of Hugging Face's libraries, if it is there with all its files, or None."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    cache = Path(os.path.expanduser(named or f"{hugging_face_home()}/hub"))
    # The models of `HUB` had ids without an organisation once, such as "gpt2".
    for name in [repo, repo.split("/")[1]] if repo in HUB.values() else [repo]:
        folder = cache / f"models--{name.replace('/', '--')}"
        commit = read_text(folder / "refs" / "main").strip() if has_files(folder, "refs/main") else "*"
        for snapshot in sorted(folder.glob(f"snapshots/{commit}")):
            if has_weights(snapshot) and has_tokenizer(snapshot):
                return snapshot
    return None
