"""Rebuilds one partition of a log at a cut.

1. Of the sealed epochs at or below the cut, read the nearest one (streams/snapshots/read.py; for a few entities that
   were asked for by name, only their slots). If it cannot be read, it is named in `fallbacks` and the next older one is
   tried; the last resort is to start from nothing.
2. The epoch is verified when its result is needed: it is hashed while other partitions are read. If it fails, it is
   named, and step 1 continues with the next one.
3. Postpone the entities of types whose definition at the cut is not the epoch's: they are folded from nothing.
4. Fold the records between the epoch and the cut (range_fold.py).
With `full`, and for an observed-clock cut, start from nothing. The entities are the same whatever the start, byte for
byte.
"""

from __future__ import annotations

from collections.abc import Callable

from refold.avro.errors import CorruptionError, StorageError
from refold.avro.observation import type_of
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import Registry
from refold.streams.cut import FOLD_VERSION, Cut
from refold.streams.log.port import LogReader
from refold.streams.partitioner import slot_of, slots_of
from refold.streams.rebuild.memory import RebuildMemory
from refold.streams.rebuild.plan import RebuildLimits, RebuildPlan
from refold.streams.rebuild.range_fold import RangeFold
from refold.streams.rebuild.result import RebuiltPartition
from refold.streams.snapshots.closed_entities import DamageFallback
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Epoch, Manifest
from refold.streams.snapshots.read import UncheckedEpoch, begin_epoch, read_slots
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.folds import Folds

# If at most one in so many of an epoch's slots are needed, they are looked up; otherwise the whole epoch is read.
SLOTS_PER_LOOKUP = 8

Progress = Callable[[int, int], None]
"""Called with the number of further records read, and the present estimate of the total."""


class RecordsToRead:
    """The estimated number of records to read; at first all below the cut."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._progress = progress
        self.total = total

    def read(self, more: int) -> None:
        """Count further records that were read."""
        self._progress(more, self.total)


class StartingEpoch:
    """The epoch that the rebuild of one partition begins from, if any. Creating it begins to read the epoch.

    Attributes:
        fallbacks: Why epochs were not used.
    """

    def __init__(
        self, log: LogReader, plan: RebuildPlan, partition: int, folds: Folds, store: ChunkStore, hashes: RunningHashes
    ) -> None:
        self.partition = partition
        self.fallbacks: list[str] = []
        self._log = log
        self._folds = folds
        self._store = store
        self._hashes = hashes
        self._limits = plan.limits
        self._memory = plan.memory
        self._epochs = plan.epochs(log.snapshots, partition)
        self._begun = self._next()

    def verified(self) -> tuple[Manifest | None, Layers]:
        """The epoch's manifest and its entities; None and no entities if no epoch can be used."""
        while self._begun is not None:
            manifest, (layers, check) = self._begun
            try:
                check()
                return manifest, layers
            except StorageError as error:
                self._not_used(manifest.epoch, error)
                self._begun = self._next()
        return None, Layers(self._store)

    def _next(self) -> tuple[Manifest, UncheckedEpoch] | None:
        for epoch in self._epochs:
            try:
                manifest = _usable(self._log.snapshots.manifest(epoch), self._log)
                return manifest, self._read(manifest)
            except StorageError as error:
                self._not_used(epoch, error)
        return None

    def _not_used(self, epoch: Epoch, error: StorageError) -> None:
        self.fallbacks.append(f"epoch {epoch} was not used: {error}")

    def _read(self, manifest: Manifest) -> UncheckedEpoch:
        """Read the epoch, or only the slots that can hold the wanted entities, if these are few."""
        log, limits, store = self._log, self._limits, self._store
        fallback = cold_entities_from_log(log, manifest, self._folds, store, self.fallbacks, self._memory)
        if limits is not None and limits.by_name_alone:
            every = slots_of(self.partition, log.partitions)
            slots = {slot for slot in map(slot_of, limits.entities or ()) if slot in every}
            if len(slots) * SLOTS_PER_LOOKUP <= len(every):
                layers = read_slots(log.snapshots, manifest, log.partitions, store, slots, fallback)
                return UncheckedEpoch(layers, lambda: None)
        return begin_epoch(log.snapshots, manifest, log.partitions, store, self._hashes, fallback)


