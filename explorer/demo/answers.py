"""Answers about a run from the log alone: functions of a log and a point, independent of the agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import refold
from refold.explorer.demo.names import CONFIG, PAYMENT, PIPELINE, RUN, SESSION, STEPS


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The agent's last report: the version and state hash (hex) of the pipeline, and how many observations are
    durable.
    """

    version: int
    state_hash: str
    kept: int


@dataclass(frozen=True, slots=True)
class RefoldedVersion:
    """One version of the pipeline, folded again from the log. Hashes are hex, `at` is in microseconds.

    Attributes:
        noted: The hash that the agent recorded when it saw this version; empty if it did not.
        failed_tries: The number of failed attempts of a step's tool calls; None if this version ends no step.
    """

    version: int
    at: int
    what: str
    state_hash: str
    noted: str
    failed_tries: int | None


def replay(log: refold.Log, view: refold.StateView) -> list[RefoldedVersion]:
    """Fold the pipeline again; return its versions up to the point of the view."""
    seen = [row.new for row in log.history(SESSION, until=view.cut) if row.key == "pipeline_seen"]
    noted = {each["version"]: each["state_hash"] for each in seen}
    return [_replay_version(log, view, rows, noted) for rows in _by_observation(log, PIPELINE, view.cut)]


def _replay_version(
    log: refold.Log, view: refold.StateView, rows: Sequence[refold.Row], noted: dict[int, str]
) -> RefoldedVersion:
    version = rows[0].version
    moves = [row for row in rows if row.field == "steps"] or [row for row in rows if row.field == "outputs"]
    ended = [row.key for row in moves if row.field == "steps" and row.new["status"] == "committed"]
    return RefoldedVersion(
        version=version,
        at=rows[0].observed_at,
        what="begins" if version == 1 else " ".join(_move(row) for row in moves),
        state_hash=log.state(PIPELINE, f"v{version}").state_hash,
        noted=noted.get(version, ""),
        failed_tries=failed_tries(view, STEPS.index(ended[0]) + 1) if ended else None,
    )


def _move(row: refold.Row) -> str:
    if row.field == "steps":
        return f"{row.key} {'done' if row.new['status'] == 'committed' else 'starts'}"
    return f"{row.new} {row.key}"


def failed_tries(view: refold.StateView, step: int) -> int:
    """Return how many attempts of a step's tool calls failed and were repeated."""
    actions = (view[entity] for entity in view if entity.startswith(f"action/{RUN}#{step}."))
    return sum(len(each.fields.get("retries", ())) for each in actions)


def live_hashes(log: refold.Log) -> dict[str, bytes]:
    """Return each entity's state hash from the live fold, as published with its last change."""
    return {change.entity: change.hash_after for change in log.changes()}


def planned_by(view: refold.StateView) -> int:
    """Return the version of the configuration that the agent read, according to its first step."""
    reads = view[f"step/{RUN}#1"].fields["reads"]
    version: int = next(each["version"] for each in reads if each["entity"] == CONFIG)
    return version


def payments(view: refold.StateView) -> list[refold.EntityView]:
    """Return all payments that were requested."""
    return [view[entity] for entity in view if entity.startswith(PAYMENT)]


def unanswered(view: refold.StateView) -> refold.EntityView:
    """Return the payment that was requested and has no answer.

    Raises:
        UnknownEntity: Every payment has an answer.
    """
    found = next((each for each in payments(view) if each.fields["status"] == "running"), None)
    if found is None:
        raise refold.UnknownEntity(f"no payment without an answer at {view.cut.short}")
    return found


def document_of(payment: refold.EntityView) -> str:
    """Return the refund that a payment is for."""
    return f"document/refund-{payment.fields['inputs']['claim']}"


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line of a timeline. `at` is in microseconds."""

    at: int
    entity: str
    text: str
    agent: str


def timeline(log: refold.Log, at: refold.Cut, entities: Sequence[str]) -> list[TimelineLine]:
    """Return what happened to some entities up to a point, ordered by time. An observation without a text for the
    timeline is left out.
    """
    found = [
        TimelineLine(rows[0].observed_at, entity, text, rows[0].source.agent)
        for entity in entities
        for rows in _by_observation(log, entity, at)
        if (text := " ".join(change for row in rows if (change := _change_text(row))))
    ]
    return sorted(found, key=lambda moment: moment.at)


def _by_observation(log: refold.Log, entity: str, at: refold.Cut) -> Iterator[list[refold.Row]]:
    rows: dict[str, list[refold.Row]] = {}
    for row in log.history(entity, until=at):
        rows.setdefault(row.by, []).append(row)
    yield from rows.values()


def _change_text(row: refold.Row) -> str:
    """Describe a change in a few words. Empty if the timeline does not need it."""
    if row.field == "current_step":
        return f"{row.new} starts"
    if row.field == "outputs" and row.key == "paid":
        return f"{row.new} paid"
    if row.field in ("rate_limit", "timeout_ms"):
        return f"{row.field}={row.new}"
    return f"asks {row.new}" if row.field == "tool" and row.entity.startswith(PAYMENT) else ""
