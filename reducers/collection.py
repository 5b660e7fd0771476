"""union, append, map: each element has its own holder.

Cells: union {CBOR of the element: [element, q]}; append [[element, q, index], ...] in Q order; map
{key: [value or None, priority, q]}, where removed keys stay as winners with None.
"""

from __future__ import annotations

from typing import Any

from refold.avro.canonical import encode
from refold.avro.observation import Value
from refold.reducers.cells import AssertionEnvelope, Cell, Element, Elements, Mutation, Op, Reducer


class Union(Reducer):
    """The set of all elements, in the order of their CBOR; each element's holder is the least Q that asserts it."""

    scalar = False

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        after: dict[bytes, Any] = {} if cell is None else cell
        for element in value:
            key = encode(element)
            held = after.get(key)
            if held is None:
                out.append(Mutation(self.field, "add", None, None, element, envelope.id))
            if held is None or envelope.q < held[1]:
                after[key] = [element, envelope.q]
        return after

    def present(self, cell: Cell) -> bool:
        return bool(cell)

    def value(self, cell: Cell) -> Value:
        return [cell[key][0] for key in sorted(cell)]

    def holders(self, cell: Cell) -> Value:
        return [cell[key][1][-32:] for key in sorted(cell)]

    def elements(self, cell: Cell) -> Elements:
        return {key: Element(*cell[key]) for key in sorted(cell)}


class Append(Reducer):
    """The last `limit` elements in Q order: a view of the whole set, so a late element is placed by folding again."""

    scalar = False
    in_order = True

    def __init__(self, field: str, limit: int) -> None:
        super().__init__(field)
        self.limit = limit

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        before: list[Any] = cell or []
        grown = before + [[element, envelope.q, index] for index, element in enumerate(value)]
        dropped = max(0, len(grown) - self.limit)
        for element, q, index in before[:dropped]:
            out.append(Mutation(self.field, "remove", (q, index), element, None, envelope.id))
        for element, q, index in grown[max(dropped, len(before)) :]:
            out.append(Mutation(self.field, "add", (q, index), None, element, envelope.id))
        return grown[dropped:]

    def present(self, cell: Cell) -> bool:
        return bool(cell)

    def value(self, cell: Cell) -> Value:
        return [value for value, _, _ in cell]

    def holders(self, cell: Cell) -> Value:
        return [q[-32:] for _, q, _ in cell]

    def elements(self, cell: Cell) -> Elements:
        return {(q, index): Element(value, q) for value, q, index in cell}

    def shown_key(self, key: Any) -> Any:
        return key


class Map(Reducer):
    """For each key, the value with the greatest (priority, Q); a null removes the key."""

    scalar = False

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        after: dict[str, Any] = {} if cell is None else cell
        priority, q = envelope.priority, envelope.q
        for key, new in value.items():
            held = after.get(key)
            if held is not None and (priority, q) <= (held[1], held[2]):
                continue
            old = None if held is None else held[0]
            if old != new:
                op: Op = "remove" if new is None else "add" if old is None else "set"
                out.append(Mutation(self.field, op, key, old, new, envelope.id))
            after[key] = [new, priority, q]
        return after

    def present(self, cell: Cell) -> bool:
        return any(held[0] is not None for held in cell.values())

    def value(self, cell: Cell) -> Value:
        return {key: held[0] for key, held in cell.items() if held[0] is not None}

    def holders(self, cell: Cell) -> Value:
        return {key: held[2][-32:] for key, held in cell.items() if held[0] is not None}

    def elements(self, cell: Cell) -> Elements:
        return {key: Element(held[0], held[2]) for key, held in sorted(cell.items()) if held[0] is not None}

    def shown_key(self, key: Any) -> Any:
        return key
