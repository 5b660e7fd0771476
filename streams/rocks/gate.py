"""Lets close() wait for calls that are under way, and turns away those that come later."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, get_ident

_PAUSE_S = 0.001


class Gate:
    """`with gate:` around each use, not one inside another; `shut()` once.

    rocksdict lets other threads run during long calls and refuses to close a handle in use, so closing
    must wait for those calls. An interrupt (Ctrl-C) may come between any two steps here: who is inside is told
    by thread, so that a step out that was lost keeps nobody from closing, and is made up for by the next one.
    """

    def __init__(self, refusal: Callable[[], Exception]) -> None:
        self._refusal = refusal
        self._lock = Lock()
        self._inside: set[int] = set()
        self._shut = False

    def __enter__(self) -> None:
        with self._lock:
            if self._shut:
                raise self._refusal()
            self._inside.add(get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside.discard(get_ident())

    def shut(self) -> bool:
        """Let nobody in any more and wait until all others are out. True for the one caller that shut it."""
        with self._lock:
            first = not self._shut
            self._shut = True
        while True:
            with self._lock:
                if self._inside <= {get_ident()}:
                    return first
            time.sleep(_PAUSE_S)
