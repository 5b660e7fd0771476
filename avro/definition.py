"""A type's definition: one annotated Avro record, checked, with a reducer on each field.

The annotations (`refold.reducer`, `refold.limit`, `refold.inline`, `refold.name`, `refold.function`, and
`refold.closed_by` on the record) are described in docs/TYPES.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.avro.canonical import encode, json_tree
from refold.avro.errors import SchemaError
from refold.avro.nodes import Node, allows, branches, emit, expand, value_of, walk

NAMESPACE = "refold.types"
INLINE_DEFAULT = 256 * 1024
REDUCERS = ("latest", "first", "min", "max", "sum", "count", "union", "append", "map", "custom")
ARITHMETIC = frozenset({"min", "max", "sum"})
COLLECTIONS = {"union": "array", "append": "array", "map": "map"}
NUMBERS = frozenset({"int", "long", "float", "double"})
FIELD_ATTRIBUTES = frozenset(
    {"refold.reducer", "refold.limit", "refold.inline", "refold.name", "refold.function", "refold.code"}
)
COUNT_END = 2**63
CODE_PARTS = {"name", "version", "source"}
RECORD_ATTRIBUTES = frozenset({"refold.closed_by"})
RESERVED = frozenset({"links"})

CodeOf = Callable[[str], Mapping[str, object]]
"""Maps "module:function" to {name, version, source}, the identity of a custom reducer's code."""


@dataclass(frozen=True, slots=True)
class FieldDefinition:
    """One field: its type as the author wrote it, and its reducer."""

    name: str
    first_name: str
    reducer: str
    node: Node
    inline_bytes: int = INLINE_DEFAULT
    limit: int = 0
    code: Mapping[str, object] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    doc: str = ""

    @property
    def element(self) -> Node:
        """The type of a mutation's value: a collection's element, else the whole value."""
        collection = COLLECTIONS.get(self.reducer)
        if collection is None:
            return self.node
        inner: Node = value_of(self.node)["items" if collection == "array" else "values"]
        return inner


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """An entity type. `fingerprint` (32 bytes) covers everything that can change the result of a fold.

    Attributes:
        has_code: Whether a field has a custom reducer.
    """

    name: str
    fields: Mapping[str, FieldDefinition]
    fingerprint: bytes
    document: Mapping[str, Any]
    closed_by: str = ""
    doc: str = ""
    has_code: bool = False

    @property
    def by_first_name(self) -> dict[str, FieldDefinition]:
        """The fields by the name that ids, states and exports use."""
        return {each.first_name: each for each in self.fields.values()}


def parse(document: object, code_of: CodeOf | None = None, place: str = "definition") -> TypeDefinition:
    """Parse an annotated Avro schema.

    Args:
        document: The schema, as parsed JSON.
        code_of: Identifies custom reducers; a stored definition already has the identity, as `refold.code`.
        place: Its place, for errors.

    Raises:
        SchemaError: It is no definition; the message names field and rule.
    """
    if not isinstance(document, Mapping) or document.get("type") != "record":
        raise SchemaError(f"{place}: an entity type is an Avro record")
    unknown = {key for key in document if str(key).startswith("refold.")} - RECORD_ATTRIBUTES
    if unknown:
        raise SchemaError(
            f"{place}: unknown attribute {sorted(unknown)[0]}; a record takes {_names(RECORD_ATTRIBUTES)}"
        )
    node = expand(document, str(document.get("namespace", NAMESPACE)), place)
    assert isinstance(node, dict)
    name = node["name"].rpartition(".")[2]
    fields: dict[str, FieldDefinition] = {}
    for each in node["fields"]:
        if code_of is not None and isinstance(each.get("refold.function"), str):
            each["refold.code"] = dict(code_of(each["refold.function"]))
        definition = _field(each, f"{name}.{each['name']}")
        fields[definition.name] = definition
    closed_by = str(document.get("refold.closed_by", ""))
    if closed_by and closed_by not in fields:
        raise SchemaError(f"{name}: refold.closed_by names {closed_by!r}, which is not one of its fields")
    whole = emit(node)
    if closed_by:
        whole["refold.closed_by"] = closed_by
    doc = str(document.get("doc", ""))
    has_code = any(each.code for each in fields.values())
    return TypeDefinition(name, fields, fingerprint_of(whole), {**whole, "doc": doc}, closed_by, doc, has_code)


def fingerprint_of(document: Mapping[str, Any]) -> bytes:
    """SHA-256 of the canonical CBOR of a whole definition without its `doc` texts: 32 bytes."""
    return hashlib.sha256(encode(json_tree(_without_docs(document)))).digest()


def document_text(definition: TypeDefinition) -> str:
    """The definition as stored in `.schemas`: one JSON object."""
    return json.dumps(definition.document, ensure_ascii=False, sort_keys=True)


