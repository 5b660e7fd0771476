"""The partitions and offsets of the observations that an owner appends, and their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from refold.avro.kernel import DecidedRecords, Kernel
from refold.avro.observation import Observation
from refold.reducers.cells import new_tuple
from refold.streams.log.port import AppendedObservation, Record
from refold.streams.partitioner import all_placed, partition_in
from refold.streams.table import keys
from refold.streams.table.checked import CheckedRecord


class NumberedBatch(NamedTuple):
    """Appended observations with their partitions and offsets.

    Attributes:
        rows: The keys and values, in turns, of their rows in the family "observations".
        through: The next offset of each of their partitions.
        decided: The records, if the kernel keeps them.
        checked: The records otherwise, in order.
    """

    rows: Sequence[bytes]
    through: Mapping[int, int]
    decided: DecidedRecords | None
    checked: Sequence[CheckedRecord]


def numbered(
    kernel: Kernel | None, batch: Sequence[AppendedObservation], ends: Mapping[int, int], recorded_at: int
) -> NumberedBatch:
    """Give observations their partitions and offsets.

    Args:
        kernel: The native kernel, if it is used.
        batch: The observations.
        ends: The next offset of every partition of the log.
        recorded_at: When the log takes them, in milliseconds since 1970.
    """
    found = None if kernel is None else kernel.numbered(list(batch), dict(ends), recorded_at, len(ends))
    if found is not None:
        decided, rows, through = found
        return NumberedBatch(rows, through, decided, ())
    names = list({each.entity: None for each in batch})
    partitions = {name: partition_in(place, len(ends)) for name, place in zip(names, all_placed(names), strict=True)}
    through, rows = {}, []
    checked: list[CheckedRecord] = []
    for entity, observation_id, data, observation in batch:
        partition = partitions[entity]
        offset = through.get(partition, ends[partition])
        through[partition] = offset + 1
        record = new_tuple(Record, (partition, offset, recorded_at, entity, observation_id, data))
        rows += keys.position_key(partition, offset), keys.record_value(record)
        checked.append(new_tuple(CheckedRecord, (record, observation)))
    return NumberedBatch(rows, dict(sorted(through.items())), None, checked)


def decoded_in(batch: Sequence[AppendedObservation]) -> dict[bytes, Observation]:
    """Return the observations that are decoded already, by id."""
    return {each.id: each.observation for each in batch if each.observation is not None}
