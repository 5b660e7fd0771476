"""The entry of a rebuild: the entities of a log at a cut.

1. Plan: the partitions that are needed, and for each the records to read (plan.py).
2. Where it pays, rebuild partitions in child processes (processes.py).
3. Rebuild the other partitions, and those that a child did not finish, in this process (partition.py): load the nearest
   usable epoch, then fold the records from the epoch to the cut (range_fold.py).
4. Put the partitions together (result.py).
"""

from __future__ import annotations

from refold.streams.cut import Cut
from refold.streams.log.port import LogReader
from refold.streams.rebuild.memory import DEFAULT_MEMORY, RebuildMemory
from refold.streams.rebuild.partition import Progress, RecordsToRead, StartingEpoch, rebuild_partition
from refold.streams.rebuild.plan import RebuildLimits, plan_rebuild
from refold.streams.rebuild.processes import processes_worth, rebuild_in_processes
from refold.streams.rebuild.result import Rebuilt, RebuiltPartition
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.spill import VIEW_BYTES, ChunkStore
from refold.streams.table.folds import Folds


def rebuild(
    log: LogReader, cut: Cut, progress: Progress = lambda more, total: None, *, full: bool = False,
    limits: RebuildLimits | None = None, parallel: bool | None = None, memory_bytes: int | None = None,
    memory: RebuildMemory = DEFAULT_MEMORY,
) -> Rebuilt:  # fmt: skip
    """Return the entities at a cut, with their hashes. `full`, `parallel` and the memory do not change them.

    Args:
        log: The log.
        cut: The cut; the log has to reach it.
        progress: Called with the number of further records read, and the present estimate of the total.
        full: Whether to begin at the first record of each partition and use no snapshots.
        limits: Which entities are wanted; None for all. The result has at least the wanted ones.
        parallel: Whether to use child processes; None for whatever is faster.
        memory_bytes: The limit of the view's memory; the rest is in a temporary file. None for VIEW_BYTES.
        memory: The limits of what is kept in memory before it is part of the view.

    Returns:
        The entities by partition, and why snapshots or child processes were not used.

    Raises:
        StorageError: Records below the cut cannot be read.
        NotAnswerable: On Kafka, a record below the cut is not decided yet.
        SchemaError: A type names a custom reducer that is not registered in this process.
    """
    plan = plan_rebuild(log, cut, limits, full=full, memory=memory)
    known = RecordsToRead(sum(each.end for each in plan.ranges.values()), progress)
    memory_bytes = VIEW_BYTES if memory_bytes is None else memory_bytes
    store = ChunkStore(memory_bytes, put_bytes=memory.put_bytes)
    parts: dict[int, RebuiltPartition] = {}
    failed: dict[int, str] = {}
    processes = processes_worth(plan, parallel)
    if processes:
        parts, failed = rebuild_in_processes(log, plan, processes, store, known, memory_bytes)
    folds = Folds(log.registry, cut.schemas)
    with RunningHashes() as hashes:
        # Reading every epoch begins first: the digest of one is computed while the next one is read.
        epochs = [
            StartingEpoch(log, plan, partition, folds, store, hashes)
            for partition in plan.ranges
            if partition not in parts
        ]
        for epoch in epochs:
            part = parts[epoch.partition] = rebuild_partition(log, plan, epoch, folds, known)
            if epoch.partition in failed:
                part.fallbacks.append(f"partition {epoch.partition} was folded here: {failed[epoch.partition]}")
    for partition in cut.offsets.keys() - parts.keys():
        parts[partition] = RebuiltPartition(Layers(store))
    return Rebuilt(dict(sorted(parts.items())), limits)
