"""What a load needs: partitions, workers, memory, disks, network and the time of a rebuild. Pure arithmetic.

1. A worker folds with one thread. It is planned for half of the rate that one thread reaches, so that it catches up
   after an outage in the time that the outage took. There are as many as the rate needs, or as the tables' disks need.
2. A log has at least twice as many partitions as workers, so that one more worker takes a fair share. Partitions are a
   power of two, and at most SLOTS: the entities are divided into so many slots, and a slot is never divided.
3. A table holds the state of each entity, and rows for each record: timeline, arrivals and ids. All stay, so the disks
   grow with the time that observations are kept.
4. An epoch of a partition is sealed after EPOCH_RECORDS of the log, but at most every EPOCH_S. It writes each entity
   that changed since the last one. A base, which writes all entities, is due when the epochs since have written about
   as many. So each entity that an epoch writes costs two in the long run.
5. What was sealed stays for KEPT_S, and of older epochs KEPT_BASES bases (streams/snapshots/retention_policy.py).
6. A rebuild reads a base and the epochs after it, at most two entities for each that there is, and folds the records
   after the last epoch.

docs/reference/scale.md shows how near to measured logs this is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from refold.explorer.capacity.measured import Measured

SLOTS = 1024
PARTITIONS_MIN = 8
PARTITIONS_A_WORKER = 2
REPLICAS_MAX = 3
USED_SHARE = 0.5
"""How much of a thread's rate a worker is planned for."""
EPOCH_RECORDS = 2_500
EPOCH_S = 10.0
KEPT_S = 7 * 3_600
KEPT_BASES = 24 + 30
ENTITIES_READ = 2
"""How many stored entities a rebuild reads for each that there is, at most."""


@dataclass(frozen=True)
class Demand:
    """A load.

    Attributes:
        rate: Observations a second.
        entities: How many there are.
        retain_s: How long observations are kept, in seconds.
        brokers: How many brokers Kafka has.
        standbys: How many more workers keep each partition's table.
        raw_bytes: The size of an observation's record, key and id included.
        worker_disk_bytes: How much of a disk each worker has for tables.
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
    """What a load needs. Disks as they are after retain_s.

    Attributes:
        partitions: Of the log.
        workers: Processes that fold, standbys not counted.
        cores: Cores of all of them, with their sealing processes.
        worker_memory_bytes: Of one worker with its sealing process.
        tables_bytes: The disks of all workers and standbys.
        broker_disk_bytes: Of one broker.
        broker_write_bytes: What one broker writes in a second.
        snapshot_bytes: What all workers seal in a second.
        rebuild_s: The time of a rebuild at the log's end, by one process.
        replay_s: The time of a rebuild from the first observation, by one process.
        is_over: Whether one log cannot carry the load: it would need more than SLOTS partitions.
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
    """What a load needs."""
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
    """What the tables of all partitions take. size: of a record, to the measured one's."""
    return records * measured.row_bytes * size + entities * measured.state_bytes


def rebuild_s(entities_read: float, replayed: float, measured: Measured) -> float:
    """The time of a rebuild that reads so many stored entities and folds so many records."""
    return (entities_read * measured.read_us + replayed * measured.replay_us) / 1e6


def sealing(rate: float, entities: int, partitions: int, measured: Measured) -> tuple[float, float]:
    """How many bytes are sealed in a second, and how many records are after the last epochs, at most."""
    if not rate or not entities:
        return 0.0, 0.0
    every_s = max(EPOCH_S, EPOCH_RECORDS / rate)
    records, own = rate * every_s / partitions, entities / partitions
    changed = own * -math.expm1(-records / own)  # of so many entities, drawn alike
    return 2 * changed * partitions * measured.chunk_bytes / every_s, records * partitions


def _power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()
