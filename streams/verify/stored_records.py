"""Reads single records of a log while it is verified.

For a log where that is slow, the records of one partition are spooled while they are read in order.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from refold.streams.log.port import LogReader, Record, is_hole
from refold.streams.table import keys

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
    """The records of a log, from the spool if there is one."""

    def __init__(self, log: LogReader, spool: RecordSpool | None) -> None:
        self.at: Callable[[int, int], Record | None] = log.record_at if spool is None else spool.at
        self._log = log
        self._spool = spool

    def between(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """The records with start <= offset < end, in order."""
        if self._spool is None:
            return self._log.read(partition, start, end)
        found = (self._spool.at(partition, offset) for offset in range(start, end))
        return (record for record in found if record is not None and not is_hole(record))
