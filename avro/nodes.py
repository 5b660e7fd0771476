"""Avro schemas as plain trees: named types expanded where they are used, and folded back when emitted.

A node is {"type": primitive | "record" | "enum" | "fixed" | "array" | "map", ...} with full names, or a list of nodes
for a union. Only unambiguous unions are allowed: T with null, Blob and Sealed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

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
MAX_DEPTH = 20
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
    """Return the node of an Avro schema.

    Args:
        schema: The schema, as parsed JSON.
        namespace: Of names without one.
        place: Its place, for errors.

    Raises:
        SchemaError: It is no Avro schema, or uses what refold does not support.
    """
    return _Expansion().node(schema, namespace, place)


class _Expansion:
    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = dict(BUILT_IN)
        self._open: list[str] = []
        self._depth = 0

    def node(self, schema: object, namespace: str, place: str) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SchemaError(f"{place}: types nested deeper than {MAX_DEPTH} levels")
        found = self._node(schema, namespace, place)
        self._depth -= 1
        return found

    def _node(self, schema: object, namespace: str, place: str) -> Node:
        if isinstance(schema, str):
            return self._by_name(schema, namespace, place)
        if isinstance(schema, Sequence):
            return self._union(schema, namespace, place)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise SchemaError(f"{place}: an Avro type is a name, a union or an object with 'type'; given {schema!r}")
        kind = schema["type"]
        astray = [key for key in schema if str(key).startswith("refold.")]
        if astray and self._open:
            raise SchemaError(f"{place}: {astray[0]} belongs on the field, next to its name, not inside its type")
        if not isinstance(kind, str):
            return self.node(kind, namespace, place)
        if kind in NAMED:
            node: Node = self._named_node(schema, kind, namespace, place)
        elif kind == "array":
            node = {"type": "array", "items": self._inner(schema.get("items"), namespace, f"{place}[]")}
        elif kind == "map":
            node = {"type": "map", "values": self._inner(schema.get("values"), namespace, f"{place}{{}}")}
        else:
            node = self._by_name(kind, namespace, place)
        assert isinstance(node, dict)
        logical = self._logical(schema, node, place)
        return {**node, **logical} if logical else node

    def _inner(self, schema: object, namespace: str, place: str) -> Node:
        """An element's type, which may not be null: nulls take no bytes, so a few bytes could claim endless
        elements.
        """
        node = self.node(schema, namespace, place)
        if isinstance(node, dict) and node["type"] == "null":
            raise SchemaError(f"{place}: null alone holds nothing; give a type, with null next to it if needed")
        return node

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
        if not isinstance(logical, str) or logical not in LOGICAL:
            raise SchemaError(f"{place}: logicalType {logical!r} is not one of {', '.join(sorted(LOGICAL))}")
        if LOGICAL[logical] != node["type"]:
            raise SchemaError(f"{place}: logicalType {logical} belongs on {LOGICAL[logical]}, not on {node['type']}")
        if logical != "decimal":
            return {"logicalType": logical}
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or not 0 < precision <= DECIMAL_PRECISION_MAX:
            raise SchemaError(f"{place}: a decimal needs a precision from 1 to {DECIMAL_PRECISION_MAX}")
        if type(scale) is not int or not 0 <= scale <= precision:
            raise SchemaError(f"{place}: a decimal's scale lies between 0 and its precision")
        return {"logicalType": logical, "precision": precision, "scale": scale}

    def _named_node(self, schema: Mapping[str, Any], kind: str, namespace: str, place: str) -> Node:
        name = schema.get("name")
        if not _is_name(name):
            raise SchemaError(f"{place}: a {kind} needs a name of letters, digits and _; given {name!r}")
        namespace = name.rpartition(".")[0] or str(schema.get("namespace") or namespace)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if not _is_name(full):
            raise SchemaError(f"{place}: a namespace is of letters, digits, _ and dots; given {namespace!r}")
        if full in BUILT_IN:
            return self._built_in(full, schema, place)
        if namespace.partition(".")[0] == "refold" and namespace.split(".")[:2] != ["refold", "types"]:
            raise SchemaError(f"{place}: {full} is in refold's own namespace; use refold.types or one of yours")
        if full in self._known:
            raise SchemaError(f"{place}: {full} is defined twice; use it by name the second time")
        node: dict[str, Any] = {"type": kind, "name": full, **_aliases_of(schema, place)}
        if kind == "enum":
            node["symbols"] = _symbols(schema, place)
        elif kind == "fixed":
            size = schema.get("size")
            if type(size) is not int or size < 1:
                raise SchemaError(f"{place}: a fixed needs a size in bytes")
            node["size"] = size
        else:
            fields = schema.get("fields")
            if not isinstance(fields, list) or not fields:
                raise SchemaError(f"{place}: the record {full} needs fields, at least one")
            self._open.append(full)
            node["fields"] = [self._field(field, namespace, place) for field in fields]
            self._open.pop()
            _check_names(node["fields"], full, place)
            for option in (BLOB, SEALED) if self._open else ():
                if _could_be(node["fields"], option):
                    raise SchemaError(f"{place}: a value of {full} would look like {option['name']}; use that")
        self._known[full] = node
        return node

    def _built_in(self, full: str, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        """A stored document repeats refold's own types; they must equal these."""
        node = BUILT_IN[full]
        fields = schema.get("fields", [])
        named = [each.get("name") if isinstance(each, Mapping) else each for each in fields]
        if named != [each["name"] for each in node.get("fields", [])]:
            raise SchemaError(f"{place}: {full} is refold's own type; use it by name")
        return node

    def _field(self, field: object, namespace: str, place: str) -> dict[str, Any]:
        if not isinstance(field, Mapping):
            raise SchemaError(f"{place}: a field is an object with a name and a type; given {field!r}")
        name = field.get("name")
        if not isinstance(name, str) or not NAME.match(name):
            raise SchemaError(f"{place}: a field needs a name of letters, digits and _; given {name!r}")
        inner = f"{place}.{name}"
        if field.get("default") is not None:
            raise SchemaError(f"{inner}: only null may be a default; an absent field is absent, and readers fill it in")
        if "type" not in field:
            raise SchemaError(f"{inner}: a field needs a type")
        if "logicalType" in field:
            raise SchemaError(f"{inner}: logicalType belongs inside the type, as {{'type': ..., 'logicalType': ...}}")
        node = self._inner(field["type"], namespace, inner)
        kept: dict[str, Any] = {"name": name, "type": node, **_aliases_of(field, inner)}
        if allows(node, "null"):
            kept["default"] = None  # without it an Avro reader of a later version could not read older records
        kept.update({key: value for key, value in field.items() if key.startswith("refold.") or key == "doc"})
        return kept

    def _union(self, schema: Sequence[Any], namespace: str, place: str) -> Node:
        nodes = [self.node(branch, namespace, place) for branch in schema]
        if any(isinstance(node, list) for node in nodes):
            raise SchemaError(f"{place}: a union may not hold a union")
        flat: list[dict[str, Any]] = [node for node in nodes if isinstance(node, dict)]
        value = [node for node in flat if id_of(node) not in OPTIONS]
        if len(value) != 1 or len({id_of(node) for node in flat}) != len(flat):
            raise SchemaError(
                f"{place}: a union is one type, with null, refold.Blob and refold.Sealed as options; "
                "several value types would look alike in ids and in JSON"
            )
        return sorted(flat, key=lambda node: OPTIONS.get(id_of(node), 1))


