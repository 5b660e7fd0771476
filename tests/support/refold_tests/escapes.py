"""An agent that does nothing while it is recorded, and tries to reach a server while it is replayed.

WAYS are the ways to reach outside, by name. Some need something that existed before the replay; `prepare` creates it.
If ESCAPING is set in the environment, `agent` uses the way that its input names, and ignores any exception.
"""

from __future__ import annotations

import _posixsubprocess
import _socket
import _thread
import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import gc
import io
import multiprocessing
import multiprocessing.pool
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from os import write as kept_write
from pathlib import Path
from typing import Any

from refold.agents.recorder.run import Run

ESCAPING = "REFOLD_TEST_ESCAPING"
LIBRARY = "REFOLD_TEST_ESCAPE_LIBRARY"
_kept_fork_exec = _posixsubprocess.fork_exec
_kept_start = _thread.start_new_thread
WAIT_S = 30


class Prepared:
    """What exists before the replay begins: an open connection, and threads, pools and processes that accept work."""

    def __init__(self, port: int, *, with_processes: bool) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.work: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._serve, name="older")
        self.thread.start()
        self.threads = multiprocessing.pool.ThreadPool(1)
        self.executor = ThreadPoolExecutor(1)
        self.executor.submit(int).result()
        if with_processes:
            spawning = multiprocessing.get_context("spawn")
            self.processes = ProcessPoolExecutor(1, mp_context=spawning)
            self.processes.submit(int).result(WAIT_S)
            self.pool = spawning.Pool(1)
            self.pool.apply(int)
        self.loop = asyncio.new_event_loop()
        self.looping = threading.Thread(target=self.loop.run_forever, name="loop")
        self.looping.start()
        opening = self.loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        self.transport: Any = asyncio.run_coroutine_threadsafe(opening, self.loop).result(WAIT_S)[0]
        self.libc = ctypes.CDLL(None)
        self.found = self.libc.socket
        self.found(2, 1, 0)

    def _serve(self) -> None:
        while (work := self.work.get()) is not None:
            with contextlib.suppress(BaseException):
                work()
            self.work.task_done()

    async def _let_go(self) -> None:
        self.transport.abort()
        await asyncio.sleep(0)  # lets the loop close the socket

    def close(self) -> None:
        """Release everything that was created."""
        self.work.put(None)
        self.thread.join(WAIT_S)
        self.threads.terminate()
        self.executor.shutdown()
        if "pool" in vars(self):
            self.processes.shutdown()
            self.pool.terminate()
        asyncio.run_coroutine_threadsafe(self._let_go(), self.loop).result(WAIT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.looping.join(WAIT_S)
        self.loop.close()
        self.connection.close()


_prepared: list[Prepared] = []


def prepare(port: int, *, with_processes: bool = True) -> None:
    """Create what ways need from before the replay. with_processes: also pools of processes, which take a while."""
    _prepared.append(Prepared(port, with_processes=with_processes))


def clear() -> None:
    """Release everything that `prepare` created."""
    while _prepared:
        _prepared.pop().close()


def _older(port: int) -> Prepared:
    if not _prepared:
        prepare(port)
    return _prepared[0]


def reach(port: int) -> None:
    """Connect to the server, and send a byte."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
        connection.sendall(b"x")


def _code(port: int) -> list[str]:
    return [sys.executable, "-S", "-c", f"import socket; socket.create_connection(('127.0.0.1', {port})).send(b'x')"]


def _process(method: str) -> Callable[[int], None]:
    def way(port: int) -> None:
        made: Any = multiprocessing.get_context(method)
        process = made.Process(target=reach, args=(port,))
        process.start()
        process.join(WAIT_S)

    return way


def _forked(port: int) -> None:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            reach(port)
        os._exit(0)
    os.waitpid(pid, 0)


def _posix_spawned(port: int) -> None:
    code = _code(port)
    os.waitpid(os.posix_spawn(code[0], code, dict(os.environ)), 0)


def _fork_executed(*, is_kept: bool = False) -> Callable[[int], None]:
    def way(port: int) -> None:
        fork_exec = _kept_fork_exec if is_kept else _posixsubprocess.fork_exec
        code = [each.encode() for each in _code(port)]
        ends = os.pipe()
        more: list[Any] = [] if sys.version_info >= (3, 14) else [True] if sys.version_info >= (3, 12) else [False]
        arguments: list[Any] = [
            code, [code[0]], True, (), None, None, -1, -1, -1, -1, -1, -1, *ends, False, False, -1, None, None, None,
            -1, None, *more,
        ]  # fmt: skip
        os.waitpid(fork_exec(*arguments), 0)

    return way


def _bare_thread(*, is_kept: bool = False) -> Callable[[int], None]:
    def way(port: int) -> None:
        start = _kept_start if is_kept else _thread.start_new_thread
        done = threading.Event()

        def work() -> None:
            try:
                with contextlib.suppress(BaseException):
                    reach(port)
            finally:
                done.set()

        start(work, ())
        done.wait(WAIT_S)

    return way


def _queued(port: int) -> None:
    older = _older(port)
    older.work.put(lambda: reach(port))
    older.work.join()


def _executed(port: int) -> None:
    with ProcessPoolExecutor(1) as pool:
        pool.submit(reach, port).result(WAIT_S)


def _pooled_threads(port: int) -> None:
    with multiprocessing.pool.ThreadPool(1) as pool:
        pool.apply(reach, (port,))


def _new_task_context(port: int) -> None:
    async def inner() -> None:
        reach(port)

    async def outer() -> None:
        await asyncio.get_running_loop().create_task(inner(), context=contextvars.Context())

    asyncio.run(outer())


def _late(port: int) -> None:
    """Leave a thread behind that acts after the replay has ended."""
    ending = threading.Event()

    def work() -> None:
        ending.wait(WAIT_S)
        with contextlib.suppress(BaseException):
            reach(port)

    threading.Thread(target=work, name="late").start()
    left_behind.append(ending)


left_behind: list[threading.Event] = []


def _raw_socket(port: int) -> None:
    made = _socket.socket()
    try:
        made.connect(("127.0.0.1", port))
        made.send(b"x")
    finally:
        made.close()


def _forked_terminal(port: int) -> None:
    pid, terminal = os.forkpty()
    if pid == 0:
        with contextlib.suppress(BaseException):
            reach(port)
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(terminal)


def _timed(port: int) -> None:
    timer = threading.Timer(0, _silently(port))
    timer.start()
    timer.join(WAIT_S)


def _silently(port: int) -> Callable[..., None]:
    def reaching(*_: object) -> None:
        with contextlib.suppress(BaseException):
            reach(port)

    return reaching


def _in_older_loop(port: int) -> None:
    async def reaching() -> None:
        reach(port)

    asyncio.run_coroutine_threadsafe(reaching(), _older(port).loop).result(WAIT_S)


def _when_done(port: int) -> None:
    older, begun, done = _older(port), threading.Event(), threading.Event()

    def reaching(_: object) -> None:
        _silently(port)()
        done.set()

    future = older.executor.submit(begun.wait, WAIT_S)
    future.add_done_callback(reaching)
    begun.set()
    done.wait(WAIT_S)


def _profiled(port: int) -> None:
    before = sys.getprofile()
    sys.setprofile(_silently(port))
    try:
        len(str(port))
    finally:
        sys.setprofile(before)


def _signalled(port: int) -> None:
    before = signal.signal(signal.SIGUSR2, _silently(port))
    try:
        signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


class _Dying:
    def __init__(self, port: int) -> None:
        self.port = port

    def __del__(self) -> None:
        _silently(self.port)()


def _died(port: int) -> None:
    _Dying(port)


# Callbacks that the code leaves behind, by name: how to register, trigger and remove them.
_kept_alive: list[Any] = []


def _finalized(port: int) -> None:
    _kept_alive.append(threading.Event())
    weakref.finalize(_kept_alive[-1], _silently(port))


def _future_left(port: int) -> None:
    _kept_alive.append(Future())
    _kept_alive[-1].add_done_callback(_silently(port))


def _let_go() -> None:
    while _kept_alive:
        each = _kept_alive.pop()
        if isinstance(each, Future):
            each.set_result(None)


LATER: dict[str, tuple[Callable[[int], object], Callable[[], object], Callable[[], object]]] = {
    "a handler of a signal": (
        lambda port: signal.signal(signal.SIGUSR2, _silently(port)),
        lambda: signal.raise_signal(signal.SIGUSR2),
        lambda: signal.signal(signal.SIGUSR2, signal.SIG_DFL),
    ),
    "gc.callbacks": (lambda port: gc.callbacks.append(_silently(port)), gc.collect, gc.callbacks.pop),
    "threading.setprofile": (
        lambda port: threading.setprofile(_silently(port)),
        lambda: ThreadPoolExecutor(1).submit(len, "x").result(),
        lambda: threading.setprofile(None),
    ),
    "weakref.finalize": (_finalized, _let_go, _let_go),
    "a future's callback": (_future_left, _let_go, _let_go),
    "atexit": (lambda port: atexit.register(_silently(port)), lambda: None, lambda: None),
}


def _sent_file(port: int) -> None:
    with Path(__file__).open("rb") as file:
        os.sendfile(_older(port).connection.fileno(), file.fileno(), 0, 1)


def _written_file(port: int) -> None:
    with io.FileIO(os.dup(_older(port).connection.fileno()), "w") as file:
        file.write(b"x")


def _by_ctypes(port: int) -> None:
    libc = ctypes.CDLL(None)
    made = libc.socket(2, 1, 0)
    address = b"\x02\x00" + port.to_bytes(2, "big") + b"\x7f\x00\x00\x01" + bytes(8)
    if libc.connect(made, address, 16) == 0:
        libc.send(made, b"x", 1, 0)
    libc.close(made)


def _by_known_ctypes(port: int) -> None:
    _older(port).found(2, 1, 0)
    _by_ctypes(port)


def _library(name: str) -> Callable[[int], None]:
    def way(port: int) -> None:
        getattr(ctypes.CDLL(os.environ[LIBRARY]), name)(port)

    return way


WAYS: dict[str, Callable[[int], object]] = {
    "connect": reach,
    "multiprocessing, spawned": _process("spawn"),
    "multiprocessing, forked": _process("fork"),
    "multiprocessing, of a server": _process("forkserver"),
    "ProcessPoolExecutor": _executed,
    "ProcessPoolExecutor from before": lambda port: _older(port).processes.submit(reach, port).result(WAIT_S),
    "Pool from before": lambda port: _older(port).pool.apply(reach, (port,)),
    "Pool.map from before": lambda port: _older(port).pool.map(reach, [port]),
    "ThreadPool": _pooled_threads,
    "ThreadPool from before": lambda port: _older(port).threads.apply(reach, (port,)),
    "ThreadPoolExecutor from before": lambda port: _older(port).executor.submit(reach, port).result(WAIT_S),
    "queue to an older thread": _queued,
    "_thread": _bare_thread(),
    "_thread, kept before": _bare_thread(is_kept=True),
    "a thread left behind": _late,
    "Context().run": lambda port: contextvars.Context().run(reach, port),
    "a task in a context of its own": _new_task_context,
    "os.write to an open socket": lambda port: os.write(_older(port).connection.fileno(), b"x"),
    "os.write, kept before": lambda port: kept_write(_older(port).connection.fileno(), b"x"),
    "os.writev to an open socket": lambda port: os.writev(_older(port).connection.fileno(), [b"x"]),
    "os.sendfile to an open socket": _sent_file,
    "a file over an open socket": _written_file,
    "send on an open socket": lambda port: _older(port).connection.sendall(b"x"),
    "os.fork": _forked,
    "os.posix_spawn": _posix_spawned,
    "os.system": lambda port: os.system(" ".join([*_code(port)[:3], f'"{_code(port)[3]}"'])),
    "subprocess": lambda port: subprocess.run(_code(port), check=False),
    "a program without the environment": lambda port: subprocess.run(["env", "-i", *_code(port)], check=False),
    "_posixsubprocess.fork_exec": _fork_executed(),
    "fork_exec, kept before": _fork_executed(is_kept=True),
    "os.forkpty": _forked_terminal,
    "_socket": _raw_socket,
    "threading.Timer": _timed,
    "a transport from before": lambda port: _older(port).transport.write(b"x"),
    "a task in a loop from before": _in_older_loop,
    "a future's callback, in a pool from before": _when_done,
    "sys.setprofile": _profiled,
    "a handler of a signal": _signalled,
    "__del__": _died,
    "an audit hook": lambda port: sys.addaudithook(lambda event, args: None),
    "ctypes": _by_ctypes,
    "a ctypes function from before": _by_known_ctypes,
    "a compiled helper": _library("reach"),
}
# Ways that no guard in Python can detect.
BEYOND_PYTHON: dict[str, Callable[[int], object]] = {
    "a method of a C type": lambda port: _socket.socket.send(_older(port).connection, b"x"),
    "a compiled helper's own thread": _library("reach_from_a_thread"),
    "a compiled helper that executes": _library("reach_by_a_process"),
}

_LEAVING = {f"{name}, later": leave for name, (leave, _, _) in LATER.items()}


def agent(run: Run) -> str:
    """Use the way that the input names, if ESCAPING is set."""
    with run.step("look"):
        if os.environ.get(ESCAPING):
            with contextlib.suppress(BaseException):
                {**WAYS, **BEYOND_PYTHON, **_LEAVING}[run.input["way"]](run.input["port"])
    return "done"
