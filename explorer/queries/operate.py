"""How a log stands: what `refold doctor`, `verify`, `markers`, `effects list` and `deadletters list` answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from refold.agents.log import AgentLog
from refold.explorer.cli.ask.markers import marker_json
from refold.explorer.cli.operate.deadletters import letters_json, newest_of
from refold.explorer.cli.operate.doctor import examine
from refold.explorer.cli.operate.doctor_findings import Looking
from refold.explorer.cli.operate.retry import Chosen
from refold.explorer.cli.options import LogTarget
from refold.explorer.cli.runs.effects import effect_json, effects_like
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import verdict_json
from refold.streams.point import Point

LETTERS_LISTED = 100


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
        findings = examine(self.place, Looking())
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


@dataclass(frozen=True, slots=True)
class EffectsQuery:
    """What write tools did, or may have done. run: the id of one that carried it out."""

    status: str | None = None
    run: str = ""
    tool: str = ""
    at: str | None = None

    @property
    def arguments(self) -> list[str]:
        """`refold effects list`."""
        return ["effects", "list", *options_of(asdict(self))]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Each effect, in the order in which they were first intended."""
        ledger = log.effects
        every = ledger.list(at=self.at)
        return [effect_json(ledger, each) for each in effects_like(every, self.status, self.run, self.tool)]


@dataclass(frozen=True, slots=True)
class DeadLettersQuery:
    """The records that are no observations. limit: the newest so many are listed, 0: all; all are counted."""

    limit: int = LETTERS_LISTED

    @property
    def arguments(self) -> list[str]:
        """`refold deadletters list`."""
        return ["deadletters", "list", *options_of({"limit": str(self.limit)})]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """How many there are by reason, and the newest."""
        return letters_json(*newest_of(Chosen((), None, None, None).among(log), self.limit))
