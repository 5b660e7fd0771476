"""Rebuilding a log at a cut: each partition by itself (part.py), in this process or in several (parallel.py)."""

from __future__ import annotations

from collections.abc import Collection

from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.partition import partition_of
from refold.streams.rebuild.beginning import Beginning, candidates
from refold.streams.rebuild.limits import Limits
from refold.streams.rebuild.parallel import Job, processes_worth, rebuild_apart
from refold.streams.rebuild.part import Known, Progress, rebuild_part
from refold.streams.rebuild.rebuilt import Part, Rebuilt
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.spill import VIEW_BYTES, ChunkStore
from refold.streams.table.folds import Folds


def rebuild(
    log: LogPort, cut: Cut, progress: Progress = lambda more, total: None, *, full: bool = False,
    limits: Limits | None = None, parallel: bool | None = None, memory_bytes: int | None = None,
) -> Rebuilt:  # fmt: skip
    """The entities at the cut, with their hashes; with `limits`, at least those asked for.

    full: from the first record, whatever snapshots there are. parallel: in several processes or in this one; None
    for whatever is faster. memory_bytes: what stands in memory at most, VIEW_BYTES for None; the rest is filed away.
    The entities are the same.
    """
    asked = _asked(cut, limits)
    jobs = [Job(each, next((nearest.offset for nearest in candidates(log, cut, each, full=full)), 0)) for each in asked]
    known = Known(sum(cut.offsets[partition] for partition in asked), progress)
    memory_bytes = VIEW_BYTES if memory_bytes is None else memory_bytes
    store = ChunkStore(memory_bytes)
    parts: dict[int, Part] = {}
    failed: dict[int, str] = {}
    processes = processes_worth(cut, jobs, parallel)
    if processes:
        parts, failed = rebuild_apart(log, cut, jobs, processes, store, known, limits, memory_bytes, full=full)
    folds = Folds(log.registry, cut.schemas)
    with RunningHashes() as hashes:
        begun = [
            Beginning(log, cut, partition, folds, store, hashes, limits, full=full)
            for partition in asked
            if partition not in parts
        ]
        for each in begun:
            part = parts[each.partition] = rebuild_part(log, cut, each, folds, known, limits)
            if each.partition in failed:
                part.fallbacks.append(f"partition {each.partition} was folded here: {failed[each.partition]}")
    for partition in cut.offsets.keys() - parts.keys():
        parts[partition] = Part(Layers(store))
    return Rebuilt(dict(sorted(parts.items())), limits)


def _asked(cut: Cut, limits: Limits | None) -> Collection[int]:
    """The partitions that can hold what is asked for."""
    if limits is None or not limits.by_name_alone:
        return sorted(cut.offsets)
    return sorted({partition_of(name, len(cut.offsets)) for name in limits.entities or ()})
