"""A Parquet sink's store as its readers see it: its newest commit, read without the sink."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from refold.avro.definition import TypeDefinition
from refold.avro.nodes import JSON, allows, value_of
from refold.sinks.parquet.columns import columns_of
from refold.sinks.parquet.sink import CURRENT, CommitManifest, decoded
from refold.streams.log.port import LogPort
from refold.streams.objects.port import Objects
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.view import StateView
from refold.testing.sinks import StoreContent


def newest(objects: Objects) -> CommitManifest:
    """Return the manifest of the commit that CURRENT names."""
    folder = (objects.get(CURRENT) or b"").decode()
    number = folder.removeprefix("commits/").partition("-")[0]
    name = f"manifests/{number}.json"
    data = objects.get(name)
    assert data is not None, name
    found = decoded(data, name)
    assert found.folder == folder
    return found


def held(objects: Objects, definitions: dict[str, TypeDefinition]) -> StoreContent:
    """Return the contents of the commit that CURRENT names, in JSON form. Every file must match the manifest."""
    manifest = newest(objects)
    states: dict[str, tuple[int, str, dict[str, Any], list[dict[str, Any]]]] = {}
    for each in manifest.files:
        data = objects.get(f"{manifest.folder}/{each.path}")
        assert data is not None, each.path
        assert len(data) == each.bytes
        table = pq.read_table(pa.BufferReader(data), partitioning=None)
        assert table.num_rows == each.rows
        assert table.schema.metadata[b"refold.definition"].decode() == each.definition
        states.update(_states(table, definitions[each.type]))
    assert len(states) == manifest.entities
    return StoreContent(manifest.at(), states, [])


def _states(table: pa.Table, definition: TypeDefinition) -> dict[str, Any]:
    columns = {each.arrow.name: (each.field, each.arrow.type) for each in columns_of(definition)}
    found = {}
    for row in table.to_pylist():
        fields = {
            name: _shown(definition, name, value)
            for column, (name, _) in columns.items()
            if (value := row[column]) is not None
        }
        links = [] if row["_links"] is None else json.loads(row["_links"])
        found[row["_entity"]] = (row["_version"], row["_state_hash"].hex(), fields, links)
    return found


def _shown(definition: TypeDefinition, name: str, value: Any) -> Any:
    field = definition.by_first_name[name]
    node = value_of(field.node)
    if isinstance(value, Decimal):
        return int(value)
    if field.reducer == "count" or not isinstance(value, str):
        return value
    is_plain = node["type"] in ("string", "enum") and node.get("logicalType") != JSON
    options = allows(field.node, "refold.Blob") or allows(field.node, "refold.Sealed")
    is_text = is_plain and not (options and value.startswith(('{"$blob":', '{"$sealed":')))
    return value if is_text else json.loads(value)


class Place:
    """The store of a sink. definitions: of every type, as they are at the cut."""

    def __init__(self, objects: Objects, url: str, definitions: dict[str, TypeDefinition]) -> None:
        self.objects, self.url, self.definitions = objects, url, definitions


def assert_equal(log: LogPort, place: Place, *, at_end: bool = True) -> None:
    """Check that the commit that CURRENT names equals a rebuild at its cut. at_end: whether the cut must be the
    log's end.
    """
    log.refresh()
    found = held(place.objects, place.definitions)
    if at_end:
        assert found.cut.offsets == log.ends()
        assert found.cut.schemas == len(log.registry)
    view = StateView(log, found.cut, rebuild(log, found.cut, parallel=False))
    expected = {}
    for name in view:
        entity = view[name]
        links = [{key: value for key, value in each.items() if key != "by"} for each in entity.links]
        shown = {
            field: float(value) if _is_double_sum(place.definitions[name.partition("/")[0]], field) else value
            for field, value in entity.shown().items()
        }
        expected[name] = (entity.version, entity.state_hash, shown, links)
    assert found.states == expected


def _is_double_sum(definition: TypeDefinition, name: str) -> bool:
    """Return whether a field is a sum of doubles. Its exact integer may not be a double; the column has the nearest
    double.
    """
    field = definition.by_first_name[name]
    return field.reducer == "sum" and value_of(field.node)["type"] in ("float", "double")


def inode(folder: Path, manifest: CommitManifest, path: str) -> int:
    """Return the inode of a file, which identifies it under any name."""
    return (folder / manifest.folder / path).stat().st_ino
