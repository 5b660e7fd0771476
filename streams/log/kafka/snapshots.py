"""The epochs of a Kafka log: records in `.snapshots`, manifests in `.manifests`, partition by partition.

A record's key is its own offset, so that compaction keeps each until a record without a value frees it. One process
writes a partition, and an epoch is one transaction of records and manifest (transactions.py): its records stand without
a gap, and nothing of it shows before all of it does. Between epochs there are gaps: marks of ends of transactions, what
was aborted, freed records.

A writer that ends within an epoch leaves nothing: its transaction is aborted when it times out, at the latest when the
next writer fences it. Only what a writer gave up in an epoch that it then sealed otherwise is for garbage to take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from refold.avro.errors import CorruptionError, StorageError
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.manifests import ManifestMap
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.range_reader import LogReaders, Raw
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.kafka.transactions import KEY, TRANSACTION_TIMEOUT_MS, PartitionWriter
from refold.streams.snapshots.manifest import PREFIX, Epoch, epoch_of
from refold.streams.snapshots.store import (
    PIN,
    TOMB,
    Cleared,
    Pin,
    SnapshotReader,
    SnapshotStore,
    Tomb,
    no_such_epoch,
    pin_of,
    pin_value,
    tomb_of,
    tomb_value,
)

_log = logging.getLogger(__name__)


class KafkaSnapshotReader(SnapshotReader):
    """What was sealed up to the last `refresh` of the manifests."""

    def __init__(self, topics: Topics, manifests: ManifestMap, offsets: Offsets, reading: LogReaders) -> None:
        self._topic = topics.snapshots
        self._manifests = manifests
        self._offsets = offsets
        self._reading = reading
        self._ends: dict[int, int] = {}

    def refresh(self) -> None:
        """See what others have sealed by now."""
        self._manifests.refresh()

    def epochs(self, partition: int) -> Sequence[Epoch]:
        rows = self._manifests.scan(partition, PREFIX)
        return [epoch_of(key) for key, _ in rows]

    def readable(self, partition: int) -> Iterator[Epoch]:
        """The epochs of a partition whose manifests can be read."""
        for epoch in self.epochs(partition):
            with suppress(CorruptionError):
                self.manifest(epoch)
                yield epoch

    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        return self._manifests.get(epoch.partition, epoch.key)

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Also those that were removed, until compaction comes."""
        return _own(self._reading, TopicPlace(self._topic, partition), start, min(end, self._stable(partition, end)))

    def pins(self) -> Sequence[Pin]:
        return [pin_of(epoch, value) for epoch, value in self._named(PIN)]

    def tombs(self) -> Iterator[Tomb]:
        return (tomb_of(epoch, value) for epoch, value in self._named(TOMB))

    def _named(self, prefix: bytes) -> Iterator[tuple[Epoch, bytes]]:
        for partition in range(self._manifests.partitions):
            for key, value in self._manifests.scan(partition, prefix):
                yield epoch_of(key.removeprefix(prefix)), value

    def _stable(self, partition: int, wanted: int) -> int:
        """The last stable offset, or a lower one where that is enough."""
        known = self._ends.get(partition, 0)
        if known < wanted:
            place = TopicPlace(self._topic, partition)
            known = self._ends[partition] = self._offsets.ends([place])[place]
        return known


