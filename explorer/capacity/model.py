"""The resources that a load needs: partitions, workers, memory, disks, network and rebuild time. Pure arithmetic.

1. A worker folds with one thread. It is planned for half of that thread's maximum rate, so that it catches up after an
   outage in as much time as the outage took. The number of workers follows from the rate, or from the tables' disks if
   these need more workers.
2. A log has at least twice as many partitions as workers, so that one more worker gets a fair share. The number of
   partitions is a power of two, and at most SLOTS: entities are divided into that many slots, and a slot is never
   divided.
3. A table holds the state of each entity, and rows for each record: timeline, arrivals and ids. Nothing is removed, so
   the disks grow with the time for which observations are kept.
4. An epoch of a partition is sealed after EPOCH_RECORDS of the log, but at most every EPOCH_S. It writes each entity
   that changed since the last epoch. A base, which writes all entities, is due when the epochs since the last base have
   written about as many. So each entity that an epoch writes costs two in the long run.
5. Sealed data is kept for KEPT_S, and of older epochs KEPT_BASES bases (streams/snapshots/retention_policy.py).
6. A rebuild reads a base and the epochs after it, at most two stored entities per existing entity, and folds the
   records after the last epoch.

docs/reference/scale.md compares this model with measured logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from refold.explorer.capacity.measured import Measured
from refold.streams.snapshots.settings import DEFAULT_SETTINGS

SLOTS = 1024
PARTITIONS_MIN = 8
PARTITIONS_A_WORKER = 2
REPLICAS_MAX = 3
USED_SHARE = 0.5
"""The share of a thread's maximum rate that a worker is planned for."""
EPOCH_RECORDS = DEFAULT_SETTINGS.epoch_records
EPOCH_S = 10.0
KEPT_S = 7 * 3_600
KEPT_BASES = 24 + 30
ENTITIES_READ = 2
"""The maximum number of stored entities that a rebuild reads per existing entity."""


@dataclass(frozen=True)
class Demand:
    """A load.

    Attributes:
        rate: Observations per second.
        entities: The number of entities.
        retain_s: How long observations are kept, in seconds.
        brokers: The number of Kafka brokers.
        standbys: How many more workers keep a copy of each partition's table.
        raw_bytes: The size of an observation's record, including key and id.
        worker_disk_bytes: The disk space that each worker has for tables.
    """

    rate: float
    entities: int
    retain_s: float
    brokers: int
    standbys: int
    raw_bytes: int
    worker_disk_bytes: float


@dataclass(frozen=True)
class Capacity:
    """The resources that a load needs. Disk sizes are those after retain_s.

    Attributes:
        partitions: The partitions of the log.
        workers: Processes that fold, not counting standbys.
        cores: The cores of all workers, including their sealing processes.
        worker_memory_bytes: The memory of one worker with its sealing process.
        tables_bytes: The disks of all workers and standbys.
        broker_disk_bytes: The disk of one broker.
        broker_write_bytes: The bytes that one broker writes per second.
        snapshot_bytes: The bytes that all workers seal per second.
        rebuild_s: The time of a rebuild at the log's end, by one process, in seconds.
        replay_s: The time of a rebuild from the first observation, by one process, in seconds.
        is_over: Whether one log cannot carry the load, because it would need more than SLOTS partitions.
    """

    partitions: int
    workers: int
    cores: float
    worker_memory_bytes: float
    tables_bytes: float
    broker_disk_bytes: float
    broker_write_bytes: float
    snapshot_bytes: float
    rebuild_s: float
    replay_s: float
    is_over: bool


def plan(demand: Demand, measured: Measured) -> Capacity:
    """Return the resources that a load needs."""
    records = demand.rate * demand.retain_s
    size = demand.raw_bytes / measured.raw_bytes
    tables = table_bytes(records, demand.entities, measured, size)
    by_rate = math.ceil(demand.rate / (measured.thread_rate * USED_SHARE))
    by_disk = math.ceil((1 + demand.standbys) * tables / demand.worker_disk_bytes)
    workers = max(1, by_rate, by_disk)
    wanted = max(PARTITIONS_MIN, _power_of_two(PARTITIONS_A_WORKER * workers))
    partitions = min(SLOTS, wanted)
    sealed, tail = sealing(demand.rate, demand.entities, partitions, measured)
    replicas = min(REPLICAS_MAX, demand.brokers)
    logged = (measured.observation_bytes + measured.change_bytes) * size
    kept = KEPT_BASES * demand.entities * measured.chunk_bytes + sealed * min(KEPT_S, demand.retain_s)
    return Capacity(
        partitions=partitions,
        workers=workers,
        cores=demand.rate * measured.cpu_us / 1e6 / USED_SHARE,
        worker_memory_bytes=measured.memory_bytes,
        tables_bytes=(1 + demand.standbys) * tables,
        broker_disk_bytes=(records * logged + kept) * replicas / demand.brokers,
        broker_write_bytes=(demand.rate * logged + sealed) * replicas / demand.brokers,
        snapshot_bytes=sealed,
        rebuild_s=rebuild_s(ENTITIES_READ * demand.entities, tail, measured),
        replay_s=rebuild_s(0, records, measured),
        is_over=wanted > SLOTS,
    )


def table_bytes(records: float, entities: int, measured: Measured, size: float = 1.0) -> float:
    """Return the size of the tables of all partitions, in bytes.

    Args:
        records: The number of records in the tables.
        entities: The number of entities.
        measured: The measured constants.
        size: A record's size, relative to the measured one.
    """
    return records * measured.row_bytes * size + entities * measured.state_bytes


def rebuild_s(entities_read: float, replayed: float, measured: Measured) -> float:
    """Return the time of a rebuild, in seconds, from the number of stored entities it reads and of records it folds."""
    return (entities_read * measured.read_us + replayed * measured.replay_us) / 1e6


def sealing(rate: float, entities: int, partitions: int, measured: Measured) -> tuple[float, float]:
    """Return how many bytes are sealed per second, and how many records at most follow the last epochs."""
    if not rate or not entities:
        return 0.0, 0.0
    every_s = max(EPOCH_S, EPOCH_RECORDS / rate)
    records, own = rate * every_s / partitions, entities / partitions
    changed = own * -math.expm1(-records / own)  # the expected number of distinct entities if each is equally likely
    return 2 * changed * partitions * measured.chunk_bytes / every_s, records * partitions


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
