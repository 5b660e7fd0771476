"""The rows of a `file:` log that stand where something else may never look: each is one of the forms that stand there.

Manifests, pins and tombs are of epochs of this log's partitions; pins, tombs and markers can be read; snapshot records
stand below their partition's next offset; each state stands at the place of its entity. What manifests and records hold
is compared with the log elsewhere (streams/verify/snapshots.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from refold.avro.errors import CorruptionError
from refold.streams.log.file.snapshots import next_offsets
from refold.streams.log.marked import MARKER, marked_of
from refold.streams.log.port import Mismatch
from refold.streams.partition import PLACE_BYTES, placed
from refold.streams.rocks.database import Database
from refold.streams.snapshots.manifest import PREFIX, epoch_of
from refold.streams.snapshots.stored import PIN, TOMB, pin_of, tomb_of
from refold.streams.table import keys

MANIFESTS = "manifests"


def check_snapshots(database: Database, partitions: int) -> Iterator[Mismatch]:
    """Every row of `manifests`, `snapshots` and `state` that stands where none may stand."""
    for key, value in database.scan("manifests"):
        if key.startswith(MARKER):
            yield from _check_marker(key, value)
        else:
            yield from _check_manifest_row(key, value, partitions)
    yield from _check_offsets(database, partitions)
    for key, _ in database.scan("state"):
        name = key[PLACE_BYTES:].decode(errors="replace")
        if key != placed(name):
            yield Mismatch("state", "stands at another place than its own", name)


def _check_marker(key: bytes, value: bytes) -> Iterator[Mismatch]:
    """Readers pass over one that cannot be read, so it is said here."""
    try:
        marked_of(key, value)
    except CorruptionError as error:
        yield Mismatch(f"markers @{key.removeprefix(MARKER).decode(errors='replace')}", str(error))


def _check_manifest_row(key: bytes, value: bytes, partitions: int) -> Iterator[Mismatch]:
    before = next((each for each in (PIN, TOMB, b"") if key.startswith(each + PREFIX)), None)
    try:
        if before is None:
            raise CorruptionError(f"the key {key!r:.200} is of nothing that stands there")
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
            tomb_of(epoch, value)
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
