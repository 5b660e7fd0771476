"""The Parquet table of a type: columns, their Arrow types, and the conversion of canonical values to arrays.

A column has its field's name. Names that begin with `_` are reserved for refold: such a field's column drops the `_`
and gets eight digits of the name's SHA-256 appended.

    _entity       string        TYPE/ID
    _version      int64
    _state_hash   binary, 32 bytes
    _links        string        JSON: [{relation, target, valid_from?, valid_to?}]; null without any

    int        int32       string, enum, uuid   string           date                   date32
    long       int64       bytes, fixed         binary           time-millis, -micros   time32, time64
    boolean    bool        decimal              decimal128       timestamp-...          timestamp, UTC
    float      float       count                int64            local-timestamp-...    timestamp without zone
    double     double      sum of int, long     decimal128(38)   sum of float, double   double
    array, map, record, refold-json, and other fields that may be a Blob or Sealed: string, the JSON that `refold` shows

A string or enum that may be a Blob or Sealed is the text itself, and of a Blob or Sealed its JSON, `{"$blob": {...}}`.
(Files of format 1 have the text as JSON too, in quotes.)
A field without a value is null.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.jsonform import Format, formatter
from refold.avro.nodes import JSON, Node, allows, value_of

OWN = "_"
OWN_COLUMNS = [
    pa.field("_entity", pa.string(), nullable=False),
    pa.field("_version", pa.int64(), nullable=False),
    pa.field("_state_hash", pa.binary(32), nullable=False),
    pa.field("_links", pa.string()),
]

Array = Callable[[Sequence[Any]], pa.Array]
"""Makes an array of the column's type from canonical values; None is null."""

_encode_json = msgspec.json.Encoder().encode
_PLAIN = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "string": pa.string(), "enum": pa.string(),
    "bytes": pa.binary(), "fixed": pa.binary(),
}  # fmt: skip
_TIMES = {
    "date": pa.date32(), "time-millis": pa.time32("ms"), "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"), "local-timestamp-micros": pa.timestamp("us"),
}  # fmt: skip


class ParquetColumn(NamedTuple):
    """One field's column."""

    field: str
    arrow: pa.Field
    array: Array


def columns_of(definition: TypeDefinition) -> list[ParquetColumn]:
    """A type's columns in the order of its fields."""
    return [_column(each) for each in definition.fields.values()]


def column_name(field: str) -> str:
    """The column of a field, by its first name."""
    if not field.startswith(OWN):
        return field
    digits = hashlib.sha256(field.encode()).hexdigest()[:8]
    return f"{field.lstrip(OWN) or 'field'}_x{digits}"


def json_array(values: Sequence[Any]) -> pa.Array:
    """JSON texts; None stays null."""
    return pa.array([None if each is None else _encode_json(each).decode() for each in values], pa.string())


def _column(field: FieldDefinition) -> ParquetColumn:
    kind, array = _kind(field)
    return ParquetColumn(field.first_name, pa.field(column_name(field.first_name), kind), array)


def _kind(field: FieldDefinition) -> tuple[pa.DataType, Array]:
    if field.reducer == "count":
        return _as_is(pa.int64())
    value = value_of(field.node)
    kind, logical = value["type"], value.get("logicalType")
    if field.reducer == "sum":
        return _doubles(pa.float64()) if kind in ("float", "double") else (pa.decimal128(38, 0), _whole_doubles)
    if allows(field.node, "refold.Blob") or allows(field.node, "refold.Sealed") or logical == JSON:
        return pa.string(), _json_array(field)
    if kind in ("float", "double"):
        return _doubles(pa.float32() if kind == "float" else pa.float64())
    if logical == "decimal":
        return pa.decimal128(value["precision"], value.get("scale", 0)), _decimals(value)
    if logical in _TIMES:
        return _as_is(_TIMES[logical])
    return _as_is(_PLAIN[kind]) if kind in _PLAIN else (pa.string(), _json_array(field))


def _as_is(kind: pa.DataType) -> tuple[pa.DataType, Array]:
    return kind, lambda values: pa.array(values, kind)


def _doubles(kind: pa.DataType) -> tuple[pa.DataType, Array]:
    """In canonical form a whole number is an integer, which may be too large for Arrow to convert to a float."""
    return kind, lambda values: pa.array([None if each is None else float(each) for each in values], kind)


def _whole_doubles(values: Sequence[Any]) -> pa.Array:
    """In canonical form sums beyond 64 bits are whole doubles."""
    return pa.array([None if each is None else Decimal(int(each)) for each in values], pa.decimal128(38, 0))


def _decimals(node: dict[str, Any]) -> Array:
    kind = pa.decimal128(node["precision"], node.get("scale", 0))

    def array(values: Sequence[Any]) -> pa.Array:
        return pa.array(
            [None if each is None else Decimal(each["unscaled"]).scaleb(-each["scale"]) for each in values], kind
        )

    return array


def _json_array(field: FieldDefinition) -> Array:
    show, value = _raw_formatter(field.node), value_of(field.node)
    may_be_text = value["type"] in ("string", "enum") and value.get("logicalType") != JSON

    def text(value: Any) -> str | None:
        if value is None or (may_be_text and type(value) is str):
            return value
        return _encode_json(show(value)).decode()

    return lambda values: pa.array([text(each) for each in values], pa.string())


def _raw_formatter(node: Node) -> Format:
    """Like jsonform.formatter, but values that are JSON texts already are not parsed; the encoder copies them
    unchanged.
    """
    show, value = formatter(node), value_of(node)
    kind, is_plain = value["type"], not allows(node, "refold.Blob") and not allows(node, "refold.Sealed")
    if value.get("logicalType") == JSON:
        return lambda tree: msgspec.Raw(tree.encode()) if _is_bare(tree) else show(tree)
    if kind == "map" and is_plain:
        item = _raw_formatter(value["values"])
        return lambda tree: {key: None if each is None else item(each) for key, each in tree.items()}
    if kind == "array" and is_plain:
        item = _raw_formatter(value["items"])
        return lambda tree: [None if each is None else item(each) for each in tree]
    return show


def _is_bare(tree: Any) -> bool:
    """Whether a value is a JSON text that cannot be confused with a Blob's or Sealed's form."""
    return type(tree) is str and not tree.startswith('{"$')
