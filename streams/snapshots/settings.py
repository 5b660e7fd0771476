"""The settings of the process that seals a log's epochs."""

from __future__ import annotations

from dataclasses import dataclass

from refold.streams.defaults import CHUNK_BYTES, OPEN_CHUNKS, PUT_BYTES


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """When epochs are sealed, and how they are written. Every value gives snapshots that rebuild to the same.

    When (snapshotter.py):
    epoch_records: an epoch is due after so many records, counted over all partitions that are folded here.
    cpu_share: sealing uses at most this share of one processor's time while epochs are due; infinity for no limit.
    idle_s: after so many seconds without a folded record, `Pace` no longer limits sealing.
    collect_every_ms: garbage is collected after a base, at most once in so many milliseconds.
    tombs_at_once: garbage collection replaces so many manifests by tombs in one write.
    removed_at_once: in a `file:` log it removes so many records in one write.
    compacted_bytes: in a `file:` log `.snapshots` is compacted once so many bytes of a partition were removed;
    otherwise the disk space is freed only by later writes.

    How (seal.py):
    changed_min: if there are closed entities, the next base is due after so many changed entities at the earliest: with
    closed entities each base writes all bucket digests.
    observations_min: a base is made from the whole table after so many observations at the earliest: with fewer, a
    delta costs less.
    chunk_bytes: a chunk is full when its entities have so many bytes. It is one record of `.snapshots`.
    open_chunks: so many chunks of earlier spans are in memory while they are merged or looked up.
    put_bytes: changed entities are made a layer over the last base at this size, while a base is made of both.

    Where (sealing_process/):
    process_entities_min: a separate process seals once the partitions sealed here have so many entities together: then
    sealing takes longer than starting a process.
    message_bytes: the approximate size of a message with rows or records between the two processes; less than
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
    chunk_bytes: int = CHUNK_BYTES
    open_chunks: int = OPEN_CHUNKS
    put_bytes: int = PUT_BYTES
    process_entities_min: int = 20_000
    message_bytes: int = 2 << 20


DEFAULT_SETTINGS = SnapshotSettings()
