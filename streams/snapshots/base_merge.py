"""Makes a base from the last epoch's ranges and the changes since, by the native kernel.

Reading the entities from the table takes several calls of Python for each, and their keys and states are sent to
the sealing process. The ranges have the same entities in few long records.

1. Read the deltas whole: they have about as many entities as a base at most. Read the base's range record by record.
2. The kernel merges the spans by place, each newer one over the older ones. It writes the chunks that it would write of
   the table, with the same bytes.
3. At the end every span must have the digest that the manifest has of it, and every bucket the digest that sealing
   knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.avro.errors import CorruptionError
from refold.avro.kernel import Kernel
from refold.streams.digest import Digests
from refold.streams.partitioner import slots_of
from refold.streams.snapshots.delta import LeftToPython, given
from refold.streams.snapshots.manifest import Manifest, OffsetSpan
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.store import EpochReader


class MergedBase:
    """The chunks of a base.

    Args:
        last: The manifest of the last epoch, without closed entities.
        delta: The chunks of the entities that changed since.
        partitions: The number of the log's partitions.
        settings: The size of chunks, and of the deltas.

    Attributes:
        entities: The number of entities; known at the end.
    """

    def __init__(
        self, kernel: Kernel, reader: EpochReader, last: Manifest, delta: Iterator[bytes], partitions: int,
        settings: SnapshotSettings,
    ) -> None:  # fmt: skip
        self._kernel = kernel
        self._reader = reader
        self._last = last
        self._delta = delta
        self._partitions = partitions
        self._settings = settings
        self.entities = 0

    def chunks(self, digests: Digests) -> Iterator[bytes]:
        """Yield the chunks.

        Args:
            digests: Those of all buckets, with the changes.

        Raises:
            CorruptionError: After some or all of the chunks: a record of the ranges is missing, or they are damaged.
            LeftToPython: In the same way: the deltas are too large, or the kernel does not take a chunk.
        """
        base, *deltas = self._last.ranges
        spans = [self._delta, *reversed(self._deltas(deltas)), self._records(base)]
        merger = self._kernel.SpanMerger(self._settings.chunk_bytes, len(spans))
        needed: Sequence[int] = range(len(spans))
        while needed:
            full, needed = given(merger.add([(number, next(spans[number], None)) for number in needed]))
            yield from full
        last, self.entities, slots, found = given(merger.end())
        if found[1:] != [span.digest for span in reversed(self._last.ranges)]:
            raise CorruptionError("the last epoch's records do not match what was sealed")
        known = {slot: digests.buckets(slot) for slot in slots_of(self._last.epoch.partition, self._partitions)}
        if {slot: buckets for slot, buckets in known.items() if any(buckets)} != dict(slots):
            raise CorruptionError("the last epoch's records do not have the states of the table")
        if last is not None:
            yield last

    def _deltas(self, spans: Sequence[OffsetSpan]) -> list[Iterator[bytes]]:
        """The records of each delta. They are read in one pass, because each pass takes a message."""
        if not spans:
            return []
        partition = self._last.epoch.partition
        wanted = {offset for span in spans for offset in range(span.start, span.end)}
        held: dict[int, bytes] = {}
        left = self._settings.merged_bytes or 0
        for offset, data in self._reader.records(partition, spans[0].start, spans[-1].end):
            if offset in wanted:  # others are of epochs that were not finished
                held[offset] = data
                left -= len(data)
                if left < 0:
                    raise LeftToPython
        if held.keys() != wanted:
            raise CorruptionError("a record of the last epoch is gone")
        return [iter([held[offset] for offset in range(span.start, span.end)]) for span in spans]

    def _records(self, span: OffsetSpan) -> Iterator[bytes]:
        return (data for _, data in self._reader.span(self._last.epoch.partition, span))
