"""Python child processes, for tests that kill and stop real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refold_tests.forked import FOLDERS, Forked, fork_server
from refold_tests.processes import state_of
from refold_tests.waiting import await_true


class Child:
    """A Python process that runs `code`, with `arguments` in sys.argv[1:]. It communicates by lines on its standard
    streams.
    """

    def __init__(self, code: str, *arguments: object, is_new: bool = False) -> None:
        """is_new: start an interpreter; otherwise the process is forked (refold_tests/forked.py)."""
        words = [*map(str, arguments)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (*FOLDERS, os.environ.get("PYTHONPATH")))),
            "PYTHONSAFEPATH": "1",
            "PYTHONFAULTHANDLER": "1",  # a process that ends with SIGSEGV prints where
        }
        self.process: subprocess.Popen[str] | Forked
        if is_new:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=environment,
            )  # fmt: skip
        else:
            self.process = fork_server().start(
                code, ["-c", *words], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )

    def line(self) -> str:
        """Return the next line that the process prints; empty at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def look(self) -> None:
        """Fail if the process has ended."""
        assert self.process.poll() is None, f"it ended: {self.line()}"

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. After SIGSTOP it returns when the process has stopped or ended."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            await_true(lambda: state_of(self.process.pid) in {"T", "Z", ""}, "it does not stop")

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel reports the process as stopped."""
        return state_of(self.process.pid) == "T"

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Close the standard input and wait for the end. Return the exit status, negative for a signal."""
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()
        return self.process.wait()


@contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Yield a function that starts a Child. All of them are killed at the end, even stopped ones."""
    started: list[Child] = []

    def start(code: str, *arguments: object, is_new: bool = False) -> Child:
        started.append(Child(code, *arguments, is_new=is_new))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.kill()
