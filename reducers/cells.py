"""What every reducer is: a cell that takes live assertions, and what each of them changed.

A cell is plain data (lists, dicts, numbers, bytes), so that it can be stored as it is. Reducers whose `in_order` is
False may be fed in any order and give the same cell; the others are fed in Q order only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from refold.avro.observation import Source, Value

Op: TypeAlias = Literal["set", "add", "remove", "clear"]
Cell: TypeAlias = Any


new_tuple = tuple.__new__
"""What a named tuple's own constructor does, in a fifth of its time: for those that every record makes anew."""


class Assertion(NamedTuple):
    """One live assertion of one field, as a reducer sees it. observed_at in microseconds; q is the order key."""

    value: Any
    priority: int
    q: bytes
    id: bytes
    observed_at: int
    source: Source


class Said(NamedTuple):
    """The part of an assertion that is the observation's: made once, however many fields it asserts."""

    priority: int
    q: bytes
    id: bytes
    observed_at: int
    source: Source


class Mutation(NamedTuple):
    """What one observation changed in one field. `observation` holds the field now, or ended its value.

    key: the map key; for append (order key of the holder, index in its list); for links (relation, target).
    """

    field: str
    op: Op
    key: Any
    old: Value
    new: Value
    observation: bytes


class Element(NamedTuple):
    """One comparable part of a folded field: its value, and the order key of who holds it."""

    value: Value
    q: bytes


Elements: TypeAlias = Mapping[Any, Element]


class Reducer(ABC):
    """How one field folds. Cells start as None, meaning no live assertion."""

    in_order: ClassVar[bool] = False
    has_winner: ClassVar[bool] = False
    """Whether a cell is [value, priority, q] of one assertion, and always present."""
    scalar: ClassVar[bool] = True

    def __init__(self, field: str) -> None:
        self.field = field

    @abstractmethod
    def fold(self, cell: Cell, value: Any, said: Said, out: list[Mutation]) -> Cell:
        """The cell with one more live assertion, of `value`; what that changed is added to `out`."""

    @abstractmethod
    def value(self, cell: Cell) -> Value:
        """The field's value; only asked when `present` says there is one."""

    @abstractmethod
    def holders(self, cell: Cell) -> Value:
        """Who holds the value: the winning id, one per element of a collection, a count for sum and count."""

    @abstractmethod
    def elements(self, cell: Cell) -> Elements:
        """The parts that mutations speak of; a scalar has the single key None."""

    def present(self, cell: Cell) -> bool:
        """Whether the field stands in the state."""
        return cell is not None

    def shown_key(self, key: Any) -> Any:
        """The `key` that mutations show for an element's key."""
        return None

    def difference(self, before: Cell, after: Cell, by: bytes, out: list[Mutation]) -> None:
        """Add to `out` what differs between two cells, by whom it was caused."""
        old = self.elements(before) if before is not None and self.present(before) else {}
        new = self.elements(after) if after is not None and self.present(after) else {}
        gone: Op = "clear" if self.scalar else "remove"
        come: Op = "set" if self.scalar else "add"
        for key, element in old.items():
            if key not in new:
                out.append(Mutation(self.field, gone, self.shown_key(key), element.value, None, by))
        for key, element in new.items():
            holder = self.cause(element, by)
            if key not in old:
                out.append(Mutation(self.field, come, self.shown_key(key), None, element.value, holder))
            elif not self.same(old[key].value, element.value):
                out.append(Mutation(self.field, "set", self.shown_key(key), old[key].value, element.value, holder))

    def cause(self, element: Element, by: bytes) -> bytes:
        """The observation that a mutation names as the holder."""
        return element.q[-32:]

    def same(self, old: Value, new: Value) -> bool:
        """Whether two values are one; a field's type is fixed, so Python's equality is the canonical one."""
        return old == new
