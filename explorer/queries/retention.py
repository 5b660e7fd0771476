"""What is stored for how long: the answers of `refold retain` and `refold snapshot --list`. Both only read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from refold.agents.log import AgentLog
from refold.agents.retention.classes import days_of
from refold.agents.retention.plan import Plan, plan
from refold.avro.times import time_text
from refold.explorer.queries.shapes import snapshot_json


@dataclass(frozen=True, slots=True)
class RetentionQuery:
    """Which content of runs has expired, by the default days of each class, and would be removed."""

    arguments: ClassVar[list[str]] = ["retain"]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the plan. This reads every run."""
        return {"dry_run": True, **plan_json(plan(log, log.vault.ring, days_of(()), time.time_ns() // 1000))}


@dataclass(frozen=True, slots=True)
class SnapshotsQuery:
    """The sealed epochs of a log."""

    arguments: ClassVar[list[str]] = ["snapshot", "--list"]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return each epoch, by partition and offset."""
        return [snapshot_json(each) for each in log.snapshots()]


def plan_json(found: Plan) -> dict[str, Any]:
    """Return a plan in JSON. Times are RFC 3339 UTC; a missing value is null. Keys may be added, never renamed."""
    return {
        "cut": str(found.cut),
        "runs": [
            {
                "run": each.run, "agent": each.agent, "class": each.retention_class, "ended": _time(each.ended_at),
                "due": _time(each.due_at), "expires": each.expires, "kept": each.kept, "key": each.has_key,
                "contents": each.contents, "bytes": each.bytes,
            }
            for each in found.runs.values()
        ],
        "damaged": [{"run": each.key_id.removeprefix("run:"), "error": each.why} for each in found.damaged],
        "contents": len(found.free),
        "bytes": sum(size for size, _ in found.free.values()),
    }  # fmt: skip


def _time(micros: int | None) -> str | None:
    return None if micros is None else time_text(micros)
