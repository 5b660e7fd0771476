"""Reads a table's indexes: one entity's observations, its checkpoints, and the positions of an id.

The caller has checked that the range is not in a gap (streams/table/index_gaps.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, starmap

from refold.streams.log.port import IndexedObservation, Record
from refold.streams.rocks.database import Database
from refold.streams.rocks.scan import Row
from refold.streams.table import keys

READ_AT_ONCE = 256


def arrivals(database: Database, entity: str, start: int, end: int) -> Iterator[IndexedObservation]:
    """See LogPort.arrivals."""
    prefix = keys.entity_prefix(entity)
    rows = database.scan("arrivals", keys.arrival_key(prefix, start), keys.arrival_key(prefix, end))
    return starmap(keys.arrival_of, rows)


def records_of(
    database: Database, partition: int, entity: str, qs: Iterable[bytes]
) -> Iterator[tuple[bytes, Record | None]]:
    """Yield each order key with the first record of that observation.

    Args:
        database: The table.
        partition: The entity's partition.
        entity: Its name, `TYPE/ID`.
        qs: The order keys.

    Yields:
        (order key, record); None in place of a missing record.
    """
    prefix, wanted = keys.entity_prefix(entity), iter(qs)
    while some := list(islice(wanted, READ_AT_ONCE)):
        for q, value in zip(some, database.multi_get("timeline", [prefix + q for q in some]), strict=True):
            if value is None:
                yield q, None
            else:
                offset, recorded_at, data = keys.timeline_of(value)
                yield q, Record(partition, offset, recorded_at, entity, q[-32:], data)


def checkpoint(database: Database, entity: str, end: int, definition: int) -> Row | None:
    """Return the last checkpoint of an entity below an offset.

    Args:
        database: The table.
        entity: Its name, `TYPE/ID`.
        end: The offset after the last one.
        definition: The offset in `.schemas` of the definition that folded it.

    Returns:
        Its key and stored value (checkpoints.py); None if there is none.
    """
    prefix = keys.entity_prefix(entity)
    stop = keys.checkpoint_key(prefix, end, 0)
    while (row := database.last("checkpoints", prefix, stop)) is not None:
        if keys.checkpoint_place(row[0])[2] == definition:
            return row
        stop = row[0]
    return None


def positions(database: Database, observation_id: bytes) -> Iterator[tuple[int, int]]:
    """Yield (partition, offset) of the records whose ids have the same first 8 bytes: nearly always exactly one, or
    none.
    """
    prefix = observation_id[: keys.ID_PREFIX_BYTES]
    return (keys.id_position(key) for key, _ in database.scan("ids", prefix, keys.after_id(prefix)))
