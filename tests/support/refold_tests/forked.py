"""Python code in processes that are forked from one that has imported refold, instead of a new interpreter for each.

A new interpreter needs half a second of CPU time to import refold, with an SDK up to two, and tests start hundreds of
processes. A forked process has memory, descriptors and signals of its own: it can be killed and stopped like any other.

1. The process that runs tests has one server: a process with one thread that has imported what most code needs.
2. A request has the code, the arguments, the environment, the folder and the three standard streams. The server imports
   what the code imports at the beginning of a line, if it is refold, a package of tests or of HEAVY. Then it forks, and
   answers with the process id.
3. The forked process leaves the server's loop and runs the code as `__main__`. It ends as every interpreter does:
   exceptions are printed, `atexit` runs, modules are destroyed.
4. Its end is seen at its pidfd. Then its parent, the server, is asked for the status and the CPU time.
5. The server ends when the process that runs tests closes their socket, or ends.

Tests of what an interpreter imports or does at its start need a new one.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# What the code of most tests imports, directly or not.
PRELOADED = ("refold.agents.log", "refold.streams.open", "refold.streams.worker.service", "refold_tests.histories")
# Packages that take long to import. None of them starts a thread by that, which a fork would lose.
HEAVY = ("agents", "anthropic", "claude_agent_sdk", "langchain_core", "langgraph", "openai")
_IMPORTED = re.compile(rf"^(?:from|import) ((?:refold|refold_tests|{'|'.join(HEAVY)})(?:\.\w+)*)\b", re.MULTILINE)
_ENDED_S = 60.0


class Forked:
    """A forked process, with those members of `subprocess.Popen` that tests use."""

    def __init__(self, server: ForkServer, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin = open(stdin, "w", encoding="utf-8")  # noqa: SIM115
        self.stdout = open(stdout, encoding="utf-8")  # noqa: SIM115
        self.returncode: int | None = None
        self._server = server
        # Its number belongs to no other process before the server has asked for its status.
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, at most `timeout` seconds; return its status, negative for a signal.

        Raises:
            TimeoutExpired: It has not ended.
        """
        with self._lock:
            if self.returncode is None:
                ended = select.poll()
                ended.register(self._pidfd, select.POLLIN)
                if not ended.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
                self.returncode = self._server.status(self.pid)
                os.close(self._pidfd)
        return self.returncode

    def poll(self) -> int | None:
        """Return its status, or None if it has not ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Close its standard input, read its output to the end, and wait. Return the output."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        with self.stdout:
            output = self.stdout.read()
        self.wait(timeout)
        return output, None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """The process that forks, as the process that runs tests has it.

    cpu_s: the CPU seconds of all forked processes whose status was asked for. They are no children of this process.
    """

    cpu_s = 0.0

    def __init__(self, path: Sequence[str]) -> None:
        """path: where refold and this package are found."""
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "refold_tests.forked", str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONFAULTHANDLER": "1"},
            )  # fmt: skip
        self._answers = self._socket.makefile("r", encoding="utf-8")
        atexit.register(self.close)

    def start(self, code: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
        """Start code in a process of this one's folder and standard error, whose other streams are pipes."""
        stdin, given = os.pipe()
        said, stdout = os.pipe()
        asked = {"code": code, "arguments": arguments, "environment": dict(environment), "folder": str(Path.cwd())}
        try:
            pid = self._ask(asked, [stdin, stdout, 2])
        finally:
            os.close(stdin)
            os.close(stdout)
        return Forked(self, pid, given, said)

    def status(self, pid: int) -> int:
        """Return the status of a process that has ended. The server forgets it, so this is asked once."""
        return self._ask({"ended": pid}, [])

    def _ask(self, asked: dict[str, Any], descriptors: Sequence[int]) -> int:
        with self._lock:
            # The length first, with the descriptors, since a message may be longer than what is received at once.
            message = json.dumps(asked).encode()
            socket.send_fds(self._socket, [len(message).to_bytes(4)], descriptors)
            self._socket.sendall(message)
            answered = json.loads(self._answers.readline())
        ForkServer.cpu_s += answered["cpu_s"]
        return int(answered["number"])

    def close(self) -> None:
        """End the server. Processes that it forked go on."""
        self._answers.close()
        self._socket.close()
        self._process.wait(_ENDED_S)


@cache
def fork_server(path: tuple[str, ...]) -> ForkServer:
    """Return this process's server, which starts with the first call."""
    return ForkServer(path)


def _served(asking: socket.socket) -> dict[str, Any] | None:
    """Answer requests. Return None at the end, and what was asked in each forked process."""
    own_path = os.environ["PYTHONPATH"].split(os.pathsep)
    base = [each for each in sys.path if each not in own_path]
    for name in PRELOADED:
        importlib.import_module(name)
    while True:
        head, descriptors, _, _ = socket.recv_fds(asking, 4, 3)
        if not head:
            return None
        with asking.makefile("rb", buffering=0) as reading:
            message = b""
            while len(message) < int.from_bytes(head):
                message += reading.read(int.from_bytes(head) - len(message)) or b""
        asked: dict[str, Any] = json.loads(message)
        if "ended" in asked:
            _, status, used = os.wait4(asked["ended"], 0)
            _answer(asking, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
            continue
        for name in _IMPORTED.findall(asked["code"]):
            with suppress(ImportError):  # the forked process reports it
                importlib.import_module(name)
        assert threading.active_count() == 1, f"a fork would lose a thread: {asked['code']}"
        # Collections in the forked processes need not look at what they share.
        gc.freeze()
        pid = os.fork()
        if not pid:
            _become(asked, descriptors, base)
            asking.close()
            return asked
        for each in descriptors:
            os.close(each)
        _answer(asking, pid, 0.0)


def _answer(asking: socket.socket, number: int, cpu_s: float) -> None:
    asking.sendall(json.dumps({"number": number, "cpu_s": cpu_s}).encode() + b"\n")


def _become(asked: dict[str, Any], descriptors: Sequence[int], base: list[str]) -> None:
    """Take the streams, environment, folder, arguments and path of a request."""
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["-c", *asked["arguments"]]
    sys.path[:] = [each for each in asked["environment"].get("PYTHONPATH", "").split(os.pathsep) if each] + base
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()


if __name__ == "__main__":
    # A Ctrl-C reaches all processes of the terminal; this one ends with the one that runs tests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as _socket:
        _asked = _served(_socket)
    if _asked is not None:
        _main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(_asked["code"], "<string>", "exec"), _main.__dict__)
