"""Reads an epoch: from its manifest to the entities, with every span and digest checked.

1. Read the manifest; check that it belongs to this log and this fold version.
2. Read each range in order, as a layer; check that no record is missing and that the spans' digests match. If one does
   not, the records' checksums show which record is damaged.
3. Hash every bucket and slot again (for closed entities see closed_entities.py); they must match the manifest. A
mismatch is a CorruptionError, and the caller uses another epoch. Closed entities are checked when they are read;
damaged ones are folded from the log instead.

Reading a few slots of an epoch: only the chunks that contain them, found by binary search in each sorted span.

1. If the epoch has closed entities, read the records with the slots' bucket digests (closed_entities.py).
2. In each range, read the chunks from the first to the last one of a slot: each is part of a layer.
3. Hash the slots' buckets again; the slots must match the manifest. The spans' digests are not checked, because the
spans are not read as a whole; each chunk's CRC-32C and its slot's digest are. A mismatch is a CorruptionError. The
result may contain some entities of other slots, not all of them and not their latest states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import NamedTuple, NoReturn

from refold.avro.errors import CorruptionError
from refold.avro.kernel import find_kernel
from refold.streams.checksum import unsealed
from refold.streams.digest import Digests
from refold.streams.partitioner import BUCKETS, slots_of
from refold.streams.snapshots.closed_entities import BUCKET_SLOTS, DamageFallback, closed_in, take_buckets
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Manifest, OffsetSpan
from refold.streams.snapshots.spans import ChunkCache, SortedSpan, place_text, record_at
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import EpochReader

_PIECE_BYTES = 1 << 20


class _Spans:
    """Reads spans of one partition. The data is unchecked until `check`."""

    def __init__(self, reader: EpochReader, partition: int, hashes: RunningHashes) -> None:
        self._reader = reader
        self._partition = partition
        self._hashes = hashes
        self._read: list[tuple[OffsetSpan, Callable[[], bytes]]] = []

    def read(self, span: OffsetSpan) -> Iterator[tuple[str, bytes]]:
        """Yield (place, bytes) of a span's records."""
        self._hashes.begin()
        for offset, data in self._reader.span(self._partition, span):
            self._hashes.update(data)
            yield place_text(self._partition, offset), data
        self._read.append((span, self._hashes.end()))

    def check(self) -> None:
        """Compare everything that was read with the spans' digests."""
        for span, found in self._read:
            if found() != span.digest:
                self._raise(span)

    def _raise(self, span: OffsetSpan) -> NoReturn:
        for offset, data in self._reader.span(self._partition, span):
            unsealed(data, place_text(self._partition, offset))
        raise CorruptionError(
            f"the snapshot records {self._partition}={span.start} to {span.end - 1} do not match what was sealed"
        )


class UncheckedEpoch(NamedTuple):
    """An epoch's entities. They are valid only after `check` returned; it raises CorruptionError if they are
    damaged.
    """

    layers: Layers
    check: Callable[[], None]


def read_epoch(
    reader: EpochReader, manifest: Manifest, partitions: int, store: ChunkStore, fallback: DamageFallback | None = None
) -> Layers:
    """The entities of an epoch, checked against its manifest.

    Args:
        fallback: See closed_entities.py.
    """
    with RunningHashes() as hashes:
        layers, check = begin_epoch(reader, manifest, partitions, store, hashes, fallback)
        check()
    return layers


def begin_epoch(
    reader: EpochReader, manifest: Manifest, partitions: int, store: ChunkStore, hashes: RunningHashes,
    fallback: DamageFallback | None = None,
) -> UncheckedEpoch:  # fmt: skip
    """`read_epoch` without the check: until `check`, its spans are hashed in the background."""
    layers, check_spans = _begin_ranges(reader, manifest, partitions, store, hashes, fallback)

    def check() -> None:
        check_spans()
        check_slots(layers.rehash(), manifest, partitions)

    return UncheckedEpoch(layers, check)


