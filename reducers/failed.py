"""Failures of custom reducers: their effect, and what is logged.

A custom reducer is a pure function. So a failure is one of its results, the same in every process: the assertion does
not change the value. The fold stays a function of the set of observations, and no observed value stops a worker. A
failure of the process, not of the function, raises, because another process may not fail: ENVIRONMENT.

If an observation can still be refused, as by the owner of a `file:` log, the fold runs under `refusing`: then every
failure raises, and the observation is not written.

Every failure is counted, and at most one per reducer and minute is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

ENVIRONMENT = (MemoryError, RecursionError, OSError, ImportError)
LOGGED_EVERY_S = 60.0

_refuses: ContextVar[bool] = ContextVar("refuses", default=False)
_log = logging.getLogger(__name__)
_lock = Lock()
_counted = [0]
_logged_s: dict[str, float] = {}


@contextmanager
def refusing() -> Iterator[None]:
    """Make failures of custom reducers raise while the block runs."""
    token = _refuses.set(True)
    try:
        yield
    finally:
        _refuses.reset(token)


def raises(error: Exception) -> bool:
    """Return whether a custom reducer's failure must raise now."""
    return _refuses.get() or isinstance(error, ENVIRONMENT)


def note(reducer: str, observation_id: bytes, why: str) -> None:
    """Count a failure, and log it, unless one of this reducer was logged within the last minute."""
    now_s = time.monotonic()
    with _lock:
        _counted[0] += 1
        is_said = now_s - _logged_s.get(reducer, -LOGGED_EVERY_S) < LOGGED_EVERY_S
        if not is_said:
            _logged_s[reducer] = now_s
    if not is_said:
        fields = {"reducer": reducer, "observation": observation_id.hex(), "why": why}
        _log.warning(
            "reducer_failed %s on observation %s, which leaves the value as it was: %s. Where the definition is a "
            "stranger's, set it aside: refold quarantine list, then refold quarantine add",
            reducer, observation_id.hex(), why, extra={"event": "reducer_failed", "fields": fields},
        )  # fmt: skip


def total() -> int:
    """Return how many calls failed in this process. Each reopening folds an observation again, and counts it again."""
    return _counted[0]