OPTIONS = {"null": 0, "refold.Blob": 2, "refold.Sealed": 3}
"""The options of a union next to its value type, and their order: null first, as Avro's default null requires."""


def _could_be(fields: Sequence[Mapping[str, Any]], option: dict[str, Any]) -> bool:
    """Whether a record's values could be confused with a Blob or Sealed: they may have exactly its fields, after absent
    ones are left out, and bytes in the same fields. Such records are refused, so a value is unambiguous, in ids and on
    the wire.
    """
    names = {field["name"] for field in option["fields"]}
    raw = "hash" if option is BLOB else "ciphertext"
    for called in ("refold.name", "name"):
        types = {field.get(called, field["name"]): field["type"] for field in fields}
        always = {name for name, node in types.items() if not allows(node, "null")}
        if always <= names <= types.keys() and value_of(types[raw])["type"] in ("bytes", "fixed"):
            return True
    return False


def names_of(field: Mapping[str, Any]) -> set[str]:
    """Every name of a field: its present name, its first name and its aliases."""
    return {field["name"], field.get("refold.name", field["name"]), *field.get("aliases", ())}


def _check_names(fields: Sequence[Mapping[str, Any]], full: str, place: str) -> None:
    """Refuse a name that two fields share: neither ids nor Avro's readers could distinguish the fields."""
    taken: dict[str, str] = {}
    for field in fields:
        first = field.get("refold.name", field["name"])
        if not isinstance(first, str) or not NAME.match(first):
            raise SchemaError(f"{place}.{field['name']}: refold.name is the field's first name; given {first!r}")
        if first != field["name"] and first not in field.get("aliases", ()):
            raise SchemaError(
                f"{place}.{field['name']}: a renamed field lists its first name {first!r} in aliases, as Avro asks"
            )
        for name in names_of(field):
            other = taken.setdefault(name, field["name"])
            if other != field["name"]:
                raise SchemaError(
                    f"{place}: in {full}, {name!r} is a name, first name or alias of both {other} and {field['name']}"
                )
        if [each["name"] for each in fields].count(field["name"]) > 1:
            raise SchemaError(f"{place}: two fields of {full} share the name {field['name']}")


def _aliases_of(schema: Mapping[str, Any], place: str) -> dict[str, list[str]]:
    aliases = schema.get("aliases")
    if not aliases:
        return {}
    if not isinstance(aliases, list) or not all(_is_name(alias) for alias in aliases):
        raise SchemaError(f"{place}: aliases is a list of names; given {aliases!r}")
    return {"aliases": list(aliases)}


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and all(NAME.match(part) for part in name.split("."))


def _symbols(schema: Mapping[str, Any], place: str) -> list[str]:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not symbols:
        raise SchemaError(f"{place}: an enum needs symbols, at least one")
    for symbol in symbols:
        if not isinstance(symbol, str) or not NAME.match(symbol) or symbols.count(symbol) > 1:
            raise SchemaError(
                f"{place}: an enum's symbols are names of letters, digits and _, each once; given {symbol!r}"
            )
    return list(symbols)


def id_of(node: dict[str, Any]) -> str:
    """The name that distinguishes a union's branches: the full name, or the type."""
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
    """Return the node as an Avro schema: each named type in full at its first use, by name after it.

    Args:
        node: The node.
        logical: False leaves out logical types, for a codec that should hand over plain numbers and bytes.
        docs: False leaves out docs.
        seen: The names that were given in full already; extended in place.
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
