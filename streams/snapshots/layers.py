"""One partition's entities at one point, encoded: chunks over chunks, later ones over earlier ones.

1. Each range of a snapshot becomes one layer, the latest first and the base last: a group whose entities are all above
   it already is never read again.
2. Entities that are folded after it are put above them; a large number of them becomes a separate layer (its chunks may
   be written to disk), and LAYERS_TO_MERGE such layers of one size become one, so a view of any size takes bounded
   memory.
3. For each place it is known which chunks hold a valid part of it; a lookup asks the latest first.
4. Below all are the closed entities of the epoch, which are read from their spans when they are needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from refold.avro.errors import CorruptionError
from refold.avro.kernel import Kernel, LayerMerger, SlotDigests, find_kernel
from refold.streams.digest import Digests, preimage
from refold.streams.partitioner import PLACE_BYTES, all_placed, place_in, place_of
from refold.streams.snapshots.chunk import Chunk, Member, Piece, chunks_of_pieces, merged_preimages, newest, piece_of
from refold.streams.snapshots.closed_entities import ColdEntities
from refold.streams.snapshots.spans import ReadGroup
from refold.streams.snapshots.spill import ChunkPlace, ChunkStore
from refold.streams.snapshots.table import Row

LAYERS_TO_MERGE = 8
# The kernel keeps what the digests cover, some 70 bytes an entity, up to this size.
PREIMAGES_BYTES_MAX = 8 << 20
# Up to so many of a slot's buckets get their digests one by one; more are cheaper together.
SINGLE_BUCKETS_MAX = 16
_GROUP_BITS = 24
_GROUP_MASK = (1 << _GROUP_BITS) - 1

T = TypeVar("T")
Later = Callable[[Callable[[], T]], Callable[[], T]]
"""Begins some work in another thread, and returns a function that waits for its result."""


class Layers:
    """Encoded entities by name. A name that was not put and is in no layer does not exist; nothing is ever removed."""

    def __init__(self, store: ChunkStore, cold: ColdEntities | None = None) -> None:
        self._store = store
        self._cold = cold
        # A place's newest group (chunk number, then number of the group), and below a group the next older one: plain
        # numbers, because Python's garbage collector would traverse tuples of them.
        self._newest: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._last_place = -1
        self._put: dict[str, bytes] = {}
        self._put_bytes = 0
        self._spilled: list[tuple[int, list[int]]] = []  # (level, chunk numbers) of layers made from put entities
        # For each place that changed since digests were made: the preimage of its open entities, or None if it is
        # unknown.
        self._unhashed: dict[int, bytes | None] = {}
        self._kernel = find_kernel().kernel
        # The kernel's preimages of all places; None if digests are computed here. What a thread computes of them.
        self._merger: LayerMerger | None = None
        self._pending: Callable[[], SlotDigests | None] | None = None
        self.digests = Digests()

    # Taking in

    def add(
        self, data: bytes, where: str, filed: ChunkPlace | None = None, *, checked: bool = False, hashed: bool = False
    ) -> None:
        """Add a chunk of a layer below all that were added before; CorruptionError if its bytes are damaged.

        A layer's chunks are added in order, and all layers before anything is put or hashed.

        Args:
            filed: The file that holds it, so it need not be kept in memory.
            checked: The caller checks its bytes.
            hashed: `set_digests` was given its digests, and no other layer follows.
        """
        chunk = Chunk(data, where, checked=checked)
        self._add_groups(chunk, self._store.add(chunk, filed) << _GROUP_BITS, hashed=hashed)

    def add_all(self, records: Iterable[tuple[str, bytes]], kernel: Kernel, later: Later[SlotDigests | None]) -> None:
        """Like `add`, of all chunks of all layers, by the kernel. The caller checks their bytes.

        Args:
            records: Where each chunk is, for errors, and its bytes.
            kernel: The native kernel.
            later: Lets another thread compute the digests, until `rehash`.
        """
        merger = kernel.LayerMerger()
        is_merged, numbers = True, []
        for where, data in records:
            number = self._store.add(Chunk(data, where, checked=True))
            numbers.append(number)
            is_merged = is_merged and merger.add(data, number << _GROUP_BITS)
        if is_merged:
            self._newest, self._older = merger.groups()
            self._merger, self._pending = merger, later(merger.digests)
            return
        for number in numbers:
            self._add_groups(self._store.get(number), number << _GROUP_BITS)

    def _add_groups(self, chunk: Chunk, ref: int, *, hashed: bool = False) -> None:
        """Merge a chunk, whose first group is `ref`, with those above it."""
        places, preimages = chunk.places.tolist(), chunk.preimages()
        if not places:
            return
        tops, older, known = self._newest, self._older, self._unhashed
        is_first = places[0] > self._last_place
        self._last_place = max(self._last_place, places[-1])
        if is_first:
            tops.update(zip(places, range(ref, ref + len(places)), strict=True))
            if not hashed:
                known.update(zip(places, preimages, strict=True))
            return
        for place, own in zip(places, preimages, strict=True):
            above = known.get(place)
            if above is None:
                tops[place] = ref
                if not hashed:
                    known[place] = own
            elif (both := merged_preimages(own, above)) != above:
                known[place] = both
                last = tops[place]
                while last in older:
                    last = older[last]
                older[last] = ref
            ref += 1

    def _add_chunk(self, chunk: Chunk) -> int:
        """Add a chunk of a layer above all others."""
        number = self._store.add(chunk)
        for ref, place in enumerate(chunk.places, number << _GROUP_BITS):
            below = self._newest.get(place)
            self._newest[place] = ref
            if self._merger is None:
                self._unhashed[place] = None
            if below is not None:
                self._older[ref] = below
        return number

    def put(self, entity: str, packed: bytes) -> None:
        """Set an entity."""
        old = self._put.get(entity)
        self._put[entity] = packed
        self._put_bytes += len(packed) - (len(old) if old is not None else -len(entity))
        if self._put_bytes > self._store.put_bytes:
            self.make_layer()

    def make_layer(self) -> None:
        """Make a layer of the put entities."""
        if not self._put:
            return
        rows = sorted(zip(all_placed(list(self._put)), self._put.values(), strict=True))
        chunks = self._chunks_by_kernel(rows)
        if chunks is None:
            self._hash_here()
            chunks = list(self.chunks(
                piece_of(place, [(key[PLACE_BYTES:], packed) for key, packed in members])
                for place, members in groupby(rows, lambda row: place_in(row[0]))
            ))  # fmt: skip
        self._put.clear()
        self._put_bytes = 0
        self._stack(chunks)

    def _chunks_by_kernel(self, rows: Sequence[Row]) -> list[bytes] | None:
        """Return the chunks of rows, which are in order. They are also put over what the kernel keeps. None if Python
        has to make them, because one is damaged.
        """
        if self._kernel is None:
            return None
        writer = self._kernel.DeltaWriter(self._store.chunk_bytes, 0, False)
        added, ended = writer.add(rows), writer.end()
        if added is None or ended is None:
            return None
        chunks, places, preimages = added
        self._take_pending()
        if self._merger is not None and not self._merger.put(places, preimages):
            self._take_over(None)
        return [*chunks, *filter(None, ended[:1])]

    def put_pieces(self, pieces: Iterable[Piece]) -> None:
        """Set entities that are sorted by place."""
        self.make_layer()
        self._hash_here()
        self._stack(self.chunks(pieces))

    def _hash_here(self) -> None:
        """From now on compute digests in Python."""
        self._take_digests()
        self._merger = None

    def _stack(self, chunks: Iterable[bytes]) -> None:
        """Add the chunks of a layer above all others."""
        self._spilled.append((0, self._layer(chunks)))
        self._merge()

    def chunks(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        """Pieces as chunks of the size that the store's chunks have."""
        return chunks_of_pieces(pieces, self._store.chunk_bytes)

    def _layer(self, chunks: Iterable[bytes]) -> list[int]:
        return [self._add_chunk(Chunk(data, "a view", checked=True)) for data in chunks]

    def _merge(self) -> None:
        """Merge the last LAYERS_TO_MERGE layers of one level into one of the next."""
        while (
            len(self._spilled) >= LAYERS_TO_MERGE and len({level for level, _ in self._spilled[-LAYERS_TO_MERGE:]}) == 1
        ):
            level = self._spilled[-1][0]
            old = {number for _, numbers in self._spilled[-LAYERS_TO_MERGE:] for number in numbers}
            del self._spilled[-LAYERS_TO_MERGE:]
            merged: dict[int, list[int]] = {}
            for place in list(self._newest):
                above = [ref for ref in self._refs(place) if ref >> _GROUP_BITS in old]  # they are its newest
                if above:
                    merged[place] = above
                    self._cut(place, above)
            pieces = (piece_of(place, self._merged(merged[place])) for place in sorted(merged))
            numbers = self._layer(self.chunks(pieces))
            for number in old:
                self._store.drop(number)
            self._spilled.append((level + 1, numbers))

    def _cut(self, place: int, above: list[int]) -> None:
        """Remove a place's newest groups."""
        below = self._older.get(above[-1])
        for ref in above:
            self._older.pop(ref, None)
        if below is None:
            del self._newest[place]
        else:
            self._newest[place] = below

    # Asking

    def _refs(self, place: int) -> list[int]:
        """The groups of a place, newest first."""
        found = []
        ref = self._newest.get(place)
        while ref is not None:
            found.append(ref)
            ref = self._older.get(ref)
        return found

    def get(self, entity: str) -> bytes | None:
        """The encoded entity, or None."""
        found = self._put.get(entity)
        if found is not None:
            return found
        place, key = place_of(entity), entity.encode()
        for ref in self._refs(place):
            found = self._store.get(ref >> _GROUP_BITS).find(ref & _GROUP_MASK, key)
            if found is not None:
                return found
        return None if self._cold is None else self._cold.get(place, key)

    def get_each(self, entities: Sequence[str]) -> list[bytes | None]:
        """`get` of each entity. A chunk is opened once for all entities of which it is the newest, once for all of
        which it is the second newest, and so on.
        """
        found = [self._put.get(entity) for entity in entities]
        keys = all_placed(entities)
        asked: dict[int, int] = {}  # by the number of an entity: the group to look in
        for number, key in enumerate(keys):
            if found[number] is None and (ref := self._newest.get(place_in(key))) is not None:
                asked[number] = ref
        while asked:
            below: dict[int, int] = {}
            by_chunk = sorted(asked.items(), key=itemgetter(1))
            for chunk_number, some in groupby(by_chunk, lambda each: each[1] >> _GROUP_BITS):
                numbers, refs = zip(*some, strict=True)
                groups, placed = [ref & _GROUP_MASK for ref in refs], [keys[number] for number in numbers]
                bodies = self._store.get(chunk_number).find_each(groups, placed)
                for number, ref, body in zip(numbers, refs, bodies, strict=True):
                    found[number] = body
                    if body is None and ref in self._older:
                        below[number] = self._older[ref]
            asked = below
        if self._cold is not None:
            cold = self._cold
            return [
                cold.get(place_in(key), key[PLACE_BYTES:]) if body is None else body
                for key, body in zip(keys, found, strict=True)
            ]
        return found

    def pieces(self) -> Iterator[Piece]:
        """Yield all open entities, by place."""
        self.make_layer()
        for place in sorted(self._newest):
            found: dict[bytes, tuple[bytes, bytes]] = {}
            for ref in reversed(self._refs(place)):
                for key, own, body in self._store.get(ref >> _GROUP_BITS).parts(ref & _GROUP_MASK):
                    found[key] = own, body
            entities = [found[key] for key in sorted(found)]
            yield place, b"".join([own for own, _ in entities]), [body for _, body in entities]

    def members(self, place: int) -> list[Member]:
        """The open entities of a place in key order."""
        self.make_layer()
        return self._merged(self._refs(place))

    def hashes(self, place: int) -> list[tuple[bytes, bytes]]:
        """(key, state hash) of the entities of a place, in key order."""
        self.make_layer()
        refs = self._refs(place)
        if len(refs) == 1 and self._cold is None:
            return self._store.get(refs[0] >> _GROUP_BITS).hashes(refs[0] & _GROUP_MASK)
        return sorted(self._latest(refs, Chunk.hashes, {} if self._cold is None else self._cold.hashes(place)).items())

    def rows(self, reads: Callable[[str, str], bool] | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield (entity, encoded) of all, each once.

        Args:
            reads: Selects the type and month (YYYY-MM) of closing of the closed ones to read; None for all.

        Raises:
            CorruptionError: Closed entities are missing from their spans.
        """
        self.make_layer()
        alone: dict[int, bytearray] = {}  # by chunk: of which groups no other chunk has a part that counts
        shared = []
        for place, ref in self._newest.items():
            if ref in self._older:
                shared.append(place)
                continue
            number = ref >> _GROUP_BITS
            if number not in alone:
                alone[number] = bytearray(len(self._store.get(number).places))
            alone[number][ref & _GROUP_MASK] = 1
        for number in sorted(alone):
            yield from self._store.get(number).rows(alone[number])
        for place in sorted(shared):
            for key, packed in self._merged(self._refs(place)):
                yield key.decode(), packed
        if self._cold is None:
            return
        missing = sum(1 for _ in self._only_closed()) if reads is None else 0
        for place, key, packed in self._cold.rows(reads or (lambda _type_name, _month: True)):
            if not self._is_open(place, key):
                missing -= 1
                yield key.decode(), packed
        if reads is None and missing:
            raise CorruptionError(f"{missing} closed entities are in no snapshot that should hold them")

    def names(self) -> Iterator[str]:
        """Every entity, each once."""
        self.make_layer()
        for place in self._newest:
            for key in self._open_keys(place):
                yield key.decode()
        yield from self._only_closed()

    def _only_closed(self) -> Iterator[str]:
        """Yield the entities that are only among the closed ones."""
        if self._cold is None:
            return
        known: set[bytes] = set()
        for place, key in self._cold.names():
            if key not in known and not self._is_open(place, key):
                known.add(key)
                yield key.decode()

    def _is_open(self, place: int, key: bytes) -> bool:
        """Whether a key is above the closed ones."""
        return key in self._open_keys(place)

    def _open_keys(self, place: int) -> Collection[bytes]:
        return self._latest(self._refs(place), Chunk.hashes, {}).keys()

    def _merged(self, refs: list[int]) -> list[Member]:
        if len(refs) == 1:
            return self._store.get(refs[0] >> _GROUP_BITS).members(refs[0] & _GROUP_MASK)
        return sorted(self._latest(refs, Chunk.members, {}).items())

    def _latest(self, refs: list[int], read: ReadGroup, found: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Read several groups, newest first, and merge them into `found`, newer over older."""
        for ref in reversed(refs):
            found.update(read(self._store.get(ref >> _GROUP_BITS), ref & _GROUP_MASK))
        return found

    # Digests

    def set_digests(self, digests: Digests) -> None:
        """Set the digests of everything that was added until now, without computing them."""
        self.digests = digests
        self._unhashed.clear()
        self._merger = self._pending = None

    def rehash(self) -> Digests:
        """Return the digests of all places; places with added entities are hashed again."""
        self.make_layer()
        self._take_digests()
        unhashed, digest_of, digests = self._unhashed, hashlib.sha256, self.digests
        for slot, each in groupby(sorted(unhashed), lambda place: place >> 8):  # in the order of their chunks
            places = list(each)
            if len(places) <= SINGLE_BUCKETS_MAX:
                for place in places:
                    digests.set(place, digest_of(self._preimage(place, unhashed[place])).digest())
                continue
            buckets = digests.each_bucket(slot)
            for place in places:
                buckets[place & 0xFF] = digest_of(self._preimage(place, unhashed[place])).digest()
            digests.set_buckets(slot, b"".join(buckets))
        unhashed.clear()
        return self.digests

    def _take_digests(self) -> None:
        """Take over the kernel's digests. It lets its preimages go when it is asked again after they were taken."""
        if self._pending is not None:
            self._take_pending()
        elif self._merger is not None:
            self._take_over(self._merger.digests())
            self._merger = None

    def _take_pending(self) -> None:
        """Take over the digests that the kernel computes since `add_all`."""
        if self._pending is not None:
            found, self._pending = self._pending(), None
            self._take_over(found)
            if self._merger is not None and self._merger.size()[1] > PREIMAGES_BYTES_MAX:
                self._merger = None

    def _take_over(self, found: SlotDigests | None) -> None:
        """Take over digests of the kernel; None if all have to be computed here."""
        for slot, buckets in found or ():
            self.digests.set_buckets(slot, buckets)
        if found is None:
            self._merger = None
            self._unhashed = dict.fromkeys(self._newest)

    def _preimage(self, place: int, known: bytes | None) -> bytes:
        """A place's preimage; known: as in `_unhashed`."""
        if known is None:
            groups = [self._store.get(ref >> _GROUP_BITS).preimage(ref & _GROUP_MASK) for ref in self._refs(place)]
            known = reduce(merged_preimages, reversed(groups))
        if self._cold is None:
            return known
        return newest(b"".join([*(preimage(*each) for each in self._cold.hashes(place).items()), known]))
