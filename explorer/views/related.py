"""Records that refer to a run: evaluations of it, attempts to heal it, and the agent that makes it.

Each is found by an index of its type (streams/entity_index.py), which holds what is stored in clear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refold.agents.heal.healings import TYPE as HEALING
from refold.agents.log import AgentLog
from refold.agents.supervise.entries import TYPE as AGENT
from refold.streams.cut import Cut
from refold.streams.entity_index import facts
from refold.streams.view import EntityView

EVALUATION = "evaluation"
LISTED_MAX = 20


class Evaluation(NamedTuple):
    """One evaluation.

    Attributes:
        run, subject: The run and the subject that it judged.
        passed: Whether the verdict is that it passed; None if the evaluation does not say.
    """

    entity: str
    run: str
    subject: str
    name: str
    passed: bool | None
    score: float | None
    score_max: float | None
    threshold: float | None
    evaluator: str

    @property
    def text(self) -> str:
        """The result in words, such as `payments: failed, 0.75 of 1, at least 0.95 was needed`."""
        parts = [] if self.passed is None else ["passed" if self.passed else "failed"]
        if self.score is not None:
            parts.append(f"{self.score:g}" + ("" if self.score_max is None else f" of {self.score_max:g}"))
        if self.threshold is not None:
            parts.append(f"at least {self.threshold:g} was needed")
        return f"{self.name or 'evaluation'}: {', '.join(parts) or 'no result'}"


class HealingOfRun(NamedTuple):
    """One attempt to heal a run.

    Attributes:
        runs: The run, its proof, and the run that continues.
    """

    attempt: int
    status: str
    run: str
    runs: frozenset[str]


class RelatedRecords(NamedTuple):
    """The records that refer to a run.

    Attributes:
        more: How many evaluations are not listed.
    """

    evaluations: tuple[Evaluation, ...]
    more: int
    healings: tuple[HealingOfRun, ...]
    agent: str


def evaluation(view: EntityView) -> Evaluation:
    """Return an evaluation from its entity."""
    fields = view.fields
    return Evaluation(
        view.entity, _text(fields, "run"), _text(fields, "subject"), _text(fields, "name"), fields.get("passed"),
        fields.get("score"), fields.get("score_max"), fields.get("threshold"), _text(fields, "evaluator"),
    )  # fmt: skip


def healing(view: EntityView) -> HealingOfRun:
    """Return an attempt to heal from its entity."""
    fields = view.fields
    runs = frozenset(_text(fields, name) for name in ("run", "proof", "healed_by"))
    return HealingOfRun(fields.get("attempt") or 0, _text(fields, "status"), _text(fields, "run"), runs - {""})


def agent_run(view: EntityView) -> str:
    """Return the run that a supervised agent makes; empty if none is recorded."""
    return _text(view.fields, "run")


def related(log: AgentLog, run: str, cut: Cut) -> RelatedRecords:
    """Return what hangs on a run at a cut."""
    judged = [
        each for each in facts(log, EVALUATION, evaluation, cut).values()
        if each.run == run or each.subject == f"run/{run}"
    ]  # fmt: skip
    healed = sorted(
        (each for each in facts(log, HEALING, healing, cut).values() if run in each.runs),
        key=lambda each: (each.run, each.attempt),
    )
    agents = facts(log, AGENT, agent_run, cut)
    agent = next((name.partition("/")[2] for name, run_of_agent in agents.items() if run_of_agent == run), "")
    shown = sorted(judged, key=lambda each: each.entity)[:LISTED_MAX]
    return RelatedRecords(tuple(shown), len(judged) - len(shown), tuple(healed[:LISTED_MAX]), agent)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
