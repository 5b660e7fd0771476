"""The indexes of a `file:` log against its records: timeline, arrivals and ids.

For each record below the given offsets: its timeline entry holds its bytes and the offset of its first occurrence,
which is this record or an earlier one; a first occurrence has its arrival and its id entry. As many entries stand in
each family as there are first occurrences, so none is there too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from refold.avro.errors import UndecodableError
from refold.avro.registry import Registry
from refold.reducers.order import order_key
from refold.streams.log.file.database import Database
from refold.streams.log.file.families import Family
from refold.streams.log.port import Mismatch, Record
from refold.streams.table import keys

AT_ONCE = 500
INDEXES: tuple[Family, ...] = ("timeline", "arrivals", "ids")


def check_indexes(database: Database, registry: Registry, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
    """Every mismatch between records and indexes."""
    firsts = 0
    for partition, end in offsets.items():
        stop = keys.position_key(partition, end)
        rows = database.scan("observations", keys.position_key(partition, 0), stop)
        records = (keys.record_of(*row) for row in rows)
        while some := list(islice(records, AT_ONCE)):
            found, mismatches = _check_some(database, registry, some)
            firsts += found
            yield from mismatches
    for family in INDEXES:
        entries = sum(1 for _ in database.scan(family))
        if entries != firsts:
            yield Mismatch(family, f"{entries} entries for {firsts} distinct observations")


def _check_some(database: Database, registry: Registry, some: list[Record]) -> tuple[int, list[Mismatch]]:
    ordered: list[tuple[Record, bytes, bytes]] = []
    for record in some:
        try:
            q = order_key(registry.decode(record.data), record.id)
        except UndecodableError:
            continue  # named by the check of the records themselves
        ordered.append((record, keys.entity_prefix(record.entity), q))
    timeline = database.multi_get("timeline", [prefix + q for _, prefix, q in ordered])
    mismatches: list[Mismatch] = []
    firsts: list[tuple[Record, bytes, bytes]] = []
    for (record, prefix, q), value in zip(ordered, timeline, strict=True):
        if value is None:
            mismatches.append(Mismatch("timeline", f"{_place(record)} is missing", record.entity))
            continue
        offset, recorded_at, data = keys.timeline_of(value)
        if data != record.data or offset > record.offset:
            mismatches.append(Mismatch("timeline", f"{_place(record)} is not what the log holds", record.entity))
        elif offset == record.offset:
            firsts.append((record, prefix, q))
            if recorded_at != record.recorded_at:
                mismatches.append(Mismatch("timeline", f"{_place(record)} has another recorded_at", record.entity))
    arrivals = database.multi_get("arrivals", [keys.arrival_key(prefix, record.offset) for record, prefix, _ in firsts])
    ids = database.multi_get("ids", [keys.id_key(record.id, record.partition, record.offset) for record, _, _ in firsts])
    for (record, _, q), arrival, entry in zip(firsts, arrivals, ids, strict=True):
        if arrival != keys.arrival_value(record.recorded_at, q):
            mismatches.append(Mismatch("arrivals", f"{_place(record)} is not what the log holds", record.entity))
        if entry is None:
            mismatches.append(Mismatch("ids", f"{_place(record)} is missing", record.entity))
    return len(firsts), mismatches


def _place(record: Record) -> str:
    return f"{record.partition}={record.offset}"
