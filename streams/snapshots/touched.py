"""The entities that a partition's latest records name, kept by whoever folds them.

With them a delta is sealed without reading these records again. It is a help and no promise: what it does not reach
back to, or was not told yet, is read from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from threading import Lock

NAMES_MAX = 100_000


class Touched:
    """Of one partition; told by one thread, asked by another. Keeps the last NAMES_MAX names or few more."""

    def __init__(self) -> None:
        self._told: deque[tuple[int, int, Sequence[str]]] = deque()
        self._count = 0
        self._lock = Lock()

    def tell(self, start: int, end: int, names: Sequence[str]) -> None:
        """The records with start <= offset < end name these; others may be among them."""
        with self._lock:
            if self._told and self._told[-1][1] != start:
                self._told.clear()
                self._count = 0
            self._told.append((start, end, names))
            self._count += len(names)
            while self._count - len(self._told[0][2]) >= NAMES_MAX:
                self._drop()

    def between(self, start: int, end: int) -> set[str] | None:
        """What the records with start <= offset < end name, and maybe more; None where that is not known.

        What stands before `start` is not kept: an epoch starts where the one before it ended.
        """
        with self._lock:
            while self._told and self._told[0][1] <= start:
                self._drop()
            if not self._told or self._told[0][0] > start or self._told[-1][1] < end:
                return None
            return set(chain.from_iterable(names for _, _, names in self._told))

    def _drop(self) -> None:
        self._count -= len(self._told.popleft()[2])
