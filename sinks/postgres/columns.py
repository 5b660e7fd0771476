"""The SQL table of a type: names of tables and columns, SQL types, and values in COPY's text format. Pure functions.

A table or column has the name of its type or field, if PostgreSQL allows the name and refold does not reserve it
(columns that begin with `_`, tables that begin with `refold_`). Otherwise it has the beginning of the name and eight
digits of its SHA-256. A column whose name is a reserved word gets `_` appended, so that it needs no quotes: `user_`. A
name that is a reserved word followed by `_`s gets one too, so that no two fields share a column.

    int         integer           string          text             date                  date
    long        bigint            enum            text             time-millis, -micros  time
    boolean     boolean           bytes, fixed    bytea            timestamp-...         timestamptz
    float       double precision  decimal         numeric          local-timestamp-...   timestamp
    double      double precision  string uuid     uuid             count                 bigint
    sum         numeric           array, map, record, refold-json, and other fields that may be Blob or Sealed: jsonb

A string or enum that may be a Blob or Sealed is text too: the text itself, and of a Blob or Sealed its JSON, `{"$blob":
{...}}`, written as PostgreSQL writes jsonb. PostgreSQL's text and jsonb cannot hold U+0000, so it is replaced by
U+2400; `_held` has the original.

States and history become lines of that text (`state_line`, `history_line`).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.jsonform import formatter
from refold.avro.nodes import JSON, allows, value_of
from refold.sinks.port import EntityState, HistoryStep
from refold.sinks.states import packed

NAME_BYTES_MAX = 63
SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
# Words that a release of PostgreSQL from 13 on rejects as a column's name without quotes: pg_get_keywords(), R and T.
_RESERVED = """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze
    from full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references
    returning right select session_user similar some symmetric system_user table tablesample then to trailing true union
    unique user using variadic verbose when where window with
"""
RESERVED = frozenset(_RESERVED.split())
OWN = "_"
OWN_TABLES = "refold_"
NULL = r"\N"

Text = Callable[[Any], str]

# The types that a column can be widened to; a column that is wide enough is not changed.
_WIDER = {
    "integer": ("bigint", "numeric", "jsonb"),
    "bigint": ("numeric", "jsonb"),
    "double precision": ("numeric", "jsonb"),
    "text": (),
}
_PLAIN = {
    "boolean": "boolean", "int": "integer", "long": "bigint", "float": "double precision",
    "double": "double precision", "string": "text", "enum": "text", "bytes": "bytea", "fixed": "bytea",
}  # fmt: skip
_LOGICAL = {
    "decimal": "numeric", "uuid": "uuid", "date": "date", "time-millis": "time without time zone",
    "time-micros": "time without time zone", "timestamp-millis": "timestamp with time zone",
    "timestamp-micros": "timestamp with time zone", "local-timestamp-millis": "timestamp without time zone",
    "local-timestamp-micros": "timestamp without time zone",
}  # fmt: skip
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\0": "\u2400"})
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MIDNIGHT = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # a time of day has no zone
_encode_json = msgspec.json.Encoder().encode


class SqlColumn(NamedTuple):
    """One field's column: `sql` as PostgreSQL names the type, `text` makes COPY's text of a canonical value.

    Attributes:
        doc: What the type's file says of the field.
    """

    field: str
    name: str
    sql: str
    text: Text
    doc: str


def table_name(type_name: str) -> str:
    """The table of a type."""
    return _name(type_name, taken=type_name.startswith(OWN_TABLES))


def column_name(field: str) -> str:
    """The column of a field, by its first name."""
    if is_reserved(field):
        return f"{field}{OWN}"
    return _name(field, taken=field.startswith(OWN) or field in SYSTEM or field.rstrip(OWN) in RESERVED)


def is_reserved(name: str) -> bool:
    """Whether a name is a word that PostgreSQL reserves, or one that `column_name` made of it."""
    return name.rstrip(OWN) in RESERVED and len(name) < NAME_BYTES_MAX


def index_name(table: str) -> str:
    """The name of the index on the times of a type's table."""
    return _name(f"{OWN_TABLES}recorded_at_{table}", taken=False)


def _name(name: str, *, taken: bool) -> str:
    if not taken and len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.lstrip(OWN)[: NAME_BYTES_MAX - 10] or 'field'}_x{digits}" if taken else f"{name[:54]}_{digits}"


def columns_of(definition: TypeDefinition, held: dict[str, str] | None = None) -> list[SqlColumn]:
    """A type's columns in the order of its fields.

    Args:
        held: SQL types by column of the existing table.
    """
    return [_column(each, held or {}) for each in definition.fields.values()]


