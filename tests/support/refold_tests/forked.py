"""Python code in processes that are forked from one that has imported refold, instead of a new interpreter for each.

A new interpreter needs half a second of CPU time to import refold, with an SDK up to two, and tests start hundreds of
processes. A forked process has memory, descriptors and signals of its own: it can be killed and stopped like any other.

1. The process that runs tests has one server: a process with one thread that has imported what most code needs.
2. A request has the code, the arguments, the environment, the folder and the three standard streams. The server imports
   what the code imports at the beginning of a line, if it is refold, a package of tests or of HEAVY. Then it forks, and
   answers with the process id.
3. The forked process leaves the server's loop and runs the code as `__main__`. At its end exceptions are printed,
   threads are joined, `atexit` runs, and output is flushed, as in every interpreter. Modules are not destroyed: that
   takes ten times as long as the rest of an empty process.
4. Its end is seen at its pidfd. Then its parent, the server, is asked for the status and the CPU time.
5. The server ends when the process that runs tests closes their socket, or ends.

Tests of what an interpreter imports or does at its start need a new one.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
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
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import refold

OWN = str(Path(__file__).parent.parent)
# Of the package under test, and of this package.
FOLDERS = (str(Path(refold.__file__).parent.parent), OWN)
# What the code of most tests imports, directly or not.
PRELOADED = ("refold.agents.log", "refold.streams.open", "refold.streams.worker.service", "refold_tests.histories")
# Packages that take long to import. None of them starts a thread by that, which a fork would lose.
HEAVY = ("agents", "anthropic", "claude_agent_sdk", "langchain_core", "langgraph", "openai")
_IMPORTED = re.compile(rf"^(?:from|import) ((?:refold|refold_tests|{'|'.join(HEAVY)})(?:\.\w+)*)\b", re.MULTILINE)
_ENDED_S = 60.0
_PASSED_MAX = 16


class Forked:
    """A forked process, with those members of `subprocess.Popen` that tests use."""

    def __init__(self, server: ForkServer, pid: int, streams: Sequence[IO[Any] | None]) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = streams
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

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write to its standard input, close it, read its output to the end, and wait. Return output and errors.

        Raises:
            TimeoutExpired: It has not ended, and was killed.
        """
        with ThreadPoolExecutor(2) as reading:
            rest = [None if each is None or each.closed else reading.submit(_rest, each)
                    for each in (self.stdout, self.stderr)]  # fmt: skip
            try:
                if self.stdin is not None and not self.stdin.closed:
                    with suppress(BrokenPipeError), self.stdin:
                        self.stdin.write(given or ("" if hasattr(self.stdin, "encoding") else b""))
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
        output, errors = (each and each.result() for each in rest)
        return output, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                with suppress(BrokenPipeError):
                    each.close()
        self.wait()

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


def _rest(stream: IO[Any]) -> Any:
    with stream:
        return stream.read()


class ForkServer:
    """The process that forks, as the process that runs tests has it.

    pid: its process id.
    cpu_s: the CPU seconds of the forked processes whose status was asked for, of all open servers. They are children
    of a server; when that ends, the system counts them as this process's, like its own.
    """

    cpu_s = 0.0

    def __init__(
        self, python: str = sys.executable, path: Sequence[str] = FOLDERS, modules: Sequence[str] = PRELOADED
    ) -> None:
        """python: the interpreter; path: its PYTHONPATH, with `OWN`; modules: what it imports at first."""
        self._cpu_s = 0.0
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [python, "-P", "-m", "refold_tests.forked", str(theirs.fileno()), *modules], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )  # fmt: skip
        self.pid = self._process.pid
        self._answers = self._socket.makefile("r", encoding="utf-8")
        atexit.register(self.close)

    def start(
        self, code: str, arguments: Sequence[str], *, env: Mapping[str, str], cwd: str | Path | None = None,
        stdin: int | None = None, stdout: int | None = None, stderr: int | None = None, text: bool = True,
        buffering: int = -1, pass_fds: Sequence[int] = (),
    ) -> Forked:  # fmt: skip
        """Start code in a process.

        Args:
            code: What it runs as `__main__`.
            arguments: Its sys.argv.
            env: Its environment.
            cwd: Its folder; None: this process's own.
            stdin: PIPE or DEVNULL of `subprocess`, or a descriptor; None: this process's own.
            stdout: Likewise.
            stderr: Likewise.
            text: Whether pipes are of text.
            buffering: Of the pipes, as `open` takes it.
            pass_fds: Descriptors that it gets, under the same numbers.
        """
        asked = {"code": code, "arguments": [*arguments], "environment": dict(env), "folder": str(cwd or Path.cwd()),
                 "descriptors": [*range(3), *pass_fds]}  # fmt: skip
        ends = [_ends(number, given) for number, given in enumerate((stdin, stdout, stderr))]
        try:
            pid = self._ask(asked, [*(theirs for _, theirs in ends), *pass_fds])
        finally:
            for number, (_, theirs) in enumerate(ends):
                if theirs != number:
                    os.close(theirs)
        mode = "" if text else "b"
        streams = [None if own is None else os.fdopen(own, ("r" if number else "w") + mode, buffering)
                   for number, (own, _) in enumerate(ends)]  # fmt: skip
        return Forked(self, pid, streams)

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
            self._add(answered["cpu_s"])
        return int(answered["number"])

    def _add(self, cpu_s: float) -> None:
        self._cpu_s += cpu_s
        ForkServer.cpu_s += cpu_s

    def close(self) -> None:
        """End the server. Processes that it forked continue."""
        atexit.unregister(self.close)
        self._answers.close()
        self._socket.close()
        self._process.wait(_ENDED_S)
        self._add(-self._cpu_s)


