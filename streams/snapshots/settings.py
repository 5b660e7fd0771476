"""The settings of the process that seals a log's epochs."""

from __future__ import annotations

from dataclasses import dataclass

from refold.streams.defaults import CHUNK_BYTES, OPEN_CHUNKS, PUT_BYTES


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """When epochs are sealed, and how they are written. Every value gives snapshots that rebuild to the same.

    Attributes:
        epoch_records: The number of records, over all partitions folded here, after which an epoch is due
            (snapshotter.py).
        cpu_share: The largest share of one processor's time that sealing uses while epochs are due; infinity for no
            limit.
        idle_s: The seconds without a folded record after which `Pace` no longer limits sealing.
        collect_every_ms: The least time between two collections of garbage. One may follow each base.
        tombs_at_once: The number of manifests that garbage collection replaces by tombs in one write.
        removed_at_once: The number of records that garbage collection removes in one write from a `file:` log.
        compacted_bytes: The number of removed bytes of a partition after which `.snapshots` of a `file:` log is
            compacted; otherwise the disk space is freed only by later writes.
        changed_min: The least number of changed entities before the next base, if there are closed entities: then each
            base writes all bucket digests (seal.py).
        observations_min: The least number of observations before a base is made from the whole table: with fewer, a
            delta costs less.
        merged_bytes: The size of an epoch's deltas up to which the native kernel makes a base from the ranges, and not
            from the table. The deltas are in memory meanwhile, of two partitions at most. None: 48 MB for a `file:`
            log, 0 on Kafka, where `.snapshots` is not on this machine's disk.
        chunk_bytes: The size of entities at which a chunk is full. A chunk is one record of `.snapshots`.
        open_chunks: The number of chunks of earlier spans that are in memory while they are merged or looked up.
        put_bytes: The size at which changed entities are made a layer over the last base, while a base is made of both.
        process_entities_min: The number of entities in the partitions sealed here from which a separate process seals
            (sealing_process/): sealing them takes longer than starting a process.
        message_bytes: The approximate size of a message with rows or records between the two processes; less than
            MEMORY_BYTES of a channel.
    """

    epoch_records: int = 2_500
    cpu_share: float = 0.5
    idle_s: float = 0.5
    collect_every_ms: int = 300_000
    tombs_at_once: int = 1_000
    removed_at_once: int = 1_000
    compacted_bytes: int = 16 << 20
    changed_min: int = 4_096
    observations_min: int = 20_000
    merged_bytes: int | None = None
    chunk_bytes: int = CHUNK_BYTES
    open_chunks: int = OPEN_CHUNKS
    put_bytes: int = PUT_BYTES
    process_entities_min: int = 20_000
    message_bytes: int = 2 << 20


DEFAULT_SETTINGS = SnapshotSettings()
