"""The epochs of a `file:` log, in two column families of its database.

snapshots  partition u16, offset u64             -> a record as it was written
manifests  "epoch/", the epoch                   -> a manifest
           "pin/" or "tomb/", the epoch          -> streams/snapshots/store.py
meta       "snapshots"                           -> CBOR {partition: next offset}, CRC-32C

Records and the next offset are one write. All column families share one write-ahead log. A machine's crash can lose
only its end, so an epoch is never kept if records that it contains are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import cbor2

from refold.avro.errors import CorruptionError, StorageError
from refold.streams.checksum import sealed, unsealed
from refold.streams.rocks.database import Database
from refold.streams.snapshots.manifest import KEY_BYTES, PREFIX, Epoch, epoch_of
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.store import (
    PIN,
    TOMB,
    ClearedRecords,
    Pin,
    SnapshotReader,
    SnapshotStore,
    Tombstone,
    pin_of,
    pin_value,
    tombstone_of,
    tombstone_value,
)
from refold.streams.table import keys

NEXT = b"snapshots"


class FileSnapshotReader(SnapshotReader):
    """Reads through the database that its log uses at the time."""

    def __init__(self, view: Callable[[], Database]) -> None:
        self._view = view

    def epochs(self, partition: int) -> Sequence[Epoch]:
        first = PREFIX + partition.to_bytes(2, "big")
        after = PREFIX + (partition + 1).to_bytes(2, "big")
        rows = self._view().scan("manifests", first, after)
        return [epoch_of(key) for key, _ in rows if len(key) == KEY_BYTES]  # verify reports others

    def latest(self, until: Epoch) -> Epoch | None:
        first = PREFIX + until.partition.to_bytes(2, "big")
        found = self._view().last("manifests", first, until.key + b"\0")
        if found is not None and len(found[0]) != KEY_BYTES:
            return super().latest(until)
        return None if found is None else epoch_of(found[0])

    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        return self._view().get("manifests", epoch.key)

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition, end)
        for key, data in self._view().scan("snapshots", first, stop):
            yield keys.POSITION.unpack(key)[1], data

    def pins(self) -> Sequence[Pin]:
        return [pin_of(epoch, value) for epoch, value in self._epoch_rows(PIN)]

    def tombstones(self) -> Iterator[Tombstone]:
        return (tombstone_of(epoch, value) for epoch, value in self._epoch_rows(TOMB))

    def _epoch_rows(self, prefix: bytes) -> Iterator[tuple[Epoch, bytes]]:
        for key, value in self._view().scan("manifests", prefix, prefix[:-1] + b"0"):
            yield epoch_of(key.removeprefix(prefix)), value


class FileSnapshotStore(FileSnapshotReader, SnapshotStore):
    """The owner's side.

    Args:
        settings: The settings of garbage collection.
    """

    def __init__(self, database: Database, partitions: int, settings: SnapshotSettings = DEFAULT_SETTINGS) -> None:
        super().__init__(lambda: database)
        self._settings = settings
        self._database = database
        self._next = next_offsets(database, partitions)
        self._stopped = False

    def stop(self) -> None:
        """Refuse further appends: a thread that is writing an epoch gets an error."""
        self._stopped = True

    def end(self, partition: int) -> int:
        return self._next[partition]

    def append(self, partition: int, data: bytes) -> None:
        self.extend(partition, [data])

    def extend(self, partition: int, records: Sequence[bytes]) -> None:
        if self._stopped:
            raise StorageError("the log is being closed")
        write = self._database.batch()
        start = self._next[partition]
        for offset, data in enumerate(records, start):
            write.put("snapshots", keys.position_key(partition, offset), data)
        after = {**self._next, partition: start + len(records)}
        write.put("meta", NEXT, sealed(cbor2.dumps(after)))
        self._database.write(write, sync=False)
        self._next = after

    def seal(self, epoch: Epoch, data: bytes) -> None:
        self._put(epoch.key, data, sync=False)

    def sync(self) -> None:
        self._database.sync()

    def pin(self, pin: Pin) -> None:
        self._put(PIN + pin.epoch.key, pin_value(pin), sync=True)

    def unpin(self, epoch: Epoch) -> None:
        write = self._database.batch()
        write.delete("manifests", PIN + epoch.key)
        self._database.write(write, sync=True)

    def add_tombstone(self, *tombstones: Tombstone) -> None:
        write = self._database.batch()
        for tomb in tombstones:
            write.put("manifests", TOMB + tomb.epoch.key, tombstone_value(tomb))
            write.delete("manifests", tomb.epoch.key)
        self._database.write(write, sync=True)

    def clear(
        self, partition: int, kept: Sequence[tuple[int, int]], forgotten: Sequence[Epoch], *, dry_run: bool = False
    ) -> ClearedRecords:
        found = ClearedRecords()
        at, end = 0, self._next[partition]
        for start, stop in [*sorted(kept), (end, end)]:
            found = found.plus(self._remove(partition, at, start, dry_run=dry_run))
            at = max(at, stop)
        if dry_run or not (found.records or forgotten):
            return found
        write = self._database.batch()
        for epoch in forgotten:
            write.delete("manifests", TOMB + epoch.key)
        self._database.write(write, sync=True)
        return found

    def _remove(self, partition: int, start: int, stop: int, *, dry_run: bool) -> ClearedRecords:
        records = removed_bytes = 0
        if dry_run:  # a reader may do this too
            sizes = [len(data) for _, data in self.records(partition, start, stop)]
            return ClearedRecords(len(sizes), sum(sizes))
        write = self._database.batch()
        for offset, data in self.records(partition, start, stop):
            records += 1
            removed_bytes += len(data)
            write.delete("snapshots", keys.position_key(partition, offset))
            if records % self._settings.removed_at_once == 0:
                self._database.write(write, sync=False)
                write = self._database.batch()
        if records:
            self._database.write(write, sync=False)
            if removed_bytes >= self._settings.compacted_bytes:
                first, after = keys.position_key(partition, start), keys.position_key(partition, stop)
                self._database.compact("snapshots", first, after)
        return ClearedRecords(records, removed_bytes)

    def _put(self, key: bytes, value: bytes, *, sync: bool) -> None:
        write = self._database.batch()
        write.put("manifests", key, value)
        self._database.write(write, sync=sync)


def next_offsets(database: Database, partitions: int) -> dict[int, int]:
    """Return the next offset of `.snapshots` by partition.

    Raises:
        CorruptionError: The row is damaged.
    """
    packed = database.get("meta", NEXT)
    if packed is None:
        return dict.fromkeys(range(partitions), 0)
    data = unsealed(packed, "the log's record of its next offsets of .snapshots")
    try:
        found = {int(partition): int(offset) for partition, offset in cbor2.loads(data).items()}
    except (cbor2.CBORDecodeError, ValueError, TypeError, AttributeError) as error:
        raise CorruptionError(f"the log's next offsets of .snapshots cannot be read: {error}") from error
    if found.keys() != set(range(partitions)):
        raise CorruptionError(f"the log's next offsets of .snapshots are not of {partitions} partitions")
    return found
