"""The entities that the latest records changed and what became of each, kept by whoever folds them.

With them a delta is sealed without reading the log or the table. It is a help and no promise: what it does not reach
back to, or was not told yet, is read. So what was asked for once is let go, and what an epoch was sealed past.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

NAMES_MAX = 200_000
STATES_BYTES = 48 << 20
PRESSING = 0.75
# What an epoch is sealed from stands in both processes for a while; with its keys about so much goes over at once.
PRESSING_BYTES = 6 << 20

State = tuple[bytes, bytes]
"""An entity as it is `placed`, and its stored form; empty where that is not known any more."""


class _Told(NamedTuple):
    """size: the bytes of the states."""

    start: int
    end: int
    states: Sequence[State]
    size: int


class _Latest:
    """What was told of a partition, oldest first; of so many at the front the states are forgotten.

    size: the bytes of the others.
    """

    def __init__(self) -> None:
        self.told: deque[_Told] = deque()
        self.forgotten = 0
        self.size = 0


class Touched:
    """Of all partitions that one process folds; told by one thread, asked by another.

    Keeps no more than about NAMES_MAX names, and of the latest of them the states, up to bytes_max.
    """

    def __init__(self, bytes_max: int = STATES_BYTES) -> None:
        self._bytes_max = bytes_max
        self._partitions: defaultdict[int, _Latest] = defaultdict(_Latest)
        self._count = 0
        self._bytes = 0
        self._lock = Lock()

    def is_pressing(self, partition: int) -> bool:
        """Whether states would soon be forgotten, or there are many of a partition."""
        latest = self._partitions.get(partition)
        return self._bytes > self._bytes_max * PRESSING or (latest is not None and latest.size > PRESSING_BYTES)

    def tell(self, partition: int, start: int, end: int, states: Sequence[State]) -> None:
        """The records with start <= offset < end changed these entities, and nothing else; so they stand at `end`."""
        with self._lock:
            latest = self._partitions[partition]
            if latest.told and latest.told[-1].end != start:
                self._drop_until(latest, math.inf)
            size = sum([len(state) for _, state in states])
            latest.told.append(_Told(start, end, states, size))
            self._count += len(states)
            self._grow(latest, size)
            while self._count > NAMES_MAX and len(latest.told) > 1:
                self._drop(latest)
            while self._bytes > self._bytes_max:
                self._forget(max(self._partitions.values(), key=lambda each: each.size))

    def between(self, partition: int, start: int, end: int) -> dict[bytes, bytes] | None:
        """What the records with start <= offset < end changed, and maybe more, as it stands at `end`.

        None where that is not known; whatever is answered, it is not known a second time.
        """
        with self._lock:
            latest = self._partitions[partition]
            told = latest.told
            is_known = bool(told) and told[0].start <= start and told[-1].end >= end
            found: dict[bytes, bytes] = {}
            for each in self._drop_until(latest, end):
                if is_known and each.end > start:
                    found.update(each.states)
            return found if is_known else None

    def sealed(self, partition: int, end: int) -> None:
        """Nothing is asked of the records below `end` any more."""
        with self._lock:
            self._drop_until(self._partitions[partition], end)

    def end(self, partition: int) -> None:
        """The partition is folded by somebody else from now on."""
        with self._lock:
            self._drop_until(self._partitions.pop(partition, _Latest()), math.inf)

    def _drop_until(self, latest: _Latest, end: float) -> list[_Told]:
        dropped = []
        while latest.told and latest.told[0].end <= end:
            dropped.append(self._drop(latest))
        return dropped

    def _drop(self, latest: _Latest) -> _Told:
        told = latest.told.popleft()
        self._count -= len(told.states)
        self._grow(latest, -told.size)
        latest.forgotten = max(0, latest.forgotten - 1)
        return told

    def _forget(self, latest: _Latest) -> None:
        told = latest.told[latest.forgotten]
        latest.told[latest.forgotten] = told._replace(states=[(name, b"") for name, _ in told.states], size=0)
        latest.forgotten += 1
        self._grow(latest, -told.size)

    def _grow(self, latest: _Latest, size: int) -> None:
        latest.size += size
        self._bytes += size
