"""A worker's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from refold.streams.registry.settings import RegistrySettings
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.table.limits import DEFAULT_TABLE_LIMITS, TableLimits

COMMIT_MS = 100
RECORDS_MAX = 10_000
BYTES_MAX = 32 << 20
SESSION_MS = 10_000
TRANSACTION_MS = 20_000
EPOCH_EVERY_MS = 10_000
STUCK_S = 10.0
RETRY_S = 1.0
REGISTRY_S = 2.0


@dataclass(frozen=True, slots=True)
class FoldConfig:
    """The configuration of one fold service.

    Attributes:
        url: The log.
        folder: The folder of its tables, with a folder a partition. Workers on one machine may share it, and find each
            other's tables when a partition moves.
        instance: Its name among the log's workers, the same after a restart. Transactions that an earlier process of
            this name left open are aborted at its start.
        is_static: Whether the group knows it by that name too, and returns its partitions if it is back within a
            session.
        is_standby: Whether it keeps warm tables of partitions that it does not own, in a folder of its own.
        commit_ms: The longest time from a batch's first record to its commit.
        records_max: The number of records at which a batch is committed.
        bytes_max: The size at which a batch is committed.
        session_ms: How long the group waits for a silent worker.
        transaction_ms: The time after which the broker aborts an open transaction. A partition's next owner waits for
            that.
        epoch_every_ms: The shortest time between two epochs of a partition, unless the memory kept for the next one
            nears its limit.
        snapshots: When else epochs are sealed, and how.
        table: How much of a table is written at a time.
        registry: The Schema Registry. A log that is bound to one asks it about ids that it does not hold.
        kafka: Settings of librdkafka, which override those of the environment.
        client_id: The worker's name for its Kafka clients.
        stuck_s: The seconds without an answer about a partition after which the fetcher asks another client
            (fetcher.py), and a read checks whether the record is damaged.
        retry_s: The time after which an unanswered start, or a question to the Schema Registry, is repeated.
        registry_s: How long the Schema Registry may take to answer. Batches wait for it.
    """

    url: str
    folder: Path
    instance: str
    is_static: bool = False
    is_standby: bool = False
    commit_ms: int = COMMIT_MS
    records_max: int = RECORDS_MAX
    bytes_max: int = BYTES_MAX
    session_ms: int = SESSION_MS
    transaction_ms: int = TRANSACTION_MS
    epoch_every_ms: int = EPOCH_EVERY_MS
    snapshots: SnapshotSettings = DEFAULT_SETTINGS
    table: TableLimits = DEFAULT_TABLE_LIMITS
    registry: RegistrySettings | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_id: str = "refold-worker"
    stuck_s: float = STUCK_S
    retry_s: float = RETRY_S
    registry_s: float = REGISTRY_S
