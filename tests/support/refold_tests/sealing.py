"""A snapshot store and a table in memory: what sealing writes, without a log and without folding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refold.avro.errors import StorageError
from refold.reducers.arithmetic import Count
from refold.reducers.dedup_state import DedupState
from refold.reducers.entity import Entity, pack
from refold.streams.partitioner import placed
from refold.streams.snapshots.chunk import Group, Member
from refold.streams.snapshots.closed_entities import ClosingRule
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import ClearedRecords, Pin, SnapshotStore, Tombstone
from refold.streams.snapshots.table import EpochState, TableView
from refold_tests.encoded_entities import grouped, place

CLOSING = {"run": ClosingRule("ended_at", Count("ended_at"))}
MONTH_MICROS = 31 * 24 * 3_600 * 1_000_000


class MemoryStore(SnapshotStore):
    """One partition's records and manifests."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}
        self.manifests: dict[Epoch, bytes] = {}
        self._end = 0

    def epochs(self, partition: int) -> Sequence[Epoch]:
        return sorted(self.manifests)

    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        return self.manifests.get(epoch)

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        return ((offset, self.held[offset]) for offset in range(start, end) if offset in self.held)

    def end(self, partition: int) -> int:
        return self._end

    def append(self, partition: int, data: bytes) -> None:
        self.held[self._end] = data
        self._end += 1

    def seal(self, epoch: Epoch, data: bytes) -> None:
        self.manifests[epoch] = data

    def pins(self) -> Sequence[Pin]:
        return []

    def tombstones(self) -> Sequence[Tombstone]:
        return []

    def stop(self) -> None:
        raise StorageError("not here")

    def sync(self) -> None:
        pass

    def pin(self, pin: Pin) -> None:
        raise StorageError("not here")

    def unpin(self, epoch: Epoch) -> None:
        raise StorageError("not here")

    def add_tombstone(self, *tombstones: Tombstone) -> None:
        raise StorageError("not here")

    def clear(
        self, partition: int, kept: Sequence[tuple[int, int]], forgotten: Sequence[Epoch], *, dry_run: bool = False
    ) -> ClearedRecords:
        raise StorageError("not here")


@dataclass
class Table:
    """Entities that change at random, of two types: `run`, which closes and may reopen, and one that never closes."""

    rng: random.Random
    names: int
    partition: int = 0
    partitions: int = 1
    offset: int = 0
    packed: dict[str, bytes] = field(default_factory=dict)
    hashes: dict[str, bytes] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    touched: list[str] = field(default_factory=list)
    types: dict[str, bytes] = field(default_factory=lambda: {"run": b"r" * 32, "everything": b"e" * 32})
    month_micros: int = MONTH_MICROS
    _names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = 0
        while len(self._names) < self.names:
            name = f"{self.rng.choice(('run', 'run', 'everything'))}/{number}"
            number += 1
            if (place(name) >> 8) % self.partitions == self.partition:
                self._names.append(name)

    def change(self, closing_chance: float) -> None:
        """Add a record: another state of an entity, or a repeat that changes nothing."""
        name = self.rng.choice(self._names)
        self.touched.append(name)
        self.offset += 1
        if name in self.packed and self.rng.random() < 0.1:
            return
        cells: dict[str, Any] = {"x": [self.rng.randbytes(self.rng.choice((3, 3, 900)))]}
        self.closed.discard(name)
        if name.startswith("run/") and self.rng.random() < closing_chance:
            observed_at = self.rng.randrange(4) * self.month_micros
            cells["ended_at"] = [1, (observed_at + 2**63).to_bytes(8, "big") + bytes(32)]
            self.closed.add(name)
        self.hashes[name] = self.rng.randbytes(32)
        dedup_state = DedupState(highest_offset=self.offset - 1, lowest_offset=0)
        entity = Entity(name, self.offset, cells, dedup_state=dedup_state, state_hash=self.hashes[name])
        self.packed[name] = pack(entity)

    def change_up_to(self, offset: int) -> None:
        """Add records up to an offset. The table then depends only on the random generator."""
        while self.offset < offset:
            self.change(0.3)

    def view(self, schemas: int = 2) -> View:
        """Return the current table."""
        epoch_state = EpochState(
            Epoch(self.partition, self.offset, schemas), len(self.packed), self.offset, 5, 0, dict(self.types), CLOSING
        )
        return View(epoch_state, dict(self.packed), list(self.touched))


class View(TableView):
    """A table at one moment."""

    def __init__(self, epoch_state: EpochState, packed: dict[str, bytes], touched: list[str]) -> None:
        self.epoch_state = epoch_state
        self.packed = packed
        self._touched = touched
        self._groups = dict(grouped(packed.items()))

    def get(self, entity: str) -> bytes | None:
        return self.packed.get(entity)

    def members(self, place: int) -> list[Member]:
        return self._groups.get(place, [])

    def groups(self) -> Iterator[Group]:
        return iter(self._groups.items())

    def touched(self, start: int) -> Mapping[bytes, bytes]:
        """Return the touched entities, with their states or with empty values that have to be read."""
        names = self._touched[start : self.epoch_state.epoch.offset]
        return {placed(name): self.packed[name] if len(names) % 3 else b"" for name in names}
