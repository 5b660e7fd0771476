"""Remove the epochs that the retention policy does not keep, and later their records. Only the owner does this.

A reader continues with a manifest that it read before, so a record outlives the manifests that name it by a grace
period that is longer than any rebuild. For each partition, while no epoch is being written:
1. Read the manifests and the tombs (`Tombstone`: the rest of a removed manifest). One that cannot be read may name any
   record: then nothing of the partition is removed, and the report says so.
2. Bury the manifests that the policy does not keep (retention_policy.py): each becomes a tomb with the time of its
   removal.
3. Remove the records before the end that neither a manifest nor a tomb within the grace period names. These include the
   records of a writer that ended before its manifest was sealed.
4. Delete the older tombs.

A collector may end at any point: the next one finds the rest, because records are removed before the tombs that name
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from refold.avro.errors import CorruptionError
from refold.streams.snapshots.manifest import Epoch, read_manifest
from refold.streams.snapshots.retention_policy import EpochAge, kept
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.store import ClearedRecords, SnapshotStore, Tombstone

# Longer than the longest rebuild.
GRACE_MS = 6 * 3_600_000

Interval = tuple[int, int]
"""Offsets, start inclusive, end exclusive."""


class SlowerCuts(NamedTuple):
    """Cuts with start <= offset < end are rebuilt from the epoch at `begins_at` (0: from the beginning) instead of a
    later one: at most so many more records are folded."""

    start: int
    end: int
    begins_at: int
    more_records: int


class Collected(NamedTuple):
    """What was removed of one partition, or in a dry run would have been.

    Attributes:
        kept: The number of epochs that stay.
        removed: The epochs that were removed.
        slower: The cuts whose rebuild takes longer because of that.
        records, removed_bytes: The number and the size of the removed records: those of epochs that were removed before
            the grace period.
        waiting: The number of records that are removed when the grace period ends.
        problems: What kept the partition from being collected.
    """

    partition: int
    kept: int
    removed: tuple[Epoch, ...] = ()
    slower: tuple[SlowerCuts, ...] = ()
    records: int = 0
    removed_bytes: int = 0
    waiting: int = 0
    problems: tuple[str, ...] = ()


def collected_of(tree: Sequence[Any]) -> Collected:
    """Return the report from its form in lists."""
    partition, stay, removed, slower, records, removed_bytes, waiting, problems = tree
    return Collected(
        partition, stay, tuple(Epoch(*each) for each in removed), tuple(SlowerCuts(*each) for each in slower), records,
        removed_bytes, waiting, tuple(problems),
    )  # fmt: skip


class Collector:
    """Collects one store's garbage. It caches the manifests that it read: they never change."""

    def __init__(
        self, store: SnapshotStore, grace_ms: int = GRACE_MS, settings: SnapshotSettings = DEFAULT_SETTINGS
    ) -> None:  # fmt: skip
        self._store = store
        self._tombs_at_once = settings.tombs_at_once
        self._grace_ms = grace_ms
        self._known: dict[bytes, _UsedByManifest] = {}

    def collect(
        self, partitions: Iterable[int], now_ms: int, *, dry_run: bool = False, damaged: bool = False
    ) -> list[Collected]:
        """Collect partition after partition.

        Args:
            damaged: Manifests that cannot be read are buried too.
        """
        partitions = list(partitions)
        for partition in partitions:
            self._store.take(partition)
        pinned = {pin.epoch for pin in self._store.pins()}
        used: dict[bytes, _UsedByManifest] = {}
        tombstones: dict[int, list[_Buried]] = {}
        for tomb in self._store.tombstones():
            is_young = now_ms - tomb.removed_at < self._grace_ms
            known = self._read(tomb.epoch, tomb.data, used) if is_young else None
            tombstones.setdefault(tomb.epoch.partition, []).append(_Buried(tomb.epoch, is_young, known))
        found = [
            self._collect(each, tombstones.get(each, []), pinned, now_ms, used, dry_run=dry_run, damaged=damaged)
            for each in partitions
        ]
        self._known = used
        return found

    def _collect(
        self, partition: int, tombstones: list[_Buried], pinned: set[Epoch], now_ms: int,
        used: dict[bytes, _UsedByManifest], *, dry_run: bool, damaged: bool,
    ) -> Collected:  # fmt: skip
        manifests: dict[Epoch, _UsedByManifest] = {}
        unread: set[Epoch] = set()
        for epoch in self._store.epochs(partition):
            known = self._read(epoch, self._store.manifest_bytes(epoch) or b"", used)
            if known is None:
                unread.add(epoch)
            else:
                manifests[epoch] = known
        problems = _problems(() if damaged else unread, tombstones)
        if problems:
            return Collected(partition, len(manifests) + len(unread), problems=problems)
        rungs = [EpochAge(epoch, known.recorded_at, known.is_base) for epoch, known in manifests.items()]
        stay = kept(rungs, pinned, now_ms)
        removed = sorted((manifests.keys() - stay) | unread)
        if not dry_run:
            self._bury(removed, now_ms, pinned)
        live = merged(manifests[epoch].intervals for epoch in stay)
        named = merged(
            known.intervals
            for known in (*manifests.values(), *(each.known for each in tombstones if each.known is not None))
        )
        cleared = ClearedRecords()
        if not unread:  # what these name is not known until the grace of their tombs ends
            forgotten = [each.epoch for each in tombstones if not each.is_young]
            cleared = self._store.clear(partition, named, forgotten, dry_run=dry_run)
        return Collected(
            partition, len(stay), tuple(removed), tuple(slower(sorted(manifests), stay)), *cleared,
            length(named) - length(live),
        )  # fmt: skip

    def _bury(self, epochs: Sequence[Epoch], now_ms: int, pinned: set[Epoch]) -> None:
        for at in range(0, len(epochs), self._tombs_at_once):
            some = epochs[at : at + self._tombs_at_once]
            self._store.add_tombstone(
                *(Tombstone(epoch, now_ms, self._store.manifest_bytes(epoch) or b"") for epoch in some)
            )
        for epoch in pinned.intersection(epochs):  # a damaged one
            self._store.unpin(epoch)

    def _read(self, epoch: Epoch, data: bytes, used: dict[bytes, _UsedByManifest]) -> _UsedByManifest | None:
        """Return the relevant part of a manifest; None if it is damaged."""
        digest = hashlib.sha256(epoch.key + data).digest()
        known = self._known.get(digest)
        if known is None:
            try:
                manifest = read_manifest(data, epoch)
            except CorruptionError:
                return None
            intervals = merged([[(span.start, span.end) for span in manifest.spans]])
            known = _UsedByManifest(manifest.recorded_at, manifest.is_base, tuple(intervals))
        used[digest] = known
        return known


