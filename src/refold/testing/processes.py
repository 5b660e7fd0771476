"""Helpers for test servers: a process that never outlives this one, free ports, and a cache that several processes may
fill at once."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from refold.avro.errors import RefoldError
from refold.streams.deadline import Deadline
from refold.testing import supervisor

HOST = "127.0.0.1"
_POLL_S = 0.05
_STOP_S = 30.0
_TAIL_LINES = 25
# Below the ephemeral ports, so that they stay free while a server is down.
_PORT_FIRST, _PORT_LAST = 20_000, 32_000
_draw = random.SystemRandom()


class ServerMissing(RefoldError):
    """A program that a server needs is not on this machine; the message says what to install."""


class ServerFailed(RefoldError):
    """A server did not start, or did not do what was asked; the message shows the end of its log."""


class Supervised:
    """A server under a supervisor (supervisor.py), so that it ends when this process ends, however it ends.

    Args:
        name: The server's name in messages.
        remove: A folder to delete if this process ends without stopping the server; None: no folder.

    Attributes:
        log: The file of its output.
    """

    def __init__(self, name: str, log: Path, *, remove: Path | None) -> None:
        self.log = log
        self.pid: int | None = None
        self._name = name
        self._remove = remove
        self._supervisor: subprocess.Popen[str] | None = None
        self._log_from = 0

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists; a paused one exists."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def launch(self, command: Sequence[str], *, folder: Path | None = None) -> None:
        """Start the server. It is ready when `await_ready` returns.

        Args:
            command: The command and its arguments.
            folder: Where to run it; None for the current folder.

        Raises:
            ServerFailed: The command does not run.
        """
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(supervisor.__file__), str(self.log), str(self._remove or ""), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            # So that the terminal's Ctrl-C does not reach it.
            start_new_session=True,
        )
        assert self._supervisor.stdout is not None
        pid = self._supervisor.stdout.readline().strip()
        if not pid:
            self._end()
            raise ServerFailed(f"{self._name} could not be started: {command[0]} does not run")
        self.pid = int(pid)

    def await_ready(self, is_ready: Callable[[], bool], within_s: float) -> None:
        """Wait until the server serves.

        Raises:
            ServerFailed: It ended instead, or after `within_s` seconds.
        """
        deadline = Deadline(within_s)
        while not is_ready():
            if not self.is_running:
                raise ServerFailed(f"{self._name} ended instead of starting.\n{self.tail()}")
            if deadline.is_past:
                raise ServerFailed(f"{self._name} did not start in {within_s:.0f} s.\n{self.tail()}")
            time.sleep(_POLL_S)

    def send(self, name: str) -> None:
        """Send the signal of that name; returns when it has taken effect. Does nothing if the server has ended."""
        process = self._supervisor
        if process is None or process.stdin is None or process.stdout is None:
            return
        try:
            if process.poll() is None:
                process.stdin.write(f"{name}\n")
                process.stdin.flush()
                # `ok`, or nothing if it ended meanwhile.
                process.stdout.readline()
        except BrokenPipeError:
            pass

    def kill(self) -> None:
        """Send SIGKILL. Returns when it is gone."""
        self.send("SIGKILL")
        self._end()

    def stop(self) -> None:
        """Send SIGTERM for an orderly end; send SIGKILL if that takes too long."""
        self.send("SIGCONT")
        self.send("SIGTERM")
        if self._supervisor is not None:
            try:
                self._supervisor.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.send("SIGKILL")
        self._end()

    def tail(self) -> str:
        """Return the end of its output since its last start."""
        return "\n".join([f"The end of {self.log}:", *self.output().splitlines()[-_TAIL_LINES:]])

    def output(self) -> str:
        """Return its output since its last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode(errors="replace")

    def _end(self) -> None:
        process, self._supervisor = self._supervisor, None
        if process is not None:
            # Closes its input, which ends it in any case, and waits.
            process.communicate()


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    found: list[int] = []
    while len(found) < count:
        port = _draw.randrange(_PORT_FIRST, _PORT_LAST)
        if port not in found and is_free(port):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True


def cache_folder() -> Path:
    """Return refold's folder in the user's cache."""
    cached = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cached).absolute() / "refold"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, one process at a time. The system releases the lock when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
