"""The storage of a log's epochs: records by partition and offset, manifests by name. Every log has one.

Guarantees: offsets only grow, offsets of removed records are not used again, and the offsets of an epoch have no gap. A
manifest never exists without the records that were appended before it, even after a crash of the process or the
machine. Records that no manifest names were left by a writer that ended or failed; garbage collection removes them.

Pins and tombs are next to the manifests in every log, and have this stored form:

"pin/", the epoch's key    -> pinned_at u64, CRC-32C
"tomb/", the epoch's key   -> removed_at u64, the manifest that was there, CRC-32C
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from refold.avro.errors import CorruptionError, InputError
from refold.streams.checksum import sealed, unsealed
from refold.streams.snapshots.manifest import Epoch, Manifest, OffsetSpan, read_manifest

PINNED_UNREADABLY = 0
"""The time of a pin whose record cannot be read. It still keeps its epoch, if that exists."""


class Pin(NamedTuple):
    """An epoch that garbage collection never removes; pinned_at in milliseconds since 1970."""

    epoch: Epoch
    pinned_at: int


class Tombstone(NamedTuple):
    """A removed manifest, whose records are kept for readers for a while; removed_at in milliseconds since 1970."""

    epoch: Epoch
    removed_at: int
    data: bytes


class ClearedRecords(NamedTuple):
    """The number of records that were removed, or would be, and their bytes."""

    records: int = 0
    removed_bytes: int = 0

    def plus(self, other: ClearedRecords) -> ClearedRecords:
        """The sum of both."""
        return ClearedRecords(self.records + other.records, self.removed_bytes + other.removed_bytes)


def no_such_epoch(epoch: Epoch) -> InputError:
    """The error for an epoch that does not exist."""
    return InputError(f"there is no snapshot of epoch {epoch}; refold snapshot --list shows those there are")


class EpochReader(ABC):
    """The interface for reading an epoch."""

    @abstractmethod
    def latest(self, until: Epoch) -> Epoch | None:
        """The newest sealed epoch of a partition at or below `until`."""

    @abstractmethod
    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        """An epoch's manifest in stored form, or None."""

    @abstractmethod
    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of the existing records with start <= offset < end, in order."""

    def manifest(self, epoch: Epoch) -> Manifest:
        """An epoch's manifest.

        Raises:
            CorruptionError: It is damaged or missing.
        """
        data = self.manifest_bytes(epoch)
        if data is None:
            raise CorruptionError(f"the manifest of epoch {epoch} is gone")
        return read_manifest(data, epoch)

    def span(self, partition: int, span: OffsetSpan) -> Iterator[tuple[int, bytes]]:
        """A span's records.

        Raises:
            CorruptionError: One is missing.
        """
        expected = span.start
        for offset, data in self.records(partition, span.start, span.end):
            if offset != expected:
                break
            expected += 1
            yield offset, data
        if expected != span.end:
            raise CorruptionError(f"the snapshot record {partition}={expected} is gone")


class EpochWriter(EpochReader):
    """The interface for sealing an epoch."""

    def take(self, partition: int) -> None:
        """Begin to write a partition: make everything that was written to it by now visible."""

    @abstractmethod
    def end(self, partition: int) -> int:
        """The next offset in a partition."""

    @abstractmethod
    def append(self, partition: int, data: bytes) -> None:
        """Write a record at the partition's next offset. It is as durable as the next sealed epoch.

        This store can read it at once, others when it is sealed at the latest.
        """

    def extend(self, partition: int, records: Sequence[bytes]) -> None:
        """`append` several records, in order. If that raises, some of them may have been appended."""
        for data in records:
            self.append(partition, data)

    def abandon(self, partition: int) -> None:
        """Give up the records that were appended to a partition since the last `seal`."""

    @abstractmethod
    def seal(self, epoch: Epoch, data: bytes) -> None:
        """Make an epoch visible. It survives a crash of the process, and after `SnapshotStore.sync` of the machine."""


class SnapshotReader(EpochReader):
    """The reader's interface, for any process."""

    @abstractmethod
    def epochs(self, partition: int) -> Sequence[Epoch]:
        """The sealed epochs of a partition, by offset."""

    def latest(self, until: Epoch) -> Epoch | None:
        return next((epoch for epoch in reversed(self.epochs(until.partition)) if epoch <= until), None)

    @abstractmethod
    def pins(self) -> Sequence[Pin]:
        """The pinned epochs."""

    @abstractmethod
    def tombstones(self) -> Iterable[Tombstone]:
        """The removed manifests whose records may still exist."""


