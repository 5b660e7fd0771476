"""`refold types`: the types of entities, and their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.derive import change_node, observation_node, schema_text, state_node
from refold.avro.errors import InputError
from refold.avro.nodes import Node, branches, id_of
from refold.avro.registry import Registry
from refold.avro.shipped import load_type, shipped_types
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen
from refold.explorer.queries.log_target import LogTarget
from refold.reducers.custom import code_of
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.held_types import held_types

SCHEMAS = {"observation": observation_node, "state": state_node, "change": change_node}

LISTED = (
    TableColumn("type", "cyan", is_fixed=True),
    TableColumn("fields"),
    TableColumn("versions in the log"),
    TableColumn("origin", "dim"),
    TableColumn("what it is"),
)
SHOWN = (TableColumn("field", "cyan"), TableColumn("type"), TableColumn("reducer", "green"), TableColumn("what it is"))


@click.command()
@click.argument("name", required=False)
@click.option("--schema", type=click.Choice(list(SCHEMAS)), help="Print a schema derived from the type NAME, as Avro.")
@click.option(
    "--register",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Add the type in an .avsc file to the log; its entities are folded again by it.",
)
@as_json
@on_log
def types(target: LogTarget, name: str | None, schema: str | None, register: Path | None, as_json: bool) -> int:
    """List the types, show the fields of one, or register one.

    Held: no version of the type can be folded here, because its custom code is not registered (--reducers). Pending:
    the log is on Kafka, and no worker that has the custom code of a new version has activated that version yet.

    \b
    Examples
      refold types
      refold types tool_config
      refold types run --schema change > run-change.avsc
      refold types --register ticket.avsc
    """
    screen = Screen()
    if register is not None:
        return _register(screen, target, register)
    registry, known = _registry_and_types(target)
    if name is None:
        if schema is not None:
            raise InputError(f"--schema {schema}: name the type, such as `refold types run --schema {schema}`")
        _list(screen, known, registry, as_json)
        return 0
    if name not in known:
        raise InputError(
            f"unknown type {name!r}; known here: {', '.join(sorted(known))}. Add its .avsc file with --types"
        )
    if schema is not None:
        screen.json(json.loads(schema_text(SCHEMAS[schema](known[name]))))
    else:
        _show(screen, known[name], as_json)
    return 0


def _register(screen: Screen, target: LogTarget, file: Path) -> int:
    definition = load_type(file, code_of)
    if not target.exists():
        TypeCatalog(Registry(), {}, {}).use(definition)  # do not create a log for a definition that it would refuse
    with target.write() as log:
        log.register(definition)
        versions = len(log.port.registry.versions(definition.name))
    screen.say(f"{definition.name}: version {versions}, fingerprint {definition.fingerprint.hex()}")
    return 0


def _registry_and_types(target: LogTarget) -> tuple[Registry, dict[str, TypeDefinition]]:
    """Return the log's registry (an empty one if there is no log), and the type to write by, by name."""
    own = target.own_types()
    if not target.exists():
        return Registry(), {**shipped_types(), **own}
    with target.read() as log:
        return log.port.registry, {**log.types, **own}


def _list(screen: Screen, known: dict[str, TypeDefinition], registry: Registry, as_json: bool) -> None:
    shipped = {each.fingerprint for each in shipped_types().values()}
    held, pending = held_types(registry), [each.definition.name for each in registry.pending()]
    found = [
        {
            "name": name,
            "fields": len(definition.fields),
            "versions": len(registry.versions(name)),
            "pending": pending.count(name),
            "held": str(held[name]) if name in held else None,
            "shipped": definition.fingerprint in shipped,
            "fingerprint": definition.fingerprint.hex(),
            "doc": definition.doc,
        }
        for name, definition in sorted(known.items())
    ]
    if as_json:
        screen.json(found)
        return
    rows = [
        [
            str(each["name"]),
            str(each["fields"]),
            _versions(each),
            "shipped" if each["shipped"] else "yours",
            str(each["doc"]),
        ]
        for each in found
    ]
    screen.table(LISTED, rows)


def _versions(each: Mapping[str, Any]) -> str:
    more = [f"{each['pending']} pending"] * bool(each["pending"]) + ["held"] * bool(each["held"])
    return ", ".join([str(each["versions"]), *more])


def _show(screen: Screen, definition: TypeDefinition, as_json: bool) -> None:
    if as_json:
        screen.json({**definition.document, "fingerprint": definition.fingerprint.hex()})
        return
    screen.say(definition.name, "bold")
    if definition.doc:
        screen.say(definition.doc)
    screen.say(f"fingerprint {definition.fingerprint.hex()}", "dim")
    if definition.closed_by:
        screen.say(f"closed by {definition.closed_by}")
    screen.say()
    rows = [[each.name, type_text(each.node), _reducer(each), each.doc] for each in definition.fields.values()]
    screen.table(SHOWN, rows)


def _reducer(field: FieldDefinition) -> str:
    limit = f" (last {field.limit:,})" if field.limit else ""
    code = f" {field.code['name']}" if field.code else ""
    return f"{field.reducer}{limit}{code}"


def type_text(node: Node) -> str:
    """Return a type in a few words: "string or Blob", "list of long"."""
    return " or ".join(_branch(each) for each in branches(node) if each["type"] != "null")


def _branch(node: dict[str, Any]) -> str:
    if node["type"] == "array":
        return f"list of ({type_text(node['items'])})"
    if node["type"] == "map":
        return f"map of ({type_text(node['values'])})"
    if node["type"] == "enum":
        return "one of " + " ".join(node["symbols"])
    logical = node.get("logicalType")
    return str(logical).removeprefix("refold-") if logical else id_of(node).rpartition(".")[2]
