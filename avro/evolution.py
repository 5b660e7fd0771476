"""The rules for a new version of a type: it may change anything that keeps every old observation readable under its id.

Fields are matched by first name, and compared with every earlier version, not only the last: a removed field that comes
back must still read its old values.

A type without custom code can never get custom code. Otherwise a user with the right to register types could change a
type that every process folds into one that only processes with the code can fold
(docs/decisions/020-registered-reducers.md). For the same reason no type with a shipped name names custom code: refold's
own types are folded by every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.errors import SchemaError
from refold.avro.nodes import Node, allows, nullable, value_of
from refold.avro.values import first_name

PROMOTIONS = {("int", "long"), ("float", "double")}
RECODED = {("string", "bytes"), ("bytes", "string")}
SHIPPED_NAMES = frozenset({
    "action", "agent_session", "audit_event", "document", "effect", "entity_graph", "evaluation",
    "pipeline", "run", "runbook", "step", "tool_config",
})  # fmt: skip
"""Shipped types that never name custom code: docs/FORMAT.md lists them. Those of adapters are not among them."""
LOSSY = {("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")}


def check_evolution(earlier: Iterable[TypeDefinition], new: TypeDefinition) -> None:
    """Raise SchemaError, naming the field and the reason, unless `new` can read all that was written before."""
    versions = list(earlier)
    if new.has_code and new.name in SHIPPED_NAMES:
        raise SchemaError(
            f"{new.name}: refold ships a type of this name, and no version of it may name custom code; give the type "
            "with that code another name"
        )
    if new.has_code and versions and not versions[-1].has_code:
        raise SchemaError(
            f"{new.name}: this version cannot follow an earlier one: it names custom code, and the version before it "
            "names none; give the type with that code another name"
        )
    for old in versions:
        for reason in _type_reasons(old, new):
            raise SchemaError(f"{new.name}: this version cannot follow an earlier one: {reason}")


def _type_reasons(old: TypeDefinition, new: TypeDefinition) -> Iterator[str]:
    fields = new.by_first_name
    for before in old.fields.values():
        after = fields.get(before.first_name)
        renamed = new.fields.get(before.name)
        if after is None and renamed is not None:
            yield (f"{before.name}: its first name is {before.first_name!r} and stays so in every id; "
                   f"set refold.name to it")  # fmt: skip
        if after is not None:
            yield from _field_reasons(before, after)


def _field_reasons(old: FieldDefinition, new: FieldDefinition) -> Iterator[str]:
    if old.name not in (new.name, *new.aliases):
        yield f"{new.name}: it was called {old.name}; list that in aliases, for Avro's readers go by it"
    yield from _node_reasons(nullable(old.node), nullable(new.node), new.name)  # a patch may leave out any field
    same_version = old.code.get("name") == new.code.get("name") and old.code.get("version") == new.code.get("version")
    if old.reducer == new.reducer == "custom" and same_version and old.code != new.code:
        yield f"{new.name}: the code of {new.code.get('name')} changed under the same version; raise its version"


def _node_reasons(old: Node, new: Node, path: str) -> Iterator[str]:
    if allows(old, "null") and not allows(new, "null"):
        yield f"{path}: null was allowed before, and old observations may hold it"
    for option in ("refold.Blob", "refold.Sealed"):
        if allows(old, option) != allows(new, option):
            yield f"{path}: {option} belongs to a type from its first version or never; ids cover the stored form"
    yield from _value_reasons(value_of(old), value_of(new), path)


def _value_reasons(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[str]:
    before, after = old["type"], new["type"]
    if (before, after) in LOSSY:
        yield f"{path}: {before} to {after} loses digits, so an old id could not be computed again; add a new field"
        return
    if (before, after) in RECODED:
        yield f"{path}: ids hash {before} and {after} differently, so an old id would be lost; add a new field"
        return
    if before != after and (before, after) not in PROMOTIONS:
        yield f"{path}: Avro reads no {before} as {after}; add a new field"
        return
    if old.get("logicalType") != new.get("logicalType"):
        was, would_be = (each.get("logicalType", "no logical type") for each in (old, new))
        yield f"{path}: {was} would become {would_be}, and old values keep the first's rules; add a new field"
    if before in ("record", "enum", "fixed") and old["name"] != new["name"] and old["name"] not in _aliases(new):
        yield f"{path}: the {before} {old['name']} was renamed without an alias"
    if old.get("logicalType") == "decimal" and (old["precision"], old["scale"]) != (new["precision"], new["scale"]):
        yield f"{path}: Avro reads a decimal only at its own precision and scale"
    if before == "enum" and set(old["symbols"]) - set(new["symbols"]):
        yield f"{path}: the symbol {sorted(set(old['symbols']) - set(new['symbols']))[0]} is gone"
    if before == "fixed" and old["size"] != new["size"]:
        yield f"{path}: a fixed keeps its size"
    if before == "array":
        yield from _node_reasons(old["items"], new["items"], f"{path}[]")
    if before == "map":
        yield from _node_reasons(old["values"], new["values"], f"{path}{{}}")
    if before == "record":
        yield from _record_reasons(old, new, path)


def _aliases(node: dict[str, Any]) -> list[str]:
    namespace = node["name"].rpartition(".")[0]
    return [alias if "." in alias else f"{namespace}.{alias}" for alias in node.get("aliases", [])]


def _record_reasons(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[str]:
    before = {first_name(field): field for field in old["fields"]}
    after = {first_name(field): field for field in new["fields"]}
    for name, field in after.items():
        if name in before:
            was = before[name]["name"]
            if was not in (field["name"], *field.get("aliases", ())):
                yield f"{path}.{field['name']}: it was called {was}; list that in aliases, for Avro's readers go by it"
            yield from _node_reasons(before[name]["type"], field["type"], f"{path}.{name}")
        elif not allows(field["type"], "null"):
            yield f"{path}.{name}: a new field must allow null, for old values lack it"
