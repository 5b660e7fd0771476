"""Closed entities (a type's `refold.closed_by` field is set): left out of bases, so a rebuild costs only open ones.

In addition to its range of open entities a base writes
    cold      a span of chunks for each (type, month of closing) of entities closed since the base before
    index     spans of chunks without bodies: (key, state hash) of closed entities, by place; later ones win
    buckets   the digests of all buckets, closed entities included: 256 a slot, BUCKET_SLOTS slots a record, CRC-32C
and lists those of earlier bases that are still valid; spans of one kind are merged over time (seal.py). A closed entity
that changes is in the deltas, and at the next base either open again or in a new cold span: open and later entries take
precedence over older ones.

A rebuild reads the ranges and the buckets. For a changed bucket it looks up the closed members in the index; an
entity's body is looked up in the cold spans of its type when it is needed, or folded further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from refold.avro.errors import CorruptionError
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.avro.times import time_text
from refold.reducers.cells import Reducer
from refold.reducers.entity import Entity, stored_hash, unpack
from refold.reducers.fold import reducer_of
from refold.reducers.order import observed_at_of
from refold.reducers.registered import NotRegistered
from refold.streams.checksum import unsealed
from refold.streams.digest import EMPTY, Digests
from refold.streams.partitioner import BUCKETS, place_of
from refold.streams.snapshots.manifest import Manifest
from refold.streams.snapshots.spans import ChunkCache, SortedSpan, hashes_at
from refold.streams.snapshots.store import EpochReader

BUCKET_SLOTS = 8
_EMPTY_SLOT = EMPTY * BUCKETS


class ClosingRule(NamedTuple):
    """How entities of a type are closed."""

    field: str
    reducer: Reducer | NotRegistered

    def closed_at(self, entity: Entity) -> int | None:
        """When the observation that closed it was observed, in microseconds; None while it is open.

        Raises:
            NotRegistered: Custom code decides that and is missing here.
        """
        if isinstance(self.reducer, NotRegistered):
            raise self.reducer
        cell = entity.cells.get(self.field)
        if cell is None or not self.reducer.present(cell):
            return None
        return max(observed_at_of(element.q) for element in self.reducer.elements(cell).values())


def closings(registry: Registry, schemas: int | None = None) -> dict[str, ClosingRule]:
    """Return how each type closes, by name, for the types that close."""
    found = {}
    for name in registry.fingerprints(schemas):
        definition = registry.newest(name, schemas).definition
        if definition.closed_by:
            field = definition.fields[definition.closed_by]
            try:
                found[name] = ClosingRule(field.first_name, reducer_of(field))
            except NotRegistered as error:
                found[name] = ClosingRule(field.first_name, error)
    return found


def closed_at(closing: Mapping[str, ClosingRule], name: str, body: bytes) -> int | None:
    """When an encoded entity was closed, in microseconds; None for an open one."""
    found = closing.get(type_of(name))
    return None if found is None else found.closed_at(unpack(name, body))


def closed_month(closing: Mapping[str, ClosingRule], key: bytes, body: bytes) -> tuple[str, str] | None:
    """(type, YYYY-MM) of a closed entity, None for an open one."""
    name = key.decode()
    closed = closed_at(closing, name, body)
    return None if closed is None else (type_of(name), month_of(closed))


def month_of(micros: int) -> str:
    """Return YYYY-MM; some other text for a time outside of the calendar."""
    return time_text(micros)[:7]


class Entities(Protocol):
    """Entities of one partition at one point."""

    def get(self, entity: str) -> bytes | None:
        """The encoded entity, or None."""

    def hashes(self, place: int) -> list[tuple[bytes, bytes]]:
        """(key, state hash) of the entities of a place."""

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield (entity, encoded) for all entities, each once."""


DamageFallback = Callable[[CorruptionError], Entities]
"""Called with the damage of an epoch's closed entities; folds them again, from the log."""


