"""The indexes of a `file:` log against its records (streams/table/check.py), and records past its end.

While a definition is being taken up this is said, for the table is then folded by two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from refold.avro.registry import Registry
from refold.streams.log.file.records import is_redefining
from refold.streams.log.port import Mismatch, Record, is_hole
from refold.streams.rocks.database import Database
from refold.streams.table import keys
from refold.streams.table.check import IndexCheck


def check_indexes(database: Database, registry: Registry, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
    """Every mismatch between records and indexes."""
    if is_redefining(database):
        unfinished = "a definition is being taken up, or that was cut short; open the log to write, then verify"
        yield Mismatch("state", unfinished)
    check = IndexCheck(
        database, registry, len(offsets), lambda partition, offset: _record_at(database, partition, offset)
    )
    for partition, end in offsets.items():
        stop = keys.position_key(partition, end)
        rows = database.scan("observations", keys.position_key(partition, 0), stop)
        yield from check.records(record for row in rows if not is_hole(record := keys.record_of(*row)))
        for key, _ in database.scan("observations", stop, _begin_of_next(partition, len(offsets))):
            yield Mismatch(f"observations {_shown(key)}", "a record at or past the log's end")
    yield from check.end()


def _begin_of_next(partition: int, partitions: int) -> bytes | None:
    """Where the records of the next partition begin; None past the last one, behind which nothing stands."""
    return keys.position_key(partition + 1, 0) if partition + 1 < partitions else None


def _shown(key: bytes) -> str:
    try:
        return "{}={}".format(*keys.POSITION.unpack(key))
    except struct.error:
        return key.hex()


def _record_at(database: Database, partition: int, offset: int) -> Record | None:
    key = keys.position_key(partition, offset)
    value = database.get("observations", key)
    return None if value is None else keys.record_of(key, value)
