"""latest, first, min, max: one assertion wins the field.

Cell: [value, priority, q] of the winner.
"""

from __future__ import annotations

from typing import Any

from refold.avro.observation import Value
from refold.reducers.cells import Assertion, Cell, Element, Elements, Mutation, Reducer


class Winner(Reducer):
    """The shared part: who wins is decided by `beats`."""

    def beats(self, assertion: Assertion, cell: Any) -> bool:
        """Whether the assertion takes the field from the cell's winner."""
        raise NotImplementedError

    def fold(self, cell: Cell, assertion: Assertion, out: list[Mutation]) -> Cell:
        value = assertion.value
        if cell is None:
            out.append(Mutation(self.field, "set", None, None, value, assertion.id))
        elif self.beats(assertion, cell):
            if cell[0] != value:
                out.append(Mutation(self.field, "set", None, cell[0], value, assertion.id))
        else:
            return cell
        return [value, assertion.priority, assertion.q]

    def value(self, cell: Cell) -> Value:
        result: Value = cell[0]
        return result

    def holders(self, cell: Cell) -> Value:
        result: bytes = cell[2][-32:]
        return result

    def elements(self, cell: Cell) -> Elements:
        return {None: Element(cell[0], cell[2])}


class Latest(Winner):
    """The greatest (priority, Q)."""

    def beats(self, assertion: Assertion, cell: Any) -> bool:
        return bool((assertion.priority, assertion.q) > (cell[1], cell[2]))


class First(Winner):
    """The greatest priority, and in it the least Q."""

    def beats(self, assertion: Assertion, cell: Any) -> bool:
        return bool(assertion.priority > cell[1] or (assertion.priority == cell[1] and assertion.q < cell[2]))


class Least(Winner):
    """The least value; among equal ones the least Q. Priority takes no part."""

    def beats(self, assertion: Assertion, cell: Any) -> bool:
        return bool((assertion.value, assertion.q) < (cell[0], cell[2]))


class Greatest(Winner):
    """The greatest value; among equal ones the least Q. Priority takes no part."""

    def beats(self, assertion: Assertion, cell: Any) -> bool:
        value = assertion.value
        return bool(value > cell[0] or (value == cell[0] and assertion.q < cell[2]))
