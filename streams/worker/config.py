"""A worker's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from refold.streams.registry.settings import RegistrySettings
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings

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

    url: of the log. folder: of its tables, one folder a partition; workers on one machine may share it, and find each
    other's tables when a partition moves. instance: its name among the log's workers, the same after a restart:
    transactions that an earlier process of this name left open are aborted at its start. is_static: the group knows it
    by that name too, and returns its partitions if it is back within a session. is_standby: it keeps warm tables of
    partitions that it does not own, in a folder of its own. commit_ms, records_max, bytes_max: a batch is committed
    after so long, so many records, or so many bytes. session_ms: how long the group waits for a silent worker.
    transaction_ms: after how long the broker aborts an open transaction; a partition's next owner waits for that.
    epoch_every_ms: an epoch of a partition is sealed at most so often, unless what is kept for it nears its limit.
    snapshots: when else epochs are sealed, and how.
    registry: the Schema Registry, which a log that is bound to one asks about ids that it does not hold. kafka:
    settings of librdkafka, which override those of the environment. client_id: the worker's name for others.
    stuck_s: after so many seconds without an answer about a partition, the fetcher asks another client (fetcher.py).
    retry_s: when a start, or a question to the Schema Registry, that got no answer is repeated. registry_s: how long it
    may take to answer: batches wait for it.
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
    registry: RegistrySettings | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_id: str = "refold-worker"
    stuck_s: float = STUCK_S
    retry_s: float = RETRY_S
    registry_s: float = REGISTRY_S
