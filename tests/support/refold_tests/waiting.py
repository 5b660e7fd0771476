"""Waits for conditions."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 90.0
"""Two processes that join a group on a loaded machine take long."""


def await_true(condition: Callable[[], bool], why: str = "it did not come", *, within_s: float = WAIT_S) -> None:
    """Return once the condition holds. If it does not in time, fail with `why`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)