class _UsedByManifest(NamedTuple):
    """The part of a manifest that garbage collection needs: time, epoch, and the records it names."""

    recorded_at: int
    is_base: bool
    intervals: tuple[Interval, ...]


class _Buried(NamedTuple):
    """A tomb; `known` is None if it names nothing any more, or cannot be read."""

    epoch: Epoch
    is_young: bool
    known: _UsedByManifest | None


def _problems(unread: Iterable[Epoch], tombstones: Iterable[_Buried]) -> tuple[str, ...]:
    """Return why nothing can be removed."""
    unread_tombs = [each.epoch for each in tombstones if each.is_young and each.known is None]
    return (
        *(
            f"the manifest of epoch {epoch} cannot be read, so no record of its partition is known to be free; "
            "give it up with refold snapshot --collect --damaged"
            for epoch in sorted(unread)
        ),
        *(
            f"the removed manifest of epoch {epoch} cannot be read, so no record of its partition is known to be free "
            "until its grace ends"
            for epoch in sorted(unread_tombs)
        ),
    )


def merged(several: Iterable[Iterable[Interval]]) -> list[Interval]:
    """The same offsets in as few intervals as possible, ascending."""
    found: list[Interval] = []
    for start, end in sorted({each for intervals in several for each in intervals if each[0] < each[1]}):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> int:
    """Return how many offsets are in disjoint intervals."""
    return sum(end - start for start, end in intervals)


def slower(epochs: Iterable[Epoch], stay: set[Epoch]) -> Iterator[SlowerCuts]:
    """Yield what becomes slower to rebuild if only some of these epochs, ascending, stay."""
    begins_at = 0
    gone: list[int] = []
    for epoch in epochs:
        if epoch not in stay:
            gone.append(epoch.offset)
            continue
        between = [offset for offset in gone if begins_at < offset < epoch.offset]
        if between:
            yield SlowerCuts(between[0], epoch.offset, begins_at, between[-1] - begins_at)
        gone.clear()
        begins_at = epoch.offset