def _without_docs(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _without_docs(value) for key, value in tree.items() if key != "doc"}
    return [_without_docs(item) for item in tree] if isinstance(tree, list) else tree


def _field(each: Mapping[str, Any], place: str) -> FieldDefinition:
    unknown = {key for key in each if key.startswith("refold.")} - FIELD_ATTRIBUTES
    if unknown:
        raise SchemaError(f"{place}: unknown attribute {sorted(unknown)[0]}; a field takes {_names(FIELD_ATTRIBUTES)}")
    if each["name"] in RESERVED:
        raise SchemaError(f"{place}: the name {each['name']!r} is taken by every entity's own links")
    reducer = each.get("refold.reducer")
    if reducer not in REDUCERS:
        raise SchemaError(f"{place}: refold.reducer must be one of {', '.join(REDUCERS)}; given {reducer!r}")
    node = _elements_not_null(each["type"], reducer)
    _check_type(node, reducer, place)
    return FieldDefinition(
        name=each["name"],
        first_name=each.get("refold.name", each["name"]),
        reducer=reducer,
        node=node,
        inline_bytes=_count(each, "refold.inline", INLINE_DEFAULT, place),
        limit=_limit(each, reducer, place),
        code=_code(each, reducer, place),
        aliases=tuple(each.get("aliases", ())),
        doc=str(each.get("doc", "")),
    )


def _elements_not_null(node: Node, reducer: str) -> Node:
    """An element of union and append is never null, even if its type is written [null, T, Blob]."""
    value = value_of(node)
    if reducer not in ("union", "append") or value["type"] != "array" or not allows(value["items"], "null"):
        return node
    items = [each for each in branches(value["items"]) if each["type"] != "null"]
    bare = {"type": "array", "items": items if len(items) > 1 else items[0]}
    return [bare if each is value else each for each in node] if isinstance(node, list) else bare


def _check_type(node: Node, reducer: str, place: str) -> None:
    value = value_of(node)
    collection = COLLECTIONS.get(reducer)
    if collection and value["type"] != collection:
        article = "an" if collection == "array" else "a"
        raise SchemaError(f"{place}: the reducer {reducer} folds {article} {collection}; given {value['type']}")
    if collection and (allows(node, "refold.Blob") or allows(node, "refold.Sealed")):
        raise SchemaError(f"{place}: in a collection, refold.Blob and refold.Sealed belong in the element's type")
    if reducer in ARITHMETIC:
        ordered = NUMBERS if reducer == "sum" else NUMBERS | {"string"}
        given = value.get("logicalType", value["type"])
        if value["type"] not in ordered or given == "refold-json" or (reducer == "sum" and given != value["type"]):
            raise SchemaError(f"{place}: {reducer} needs one of {_names(ordered)}; given {given}")
        if allows(node, "refold.Blob") or allows(node, "refold.Sealed"):
            raise SchemaError(f"{place}: {reducer} cannot read values in refold.Blob or refold.Sealed")
    for inner in walk(node):
        if inner["type"] == "record":
            bad = [
                key for each in inner["fields"] for key in each if key.startswith("refold.") and key != "refold.name"
            ]
            if bad:
                raise SchemaError(
                    f"{place}: {bad[0]} belongs on the fields of the entity type, not inside {inner['name']}"
                )


def _limit(each: Mapping[str, Any], reducer: str, place: str) -> int:
    if reducer != "append":
        if "refold.limit" in each:
            raise SchemaError(f"{place}: refold.limit is for the reducer append, not for {reducer}")
        return 0
    limit = _count(each, "refold.limit", 0, place)
    if limit < 1:
        raise SchemaError(f"{place}: append keeps the last n; give n as refold.limit, at least 1")
    return limit


def _count(each: Mapping[str, Any], key: str, default: int, place: str) -> int:
    value = each.get(key, default)
    if type(value) is not int or not 0 <= value < COUNT_END:
        raise SchemaError(f"{place}: {key} must be a whole number, not negative, below 2^63; given {value!r:.40}")
    return value


def _code(each: Mapping[str, Any], reducer: str, place: str) -> Mapping[str, object]:
    """The identity of a custom reducer's code, made of plain values, because it must survive JSON unchanged."""
    for key in ("refold.function", "refold.code"):
        if reducer != "custom" and key in each:
            raise SchemaError(f"{place}: {key} is for the reducer custom, not for {reducer}")
    if reducer != "custom":
        return {}
    code: object = each.get("refold.code")
    if not isinstance(code, Mapping) or code.keys() != CODE_PARTS:
        raise SchemaError(f"{place}: a custom reducer needs refold.function, as 'module:function', that is registered")
    if type(code["version"]) not in (int, str) or not isinstance(code["name"], str):
        raise SchemaError(f"{place}: refold_version of {code['name']} is a number or a text; given {code['version']!r}")
    return code


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
