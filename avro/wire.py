"""Canonical values to and from what the Avro codec takes and gives.

Each side is a function per node, or None where the two forms are the same, so plain fields cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from refold.avro.canonical import number
from refold.avro.logical import decimal_bytes, decimal_tree
from refold.avro.nodes import Node, branches, id_of
from refold.avro.values import first_name

Adapt: TypeAlias = Callable[[Any], Any] | None


def to_wire(node: Node) -> Adapt:
    """From canonical to datum: decimals become bytes, a union's records are named."""
    choices = branches(node)
    if len(choices) == 1:
        return _plain(choices[0], to_wire, decimal_bytes, rename_from="first")
    return _union_to_wire(choices)


def from_wire(node: Node) -> Adapt:
    """From datum to canonical: numbers under the number rules, nulls of records left out."""
    choices = branches(node)
    if len(choices) == 1:
        return _plain(choices[0], from_wire, decimal_tree, rename_from="name")
    value = [choice for choice in choices if choice["type"] != "null"]
    adapts = {id_of(choice): from_wire(choice) for choice in value}
    if all(adapt is None for adapt in adapts.values()):
        return None
    if len(value) == 1:
        return _or_null(adapts[id_of(value[0])])
    keys = {frozenset(field["name"] for field in choice["fields"]): adapts[id_of(choice)]
            for choice in value if choice["type"] == "record"}  # fmt: skip
    plain = next((adapts[id_of(choice)] for choice in value if choice["type"] != "record"), None)

    def adapt(datum: Any) -> Any:
        chosen = keys.get(frozenset(datum), plain) if isinstance(datum, dict) else plain
        return datum if datum is None or chosen is None else chosen(datum)

    return adapt


def _or_null(adapt: Adapt) -> Adapt:
    if adapt is None:
        return None
    inner = adapt
    return lambda datum: None if datum is None else inner(datum)


def _union_to_wire(choices: list[dict[str, Any]]) -> Adapt:
    value = [choice for choice in choices if choice["type"] != "null"]
    records = [choice for choice in value if choice["type"] == "record"]
    if len(value) == 1 or not records:
        return _or_null(to_wire(value[0]))
    by_keys = {frozenset(first_name(field) for field in record["fields"]): record["name"] for record in records
               if record["name"] in ("refold.Blob", "refold.Sealed")}  # fmt: skip
    plain = next(choice for choice in value if choice.get("name") not in ("refold.Blob", "refold.Sealed"))
    inner = to_wire(plain)
    named = plain["type"] == "record"

    def adapt(datum: Any) -> Any:
        if datum is None:
            return None
        if isinstance(datum, dict):
            name = by_keys.get(frozenset(datum))
            if name is not None:
                return (name, datum)
        datum = datum if inner is None else inner(datum)
        return (plain["name"], datum) if named else datum

    return adapt


def _plain(node: dict[str, Any], side: Callable[[Node], Adapt], decimal: Callable[..., Any], rename_from: str) -> Adapt:
    kind = node["type"]
    if node.get("logicalType") == "decimal":
        scale = node["scale"]
        return lambda datum: decimal(datum, scale)
    if kind in ("float", "double"):
        return number if rename_from == "name" else None
    if kind == "array":
        item = side(node["items"])
        return None if item is None else lambda datum: [item(each) for each in datum]
    if kind == "map":
        value = side(node["values"])
        return None if value is None else lambda datum: {key: value(each) for key, each in datum.items()}
    if kind == "record":
        return _record(node, side, rename_from)
    return None


def _record(node: dict[str, Any], side: Callable[[Node], Adapt], rename_from: str) -> Adapt:
    names = [(field["name"], first_name(field), side(field["type"])) for field in node["fields"]]
    steps = [(name, first, adapt) if rename_from == "name" else (first, name, adapt) for name, first, adapt in names]

    def adapt(datum: Any) -> Any:
        tree = {}
        for source, target, inner in steps:
            value = datum.get(source)
            if value is not None:
                tree[target] = value if inner is None else inner(value)
        return tree

    return adapt
