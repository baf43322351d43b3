"""Ctrl-C while a command is loading."""
import os
import signal
import sys

if (
    os.path.dirname(os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or os.devnull))
    == os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may want it ignored
):
    # A command that lies beside this file. Ctrl-C ends it quietly from here on: in the imports below, which take a
    # good part of its first half second, and also where Python would print what Ctrl-C raises, drop it, and run on.
    interrupted = []

    def end_quietly(*_):
        os._exit(130)

    def interrupt(*_):  # while `run` is at work: by an exception, since there are files to close and to remove
        interrupted.append(True)
        raise KeyboardInterrupt

    def report(unraisable):
        if unraisable.exc_type is KeyboardInterrupt:
            end_quietly()
        if not interrupted:  # else it may be a complaint of what Ctrl-C left half made
            sys.__unraisablehook__(unraisable)

    signal.signal(signal.SIGINT, end_quietly)
    sys.unraisablehook = report
else:
    end_quietly = None  # a library leaves signals to the program that imports it
