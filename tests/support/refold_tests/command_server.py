"""Commands in their own processes, without the half second that starting Python and importing refold takes.

A process that has imported the command line forks a child for each command. The child has its own folder, environment,
standard streams and exit status, and shares nothing with earlier commands. Tests of what a command imports, and tests
that need Python's own variables, start a new interpreter instead (refold_tests/command.py).
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

TIMEOUT_S = 120
_STREAMS = ("given", "out", "err")


class CommandServer:
    """The process that forks. For use by one thread."""

    def __init__(self, path: list[str]) -> None:
        """path: where refold and this package are found."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "refold_tests.command_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )  # fmt: skip
        atexit.register(self.close)

    def run(self, arguments: list[str], folder: Path, environment: dict[str, str], streams: Path) -> int:
        """Run a command to its end; return the exit status, negative for a signal.

        streams: a folder with a file `given`, the standard input. The files `out` and `err` are written there.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"arguments": arguments, "folder": str(folder), "environment": environment, "streams": str(streams)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve(asking: TextIO, answering: TextIO) -> None:
    for line in asking:
        asked = json.loads(line)
        process = os.fork()
        if not process:
            os._exit(_ran(asked))
        _, status = os.waitpid(process, 0)
        answering.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answering.flush()


def _ran(asked: dict[str, Any]) -> int:
    """Run a command like the console script, in the forked process."""
    from refold_tests.every_command import main

    signal.alarm(TIMEOUT_S)  # ends the process, so that the caller is notified
    for number, name in enumerate(_STREAMS):
        flags = os.O_RDONLY if name == "given" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(Path(asked["streams"], name), flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["refold", *asked["arguments"]]
    status: Any = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    # The pipe to the caller is moved to other descriptors, so that no command reads from it or writes to it.
    asks, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    importlib.import_module("refold_tests.every_command")
    _serve(asks, answers)
