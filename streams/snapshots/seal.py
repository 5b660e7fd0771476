"""Seals an epoch: writes a partition's table at one point as records of `.snapshots` and a manifest.

1. Find the partition's last epoch. If it is at this very point, return it. A base is written from the whole table if
   there is no last epoch, if its manifest or records are damaged, if a type's definition changed since, or if other
   observations are set aside now.
2. The delta is the entities with a distinct observation at or above the last epoch's offset (delta.py). Change their
   buckets (buckets.py).
3. When the deltas since the base, this one included, have about as many entities as the base, write a base instead.
   Without closed entities, a base is also written if half as many observations were folded since the last epoch, and at
   least `observations_min`: then step 2 is left out, and the base is made from the whole table, about two entities for
   each of the observations at most. Other bases are made from the whole table, or from the last epoch's ranges with the
   delta over them. The latter is used if there are closed entities (closed_entities.py), so that they are not read
   again; in a process without the table (sealing_process/) that has no kernel; and by the kernel, up to `merged_bytes`
   (base_merge.py).
4. Append the records; then seal the manifest. A writer that ends before that leaves records that no manifest names; one
   that fails abandons them.
The written bytes are a function of the log and of the earlier epochs: two owners write the same bytes.

A span is a range of consecutive records with a digest over them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from refold.avro.errors import StorageError
from refold.avro.kernel import Kernel, find_kernel
from refold.reducers.entity import stored_hash
from refold.streams.checksum import sealed
from refold.streams.cut import FOLD_VERSION
from refold.streams.digest import Digests, root_over
from refold.streams.partitioner import slots_of
from refold.streams.snapshots.base_merge import MergedBase
from refold.streams.snapshots.buckets import PREIMAGES_BYTES, Buckets
from refold.streams.snapshots.chunk import (
    Chunk,
    Group,
    Member,
    Piece,
    chunks_of,
    chunks_of_pieces,
    hash_chunks_of,
    piece_of,
    split,
)
from refold.streams.snapshots.closed_entities import bucket_records, closed_month
from refold.streams.snapshots.delta import Changes, LeftToPython, given
from refold.streams.snapshots.manifest import ColdSpan, Epoch, Manifest, OffsetSpan, encode_manifest, read_manifest
from refold.streams.snapshots.read import check_slots, read_ranges
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.spans import ChunkCache, ReadGroup, SortedSpan, hashes_at, merged
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import EpochReader, EpochWriter
from refold.streams.snapshots.table import EpochState, TableView


class SpanWriter:
    """Appends records to one partition, span by span.

    Args:
        chunk_bytes: A chunk is full at this size.
    """

    def __init__(self, store: EpochWriter, partition: int, chunk_bytes: int) -> None:
        self._store = store
        self._chunk_bytes = chunk_bytes
        self.partition = partition
        self.count = 0
        self.size = 0

    def span(self, groups: Iterable[Group]) -> OffsetSpan:
        """Entities as chunks."""
        return self.records(chunks_of(groups, self._chunk_bytes))

    def pieces(self, pieces: Iterable[Piece]) -> OffsetSpan:
        """Entities as chunks."""
        return self.records(chunks_of_pieces(pieces, self._chunk_bytes))

    def hashes(self, groups: Iterable[Group]) -> OffsetSpan:
        """(key, state hash) pairs as chunks."""
        return self.records(hash_chunks_of(groups, self._chunk_bytes))

    def records(self, records: Iterable[bytes]) -> OffsetSpan:
        """Records, unchanged."""
        start, digest = self._store.end(self.partition), hashlib.sha256()
        for data in records:
            self._store.append(self.partition, data)
            self.count += 1
            self.size += len(data)
            digest.update(data)
        return OffsetSpan(start, self._store.end(self.partition), digest.digest())


# The data of a base is in memory up to this size, and beyond it in a file.
BASE_BYTES = 4 << 20
# By partition, at how many 32nds of a base's entities the next base is due. Otherwise partitions that grow equally
# would all write a base at once, and a base takes as long as many deltas.
DUE = (32, 26, 36, 30, 24, 34, 28, 38)

Write = Callable[[Iterable[Group]], OffsetSpan]
"""Writes groups as a span."""
Kept = dict[int, tuple[Epoch, Buckets]]
"""The last sealed epoch and its buckets, by partition."""


class Sealer:
    """Seals the epochs of one log, one at a time for each partition."""

    def __init__(
        self, store: EpochWriter, log_id: bytes, partitions: int, kept: Kept | None = None, *,
        from_ranges: bool = False, settings: SnapshotSettings = DEFAULT_SETTINGS,
    ) -> None:  # fmt: skip
        """Create it.

        Args:
            store: Where epochs are written.
            log_id: The log's id, 16 bytes.
            partitions: The number of the log's partitions.
            kept: What sealers of one log share; None for its own.
            from_ranges: Reading the last epoch's ranges is cheaper here than reading the table.
            settings: When a base is due, and the size of chunks.
        """
        self._store = store
        self._from_ranges = from_ranges
        self._settings = settings
        self._log_id = log_id
        self._partitions = partitions
        self._kept = {} if kept is None else kept

    def seal(self, table: TableView) -> Manifest:
        """Seal the epoch of a view; the store determines its durability."""
        epoch = table.epoch_state.epoch
        self._store.take(epoch.partition)
        last = self._last(table)
        if last is not None and last.epoch == epoch:
            return last
        try:
            return self._write(table, last)
        except BaseException:
            self._store.abandon(epoch.partition)
            raise

    def _write(self, table: TableView, last: Manifest | None) -> Manifest:
        epoch = table.epoch_state.epoch
        written = self._span_writer(epoch.partition)
        known, buckets = self._kept.pop(epoch.partition, (None, None))
        parts = None
        if last is not None and not is_whole(table.epoch_state, last, self._settings):
            if buckets is None or known != last.epoch:
                buckets = self._hashed(table)
            parts, written = self._over(table, last, buckets, written)
        if parts is None or buckets is None:
            parts, buckets, written = self._base_from_table(table, written)
        data = encode_manifest(self._manifest(table.epoch_state, last, parts, buckets.digests, written))
        self._store.seal(epoch, data)
        self._kept[epoch.partition] = (epoch, buckets)
        return read_manifest(data, epoch)

    def _last(self, table: TableView) -> Manifest | None:
        """The partition's last epoch, if the next one can be based on it."""
        epoch_state = table.epoch_state
        epoch = self._store.latest(epoch_state.epoch)
        if epoch is None:
            return None
        try:
            manifest = self._store.manifest(epoch)
        except StorageError:
            return None
        holds = manifest.log_id == self._log_id and manifest.fold_version == FOLD_VERSION
        same = all(epoch_state.types.get(name) == found for name, found in manifest.types.items())
        return manifest if holds and same and manifest.leaves_out(epoch_state.aside) else None

    def _base_from_table(self, table: TableView, written: SpanWriter) -> tuple[_EpochSpans, Buckets, SpanWriter]:
        """Write a base from the whole table."""
        buckets, partition = self._new_buckets(), written.partition
        kernel = self._kernel(table)
        if kernel is not None:
            try:
                return self._by_kernel(kernel, table, buckets, written), buckets, written
            except LeftToPython:
                buckets, written = self._new_buckets(), self._anew(partition)
        pieces = buckets.passing(starmap(piece_of, table.groups()))
        parts = self._base(table.epoch_state, pieces, table.members, buckets, written, None)
        return parts, buckets, written

    def _anew(self, partition: int) -> SpanWriter:
        """Abandon the records that were appended to the epoch, and begin it again."""
        self._store.abandon(partition)
        self._store.take(partition)
        return self._span_writer(partition)

    def _span_writer(self, partition: int) -> SpanWriter:
        return SpanWriter(self._store, partition, self._settings.chunk_bytes)

    def _kernel(self, table: TableView) -> Kernel | None:
        """The kernel, if it can write a base of the table."""
        return None if table.epoch_state.closing else find_kernel().kernel

    def _new_buckets(self) -> Buckets:
        return Buckets(PREIMAGES_BYTES // self._partitions)

    def _hashed(self, table: TableView) -> Buckets:
        """The buckets of a whole table."""
        kernel = find_kernel().kernel
        if kernel is not None:
            buckets = self._new_buckets()
            try:
                writer = kernel.BaseWriter(self._settings.chunk_bytes)
                for rows in table.rows():
                    given(writer.add(rows))
                _, _, slots = given(writer.end())
                for slot in slots:
                    buckets.set_slot(*slot)
                return buckets
            except LeftToPython:
                pass
        buckets = self._new_buckets()
        deque(buckets.passing(starmap(piece_of, table.groups())), 0)
        return buckets

    def _by_kernel(self, kernel: Kernel, table: TableView, buckets: Buckets, written: SpanWriter) -> _EpochSpans:
        """Write a base from the whole table, without closed entities, and set its buckets."""
        writer = kernel.BaseWriter(self._settings.chunk_bytes)
        entities = 0

        def chunks() -> Iterator[bytes]:
            nonlocal entities
            for rows in table.rows():
                yield from given(writer.add(rows))
            last, entities, slots = given(writer.end())
            for slot in slots:
                buckets.set_slot(*slot)
            if last is not None:
                yield last

        return _EpochSpans((written.records(chunks()),), entities, 0, (), (), ())

    def _over(
        self, table: TableView, last: Manifest, buckets: Buckets, written: SpanWriter
    ) -> tuple[_EpochSpans | None, SpanWriter]:
        """Write a delta, or a base from the last epoch's ranges; None if a base from the whole table is due."""
        kernel = find_kernel().kernel
        if kernel is not None:
            try:
                return self._with(self._changes(table, last, buckets, kernel), table, last, buckets, written)
            except LeftToPython:
                written = self._anew(written.partition)
        return self._with(self._changes(table, last, buckets, None), table, last, buckets, written)

    def _changes(self, table: TableView, last: Manifest, buckets: Buckets, kernel: Kernel | None) -> Changes:
        return Changes(table, last.epoch.offset, buckets, kernel, self._settings.chunk_bytes)

    def _with(
        self, changes: Changes, table: TableView, last: Manifest, buckets: Buckets, written: SpanWriter
    ) -> tuple[_EpochSpans | None, SpanWriter]:
        """`_over`, with these changes."""
        parts = _EpochSpans(last.ranges, last.warm, last.changed, last.cold, last.index, last.buckets)
        due = base_due(last, self._settings)
        if last.changed + changes.at_most >= due and last.changed + changes.count() >= due:
            kernel = self._kernel(table)
            if kernel is not None and self._settings.merged_bytes and not last.cold:
                return self._merged(kernel, changes, last, buckets, written)
            from_ranges = self._from_ranges and kernel is None
            if not last.cold and not from_ranges:  # reading the table itself is cheapest
                return None, written
            return self._base_over(table, last, changes, buckets, written), written
        span = written.records(changes.chunks())
        return replace(parts, ranges=(*last.ranges, span), changed=last.changed + changes.count()), written

    def _merged(
        self, kernel: Kernel, changes: Changes, last: Manifest, buckets: Buckets, written: SpanWriter
    ) -> tuple[_EpochSpans | None, SpanWriter]:
        """Write a base from the last epoch's ranges and the changes since, by the kernel; None if that fails."""
        base = MergedBase(kernel, self._store, last, changes.chunks(), self._partitions, self._settings)
        try:
            span = written.records(base.chunks(buckets.digests))
        except (StorageError, LeftToPython):
            return None, self._anew(written.partition)
        return _EpochSpans((span,), base.entities, 0, (), (), ()), written

    def _base_over(
        self, table: TableView, last: Manifest, changes: Changes, buckets: Buckets, written: SpanWriter
    ) -> _EpochSpans | None:
        """Write a base from the last epoch's ranges and the changes since; None if the ranges are damaged."""
        try:
            # A layer for each range, and one or two for the changes.
            store = ChunkStore(
                BASE_BYTES, open_min=len(last.ranges) + 2, chunk_bytes=self._settings.chunk_bytes,
                open_chunks=self._settings.open_chunks, put_bytes=self._settings.put_bytes,
            )  # fmt: skip
            layers = read_ranges(self._store, last, self._partitions, store)
            check_slots(layers.rehash(), last, self._partitions)
            layers.put_pieces(changes.pieces())
            return self._base(table.epoch_state, layers.pieces(), layers.members, buckets, written, last)
        except StorageError:
            return None

    def _base(
        self, epoch_state: EpochState, pieces: Iterable[Piece], find: Callable[[int], list[Member]], known: Buckets,
        written: SpanWriter, last: Manifest | None,
    ) -> _EpochSpans:  # fmt: skip
        """Write a base from these pieces and the closed entities of `last`."""
        closing = epoch_state.closing
        closed: dict[tuple[str, str], dict[int, list[bytes]]] = {}
        open_count = 0

        def warm() -> Iterator[Piece]:
            nonlocal open_count
            for piece in map(opened, pieces) if closing else pieces:
                open_count += len(piece[2])
                if piece[2]:
                    yield piece

        def opened(piece: Piece) -> Piece:
            """The piece without closed entities."""
            place, preimages, bodies = piece
            left = []
            for (key, _), body in zip(split(preimages), bodies, strict=True):
                month = closed_month(closing, key, body)
                if month is None:
                    left.append((key, body))
                else:
                    closed.setdefault(month, {}).setdefault(place, []).append(key)
            return piece if len(left) == len(bodies) else piece_of(place, left)

        span = written.pieces(warm())
        cold = last.cold if last is not None else ()
        index = last.index if last is not None else ()
        buckets: tuple[OffsetSpan, ...] = ()
        if closed:
            every = _joined(closed.values())
            hashes = written.hashes(
                (place, [(key, stored_hash(body)) for key, body in members]) for place, members in _chosen(every, find)
            )
            index = tuple(self._grown(written.partition, index, hashes, Chunk.hashes, written.hashes))
            present = _Present(self._store, written.partition, index, every, find, self._settings.open_chunks)
            for (type_name, month), places in sorted(closed.items()):
                alike = [each.span for each in cold if (each.type_name, each.month) == (type_name, month)]
                others = tuple(each for each in cold if (each.type_name, each.month) != (type_name, month))
                new = written.span(_chosen(places, find))
                spans = self._grown(
                    written.partition, alike, new, Chunk.members, lambda groups: written.span(present.of(groups))
                )
                cold = (*others, *(ColdSpan(type_name, month, each) for each in spans))
        if cold:
            slots = slots_of(epoch_state.epoch.partition, self._partitions)
            buckets = (written.records(map(sealed, bucket_records(known.digests, slots))),)
        return _EpochSpans((span,), open_count, 0, cold, index, buckets)

    def _grown(
        self, partition: int, spans: Sequence[OffsetSpan], new: OffsetSpan, read: ReadGroup, write: Write
    ) -> list[OffsetSpan]:
        """Add a span. Earlier spans that are not much longer are merged with it, so there are always few."""
        left, alike = list(spans), [new]
        while left and _length(left[-1]) <= 2 * sum(map(_length, alike)):
            alike.insert(0, left.pop())
        if len(alike) > 1:
            new = write(merged(self._store, partition, alike, read, self._settings.open_chunks))
        return [*left, new]

    def _manifest(
        self, epoch_state: EpochState, last: Manifest | None, parts: _EpochSpans, digests: Digests, written: SpanWriter
    ) -> Manifest:
        slots = {slot: digests.slot(slot) for slot in slots_of(epoch_state.epoch.partition, self._partitions)}
        return Manifest(
            log_id=self._log_id,
            epoch=epoch_state.epoch,
            ranges=parts.ranges,
            entities=epoch_state.entities,
            observations=epoch_state.observations,
            slots=tuple(slots.values()),
            root=root_over(slots, epoch_state.entities),
            types=epoch_state.types,
            recorded_at=epoch_state.recorded_at,
            warm=parts.warm,
            changed=parts.changed,
            cold=parts.cold,
            index=parts.index,
            buckets=parts.buckets,
            deadletters=epoch_state.deadletters,
            records=written.count,
            size=written.size,
            previous=b"" if last is None else last.digest,
            aside=tuple(sorted(each for each in epoch_state.aside if each < epoch_state.epoch.offset)),
        )


@dataclass(frozen=True, slots=True)
class _EpochSpans:
    """The spans of an epoch; see Manifest."""

    ranges: tuple[OffsetSpan, ...]
    warm: int
    changed: int
    cold: tuple[ColdSpan, ...]
    index: tuple[OffsetSpan, ...]
    buckets: tuple[OffsetSpan, ...]


def base_due(last: Manifest, settings: SnapshotSettings) -> int:
    """The number of entities in the deltas since the last base at which a base is due."""
    part = DUE[last.epoch.partition % len(DUE)]
    return max(last.warm * part // 32, settings.changed_min if last.cold else 1)


def whole_due(last: Manifest, settings: SnapshotSettings) -> int | None:
    """The number of observations since an epoch at which the next one is a base from the whole table, without looking
    at the changed entities; None for none.
    """
    return None if last.cold else max(base_due(last, settings) // 2, settings.observations_min)


def is_whole(epoch_state: EpochState, last: Manifest, settings: SnapshotSettings) -> bool:
    """Whether an epoch after `last` is such a base."""
    due = whole_due(last, settings)
    return due is not None and epoch_state.observations - last.observations >= due


class _Present:
    """Selects the bodies in cold spans that are current: of entities that are closed and have not changed since."""

    def __init__(
        self, reader: EpochReader, partition: int, index: Sequence[OffsetSpan], closed: Mapping[int, list[bytes]],
        find: Callable[[int], list[Member]], open_chunks: int,
    ) -> None:  # fmt: skip
        cache = ChunkCache(open_chunks)
        self._index = [SortedSpan(reader, partition, span, cache) for span in index]
        self._closed = closed
        self._find = find

    def of(self, groups: Iterable[Group]) -> Iterator[Group]:
        """The groups without outdated bodies."""
        for place, members in groups:
            hashes = hashes_at(self._index, place)
            opened = {key for key, _ in self._find(place)}.difference(self._closed.get(place, ()))
            left = [(key, body) for key, body in members
                    if key not in opened and hashes.get(key) == stored_hash(body)]  # fmt: skip
            if left:
                yield place, left


def _chosen(places: Mapping[int, list[bytes]], find: Callable[[int], list[Member]]) -> Iterator[Group]:
    for place in sorted(places):
        wanted = set(places[place])
        yield place, [member for member in find(place) if member[0] in wanted]


def _joined(several: Iterable[Mapping[int, list[bytes]]]) -> dict[int, list[bytes]]:
    joined: dict[int, list[bytes]] = {}
    for places in several:
        for place, keys in places.items():
            joined.setdefault(place, []).extend(keys)
    return joined


def _length(span: OffsetSpan) -> int:
    return span.end - span.start
