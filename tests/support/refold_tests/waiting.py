"""Waiting for what comes a little later."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 90.0
"""Two processes that join a group on a loaded machine take their time."""


def await_true(condition: Callable[[], bool], why: str = "it did not come", *, within_s: float = WAIT_S) -> None:
    """Return once it holds; fails, saying why, where it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)
