"""The epochs of a Kafka log: for each partition, records in `.snapshots` and manifests in `.manifests`.

A record's key is its own offset, so compaction keeps each record until a tombstone frees it. One process writes a
partition. An epoch is one transaction of records and manifest (transactions.py): its records have consecutive offsets,
and become visible together. Between epochs there are gaps: transaction markers, aborted records, freed records.

A writer that ends within an epoch leaves nothing visible: its transaction is aborted when it times out, at the latest
when the next writer fences it. Garbage collection only has to remove records that a writer abandoned in an epoch which
it then sealed with other records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from refold.avro.errors import CorruptionError, StorageError
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.manifests import ManifestMap
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.kafka.transactions import KEY, TRANSACTION_TIMEOUT_MS, PartitionWriter
from refold.streams.snapshots.manifest import PREFIX, Epoch, epoch_of
from refold.streams.snapshots.store import (
    PIN,
    TOMB,
    ClearedRecords,
    Pin,
    SnapshotReader,
    SnapshotStore,
    Tombstone,
    no_such_epoch,
    pin_of,
    pin_value,
    tombstone_of,
    tombstone_value,
)

_log = logging.getLogger(__name__)


class KafkaSnapshotReader(SnapshotReader):
    """The epochs that were sealed up to the last `refresh` of the manifests."""

    def __init__(self, topics: Topics, manifests: ManifestMap, offsets: Offsets, reading: LogReaders) -> None:
        self._topic = topics.snapshots
        self._manifests = manifests
        self._offsets = offsets
        self._reading = reading
        self._ends: dict[int, int] = {}

    def refresh(self) -> None:
        """Read the epochs that other processes have sealed so far."""
        self._manifests.refresh()

    def epochs(self, partition: int) -> Sequence[Epoch]:
        rows = self._manifests.scan(partition, PREFIX)
        return [epoch_of(key) for key, _ in rows]

    def readable(self, partition: int) -> Iterator[Epoch]:
        """Yield the epochs of a partition whose manifests can be read."""
        for epoch in self.epochs(partition):
            with suppress(CorruptionError):
                self.manifest(epoch)
                yield epoch

    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        return self._manifests.get(epoch.partition, epoch.key)

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of the records with start <= offset < end, in order.

        Removed records are included until compaction has run.
        """
        return _own_records(
            self._reading, KafkaPartition(self._topic, partition), start, min(end, self._stable(partition, end))
        )

    def pins(self) -> Sequence[Pin]:
        return [pin_of(epoch, value) for epoch, value in self._epoch_rows(PIN)]

    def tombstones(self) -> Iterator[Tombstone]:
        return (tombstone_of(epoch, value) for epoch, value in self._epoch_rows(TOMB))

    def _epoch_rows(self, prefix: bytes) -> Iterator[tuple[Epoch, bytes]]:
        for partition in range(self._manifests.partitions):
            for key, value in self._manifests.scan(partition, prefix):
                yield epoch_of(key.removeprefix(prefix)), value

    def _stable(self, partition: int, wanted: int) -> int:
        """Return the last stable offset, or a lower known one that is at least `wanted`."""
        known = self._ends.get(partition, 0)
        if known < wanted:
            place = KafkaPartition(self._topic, partition)
            known = self._ends[partition] = self._offsets.ends([place])[place]
        return known


