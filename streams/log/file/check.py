"""The indexes of a `file:` log against its records: timeline, arrivals and ids.

For each record below the given offsets: its timeline entry holds its bytes and the offset of its first occurrence,
which is this record or an earlier one of the same id; a first occurrence has its arrival and its id entry. As many
entries stand in each family as there are first occurrences; where there are more, those without a record are named.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import islice

from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.registry import Registry
from refold.reducers.order import order_key
from refold.streams.log.file.database import Database
from refold.streams.log.file.families import Family
from refold.streams.log.port import Mismatch, Record
from refold.streams.partition import partition_of
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
        for key, _ in database.scan("observations", stop, _begin_of_next(partition, len(offsets))):
            yield Mismatch(f"observations {_shown(key)}", "a record at or past the log's end")
    for family in INDEXES:
        entries = sum(1 for _ in database.scan(family))
        if entries != firsts:
            yield Mismatch(family, f"{entries} entries for {firsts} distinct observations")
        if entries > firsts:
            yield from _without_record(database, family, len(offsets))


def _check_some(database: Database, registry: Registry, some: list[Record]) -> tuple[int, list[Mismatch]]:
    """How many of the records are first occurrences, and what is wrong with their entries."""
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
        problem = "is missing" if value is None else _timeline_problem(database, record, value)
        if problem:
            mismatches.append(Mismatch("timeline", f"{_place(record)} {problem}", record.entity))
        elif value is not None and keys.timeline_of(value)[0] == record.offset:
            firsts.append((record, prefix, q))
    arrivals = database.multi_get("arrivals", [keys.arrival_key(prefix, record.offset) for record, prefix, _ in firsts])
    ids = database.multi_get(
        "ids", [keys.id_key(record.id, record.partition, record.offset) for record, _, _ in firsts]
    )
    for (record, _, q), arrival, entry in zip(firsts, arrivals, ids, strict=True):
        if arrival != keys.arrival_value(record.recorded_at, q):
            mismatches.append(Mismatch("arrivals", f"{_place(record)} is not what the log holds", record.entity))
        if entry != b"":
            problem = "is missing" if entry is None else "is not empty"
            mismatches.append(Mismatch("ids", f"{_place(record)} {problem}", record.entity))
    return len(firsts), mismatches


def _timeline_problem(database: Database, record: Record, value: bytes) -> str:
    """What is wrong with a record's timeline entry."""
    try:
        offset, recorded_at, data = keys.timeline_of(value)
    except CorruptionError:
        return "is no timeline entry"
    if data != record.data or offset > record.offset:
        return "is not what the log holds"
    if offset == record.offset:
        return "" if recorded_at == record.recorded_at else "has another recorded_at"
    first = _record_at(database, record.partition, offset)
    return "" if first is not None and first.id == record.id else f"is no repeat of offset {offset}"


def _without_record(database: Database, family: Family, partitions: int) -> Iterator[Mismatch]:
    """The entries of an index that no record stands behind."""
    for key, value in database.scan(family):
        try:
            entity, partition, offset, prefix = _named(family, key, value, partitions)
            record = _record_at(database, partition, offset)
        except (CorruptionError, UnicodeDecodeError):
            yield Mismatch(family, f"the entry {key.hex()[:200]} cannot be read")
            continue
        if record is None or not record.id.startswith(prefix) or entity not in {"", record.entity}:
            yield Mismatch(family, f"an entry for {partition}={offset}, which is no such observation", entity)


def _named(family: Family, key: bytes, value: bytes, partitions: int) -> tuple[str, int, int, bytes]:
    """(entity or "", partition, offset, how the id begins) that an entry speaks of."""
    if family == "ids":
        return "", *keys.id_position(key), key[: keys.ID_PREFIX_BYTES]
    entity = key.partition(b"\0")[0].decode()
    partition = partition_of(entity, partitions)
    if family == "timeline":
        return entity, partition, keys.timeline_of(value)[0], key[-32:]
    offset, _, q = keys.arrival_of(key, value)
    return entity, partition, offset, q[-32:]


def _begin_of_next(partition: int, partitions: int) -> bytes | None:
    """Where the records of the next partition begin; None past the last one, behind which nothing stands."""
    return keys.position_key(partition + 1, 0) if partition + 1 < partitions else None


def _shown(key: bytes) -> str:
    try:
        return "{}={}".format(*keys.POSITION.unpack(key))
    except struct.error:
        return key.hex()


def _record_at(database: Database, partition: int, offset: int) -> Record | None:
    key = keys.position_key(partition, offset)
    value = database.get("observations", key)
    return None if value is None else keys.record_of(key, value)


def _place(record: Record) -> str:
    return f"{record.partition}={record.offset}"
