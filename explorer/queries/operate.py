"""The operator's questions: the answers of `refold doctor`, `verify`, `markers`, `rebuild`, `approvals`, `retain` and
`snapshot --list`. Each only reads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from refold.agents.log import AgentLog
from refold.agents.policy.decision_log import ApprovalQuestion
from refold.agents.retention.classes import days_of
from refold.agents.retention.plan import Plan, plan
from refold.avro.times import time_text
from refold.explorer.doctor.examine import examine
from refold.explorer.doctor.findings import CheckSettings
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import marker_json, rebuild_json, snapshot_json, verdict_json
from refold.streams.point import Point


def question_json(question: ApprovalQuestion) -> dict[str, Any]:
    """Return a question in JSON, with its answer if it has one."""
    return {**question._asdict(), "approval": question.approval._asdict()}


@dataclass(frozen=True, slots=True)
class ApprovalsQuery:
    """The calls that wait for a person's approval.

    Attributes:
        all_too: Whether to include those that were answered already.
    """

    all_too: bool = False

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold approvals`."""
        return ["approvals", *options_of({"all": self.all_too})]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return each question, the oldest first."""
        return [question_json(each) for each in log.questions(all_too=self.all_too)]


@dataclass(frozen=True, slots=True)
class RebuildQuery:
    """Rebuilds every entity at a point.

    Attributes:
        types: The types of the entities; empty for all. If types are given, the answer has no root.
    """

    at: str | None = None
    types: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold rebuild`."""
        types = [f"--type={each}" for each in self.types]
        return ["rebuild", *types, *options_of({"at": self.at})]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the number of entities, and the root."""
        point = log.point(self.at)
        view = log.rebuild(point.cut, types=self.types or None)
        return rebuild_json(point, view, None if self.types else view.root)


@dataclass(frozen=True, slots=True)
class DoctorQuery:
    """Whether the log can be used on this machine.

    Attributes:
        place: The log, as commands name it.
    """

    place: LogTarget

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold doctor`."""
        return ["doctor"]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return each finding. The examination opens the log itself: whether it opens is one of the findings."""
        del log
        findings = examine(self.place, CheckSettings())
        return {"ok": all(each.ok for each in findings), "findings": [each._asdict() for each in findings]}


@dataclass(frozen=True, slots=True)
class VerifyQuery:
    """Whether stored state matches a full replay."""

    arguments: ClassVar[list[str]] = ["verify"]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the root and each mismatch. This reads the whole log."""
        verdict = log.verify()
        return verdict_json(Point(verdict.cut), verdict)


@dataclass(frozen=True, slots=True)
class MarkersQuery:
    """The named points of a log."""

    arguments: ClassVar[list[str]] = ["markers"]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return each marker, the oldest first."""
        return [marker_json(each) for each in log.port.markers()]


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
