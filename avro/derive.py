"""The three schemas of a type, derived from its one file: observation, state and change.

refold.observation.<type>   the envelope and a patch: each field nullable, null meaning absent
refold.state.<type>         the folded fields, the observation that set each, and the links
refold.change.<type>        what each observation changed, field by field, old and new, between two versions
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.nodes import ID, Node, emit, nullable, value_of
from refold.avro.observation import KINDS

NULL = {"type": "null"}
TEXT = {"type": "string"}
LONG = {"type": "long"}
DOUBLE = {"type": "double"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
IDS: Node = {"type": "array", "items": ID}


def record(full_name: str, /, **fields: Node) -> dict[str, Any]:
    """Return a record node; a field whose union begins with null gets the default null."""
    return {"type": "record", "name": full_name, "fields": [_member(key, node) for key, node in fields.items()]}


def _member(name: str, node: Node, **attributes: Any) -> dict[str, Any]:
    member = {"name": name, "type": node, **attributes}
    if isinstance(node, list) and node[0]["type"] == "null":
        member["default"] = None
    return member


SOURCE = record("refold.Source", agent=TEXT, run=TEXT, step=TEXT, tool=TEXT, seq=LONG)
LINK = record("refold.Link", relation=TEXT, target=TEXT, valid_from=nullable(MICROS), valid_to=nullable(MICROS))


def observation_fields(patch: Node) -> dict[str, Node]:
    """The Avro fields of an observation in their order, with the type of its patch."""
    return {
        "entity": TEXT,
        "kind": {"type": "enum", "name": "refold.Kind", "symbols": list(KINDS)},
        "observed_at": MICROS,
        "priority": {"type": "int"},
        "source": SOURCE,
        "causes": IDS,
        "patch": patch,
        "cleared": {"type": "array", "items": TEXT},
        "retracts": IDS,
        "link": nullable(LINK),
        "subject": TEXT,
    }


def observation_node(definition: TypeDefinition) -> dict[str, Any]:
    """The wire envelope with this type's patch."""
    patch = {
        "type": "record",
        "name": f"refold.patch.{definition.name}",
        "fields": [_patch_field(each) for each in definition.fields.values()],
    }
    return record(
        f"refold.observation.{definition.name}",
        **observation_fields(patch),
    )


def _patch_field(field: FieldDefinition) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if field.aliases:
        attributes["aliases"] = list(field.aliases)
    if field.first_name != field.name:
        attributes["refold.name"] = field.first_name
    return _member(field.name, nullable(field.node), **attributes)


def state_node(definition: TypeDefinition) -> dict[str, Any]:
    """The folded state, its version and its hash."""
    fields = {each.first_name: nullable(state_type(each)) for each in definition.fields.values()}
    holders = {each.first_name: nullable(_holder_type(each)) for each in definition.fields.values()}
    held = record("refold.HeldLink", relation=TEXT, target=TEXT, by=ID,
                  valid_from=nullable(MICROS), valid_to=nullable(MICROS))  # fmt: skip
    return record(
        f"refold.state.{definition.name}",
        format={"type": "int"},
        entity=TEXT,
        version=LONG,
        state_hash=ID,
        fields=record(f"refold.fields.{definition.name}", **fields),
        by=record(f"refold.by.{definition.name}", **holders),
        links={"type": "array", "items": held},
    )


def state_type(field: FieldDefinition) -> Node:
    """What the field holds after folding."""
    value = value_of(field.node)
    if field.reducer == "count":
        return LONG
    if field.reducer == "sum":
        return [LONG, DOUBLE] if value["type"] in ("int", "long") else [DOUBLE, LONG]
    if field.reducer == "map":
        return {"type": "map", "values": [each for each in _branches(value["values"]) if each["type"] != "null"]}
    return [each for each in _branches(field.node) if each["type"] != "null"]


def _branches(node: Node) -> list[dict[str, Any]]:
    return node if isinstance(node, list) else [node]


def _holder_type(field: FieldDefinition) -> Node:
    if field.reducer in ("sum", "count"):
        return LONG
    if field.reducer in ("union", "append"):
        return IDS
    return {"type": "map", "values": ID} if field.reducer == "map" else ID


def change_node(definition: TypeDefinition) -> dict[str, Any]:
    """One entity's mutations from a version to a later one. A null observation in a mutation means the observation of
    the change step.
    """
    fields = {each.first_name: nullable({"type": "array", "items": _mutation(definition, each)})
              for each in definition.fields.values()}  # fmt: skip
    validity = record("refold.Validity", valid_from=nullable(MICROS), valid_to=nullable(MICROS))
    link = record("refold.LinkMutation", op=OP, relation=TEXT, target=TEXT,
                  old=nullable(validity), new=nullable(validity), observation=nullable(ID))  # fmt: skip
    step = record(
        f"refold.change_step.{definition.name}",
        offset=LONG,
        version=LONG,
        observation=ID,
        observed_at=MICROS,
        recorded_at=MILLIS,
        source=SOURCE,
        fields=record(f"refold.changed.{definition.name}", **fields),
        links={"type": "array", "items": link},
    )
    return record(
        f"refold.change.{definition.name}",
        entity=TEXT,
        definition=ID,
        from_version=LONG,
        to_version=LONG,
        hash_before=nullable(ID),
        hash_after=ID,
        through=LONG,
        redefined={"type": "boolean"},
        steps={"type": "array", "items": step},
    )


OP = {"type": "enum", "name": "refold.Op", "symbols": ["set", "add", "remove", "clear"]}
PLACE = record("refold.Place", observed_at=MICROS, agent=TEXT, run=TEXT, seq=LONG, id=ID, index={"type": "int"})


def _mutation(definition: TypeDefinition, field: FieldDefinition) -> dict[str, Any]:
    element = field.element if field.reducer in ("union", "append", "map") else state_type(field)
    name = f"refold.mutation.{definition.name}.{field.first_name}"
    members: dict[str, Node] = {"op": OP}
    if field.reducer == "map":
        members["key"] = TEXT
    if field.reducer == "append":
        members["key"] = PLACE
    return record(name, **members, old=nullable(element), new=nullable(element), observation=nullable(ID))


def schema_text(node: dict[str, Any]) -> str:
    """The Avro schema of a derived node, as one line of JSON with its keys sorted."""
    return json.dumps(emit(node, docs=False), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


class TypeSchemas(NamedTuple):
    """The texts of a type's three schemas."""

    observation: str
    change: str
    state: str


def schemas_of(definition: TypeDefinition) -> TypeSchemas:
    """Return the texts of the schemas that are derived from a definition."""
    nodes = observation_node(definition), change_node(definition), state_node(definition)
    return TypeSchemas(*map(schema_text, nodes))
