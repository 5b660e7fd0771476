"""Reads the records of one partition again and again while a log is verified.

For a log where reading single records is slow, they are spooled while they are read in order.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from refold.streams.log.port import LogReader, Record, is_hole
from refold.streams.table import keys

HELD_BYTES = 64 << 20
RECORD_BYTES = 500
"""About what a record takes in memory, apart from its data."""
_NONE = (1 << 64) - 1


Item = TypeVar("Item")


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of up to `size` items. An error of `items` is raised after the items before it."""
    rest = iter(items)
    while True:
        batch: list[Item] = []
        try:
            batch.extend(islice(rest, size))
        except Exception:
            if batch:
                yield batch
            raise
        if not batch:
            return
        yield batch


class RecordSpool:
    """Stores the records that pass `through` in an unnamed file; for one thread."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._end = 0
        self._begins = array("Q")
        self._sizes = array("L")

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        """Store each record and pass it on; their offsets must be ascending."""
        for record in records:
            value = keys.record_value(record)
            while len(self._begins) < record.offset:
                self._begins.append(_NONE)
                self._sizes.append(0)
            self._begins.append(self._end)
            self._sizes.append(len(value))
            self._file.seek(self._end)
            self._end += self._file.write(value)
            yield record

    def at(self, partition: int, offset: int) -> Record | None:
        """The stored record at an offset, or None."""
        if not 0 <= offset < len(self._begins) or self._begins[offset] == _NONE:
            return None
        self._file.seek(self._begins[offset])
        return keys.record_of(keys.position_key(partition, offset), self._file.read(self._sizes[offset]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StoredRecords:
    """The records of one partition, which several checks read: held in memory if they take at most `held_bytes`.

    Larger ones are read again, from the spool if there is one, else from the log.

    Attributes:
        is_read: Whether `all` was read to its end.
    """

    def __init__(self, log: LogReader, partition: int, spool: RecordSpool | None, held_bytes: int = HELD_BYTES) -> None:
        self._log = log
        self._partition = partition
        self._spool = spool
        self._held_bytes = held_bytes
        self._held: dict[int, Record] = {}
        self._is_held = False
        self.is_read = False

    def all(self, end: int) -> Iterator[Record]:
        """Read the records and the holes below an offset, for the first time."""
        records = self._log.read_with_holes(self._partition, 0, end)
        held, size = self._held, 0
        for record in records if self._spool is None else self._spool.through(records):
            if size <= self._held_bytes:
                held[record.offset] = record
                size += RECORD_BYTES + len(record.data)
                if size > self._held_bytes:
                    held.clear()
            yield record
        self._is_held = size <= self._held_bytes
        self.is_read = True

    def between(self, start: int, end: int) -> Iterator[Record]:
        """The records with start <= offset < end, in order."""
        if self._is_held:
            found: Iterator[Record | None] = map(self._held.get, range(start, end))
        elif self._spool is not None:
            found = (self._spool.at(self._partition, offset) for offset in range(start, end))
        else:
            return self._log.read(self._partition, start, end)
        return (record for record in found if record is not None and not is_hole(record))

    def at(self, partition: int, offset: int) -> Record | None:
        """The record at an offset of the partition; None if there is none."""
        if self._is_held:
            found = self._held.get(offset)
        else:
            found = (self._log.record_at if self._spool is None else self._spool.at)(partition, offset)
        return None if found is None or is_hole(found) else found
