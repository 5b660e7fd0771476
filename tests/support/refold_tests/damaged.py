"""Damage: changed bytes, and a log whose stored rows a test replaces, to see how verify and others react."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from refold.streams.client import Log
from refold.streams.log.file.log import FileLog
from refold.streams.rocks.families import Family


def with_changed_end(data: bytes, bits: int = 1) -> bytes:
    """Return bytes whose last one is another in any case: it has these bits flipped."""
    return data[:-1] + bytes([data[-1] ^ bits])


class Damaged:
    """A log whose stored rows a test replaces and then verifies."""

    def __init__(self, log: Log) -> None:
        assert isinstance(log.port, FileLog)
        self.log = log
        self.port = log.port
        self.database = log.port.database

    def put(self, family: Family, key: bytes, value: bytes | None) -> None:
        """Write a row, or remove it."""
        write = self.database.batch()
        if value is None:
            write.delete(family, key)
        else:
            write.put(family, key, value)
        self.database.write(write, sync=False)

    def change(self, family: Family, key: bytes, change: Callable[[bytes], bytes]) -> None:
        """Write a row with another value."""
        value = self.database.get(family, key)
        assert value is not None
        assert change(value) != value
        self.put(family, key, change(value))

    def rows(self, family: Family) -> list[tuple[bytes, bytes]]:
        return list(self.database.scan(family))

    @contextmanager
    def undone(self, *families: Family) -> Iterator[None]:
        """Restore the rows of some families at the end of the block."""
        before = {family: self.rows(family) for family in families}
        try:
            yield
        finally:
            for family, rows in before.items():
                now, then = set(self.rows(family)), set(rows)
                for key, _ in now - then:
                    self.put(family, key, None)
                for row in then - now:
                    self.put(family, *row)

    def found(self) -> set[tuple[str, str, str]]:
        """Return (place, entity, field) of every mismatch that verify finds."""
        verdict = self.log.verify()
        assert verdict.ok == (not verdict.mismatches)
        return {(each.place, each.entity, each.field) for each in verdict.mismatches}

    def problems(self) -> str:
        return "\n".join(each.problem for each in self.log.verify().mismatches)
