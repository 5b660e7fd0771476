"""Decides when an owner moves its write-ahead log into table files, so that others open the log quickly.

A reader reads the whole write-ahead log each time it opens the database to catch up, and so does an owner after a
crash. RocksDB keeps up to 96 MiB of it, which is right while much is written: each move makes a small table file for
each family. While little is written, for example by agents, a reader would read those 96 MiB at every catch-up for
hours. So the owner moves the log when it holds more than `BYTES_MAX` and the last move was at least `EVERY_S` ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BYTES_MAX = 8 << 20
EVERY_S = 30.0


class WalLimit:
    """Counts what is written since the last move. Not thread-safe: a lost update moves a write later.

    Args:
        clock: Returns seconds; it never goes back.
        bytes_max: How much may be written before a move is due.
        every_s: The least time between two moves.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, bytes_max: int = BYTES_MAX, every_s: float = EVERY_S
    ) -> None:
        self._clock, self._bytes_max, self._every_s = clock, bytes_max, every_s
        self._written_bytes = 0
        self._moved_s = clock()

    def is_due(self, size_bytes: int) -> bool:
        """Note a write of this size; return whether the log is to be moved now, and start to count again if so."""
        self._written_bytes += size_bytes
        if self._written_bytes <= self._bytes_max or self._clock() - self._moved_s < self._every_s:
            return False
        self._written_bytes, self._moved_s = 0, self._clock()
        return True
