"""Records of one partition set aside while they are read in order, for a log that reads single ones slowly."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator

from refold.streams.log.port import Record
from refold.streams.table import keys

_NONE = (1 << 64) - 1


class RecordSpool:
    """Keeps what passes `through` in an unnamed file; for one thread."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._end = 0
        self._begins = array("Q")
        self._sizes = array("L")

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records, each set aside before it is given on; their offsets rise."""
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
        """The record at an offset that passed, or None."""
        if not 0 <= offset < len(self._begins) or self._begins[offset] == _NONE:
            return None
        self._file.seek(self._begins[offset])
        return keys.record_of(keys.position_key(partition, offset), self._file.read(self._sizes[offset]))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
