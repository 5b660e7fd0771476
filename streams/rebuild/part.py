"""Rebuilds one partition of a log at a cut.

1. Start from the nearest sealed epoch that is whole, else from nothing (base_epoch.py).
2. Set aside the entities of types whose definition at the cut is not the epoch's: they are folded from nothing.
3. Fold the records between the epoch and the cut (replay.py).
With `full`, and for an observed-clock cut, start from nothing. The entities are the same whatever the start, byte for
byte.
"""

from __future__ import annotations

from collections.abc import Callable

from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.rebuild.base_epoch import Beginning
from refold.streams.rebuild.limits import RebuildLimits
from refold.streams.rebuild.rebuilt import RebuiltPartition
from refold.streams.rebuild.replay import Replay
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Manifest
from refold.streams.table.folds import Folds

Progress = Callable[[int, int], None]
"""Told how many more records were read, and how many are to be read in all as far as is known by now."""


class RecordsToRead:
    """How many records are to be read, as it becomes known: at first all below the cut."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._progress = progress
        self.total = total

    def read(self, more: int) -> None:
        """More records were read."""
        self._progress(more, self.total)


def rebuild_part(
    log: LogPort, cut: Cut, beginning: Beginning, folds: Folds, known: RecordsToRead, limits: RebuildLimits | None
) -> RebuiltPartition:
    """One partition at the cut."""
    partition = beginning.partition
    manifest, layers = beginning.checked()
    wants = None if limits is None else limits.wants
    replay = Replay(log, partition, layers, folds, known.read, wants)
    begin = 0
    aside: list[str] = []
    if manifest is not None:
        begin = manifest.epoch.offset
        known.total -= begin
        replay.entities, replay.observations = manifest.entities, manifest.observations
        aside = _aside(replay.layers, changed_types(log.registry, cut, manifest), limits)
    replay.advance(begin, cut.offsets[partition], cut.observed_until, aside)
    replay.finish()
    return RebuiltPartition(
        replay.layers,
        replay.entities,
        replay.observations,
        replay.replayed,
        replay.reopened,
        replay.scanned,
        None if manifest is None else manifest.epoch,
        beginning.fallbacks,
    )


def _aside(layers: Layers, changed: frozenset[str], limits: RebuildLimits | None) -> list[str]:
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
