"""How the guard detects operations: an audit hook, and wrappers of functions that raise no audit event
(agents/replay/guard.py).

1. The audit hook reports names, connections, processes and ctypes wherever Python code uses them, through any
   reference. Python cannot remove the hook; it does nothing if no guard is concerned.
2. Functions and methods without an event are wrapped at the first guard, and stay wrapped, because a thread that a
   replay started may outlive it. A module that is imported later is wrapped at the next guard.
3. Modules that imported such a function by name before (`from os import write`) get the wrapped one.
"""

from __future__ import annotations

import _posixsubprocess
import _thread
import atexit
import ctypes
import functools
import os
import socket
import ssl
import stat
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType, ModuleType
from typing import Any, TypeAlias

from refold.agents.confined.files import is_write_denied
from refold.agents.recorder.context_propagation import KeptFunctions
from refold.agents.replay.callbacks import GuardedFunction
from refold.agents.replay.watch import GuardContext, check, confined_to, current, is_watched, source_line_of, within

Function: TypeAlias = Callable[..., Any]
Wrapper: TypeAlias = Callable[[Function], Function]

_START, _HAND, _CALL = "start the process", "hand work to another process", "call native code by ctypes:"
# The name of each event in a message, and which of its arguments to show.
_EVENTS: dict[str, tuple[str, int]] = {
    "socket.getaddrinfo": ("look up the name", 0),
    "socket.gethostbyname": ("look up the name", 0),
    "socket.gethostbyaddr": ("look up the name", 0),
    "socket.getnameinfo": ("look up the name", 0),
    "socket.connect": ("connect to", 1),
    "socket.bind": ("listen at", 1),
    "socket.sendto": ("send to", 1),
    "socket.sendmsg": ("send to", 1),
    "subprocess.Popen": (_START, 1),
    "os.system": (_START, 0),
    "os.exec": (_START, 0),
    "os.posix_spawn": (_START, 0),
    "os.spawn": (_START, 1),
    "pty.spawn": (_START, 0),
    "sys.addaudithook": ("add an audit hook", -1),
    "os.fork": ("fork this process", -1),
    "os.forkpty": ("fork this process", -1),
    "ctypes.dlopen": ("load native code by ctypes:", 0),
    "ctypes.dlsym": (_CALL, 1),
    "ctypes.dlsym/handle": (_CALL, 1),
    "ctypes.call_function": (_CALL, 0),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events that change files: the positions of their paths among the arguments, and of folder descriptors, if any.
_CHANGING: dict[str, tuple[tuple[int, int], ...]] = {
    "os.remove": ((0, 1),), "os.rmdir": ((0, 1),), "os.mkdir": ((0, 2),), "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),), "os.utime": ((0, 3),), "os.truncate": ((0, 0),), "os.setxattr": ((0, 0),),
    "os.removexattr": ((0, 0),), "os.symlink": ((1, 2),), "os.link": ((1, 3),), "os.rename": ((0, 2), (1, 3)),
}  # fmt: skip
_lock = threading.Lock()
_is_hooked = False
_kept = KeptFunctions(__name__)
_done: set[tuple[object, str]] = set()
_starting = threading.local()


def install() -> None:
    """Wrap everything that is loaded now; idempotent."""
    global _is_hooked  # noqa: PLW0603
    with _lock:
        for place, names, wrapper in _PLACES:
            owner = _owner(place)
            for name in names:
                _wrap(owner, name, wrapper)
        for pointer in _pointers():
            _wrap(pointer, "__call__", _guard_native_call)
        _kept.replace()
        if not _is_hooked:
            sys.addaudithook(_audit)
            _is_hooked = True


def _owner(place: object) -> object:
    """Return the module or class, if it is loaded."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    found = sys.modules.get(module)
    return getattr(found, name, None) if name else found


def _wrap(owner: object, name: str, wrapper: Wrapper) -> None:
    own = getattr(owner, name, None)
    if own is None or (owner, name) in _done:
        return
    _done.add((owner, name))
    around = wrapper(own)
    if isinstance(owner, ModuleType):
        _kept.wrapped[own] = around
    setattr(owner, name, around)


def _pointers() -> list[type]:
    """Return the classes of functions in libraries that ctypes loaded: each library has its own."""
    return [each for each in ctypes._CFuncPtr.__subclasses__() if each.__name__ == "_FuncPtr"]  # type: ignore[attr-defined]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        if is_watched():
            _check_open(*args)
        return
    if event in _CHANGING:
        if is_watched():
            for index, of_folder in _CHANGING[event]:
                _check_change(args[index], args[of_folder] if of_folder else None)
        return
    found = _EVENTS.get(event)
    if found is None or not is_watched():
        return
    verb, index = found
    if event.startswith("ctypes.") and confined_to():
        return
    check(verb if index < 0 else f"{verb} {_text_of(args[index])}")


def _check_open(file: object, mode: object, flags: object) -> None:
    if isinstance(file, int):
        if _is_for_writing(mode) and _is_outside_socket(file):
            check("write to a socket that was open before")
    elif isinstance(flags, int) and flags & _WRITING:
        _check_change(file, None)


def _check_change(file: object, of_folder: object) -> None:
    """Check a file that is about to be changed, at a path that may be relative to the folder of a descriptor."""
    allowed = confined_to()
    if not allowed or not isinstance(file, str | bytes | os.PathLike):
        return
    path = os.fsdecode(file)
    if isinstance(of_folder, int) and of_folder >= 0:
        path = os.path.join(f"/proc/self/fd/{of_folder}", path)  # noqa: PTH118
    if is_write_denied(path, allowed):
        check(f"change the file {path}")


def _text_of(thing: object) -> str:
    if isinstance(thing, tuple) and len(thing) > 1:  # an address; for newer protocols, host and port are enough
        return f"{thing[0]}:{thing[1]}"
    if isinstance(thing, list):
        return " ".join(map(_text_of, thing))
    return thing.decode(errors="replace") if isinstance(thing, bytes) else str(thing)


# Sockets


def _guard_send(method: Function) -> Function:
    @functools.wraps(method)
    def guarded(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
        if is_watched() and not _is_within(self):
            check("send on a connection that was open before")
        return method(self, *args, **kwargs)

    return guarded


def _guard_write(index: int, *names: str) -> Wrapper:
    """Wrap a function that writes to a descriptor, which is its argument at `index` or under one of the names."""

    def wrapper(function: Function) -> Function:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if is_watched():
                given = (
                    args[index] if len(args) > index else next((kwargs[name] for name in names if name in kwargs), None)
                )
                if _is_outside_socket(given):
                    check("write to a socket that was open before")
            return function(*args, **kwargs)

        return guarded

    return wrapper


def _is_for_writing(mode: object) -> bool:
    return not isinstance(mode, str) or any(each in mode for each in "wax+")


def _is_outside_socket(fd: object) -> bool:
    """Return whether a descriptor is a socket, but not one of a pair within this process."""
    try:
        if not (isinstance(fd, int) and stat.S_ISSOCK(os.fstat(fd).st_mode)):
            return False
        with socket.socket(fileno=os.dup(fd)) as one:
            return not _is_within(one)
    except OSError:
        return False


def _is_within(one: socket.socket) -> bool:
    """Return whether a socket is one of a pair that this process created, as an event loop does to wake itself up."""
    try:
        return one.family == socket.AF_UNIX and not one.getsockname() and not one.getpeername()
    except OSError:  # closed, or not connected: any send fails anyway
        return True


# Threads


def _guard_thread_start(start: Function) -> Function:
    @functools.wraps(start)
    def guarded(self: threading.Thread) -> None:
        under = current() if is_watched() else None
        # A pool's thread serves all callers, so each piece of work carries its own guard.
        if under is not None and getattr(self, "_target", None) is not _pool_worker():
            self.run = _carry_guard(self.run, under)  # type: ignore[method-assign]
        _starting.is_under_way = True  # the bare function, called inside, needs no further check
        try:
            start(self)
        finally:
            _starting.is_under_way = False

    return guarded


def _guard_bare_thread(start: Function) -> Function:
    @functools.wraps(start)
    def guarded(function: Function, *args: Any, **kwargs: Any) -> Any:
        under = current() if is_watched() else None
        if under is None or getattr(_starting, "is_under_way", False):
            return start(function, *args, **kwargs)
        return start(_carry_guard(function, under), *args, **kwargs)

    return guarded


def _pool_worker() -> object:
    return getattr(sys.modules["concurrent.futures.thread"], "_worker", None)


def _guard_submit(submit: Function) -> Function:
    @functools.wraps(submit)
    def guarded(self: ThreadPoolExecutor, fn: Function, /, *args: Any, **kwargs: Any) -> Any:
        under = current() if is_watched() else None
        return submit(self, fn if under is None else _carry_guard(fn, under), *args, **kwargs)

    return guarded


def _carry_guard(work: Function, under: GuardContext) -> Function:
    """Return the work so that it runs under the same guard in another thread."""
    there = GuardContext(under.guard, source_line_of(under.source_line))

    @functools.wraps(work, updated=())
    def carried(*args: Any, **kwargs: Any) -> Any:
        with within(there):
            return work(*args, **kwargs)

    return carried


# Callbacks


def _guard_callback(index: int) -> Wrapper:
    """Wrap a function that stores a callback, its argument at `index`; the callback runs under the same guard."""

    def wrapper(function: Function) -> Function:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            under = current() if is_watched() else None
            if under is not None and len(args) > index:
                there = GuardContext(under.guard, source_line_of(under.source_line))
                args = (*args[:index], GuardedFunction(args[index], there), *args[index + 1 :])
            return function(*args, **kwargs)

        return guarded

    return wrapper


# Processes and native code


def _guard_fork(function: Function) -> Function:
    @functools.wraps(function)
    def guarded(args: Any, *others: Any) -> Any:
        if is_watched():
            check(f"{_START} {_text_of(list(args))}")
        return function(args, *others)

    return guarded


def _guard_process_submit(method: Function) -> Function:
    """Wrap a method that submits work, or a message, to a process that already runs."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if is_watched() and not _is_pool_wakeup():
            check(_HAND)
        return method(*args, **kwargs)

    return guarded


def _is_pool_wakeup() -> bool:
    """Return whether a pool of multiprocessing, of processes or threads, wakes up or ends its own thread by a pipe."""
    pool = sys.modules.get("multiprocessing.pool")
    if pool is None:
        return False
    waking = (pool._PoolCache.__delitem__, pool.Pool.close, pool.Pool.__del__, pool.Pool._terminate_pool)
    own = {each.__code__ for each in waking}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in own:
        frame = frame.f_back
    return frame is not None


def _guard_pool_method(method: Function) -> Function:
    """Wrap the submission of work to a pool of multiprocessing; work for threads runs under the same guard."""

    @functools.wraps(method)
    def guarded(self: Any, func: Function, *args: Any, **kwargs: Any) -> Any:
        under = current() if is_watched() else None
        if under is not None:
            if not isinstance(self, sys.modules["multiprocessing.pool"].ThreadPool):
                check(_HAND)
            func = _carry_guard(func, under)
        return method(self, func, *args, **kwargs)

    return guarded


def _guard_native_call(call: Function) -> Function:
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_watched() and not confined_to():
            check(f"{_CALL} {getattr(self, '__name__', 'a function')}")
        return call(self, *args, **kwargs)

    return guarded


# Where to wrap, which names, and how. A text is a module, or a class of one, that is wrapped once it is loaded.
_PLACES: tuple[tuple[object, tuple[str, ...], Wrapper], ...] = (
    (socket.socket, ("send", "sendall"), _guard_send),
    (ssl.SSLSocket, ("send", "sendall", "write"), _guard_send),
    (os, ("write", "writev", "sendfile"), _guard_write(0, "fd", "out_fd")),
    (os, ("splice",), _guard_write(1, "dst")),
    (threading.Thread, ("start",), _guard_thread_start),
    (_thread, ("start_new_thread", "start_new", "start_joinable_thread"), _guard_bare_thread),
    (ThreadPoolExecutor, ("submit",), _guard_submit),
    (Future, ("add_done_callback",), _guard_callback(1)),
    (atexit, ("register",), _guard_callback(0)),
    (weakref.finalize, ("__init__",), _guard_callback(2)),
    (_posixsubprocess, ("fork_exec",), _guard_fork),
    ("concurrent.futures.process:ProcessPoolExecutor", ("submit",), _guard_process_submit),
    ("multiprocessing.pool:Pool", ("apply_async", "_map_async", "imap", "imap_unordered"), _guard_pool_method),
    ("multiprocessing.queues:Queue", ("put",), _guard_process_submit),
    ("multiprocessing.connection:Connection", ("_send_bytes",), _guard_process_submit),
)