def _ends(number: int, given: int | None) -> tuple[int | None, int]:
    """Return this process's descriptor of a standard stream, and that of the forked one."""
    if given is None:
        return None, number
    if given == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_RDWR)
    if given != subprocess.PIPE:
        return None, os.dup(given)
    reading, writing = os.pipe()
    return (reading, writing) if number else (writing, reading)


@cache
def fork_server() -> ForkServer:
    """Return this process's server, which starts with the first call."""
    return ForkServer()


def _served(asking: socket.socket) -> dict[str, Any] | None:
    """Answer requests. Return None at the end, and in each forked process what was asked."""
    base = [each for each in sys.path if each != OWN]
    for name in sys.argv[2:]:
        importlib.import_module(name)
    while asked := _received(asking):
        request, descriptors = asked
        if "ended" in request:
            _, status, used = os.wait4(request["ended"], 0)
            _answer(asking, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
            continue
        for name in _IMPORTED.findall(request["code"]):
            with suppress(ImportError):  # the forked process reports it
                importlib.import_module(name)
        assert threading.active_count() == 1, f"a fork would lose a thread: {request['code']}"
        # The garbage collector of a forked process need not go through what they share.
        gc.freeze()
        pid = os.fork()
        if not pid:
            asking.close()
            _become(request, descriptors, base)
            return request
        for each in descriptors:
            os.close(each)
        _answer(asking, pid, 0.0)
    return None


def _received(asking: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, descriptors, _, _ = socket.recv_fds(asking, 4, _PASSED_MAX)
    if not head:
        return None
    message = b""
    while len(message) < int.from_bytes(head):
        message += asking.recv(int.from_bytes(head) - len(message))
    return json.loads(message), descriptors


def _answer(asking: socket.socket, number: int, cpu_s: float) -> None:
    asking.sendall(json.dumps({"number": number, "cpu_s": cpu_s}).encode() + b"\n")


def _become(asked: dict[str, Any], descriptors: Sequence[int], base: list[str]) -> None:
    """Take the streams, folder, environment, arguments and path of a request."""
    # First above all numbers that are wanted: one that was received may be among these.
    above = [fcntl.fcntl(each, fcntl.F_DUPFD, 1 + max(asked["descriptors"])) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for number, each in zip(asked["descriptors"], above, strict=True):
        os.dup2(each, number)
        os.close(each)
    tempfile.tempdir = None  # it is in the environment
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["arguments"]
    sys.path[:] = [*filter(None, asked["environment"].get("PYTHONPATH", "").split(os.pathsep)), *base]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()  # a process that ends with SIGSEGV prints where


def _run(code: str) -> int:
    """Run code as `__main__`; return the exit status, negative for a signal."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(status: int) -> NoReturn:
    threading._shutdown()  # type: ignore[attr-defined]  # typeshed does not list it
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    # A Ctrl-C reaches all processes of a terminal; this one ends with the one that runs tests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as _socket:
        _asked = _served(_socket)
    if _asked is not None:
        _end(_run(_asked["code"]))
