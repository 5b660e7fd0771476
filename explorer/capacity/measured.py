"""The constants of the model, computed from logs that `make bench ARGS="--only scale --write"` measured.

measured.json holds them, and the three logs: one of few entities, one of many, and one in between that is longer. The
constants are computed from the first two; the model must predict the third (check.py).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import mean

import msgspec

FILE = Path(__file__).with_name("measured.json")
RAW_BYTES = 190
"""The size of the measured records, including key and id."""


class MeasuredLog(msgspec.Struct, frozen=True):
    """The measurements of a folded log.

    Attributes:
        records: How many records it has.
        entities: How many entities it has.
        rate: Observations per second that one worker folded.
        cpu_us: CPU time of the worker and its sealing process, in microseconds per observation.
        memory: Their peak memory, in bytes.
        observations: The size of `.observations`, in bytes, as the next three; of all partitions together.
        changes: The size of `.changes`.
        table: The size of the worker's tables.
        ranges: The size of the snapshots that a rebuild reads, as stored, compressed.
        entities_read: How many stored entities a rebuild reads.
        replayed: How many records a rebuild folds.
        rebuild_s: CPU time of a rebuild, in seconds.
        replay_s: CPU time of a rebuild --full, in seconds.
    """

    records: int
    entities: int
    rate: float
    cpu_us: float
    memory: float
    observations: int
    changes: int
    table: int
    ranges: float
    entities_read: int
    replayed: int
    rebuild_s: float
    replay_s: float


class MeasuredLogs(msgspec.Struct, frozen=True):
    """The three measured logs."""

    few: MeasuredLog
    many: MeasuredLog
    between: MeasuredLog


class Measured(msgspec.Struct, frozen=True):
    """Measurements with observations of five fields. As records they have raw_bytes bytes.

    Attributes:
        thread_rate: Observations per second that one worker folds, with a broker on the same two cores.
        cpu_us: CPU time of a worker and its sealing process, in microseconds per observation.
        memory_bytes: The peak memory of a worker and its sealing process together.
        raw_bytes: The size of an observation's record, including key and id.
        observation_bytes: The size of an observation in `.observations`, compressed.
        change_bytes: The size of an observation's change in `.changes`, compressed.
        row_bytes: The size of an observation's rows in a worker's table: timeline, arrivals, id.
        state_bytes: The size of an entity in a worker's table.
        chunk_bytes: The size of an entity in a snapshot, compressed.
        read_us: CPU time of a rebuild, in microseconds per stored entity that it reads.
        replay_us: CPU time of a rebuild, in microseconds per record that it folds.
    """

    thread_rate: float
    cpu_us: float
    memory_bytes: float
    raw_bytes: int
    observation_bytes: float
    change_bytes: float
    row_bytes: float
    state_bytes: float
    chunk_bytes: float
    read_us: float
    replay_us: float


class Measurement(msgspec.Struct, frozen=True):
    """The content of measured.json.

    Attributes:
        machine: Where, when and of which commit it was measured.
        logs: The measured logs; None for constants that were measured one by one.
    """

    machine: str
    constants: Measured
    logs: MeasuredLogs | None


@cache
def measurement() -> Measurement:
    """Return what this release was measured with."""
    return msgspec.json.decode(FILE.read_bytes(), type=Measurement)


def constants(few: MeasuredLog, many: MeasuredLog) -> Measured:
    """Compute the constants from two logs with equal numbers of records and different numbers of entities."""
    state = (many.table - few.table) / (many.entities - few.entities)
    replay_us = mean(each.replay_s / each.records for each in (few, many)) * 1e6
    # From the log with more entities: with few, the rest of a rebuild takes longer than the reading.
    read_us = max(0.0, many.rebuild_s * 1e6 - many.replayed * replay_us) / max(1, many.entities_read)
    return Measured(
        thread_rate=mean((few.rate, many.rate)),
        cpu_us=mean((few.cpu_us, many.cpu_us)),
        memory_bytes=mean((few.memory, many.memory)),
        raw_bytes=RAW_BYTES,
        observation_bytes=mean(each.observations / each.records for each in (few, many)),
        change_bytes=mean(each.changes / each.records for each in (few, many)),
        row_bytes=(few.table - few.entities * state) / few.records,
        state_bytes=state,
        chunk_bytes=mean(each.ranges / max(1, each.entities_read) for each in (few, many)),
        read_us=read_us,
        replay_us=replay_us,
    )


def measured() -> Measured:
    """Return the constants of this release."""
    return measurement().constants
