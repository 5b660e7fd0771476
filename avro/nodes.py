"""Avro schemas as plain trees: named types expanded where they are used, and folded back when emitted.

A node is {"type": primitive | "record" | "enum" | "fixed" | "array" | "map", ...} with full names, or a list of
nodes for a union. Only unions that leave no doubt about a value are allowed: T with null, Blob and Sealed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from refold.avro.errors import SchemaError

Node: TypeAlias = "dict[str, Any] | list[dict[str, Any]]"

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})
JSON = "refold-json"
LOGICAL = {
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "time-millis": "int",
    "time-micros": "long",
    "date": "int",
    "uuid": "string",
    "decimal": "bytes",
    JSON: "string",
}
DECIMAL_PRECISION_MAX = 18
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

ID: dict[str, Any] = {"type": "fixed", "name": "refold.Id", "size": 32}
BLOB: dict[str, Any] = {
    "type": "record",
    "name": "refold.Blob",
    "fields": [
        {"name": "hash", "type": ID},
        {"name": "size", "type": {"type": "long"}},
        {"name": "media_type", "type": {"type": "string"}},
    ],
}
SEALED: dict[str, Any] = {
    "type": "record",
    "name": "refold.Sealed",
    "fields": [
        {"name": "key_id", "type": {"type": "string"}},
        {"name": "ciphertext", "type": {"type": "bytes"}},
    ],
}
BUILT_IN = {"refold.Id": ID, "refold.Blob": BLOB, "refold.Sealed": SEALED}


def expand(schema: object, namespace: str, place: str) -> Node:
    """The node behind an Avro schema; `place` names it in errors."""
    return _Expansion().node(schema, namespace, place)


class _Expansion:
    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = dict(BUILT_IN)
        self._open: list[str] = []

    def node(self, schema: object, namespace: str, place: str) -> Node:
        if isinstance(schema, str):
            return self._by_name(schema, namespace, place)
        if isinstance(schema, Sequence):
            return self._union(schema, namespace, place)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise SchemaError(f"{place}: an Avro type is a name, a union or an object with 'type'; given {schema!r}")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.node(kind, namespace, place)
        if kind in NAMED:
            return self._named(schema, kind, namespace, place)
        if kind == "array":
            return {"type": "array", "items": self.node(schema.get("items"), namespace, f"{place}[]")}
        if kind == "map":
            return {"type": "map", "values": self.node(schema.get("values"), namespace, f"{place}{{}}")}
        node = self._by_name(kind, namespace, place)
        assert isinstance(node, dict)
        return {**node, **self._logical(schema, node, place)}

    def _by_name(self, name: str, namespace: str, place: str) -> Node:
        if name in PRIMITIVES:
            return {"type": name}
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in self._open:
            raise SchemaError(f"{place}: {full} contains itself; a recursive type cannot be folded or hashed")
        if full not in self._known:
            raise SchemaError(f"{place}: unknown type {name!r}; define it at its first use")
        return self._known[full]

    def _logical(self, schema: Mapping[str, Any], node: dict[str, Any], place: str) -> dict[str, Any]:
        logical = schema.get("logicalType")
        if logical is None:
            return {}
        if logical not in LOGICAL:
            raise SchemaError(f"{place}: logicalType {logical!r} is not one of {', '.join(sorted(LOGICAL))}")
        if LOGICAL[logical] != node["type"]:
            raise SchemaError(f"{place}: logicalType {logical} stands on {LOGICAL[logical]}, not on {node['type']}")
        if logical != "decimal":
            return {"logicalType": logical}
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not 0 < precision <= DECIMAL_PRECISION_MAX:
            raise SchemaError(f"{place}: a decimal needs a precision from 1 to {DECIMAL_PRECISION_MAX}")
        if not isinstance(scale, int) or not 0 <= scale <= precision:
            raise SchemaError(f"{place}: a decimal's scale lies between 0 and its precision")
        return {"logicalType": logical, "precision": precision, "scale": scale}

    def _named(self, schema: Mapping[str, Any], kind: str, namespace: str, place: str) -> Node:
        name = schema.get("name")
        if not isinstance(name, str) or not all(NAME.match(part) for part in name.split(".")):
            raise SchemaError(f"{place}: a {kind} needs a name of letters, digits and _; given {name!r}")
        namespace = name.rpartition(".")[0] or str(schema.get("namespace", namespace))
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in BUILT_IN:
            return BUILT_IN[full]
        if full in self._known:
            raise SchemaError(f"{place}: {full} is defined twice; use it by name the second time")
        node: dict[str, Any] = {"type": kind, "name": full}
        if schema.get("aliases"):
            node["aliases"] = list(schema["aliases"])
        if kind == "enum":
            node["symbols"] = _symbols(schema, place)
        elif kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise SchemaError(f"{place}: a fixed needs a size in bytes")
            node["size"] = size
        else:
            self._open.append(full)
            node["fields"] = [self._field(field, namespace, place) for field in schema.get("fields", [])]
            self._open.pop()
            names = [field["name"] for field in node["fields"]]
            if len(set(names)) != len(names):
                raise SchemaError(f"{place}: two fields of {full} share a name")
        self._known[full] = node
        return node

    def _field(self, field: Mapping[str, Any], namespace: str, place: str) -> dict[str, Any]:
        name = field.get("name")
        if not isinstance(name, str) or not NAME.match(name):
            raise SchemaError(f"{place}: a field needs a name of letters, digits and _; given {name!r}")
        inner = f"{place}.{name}"
        if field.get("default") is not None:
            raise SchemaError(f"{inner}: only null may be a default; an absent field is absent, and readers fill in")
        kept = {"name": name, "type": self.node(field.get("type"), namespace, inner)}
        if field.get("aliases"):
            kept["aliases"] = list(field["aliases"])
        kept.update({key: value for key, value in field.items() if key.startswith("refold.") or key == "doc"})
        return kept

    def _union(self, schema: Sequence[Any], namespace: str, place: str) -> Node:
        nodes = [self.node(branch, namespace, place) for branch in schema]
        if any(isinstance(node, list) for node in nodes):
            raise SchemaError(f"{place}: a union may not hold a union")
        flat: list[dict[str, Any]] = [node for node in nodes if isinstance(node, dict)]
        value = [node for node in flat if node["type"] != "null" and node.get("name") not in BUILT_IN]
        if len(value) != 1 or len({id_of(node) for node in flat}) != len(flat):
            raise SchemaError(
                f"{place}: a union is one type with null, refold.Blob and refold.Sealed beside it; "
                "several value types could not be told apart in ids and in JSON"
            )
        return flat


def _symbols(schema: Mapping[str, Any], place: str) -> list[str]:
    symbols = schema.get("symbols")
    if not isinstance(symbols, Sequence) or not symbols or len(set(symbols)) != len(symbols):
        raise SchemaError(f"{place}: an enum needs symbols, each once")
    return list(symbols)


def id_of(node: dict[str, Any]) -> str:
    """What tells a union's branches apart: the full name, or the type."""
    return str(node.get("name", node["type"]))