class KafkaSnapshotStore(KafkaSnapshotReader, SnapshotStore):
    """A worker's side. `take` makes this process the one that writes a partition, until another one takes it.

    Whoever lost a partition that way writes nothing of it any more: each attempt is a StorageError, until `drop`.
    owns: whether a partition may be written now; asked before each record.
    """

    def __init__(
        self, clients: Clients, topics: Topics, manifests: ManifestMap, offsets: Offsets, reading: LogReaders,
        undecided: LogReaders, *, owns: Callable[[int], bool] = lambda partition: True,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:  # fmt: skip
        super().__init__(topics, manifests, offsets, reading)
        self._clients = clients
        self._topics = topics
        self._undecided = undecided
        self._owns = owns
        self._transaction_timeout_ms = transaction_timeout_ms
        self._writers: dict[int, PartitionWriter] = {}
        self._is_stopped = False

    def take(self, partition: int) -> None:
        """Fence whoever wrote the partition before, and see what it wrote. Once more is nothing."""
        self._require_writable(partition)
        if partition not in self._writers:
            self._writers[partition] = PartitionWriter(
                self._clients, self._topics, self._offsets, partition, lambda: self._require_writable(partition),
                self._transaction_timeout_ms,
            )  # fmt: skip
            self._manifests.refresh([partition])

    @property
    def taken(self) -> list[int]:
        """The partitions that this process took and did not drop."""
        return [*self._writers]

    def is_fenced(self, partition: int) -> bool:
        """Whether another process was found to have taken it since."""
        writer = self._writers.get(partition)
        return writer is not None and writer.fenced is not None

    def drop(self, partition: int) -> None:
        """Abort what is open of a partition, and write it no more, until it is taken again."""
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
        # Of the epoch that is being written: this process alone sees it.
        writer.send()
        begin, stop = writer.begin, min(end, writer.next)
        yield from super().records(partition, start, begin)
        yield from _own(self._undecided, TopicPlace(self._topic, partition), max(start, begin), stop)

    def stop(self) -> None:
        self._is_stopped = True

    def close(self) -> None:
        """Abort what is open, and let go of the partitions; no other thread uses the store any more."""
        self.stop()
        for partition in [*self._writers]:
            self.drop(partition)

    def seal(self, epoch: Epoch, data: bytes) -> None:
        with self._written(epoch.partition) as writer:
            writer.put(epoch.key, data)

    def sync(self) -> None:
        """Nothing is left to be done: `seal` commits."""

    def pin(self, pin: Pin) -> None:
        with self._written(pin.epoch.partition) as writer:
            writer.put(PIN + pin.epoch.key, pin_value(pin))

    def unpin(self, epoch: Epoch) -> None:
        with self._written(epoch.partition) as writer:
            writer.put(PIN + epoch.key, None)

    def bury(self, *tombs: Tomb) -> None:
        (partition,) = {tomb.epoch.partition for tomb in tombs}
        with self._written(partition) as writer:
            for tomb in tombs:
                writer.put(TOMB + tomb.epoch.key, tomb_value(tomb))
                writer.put(tomb.epoch.key, None)

    def clear(
        self, partition: int, kept: Sequence[tuple[int, int]], forgotten: Sequence[Epoch], *, dry_run: bool = False
    ) -> Cleared:
        loose = self.loose(partition, kept)
        if not dry_run and (loose or forgotten):
            with self._written(partition) as writer:
                for offset in loose:
                    writer.free(offset)
                for epoch in forgotten:
                    writer.put(TOMB + epoch.key, None)
        return Cleared(len(loose), sum(loose.values()))

    def loose(self, partition: int, kept: Sequence[tuple[int, int]]) -> dict[int, int]:
        """The sizes of the records outside the kept ones by offset, without those that were removed before."""
        writer = self._writer(partition)
        writer.commit()
        end = writer.next
        place = TopicPlace(self._topic, partition)
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
    def _written(self, partition: int) -> Iterator[PartitionWriter]:
        """What the block writes, durable and visible at its end, or nothing of it."""
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


def pin_alone(
    clients: Clients, topics: Topics, manifests: ManifestMap, offsets: Offsets, reading: LogReaders, timeout_s: float,
    epochs: Sequence[Epoch], pinned_at: int | None,
) -> None:  # fmt: skip
    """Keep epochs for ever, or no longer, by a process that folds nothing; for when no worker answers.

    It takes their partitions first, so that nobody removes one meanwhile: a worker that it fences takes them back.
    """
    undecided = LogReaders(clients, timeout_s, committed=False)
    store = KafkaSnapshotStore(clients, topics, manifests, offsets, reading, undecided)
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
        undecided.close()


def is_snapshot(raw: Raw) -> bool:
    """Whether a record of `.snapshots` is refold's: its key is its own offset, or frees that of an earlier record."""
    key = raw.key or b""
    if len(key) != KEY.size:
        return False
    offset: int = KEY.unpack(key)[0]
    return offset < raw.offset if raw.value is None else offset == raw.offset


def _own(reading: LogReaders, place: TopicPlace, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The records of a range that stand where their key says."""
    if start >= end:
        return
    for record in reading.records(place, start, end, few=end - start == 1):
        if record.value is not None and is_snapshot(record):
            yield record.offset, record.value


def _ends_by_itself(error: StorageError) -> None:
    """What stayed open ends when its time is over, or with whoever takes the partition next."""
    _log.warning("a transaction may stay open until its time is over: %s", error)
