"""Ordered reads of one column family.

`RdictIter` is the only iterator of rocksdict that reports why it ended; `items()` and similar ones end silently on an
I/O error. Bounds are compared here, because rocksdict stores a lower bound as the upper one, and keeps a pointer to an
upper bound that may be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from rocksdict import RdictIter

Row = tuple[bytes, bytes]

_ROWS_PER_STEP = 256
# A seek takes as long as reading so many rows.
_NEAR_ROWS = 8


class Cursor:
    """A consistent view of the rows start <= key < stop, in ascending or descending order.

    Args:
        held: RocksDB's iterator, in a list that is emptied when the database is closed, which the iterator would
            otherwise prevent. `release` empties it too; do not call `step` after it.
    """

    def __init__(self, held: list[RdictIter], start: bytes, stop: bytes | None, *, reverse: bool) -> None:
        self._held = held
        self._start = start
        self._stop = stop
        self._reverse = reverse
        self._is_placed = False
        self._after: bytes | None = None

    def step(self, rows_max: int = _ROWS_PER_STEP) -> tuple[list[Row], bool]:
        """Return up to `rows_max` further rows, and whether they are the last. Raises rocksdict's Exception."""
        iterator = self._held[0]
        advance = iterator.prev if self._reverse else iterator.next
        read_key, read_value = iterator.key, iterator.value
        rows: list[Row] = []
        try:
            if not self._is_placed:
                self._place(iterator)
            while len(rows) < rows_max:
                key: bytes | None = read_key()
                if key is None:  # it has ended, or failed
                    iterator.status()
                    return rows, True
                if key < self._start if self._reverse else self._stop is not None and key >= self._stop:
                    return rows, True
                rows.append((key, read_value()))
                advance()
            return rows, False
        finally:
            if rows:
                self._after = rows[-1][0]
            # The traceback of an error would keep the iterator and so the database's lock alive.
            del iterator, advance, read_key, read_value

    def _place(self, iterator: RdictIter) -> None:
        self._is_placed = True
        if not self._reverse:
            iterator.seek(self._start)
        elif self._stop is None:
            iterator.seek_to_last()
        else:
            iterator.seek_for_prev(self._stop)
            if iterator.valid() and iterator.key() == self._stop:
                iterator.prev()

    def __str__(self) -> str:
        return f"{self._start!r:.80} to {self._stop!r:.80}, after key {self._after!r:.80}"

    def release(self) -> None:
        self._held.clear()


def rows(cursor: Cursor, step: Callable[[Cursor], tuple[list[Row], bool]]) -> Iterator[Row]:
    """Yield all rows of the cursor. A failing step raises, and yields none of its rows."""
    try:
        ended = False
        while not ended:
            found, ended = step(cursor)
            yield from found
    finally:
        cursor.release()


class RowCounter:
    """Counts the rows of a consistent view, without reading their values.

    Args:
        held: See Cursor.

    Attributes:
        rows: The number of rows so far.
    """

    def __init__(self, held: list[RdictIter]) -> None:
        self._held = held
        self._is_placed = False
        self.rows = 0

    def step(self, rows_max: int) -> tuple[list[Row], bool]:
        """Count up to `rows_max` further rows; return no rows, and whether they are the last. Raises rocksdict's
        Exception.
        """
        iterator = self._held[0]
        advance, is_valid = iterator.next, iterator.valid
        try:
            if not self._is_placed:
                self._is_placed = True
                iterator.seek_to_first()
            for _ in range(rows_max):
                if not is_valid():  # it has ended, or failed
                    iterator.status()
                    return [], True
                self.rows += 1
                advance()
            return [], False
        finally:
            del iterator, advance, is_valid  # as in Cursor

    def __str__(self) -> str:
        return f"after {self.rows} rows"

    def release(self) -> None:
        self._held.clear()


class PrefixCursor:
    """Reads the rows of one prefix after another.

    Args:
        held: See Cursor.
    """

    def __init__(self, held: list[RdictIter], prefixes: Iterator[bytes]) -> None:
        self._held = held
        self._prefixes = prefixes
        self._at = b""
        self._next: bytes | None = None  # the iterator's present row; None before the first and after the last

    def step(self, prefixes_max: int) -> tuple[list[list[Row]], bool]:
        """Return the rows of up to `prefixes_max` further prefixes, and whether they are the last. Raises rocksdict's
        Exception.
        """
        iterator, found = self._held[0], []
        seek, advance, read_key, read_value = iterator.seek, iterator.next, iterator.key, iterator.value
        key = self._next
        try:
            for prefix in islice(self._prefixes, prefixes_max):
                self._at = prefix
                rows: list[Row] = []
                near = _NEAR_ROWS
                while key is not None and key < prefix and near:
                    advance()
                    key = read_key()
                    near -= 1
                if key is None or key < prefix:
                    seek(prefix)
                    key = read_key()
                while key is not None and key.startswith(prefix):
                    rows.append((key, read_value()))
                    advance()
                    key = read_key()
                if key is None:
                    iterator.status()
                found.append(rows)
            self._next = key
            return found, len(found) < prefixes_max
        finally:
            del iterator, seek, advance, read_key, read_value  # as in Cursor

    def __str__(self) -> str:
        return f"at the prefix {self._at!r:.80}"


class FamilySnapshot:
    """A snapshot of one family. Call `release`: until then RocksDB keeps its data.

    If another thread closes the database meanwhile, further reads raise an error.
    """

    def __init__(self, iterator: RdictIter, step: Callable[[Any, int], tuple[list[Any], bool]]) -> None:
        self._held = [iterator]
        self._step = step

    def prefixed(self, prefixes: Iterable[bytes]) -> Iterator[list[Row]]:
        """Yield the rows of each prefix. Prefixes must be ascending, and none may be a prefix of another."""
        cursor = PrefixCursor(self._held, iter(prefixes))
        ended = False
        while not ended:
            found, ended = self._step(cursor, _ROWS_PER_STEP)
            yield from found

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[Row]:
        """(key, value) with start <= key < stop, in order. Only one scan at a time."""
        for batch in self.batches(start, stop):
            yield from batch

    def batches(self, start: bytes, stop: bytes | None) -> Iterator[list[Row]]:
        """`scan`, in batches."""
        cursor, ended = self._cursor(start, stop), False
        while not ended:
            found, ended = self._step(cursor, _ROWS_PER_STEP)
            yield found

    def _cursor(self, start: bytes, stop: bytes | None) -> Cursor:
        return Cursor(self._held, start, stop, reverse=False)

    def release(self) -> None:
        """Release the snapshot."""
        self._held.clear()
