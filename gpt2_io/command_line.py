"""The edge of every command: flags and prompts as typed, mistakes as one line."""
import ast
import contextlib
import difflib
import functools
import inspect
import math
import os
import re
import signal
import sys
import threading
from pathlib import Path

from gpt2_io.errors import UserError
from gpt2_io.files import ROOT
from gpt2_io.streams import show_everything


def run(main, **commands):
    """Run a function, or one of a dict of functions, as a command: the edge at which mistakes become one line.

    commands: functions that are run instead where the first argument is their name, as in `verify --model tales`.
    Prompts and text flags arrive as typed; the default of a flag says whether its value is text, a whole number, a
    number or a switch (`--json`, `--json false`, `--nojson`). After `--` everything is a prompt, also what begins with
    a dash. UserError, OSError and MemoryError end as one line on stderr and exit status 2, Ctrl-C quietly with 130;
    any other error is a fault of the code and keeps its traceback.
    """
    if not sys.stderr:  # there is none after `2>&-`; what is printed there would be printed among the results
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the end)
    show_everything(sys.stdout)
    show_everything(sys.stderr)
    try:
        with quiet_ctrl_c():
            argv, name = sys.argv[1:], Path(sys.argv[0]).name
            if argv and argv[0] in commands:
                main, argv, name = commands[argv[0]], argv[1:], f"{name} {argv[0]}"
            try:
                call(main, argv, name)
            except KeyboardInterrupt as error:  # without its traceback, what was at work is removed here, in quiet
                raise error.with_traceback(None) from None
            if sys.stdout:  # there is none after `>&-`
                sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as in `... | head`
        drop_what_is_left()
        sys.exit(141)  # what a shell reports for a closed pipe
    except KeyboardInterrupt:
        sys.exit(130)
    except (UserError, OSError, MemoryError) as error:
        message = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        message = f"not enough memory: {message}" if isinstance(error, MemoryError) else message
        with contextlib.suppress(OSError):  # stderr may be the disk that is full
            message = re.sub(r"[\0-\x1f\x7f-\x9f]", lambda c: ascii(c[0])[1:-1], " ".join(message.split()))
            print("error:", message, file=sys.stderr)  # without what a file could tell the terminal to do
        drop_what_is_left()
        sys.exit(2)


@contextlib.contextmanager
def quiet_ctrl_c():
    """Within, Ctrl-C raises KeyboardInterrupt as ever, and it also counts where Python would print it and go on.

    Python does so where an object is removed (`__del__`): there the process ends at once. What else such objects
    complain of after Ctrl-C comes from being half made, and is not shown. All is put back at the end.
    """
    hook, is_main = sys.unraisablehook, threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # Ctrl-C is a matter of somebody else, or is ignored, as the shell may want it
        return
    interrupted = []

    def interrupt(number, frame):
        interrupted.append(number)
        signal.default_int_handler(number, frame)

    def report(unraisable):
        if unraisable.exc_type is KeyboardInterrupt:
            os._exit(130)
        if not interrupted:
            hook(unraisable)

    try:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, interrupt)
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook


def drop_what_is_left():
    """Give up what stdout and stderr cannot take. Python would try again at exit, report it, and end with 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def call(main, argv, name):
    """Call a function, or one of a dict of them, with what the arguments say. fire makes the page of help."""
    if isinstance(main, dict) and argv[:1] not in (["--help"], ["-h"]):
        if not argv or argv[0] not in main:
            given = repr(argv[0]) if argv else "nothing"
            raise UserError(f"{given} is no command of {name}; the commands are {', '.join(main)}")
        return call(main[argv[0]], argv[1:], f"{name} {argv[0]}")
    if argv[:1] == ["score"] and len(argv) > 1 and not argv[1].startswith("-"):
        raise UserError("to score texts: python jobs.py score FILE (a prompt that begins with score goes after --)")

    signature = inspect.signature(main) if callable(main) else inspect.Signature()
    kinds = {p.name: kind_of(p) for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL}
    texts, values, rest = [], {}, list(argv)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            texts += rest
            break
        if not re.match("--|-[a-zA-Z]", argument):
            texts.append(argument)
            continue
        key, equals, value = argument.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if key in ("help", "h") and key not in kinds:
            import fire  # here, so that no other command waits for it

            return fire.Fire(main, command=["--help"], name=name.replace(" ", "-"))
        if key not in kinds:
            key = full_name(key, kinds)
        if kinds.get(key) is bool:
            if not equals:
                value = rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
        elif kinds.get(positive := re.sub("^no_?", "", key)) is bool and not equals:
            key, value = positive, "false"
        elif key not in kinds:
            raise UserError(about_unknown(argument.partition("=")[0], key, kinds))
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"--{key} needs a value")
            value = rest.pop(0)
        values.setdefault(key, []).append(value)
    try:
        bound = signature.bind(*texts, **values)
    except TypeError as error:
        raise UserError(f"{name}: {error}") from None
    for key, value in bound.arguments.items():
        if key in kinds:
            bound.arguments[key] = parse(key, kinds[key], value if key in values else [value])
        else:
            bound.arguments[key] = tuple(map(as_typed, value))
    main(*bound.args, **bound.kwargs)


def kind_of(parameter):
    return type(parameter.default) if parameter.annotation is parameter.empty else parameter.annotation


def full_name(key, known):
    """A single letter stands for the only flag that begins with it, as on fire's page of help; `-n` always the same."""
    if key == "n" and "n_tokens_to_generate" in known:
        return "n_tokens_to_generate"
    short_for = [name for name in known if name[0] == key]
    return short_for[0] if len(short_for) == 1 else key


