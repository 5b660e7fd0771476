"""Ordered reads of one column family.

`RdictIter` is the only iterator of rocksdict that can be asked why it ended; `items()` and its kin end
silently on an I/O error. Bounds are compared here: rocksdict stores a lower bound as the upper one, and keeps
a bare pointer to an upper bound that may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rocksdict import RdictIter

Row = tuple[bytes, bytes]

_ROWS_PER_STEP = 256


class Cursor:
    """A consistent view of the rows start <= key < stop, in key order or against it.

    `release` drops RocksDB's iterator, without which the database cannot close; no `step` after it.
    """

    def __init__(self, iterator: RdictIter, start: bytes, stop: bytes | None, *, reverse: bool) -> None:
        self._held = [iterator]
        self._start = start
        self._stop = stop
        self._reverse = reverse
        self._after: bytes | None = None
        if not reverse:
            iterator.seek(start)
        elif stop is None:
            iterator.seek_to_last()
        else:
            iterator.seek_for_prev(stop)
            if iterator.valid() and iterator.key() == stop:
                iterator.prev()

    def step(self, rows_max: int = _ROWS_PER_STEP) -> tuple[list[Row], bool]:
        """Up to `rows_max` further rows, and whether they are the last. Raises rocksdict's Exception."""
        iterator = self._held[0]
        advance = iterator.prev if self._reverse else iterator.next
        rows: list[Row] = []
        try:
            while len(rows) < rows_max:
                if not iterator.valid():
                    iterator.status()
                    return rows, True
                key: bytes = iterator.key()
                if key < self._start if self._reverse else self._stop is not None and key >= self._stop:
                    return rows, True
                rows.append((key, iterator.value()))
                advance()
            return rows, False
        finally:
            if rows:
                self._after = rows[-1][0]
            # The traceback of an error would keep the iterator alive, and with it the database's lock.
            del iterator, advance

    def __str__(self) -> str:
        return f"{self._start!r:.80} to {self._stop!r:.80}, after key {self._after!r:.80}"

    def release(self) -> None:
        self._held.clear()


def rows(cursor: Cursor, step: Callable[[Cursor], tuple[list[Row], bool]]) -> Iterator[Row]:
    """All rows of the cursor; the step that fails raises instead of giving its rows."""
    try:
        ended = False
        while not ended:
            found, ended = step(cursor)
            yield from found
    finally:
        cursor.release()