def branches(node: Node) -> list[dict[str, Any]]:
    """A union's branches; a plain node is a union of one."""
    return node if isinstance(node, list) else [node]


def value_of(node: Node) -> dict[str, Any]:
    """The one branch that is neither null, Blob nor Sealed."""
    found = [branch for branch in branches(node) if branch["type"] != "null" and branch.get("name") not in BUILT_IN]
    return found[0] if found else branches(node)[-1]


def allows(node: Node, option: str) -> bool:
    """Whether the union has the branch `null`, `refold.Blob` or `refold.Sealed`."""
    return any(id_of(branch) == option for branch in branches(node))


def nullable(node: Node) -> list[dict[str, Any]]:
    """The node as a union that begins with null."""
    return [{"type": "null"}, *(branch for branch in branches(node) if branch["type"] != "null")]


def walk(node: Node) -> Iterator[dict[str, Any]]:
    """Every node in the tree, outermost first."""
    for branch in branches(node):
        yield branch
        for inner in _inner(branch):
            yield from walk(inner)


def _inner(node: dict[str, Any]) -> list[Node]:
    if node["type"] == "record":
        return [field["type"] for field in node["fields"]]
    return [node[key] for key in ("items", "values") if key in node]


def emit(node: Node, *, logical: bool = True, docs: bool = True, seen: set[str] | None = None) -> Any:
    """The node as an Avro schema: each named type in full at its first use, by name after it.

    logical=False leaves out logical types, for a codec that should hand over plain numbers and bytes.
    """
    seen = set() if seen is None else seen
    if isinstance(node, list):
        return [emit(branch, logical=logical, docs=docs, seen=seen) for branch in node]
    kind = node["type"]
    if kind in NAMED:
        if node["name"] in seen:
            return node["name"]
        seen.add(node["name"])
    if set(node) == {"type"} or (kind in PRIMITIVES and not logical):
        return kind
    schema: dict[str, Any] = {}
    for key, value in node.items():
        if key == "fields":
            schema[key] = [
                {k: emit(v, logical=logical, docs=docs, seen=seen) if k == "type" else v for k, v in field.items()
                 if docs or k != "doc"}
                for field in value
            ]  # fmt: skip
        elif key in ("items", "values"):
            schema[key] = emit(value, logical=logical, docs=docs, seen=seen)
        elif docs or key != "doc":
            schema[key] = value
    return schema
