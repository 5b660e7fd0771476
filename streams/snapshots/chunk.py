"""A chunk: whole buckets of encoded entities, as one stored record of `.snapshots` and as a piece of a view.

    format u8 = 1, groups u32, entities u32, preimages u32 (bytes)        big-endian
    places    groups of u32      slot * 256 + bucket, ascending           little-endian, as the next three
    firsts    groups of u32      number of the group's first entity
    starts    groups of u32      where its preimage begins
    ends      entities of u32    where each encoded entity ends
    preimages                    for each entity: key length u32 big-endian, key, state hash
    entities                     their stored forms (reducers/entity.py), one after another
    CRC-32C u32 big-endian

Entities are sorted by place and, within it, by key. A group's part of the preimages is what its bucket's digest covers,
so a chunk is checked by one SHA-256 a bucket, and nothing of it is decoded before it is needed.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from refold.avro.errors import CorruptionError
from refold.avro.kernel import find_kernel
from refold.reducers.entity import stored_hash
from refold.streams.checksum import CRC_BYTES, sealed, unsealed
from refold.streams.digest import preimage
from refold.streams.partitioner import PLACE_BYTES

FORMAT = 1
_HEAD = struct.Struct(">BIII")
_NUMBER = struct.Struct("<I")
NUMBER_BYTES = 4
LENGTH_BYTES = 4
HASH_BYTES = 32

Member = tuple[bytes, bytes]
"""(key, encoded entity)."""
Group = tuple[int, list[Member]]
"""A place and its entities, in key order."""
Piece = tuple[int, bytes, list[bytes]]
"""A place, the preimage of its entities, and their stored forms: a group in written form."""


class ChunkWriter:
    """Collects groups in order; returns a chunk whenever one is full: when its entities have chunk_bytes."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._clear()

    def _clear(self) -> None:
        self._places = array("I")
        self._firsts = array("I")
        self._starts = array("I")
        self._preimages: list[bytes] = []
        self._preimage_bytes = 0
        self._bodies: list[bytes] = []
        self._body_bytes = 0

    def add(self, place: int, members: Sequence[Member]) -> bytes | None:
        """Add a place's entities, in key order; returns a chunk when it is full."""
        return self.put(*piece_of(place, members))

    def add_hashes(self, place: int, hashes: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Add (key, state hash) of a place's entities, without the entities."""
        parts = [preimage(key, state_hash) for key, state_hash in hashes]
        return self.put(place, b"".join(parts), [b""] * len(parts))

    def put(self, place: int, preimages: bytes, bodies: list[bytes]) -> bytes | None:
        """Add a piece.

        Args:
            place: The bucket that the piece belongs to.
            preimages: What the bucket's digest is made from.
            bodies: The encoded entities, in key order.

        Returns:
            A chunk when it is full; else None.
        """
        self._places.append(place)
        self._firsts.append(len(self._bodies))
        self._starts.append(self._preimage_bytes)
        self._preimages.append(preimages)
        self._preimage_bytes += len(preimages)
        self._bodies += bodies
        for body in bodies:
            self._body_bytes += len(body)
        return self.close() if self._body_bytes + self._preimage_bytes >= self._chunk_bytes else None

    def close(self) -> bytes | None:
        """Return what was added since the last chunk as one, or None."""
        if not self._places:
            return None
        head = _HEAD.pack(FORMAT, len(self._places), len(self._bodies), self._preimage_bytes)
        ends = array("I", accumulate(map(len, self._bodies)))
        tables = [_little(each) for each in (self._places, self._firsts, self._starts, ends)]
        data = sealed(b"".join([head, *tables, *self._preimages, *self._bodies]))
        self._clear()
        return data


def piece_of(place: int, members: Sequence[Member]) -> Piece:
    """Return a group in written form."""
    if len(members) == 1:  # as most are
        key, body = members[0]
        return place, preimage(key, stored_hash(body)), [body]
    parts = [preimage(key, stored_hash(body)) for key, body in members]
    return place, b"".join(parts), [body for _, body in members]


def chunks_of(groups: Iterable[Group], chunk_bytes: int) -> Iterator[bytes]:
    """Entities as chunks, as many as they fill."""
    return chunks_of_pieces((piece_of(place, members) for place, members in groups), chunk_bytes)


def chunks_of_pieces(pieces: Iterable[Piece], chunk_bytes: int) -> Iterator[bytes]:
    """Entities as chunks, as many as they fill."""
    writer = ChunkWriter(chunk_bytes)
    for place, preimages, bodies in pieces:
        if (full := writer.put(place, preimages, bodies)) is not None:
            yield full
    if (last := writer.close()) is not None:
        yield last


def hash_chunks_of(groups: Iterable[Group], chunk_bytes: int) -> Iterator[bytes]:
    """(key, state hash) pairs as chunks, without entities."""
    writer = ChunkWriter(chunk_bytes)
    yield from filter(None, (writer.add_hashes(place, hashes) for place, hashes in groups))
    yield from filter(None, (writer.close(),))


class Chunk:
    """A chunk that was read.

    Attributes:
        data: Its bytes.

    Raises:
        CorruptionError: The bytes are not what was written.
    """

    def __init__(self, data: bytes, where: str, *, checked: bool = False) -> None:
        if not checked:
            unsealed(data, where)
        try:
            sizes: tuple[int, int, int, int] = _HEAD.unpack_from(data)
        except struct.error as error:
            raise CorruptionError(f"{where}: not a chunk of entities: {error}") from error
        form, groups, entities, preimage_bytes = sizes
        if form != FORMAT:
            raise CorruptionError(f"{where}: a chunk of format {form}, this release reads {FORMAT}")
        self.data = data
        self._groups, self._entities = groups, entities
        self._preimages = _HEAD.size + NUMBER_BYTES * (3 * groups + entities)
        self._bodies = self._preimages + preimage_bytes
        last = int.from_bytes(data[self._preimages - NUMBER_BYTES : self._preimages], "little") if entities else 0
        if self._bodies + last + CRC_BYTES != len(data):
            raise CorruptionError(f"{where}: not a chunk of entities: its lengths do not add up")

    # Read when they are needed: most chunks of a rebuild are merged by the kernel, and few are asked later.

    @cached_property
    def places(self) -> array[int]:
        """The places of its entities, sorted."""
        return self._table(0, self._groups)

    @cached_property
    def _firsts(self) -> array[int]:
        """The number of each group's first entity, and that of all entities."""
        return self._table(self._groups, self._groups, self._entities)

    @cached_property
    def _starts(self) -> array[int]:
        """Where each group's preimage begins, and the end of the last one."""
        return self._table(2 * self._groups, self._groups, self._bodies - self._preimages)

    @cached_property
    def _ends(self) -> array[int]:
        """Where each entity's stored form ends."""
        return self._table(3 * self._groups, self._entities)

    def _table(self, start: int, count: int, *after: int) -> array[int]:
        """Some numbers of the tables, from number `start` on, and then those given."""
        at = _HEAD.size + NUMBER_BYTES * start
        numbers = _numbers(self.data[at : at + NUMBER_BYTES * count])
        numbers.extend(after)
        return numbers

    def _number(self, at: int) -> int:
        """One number of the tables. For a question about one group this is cheaper than a whole table."""
        number: int = _NUMBER.unpack_from(self.data, _HEAD.size + NUMBER_BYTES * at)[0]
        return number

    def __len__(self) -> int:
        return self._entities

    def preimage(self, group: int) -> bytes:
        """Return what the digest of a group's bucket covers, for the part in this chunk."""
        base, start_at = self._preimages, 2 * self._groups + group
        stop = base + self._number(start_at + 1) if group + 1 < self._groups else self._bodies
        return self.data[base + self._number(start_at) : stop]

    def preimages(self) -> list[bytes]:
        """`preimage` of every group, in order."""
        data, base = self.data, self._preimages
        return [data[base + start : base + stop] for start, stop in pairwise(self._starts.tolist())]

    def hashes(self, group: int) -> list[tuple[bytes, bytes]]:
        """(key, state hash) of a group's entities."""
        return split(self.preimage(group))

    def members(self, group: int) -> list[Member]:
        """A group's entities."""
        return [(key, body) for key, _, body in self.parts(group)]

    def parts(self, group: int) -> list[tuple[bytes, bytes, bytes]]:
        """(key, its part of the preimage, encoded entity) of a group's entities."""
        data, ends, base = self.data, self._ends, self._bodies
        at, last = self._preimages + self._starts[group], self._preimages + self._starts[group + 1]
        number = self._firsts[group]
        start = base + (ends[number - 1] if number else 0)
        found = []
        while at < last:
            key = at + LENGTH_BYTES
            key_end = key + _length(data, at)
            after, stop = key_end + HASH_BYTES, base + ends[number]
            found.append((data[key:key_end], data[at:after], data[start:stop]))
            at, start, number = after, stop, number + 1
        return found

    def find(self, group: int, key: bytes) -> bytes | None:
        """The encoded entity of a key in a group, or None."""
        covered, own = self.preimage(group), len(key).to_bytes(LENGTH_BYTES, "big") + key
        at = number = 0
        while at < len(covered):
            if covered.startswith(own, at):
                return self._body(self._number(self._groups + group) + number)
            at += LENGTH_BYTES + _length(covered, at) + HASH_BYTES
            number += 1
        return None

    def find_each(self, groups: Sequence[int], placed: Sequence[bytes]) -> list[bytes | None]:
        """`find` of each key, given with its place, in its group."""
        kernel = find_kernel().kernel
        found = None if kernel is None else kernel.found_in(self.data, groups, placed)
        if found is not None:
            return found
        return [self.find(group, key[PLACE_BYTES:]) for group, key in zip(groups, placed, strict=True)]

    def group_of(self, place: int) -> int | None:
        """The number of a place's group, or None."""
        group = bisect_left(self.places, place)
        return group if group < len(self.places) and self.places[group] == place else None

    def groups(self) -> Iterator[tuple[int, list[Member]]]:
        """Every (place, entities) in order."""
        for group, place in enumerate(self.places):
            yield place, self.members(group)

    def rows(self, groups: bytearray) -> list[tuple[str, bytes]]:
        """Return (entity, encoded) of the groups whose byte is not 0, in one pass: most hold one entity, and handling
        each group separately costs more."""
        data, at, start = self.data, self._preimages, self._bodies
        base, group, first = start, -1, 0
        found: list[tuple[str, bytes]] = []
        for number, stop in enumerate(self._ends):
            while number == first:
                group += 1
                first = self._firsts[group + 1]
            key = at + LENGTH_BYTES
            key_end = key + _length(data, at)
            at = key_end + HASH_BYTES
            end = base + stop
            if groups[group]:
                found.append((data[key:key_end].decode(), data[start:end]))
            start = end
        return found

    def _body(self, number: int) -> bytes:
        base, end_at = self._bodies, 3 * self._groups + number
        start = self._number(end_at - 1) if number else 0
        return self.data[base + start : base + self._number(end_at)]


def merged_preimages(before: bytes, own: bytes) -> bytes:
    """The preimage of one bucket merged with a later one, which takes precedence; `own` if that has all of its
    entities.
    """
    # Most buckets hold one entity, and a later preimage of the same entities differs in the hash alone.
    if len(before) == len(own) and own.startswith(before[:-HASH_BYTES]):
        return own
    if _is_one(own):
        return _with_one(before, own, replaces=True)
    return _with_one(own, before, replaces=False) if _is_one(before) else newest(before + own)


def _is_one(preimage: bytes) -> bool:
    """Whether a preimage is of one entity."""
    return LENGTH_BYTES + _length(preimage, 0) + HASH_BYTES == len(preimage)


def _with_one(bucket: bytes, own: bytes, *, replaces: bool) -> bytes:
    """A bucket's preimage with one entity's part inserted. replaces: even if the bucket already has the entity."""
    key = own[LENGTH_BYTES:-HASH_BYTES]
    at = 0
    while at < len(bucket):
        key_at = at + LENGTH_BYTES
        key_end = key_at + _length(bucket, at)
        found = bucket[key_at:key_end]
        if found > key:
            return bucket[:at] + own + bucket[at:]
        if found == key:
            return bucket[:at] + own + bucket[key_end + HASH_BYTES :] if replaces else bucket
        at = key_end + HASH_BYTES
    return bucket + own


def newest(preimages: bytes) -> bytes:
    """Merge consecutive preimages of one bucket, later ones over earlier ones."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(preimages):
        end = at + LENGTH_BYTES + _length(preimages, at) + HASH_BYTES
        found[preimages[at + LENGTH_BYTES : end - HASH_BYTES]] = preimages[at:end]
        at = end
    return b"".join([found[key] for key in sorted(found)])


def split(preimages: bytes) -> list[tuple[bytes, bytes]]:
    """(key, state hash) of each entity in a bucket's preimage."""
    found = []
    at = 0
    while at < len(preimages):
        key_end = at + LENGTH_BYTES + _length(preimages, at)
        found.append((preimages[at + LENGTH_BYTES : key_end], preimages[key_end : key_end + HASH_BYTES]))
        at = key_end + HASH_BYTES
    return found


def _length(data: bytes, at: int) -> int:
    """Return a big-endian u32.

    CorruptionError if there is none: chunks are traversed before all of their bytes are checked.
    """
    try:
        return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
    except IndexError:
        raise CorruptionError("a chunk of entities is damaged: a length exceeds its bucket") from None


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(data: bytes) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
