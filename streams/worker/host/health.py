"""What a worker's status says of its health: pure, judged when a page is asked for.

Healthy: no partition has had something to commit for STALLED_S without a commit. What hangs is found so, a thread, a
disk or a broker, and who supervises the worker may start it again: it goes on from what is committed. A partition that
waits for an answer of the Schema Registry is held back on purpose, and a start would not help it: it is shown, and
judged nothing.

Ready: it has partitions, and each is caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Status = Mapping[int, Mapping[str, Any]]
"""By partition what the fold service says of it (streams/worker/partition.py)."""

STALLED_S = 60.0
SHOWN = ("state", "offset", "lag", "last_commit_s", "uncommitted_s", "waits_for")


def health_of(status: Status) -> dict[str, Any]:
    """`healthy`, `why` where it is not, and of each partition what that was judged by."""
    stalled = [
        f"partition {number} has had {each.get('lag')} to fold for {each['uncommitted_s']:.0f} s without a commit"
        for number, each in sorted(status.items())
        if each.get("uncommitted_s", 0.0) > STALLED_S and not each.get("waits_for")
    ]
    shown = {number: {name: each[name] for name in SHOWN if name in each} for number, each in sorted(status.items())}
    if not stalled:
        return {"healthy": True, "partitions": shown}
    why = f"{'; '.join(stalled)}; start the worker again, it goes on where it was"
    return {"healthy": False, "why": why, "partitions": shown}


def readiness_of(status: Status) -> dict[str, Any]:
    """`ready`, and `why` where it is not."""
    behind = [str(number) for number, each in sorted(status.items()) if not each.get("caught_up")]
    if status and not behind:
        return {"ready": True}
    why = f"not caught up: partition {', '.join(behind)}" if behind else "it has no partitions yet"
    return {"ready": False, "why": why}
