"""States and history as lines of COPY's text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from refold.sinks.port import EntityState, HistoryStep
from refold.sinks.postgres.columns import NULL, Column, escaped, json_text, time_text
from refold.sinks.states import packed

# Name and SQL type of refold's own columns of an entity's table.
OWN_COLUMNS = (
    ("_entity", "text"), ("_version", "bigint"), ("_state_hash", "bytea"), ("_recorded_at", "timestamp with time zone"),
    ("_partition", "integer"), ("_offset", "bigint"), ("_links", "jsonb"), ("_held", "bytea"),
)  # fmt: skip
HISTORY_COLUMNS = (
    ("type", "text"), ("entity", "text"), ("version", "bigint"), ("field", "text"), ("op", "text"), ("key", "jsonb"),
    ("old", "jsonb"), ("new", "jsonb"), ("observation", "bytea"), ("caused_by", "bytea"), ("partition", "integer"),
    ("offset", "bigint"), ("observed_at", "timestamp with time zone"), ("recorded_at", "timestamp with time zone"),
    ("agent", "text"), ("run", "text"), ("step", "text"), ("tool", "text"), ("seq", "numeric"),
)  # fmt: skip


def state_line(columns: Sequence[Column], state: EntityState) -> str:
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
        f"{time_text(step.recorded_at * 1000)}\t{_said_by(source.agent, source.run, source.step, source.tool)}\t"
        f"{source.seq}\n"
    )  # fmt: skip
    return "".join([
        f"{head}{field}\t{op}\t{NULL if key is None else json_text(shown.key(key))}\t"
        f"{NULL if old is None else json_text(shown.value(field, old))}\t"
        f"{NULL if new is None else json_text(shown.value(field, new))}\t"
        rf"\\x{observation.hex()}" f"{tail}"
        for field, op, key, old, new, observation in step.mutations
    ])  # fmt: skip


@lru_cache(maxsize=1024)  # a run says the same with every observation
def _said_by(agent: str, run: str, step: str, tool: str) -> str:
    return "\t".join(map(escaped, (agent, run, step, tool)))