class KafkaSnapshotStore(KafkaSnapshotReader, SnapshotStore):
    """The worker's store. `take` makes this process the writer of a partition, until another process takes it.

    A process that lost a partition in this way no longer writes to it: each attempt is a StorageError, until `drop`.

    Args:
        owns: Returns whether a partition may be written now; called before each record.
    """

    def __init__(
        self, clients: Clients, topics: Topics, manifests: ManifestMap, offsets: Offsets, reading: LogReaders,
        uncommitted: LogReaders, *, owns: Callable[[int], bool] = lambda partition: True,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:  # fmt: skip
        super().__init__(topics, manifests, offsets, reading)
        self._clients = clients
        self._topics = topics
        self._uncommitted = uncommitted
        self._owns = owns
        self._transaction_timeout_ms = transaction_timeout_ms
        self._writers: dict[int, PartitionWriter] = {}
        self._is_stopped = False

    def take(self, partition: int) -> None:
        """Fence the partition's previous writer, and read what it wrote. Idempotent.

        Raises:
            StorageError: the partition may not be written.
        """
        self._require_writable(partition)
        if partition not in self._writers:
            self._writers[partition] = PartitionWriter(
                self._clients, self._topics, self._offsets, partition, lambda: self._require_writable(partition),
                self._transaction_timeout_ms,
            )  # fmt: skip
            self._manifests.refresh([partition])

    @property
    def owned(self) -> list[int]:
        """The partitions that this process has taken and not dropped."""
        return [*self._writers]

    def is_fenced(self, partition: int) -> bool:
        """Return whether another process is known to have taken the partition since."""
        writer = self._writers.get(partition)
        return writer is not None and writer.fenced is not None

    def drop(self, partition: int) -> None:
        """Abort a partition's open transaction, and stop writing the partition until it is taken again."""
        writer = self._writers.pop(partition, None)
        if writer is not None:
            try:
                writer.close()
            except StorageError as error:
                _ends_by_itself(error)

    def end(self, partition: int) -> int:
        return self._writer(partition).next

    def append(self, partition: int, data: bytes) -> None:
        self._writer(partition).append(data)

    def abandon(self, partition: int) -> None:
        writer = self._writers.get(partition)
        if writer is not None:
            try:
                writer.abort()
            except StorageError as error:
                _ends_by_itself(error)

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        writer = self._writers.get(partition)
        if writer is None or end <= writer.begin or writer.begin == writer.next:
            yield from super().records(partition, start, end)
            return
        # The end of the range is in the epoch that is being written, which only this process can read.
        writer.send()
        begin, stop = writer.begin, min(end, writer.next)
        yield from super().records(partition, start, begin)
        yield from _own_records(self._uncommitted, KafkaPartition(self._topic, partition), max(start, begin), stop)

    def stop(self) -> None:
        self._is_stopped = True

    def close(self) -> None:
        """Abort open transactions, and drop all partitions. No other thread may use the store any more."""
        self.stop()
        for partition in [*self._writers]:
            self.drop(partition)

    def seal(self, epoch: Epoch, data: bytes) -> None:
        with self._transaction(epoch.partition) as writer:
            writer.put(epoch.key, data)

    def sync(self) -> None:
        """Do nothing: `seal` has committed already."""

    def pin(self, pin: Pin) -> None:
        with self._transaction(pin.epoch.partition) as writer:
            writer.put(PIN + pin.epoch.key, pin_value(pin))

    def unpin(self, epoch: Epoch) -> None:
        with self._transaction(epoch.partition) as writer:
            writer.put(PIN + epoch.key, None)

    def add_tombstone(self, *tombstones: Tombstone) -> None:
        (partition,) = {tomb.epoch.partition for tomb in tombstones}
        with self._transaction(partition) as writer:
            for tomb in tombstones:
                writer.put(TOMB + tomb.epoch.key, tombstone_value(tomb))
                writer.put(tomb.epoch.key, None)

    def clear(
        self, partition: int, kept: Sequence[tuple[int, int]], forgotten: Sequence[Epoch], *, dry_run: bool = False
    ) -> ClearedRecords:
        loose = self.loose(partition, kept)
        if not dry_run and (loose or forgotten):
            with self._transaction(partition) as writer:
                for offset in loose:
                    writer.free(offset)
                for epoch in forgotten:
                    writer.put(TOMB + epoch.key, None)
        return ClearedRecords(len(loose), sum(loose.values()))

    def loose(self, partition: int, kept: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Return the sizes in bytes, by offset, of the records outside the kept ranges that are not yet removed."""
        writer = self._writer(partition)
        writer.commit()
        end = writer.next
        place = KafkaPartition(self._topic, partition)
        sizes: dict[int, int] = {}
        removed: set[int] = set()
        at = 0
        for start, stop in [*sorted(kept), (end, end)]:
            for record in self._reading.records(place, at, start):
                if not is_snapshot(record):
                    continue
                if record.value is None:
                    removed.update(KEY.unpack(record.key or b""))
                else:
                    sizes[record.offset] = len(record.value)
            at = max(at, stop)
        return {offset: size for offset, size in sizes.items() if offset not in removed}

    @contextmanager
    def _transaction(self, partition: int) -> Iterator[PartitionWriter]:
        """Run a block as one transaction: at its end its writes are durable and visible; on an error none are."""
        writer = self._writer(partition)
        try:
            yield writer
            writer.commit()
        except BaseException:
            self.abandon(partition)
            raise
        self._manifests.refresh([partition])

    def _writer(self, partition: int) -> PartitionWriter:
        self.take(partition)
        return self._writers[partition]

    def _require_writable(self, partition: int) -> None:
        if self._is_stopped:
            raise StorageError("the log is being closed")
        if not self._owns(partition):
            raise StorageError(f"partition {partition} belongs to another worker now, which writes its snapshots")
        writer = self._writers.get(partition)
        if writer is not None and writer.fenced is not None:
            raise writer.fenced


def pin_without_worker(
    clients: Clients, topics: Topics, manifests: ManifestMap, offsets: Offsets, reading: LogReaders, timeout_s: float,
    epochs: Sequence[Epoch], pinned_at: int | None,
) -> None:  # fmt: skip
    """Pin or unpin epochs from a process that does not fold; used if no worker answers.

    Takes their partitions first, so that no other process removes an epoch meanwhile. A worker that this fences takes
    its partitions back.

    Args:
        clients, topics, manifests, offsets, reading: those of the log.
        timeout_s: how long a read waits for the broker, in seconds.
        epochs: the epochs.
        pinned_at: the time of the pin, in milliseconds; None unpins.
    """
    uncommitted = LogReaders(clients, timeout_s, committed=False)
    store = KafkaSnapshotStore(clients, topics, manifests, offsets, reading, uncommitted)
    try:
        for partition in sorted({epoch.partition for epoch in epochs}):
            store.take(partition)
        for epoch in epochs:
            if pinned_at is not None and store.manifest_bytes(epoch) is None:
                raise no_such_epoch(epoch)
        for epoch in epochs:
            if pinned_at is None:
                store.unpin(epoch)
            else:
                store.pin(Pin(epoch, pinned_at))
    finally:
        store.close()
        uncommitted.close()


def is_snapshot(raw: RawRecord) -> bool:
    """Return whether refold wrote a record of `.snapshots`.

    Its key is its own offset. A tombstone's key is the offset of an earlier record.
    """
    key = raw.key or b""
    if len(key) != KEY.size:
        return False
    offset: int = KEY.unpack(key)[0]
    return offset < raw.offset if raw.value is None else offset == raw.offset


def _own_records(reading: LogReaders, place: KafkaPartition, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a range whose key is their own offset."""
    if start >= end:
        return
    for record in reading.records(place, start, end, few=end - start == 1):
        if record.value is not None and is_snapshot(record):
            yield record.offset, record.value


def _ends_by_itself(error: StorageError) -> None:
    """Log that a transaction stays open until it times out, or until the next writer takes the partition."""
    _log.warning("a transaction may stay open until its time is over: %s", error)
