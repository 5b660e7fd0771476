"""The result of a rebuild: the entities at a cut, by partition, and how each partition was rebuilt.

A child process passes a partition to its parent in a file:
1. Its entities, except closed ones of its epoch that no record was folded onto: chunks (streams/snapshots/chunk.py) in
   order of place, each preceded by its length, u32 big-endian. Length 0 ends them.
2. If all entities were asked for, the digests of its buckets: for each slot that has any, its number, u16 big-endian,
   and 256 bucket digests (8,192 bytes). Anything after them is no part of the data.
The reader gets the positions where the data begins and ends. It leaves the chunks in the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from refold.avro.errors import CorruptionError, NotAnswerable
from refold.reducers.entity import stored_hash, stored_version
from refold.streams.digest import Digests, differing_places, root
from refold.streams.partitioner import BUCKETS, partition_of
from refold.streams.rebuild.plan import RebuildLimits
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.spill import ChunkPlace

_LENGTH = struct.Struct(">I")
_SLOT = struct.Struct(">H")
_BUCKETS_BYTES = 32 * BUCKETS


@dataclass(slots=True)
class RebuiltPartition:
    """One partition of a rebuilt state, and how it was rebuilt.

    Attributes:
        layers: Its entities.
        entities, observations: How many there are; not exact for a limited rebuild: see Rebuilt.
        replayed: The number of records that were folded.
        reopened: The number of entities that were folded from their first observation, and not from a snapshot.
        scanned: The number of records that were read for these.
        epoch: The epoch that it began from; None for the first record.
        fallbacks: Why later epochs were not used.
        apart: Whether a child process folded it.
    """

    layers: Layers
    entities: int = 0
    observations: int = 0
    replayed: int = 0
    reopened: int = 0
    scanned: int = 0
    epoch: Epoch | None = None
    fallbacks: list[str] = field(default_factory=list)
    apart: bool = False


@dataclass(slots=True)
class Rebuilt:
    """The entities at a cut, by partition; with `limits`, only the wanted ones."""

    parts: dict[int, RebuiltPartition]
    limits: RebuildLimits | None = None
    _counted: tuple[int, int] | None = None

    @property
    def entities(self) -> int:
        """How many entities there are."""
        return self._counts()[0]

    @property
    def observations(self) -> int:
        """The number of distinct observations folded into them."""
        return self._counts()[1]

    def _counts(self) -> tuple[int, int]:
        if self._counted is None:
            if self.limits is None:
                parts = self.parts.values()
                self._counted = (sum(part.entities for part in parts), sum(part.observations for part in parts))
            else:
                versions = [stored_version(packed) for _, packed in self.rows()]
                self._counted = (len(versions), sum(versions))
        return self._counted

    def digests(self) -> Digests:
        """Return the digests of every slot.

        Raises:
            NotAnswerable: The rebuild was limited.
        """
        if self.limits is not None:
            raise NotAnswerable("a root covers all entities: rebuild without types, entities and since to get it")
        digests = Digests()
        for part in self.parts.values():
            digests.add_slots(part.layers.rehash())
        return digests

    def root(self) -> bytes:
        """The root over all entities. Errors as in `digests`."""
        return root(self.digests(), self.entities)

    def get(self, partition: int, entity: str) -> bytes | None:
        """The encoded entity; None if it does not exist or is not wanted."""
        limits = self.limits
        if limits is not None and not limits.wants(entity):
            return None
        packed = self.parts[partition].layers.get(entity)
        return packed if packed is None or limits is None or limits.keeps(entity, packed) else None

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield (entity, encoded) for all entities, in no particular order."""
        limits = self.limits
        if limits is None:
            for part in self.parts.values():
                yield from part.layers.rows()
            return
        for name, packed in self._wanted(limits):
            if limits.keeps(name, packed):
                yield name, packed

    def rows_in(self, partition: int) -> Iterator[tuple[str, bytes]]:
        """Like `rows`, for one partition."""
        if self.limits is None:
            return self.parts[partition].layers.rows() if partition in self.parts else iter(())
        count = len(self.parts)
        return ((name, packed) for name, packed in self.rows() if partition_of(name, count) == partition)

    def _wanted(self, limits: RebuildLimits) -> Iterator[tuple[str, bytes]]:
        """The entities that are wanted by name, possibly including some that closed before `since`."""
        if not limits.by_name_alone:
            for part in self.parts.values():
                for name, packed in part.layers.rows(limits.reads):
                    if limits.of_type(name):
                        yield name, packed
        for name in limits.entities or ():
            if limits.by_name_alone or not limits.of_type(name):
                found = self.parts[partition_of(name, len(self.parts))].layers.get(name)
                if found is not None:
                    yield name, found

    def differing(self, other: Rebuilt) -> list[str]:
        """The entities whose state differs, or that only one of the two has, in order."""
        if self.limits is not None or other.limits is not None:
            one, two = ({(name, stored_hash(packed)) for name, packed in each.rows()} for each in (self, other))
            return sorted({name for name, _ in one ^ two})
        found: set[bytes] = set()
        for place in differing_places(self.digests(), other.digests()):
            found.update(key for key, _ in self._hashes(place) ^ other._hashes(place))
        return sorted(key.decode() for key in found)

    def _hashes(self, place: int) -> set[tuple[bytes, bytes]]:
        return set(self.parts[(place >> 8) % len(self.parts)].layers.hashes(place))

    def source(self) -> dict[str, object]:
        """How it was rebuilt: the epochs it began from (partition to offset), records replayed, entities reopened,
        records scanned for them, partitions folded in child processes, and the epochs and processes that could not be
        used.
        """
        parts = self.parts.values()
        return {
            "snapshot_epochs": {str(number): part.epoch.offset for number, part in self.parts.items() if part.epoch},
            "replayed": sum(part.replayed for part in parts),
            "reopened": sum(part.reopened for part in parts),
            "scanned": sum(part.scanned for part in parts),
            "apart": sum(part.apart for part in parts),
            "fallbacks": [problem for part in parts for problem in part.fallbacks],
        }


