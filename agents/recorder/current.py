"""The run that is under way in this context: what tools made outside of any run belong to.

A task has the context it was made in, a thread has none: tools called in one know of their run only where the thread
was given it, as asyncio.to_thread does. Else they are plain functions there, and nothing of them is recorded. Where a
run is under way elsewhere in the process that is hardly meant, and said.
"""

from __future__ import annotations

import threading
import warnings
from contextvars import ContextVar
from typing import Any, Protocol


class Caller(Protocol):
    """Calls tools as part of itself."""

    id: str

    def call_tool(self, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tool's answer; an awaitable where it is async."""


CURRENT: ContextVar[Caller | None] = ContextVar("refold.run", default=None)
"""The run entered last in this context, which has not ended."""

_threads: dict[str, int] = {}


def entered(run: Caller) -> None:
    """A run is under way, in this thread."""
    _threads[run.id] = threading.get_ident()


def left(run: Caller) -> None:
    """It has ended."""
    _threads.pop(run.id, None)


def current(tool: str) -> Caller | None:
    """The run that a call of a tool belongs to."""
    run = CURRENT.get()
    if run is None and _threads:
        threads = dict(_threads)
        if threading.get_ident() not in threads.values():
            warnings.warn(
                f"{tool} was called in a thread that knows of no run, while run {min(threads)} is under way: it is "
                "not recorded. Have the thread run it by contextvars.copy_context().run, or use asyncio.to_thread",
                RuntimeWarning,
                stacklevel=3,
            )
    return run
