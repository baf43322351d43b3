"""Commands as processes that have their imports behind them: they start in no time, and signals find them at work."""
import contextlib
import json
import os
import subprocess
import sys

from tiny import ROOT

# A line of JSON asks for a command; the answers are its process id and then its exit status, as subprocess would give
# it. With `code`, that is run first.
SERVER = """
import json, os, signal, sys
__file__ = os.path.abspath("command.py")  # beside utils.py, as a command is
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started in the background
import requests  # which a download would import
import gpt2_v4_sampling, jobs, utils
from gpt2_io import command_line
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the command has begun
commands = {"v4": gpt2_v4_sampling.main, "utils": utils.COMMANDS, "jobs": jobs.COMMANDS}
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
os.environ.update(asked["environment"])
for fd, path in enumerate((os.devnull, asked["stdout"], asked["stderr"])):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), fd)
call = command_line.call
def begin(*arguments):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    return call(*arguments)
command_line.call = begin
exec(asked["code"])
sys.argv = ["command.py", *asked["arguments"]]
utils.run(commands[asked["command"]])
"""


class Process:
    """A command that the server started: `kill` it, or `wait` for its (exit status, stdout, stderr)."""

    def __init__(self, server, folder, name, arguments, environment=None, code=""):
        self.server, self.files = server, [folder / "stdout", folder / "stderr"]
        asked = {"command": name, "arguments": list(map(str, arguments)), "environment": environment or {}}
        asked |= {"stdout": str(self.files[0]), "stderr": str(self.files[1]), "code": code}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        self.pid = int(server.stdout.readline())

    def kill(self, number):
        with contextlib.suppress(ProcessLookupError):  # it may have come to its end
            os.kill(self.pid, number)

    def wait(self):
        status = int(self.server.stdout.readline())
        return status, *(file.read_text(encoding="utf-8") for file in self.files)


def start_server():
    command = [sys.executable, "-c", SERVER]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
