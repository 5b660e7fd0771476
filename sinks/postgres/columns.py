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
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.jsonform import formatter
from refold.avro.nodes import JSON, allows, value_of

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

    doc: what the type's file says of the field.
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