def widens(held: str, wanted: str) -> bool:
    """Whether a column can be converted from one type to the other without loss."""
    return wanted in _WIDER.get(held, ("jsonb",))


def _column(field: FieldDefinition, held: dict[str, str]) -> SqlColumn:
    name, sql = column_name(field.first_name), _sql_type(field)
    there = held.get(name)
    if there is not None and widens(sql, there):
        sql = there
    return SqlColumn(field.first_name, name, sql, _text_of(field, sql), field.doc)


def _sql_type(field: FieldDefinition) -> str:
    if field.reducer in ("sum", "count"):
        return "numeric" if field.reducer == "sum" else "bigint"
    value = value_of(field.node)
    logical = value.get("logicalType")
    if logical == JSON:
        return "jsonb"
    if _has_options(field):
        return "text" if value["type"] in ("string", "enum") else "jsonb"
    return _LOGICAL.get(str(logical)) or _PLAIN.get(value["type"], "jsonb")


def _has_options(field: FieldDefinition) -> bool:
    return allows(field.node, "refold.Blob") or allows(field.node, "refold.Sealed")


def _text_of(field: FieldDefinition, sql: str) -> Text:
    """The conversion of a field's canonical values to COPY's text format."""
    if field.reducer in ("sum", "count"):
        return json_text  # a number is the same text in every column that can hold it
    if sql == "jsonb":
        show = formatter(field.node)
        return lambda value: json_text(show(value))
    if _has_options(field):
        show = formatter(field.node)
        return lambda value: _text_or_json(show(value))
    node = value_of(field.node)
    logical = node.get("logicalType")
    if logical == "decimal":
        return _decimal_text
    if logical in _TIMES:
        return _TIMES[logical]
    return _TEXTS.get(node["type"], json_text)


def escaped(text: str) -> str:
    """A text in COPY's text."""
    return text.translate(_ESCAPED) if not text.isprintable() or "\\" in text else text


def json_text(value: Any) -> str:
    """A JSON value in COPY's text, for jsonb."""
    if type(value) is str and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if type(value) is int:
        return str(value)
    text = _encode_json(value).decode()
    if "\\" in text:
        if "\\u0000" in text:
            text = _encode_json(_without_nul(value)).decode()
        return text.replace("\\", "\\\\")
    return text


def _text_or_json(shown: Any) -> str:
    """A text in COPY's text format; of a Blob or Sealed its JSON, formatted as PostgreSQL formats jsonb."""
    return escaped(shown if isinstance(shown, str) else json.dumps(_without_nul(shown), ensure_ascii=False))


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\u2400")
    if isinstance(value, dict):
        return {key.replace("\0", "\u2400"): _without_nul(each) for key, each in value.items()}
    return [_without_nul(each) for each in value] if isinstance(value, list) else value


def time_text(micros: int) -> str:
    """Microseconds since 1970 as timestamptz."""
    seconds, rest = divmod(micros, 1_000_000)
    return f"{_second_text(seconds)}.{rest:06d}+00:00" if rest else f"{_second_text(seconds)}+00:00"


@lru_cache(maxsize=8192)  # what is recorded together has one second
def _second_text(seconds: int) -> str:
    return str(_EPOCH + dt.timedelta(seconds=seconds)).removesuffix("+00:00")


def _decimal_text(value: Any) -> str:
    unscaled, scale = value["unscaled"], value["scale"]
    digits = f"{abs(unscaled):0{scale + 1}d}"
    whole = f"{digits[:-scale]}.{digits[-scale:]}" if scale > 0 else digits + "0" * -scale
    return f"-{whole}" if unscaled < 0 else whole


def _boolean_text(value: bool) -> str:
    return "t" if value else "f"


def _bytes_text(value: bytes) -> str:
    return rf"\\x{value.hex()}"


def _local_text(unit: int) -> Text:
    return lambda value: f"{_MIDNIGHT + dt.timedelta(microseconds=value * unit)}"


def _clock_text(unit: int) -> Text:
    return lambda value: f"{(_MIDNIGHT + dt.timedelta(microseconds=value * unit)).time()}"


_TEXTS: dict[str, Text] = {
    "boolean": _boolean_text, "bytes": _bytes_text, "fixed": _bytes_text, "string": escaped, "enum": escaped,
}  # fmt: skip
_TIMES: dict[str, Text] = {
    "date": lambda value: f"{dt.date(1970, 1, 1) + dt.timedelta(days=value)}",
    "time-millis": _clock_text(1000),
    "time-micros": _clock_text(1),
    "timestamp-millis": lambda value: time_text(value * 1000),
    "timestamp-micros": time_text,
    "local-timestamp-millis": _local_text(1000),
    "local-timestamp-micros": _local_text(1),
}


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