def read_ranges(reader: EpochReader, manifest: Manifest, partitions: int, store: ChunkStore) -> Layers:
    """The entities of an epoch, with each record and span checked; takes little memory, but more time."""
    with RunningHashes(_PIECE_BYTES) as hashes:
        layers, check = _begin_ranges(reader, manifest, partitions, store, hashes)
        check()
        layers.rehash()  # waits for what the kernel computes in the thread of `hashes`
    return layers


def _begin_ranges(
    reader: EpochReader, manifest: Manifest, partitions: int, store: ChunkStore, hashes: RunningHashes,
    fallback: DamageFallback | None = None,
) -> UncheckedEpoch:  # fmt: skip
    partition = manifest.epoch.partition
    layers = Layers(store, closed_in(reader, manifest, fallback, open_chunks=store.open_chunks))
    spans = _Spans(reader, partition, hashes)
    if manifest.buckets:
        digests = Digests()
        records = chain.from_iterable(map(spans.read, manifest.buckets))
        take_buckets(digests, slots_of(partition, partitions), records)
        layers.set_digests(digests)
    base, kernel = manifest.ranges[0], find_kernel().kernel
    if kernel is not None and not manifest.buckets and not manifest.cold:
        layers.add_all(chain.from_iterable(map(spans.read, reversed(manifest.ranges))), kernel, hashes.later)
    else:
        for span in reversed(manifest.ranges):
            for where, data in spans.read(span):
                layers.add(data, where, checked=True, hashed=span is base and bool(manifest.buckets))
        layers.rehash()  # while the last of the spans are hashed
    return UncheckedEpoch(layers, spans.check)


def check_slots(digests: Digests, manifest: Manifest, partitions: int, slots: Collection[int] | None = None) -> None:
    """Check the digests of slots against a manifest.

    Args:
        digests: What was read.
        manifest: The epoch's manifest.
        partitions: The number of the log's partitions.
        slots: Which slots; None for all.

    Raises:
        CorruptionError: They differ.
    """
    for slot, expected in zip(slots_of(manifest.epoch.partition, partitions), manifest.slots, strict=True):
        if (slots is None or slot in slots) and digests.slot(slot) != expected:
            raise CorruptionError(f"the snapshot {manifest.epoch} does not hash to its manifest in slot {slot}")


def read_slots(
    reader: EpochReader, manifest: Manifest, partitions: int, store: ChunkStore, slots: Collection[int],
    fallback: DamageFallback | None = None,
) -> Layers:  # fmt: skip
    """The entities of some of the partition's slots, checked against the manifest.

    Args:
        fallback: See closed_entities.py.
    """
    partition = manifest.epoch.partition
    every = slots_of(partition, partitions)
    layers = Layers(store, closed_in(reader, manifest, fallback, open_chunks=store.open_chunks))
    layers.set_digests(_buckets(reader, manifest, every, slots))
    for span in reversed(manifest.ranges):
        chunks = SortedSpan(reader, partition, span, ChunkCache())
        for offset in sorted({at for slot in slots for at in chunks.covering(slot * BUCKETS, (slot + 1) * BUCKETS)}):
            where, data = record_at(reader, partition, offset)
            layers.add(data, where)
    check_slots(layers.rehash(), manifest, partitions, slots)
    return layers


def _buckets(reader: EpochReader, manifest: Manifest, every: range, slots: Collection[int]) -> Digests:
    """The bucket digests that the epoch stores for the slots and their neighbours."""
    digests = Digests()
    offsets = [offset for span in manifest.buckets for offset in range(span.start, span.end)]
    for number in {every.index(slot) // BUCKET_SLOTS for slot in slots} if offsets else ():
        record = record_at(reader, manifest.epoch.partition, offsets[number])
        take_buckets(digests, every[number * BUCKET_SLOTS : (number + 1) * BUCKET_SLOTS], iter([record]))
    return digests
