"""Close many things, of which some may fail to close: all are closed, and the first failure is raised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from refold.streams.events import log_event

_log = logging.getLogger(__name__)


def close_all(closings: Iterable[Callable[[], object]]) -> None:
    """Make every call, in order, even if some fail.

    Args:
        closings: the calls. Each is taken from the iterable after the one before it returned or failed.

    Raises:
        Exception: the first failure, after the last call. The others are logged.
    """
    first: Exception | None = None
    for close in closings:
        try:
            close()
        except Exception as problem:  # everything is closed; the first error is raised afterwards
            if first is None:
                first = problem
            else:
                log_event(_log, "failed_further", logging.WARNING, why=problem)
    if first is not None:
        raise first
