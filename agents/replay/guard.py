"""The network, closed off for code under replay: what it would say to the world is not recorded, and not to be said.

1. `Guard` is a context manager. What runs inside of it is under guard: its context (contextvars), the tasks it makes,
   the threads it starts and the work it gives to thread pools. Nothing else in the process is touched: neither other
   threads, nor a Kafka client, whose C code opens its own connections, nor code in `outside()`.
2. Under guard it is denied to look up a name, to connect (loopback and Unix sockets too: a service there is the world
   as well), to send on a socket, also on one that was connected before, and to start another process, which could do
   all of that and whose answer is not recorded either. A pair of sockets within the process is allowed: event loops
   need it.
3. What is denied raises NetworkDenied where it was tried. The guard keeps the first, and tells who it was made with,
   for code may catch it.

How: an audit hook sees names, connections and processes wherever Python code starts them. It stays for the life of
the process, for Python knows no way to remove one, and does nothing without a guard. Sending on a connected socket
raises no audit event, and threads inherit no context; for these the methods of socket, ssl and threading are replaced
while any guard is open. Extensions that open connections in C on their own (as librdkafka, libcurl, grpc) are not seen,
nor is a socket's method that somebody took before the guard was.
"""

from __future__ import annotations

import contextvars
import functools
import socket
import ssl
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from refold.agents.recorder.answers import Departure

_DENIED = {
    "socket.getaddrinfo": "look up the name",
    "socket.gethostbyname": "look up the name",
    "socket.gethostbyaddr": "look up the name",
    "socket.getnameinfo": "look up the name",
    "socket.connect": "connect to",
    "socket.sendto": "send to",
    "socket.sendmsg": "send to",
    "subprocess.Popen": "start the process",
    "os.system": "start the process",
    "os.exec": "start the process",
    "os.posix_spawn": "start the process",
    "os.spawn": "start the process",
}
_SENDING: tuple[tuple[type, tuple[str, ...]], ...] = (
    (socket.socket, ("send", "sendall")),
    (ssl.SSLSocket, ("send", "sendall", "write")),
)


class NetworkDenied(Departure):
    """Code under replay tried to reach the world by itself. what: what it tried; site: where, as file:line."""

    def __init__(self, what: str, site: str) -> None:
        self.what = what
        self.site = site
        super().__init__(
            f"under replay the code tried to {what}, at {site}: what it gets there is not recorded. Make the call "
            "through run.model(...), or in a tool (@refold.tool), which is answered from the recording"
        )


class Guard:
    """Closes the network to what runs inside of it. denied: the first thing that was.

    on_denied is told of each thing that is denied, before it is raised.
    """

    def __init__(self, on_denied: Callable[[NetworkDenied], None] = lambda denied: None) -> None:
        self.denied: NetworkDenied | None = None
        self._on_denied = on_denied
        self._is_closed = False
        self._token: contextvars.Token[_Under | None] | None = None

    def __enter__(self) -> Self:
        _install()
        self._token = _UNDER.set(_Under(self, ""))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _UNDER.reset(self._token)
        self._is_closed = True  # for threads and tasks that go on
        _uninstall()

    @property
    def is_open(self) -> bool:
        """Whether it is still entered."""
        return not self._is_closed

    def deny(self, what: str, site: str) -> NetworkDenied:
        """The error to raise."""
        denied = NetworkDenied(what, site)
        self.denied = self.denied or denied
        self._on_denied(denied)
        return denied


@contextmanager
def outside() -> Iterator[None]:
    """What runs here is not under guard: for refold's own reading of its log."""
    token = _UNDER.set(None)
    try:
        yield
    finally:
        _UNDER.reset(token)


class _Under:
    """That this context is under guard; site: where the code was that gave it its work, if that is another thread's."""

    __slots__ = ("guard", "site")

    def __init__(self, guard: Guard, site: str) -> None:
        self.guard = guard
        self.site = site


_UNDER: ContextVar[_Under | None] = ContextVar("refold.guard", default=None)


def _check(verb: str, thing: object = None) -> None:
    under = _UNDER.get()
    if under is not None and under.guard.is_open:
        raise under.guard.deny(verb if thing is None else f"{verb} {_shown(thing)}", _site(under.site))


def _shown(thing: object) -> str:
    if isinstance(thing, tuple) and len(thing) > 1:  # an address; of a newer protocol's, host and port are enough
        return f"{thing[0]}:{thing[1]}"
    return thing.decode(errors="replace") if isinstance(thing, bytes) else str(thing)


# Where

_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple({_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = {str(path) for path in (Path(__file__), *([Path(__file__).resolve()]))}


def _site(given_from: str) -> str:
    """The innermost line of a user's own code; where there is none, the innermost that is not ours."""
    innermost = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _OURS and not file.startswith("<"):
            place = f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
            innermost = innermost or place
            if not file.startswith(_LIBRARIES):
                return place
        frame = frame.f_back
    return given_from or innermost


# The hooks

_LOCK = threading.Lock()
_guards = 0
_is_hooked = False
_Method = tuple[type, str]
_replaced: dict[_Method, Any] = {}


def _install() -> None:
    global _guards, _is_hooked  # noqa: PLW0603
    with _LOCK:
        _guards += 1
        if not _is_hooked:
            sys.addaudithook(_audit)
            _is_hooked = True
        if _guards > 1:
            return
        for owner, names in _SENDING:
            for name in names:
                _replace(owner, name, _sending)
        _replace(threading.Thread, "start", _starting)
        _replace(ThreadPoolExecutor, "submit", _submitting)


def _uninstall() -> None:
    global _guards  # noqa: PLW0603
    with _LOCK:
        _guards -= 1
        if _guards:
            return
        for (owner, name), own in _replaced.items():
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        _replaced.clear()


def _replace(owner: type, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    _replaced[owner, name] = vars(owner).get(name)
    setattr(owner, name, around(getattr(owner, name)))


def _audit(event: str, args: tuple[Any, ...]) -> None:
    verb = _DENIED.get(event)
    if verb is None or _UNDER.get() is None:
        return
    if event.startswith("socket."):
        _check(verb, args[-1] if event in ("socket.connect", "socket.sendto", "socket.sendmsg") else args[0])
    elif event == "subprocess.Popen":
        _check(verb, args[1] if isinstance(args[1], str) else " ".join(map(str, args[1])))
    else:
        _check(verb, args[1] if event == "os.spawn" else args[0])


def _sending(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
        if _UNDER.get() is not None and not _is_within(self):
            _check("send on a connection that was open before")
        return method(self, *args, **kwargs)

    return guarded


def _is_within(one: socket.socket) -> bool:
    """Whether it is one of a pair that this process made for itself, as an event loop does to wake itself up."""
    return one.family == socket.AF_UNIX and not one.getsockname() and not one.getpeername()


def _starting(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def guarded(self: threading.Thread) -> None:
        under = _UNDER.get()
        if under is not None:
            self.run = _carried(self.run, under)  # type: ignore[method-assign]
        start(self)

    return guarded


def _submitting(submit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(submit)
    def guarded(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        under = _UNDER.get()
        return submit(self, fn if under is None else _carried(fn, under), *args, **kwargs)

    return guarded


def _carried(work: Callable[..., Any], under: _Under) -> Callable[..., Any]:
    """The work, under the same guard in another thread."""
    there = _Under(under.guard, _site(under.site))

    def carried(*args: Any, **kwargs: Any) -> Any:
        token = _UNDER.set(there)
        try:
            return work(*args, **kwargs)
        finally:
            _UNDER.reset(token)

    return carried
