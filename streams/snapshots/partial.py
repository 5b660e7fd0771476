"""Reading a few slots of an epoch: of each sorted span only the chunks they stand in, found by halving.

1. Where the epoch has closed entities, read the records that hold the slots' bucket digests (cold.py).
2. Of each range, read the chunks from the one where a slot begins to the one where it ends: each is part of a layer.
3. Hash the slots' buckets that stand in them again; the slots match the manifest's.
The spans' digests are not checked, for they are not read whole: a chunk's CRC-32C and its slot's digest are. What does
not match is a CorruptionError, as in read.py. Entities of other slots may come along, not all and not the latest.
"""

from __future__ import annotations

from collections.abc import Collection

from refold.streams.digest import Digests
from refold.streams.partition import BUCKETS, slots_of
from refold.streams.snapshots.cold import BUCKET_SLOTS, Instead, closed_in, take_buckets
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Manifest
from refold.streams.snapshots.read import check_slots
from refold.streams.snapshots.spans import ChunkCache, SortedSpan, record_at
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import EpochReader


def read_slots(
    reader: EpochReader, manifest: Manifest, partitions: int, store: ChunkStore, slots: Collection[int],
    instead: Instead | None = None,
) -> Layers:  # fmt: skip
    """The entities of some of the partition's slots, checked against the manifest; instead: see cold.py."""
    partition = manifest.epoch.partition
    every = slots_of(partition, partitions)
    layers = Layers(store, closed_in(reader, manifest, instead))
    layers.settled_by(_buckets(reader, manifest, every, slots))
    for span in reversed(manifest.ranges):
        chunks = SortedSpan(reader, partition, span, ChunkCache())
        for offset in sorted({at for slot in slots for at in chunks.covering(slot * BUCKETS, (slot + 1) * BUCKETS)}):
            where, data = record_at(reader, partition, offset)
            layers.add(data, where)
    check_slots(layers.rehash(), manifest, partitions, slots)
    return layers


def _buckets(reader: EpochReader, manifest: Manifest, every: range, slots: Collection[int]) -> Digests:
    """The bucket digests that the epoch stores of the slots and their neighbours."""
    digests = Digests()
    offsets = [offset for span in manifest.buckets for offset in range(span.start, span.end)]
    for number in {every.index(slot) // BUCKET_SLOTS for slot in slots} if offsets else ():
        record = record_at(reader, manifest.epoch.partition, offsets[number])
        take_buckets(digests, every[number * BUCKET_SLOTS : (number + 1) * BUCKET_SLOTS], iter([record]))
    return digests
