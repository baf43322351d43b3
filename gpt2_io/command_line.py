"""The edge of every command: flags and prompts as typed, mistakes as one line."""
import contextlib
import inspect
import math
import os
import re
import signal
import sys
from pathlib import Path

import fire

from gpt2_io import signals
from gpt2_io.streams import show_everything


def run(main, **commands):
    """Run a function, or one of a dict of functions, as a command: the edge at which mistakes become one line.

    commands: functions that are run instead where the first argument is their name, as in `verify --model tales`.
    Prompts and text flags arrive as typed; the default of a flag says whether its value is text, a whole number, a
    number or a switch (`--json`, `--json=False`, `--nojson`). After `--` everything is a prompt, also what begins with
    a dash. ValueError, OSError and MemoryError end as one line on stderr and exit status 2, Ctrl-C quietly with 130;
    any other error is a bug and keeps its traceback.
    """
    if not sys.stderr:  # there is none after `2>&-`; what is printed there would be printed among the results
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the end)
    show_everything(sys.stdout)
    show_everything(sys.stderr)
    try:
        try:
            if signals.end_quietly:
                signal.signal(signal.SIGINT, signals.interrupt)
            argv, name = sys.argv[1:], Path(sys.argv[0]).name
            if argv and argv[0] in commands:
                call_with_fire(commands[argv[0]], argv[1:], f"{name} {argv[0]}")
            else:
                call_with_fire(main, argv, name)
            if sys.stdout:  # there is none after `>&-`
                sys.stdout.flush()
        finally:
            if signals.end_quietly:  # again: what is left is Python's own end
                signal.signal(signal.SIGINT, signals.end_quietly)
    except BrokenPipeError:  # the reader has enough, as in `... | head`
        drop_what_is_left()
        sys.exit(141)  # what a shell reports for a closed pipe
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, MemoryError) as error:
        message = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        message = f"not enough memory: {message}" if isinstance(error, MemoryError) else message
        with contextlib.suppress(OSError):  # stderr may be the disk that is full
            print("error:", " ".join(message.split()), file=sys.stderr)
        drop_what_is_left()
        sys.exit(2)


def drop_what_is_left():
    """Give up what stdout and stderr cannot take. Python would try again at exit, report it, and end with 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


TYPED = "\0"  # stands before arguments that are no flags, so that fire takes "-" and "--x" as typed; none contains it


def call_with_fire(main, argv, name):
    """Check the arguments of a command, which fire would answer with a page of usage, and let fire call it."""
    if isinstance(main, dict):
        if argv[:1] in (["--help"], ["-h"]):
            return fire.Fire(main, command=["--help"], name=name)
        if not argv or argv[0] not in main:
            given = repr(argv[0]) if argv else "nothing"
            raise ValueError(f"{given} is no command of {name}; the commands are {', '.join(main)}")
        return call_with_fire(main[argv[0]], argv[1:], f"{name} {argv[0]}")

    name = name.replace(" ", "-")  # fire's page of help would quote a name with a space
    signature = inspect.signature(main)
    defaults = {p.name: p.default for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL}
    texts, flags, rest = [], {}, list(argv)
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
        short_for = [n for n in defaults if n[0] == key]  # `-n` for the only flag that begins with n, as in fire
        if key not in defaults and key in ("help", "h"):
            return fire.Fire(main, command=["--help"], name=name)
        if key not in defaults and len(short_for) == 1:
            key = short_for[0]
        if isinstance(defaults.get(key), bool):
            value = value if equals else "True"
        elif isinstance(defaults.get(key.removeprefix("no")), bool) and not equals:
            key, value = key.removeprefix("no"), "False"
        elif key not in defaults:
            known = ", ".join(f"--{name}" for name in defaults)
            raise ValueError(f"unknown flag {argument}; known: {known} (a text that begins with a dash goes after --)")
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise ValueError(f"--{key} needs a value")
            value = rest.pop(0)
        if key in flags and isinstance(defaults[key], tuple):
            value = f"{flags[key]}{TYPED}{value}"  # a flag that can be given several times
        flags[key] = value
    try:
        signature.bind(*texts, **flags)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None

    fire.decorators.SetParseFn(as_typed)(main)
    for key, default in defaults.items():
        kind = signature.parameters[key].annotation
        kind = type(default) if kind is inspect.Parameter.empty else kind
        fire.decorators.SetParseFn(parser_for(key, kind), key)(main)
    command = [f"--{key}={value}" for key, value in flags.items()] + [TYPED + text for text in texts]
    return fire.Fire(main, command=command, name=name)


def as_typed(text):
    """An argument as it was typed. Where Python took it for ASCII (LC_ALL=C), its bytes are read as UTF-8 after all."""
    return text.removeprefix(TYPED).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parser_for(key, kind):
    """The function that turns the text of flag `key` into a value of a type; a tuple has all texts that were given."""

    def switch(text):
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]

    def number(text):
        if math.isnan(float(text)):
            raise ValueError
        return float(text)

    kinds = {bool: (switch, "True or False"), int: (int, "a whole number"), float: (number, "a number")}
    if kind is tuple:
        return lambda text: tuple(map(as_typed, text.split(TYPED)))
    if key in ("model", "models_dir", "prompts_file", "out"):  # names of files keep their bytes
        return lambda text: text.removeprefix(TYPED)
    if kind not in kinds:
        return as_typed
    parse, expected = kinds[kind]

    def parse_or_say(text):
        try:
            return parse(as_typed(text))
        except (KeyError, ValueError):
            raise ValueError(f"--{key} takes {expected}, not {as_typed(text)!r}") from None

    return parse_or_say
