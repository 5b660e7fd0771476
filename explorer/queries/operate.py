"""How a log stands: what `refold doctor`, `verify` and `markers` answer.

Every entity at a point: the answer of `refold rebuild`.

The calls that policies ask people about: the answer of `refold approvals`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from refold.agents.log import AgentLog
from refold.agents.policy.decision_log import ApprovalQuestion
from refold.explorer.doctor.examine import examine
from refold.explorer.doctor.findings import CheckSettings
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import marker_json, rebuild_json, verdict_json
from refold.streams.point import Point


def question_json(question: ApprovalQuestion) -> dict[str, Any]:
    """A question, and its answer where there is one."""
    return {**question._asdict(), "approval": question.approval._asdict()}


@dataclass(frozen=True, slots=True)
class ApprovalsQuery:
    """The calls that wait for a person. all_too: also those that have an answer."""

    all_too: bool = False

    @property
    def arguments(self) -> list[str]:
        """`refold approvals`."""
        return ["approvals", *options_of({"all": self.all_too})]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Each question, the oldest first."""
        return [question_json(each) for each in log.questions(all_too=self.all_too)]


@dataclass(frozen=True, slots=True)
class RebuildQuery:
    """types: only entities of these; then there is no root."""

    at: str | None = None
    types: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """`refold rebuild`."""
        types = [f"--type={each}" for each in self.types]
        return ["rebuild", *types, *options_of({"at": self.at})]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return how many entities there are, and the root."""
        point = log.point(self.at)
        view = log.rebuild(point.cut, types=self.types or None)
        return rebuild_json(point, view, None if self.types else view.root)


@dataclass(frozen=True, slots=True)
class DoctorQuery:
    """Whether the log is fit to be used here. place: as commands name it."""

    place: LogTarget

    @property
    def arguments(self) -> list[str]:
        """`refold doctor`."""
        return ["doctor"]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Each finding. It opens the log itself, because that it opens is one of them."""
        del log
        findings = examine(self.place, CheckSettings())
        return {"ok": all(each.ok for each in findings), "findings": [each._asdict() for each in findings]}


@dataclass(frozen=True, slots=True)
class VerifyQuery:
    """Whether stored state matches a full replay."""

    arguments: ClassVar[list[str]] = ["verify"]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """The root and each mismatch; reads the whole log."""
        verdict = log.verify()
        return verdict_json(Point(verdict.cut), verdict)


@dataclass(frozen=True, slots=True)
class MarkersQuery:
    """The points that have a name."""

    arguments: ClassVar[list[str]] = ["markers"]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Each marker, the oldest first."""
        return [marker_json(each) for each in log.port.markers()]