class ColdEntities:
    """The closed entities of an epoch, looked up in their spans.

    If a record there is damaged they are all read from `fallback` from then on, or the error is raised. That source may
    have more entities: open ones are above them anyway.
    """

    def __init__(
        self, reader: EpochReader, manifest: Manifest, fallback: DamageFallback | None, open_chunks: int
    ) -> None:  # fmt: skip
        partition = manifest.epoch.partition
        cache = ChunkCache(open_chunks)
        self._index = [SortedSpan(reader, partition, span, cache) for span in manifest.index]
        self._cold = [(each, SortedSpan(reader, partition, each.span, cache)) for each in manifest.cold]
        self._fallback = fallback
        self._made: Entities | None = None

    def _make(self, error: CorruptionError) -> Entities:
        if self._made is None:
            if self._fallback is None:
                raise error
            self._made = self._fallback(error)
        return self._made

    def hashes(self, place: int) -> dict[bytes, bytes]:
        """Key to state hash of the closed entities of a place."""
        if self._made is None:
            try:
                return hashes_at(self._index, place)
            except CorruptionError as error:
                self._make(error)
        assert self._made is not None
        return dict(self._made.hashes(place))

    def get(self, place: int, key: bytes) -> bytes | None:
        """An encoded closed entity, or None."""
        state_hash = self.hashes(place).get(key)
        if state_hash is None:
            return None
        if self._made is None:
            try:
                return self._stored(place, key, state_hash)
            except CorruptionError as error:
                self._make(error)
        assert self._made is not None
        return self._made.get(key.decode())

    def _stored(self, place: int, key: bytes, state_hash: bytes) -> bytes:
        type_name = type_of(key.decode())
        for cold, span in reversed(self._cold):
            located = span.locate(place) if cold.type_name == type_name else None
            body = None if located is None else located[0].find(located[1], key)
            if body is not None and stored_hash(body) == state_hash:
                return body
        raise CorruptionError(f"the closed entity {key.decode()} is in no snapshot that should hold it")

    def rows(self, reads: Callable[[str, str], bool]) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (place, key, encoded) of the closed entities in the spans with a selected type and month, each once."""
        made = self._made
        given: set[bytes] = set()
        if made is None:
            try:
                yield from self._stored_rows(reads)
                return
            except CorruptionError as error:
                made = self._make(error)
            with suppress(CorruptionError):
                given.update(key for _, key, _ in self._stored_rows(reads))
        for name, body in made.rows():
            if (key := name.encode()) not in given:
                yield place_of(name), key, body

    def _stored_rows(self, reads: Callable[[str, str], bool]) -> Iterator[tuple[int, bytes, bytes]]:
        for cold, span in self._cold:
            if not reads(cold.type_name, cold.month):
                continue
            for chunk in span.chunks():
                for group, place in enumerate(chunk.places):
                    hashes = self.hashes(place)
                    # An entity that changed since it was written here is elsewhere too: the index has its current hash.
                    for key, body in chunk.members(group):
                        if hashes.get(key) == stored_hash(body):
                            yield place, key, body

    def names(self) -> Iterator[tuple[int, bytes]]:
        """Yield (place, key) of every closed entity; some repeatedly."""
        made = self._made
        if made is None:
            try:
                yield from self._stored_names()
                return
            except CorruptionError as error:
                made = self._make(error)
        for name, _ in made.rows():
            yield place_of(name), name.encode()

    def _stored_names(self) -> Iterator[tuple[int, bytes]]:
        for span in self._index:
            for chunk in span.chunks():
                for group, place in enumerate(chunk.places):
                    for key, _ in chunk.hashes(group):
                        yield place, key


def closed_in(
    reader: EpochReader, manifest: Manifest, fallback: DamageFallback | None = None, *, open_chunks: int
) -> ColdEntities | None:
    """Return the closed entities of an epoch.

    Args:
        reader: Reads the epoch's records.
        manifest: Its manifest.
        fallback: Called if their records are damaged; None: the damage is raised.
        open_chunks: How many of their chunks are in memory at most.

    Returns:
        None if the epoch has no closed entities.
    """
    return ColdEntities(reader, manifest, fallback, open_chunks) if manifest.cold else None


def bucket_records(digests: Digests, slots: range) -> Iterator[bytes]:
    """The records, not yet sealed, that hold the digests of all buckets of some slots."""
    for at in range(0, len(slots), BUCKET_SLOTS):
        yield b"".join(digests.buckets(slot) or _EMPTY_SLOT for slot in slots[at : at + BUCKET_SLOTS])


def take_buckets(digests: Digests, slots: range, records: Iterator[tuple[str, bytes]]) -> None:
    """Set the digests from such records, which are sealed."""
    at = 0
    for where, data in records:
        body = unsealed(data, where)
        for number, start in enumerate(range(0, len(body), len(_EMPTY_SLOT))):
            if (buckets := body[start : start + len(_EMPTY_SLOT)]) != _EMPTY_SLOT:
                digests.set_buckets(slots[at + number], buckets)
        at += BUCKET_SLOTS
