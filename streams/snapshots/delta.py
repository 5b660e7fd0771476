"""The entities that changed since an epoch, as chunks: made by the kernel if there is one, otherwise by Python.

1. They come from the fold's cache (dirty_entities.py) if it has the states of all of them, and the buckets of the last
   epoch are still in memory (buckets.py). Then each bucket is changed by its changed entities.
2. Otherwise all entities of their places are read from the table, and each bucket is set from them.
Both makers write the same bytes. The kernel leaves the whole delta to Python if a row is damaged: buckets that it has
changed by then are changed again, to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TypeVar

from refold.avro.kernel import Kernel
from refold.reducers.entity import stored_highest
from refold.streams.partitioner import PLACE_BYTES, place_in
from refold.streams.snapshots.buckets import Buckets
from refold.streams.snapshots.chunk import Member, Piece, chunks_of_pieces, piece_of
from refold.streams.snapshots.table import Row, TableView

# The kernel gets so many entities of the table at once.
ROWS_AT_ONCE = 2_000
Given = TypeVar("Given")


class LeftToPython(Exception):
    """The kernel left something of an epoch to Python, mostly because a row is damaged."""


def given(found: Given | None) -> Given:
    """What the kernel returned, unless it is None."""
    if found is None:
        raise LeftToPython
    return found


class Changes:
    """The entities with a distinct observation since an offset. Iterating over them changes their buckets.

    Args:
        kernel: Makes the chunks, if it is given. It leaves all of them to Python if a row is damaged.
        chunk_bytes: A chunk is full at this size.

    Attributes:
        at_most: An upper bound of their number, known without reading them.
    """

    def __init__(
        self, table: TableView, start: int, buckets: Buckets, kernel: Kernel | None, chunk_bytes: int
    ) -> None:  # fmt: skip
        self._table = table
        self._start = start
        self._buckets = buckets
        self._kernel = kernel
        self._chunk_bytes = chunk_bytes
        self._touched = table.touched(start)
        self._is_known = buckets.may_change() and all(self._touched.values())
        self._count: int | None = None
        self.at_most = len(self._touched)

    def count(self) -> int:
        """Their number."""
        if self._count is None:
            deque(self.chunks() if self._kernel is not None else self.pieces(), 0)
        assert self._count is not None
        return self._count

    def chunks(self) -> Iterator[bytes]:
        """Yield them as chunks.

        Raises:
            LeftToPython: The kernel does not take a row.
        """
        if self._kernel is None:
            yield from chunks_of_pieces(self.pieces(), self._chunk_bytes)
            return
        is_first = self._count is None
        writer = self._kernel.DeltaWriter(self._chunk_bytes, self._start, not self._is_known)
        set_each = partial(self._buckets.set_each, self._kernel)
        change = self._buckets.change_each if self._is_known else set_each
        for rows in [sorted(self._touched.items())] if self._is_known else self._rows():
            chunks, places, preimages = given(writer.add(rows))
            if is_first:
                change(places, preimages)
            yield from chunks
        last, self._count = given(writer.end())
        if last is not None:
            yield last

    def _rows(self) -> Iterator[list[Row]]:
        """All entities of their places, in batches, from the table."""
        rows: list[Row] = []
        for place, members in self._table.at(sorted(set(map(place_in, self._touched)))):
            prefix = place.to_bytes(PLACE_BYTES, "big")
            rows += [(prefix + key, body) for key, body in members]
            if len(rows) >= ROWS_AT_ONCE:
                yield rows
                rows = []
        yield rows

    def pieces(self) -> Iterator[Piece]:
        """Yield them, by place."""
        count = 0
        for piece in self._pieces_given() if self._is_known else self._pieces_read():
            count += len(piece[2])
            yield piece
        self._count = count

    def _pieces_given(self) -> Iterator[Piece]:
        """From the fold's cache."""
        start, is_first = self._start, self._count is None
        groups: dict[int, list[Member]] = {}
        for key, packed in self._touched.items():
            if stored_highest(packed) >= start:
                groups.setdefault(place_in(key), []).append((key[PLACE_BYTES:], packed))
        for place in sorted(groups):
            piece = piece_of(place, sorted(groups[place]))
            if is_first:
                self._buckets.change(piece)
            yield piece

    def _pieces_read(self) -> Iterator[Piece]:
        """From the table."""
        start, is_first = self._start, self._count is None
        for place, members in self._table.at(sorted(set(map(place_in, self._touched)))):
            piece = piece_of(place, members)
            if is_first:
                self._buckets.set(*piece)
            changed = [member for member in members if stored_highest(member[1]) >= start]
            if changed:
                yield piece if len(changed) == len(members) else piece_of(place, changed)
