"""Custom reducers that fail: what counts then, and what is logged.

A custom reducer is a pure function. So a failure is one of its results, the same in every process: the assertion leaves
the value as it was. The fold stays a function of the set of observations, and no value that somebody observes ends a
worker. A failure of the process and not of the function raises, for another process may not fail: ENVIRONMENT.

Where an observation can still be refused, as by the owner of a `file:` log, the fold runs under `refusing`: then every
failure raises, and the observation is not written.

Every failure is counted, and of each reducer one in a minute is logged.
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
    """While the block runs, a custom reducer that fails raises."""
    token = _refuses.set(True)
    try:
        yield
    finally:
        _refuses.reset(token)


def raises(error: Exception) -> bool:
    """Whether a custom reducer's failure raises here."""
    return _refuses.get() or isinstance(error, ENVIRONMENT)


def note(reducer: str, observation_id: bytes, why: str) -> None:
    """Count a failure, and say it, unless one of this reducer was said within the last minute."""
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
    """How many calls failed in this process. An observation is folded again with each reopening, and counts again."""
    return _counted[0]
