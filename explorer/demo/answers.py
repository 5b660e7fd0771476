"""What the log alone answers about a run: each function takes a log and a point, and knows nothing of the agent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import refold
from refold.explorer.demo.names import CONFIG, PAYING, PIPELINE, RUN, SESSION


@dataclass(frozen=True, slots=True)
class Replayed:
    """A state the agent saw and noted while it lived, and the same state folded anew from the log; hashes in hex."""

    at: str
    version: int
    noted: str
    folded: str

    @property
    def same(self) -> bool:
        """Whether they are equal."""
        return self.noted == self.folded


def replay(log: refold.Log, at: refold.Cut) -> list[Replayed]:
    """Every state of the pipeline that the agent noted, replayed."""
    noted = [row.new for row in log.history(SESSION, until=at) if row.key == "pipeline_seen"]
    return [
        Replayed(each["at"], each["version"], each["state_hash"], log.state(PIPELINE, f"v{each['version']}").state_hash)
        for each in noted
    ]


def live_hashes(log: refold.Log) -> dict[str, bytes]:
    """The state hash of each entity as the live fold left it, by the changes it published."""
    return {change.entity: change.hash_after for change in log.changes()}


@dataclass(frozen=True, slots=True)
class StaleRead:
    """What the agent read of the configuration, and what was there at the end; versions."""

    read_version: int
    version: int


def stale_read(view: refold.StateView) -> StaleRead | None:
    """Whether the configuration that the plan rests on was still the one in force."""
    read = next(each for each in view[f"step/{RUN}#1"].fields["reads"] if each["entity"] == CONFIG)
    config = view[CONFIG]
    if read["state_hash"] == config.state_hash:
        return None
    return StaleRead(read["version"], config.version)


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


def timeline(log: refold.Log, view: refold.StateView, entities: list[str]) -> list[Moment]:
    """What happened to some entities up to a point, one line for each observation, by time."""
    found = [moment for entity in entities for moment in _moments(log, view.cut, entity)]
    return sorted(found, key=lambda moment: moment.at)


def _moments(log: refold.Log, at: refold.Cut, entity: str) -> Iterator[Moment]:
    told: dict[str, list[refold.Row]] = {}
    for row in log.history(entity, until=at):
        told.setdefault(row.by, []).append(row)
    for rows in told.values():
        texts = [text for row in rows if (text := _change(row))]
        if texts:
            yield Moment(rows[0].observed_at, entity, ", ".join(texts), rows[0].source.agent)


def _change(row: refold.Row) -> str:
    """A change in few words; empty for fields that a timeline does not need."""
    if row.field not in ("status", "current_step", "outputs", "rate_limit", "timeout_ms", "version", "tool"):
        return ""
    name = row.key if row.field == "outputs" else row.field
    return f"{name} {row.new}" if row.old is None else f"{name} {row.old} -> {row.new}"
