"""Python processes for tests that kill and stop real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import refold

# The package under test, and this one.
_FOLDERS = [Path(refold.__file__).parent.parent, Path(__file__).parent.parent]


class Child:
    """A Python process that runs `code` with `arguments` in sys.argv[1:]; it says lines and hears lines."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _FOLDERS)), "PYTHONSAFEPATH": "1"},
        )

    def line(self) -> str:
        """The next line it says; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Close its input and wait for its end; its exit status, negative for a signal."""
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()
        return self.process.returncode


@contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Gives a function that starts a Child; all are killed at the end, also stopped ones."""
    started: list[Child] = []

    def start(code: str, *arguments: object) -> Child:
        started.append(Child(code, *arguments))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.kill()
