"""Sealing an epoch: what a partition's table holds at one point becomes records of `.snapshots` and a manifest.

1. Find the partition's last epoch. One at this very point is the answer. Without one, where its manifest or records are
   damaged, or where a type's definition is another since, or other observations are set aside, a base is written from
   the whole table.
2. Take the entities with a distinct observation at or above the last epoch's offset, as the fold told of them, or by
   the log's records and the table: they are a delta. Change their buckets (buckets.py).
3. When the deltas since the base, this one included, hold about as many entities as the base, write a base instead: of
   the whole table, or of the last epoch's ranges with these over them: where there are closed entities
   (closed_entities.py), so that they are not read again, and in a process that has not the table at hand (apart/).
4. Append the records; then seal the manifest. A writer that ends before leaves records that no manifest names, one that
   fails abandons them.
What is written is a function of the log and of the epochs before: two owners write the same bytes.

Writing spans: records appended one after another, and the digest over them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from refold.avro.errors import StorageError
from refold.reducers.entity import stored_hash, stored_highest
from refold.streams.checksum import sealed
from refold.streams.cut import FOLD_VERSION
from refold.streams.digest import Digests, root_over
from refold.streams.partition import PLACE_BYTES, place_in, slots_of
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
from refold.streams.snapshots.manifest import Cold, Epoch, Manifest, OffsetSpan, encode_manifest, read_manifest
from refold.streams.snapshots.read import check_slots, read_ranges
from refold.streams.snapshots.spans import ChunkCache, Read, SortedSpan, hashes_at, merged
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import EpochReader, EpochWriter
from refold.streams.snapshots.table import EpochState, TableView


class SpanWriter:
    """Appends records to one partition, span by span."""

    def __init__(self, store: EpochWriter, partition: int) -> None:
        self._store = store
        self.partition = partition
        self.count = 0
        self.size = 0

    def span(self, groups: Iterable[Group]) -> OffsetSpan:
        """Entities as chunks."""
        return self.records(chunks_of(groups))

    def pieces(self, pieces: Iterable[Piece]) -> OffsetSpan:
        """Entities as chunks."""
        return self.records(chunks_of_pieces(pieces))

    def hashes(self, groups: Iterable[Group]) -> OffsetSpan:
        """(key, state hash) pairs as chunks."""
        return self.records(hash_chunks_of(groups))

    def records(self, records: Iterable[bytes]) -> OffsetSpan:
        """Records as they are."""
        start, digest = self._store.end(self.partition), hashlib.sha256()
        for data in records:
            self._store.append(self.partition, data)
            self.count += 1
            self.size += len(data)
            digest.update(data)
        return OffsetSpan(start, self._store.end(self.partition), digest.digest())


# With closed entities each base writes all bucket digests: so many changes have to pay for them.
CHANGED_MIN = 4096
# What a base is made of stands in memory up to this, and beyond it in a file.
BASE_BYTES = 4 << 20
# By partition, at how many 32nds of a base's entities the next one is due: partitions that grow alike would all have
# theirs written at once else, and a base takes as long as many deltas.
DUE = (32, 26, 36, 30, 24, 34, 28, 38)

Write = Callable[[Iterable[Group]], OffsetSpan]
"""Writes groups of what was read as a span."""
Kept = dict[int, tuple[Epoch, Buckets]]
"""By partition, the epoch sealed last, and its buckets."""


class Sealer:
    """Seals the epochs of one log, of a partition one at a time."""

    def __init__(
        self, store: EpochWriter, log_id: bytes, partitions: int, kept: Kept | None = None, *, from_ranges: bool = False
    ) -> None:
        """kept: what the sealers of one log know of it. from_ranges: reading the last epoch's ranges is cheaper here
        than reading the table."""
        self._store = store
        self._from_ranges = from_ranges
        self._log_id = log_id
        self._partitions = partitions
        self._kept = {} if kept is None else kept

    def seal(self, table: TableView) -> Manifest:
        """Seal the epoch a view stands at; its store says how lasting it is."""
        epoch = table.standing.epoch
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
        epoch = table.standing.epoch
        written = SpanWriter(self._store, epoch.partition)
        known, buckets = self._kept.pop(epoch.partition, (None, None))
        pieces: Iterator[Piece] = starmap(piece_of, table.groups())
        if buckets is None or last is None or known != last.epoch:
            buckets = Buckets(PREIMAGES_BYTES // self._partitions)
            if last is None:
                pieces = buckets.passing(pieces)
            else:
                deque(buckets.passing(starmap(piece_of, table.groups())), 0)
        parts = None if last is None else self._over(table, last, buckets, written)
        if parts is None:
            parts = self._base(table.standing, pieces, table.members, buckets.digests, written, None)
        data = encode_manifest(self._manifest(table.standing, last, parts, buckets.digests, written))
        self._store.seal(epoch, data)
        self._kept[epoch.partition] = (epoch, buckets)
        return read_manifest(data, epoch)

    def _last(self, table: TableView) -> Manifest | None:
        """The partition's last epoch, if the next one may stand on it."""
        standing = table.standing
        epoch = self._store.latest(standing.epoch)
        if epoch is None:
            return None
        try:
            manifest = self._store.manifest(epoch)
        except StorageError:
            return None
        holds = manifest.log_id == self._log_id and manifest.fold_version == FOLD_VERSION
        same = all(standing.types.get(name) == found for name, found in manifest.types.items())
        return manifest if holds and same and manifest.leaves_out(standing.aside) else None

    def _over(self, table: TableView, last: Manifest, buckets: Buckets, written: SpanWriter) -> _Parts | None:
        """A delta or a base on the last epoch; None where a base is due and the whole table is to be read for it."""
        changes = _Changes(table, last.epoch.offset, buckets)
        parts = _Parts(last.ranges, last.warm, last.changed, last.cold, last.index, last.buckets)
        due = base_due(last)
        if last.changed + changes.at_most >= due and last.changed + changes.count() >= due:
            if not last.cold and not self._from_ranges:  # the table itself is the shortest way
                return None
            return self._base_over(table, last, changes, buckets.digests, written)
        span = written.pieces(changes.pieces())
        return replace(parts, ranges=(*last.ranges, span), changed=last.changed + changes.count())

    def _base_over(
        self, table: TableView, last: Manifest, changes: _Changes, digests: Digests, written: SpanWriter
    ) -> _Parts | None:
        """A base of the last epoch's ranges and what changed since; None where what it rests on is damaged."""
        try:
            # A layer of each range, and one or two of what changed.
            store = ChunkStore(BASE_BYTES, open_min=len(last.ranges) + 2)
            layers = read_ranges(self._store, last, self._partitions, store)
            check_slots(layers.rehash(), last, self._partitions)
            layers.put_pieces(changes.pieces())
            return self._base(table.standing, layers.pieces(), layers.members, digests, written, last)
        except StorageError:
            return None

    def _base(
        self, standing: EpochState, pieces: Iterable[Piece], find: Callable[[int], list[Member]], digests: Digests,
        written: SpanWriter, last: Manifest | None,
    ) -> _Parts:  # fmt: skip
        """A base of these pieces, and of what `last` holds closed."""
        closing = standing.closing
        closed: dict[tuple[str, str], dict[int, list[bytes]]] = {}
        open_count = 0

        def warm() -> Iterator[Piece]:
            nonlocal open_count
            for piece in map(opened, pieces) if closing else pieces:
                open_count += len(piece[2])
                if piece[2]:
                    yield piece

        def opened(piece: Piece) -> Piece:
            """The piece without what is closed."""
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
            present = _Present(self._store, written.partition, index, every, find)
            for (type_name, month), places in sorted(closed.items()):
                alike = [each.span for each in cold if (each.type_name, each.month) == (type_name, month)]
                others = tuple(each for each in cold if (each.type_name, each.month) != (type_name, month))
                new = written.span(_chosen(places, find))
                spans = self._grown(
                    written.partition, alike, new, Chunk.members, lambda groups: written.span(present.of(groups))
                )
                cold = (*others, *(Cold(type_name, month, each) for each in spans))
        if cold:
            slots = slots_of(standing.epoch.partition, self._partitions)
            buckets = (written.records(map(sealed, bucket_records(digests, slots))),)
        return _Parts((span,), open_count, 0, cold, index, buckets)

    def _grown(
        self, partition: int, spans: Sequence[OffsetSpan], new: OffsetSpan, read: Read, write: Write
    ) -> list[OffsetSpan]:
        """Spans with a new one: those before it that are not much longer become one with it, so they stay few."""
        left, alike = list(spans), [new]
        while left and _length(left[-1]) <= 2 * sum(map(_length, alike)):
            alike.insert(0, left.pop())
        if len(alike) > 1:
            new = write(merged(self._store, partition, alike, read))
        return [*left, new]

    def _manifest(
        self, standing: EpochState, last: Manifest | None, parts: _Parts, digests: Digests, written: SpanWriter
    ) -> Manifest:
        slots = {slot: digests.slot(slot) for slot in slots_of(standing.epoch.partition, self._partitions)}
        return Manifest(
            log_id=self._log_id,
            epoch=standing.epoch,
            ranges=parts.ranges,
            entities=standing.entities,
            observations=standing.observations,
            slots=tuple(slots.values()),
            root=root_over(slots, standing.entities),
            types=standing.types,
            recorded_at=standing.recorded_at,
            warm=parts.warm,
            changed=parts.changed,
            cold=parts.cold,
            index=parts.index,
            buckets=parts.buckets,
            deadletters=standing.deadletters,
            records=written.count,
            size=written.size,
            previous=b"" if last is None else last.digest,
            aside=tuple(sorted(each for each in standing.aside if each < standing.epoch.offset)),
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an epoch reads; see Manifest."""

    ranges: tuple[OffsetSpan, ...]
    warm: int
    changed: int
    cold: tuple[Cold, ...]
    index: tuple[OffsetSpan, ...]
    buckets: tuple[OffsetSpan, ...]


def base_due(last: Manifest) -> int:
    """At how many entities in the deltas since the base of the last epoch a base is due."""
    part = DUE[last.epoch.partition % len(DUE)]
    return max(last.warm * part // 32, CHANGED_MIN if last.cold else 1)


class _Changes:
    """The entities with a distinct observation since an offset; their buckets are changed on the way.

    at_most: no more than this, known without reading them.
    """

    def __init__(self, table: TableView, start: int, buckets: Buckets) -> None:
        self._table = table
        self._start = start
        self._buckets = buckets
        self._touched = table.touched(start)
        self._is_known = buckets.may_change() and all(self._touched.values())
        self._count: int | None = None
        self.at_most = len(self._touched)

    def count(self) -> int:
        """How many they are."""
        if self._count is None:
            for _ in self.pieces():
                pass
        assert self._count is not None
        return self._count

    def pieces(self) -> Iterator[Piece]:
        """Them, by place."""
        count = 0
        for piece in self._told() if self._is_known else self._read():
            count += len(piece[2])
            yield piece
        self._count = count

    def _told(self) -> Iterator[Piece]:
        """As the fold told."""
        start, is_first = self._start, self._count is None
        groups: dict[int, list[Member]] = {}
        for key, packed in self._touched.items():
            if stored_highest(packed) >= start:
                groups.setdefault(place_in(key), []).append((key[PLACE_BYTES:], packed))
        for place in sorted(groups):
            piece = piece_of(place, sorted(groups[place]))
            if is_first:
                self._buckets.change(piece)
            yield piece

    def _read(self) -> Iterator[Piece]:
        """From the table."""
        start, is_first = self._start, self._count is None
        for place, members in self._table.at(sorted(set(map(place_in, self._touched)))):
            piece = piece_of(place, members)
            if is_first:
                self._buckets.set(*piece)
            changed = [member for member in members if stored_highest(member[1]) >= start]
            if changed:
                yield piece if len(changed) == len(members) else piece_of(place, changed)


class _Present:
    """Which bodies in cold spans are those of entities that are closed now, and not of what became of them later."""

    def __init__(
        self, reader: EpochReader, partition: int, index: Sequence[OffsetSpan], closed: Mapping[int, list[bytes]],
        find: Callable[[int], list[Member]],
    ) -> None:  # fmt: skip
        cache = ChunkCache()
        self._index = [SortedSpan(reader, partition, span, cache) for span in index]
        self._closed = closed
        self._find = find

    def of(self, groups: Iterable[Group]) -> Iterator[Group]:
        """The groups without the others."""
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
