"""The layouts of a type's fields, for the kernel (avro/kernel.py)."""

from __future__ import annotations

from typing import Any

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.derive import state_type
from refold.avro.kernel import FieldLayout, NodeLayout
from refold.avro.logical import span_of
from refold.avro.nodes import JSON, Node, id_of, nullable
from refold.avro.values import RANGES, first_name

_OPTIONS: dict[str, NodeLayout] = {"refold.Blob": ("blob",), "refold.Sealed": ("sealed",)}
_TEXTS = {JSON: "json", "uuid": "checked text"}


def field_layouts(definition: TypeDefinition) -> list[FieldLayout]:
    """The layout of each field, in the order of the definition."""
    return [_field(each) for each in definition.fields.values()]


def _field(field: FieldDefinition) -> FieldLayout:
    element = state_type(field) if field.reducer in ("sum", "count") else field.element
    nodes = _node(nullable(field.node)), _node(nullable(element))
    return (field.first_name, field.reducer, field.limit, field.inline_bytes, *nodes)


def _node(node: Node) -> NodeLayout:
    if not isinstance(node, list):
        return _kind(node)
    return ("union", [_OPTIONS.get(id_of(each)) or _kind(each) for each in node])


def _kind(node: dict[str, Any]) -> NodeLayout:
    kind, logical = node["type"], node.get("logicalType")
    if kind in RANGES:
        return ("integer", *(RANGES[kind] if logical is None else span_of(logical)))
    if logical == "decimal":
        return ("decimal", node["precision"], node["scale"])
    if kind == "string":
        return (_TEXTS.get(logical or "", "text"),)
    if kind == "fixed":
        return ("fixed", node["size"])
    if kind == "enum":
        return ("enum", list(node["symbols"]))
    if kind == "array":
        return ("array", _node(node["items"]))
    if kind == "map":
        return ("map", _node(node["values"]))
    if kind == "record":
        return ("record", [(first_name(each), _node(each["type"])) for each in node["fields"]])
    return (kind,)  # null, boolean, float, double, bytes
