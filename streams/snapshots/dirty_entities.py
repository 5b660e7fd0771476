"""The entities that the latest records changed and their states, kept by the fold.

With them a delta is sealed without reading the log or the table. This is only a cache: older or missing entries are
read from there. Entries are dropped when they were requested once, and when an epoch was sealed after them.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

NAMES_MAX = 200_000
STATES_BYTES = 24 << 20
URGENT_SHARE = 0.75
# For a while the data of an epoch is in both processes; with its keys about so much is transferred at once.
URGENT_BYTES = 6 << 20

State = tuple[bytes, bytes]
"""An entity's key (`placed`), and its stored form, which is empty if it was dropped."""


class _Batch(NamedTuple):
    """size: the bytes of the states."""

    start: int
    end: int
    states: Sequence[State]
    size: int


class _Latest:
    """The entries of a partition, oldest first. The states of the first ones are dropped.

    Attributes:
        size: The bytes of the other states.
    """

    def __init__(self) -> None:
        self.batches: deque[_Batch] = deque()
        self.forgotten = 0
        self.size = 0


class DirtyEntities:
    """The changed entities of all partitions that one process folds. One thread adds to it, another reads it.

    Keeps at most about names_max names, and the states of the latest ones, up to bytes_max.
    """

    def __init__(self, bytes_max: int = STATES_BYTES, names_max: int = NAMES_MAX) -> None:
        self._bytes_max = bytes_max
        self._names_max = names_max
        self._partitions: defaultdict[int, _Latest] = defaultdict(_Latest)
        self._count = 0
        self._bytes = 0
        self._lock = Lock()

    def is_urgent(self, partition: int) -> bool:
        """Whether states will soon be dropped, or a partition has many."""
        latest = self._partitions.get(partition)
        return self._bytes > self._bytes_max * URGENT_SHARE or (latest is not None and latest.size > URGENT_BYTES)

    def add(self, partition: int, start: int, end: int, states: Sequence[State]) -> None:
        """Note all entities that a range of records changed.

        Args:
            partition: The partition.
            start: The first offset.
            end: The offset after the last one.
            states: The entities' states at `end`.
        """
        with self._lock:
            latest = self._partitions[partition]
            if latest.batches and latest.batches[-1].end != start:
                self._drop_until(latest, math.inf)
            size = sum([len(state) for _, state in states])
            latest.batches.append(_Batch(start, end, states, size))
            self._count += len(states)
            self._grow(latest, size)
            while self._count > self._names_max and len(latest.batches) > 1:
                self._drop(latest)
            while self._bytes > self._bytes_max:
                self._forget(max(self._partitions.values(), key=lambda each: each.size))

    def between(self, partition: int, start: int, end: int) -> dict[bytes, bytes] | None:
        """Return the states at `end` of all entities that a range of records changed, and maybe of others.

        The entries are dropped, so a second call returns None.

        Args:
            partition: The partition.
            start: The first offset.
            end: The offset after the last one.

        Returns:
            Encoded states by key; None if they are unknown.
        """
        with self._lock:
            latest = self._partitions[partition]
            batches = latest.batches
            is_known = bool(batches) and batches[0].start <= start and batches[-1].end >= end
            found: dict[bytes, bytes] = {}
            for each in self._drop_until(latest, end):
                if is_known and each.end > start:
                    found.update(each.states)
            return found if is_known else None

    def sealed(self, partition: int, end: int) -> None:
        """Drop entries below `end`: an epoch was sealed there."""
        with self._lock:
            self._drop_until(self._partitions[partition], end)

    def end(self, partition: int) -> None:
        """Drop all entries: another process folds the partition from now on."""
        with self._lock:
            self._drop_until(self._partitions.pop(partition, _Latest()), math.inf)

    def _drop_until(self, latest: _Latest, end: float) -> list[_Batch]:
        dropped = []
        while latest.batches and latest.batches[0].end <= end:
            dropped.append(self._drop(latest))
        return dropped

    def _drop(self, latest: _Latest) -> _Batch:
        batch = latest.batches.popleft()
        self._count -= len(batch.states)
        self._grow(latest, -batch.size)
        latest.forgotten = max(0, latest.forgotten - 1)
        return batch

    def _forget(self, latest: _Latest) -> None:
        batch = latest.batches[latest.forgotten]
        latest.batches[latest.forgotten] = batch._replace(states=[(name, b"") for name, _ in batch.states], size=0)
        latest.forgotten += 1
        self._grow(latest, -batch.size)

    def _grow(self, latest: _Latest, size: int) -> None:
        latest.size += size
        self._bytes += size
