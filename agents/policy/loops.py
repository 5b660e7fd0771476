"""The loop breaker: finds tool calls that repeat in cycles, by their requests and their results.

A run's tool calls are a sequence of tokens, one for each answered call: its request with its result. The run is in a
loop if the sequence ends in one block of 1 to `period_max` tokens, `repeats` times in a row: A A A, or A B A B A B. The
next call of the circle is then denied. Any other call is allowed, and its token ends the loop. A different result
ends it, too: polling that makes progress is no loop.
"""

from __future__ import annotations

from typing import NamedTuple


class AnsweredCall(NamedTuple):
    """The token of an answered call: hashes of its request and of its result, and the step that it was in."""

    request: str
    result: str
    step: str


class LoopFinder:
    """Follows one run. Each call costs time in proportion to period_max, however long the run is."""

    def __init__(self, repeats: int, period_max: int) -> None:
        self._repeats = repeats
        self._period_max = period_max
        self._last: list[AnsweredCall] = []
        # By period: how many of the last tokens equal the token one period before them.
        self._equal = [0] * (period_max + 1)

    def add(self, call: AnsweredCall) -> None:
        """A tool call was answered."""
        length = len(self._last)
        for period in range(1, self._period_max + 1):
            is_equal = length >= period and self._last[length - period][:2] == call[:2]
            self._equal[period] = self._equal[period] + 1 if is_equal else 0
        self._last.append(call)
        if length > 4 * self._period_max * self._repeats:
            del self._last[: length // 2]

    def circle(self, request: str) -> list[AnsweredCall]:
        """The answered calls of the circle that a request would go on with, oldest first; none where it does not."""
        for period in range(1, self._period_max + 1):
            if self._equal[period] >= period * (self._repeats - 1) and self._last[-period].request == request:
                return self._last[-period * self._repeats :]
        return []
