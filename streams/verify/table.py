"""Compares the entity table with the refolded entities, and finds the differences of two encoded entities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import cbor2

from refold.avro.errors import StorageError
from refold.reducers.entity import Entity, pack, unpack
from refold.streams.log.port import Mismatch
from refold.streams.partitioner import partition_of
from refold.streams.snapshots.layers import Layers


def check_table(
    entities: Iterable[tuple[str, bytes]], partitions: int, refolded: Mapping[int, Layers]
) -> Iterator[Mismatch]:
    """Check every stored entity of the refolded partitions.

    Args:
        partitions: The log's number of partitions.
    """
    stored = set()
    for name, packed in entities:
        partition = partition_of(name, partitions)
        if partition not in refolded:
            continue
        stored.add(name)
        expected = refolded[partition].get(name)
        if expected is None:
            yield Mismatch("state", "stored, but no observation of it is in the log", name)
        elif packed != expected:
            yield from compare("state", name, packed, expected)
    for name in sorted(name for layers in refolded.values() for name in layers.names() if name not in stored):
        yield Mismatch("state", "missing", name)


def compare(place: str, name: str, packed: bytes, expected: bytes) -> Iterator[Mismatch]:
    """Yield the differences of two states, part by part: an equal state may be stored with another order of fields.

    Args:
        place: What is compared, for the report.
        name: The entity.
        packed: The stored state.
        expected: The state that the fold from nothing made.
    """
    try:
        found, should = unpack(name, packed), unpack(name, expected)
        parts, again = _plain_parts(found), pack(found)
        field_names = found.cells.keys() | should.cells.keys()
    except (StorageError, TypeError, ValueError, LookupError, AttributeError) as error:
        yield Mismatch(place, f"cannot be read: {error}", name)
        return
    for field_name in sorted(field_names):
        if not _same(found.cells.get(field_name), should.cells.get(field_name)):
            yield Mismatch(place, "another value or holder than the log folds to", name, field_name)
    for part, value in _plain_parts(should).items():
        if not _same(parts[part], value):
            yield Mismatch(place, f"another {part} than the log folds to", name)
    if again != packed:
        yield Mismatch(place, "not the bytes that say it", name)


def _plain_parts(entity: Entity) -> dict[str, Any]:
    """The stored parts other than the cells, as plain trees."""
    dedup = entity.dedup_state
    pending = None if dedup.pending is None else sorted(dedup.pending)
    return {
        "version": entity.version,
        "links": sorted([*key, *cell] for key, cell in entity.links.items()),
        "clears": entity.clears,
        "dedup_state": [dedup.greatest, list(dedup.sources.items()), dedup.floor, dedup.last_ids, pending,
                    dedup.lowest_offset, dedup.highest_offset],
        "state_hash": entity.state_hash,
    }  # fmt: skip


def _same(found: Any, should: Any) -> bool:
    """Equal values of equal types: in Python 1, 1.0 and True are equal."""
    return found == should and cbor2.dumps(found, canonical=True) == cbor2.dumps(should, canonical=True)
