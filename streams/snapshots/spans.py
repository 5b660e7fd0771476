"""Reads spans of chunks sorted by place: lookups and merges."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from refold.avro.errors import CorruptionError
from refold.streams.defaults import OPEN_CHUNKS
from refold.streams.snapshots.chunk import Chunk
from refold.streams.snapshots.manifest import OffsetSpan
from refold.streams.snapshots.store import EpochReader

Pair = tuple[bytes, bytes]
ReadGroup = Callable[[Chunk, int], list[Pair]]
"""Reads a group of a chunk: `Chunk.hashes` or `Chunk.members`."""


def record_at(reader: EpochReader, partition: int, offset: int) -> tuple[str, bytes]:
    """Return one record.

    Args:
        reader: Reads `.snapshots`.
        partition: The record's partition.
        offset: Its offset.

    Returns:
        (place as text, bytes).

    Raises:
        CorruptionError: The record is gone.
    """
    where = place_text(partition, offset)
    for _, data in reader.records(partition, offset, offset + 1):
        return where, data
    raise CorruptionError(f"{where} is gone: garbage collection removed it; rebuild again")


def place_text(partition: int, offset: int) -> str:
    """The name of a record in errors."""
    return f"the snapshot record {partition}={offset}"


class ChunkCache:
    """A cache of recently read chunks.

    Args:
        open_chunks: How many it has at most.
    """

    def __init__(self, open_chunks: int = OPEN_CHUNKS) -> None:
        self._open_chunks = open_chunks
        self._chunks: OrderedDict[tuple[int, int], Chunk] = OrderedDict()

    def get(self, reader: EpochReader, partition: int, offset: int) -> Chunk:
        found = self._chunks.get((partition, offset))
        if found is None:
            where, data = record_at(reader, partition, offset)
            found = self._chunks[partition, offset] = Chunk(data, where)
            if len(self._chunks) > self._open_chunks:
                self._chunks.popitem(last=False)
        return found


class SortedSpan:
    """A span of chunks sorted by place, with binary search."""

    def __init__(self, reader: EpochReader, partition: int, span: OffsetSpan, cache: ChunkCache) -> None:
        self._reader = reader
        self._partition = partition
        self._span = span
        self._cache = cache
        self._firsts: dict[int, int] = {}

    def locate(self, place: int) -> tuple[Chunk, int] | None:
        """The chunk and the number of the group with a place, or None."""
        at = self._record_before(place)
        if at >= self._span.end:
            return None
        chunk = self._chunk(at)
        group = chunk.group_of(place)
        return None if group is None else (chunk, group)

    def covering(self, start: int, end: int) -> Iterator[int]:
        """The offsets of the records that may hold places with start <= place < end, ascending."""
        at = self._record_before(start)
        while at < self._span.end and self._first(at) < end:
            yield at
            at += 1

    def chunks(self) -> Iterator[Chunk]:
        """All chunks."""
        return map(self._chunk, range(self._span.start, self._span.end))

    def groups(self, number: int, read: ReadGroup) -> Iterator[tuple[int, int, list[Pair]]]:
        """Yield (place, number, the group's pairs) for all groups."""
        for chunk in self.chunks():
            for group, place in enumerate(chunk.places):
                yield place, number, read(chunk, group)

    def _record_before(self, place: int) -> int:
        """The offset of the last record that begins at or before a place, else of the first."""
        low, high = self._span.start, self._span.end
        while high - low > 1:
            middle = (low + high) // 2
            if self._first(middle) <= place:
                low = middle
            else:
                high = middle
        return low

    def _first(self, offset: int) -> int:
        first = self._firsts.get(offset)
        if first is None:
            first = self._firsts[offset] = self._chunk(offset).places[0]
        return first

    def _chunk(self, offset: int) -> Chunk:
        return self._cache.get(self._reader, self._partition, offset)


def merged(
    reader: EpochReader, partition: int, spans: list[OffsetSpan], read: ReadGroup, open_chunks: int
) -> Iterator[tuple[int, list[Pair]]]:
    """Merge several spans by key.

    Args:
        reader: Reads `.snapshots`.
        partition: The spans' partition.
        spans: Oldest first; for a key in several spans the last one counts.
        read: Reads one span.
        open_chunks: How many chunks are in memory at most.

    Yields:
        (place, pairs in key order).
    """
    cache = ChunkCache(open_chunks)
    each = [SortedSpan(reader, partition, span, cache).groups(number, read) for number, span in enumerate(spans)]
    for place, groups in groupby(heapq.merge(*each, key=lambda group: group[:2]), key=lambda group: group[0]):
        found: dict[bytes, bytes] = {}
        for _, _, pairs in groups:
            found.update(pairs)
        yield place, sorted(found.items())


def hashes_at(index: Iterable[SortedSpan], place: int) -> dict[bytes, bytes]:
    """Key to state hash at a place of an index; later spans take precedence."""
    found: dict[bytes, bytes] = {}
    for span in index:
        located = span.locate(place)
        if located is not None:
            found.update(located[0].hashes(located[1]))
    return found
