"""Lets close() wait for calls that are under way, and turns away those that come later."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition


class Gate:
    """`with gate:` around each use; `shut()` once.

    rocksdict lets other threads run during long calls and refuses to close a handle in use, so closing
    must wait for those calls.
    """

    def __init__(self, refusal: Callable[[], Exception]) -> None:
        self._refusal = refusal
        self._inside = 0
        self._shut = False
        self._changed = Condition()

    def __enter__(self) -> None:
        with self._changed:
            if self._shut:
                raise self._refusal()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._shut:
                self._changed.notify_all()

    def shut(self) -> bool:
        """Let nobody in any more and wait until all are out. True for the one caller that shut it."""
        with self._changed:
            first = not self._shut
            self._shut = True
            self._changed.wait_for(lambda: self._inside == 0)
            return first
