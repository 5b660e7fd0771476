"""Deadlines: how long a loop may continue waiting."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """A moment by which something must have happened, on a monotonic clock."""

    __slots__ = ("_at_s", "_clock")

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the deadline.

        Args:
            timeout_s: seconds from now.
            clock: a monotonic clock, in seconds.
        """
        self._clock = clock
        self._at_s = clock() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 once it is past."""
        return max(0.0, self._at_s - self._clock())

    @property
    def is_past(self) -> bool:
        return self._clock() > self._at_s
