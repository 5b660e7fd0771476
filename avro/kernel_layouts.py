"""How a type's fields lie, as the kernel is told (avro/kernel.py)."""

from __future__ import annotations

from typing import Any

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.kernel import FieldLayout
from refold.avro.logical import span_of
from refold.avro.nodes import JSON, OPTIONS, id_of, nullable
from refold.avro.values import RANGES


def field_layouts(definition: TypeDefinition) -> list[FieldLayout]:
    """The layout of each field, in the order of the definition."""
    return [(each.first_name, each.reducer, _branch(each)) for each in definition.fields.values()]


def _branch(field: FieldDefinition) -> tuple[int, str, int, int, list[str]] | None:
    # Blob and Sealed, which may be in a field instead of its own values, are other branches.
    choices = nullable(field.node)
    index, node = next((index, each) for index, each in enumerate(choices) if id_of(each) not in OPTIONS)
    kind, (low, end), symbols = _kind(node)
    return (index << 1, kind, low, end, symbols) if kind else None


def _kind(node: dict[str, Any]) -> tuple[str, tuple[int, int], list[str]]:
    """A kind as the kernel names it, or an empty text; an integer's range; an enum's symbols."""
    kind, logical = node["type"], node.get("logicalType")
    if kind in RANGES:
        return "integer", RANGES[kind] if logical is None else span_of(logical), []
    if kind == "string" and logical in (None, JSON, "uuid"):
        return "text" if logical is None else "checked text", (0, 0), []
    if kind == "enum":
        return "enum", (0, 0), list(node["symbols"])
    return (kind if kind in ("boolean", "float", "double") and logical is None else ""), (0, 0), []
