"""The settings of the process that seals a log's epochs."""

from __future__ import annotations

from dataclasses import dataclass

from refold.streams.defaults import CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """When epochs are sealed, and how they are written. Every value gives snapshots that rebuild to the same.

    epoch_records: an epoch is due after so many records, counted over all partitions that are folded here.
    changed_min: if there are closed entities, the next base is due after so many changed entities at the earliest: with
    closed entities each base writes all bucket digests.
    chunk_bytes: a chunk is full when its entities have so many bytes. It is one record of `.snapshots`.
    """

    epoch_records: int = 2_500
    changed_min: int = 4_096
    chunk_bytes: int = CHUNK_BYTES


DEFAULT_SETTINGS = SnapshotSettings()
