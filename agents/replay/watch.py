"""The operations that a guard watches, and its errors and notes (agents/replay/guard.py).

A context is under guard, exempt from guards, or neither. `check` is called for the running code: under guard the
operation is denied, and for code that is neither every open guard gets a note.
"""

from __future__ import annotations

import contextvars
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from refold.agents.recorder.answers import Departure
from refold.agents.recorder.context import OWN_THREADS

ESCAPES_MAX = 100


class Escape(NamedTuple):
    """Something that ran, or tried to, and is not in the recording.

    Attributes:
        what: The operation, such as `connect to 127.0.0.1:80`.
        source_line: The line of code, as `FILE:LINE in FUNCTION`.
        thread: The thread that did it outside of the replay's context, and was not stopped; empty if it was denied to
            the replayed code.
    """

    what: str
    source_line: str
    thread: str = ""

    @property
    def is_denied(self) -> bool:
        """Whether it did not take place."""
        return not self.thread

    def __str__(self) -> str:
        line = f" at {self.source_line}" if self.source_line else ""
        if self.is_denied:
            return f"denied: {self.what}{line}"
        return f"not stopped: {self.what}{line}, in thread {self.thread}, which the replay did not start"


class NetworkDenied(Departure):
    """Code under replay tried to reach outside by itself.

    Attributes:
        what: The operation.
        source_line: The line of code, as `FILE:LINE in FUNCTION`.
    """

    def __init__(self, what: str, source_line: str) -> None:
        self.what = what
        self.source_line = source_line
        super().__init__(
            f"under replay the code tried to {what}, at {source_line}: what it gets there is not recorded. Make the "
            "call through run.client(...) or run.model(...), or in a tool (@refold.tool): the recording answers those"
        )


class GuardWatch:
    """The attempts that one guard has detected.

    Attributes:
        denied: The first denied operation; None if no operation was denied.
        escapes: Every denied or noted operation, each once, up to ESCAPES_MAX. The list may grow after the guard is
            left.
        frame: The frame that entered the guard, while it is open.
    """

    def __init__(
        self, on_denied: Callable[[NetworkDenied], None] = lambda denied: None, *, confined_to: str = ""
    ) -> None:
        """Create a guard.

        Args:
            on_denied: Called for each denied operation, before it is raised.
            confined_to: If the kernel confines native code, the only folder in which files may be written; ctypes is
                then allowed.
        """
        self.denied: NetworkDenied | None = None
        self.escapes: list[Escape] = []
        self.confined_to = confined_to
        self.frame: FrameType | None = None
        self._on_denied = on_denied

    def deny(self, what: str, source_line: str) -> NetworkDenied:
        """Note a denied operation, and return the error to raise."""
        denied = NetworkDenied(what, source_line)
        self.denied = self.denied or denied
        self.note(Escape(what, source_line))
        self._on_denied(denied)
        return denied

    def note(self, escape: Escape) -> None:
        """Add a note to `escapes`."""
        if len(self.escapes) < ESCAPES_MAX and escape not in self.escapes:
            self.escapes.append(escape)


class GuardContext:
    """The guard of a context.

    Attributes:
        guard: The guard; None for a context outside of every guard.
        source_line: The line that started the work, if another thread did.
    """

    __slots__ = ("guard", "source_line")

    def __init__(self, guard: GuardWatch | None, source_line: str) -> None:
        self.guard = guard
        self.source_line = source_line


_UNDER: ContextVar[GuardContext | None] = ContextVar("refold.guard", default=None)
_OUTSIDE = GuardContext(None, "")
_LOCK = threading.Lock()
_open: tuple[GuardWatch, ...] = ()


@contextmanager
def outside() -> Iterator[None]:
    """Exempt the code in this context from guards: for refold's own reads of its log."""
    with within(_OUTSIDE):
        yield


@contextmanager
def within(under: GuardContext) -> Iterator[None]:
    """Run the code in this context under the same guard as the context of `under`."""
    token = _UNDER.set(under)
    try:
        yield
    finally:
        _UNDER.reset(token)


def is_watched() -> bool:
    """Tell quickly whether an operation of the running code might be denied or noted."""
    return bool(_open) or _UNDER.get() is not None


def confined_to() -> str:
    """Return the only folder in which the running code may write files, if the kernel confines it. Else empty."""
    under = current()
    return "" if under is None or under.guard is None else under.guard.confined_to


def current() -> GuardContext | None:
    """Return the guard of the running code: by its context, else by the frames on its stack. None if there is none."""
    under = _UNDER.get()
    if under is not None or not _open:
        return under
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for guard in _open:
            if guard.frame is frame:
                return GuardContext(guard, "")
        frame = frame.f_back
    return None


def check(what: str) -> None:
    """Check an operation of the running code. Every open guard notes it if the code is neither under guard nor exempt.

    Raises:
        NetworkDenied: The code is under guard.
    """
    under = current()
    if under is not None:
        if under.guard is not None:
            raise under.guard.deny(what, source_line_of(under.source_line))
        return
    thread = threading.current_thread().name
    if not _open or thread.startswith(OWN_THREADS):
        return
    escape = Escape(what, source_line_of(""), thread)
    for guard in _open:
        guard.note(escape)


def set_under(under: GuardContext) -> contextvars.Token[GuardContext | None]:
    """Put this context under a guard from here on."""
    return _UNDER.set(under)


def unset_under(token: contextvars.Token[GuardContext | None]) -> None:
    """Restore the earlier guard."""
    _UNDER.reset(token)


def open_watch(guard: GuardWatch) -> None:
    """Record for this guard what other code does."""
    global _open  # noqa: PLW0603
    with _LOCK:
        _open = (*_open, guard)


def close_watch(guard: GuardWatch) -> None:
    """Stop recording what other code does."""
    global _open  # noqa: PLW0603
    with _LOCK:
        _open = tuple(each for each in _open if each is not guard)


# Where

_PATHS = sysconfig.get_paths()
LIBRARIES = tuple({_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_HERE = Path(__file__)
# Recorder and replay are on the stack of every call, and contain no user's code.
_OURS = tuple(
    f"{folder / name}{os.sep}"
    for folder in (_HERE.parent.parent, _HERE.resolve().parent.parent)
    for name in ("recorder", "replay")
)


def source_line_of(given_from: str) -> str:
    """Return the innermost line of a user's own code; without one `given_from`, else the innermost line outside of
    refold."""
    innermost = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_OURS, "<")):
            line = f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
            innermost = innermost or line
            if not file.startswith(LIBRARIES):
                return line
        frame = frame.f_back
    return given_from or innermost
