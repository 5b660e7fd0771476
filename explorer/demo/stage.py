"""The demo's processes. They are started, read and ended here, and none outlives the demo.

Each has its own session, so Ctrl-C reaches only the demo, which ends them. A process that waits for the demo ends by
itself when the demo is gone.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import tempfile
from typing import Any

import refold

PATIENCE_S = 60.0
PACKAGE = "refold.explorer.demo"


class DemoFailed(refold.RefoldError):
    """One of the demo's processes failed or did not respond."""


class Actor:
    """A running module of the demo, in its own process."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.name = module
        self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # closed in `end`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{PACKAGE}.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def listen(self) -> dict[str, Any]:
        """Return the next report of the process.

        Raises:
            DemoFailed: The process ended, or printed nothing for PATIENCE_S seconds.
        """
        assert self._process.stdout is not None
        # The process prints one line and then waits, so no line can be in a buffer that select does not see.
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            raise DemoFailed(f"{self.name} printed nothing for {PATIENCE_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._failure(self._process.wait())
        report: dict[str, Any] = json.loads(line)
        return report

    def go_on(self) -> None:
        """Send the line that the process waits for."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure(self._process.wait()) from None

    def finish(self) -> None:
        """Wait for the process to end.

        Raises:
            DemoFailed: It does not end in time, or ends with another exit status than 0.
        """
        try:
            status = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"{self.name} did not end within {PATIENCE_S:g} s") from None
        if status:
            raise self._failure(status)

    def kill(self) -> int:
        """Send SIGKILL, which no process can handle; return the exit status, -9 if the signal ended it."""
        self._process.send_signal(signal.SIGKILL)
        return self._process.wait()

    def end(self) -> None:
        """Kill the process if it still runs, and close its streams."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            if stream is not None:
                stream.close()

    def _failure(self, status: int) -> DemoFailed:
        self._complaints.seek(0)
        last = (self._complaints.read().strip().splitlines() or ["no output"])[-1]
        return DemoFailed(f"{self.name} ended with status {status}: {last}")


class Stage:
    """Starts processes; as a context manager it ends all of them."""

    def __init__(self) -> None:
        self._actors: list[Actor] = []

    def start(self, module: str, *arguments: str) -> Actor:
        """Start `python -m refold.explorer.demo.MODULE ARGUMENTS`."""
        self._actors.append(Actor(module, *arguments))
        return self._actors[-1]

    def play(self, module: str, *arguments: str) -> None:
        """Start a module, and wait until it ends successfully."""
        self.start(module, *arguments).finish()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            actor.end()
