"""Attempts to heal runs, as entities `healing/<run>.<n>`: the n-th attempt for the run.

Each transition is one observation, caused by the one before it and by the observations that it rests on. So `refold why
healing/ID.status` shows the whole chain, down to the steps that failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from refold.agents.heal.diagnosis import Diagnosis, RunFinding
from refold.avro.observation import Source
from refold.avro.shipped import shipped_types
from refold.streams.client import Log
from refold.streams.entity_index import views
from refold.streams.point import When
from refold.streams.view import EntityView

if TYPE_CHECKING:
    from refold.agents.heal.plan import DeclaredRemedy

TYPE = "healing"
SOURCE = "refold heal"
CAUSES_MAX = 64
OPEN = frozenset({"begun", "proved", "waiting", "resuming"})
"""The statuses of an attempt that has not ended."""


class Healing(NamedTuple):
    """One attempt as it is recorded. Times are in microseconds since 1970; 0 while they are not recorded.

    Attributes:
        checks: Each check as {"check", "satisfied"}: what was checked, and whether it was satisfied.
        last: The id of the observation of its status, in hex; empty if it has no status.
    """

    id: str
    run: str
    agent: str
    attempt: int
    run_attempts: int
    failure: str
    findings: tuple[Mapping[str, Any], ...]
    remedy: str
    does: str
    at_step: int
    status: str
    reason: str
    proof: str
    checks: tuple[Mapping[str, Any], ...]
    question: str
    healed_by: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    started_at: int
    ended_at: int
    last: str

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN

    @property
    def healed_text(self) -> str:
        """The outcome of the run, if the attempt healed it."""
        return f"was healed by the remedy {self.remedy!r}: run {self.healed_by} succeeded"

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**self._asdict(), "findings": list(self.findings), "checks": list(self.checks)}


def healings(log: Log, run: str = "", at: When = None) -> list[Healing]:
    """Return the attempts for a run, or for every run, oldest first.

    Args:
        log: The log.
        run: The run's id; empty: all.
        at: The point; None is now.
    """
    found = [_healing(view) for view in views(log, TYPE, log.point(at).cut).values()]
    return sorted((each for each in found if run in ("", each.run)), key=lambda each: (each.started_at, each.id))


class HealingLog:
    """Writes the transitions of one attempt, each durable when the method returns."""

    def __init__(self, log: Log, now_micros: Callable[[], int], healing: Healing) -> None:
        """Continue an attempt.

        Args:
            log: The log.
            now_micros: The clock, microseconds.
            healing: The attempt, as it is recorded.
        """
        self.healing = healing
        self._log = log
        self._now_micros = now_micros
        self._at = max(healing.started_at, healing.ended_at)

    @classmethod
    def begin(
        cls, log: Log, now_micros: Callable[[], int], diagnosis: Diagnosis, finding: RunFinding | None,
        remedy: DeclaredRemedy | None, *, attempt: int, run_attempts: int, at_step: int, status: str = "begun",
        reason: str = "",
    ) -> HealingLog:  # fmt: skip
        """Record a new attempt.

        Args:
            log: The log.
            now_micros: The clock, microseconds.
            diagnosis: What is wrong with the run.
            finding: The finding that the remedy is for; None with status `stopped`.
            remedy: The remedy; None with status `stopped`.
            attempt: The number of the attempt, from 1.
            run_attempts: How often the run was begun.
            at_step: The step after which the run continues.
            status: `begun` or `stopped`.
            reason: Why, in words.
        """
        if TYPE not in log.types:
            log.register(shipped_types()[TYPE])
        failure = diagnosis.failure if finding is None else f"{finding.kind} {finding.name}".strip()
        name = f"{diagnosis.run}.{attempt}"
        patch: dict[str, Any] = {
            "run": diagnosis.run, "agent": diagnosis.agent, "attempt": attempt, "run_attempts": run_attempts,
            "failure": failure, "findings": [_tree(each) for each in diagnosis.findings], "at_step": at_step,
            "started_at": now_micros(),
        }  # fmt: skip
        if remedy is not None:
            patch |= {"remedy": remedy.name, "does": remedy.do}
        new = Healing(name, diagnosis.run, diagnosis.agent, attempt, run_attempts, failure, (), "", "", at_step, status,
                      "", "", (), "", "", 0, 0, None, 0, 0, "")  # fmt: skip
        found = cls(log, now_micros, new)
        causes = dict.fromkeys(each for finding in diagnosis.findings for each in finding.observations)
        found.note(status, reason, causes=list(causes)[:CAUSES_MAX], **patch)
        return found

    def note(self, status: str, reason: str = "", *, causes: Iterable[str] = (), **fields: Any) -> None:
        """Record a transition.

        Args:
            status: The new status.
            reason: Why, in words; it holds no content of the run.
            causes: Observations that it rests on, besides the attempt's last one.
            fields: Further fields.
        """
        self._at = max(self._now_micros(), self._at + 1)
        patch = {**fields, "status": status}
        if reason:
            patch["reason"] = reason
        if status not in OPEN:
            patch["ended_at"] = self._at
        source = Source(SOURCE, self.healing.run, "", "", self._at)
        every = [*([self.healing.last] if self.healing.last else []), *causes]
        self._log.observe(f"{TYPE}/{self.healing.id}", patch, source=source, causes=every, observed_at=self._at)
        self._log.flush()
        self.healing = _healing(self._log.state(f"{TYPE}/{self.healing.id}"))


def _tree(finding: RunFinding) -> dict[str, Any]:
    return {**finding._asdict(), "steps": list(finding.steps), "observations": list(finding.observations)}


def _healing(view: EntityView) -> Healing:
    fields = view.fields

    def text(name: str) -> str:
        return str(fields.get(name) or "")

    def micros(name: str) -> int:
        return int(fields.get(name) or 0)

    return Healing(
        id=view.entity.partition("/")[2], run=text("run"), agent=text("agent"), attempt=micros("attempt"),
        run_attempts=micros("run_attempts"), failure=text("failure"), findings=tuple(_list(fields.get("findings"))),
        remedy=text("remedy"), does=text("does"), at_step=micros("at_step"), status=text("status"),
        reason=text("reason"), proof=text("proof"), checks=tuple(_list(fields.get("checks"))),
        question=text("question"), healed_by=text("healed_by"), input_tokens=micros("input_tokens"),
        output_tokens=micros("output_tokens"), cost_usd=fields.get("cost_usd"), started_at=micros("started_at"),
        ended_at=micros("ended_at"),
        last=view.observations_of("status")[0].hex() if "status" in view.tree["fields"] else "",
    )  # fmt: skip


def _list(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list that is a field's value; none of what another program wrote in its place."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