ELSEWHERE = {  # what flags are called in other programs -> here
    **dict.fromkeys(
        ("max_new_tokens", "max_tokens", "max_length", "length", "n_predict", "num_tokens", "n_tokens", "tokens"),
        "n_tokens_to_generate",
    ),
    **dict.fromkeys(("temp", "do_sample", "sample", "t"), "temperature"),
    **dict.fromkeys(("repeat_penalty", "repetition_penality", "rep_pen"), "repetition_penalty"),
    **dict.fromkeys(("num_return_sequences", "num_samples", "nsamples", "best_of"), "n_samples"),
    **dict.fromkeys(("m", "model_name", "model_name_or_path", "model_path", "model_size", "model_id"), "model"),
    **dict.fromkeys(("num_beams", "beam_size", "beams"), "n_beams"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_sequence", "reverse_prompt"), "stop"),
    **dict.fromkeys(("num_threads", "n_threads"), "threads"),
    **dict.fromkeys(("random_seed", "manual_seed", "s"), "seed"),
    **dict.fromkeys(("eos_token_id", "ignore_eos_token"), "ignore_eos"),
    **dict.fromkeys(("k", "topk"), "top_k"),
    **dict.fromkeys(("topp", "nucleus"), "top_p"),
    **dict.fromkeys(("file", "input", "input_file", "f"), "prompts_file"),
    **dict.fromkeys(("output", "output_file", "o"), "out"),
    **dict.fromkeys(("batch", "bs"), "batch_size"),
    **dict.fromkeys(("p", "prompts", "text"), "prompt"),
}
MOVED = ("prompts_file", "out", "batch_size")  # flags of v4 once


def about_unknown(flag, key, known):
    """What to say of a flag that a function lacks: the nearest that it has, or the version that has it."""
    elsewhere = flags_of_versions()
    name = ELSEWHERE.get(key, key)
    if name not in (*known, *elsewhere, *MOVED, "layout", "prompt"):
        name = next(iter(difflib.get_close_matches(key, [*known, *elsewhere], n=1)), None)
    if name in known:
        hint = f"did you mean --{name}?"
    elif name in MOVED:
        hint = "files of prompts: python jobs.py complete FILE --out results.jsonl"
    elif name in elsewhere:
        hint = f"--{name} is a flag of {elsewhere[name]}"
    elif name == "layout":
        hint = "python utils.py convert --model PATH --out FOLDER --layout nanogpt writes a folder for --model"
    elif name == "prompt":
        hint = 'a prompt has no flag before it, as in "Once upon a time"'
    else:
        hint = f"known: {', '.join(f'--{name}' for name in known)}"
    return f"unknown flag {flag}; {hint} (a text that begins with a dash goes after --)"


@functools.cache
def flags_of_versions():
    """The flags of all versions -> {flag: the file of the first version that has it}."""
    flags = {}
    for path in sorted(ROOT.glob("gpt2_v*.py"), key=lambda path: int(re.match(r"gpt2_v(\d*)", path.name)[1] or 0)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == "main":
                for argument in node.args.kwonlyargs:
                    flags.setdefault(argument.arg, path.name)
    return flags


def as_typed(text):
    """An argument as it was typed. Where Python took it for ASCII (LC_ALL=C), its bytes are read as UTF-8 after all."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def to_switch(text):
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def to_number(text):
    if math.isnan(float(text)):
        raise ValueError
    return float(text)


PARSERS = {bool: (to_switch, "True or False"), int: (int, "a whole number"), float: (to_number, "a number")}
PATHS = ("model", "models_dir", "tokenizer", "prompts_file", "file", "out")  # names of files keep their bytes


def parse(key, kind, texts):
    """What was given for a parameter -> its value: a tuple takes all texts, other kinds the last one."""
    if kind is tuple:
        return tuple(map(as_typed, texts))
    text = texts[-1] if key in PATHS else as_typed(texts[-1])
    if kind not in PARSERS:
        return text
    parser, expected = PARSERS[kind]
    try:
        return parser(text)
    except (KeyError, ValueError):
        raise UserError(f"--{key} takes {expected}, not {text!r:.60}") from None