def write_entities(file: IO[bytes], layers: Layers, digests: Digests | None, slots: range) -> None:
    """Write a partition to a file, at its position.

    Args:
        file: The file.
        layers: The partition's entities.
        digests: The digests of all its buckets; None to leave them out.
        slots: The partition's slots.
    """
    for data in layers.chunks(layers.pieces()):
        file.write(_LENGTH.pack(len(data)) + data)
    file.write(_LENGTH.pack(0))
    for slot in slots if digests is not None else ():
        assert digests is not None
        buckets = digests.buckets(slot)
        if buckets:
            file.write(_SLOT.pack(slot) + buckets)
    file.flush()


def read_entities(file: IO[bytes], start: int, end: int, layers: Layers) -> None:
    """Load a partition that `write_entities` wrote.

    Args:
        file: The file. It has to stay open as long as the layers.
        start: Where the partition begins, in bytes.
        end: Where it ends, in bytes.
        layers: Receives the entities.

    Raises:
        CorruptionError: The data is incomplete.
    """
    at = start
    while (length := _LENGTH.unpack(_read(file, at, _LENGTH.size, end))[0]) != 0:
        at += _LENGTH.size
        data = _read(file, at, length, end)
        layers.add(data, "a partition folded by another process", ChunkPlace(file, at, length))
        at += length
    at += _LENGTH.size
    if at == end:
        return
    digests = Digests()
    while at < end:
        (slot,) = _SLOT.unpack(_read(file, at, _SLOT.size, end))
        digests.set_buckets(slot, _read(file, at + _SLOT.size, _BUCKETS_BYTES, end))
        at += _SLOT.size + _BUCKETS_BYTES
    layers.set_digests(digests)


def _read(file: IO[bytes], at: int, size: int, end: int) -> bytes:
    data = os.pread(file.fileno(), size, at) if at + size <= end else b""
    if len(data) != size:
        raise CorruptionError("a partition folded by another process is incomplete")
    return data
