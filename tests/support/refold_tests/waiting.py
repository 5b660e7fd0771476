"""Waits for conditions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 90.0
"""Two processes that join a group on a loaded machine take long."""


def await_true(condition: Callable[[], bool], why: str = "it did not come", *, within_s: float = WAIT_S) -> None:
    """Return once the condition holds. If it does not in time, fail with `why`.

    The wait between two looks grows with what a look takes: a page of metrics read fifty times a second takes a core.
    """
    deadline = time.monotonic() + within_s
    while True:
        begun_s = time.monotonic()
        if condition():
            return
        now_s = time.monotonic()
        assert now_s < deadline, why
        time.sleep(min(max(0.02, 5 * (now_s - begun_s)), 0.5))


def answered_within(limit_s: float, call: Callable[[], T]) -> T:
    """Call until a call takes less than `limit_s`, at most three times; return its result.

    A loaded machine makes a single call slow, a defect makes all.
    """
    taken_s = []
    for _ in range(3):
        begun_s = time.monotonic()
        result = call()
        taken_s.append(time.monotonic() - begun_s)
        if taken_s[-1] < limit_s:
            return result
    raise AssertionError(f"it takes {taken_s} s each time, at least {limit_s}")
