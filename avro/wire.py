"""Converts between canonical values and the datums of the Avro codec.

Each direction is a function per node, or None if the two forms are equal, so plain fields cost nothing. Values from the
wire are validated by the rules of avro/values.py, because other producers know only Avro's types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from refold.avro.blob import Blob, option_of
from refold.avro.canonical import check_json_text, number
from refold.avro.errors import ValidationError
from refold.avro.logical import check_uuid_text, decimal_bytes, decimal_reader, span_of
from refold.avro.nodes import JSON, OPTIONS, Node, allows, branches, id_of
from refold.avro.values import RANGES, first_name

Adapt: TypeAlias = Callable[[Any], Any] | None


def to_wire(node: Node) -> Adapt:
    """From canonical to datum: decimals become bytes, a union's records are named."""
    value, has_options = _split(node)
    inner = _plain_to_wire(value)
    if not has_options:
        return inner if isinstance(node, dict) else _or_null(inner)
    name = value["name"] if value["type"] == "record" else None

    def adapt(tree: Any) -> Any:
        if tree is None:
            return None
        option = option_of(tree)
        if option is not None:
            return ("refold.Blob" if isinstance(option, Blob) else "refold.Sealed", tree)
        datum = tree if inner is None else inner(tree)
        return datum if name is None else (name, datum)

    return adapt


def from_wire(node: Node) -> Adapt:
    """From datum to canonical: numbers under the number rules, nulls of records left out.

    The function raises ValidationError for a value that validation at write would have refused, or written in another
    form.
    """
    value, has_options = _split(node)
    inner = _plain_from_wire(value)
    if value.get("logicalType") == JSON and allows(node, "null"):
        inner = _json_but_null
    if not has_options:
        return inner if isinstance(node, dict) else _or_null(inner)

    def adapt(datum: Any) -> Any:
        if datum is None:
            return None
        option = option_of(datum)
        if option is not None:
            return option.tree(id_of(value))
        return datum if inner is None else inner(datum)

    return adapt


def _split(node: Node) -> tuple[dict[str, Any], bool]:
    """A node's one value type, and whether Blob or Sealed are options."""
    choices = branches(node)
    plain = next((choice for choice in choices if id_of(choice) not in OPTIONS), choices[-1])
    return plain, any(
        id_of(choice) in OPTIONS and choice["type"] == "record" for choice in choices if choice is not plain
    )


def _or_null(adapt: Adapt) -> Adapt:
    if adapt is None:
        return None
    inner = adapt
    return lambda datum: None if datum is None else inner(datum)


def _plain_to_wire(node: dict[str, Any]) -> Adapt:
    if node.get("logicalType") == "decimal":
        scale = node["scale"]
        return lambda tree: decimal_bytes(tree, scale)
    return _collection(node, to_wire) or (_record_to_wire(node) if node["type"] == "record" else None)


def _plain_from_wire(node: dict[str, Any]) -> Adapt:
    kind, logical = node["type"], node.get("logicalType")
    if logical == "decimal":
        return decimal_reader(node["precision"], node["scale"])
    if logical == JSON:
        return check_json_text
    if logical == "uuid":
        return check_uuid_text
    if logical is not None:
        return _within(*span_of(logical), logical)
    if kind in ("float", "double"):
        return number
    if kind == "int":
        return _within(*RANGES[kind], kind)
    return _collection(node, from_wire) or (_record_from_wire(node) if kind == "record" else None)


def _json_but_null(given: str) -> str:
    """Refuse a JSON null as text in a nullable field: it must be Avro's null, because the text would be read as
    absent.
    """
    if given == "null":
        raise ValidationError("json", "null itself, not the text of a JSON null", given)
    return check_json_text(given)


def _within(low: int, end: int, rule: str) -> Adapt:
    def check(datum: Any) -> Any:
        if not low <= datum < end:
            raise ValidationError("value", f"{rule} in [{low}, {end - 1}]", datum)
        return datum

    return check


def _collection(node: dict[str, Any], side: Callable[[Node], Adapt]) -> Adapt:
    if node["type"] == "array":
        item = side(node["items"])
        return None if item is None else lambda given: [item(each) for each in given]
    if node["type"] == "map":
        value = side(node["values"])
        return None if value is None else lambda given: {key: value(each) for key, each in given.items()}
    return None


def _record_to_wire(node: dict[str, Any]) -> Adapt:
    return _record([(first_name(field), field["name"], to_wire(field["type"])) for field in node["fields"]])


def _record_from_wire(node: dict[str, Any]) -> Adapt:
    return _record([(field["name"], first_name(field), from_wire(field["type"])) for field in node["fields"]])


def _record(steps: list[tuple[str, str, Adapt]]) -> Adapt:
    def adapt(given: Any) -> Any:
        tree = {}
        for source, target, inner in steps:
            value = given.get(source)
            if value is not None:
                tree[target] = value if inner is None else inner(value)
        return tree

    return adapt
