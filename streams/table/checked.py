"""Checked records of a batch: one by one, or many that the kernel keeps (avro/kernel.py)."""

from __future__ import annotations

from typing import NamedTuple

from refold.avro.kernel import DecidedRecords
from refold.avro.observation import Observation
from refold.reducers.cells import new_tuple
from refold.streams.log.port import Record


class CheckedRecord(NamedTuple):
    """A checked record. The observation is None if the kernel checked the record: it is decoded on demand."""

    record: Record
    observation: Observation | None


def checked_records(decided: DecidedRecords) -> list[CheckedRecord | None]:
    """Return each plain observation that the kernel keeps, and None for each other record."""
    return [
        None if parts is None else new_tuple(CheckedRecord, (new_tuple(Record, parts), None))
        for parts in decided.records()
    ]


def last_record(decided: DecidedRecords) -> Record | None:
    """Return the last plain observation; None without one."""
    parts = decided.last
    return None if parts is None else new_tuple(Record, parts)
