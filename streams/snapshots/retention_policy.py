"""Which epochs of one partition are kept as they age.

1. Every epoch of the last hour.
2. Of the last day, the last base of each hour.
3. Of the last month, 30 days, the last base of each day.
4. The pinned ones, the newest epoch and the newest base, at any age: an idle log keeps its last snapshot.

Age is counted from `recorded_at`; hours and days are in UTC. As long as time moves forward, the result does not depend
on how often the policy was applied before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from refold.streams.snapshots.manifest import Epoch

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MONTH_MS = 30 * DAY_MS


class EpochAge(NamedTuple):
    """An epoch for the policy; recorded_at in milliseconds, as in its manifest."""

    epoch: Epoch
    recorded_at: int
    is_base: bool


def kept(rungs: Iterable[EpochAge], pinned: Collection[Epoch], now_ms: int) -> set[Epoch]:
    """Return the epochs of one partition that are kept at a time.

    Args:
        rungs: The partition's epochs with their ages.
        pinned: The pinned ones, which are always kept.
        now_ms: The time, in milliseconds since 1970.
    """
    found = set()
    last: dict[tuple[int, int] | None, Epoch] = {}
    newest: Epoch | None = None
    for epoch, recorded_at, is_base in sorted(rungs):
        newest = epoch
        age_ms = now_ms - recorded_at
        if epoch in pinned or age_ms <= HOUR_MS:
            found.add(epoch)
        if is_base:
            last[None] = epoch
            for oldest_ms, step_ms in ((DAY_MS, HOUR_MS), (MONTH_MS, DAY_MS)):
                if age_ms <= oldest_ms:
                    last[step_ms, recorded_at // step_ms] = epoch
    if newest is not None:
        found.add(newest)
    return found.union(last.values())
