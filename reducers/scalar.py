"""latest, first, min, max: one assertion wins the field.

Cell: [value, priority, q] of the winner.
"""

from __future__ import annotations

from typing import Any

from refold.avro.observation import Value
from refold.reducers.cells import AssertionEnvelope, Cell, Element, Elements, Mutation, Reducer, new_tuple


class Winner(Reducer):
    """The common part: `beats` decides which assertion wins."""

    has_winner = True

    def beats(self, value: Any, envelope: AssertionEnvelope, cell: Any) -> bool:
        """Return whether an assertion wins over the cell's winner."""
        raise NotImplementedError

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        if cell is None:
            out.append(Mutation(self.field, "set", None, None, value, envelope.id))
        elif self.beats(value, envelope, cell):
            if cell[0] != value:
                out.append(Mutation(self.field, "set", None, cell[0], value, envelope.id))
        else:
            return cell
        return [value, envelope.priority, envelope.q]

    def value(self, cell: Cell) -> Value:
        result: Value = cell[0]
        return result

    def holders(self, cell: Cell) -> Value:
        result: bytes = cell[2][-32:]
        return result

    def elements(self, cell: Cell) -> Elements:
        return {None: Element(cell[0], cell[2])}


class Latest(Winner):
    """The assertion with the greatest (priority, Q) wins."""

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        # The same as `Winner.fold`, without the call to `beats`: most fields have this reducer.
        priority, q, own, _, _ = envelope
        if cell is None:
            out.append(new_tuple(Mutation, (self.field, "set", None, None, value, own)))
            return [value, priority, q]
        old, held, holder = cell
        if priority < held or (priority == held and q <= holder):
            return cell
        if old != value:
            out.append(new_tuple(Mutation, (self.field, "set", None, old, value, own)))
        return [value, priority, q]

    def beats(self, value: Any, envelope: AssertionEnvelope, cell: Any) -> bool:
        return bool(envelope.priority > cell[1] or (envelope.priority == cell[1] and envelope.q > cell[2]))


class First(Winner):
    """The assertion with the greatest priority wins, and among these the one with the least Q."""

    def beats(self, value: Any, envelope: AssertionEnvelope, cell: Any) -> bool:
        return bool(envelope.priority > cell[1] or (envelope.priority == cell[1] and envelope.q < cell[2]))


class Least(Winner):
    """The least value wins; among equal values the least Q. Priority is ignored."""

    def beats(self, value: Any, envelope: AssertionEnvelope, cell: Any) -> bool:
        return bool(value < cell[0] or (value == cell[0] and envelope.q < cell[2]))


class Greatest(Winner):
    """The greatest value wins; among equal values the least Q. Priority is ignored."""

    def beats(self, value: Any, envelope: AssertionEnvelope, cell: Any) -> bool:
        return bool(value > cell[0] or (value == cell[0] and envelope.q < cell[2]))
