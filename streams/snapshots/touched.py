"""The entities that a partition's latest records changed and what became of each, kept by whoever folds them.

With them a delta is sealed without reading the log or the table. It is a help and no promise: what it does not reach
back to, or was not told yet, is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

NAMES_MAX = 100_000
STATES_BYTES = 64 << 20
"""For all partitions of a log that one process folds."""
PRESSING = 0.75

State = tuple[str, bytes]
"""An entity, and its stored form; empty where that is not known any more."""


class _Told(NamedTuple):
    """size: the bytes of the states."""

    start: int
    end: int
    states: Sequence[State]
    size: int


class Touched:
    """Of one partition; told by one thread, asked by another.

    Keeps the last NAMES_MAX names or few more, and of the latest of them the states, up to bytes_max.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._told: deque[_Told] = deque()
        self._forgotten = 0  # of how many at the front the states are let go
        self._count = 0
        self._bytes = 0
        self._bytes_not_asked = 0
        self._lock = Lock()

    @property
    def is_pressing(self) -> bool:
        """Whether states that nobody asked for yet would soon be let go."""
        return self._bytes_not_asked > self._bytes_max * PRESSING

    def tell(self, start: int, end: int, states: Sequence[State]) -> None:
        """The records with start <= offset < end changed these entities, and nothing else; so they stand at `end`."""
        with self._lock:
            if self._told and self._told[-1].end != start:
                while self._told:
                    self._drop()
                self._bytes_not_asked = 0
            size = sum([len(state) for _, state in states])
            self._told.append(_Told(start, end, states, size))
            self._count += len(states)
            self._bytes += size
            self._bytes_not_asked += size
            while self._count - len(self._told[0].states) >= NAMES_MAX:
                self._drop()
            while self._bytes > self._bytes_max:
                self._forget()

    def between(self, start: int, end: int) -> dict[str, bytes] | None:
        """What the records with start <= offset < end changed, and maybe more, as it stands at `end`.

        None where that is not known. What stands before `start` is not kept: an epoch starts where the one before it
        ended.
        """
        with self._lock:
            while self._told and self._told[0].end <= start:
                self._drop()
            self._bytes_not_asked = sum(told.size for told in self._told if told.end > end)
            if not self._told or self._told[0].start > start or self._told[-1].end < end:
                return None
            found: dict[str, bytes] = {}
            for told in self._told:
                if told.end <= end:
                    found.update(told.states)
            return found

    def _drop(self) -> None:
        told = self._told.popleft()
        self._count -= len(told.states)
        self._bytes -= told.size
        self._forgotten = max(0, self._forgotten - 1)

    def _forget(self) -> None:
        told = self._told[self._forgotten]
        self._told[self._forgotten] = told._replace(states=[(name, b"") for name, _ in told.states], size=0)
        self._forgotten += 1
        self._bytes -= told.size