class SnapshotStore(SnapshotReader, EpochWriter):
    """The reader's and writer's interface, for the log's owner, one thread at a time."""

    @abstractmethod
    def stop(self) -> None:
        """Refuse further appends: `append` raises StorageError from now on, also in a thread that is writing an
        epoch.
        """

    @abstractmethod
    def sync(self) -> None:
        """Return when every sealed epoch is durable."""

    @abstractmethod
    def pin(self, pin: Pin) -> None:
        """Pin an epoch, durable on return."""

    @abstractmethod
    def unpin(self, epoch: Epoch) -> None:
        """Unpin an epoch."""

    @abstractmethod
    def add_tombstone(self, *tombstones: Tombstone) -> None:
        """Replace manifests of one partition by tombs, atomically, durable on return; their records stay."""

    @abstractmethod
    def clear(
        self, partition: int, kept: Sequence[tuple[int, int]], forgotten: Sequence[Epoch], *, dry_run: bool = False
    ) -> ClearedRecords:
        """Remove every record outside the kept [start, end) and the tombs of `forgotten`; returns what was removed.

        Records at or above the end at this call stay. A removed record may still be readable for some time; it is not
        removed or counted again.

        Args:
            dry_run: Remove nothing.
        """


PIN, TOMB = b"pin/", b"tomb/"
_U64 = struct.Struct(">Q")


def pin_value(pin: Pin) -> bytes:
    """A pin's stored form."""
    return sealed(_U64.pack(pin.pinned_at))


def tombstone_value(tomb: Tombstone) -> bytes:
    """A tomb's stored form."""
    return sealed(_U64.pack(tomb.removed_at) + tomb.data)


def pin_of(epoch: Epoch, value: bytes) -> Pin:
    """Decode a pin.

    Raises:
        CorruptionError: It is damaged.
    """
    return Pin(epoch, _u64(unsealed(value, f"the pin of epoch {epoch}"), "a pin"))


def tombstone_of(epoch: Epoch, value: bytes) -> Tombstone:
    """Decode a tomb.

    Raises:
        CorruptionError: It is damaged.
    """
    data = unsealed(value, f"the tomb of epoch {epoch}")
    return Tombstone(epoch, _u64(data, "a tomb"), data[_U64.size :])


def _u64(value: bytes, what: str) -> int:
    try:
        number: int = _U64.unpack_from(value)[0]
    except struct.error as error:
        raise CorruptionError(f"{what} cannot be read ({value.hex()[:80]}): {error}") from error
    return number


class Snapshot(NamedTuple):
    """One sealed epoch. If its manifest is damaged, only `problem` is set.

    Attributes:
        entities, observations: The numbers of entities and of distinct observations at the epoch.
        records, size: The number and the size in bytes of the records that sealing it wrote.
        recorded_at: The greatest time of the records below it, in milliseconds since 1970.
        pinned_at: When it was pinned, in milliseconds since 1970; None if it is not.
        root: The root over the partition's entities.
    """

    epoch: Epoch
    is_base: bool = False
    entities: int = 0
    observations: int = 0
    records: int = 0
    size: int = 0
    recorded_at: int = 0
    pinned_at: int | None = None
    root: bytes = b""
    problem: str = ""


def every_epoch(reader: SnapshotReader, partitions: int) -> Iterator[Epoch]:
    """The sealed epochs, partition by partition, by offset."""
    for partition in range(partitions):
        yield from reader.epochs(partition)


def listed(reader: SnapshotReader, epochs: Iterable[Epoch]) -> Iterator[Snapshot]:
    """Yield the listing of some epochs, in their order."""
    pinned_at = {pin.epoch: pin.pinned_at for pin in reader.pins()}
    for epoch in epochs:
        try:
            found = reader.manifest(epoch)
        except CorruptionError as error:
            yield Snapshot(epoch, pinned_at=pinned_at.get(epoch), problem=str(error))
            continue
        yield Snapshot(
            epoch, found.is_base, found.entities, found.observations, found.records, found.size, found.recorded_at,
            pinned_at.get(epoch), found.root,
        )  # fmt: skip
