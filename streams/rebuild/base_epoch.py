"""Where the rebuild of one partition starts: a sealed epoch, or nothing.

1. Of the sealed epochs at or below the cut, read the nearest one (streams/snapshots/read.py; for a few entities that
   were asked for by name, their slots: partial.py). If it cannot be read, it is named in `fallbacks` and the next older
   one is tried; the last resort is to start from nothing.
2. The epoch is verified when its result is needed: it is hashed while other partitions are read. If it fails, it is
   named, and step 1 continues with the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from refold.avro.errors import CorruptionError, StorageError
from refold.avro.observation import type_of
from refold.avro.quarantine import OBSERVATIONS
from refold.streams.cut import FOLD_VERSION, Cut
from refold.streams.log.port import LogPort
from refold.streams.partition import slot_of, slots_of
from refold.streams.rebuild.limits import RebuildLimits
from refold.streams.rebuild.replay import Replay
from refold.streams.snapshots.closed_entities import Instead
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import OFFSET_MAX, Epoch, Manifest
from refold.streams.snapshots.read import Unchecked, begin_epoch, read_slots
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import EpochReader
from refold.streams.table.folds import Folds

# Fewer of an epoch's slots than one in so many are looked up; else all of it is read in one go.
FEW = 8


def candidates(log: LogPort, cut: Cut, partition: int, *, full: bool) -> Iterator[Epoch]:
    """The epochs to begin from, nearest to the cut first; each is looked up when it is asked for."""
    if full or cut.observed_until is not None:
        return
    for _, alike in groupby(_down(log.snapshots, partition, cut.offsets[partition]), lambda each: each.offset):
        yield from sorted(alike, key=lambda each: (each.schemas <= cut.schemas, each.schemas), reverse=True)


def _down(reader: EpochReader, partition: int, end: int) -> Iterator[Epoch]:
    """A partition's epochs that have something below an offset, or up to it, the latest first."""
    found = reader.latest(Epoch(partition, end, OFFSET_MAX))
    while found is not None and found.offset > 0:
        yield found
        _, offset, schemas = found
        found = reader.latest(
            Epoch(partition, offset, schemas - 1) if schemas else Epoch(partition, offset - 1, OFFSET_MAX)
        )


class Beginning:
    """Reads when it is made; fallbacks: why epochs were not used."""

    def __init__(
        self, log: LogPort, cut: Cut, partition: int, folds: Folds, store: ChunkStore, hashes: RunningHashes,
        limits: RebuildLimits | None, *, full: bool,
    ) -> None:  # fmt: skip
        self.partition = partition
        self.fallbacks: list[str] = []
        self._log = log
        self._folds = folds
        self._store = store
        self._hashes = hashes
        self._limits = limits
        self._epochs = candidates(log, cut, partition, full=full)
        self._begun = self._next()

    def checked(self) -> tuple[Manifest | None, Layers]:
        """The manifest of the epoch, and its entities; None and none where there is no epoch that can be used."""
        while self._begun is not None:
            manifest, (layers, check) = self._begun
            try:
                check()
                return manifest, layers
            except StorageError as error:
                self._not_used(manifest.epoch, error)
                self._begun = self._next()
        return None, Layers(self._store)

    def _next(self) -> tuple[Manifest, Unchecked] | None:
        for epoch in self._epochs:
            try:
                manifest = _usable(self._log.snapshots.manifest(epoch), self._log)
                return manifest, self._read(manifest)
            except StorageError as error:
                self._not_used(epoch, error)
        return None

    def _not_used(self, epoch: Epoch, error: StorageError) -> None:
        self.fallbacks.append(f"epoch {epoch} was not used: {error}")

    def _read(self, manifest: Manifest) -> Unchecked:
        """The epoch, or where only few of its slots can hold what is asked for, those."""
        log, limits, store = self._log, self._limits, self._store
        instead = folded_instead(log, manifest, self._folds, store, self.fallbacks)
        if limits is not None and limits.by_name_alone:
            every = slots_of(self.partition, log.partitions)
            slots = {slot for slot in map(slot_of, limits.entities or ()) if slot in every}
            if len(slots) * FEW <= len(every):
                layers = read_slots(log.snapshots, manifest, log.partitions, store, slots, instead)
                return Unchecked(layers, lambda: None)
        return begin_epoch(log.snapshots, manifest, log.partitions, store, self._hashes, instead)


def folded_instead(
    log: LogPort, manifest: Manifest, folds: Folds, store: ChunkStore, fallbacks: list[str]
) -> Instead:  # fmt: skip
    """What makes an epoch's closed entities again where their records are damaged, and says so in `fallbacks`."""
    types = frozenset(each.type_name for each in manifest.cold)

    def fold(error: CorruptionError) -> Layers:
        fallbacks.append(f"the closed entities of epoch {manifest.epoch} were folded from the log: {error}")
        partition, end, _ = manifest.epoch
        replay = Replay(log, partition, Layers(store), folds, lambda more: None, lambda name: type_of(name) in types)
        replay.advance(0, end)
        replay.finish()
        return replay.layers

    return fold


def _usable(manifest: Manifest, log: LogPort) -> Manifest:
    if manifest.log_id != log.log_id:
        raise StorageError(f"it is of the log {manifest.log_id.hex()}")
    if manifest.fold_version != FOLD_VERSION:
        raise StorageError(
            f"it was folded by fold version {manifest.fold_version}, this release folds by {FOLD_VERSION}"
        )
    if not manifest.leaves_out(log.registry.rulings.of(OBSERVATIONS, manifest.epoch.partition)):
        raise StorageError("other observations are set aside now than when it was sealed")
    return manifest
