"""sum and count: every live assertion takes part, so they have a count where other reducers have a holder.

A sum is exact: numerator / 2^shift with the least shift. It is rounded once, when it is read.
Cells: sum [numerator as signed big-endian bytes, shift, count, greatest q]; count [count, greatest q].
"""

from __future__ import annotations

import sys
from typing import Any

from refold.avro.canonical import INTEGER_END, INTEGER_MIN, number
from refold.avro.observation import Value
from refold.reducers.cells import AssertionEnvelope, Cell, Element, Elements, Mutation, Reducer


def exact(value: int | float) -> tuple[int, int]:
    """Return (numerator, shift) with value = numerator / 2^shift."""
    if isinstance(value, int):
        return value, 0
    numerator, denominator = value.as_integer_ratio()
    return numerator, denominator.bit_length() - 1


def add(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """Return the exact sum, with the least shift."""
    shift = max(left[1], right[1])
    numerator = (left[0] << (shift - left[1])) + (right[0] << (shift - right[1]))
    while shift and not numerator & 1:
        spare = min(shift, (numerator & -numerator).bit_length() - 1) if numerator else shift
        numerator, shift = numerator >> spare, shift - spare
    return numerator, shift


def rounded(numerator: int, shift: int) -> int | float:
    """Return the nearest canonical number; outside a double's range, the greatest double with that sign."""
    if not shift and INTEGER_MIN <= numerator < INTEGER_END:
        return numerator
    try:
        return number(numerator / (1 << shift))
    except OverflowError:
        return sys.float_info.max if numerator > 0 else -sys.float_info.max


def _packed(numerator: int) -> bytes:
    """Encode a numerator as bytes, because it may be wider than any stored integer."""
    return numerator.to_bytes(numerator.bit_length() // 8 + 1, "big", signed=True)


def _unpacked(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


class _Total(Reducer):
    """The common part of sum and count: a cell's last element is the greatest Q, the one before it the count."""

    def holders(self, cell: Cell) -> Value:
        result: int = cell[-2]
        return result

    def elements(self, cell: Cell) -> Elements:
        return {None: Element(self.value(cell), cell[-1])}

    def cause(self, element: Element, by: bytes) -> bytes:
        return by

    def _changed(self, before: Value, after: Value, envelope: AssertionEnvelope, out: list[Mutation]) -> None:
        if before != after:
            out.append(Mutation(self.field, "set", None, before, after, envelope.id))


class Sum(_Total):
    """The exact sum."""

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        numerator, shift = exact(value)
        if cell is None:
            after = [_packed(numerator), shift, 1, envelope.q]
            self._changed(None, self.value(after), envelope, out)
            return after
        numerator, shift = add((_unpacked(cell[0]), cell[1]), (numerator, shift))
        after = [_packed(numerator), shift, cell[2] + 1, max(cell[3], envelope.q)]
        self._changed(self.value(cell), self.value(after), envelope, out)
        return after

    def value(self, cell: Cell) -> Value:
        return rounded(_unpacked(cell[0]), cell[1])


class Count(_Total):
    """The number of live assertions."""

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        after: list[Any] = [1, envelope.q] if cell is None else [cell[0] + 1, max(cell[1], envelope.q)]
        self._changed(None if cell is None else cell[0], after[0], envelope, out)
        return after

    def value(self, cell: Cell) -> Value:
        result: int = cell[0]
        return result
