"""Reading an epoch: from its manifest to the entities, each span and digest checked.

1. Read the manifest; it is of this log and this fold.
2. Read each range in order: no record is missing, the span's digest matches; each is a layer. Where it does not match,
   the records' own checksums say which of them is damaged.
3. Hash every bucket and slot again (of closed entities: see cold.py); they match the manifest's.
What does not is a CorruptionError: the caller goes on with another epoch. Closed entities are checked as they are asked
for: what then is damaged is folded from the log instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from refold.avro.errors import CorruptionError
from refold.streams.checksum import unsealed
from refold.streams.digest import Digests
from refold.streams.partition import slots_of
from refold.streams.snapshots.cold import Instead, closed_in, take_buckets
from refold.streams.snapshots.hashing import RunningHash
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Manifest, Span
from refold.streams.snapshots.spans import place_text
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import SnapshotReader


def read_span(reader: SnapshotReader, partition: int, span: Span) -> Iterator[tuple[str, bytes]]:
    """(place, bytes) of a span's records, unchecked until after the last the span's digest is."""
    with RunningHash() as running:
        for offset, data in reader.span(partition, span):
            running.update(data)
            yield place_text(partition, offset), data
        found = running.digest()
    if found != span.digest:
        for offset, data in reader.span(partition, span):
            unsealed(data, place_text(partition, offset))
        raise CorruptionError(
            f"the snapshot records {partition}={span.start} to {span.end - 1} are not what was sealed"
        )


def read_epoch(
    reader: SnapshotReader, manifest: Manifest, partitions: int, store: ChunkStore, instead: Instead | None = None
) -> Layers:
    """The entities of an epoch, checked against its manifest; instead: see cold.py."""
    layers = read_ranges(reader, manifest, partitions, store, instead)
    check_slots(layers.rehash(), manifest, partitions)
    return layers


def read_ranges(
    reader: SnapshotReader, manifest: Manifest, partitions: int, store: ChunkStore, instead: Instead | None = None
) -> Layers:
    """The entities of an epoch, each record and span checked."""
    partition = manifest.epoch.partition
    layers = Layers(store, closed_in(reader, manifest, instead))
    for number, span in enumerate(manifest.ranges):
        for where, data in read_span(reader, partition, span):
            layers.add(data, where, checked=True)
        if number == 0 and manifest.buckets:
            digests = Digests()
            records = chain.from_iterable(read_span(reader, partition, each) for each in manifest.buckets)
            take_buckets(digests, slots_of(partition, partitions), records)
            layers.settled_by(digests)
    return layers


def check_slots(digests: Digests, manifest: Manifest, partitions: int) -> None:
    """Raise CorruptionError unless the digests are those of the manifest."""
    for slot, expected in zip(slots_of(manifest.epoch.partition, partitions), manifest.slots, strict=True):
        if digests.slot(slot) != expected:
            raise CorruptionError(f"the snapshot {manifest.epoch} does not hash to its manifest in slot {slot}")
