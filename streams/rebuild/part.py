"""Rebuilding one partition of a log at a cut.

1. Of the sealed epochs at or below the cut, begin from the one nearest to it: read it and check it
   (streams/snapshots/read.py; for a few entities asked for by name, their slots: partial.py). One that fails is named
   in `fallbacks`, the next older one is tried; at last nothing.
2. Entities of a type whose definition at the cut is not the epoch's are set aside, to be folded from nothing.
3. Fold the records between the epoch and the cut (replay.py).
`full`, and an observed-clock cut, begin from nothing. Whatever it began from, the entities are the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from refold.avro.errors import CorruptionError, StorageError
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.streams.cut import FOLD_VERSION, Cut
from refold.streams.log.port import LogPort
from refold.streams.partition import slot_of, slots_of
from refold.streams.rebuild.limits import Limits
from refold.streams.rebuild.rebuilt import Part
from refold.streams.rebuild.replay import Replay
from refold.streams.snapshots.cold import Instead
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Epoch, Manifest
from refold.streams.snapshots.partial import read_slots
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.folds import Folds

# Fewer of an epoch's slots than one in so many are looked up; else all of it is read in one go.
FEW = 8

Progress = Callable[[int, int], None]
"""Told how many more records were read, and how many are to be read in all as far as is known by now."""


class Known:
    """How many records are to be read, as it becomes known: at first all below the cut."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._progress = progress
        self.total = total

    def read(self, more: int) -> None:
        """More records were read."""
        self._progress(more, self.total)


def candidates(log: LogPort, cut: Cut, partition: int, *, full: bool) -> Sequence[Epoch]:
    """The epochs to begin from, nearest to the cut first."""
    if full or cut.observed_until is not None:
        return []
    end = cut.offsets[partition]
    at_or_below = [each for each in log.snapshots.epochs(partition) if 0 < each.offset <= end]
    nearness = {each: (each.offset, each.schemas <= cut.schemas, each.schemas) for each in at_or_below}
    return sorted(at_or_below, key=lambda each: nearness[each], reverse=True)


def rebuild_part(
    log: LogPort, cut: Cut, partition: int, folds: Folds, epochs: Iterable[Epoch], store: ChunkStore, known: Known,
    limits: Limits | None,
) -> Part:  # fmt: skip
    """One partition at the cut, begun from one of the epochs."""
    fallbacks: list[str] = []
    manifest, layers = None, None
    for epoch in epochs:
        try:
            manifest = _usable(log.snapshots.manifest(epoch), log)
            instead = folded_instead(log, manifest, folds, store, fallbacks)
            layers = _read(log, manifest, store, limits, instead)
            break
        except StorageError as error:
            fallbacks.append(f"epoch {epoch} was not used: {error}")
            manifest, layers = None, None
    wants = None if limits is None else limits.wants
    replay = Replay(log, partition, layers or Layers(store), folds, known.read, wants)
    begin = 0
    aside: list[str] = []
    if manifest is not None:
        begin = manifest.epoch.offset
        known.total -= begin
        replay.entities, replay.observations = manifest.entities, manifest.observations
        aside = _aside(replay.layers, changed_types(log.registry, cut, manifest), limits)
    replay.advance(begin, cut.offsets[partition], cut.observed_until, aside)
    replay.finish()
    return Part(replay.layers, replay.entities, replay.observations, replay.replayed, replay.reopened, replay.scanned,
                None if manifest is None else manifest.epoch, fallbacks)  # fmt: skip


def _read(log: LogPort, manifest: Manifest, store: ChunkStore, limits: Limits | None, instead: Instead) -> Layers:
    """The epoch, or where only few of its slots can hold what is asked for, those."""
    partition = manifest.epoch.partition
    if limits is not None and limits.by_name_alone:
        every = slots_of(partition, log.partitions)
        slots = {slot for slot in map(slot_of, limits.entities or ()) if slot in every}
        if len(slots) * FEW <= len(every):
            return read_slots(log.snapshots, manifest, log.partitions, store, slots, instead)
    return read_epoch(log.snapshots, manifest, log.partitions, store, instead)


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
    return manifest


def _aside(layers: Layers, changed: frozenset[str], limits: Limits | None) -> list[str]:
    """The wanted entities of the changed types."""
    if not changed:
        return []
    if limits is not None and limits.by_name_alone:
        named = (name for name in sorted(limits.entities or ()) if type_of(name) in changed)
        return [name for name in named if layers.get(name) is not None]
    names = (name for name in layers.names() if type_of(name) in changed)
    return [name for name in names if limits is None or limits.wants(name)]


def changed_types(registry: Registry, cut: Cut, manifest: Manifest) -> frozenset[str]:
    """The types of an epoch whose definition at the cut is another."""
    newest = registry.fingerprints(cut.schemas)
    return frozenset(name for name, fingerprint in manifest.types.items() if newest.get(name) != fingerprint)
