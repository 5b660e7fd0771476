"""The sealed epochs of a log, as they are listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from refold.avro.errors import CorruptionError
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import SnapshotReader


class Snapshot(NamedTuple):
    """One sealed epoch. A damaged manifest tells nothing but its `problem`.

    entities, observations (distinct): all at the epoch. records, size (bytes): what sealing it wrote.
    recorded_at, pinned_at: milliseconds. root: over the partition's entities.
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
    """What the manifests of some epochs say, in their order."""
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