def cold_entities_from_log(
    log: LogReader, manifest: Manifest, folds: Folds, store: ChunkStore, fallbacks: list[str], memory: RebuildMemory
) -> DamageFallback:
    """Return a fallback for an epoch's closed entities.

    Args:
        log: The log.
        manifest: The epoch's manifest.
        folds: The definitions at the cut.
        store: Where the entities are loaded to.
        fallbacks: Receives the reason if the fallback is used.
        memory: What its fold keeps in memory.

    Returns:
        A function that is called with the error if their records are damaged. It folds them from the log.
    """
    types = frozenset(each.type_name for each in manifest.cold)

    def fold(error: CorruptionError) -> Layers:
        fallbacks.append(f"the closed entities of epoch {manifest.epoch} were folded from the log: {error}")
        partition, end, _ = manifest.epoch
        range_fold = RangeFold(
            log, partition, Layers(store), folds, lambda more: None, lambda name: type_of(name) in types, memory=memory
        )
        range_fold.advance(0, end)
        range_fold.finish()
        return range_fold.layers

    return fold


def _usable(manifest: Manifest, log: LogReader) -> Manifest:
    if manifest.log_id != log.log_id:
        raise StorageError(f"it belongs to the log {manifest.log_id.hex()}")
    if manifest.fold_version != FOLD_VERSION:
        raise StorageError(
            f"it was folded by fold version {manifest.fold_version}, this release folds by {FOLD_VERSION}"
        )
    if not manifest.leaves_out(log.registry.rulings.of(OBSERVATIONS, manifest.epoch.partition)):
        raise StorageError("other observations are set aside now than when it was sealed")
    return manifest


def rebuild_partition(
    log: LogReader, plan: RebuildPlan, start: StartingEpoch, folds: Folds, known: RecordsToRead
) -> RebuiltPartition:
    """Rebuild one partition at the plan's cut.

    Args:
        log: The log.
        plan: The cut, the limits and the range of each partition.
        start: The epoch to begin from; it also names the partition.
        folds: The definitions at the cut.
        known: Counts the records that are read.

    Returns:
        The partition's entities, its counts, and why epochs were not used.
    """
    cut, limits, partition = plan.cut, plan.limits, start.partition
    manifest, layers = start.verified()
    wants = None if limits is None else limits.wants
    range_fold = RangeFold(log, partition, layers, folds, known.read, wants, memory=plan.memory)
    begin = 0
    postponed: list[str] = []
    if manifest is not None:
        begin = manifest.epoch.offset
        known.total -= begin
        range_fold.entities, range_fold.observations = manifest.entities, manifest.observations
        postponed = _of_changed_types(range_fold.layers, changed_types(log.registry, cut, manifest), limits)
    range_fold.advance(begin, cut.offsets[partition], cut.observed_until, postponed)
    range_fold.finish()
    return RebuiltPartition(
        range_fold.layers,
        range_fold.entities,
        range_fold.observations,
        range_fold.replayed,
        range_fold.reopened,
        range_fold.scanned,
        None if manifest is None else manifest.epoch,
        start.fallbacks,
    )


def _of_changed_types(layers: Layers, changed: frozenset[str], limits: RebuildLimits | None) -> list[str]:
    """The wanted entities of the changed types."""
    if not changed:
        return []
    if limits is not None and limits.by_name_alone:
        named = (name for name in sorted(limits.entities or ()) if type_of(name) in changed)
        return [name for name in named if layers.get(name) is not None]
    names = (name for name in layers.names() if type_of(name) in changed)
    return [name for name in names if limits is None or limits.wants(name)]


def changed_types(registry: Registry, cut: Cut, manifest: Manifest) -> frozenset[str]:
    """Return the types whose definition at a cut differs from an epoch's.

    Args:
        registry: The log's types.
        cut: The cut.
        manifest: The epoch's manifest.
    """
    newest = registry.fingerprints(cut.schemas)
    return frozenset(name for name, fingerprint in manifest.types.items() if newest.get(name) != fingerprint)
