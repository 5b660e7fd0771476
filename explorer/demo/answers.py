"""What the log alone answers about a run: each function takes a log and a point, and knows nothing of the agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import refold
from refold.explorer.demo.names import CONFIG, PAYING, PIPELINE, RUN, SESSION, STEPS


@dataclass(frozen=True, slots=True)
class LastWord:
    """What the agent last told the demo: the pipeline's version and state hash (hex), and how much was acknowledged."""

    version: int
    state_hash: str
    kept: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """One version of the pipeline, folded anew from the log; hashes in hex, at in microseconds.

    noted: the hash the agent wrote down when it saw this version; empty if it did not.
    failed_tries: of a step's tool calls, where this version ends a step.
    """

    version: int
    at: int
    what: str
    state_hash: str
    noted: str
    failed_tries: int | None


def replay(log: refold.Log, view: refold.StateView) -> list[Replayed]:
    """Every version of the pipeline up to a point."""
    noted = {row.new["version"]: row.new["state_hash"]
             for row in log.history(SESSION, until=view.cut) if row.key == "pipeline_seen"}  # fmt: skip
    found = []
    for rows in _by_observation(log, PIPELINE, view.cut):
        version = rows[0].version
        steps = [row for row in rows if row.field == "steps"]
        ended = [row.key for row in steps if row.new["status"] == "committed"]
        what = (
            "begins"
            if version == 1
            else " ".join(_progress(row) for row in steps or rows if row.field in MOVES)
        )
        found.append(
            Replayed(
                version, rows[0].observed_at, what, log.state(PIPELINE, f"v{version}").state_hash,
                noted.get(version, ""), failed_tries(view, STEPS.index(ended[0]) + 1) if ended else None,
            )
        )  # fmt: skip
    return found


MOVES = ("steps", "outputs")


def _progress(row: refold.Row) -> str:
    if row.field == "steps":
        return f"{row.key} {'done' if row.new['status'] == 'committed' else 'starts'}"
    return f"{row.new} {row.key}"


def failed_tries(view: refold.StateView, step: int) -> int:
    """How often a tool call of a step failed and was repeated."""
    actions = (view[entity] for entity in view if entity.startswith(f"action/{RUN}#{step}."))
    return sum(len(each.fields.get("retries", ())) for each in actions)


def live_hashes(log: refold.Log) -> dict[str, bytes]:
    """The state hash of each entity as the live fold left it, by the changes it published."""
    return {change.entity: change.hash_after for change in log.changes()}


@dataclass(frozen=True, slots=True)
class StaleRead:
    """What the agent read of the configuration, and what was there at the end; versions."""

    read_version: int
    version: int


def stale_read(view: refold.StateView) -> StaleRead | None:
    """Whether the configuration that the plan rests on was still the one in force; None if so."""
    read = next(each for each in view[f"step/{RUN}#1"].fields["reads"] if each["entity"] == CONFIG)
    config = view[CONFIG]
    return None if read["state_hash"] == config.state_hash else StaleRead(read["version"], config.version)


def unanswered(view: refold.StateView) -> refold.EntityView | None:
    """The payment that was asked for and has no answer."""
    payments = (view[entity] for entity in view if entity.startswith(f"action/{RUN}#{PAYING}."))
    return next((each for each in payments if each.fields["status"] == "running"), None)


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of a timeline; at in microseconds."""

    at: int
    entity: str
    text: str
    agent: str


def timeline(log: refold.Log, at: refold.Cut, entities: Sequence[str]) -> list[Moment]:
    """What happened to some entities up to a point, one line for each observation that says something, by time."""
    found = [
        Moment(rows[0].observed_at, entity, text, rows[0].source.agent)
        for entity in entities
        for rows in _by_observation(log, entity, at)
        if (text := ", ".join(said for row in rows if (said := _said(row))))
    ]
    return sorted(found, key=lambda moment: moment.at)


def _by_observation(log: refold.Log, entity: str, at: refold.Cut) -> Iterator[list[refold.Row]]:
    told: dict[str, list[refold.Row]] = {}
    for row in log.history(entity, until=at):
        told.setdefault(row.by, []).append(row)
    yield from told.values()


def _said(row: refold.Row) -> str:
    """A change in few words; empty for what a timeline does not need."""
    if row.field == "current_step":
        return f"{row.new} starts"
    if row.field == "outputs" and row.key == "paid":
        return f"{row.new} paid"
    if row.field in ("rate_limit", "timeout_ms"):
        return f"{row.field} {row.new}"
    return f"asks {row.new}" if row.field == "tool" and row.entity.startswith("action/") else ""
