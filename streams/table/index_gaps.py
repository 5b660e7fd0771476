"""The gaps of a table's indexes (timeline, arrivals, ids) while they are filled again after a recovery.

The record `table` in `meta` is CBOR {format, gaps: {partition: [start, end]}}: the indexes lack the records with
start <= offset < end. No record, or another format: the table is lost, and is made again (streams/table/recovery.py).
A gap is filled from its start on, each step in one write with the record:
1. read the next records; for each that repeats none in the timeline and none in this step,
2. put the timeline, arrival and id entries; move the gap's start after them. Until then the history of an entity in the
gap is read from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import cbor2

from refold.avro.errors import CorruptionError
from refold.avro.registry import Registry
from refold.reducers.order import order_key
from refold.streams.log.port import Record, observation_in
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.table import keys

TABLE = b"table"
FORMAT = 4


class Gap(NamedTuple):
    """Offsets of a partition's records, start inclusive, end exclusive."""

    start: int
    end: int


Gaps = Mapping[int, Gap]
ReadRecords = Callable[[int, int, int], Iterator[Record]]
"""Returns the records of a partition with start <= offset < end, in order, from the log itself."""


def read_gaps(database: Database) -> dict[int, Gap] | None:
    """Read the gaps of the table's indexes.

    Returns:
        By partition; None if there is no table that this release can read.

    Raises:
        CorruptionError: The record of the table is damaged.
    """
    packed = database.get("meta", TABLE)
    if packed is None:
        return None
    try:
        tree = cbor2.loads(packed)
        if tree["format"] != FORMAT:
            return None
        return {int(partition): Gap(int(start), int(end)) for partition, (start, end) in tree["gaps"].items()}
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(f"the log's record of its table cannot be read: {error}; run refold recover") from error


def table_record(gaps: Gaps) -> bytes:
    """The stored form."""
    return cbor2.dumps({"format": FORMAT, "gaps": {partition: list(gap) for partition, gap in gaps.items()}})


def records_in(read: ReadRecords, gaps: Gaps, names: Collection[str]) -> dict[str, list[Record]]:
    """Return the records of some entities in gaps, in order, repeats included.

    Args:
        read: Reads records of the log.
        gaps: By partition, the range of offsets without index entries.
        names: The entities, `TYPE/ID`.
    """
    found: dict[str, list[Record]] = {name: [] for name in names}
    for partition, gap in gaps.items():
        for record in read(partition, gap.start, gap.end):
            if record.entity in found:
                found[record.entity].append(record)
    return found


def index(record: Record, prefix: bytes, q: bytes, retracts: bool, write: WriteSet) -> None:
    """Put the index entries of a first occurrence.

    Args:
        prefix: Of its entity's keys.
    """
    partition, offset, recorded_at, _, observation_id, data = record
    write.put("timeline", prefix + q, keys.timeline_value(offset, recorded_at, data))
    write.put("arrivals", keys.arrival_key(prefix, offset), keys.arrival_value(recorded_at, q, retracts))
    write.put("ids", keys.id_key(observation_id, partition, offset), b"")


def fill(
    database: Database, read: ReadRecords, registry: Registry, gaps: Gaps, records_max: int, write: WriteSet
) -> dict[int, Gap]:
    """Put the next entries of the gaps into a write.

    Args:
        database: The table.
        read: Reads records of the log.
        registry: The log's types.
        gaps: The gaps now.
        records_max: How many records to read at most.
        write: Gets the entries, and the record of the remaining gaps.

    Returns:
        The remaining gaps.
    """
    partition, gap = next(iter(gaps.items()))
    some = list(islice(read(partition, gap.start, gap.end), records_max))
    known: set[bytes] = set()
    at = gap.start
    for record, q, retracts, is_stored in _indexed(database, registry, some):
        at = record.offset + 1
        if not is_stored and q not in known:
            known.add(q)
            index(record, keys.entity_prefix(record.entity), q, retracts, write)
    left = {**gaps, partition: Gap(at, gap.end)}
    if at >= gap.end or at == gap.start:
        del left[partition]
    write.put("meta", TABLE, table_record(left))
    return left


def _indexed(database: Database, registry: Registry, some: list[Record]) -> Iterator[tuple[Record, bytes, bool, bool]]:
    """Each record with its order key, whether it retracts, and whether the timeline has it."""
    observations = [observation_in(registry, record) for record in some]
    ordered = [order_key(observation, record.id) for observation, record in zip(observations, some, strict=True)]
    places = [keys.entity_prefix(record.entity) + q for record, q in zip(some, ordered, strict=True)]
    stored = database.multi_get("timeline", places)
    for record, observation, q, value in zip(some, observations, ordered, stored, strict=True):
        yield record, q, bool(observation.retracts), value is not None
