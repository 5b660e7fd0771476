"""A log with snapshots of different ages."""

from __future__ import annotations

from pathlib import Path

from refold.streams.snapshots.retention_policy import HOUR_MS
from refold_tests.clock import FileClock
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said


def old_log(path: Path, epochs: int = 4) -> FileClock:
    """Create a log with an epoch of A's partition every two hours, each with two records, all of them bases.

    Returns:
        The log's clock, set to the time of the last epoch.
    """
    clock = FileClock(path / "clock")
    with open_log(path) as log:
        for number in range(epochs):
            clock.set(clock() + 2 * HOUR_MS)
            take(log, [said(A, 2 * number), said(A, 2 * number + 1)])
            log.snapshot()
    return clock
