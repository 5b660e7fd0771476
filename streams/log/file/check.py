"""Checks of a `file:` log for `refold verify`: its indexes, and the rows that no other check reads.

1. The indexes are compared with the records (streams/table/check.py), and records past the log's end are reported.
   A definition that is being applied is reported too, because the table is then folded by two definitions.
2. Every other row must have a form that is valid in its column family.

Of these rows, manifests, pins and tombs belong to epochs of this log's partitions. Pins, tombs and markers can be
parsed. Snapshot records are below their partition's next offset. Each state is stored under its entity's key.
streams/verify/snapshots.py compares the content of manifests and records with the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from refold.avro.errors import CorruptionError
from refold.avro.registry import Registry
from refold.streams.log.file.records import is_redefining
from refold.streams.log.file.snapshots import next_offsets
from refold.streams.log.port import Mismatch, Record
from refold.streams.log.stored_markers import MARKER, marked_of
from refold.streams.partitioner import PLACE_BYTES, all_placed
from refold.streams.rocks.database import Database
from refold.streams.snapshots.manifest import PREFIX, epoch_of
from refold.streams.snapshots.store import PIN, TOMB, pin_of, tombstone_of
from refold.streams.table import keys
from refold.streams.table.check import IndexCheck
from refold.streams.table.confirming import Choose

MANIFESTS = "manifests"
BATCH_ENTITIES = 1000


def check_snapshots(database: Database, partitions: int) -> Iterator[Mismatch]:
    """Yield every row of `manifests`, `snapshots` and `state` with an invalid key."""
    for key, value in database.scan("manifests"):
        if key.startswith(MARKER):
            yield from _check_marker(key, value)
        else:
            yield from _check_manifest_row(key, value, partitions)
    yield from _check_offsets(database, partitions)
    stored = (key for key, _ in database.scan("state"))
    while some := list(islice(stored, BATCH_ENTITIES)):
        names = [key[PLACE_BYTES:].decode(errors="replace") for key in some]
        places = all_placed(names)
        if some != places:
            for name, key, place in zip(names, some, places, strict=True):
                if key != place:
                    yield Mismatch("state", "is not at its own place", name)


def _check_marker(key: bytes, value: bytes) -> Iterator[Mismatch]:
    """Readers skip a marker that cannot be read, so it is reported here."""
    try:
        marked_of(key, value)
    except CorruptionError as error:
        yield Mismatch(f"markers @{key.removeprefix(MARKER).decode(errors='replace')}", str(error))


def _check_manifest_row(key: bytes, value: bytes, partitions: int) -> Iterator[Mismatch]:
    before = next((each for each in (PIN, TOMB, b"") if key.startswith(each + PREFIX)), None)
    try:
        if before is None:
            raise CorruptionError(f"the key {key!r:.200} does not belong to this log")
        epoch = epoch_of(key.removeprefix(before))
        if epoch.partition >= partitions:
            raise CorruptionError(f"of partition {epoch.partition}; the log has {partitions}")
    except CorruptionError as error:
        yield Mismatch(MANIFESTS, str(error))
        return
    try:
        if before == PIN:
            pin_of(epoch, value)
        elif before == TOMB:
            tombstone_of(epoch, value)
    except CorruptionError as error:
        yield Mismatch(f"{'pins' if before == PIN else 'tombs'} {epoch}", str(error))


def _check_offsets(database: Database, partitions: int) -> Iterator[Mismatch]:
    try:
        ends = next_offsets(database, partitions)
    except CorruptionError as error:
        yield Mismatch("meta snapshots", str(error))
        return
    for partition, end in ends.items():
        after = keys.position_key(partition + 1, 0) if partition + 1 < 1 << 16 else None
        for key, _ in database.scan("snapshots", keys.position_key(partition, end), after):
            place = f"snapshots {partition}={keys.POSITION.unpack(key)[1]}"
            yield Mismatch(place, f"at or past the partition's next offset, {end}")
    for key, _ in database.scan("snapshots", keys.position_key(partitions, 0)):
        yield Mismatch("snapshots", f"the record {key.hex()} is of no partition of this log")


def check_ends(database: Database, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
    """Yield every record past the log's end, and a definition that is not applied.

    Args:
        database: The log's database.
        offsets: By partition, the end of its records.
    """
    if is_redefining(database):
        unfinished = "a definition is being taken up, or that was cut short; open the log to write, then verify"
        yield Mismatch("state", unfinished)
    for partition, end in offsets.items():
        stop = keys.position_key(partition, end)
        for key, _ in database.scan("observations", stop, _begin_of_next(partition, len(offsets))):
            yield Mismatch(f"observations {_shown(key)}", "a record at or past the log's end")


def index_check(database: Database, registry: Registry, partitions: int, checks: Choose) -> IndexCheck:
    """Return the check of a log's indexes. The arguments are those of IndexCheck."""
    return IndexCheck(database, registry, partitions, partial(_record_at, database), checks)


def _begin_of_next(partition: int, partitions: int) -> bytes | None:
    """The first key of the next partition's records; None after the last partition."""
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
