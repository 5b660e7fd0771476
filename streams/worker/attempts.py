"""How often a worker's transactions are refused in a row: bounded, so that one that cannot commit ends and says why.

1. Each refusal counts, from the last commit on. What passes, such as a timeout, is no refusal.
2. An outage is waited out, however long it lasts: after it, counting begins at nothing.
3. It is over after TIMES_MAX refusals and FOR_S: many come within a moment while a coordinator moves, and a few may
   come hours apart.
"""

from __future__ import annotations

from collections.abc import Callable

TIMES_MAX = 20
FOR_S = 300.0


class Attempts:
    """Counts refusals since something was committed; for one thread."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Begin at nothing.

        Args:
            now_s: any clock that does not go back, in seconds.
        """
        self._now_s = now_s
        self._since_s = 0.0
        self.times = 0

    def begin(self) -> None:
        """Something was committed, or there was an outage: what was refused before does not count any more."""
        self.times = 0

    def refused(self) -> None:
        """A transaction was refused."""
        if not self.times:
            self._since_s = self._now_s()
        self.times += 1

    @property
    def seconds(self) -> float:
        """For how long every transaction has been refused."""
        return self._now_s() - self._since_s if self.times else 0.0

    @property
    def are_over(self) -> bool:
        """Whether to try no more."""
        return self.times >= TIMES_MAX and self.seconds >= FOR_S
