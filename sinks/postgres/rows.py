"""States and history as lines of COPY's text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from refold.sinks.port import EntityState, HistoryStep
from refold.sinks.postgres.columns import NULL, SqlColumn, escaped, json_text, time_text
from refold.sinks.states import packed


class OwnColumn(NamedTuple):
    """A column of refold's own: `sql` as PostgreSQL names the type, `doc` its comment."""

    name: str
    sql: str
    doc: str
    is_null: bool = False


OWN_COLUMNS = (
    OwnColumn("_entity", "text", "TYPE/ID."),
    OwnColumn("_version", "bigint", "The number of distinct observations folded."),
    OwnColumn("_state_hash", "bytea", "SHA-256 of the canonical state."),
    OwnColumn("_recorded_at", "timestamp with time zone", "When the log took the latest of its observations."),
    OwnColumn("_partition", "integer", "The partition of the log that holds the entity."),
    OwnColumn("_offset", "bigint", "The offset of the latest of its observations."),
    OwnColumn("_links", "jsonb", "Its live links: relation, target, valid_from, valid_to."),
    OwnColumn("_held", "bytea", "The state in refold's own form, which the next change is applied to."),
)
"""Of an entity's table; its fields' columns follow."""
HISTORY_COLUMNS = (
    OwnColumn("type", "text", "The entity's type."),
    OwnColumn("entity", "text", "TYPE/ID."),
    OwnColumn("version", "bigint", "The entity's version that the mutation led to."),
    OwnColumn("field", "text", "The field that changed, by its first name; _links for a link."),
    OwnColumn("op", "text", "set, add, remove or clear."),
    OwnColumn("key", "jsonb", "What changed in a collection.", is_null=True),
    OwnColumn("old", "jsonb", "The value before.", is_null=True),
    OwnColumn("new", "jsonb", "The value after.", is_null=True),
    OwnColumn("observation", "bytea", "The id of the observation that holds the field now."),
    OwnColumn("caused_by", "bytea", "The id of the observation that caused the mutation."),
    OwnColumn("partition", "integer", "The partition of that observation."),
    OwnColumn("offset_", "bigint", "The offset of that observation."),
    OwnColumn("observed_at", "timestamp with time zone", "When it happened, according to its source."),
    OwnColumn("recorded_at", "timestamp with time zone", "When the log took it."),
    OwnColumn("agent", "text", "Who made the observation."),
    OwnColumn("run", "text", "In which run."),
    OwnColumn("step", "text", "In which step of the run."),
    OwnColumn("tool", "text", "By which tool."),
    OwnColumn("seq", "numeric", "Its number within agent and run."),
    OwnColumn("mutation", "integer", "Numbers the mutations of one version, from 0."),
)


def state_line(columns: Sequence[SqlColumn], state: EntityState) -> str:
    """One entity: OWN_COLUMNS, then the fields' columns."""
    fields = state.fields
    parts = [
        escaped(state.entity), str(state.version), rf"\\x{state.state_hash.hex()}",
        time_text(state.recorded_at * 1000), str(state.partition), str(state.offset),
        json_text(state.links) if state.links else "[]", rf"\\x{packed(state).hex()}",
    ]  # fmt: skip
    for column in columns:
        value = fields.get(column.field)
        parts.append(NULL if value is None else column.text(value))
    return "\t".join(parts) + "\n"


def history_lines(step: HistoryStep) -> str:
    """One observation's mutations, a line each: HISTORY_COLUMNS."""
    name, shown, source = escaped(step.entity), step.shown, step.source
    head = f"{name.partition('/')[0]}\t{name}\t{step.version}\t"
    tail = (
        "\t" rf"\\x{step.by.hex()}" f"\t{step.partition}\t{step.offset}\t{time_text(step.observed_at)}\t"
        f"{time_text(step.recorded_at * 1000)}\t{_source_text(source.agent, source.run, source.step, source.tool)}\t"
        f"{source.seq}\t"
    )  # fmt: skip
    return "".join([
        f"{head}{field}\t{op}\t{NULL if key is None else json_text(shown.key(key))}\t"
        f"{NULL if old is None else json_text(shown.value(field, old))}\t"
        f"{NULL if new is None else json_text(shown.value(field, new))}\t"
        rf"\\x{observation.hex()}" f"{tail}{number}\n"
        for number, (field, op, key, old, new, observation) in enumerate(step.mutations)
    ])  # fmt: skip


@lru_cache(maxsize=1024)  # a run says the same with every observation
def _source_text(agent: str, run: str, step: str, tool: str) -> str:
    return "\t".join(map(escaped, (agent, run, step, tool)))
