"""The interface of every reducer: it folds live assertions into a cell, and reports what each of them changed.

A cell is plain data (lists, dicts, numbers, bytes), so it can be stored directly. Reducers whose `in_order` is False
give the same cell for any order of assertions. The others get assertions in Q order only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from refold.avro.observation import Source, Value

Op: TypeAlias = Literal["set", "add", "remove", "clear"]
Cell: TypeAlias = Any


new_tuple = tuple.__new__
"""Does the same as a named tuple's constructor in a fifth of its time; used for tuples that every record creates."""


class Assertion(NamedTuple):
    """One live assertion of one field, as a reducer sees it. observed_at in microseconds; q is the order key."""

    value: Any
    priority: int
    q: bytes
    id: bytes
    observed_at: int
    source: Source


class AssertionEnvelope(NamedTuple):
    """The part of an assertion that comes from its observation: created once, however many fields it asserts."""

    priority: int
    q: bytes
    id: bytes
    observed_at: int
    source: Source


class Mutation(NamedTuple):
    """One observation's change of one field. `observation` holds the field now, or ended its value.

    Attributes:
        key: The map key; for append, (order key of the holder, index in its list); for links, (relation, target).
    """

    field: str
    op: Op
    key: Any
    old: Value
    new: Value
    observation: bytes


class Element(NamedTuple):
    """One comparable part of a folded field: its value, and its holder's order key."""

    value: Value
    q: bytes


Elements: TypeAlias = Mapping[Any, Element]


class Reducer(ABC):
    """The fold of one field. A cell starts as None, which means no live assertion."""

    in_order: ClassVar[bool] = False
    has_winner: ClassVar[bool] = False
    """Whether a cell is one assertion's [value, priority, q], and always present."""
    scalar: ClassVar[bool] = True

    def __init__(self, field: str) -> None:
        self.field = field

    @abstractmethod
    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        """Fold one more live assertion.

        Args:
            cell: The cell so far; None for no live assertion.
            value: The asserted value.
            envelope: The rest of the assertion: its order key and priority.
            out: Gets the mutations.

        Returns:
            The new cell.
        """

    @abstractmethod
    def value(self, cell: Cell) -> Value:
        """Return the field's value; called only if `present` is true."""

    @abstractmethod
    def holders(self, cell: Cell) -> Value:
        """Return the value's holder: the winning id; one id per element of a collection; a count for sum and count."""

    @abstractmethod
    def elements(self, cell: Cell) -> Elements:
        """Return the parts to which mutations refer, by key; a scalar has the single key None."""

    def present(self, cell: Cell) -> bool:
        """Return whether the field is in the state."""
        return cell is not None

    def shown_key(self, key: Any) -> Any:
        """Return the `key` of mutations for an element's key."""
        return None

    def difference(self, before: Cell, after: Cell, by: bytes, out: list[Mutation]) -> None:
        """Append to `out` a mutation for each difference between two cells, with its cause."""
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
        """Return the observation that a mutation names as the holder."""
        return element.q[-32:]

    def same(self, old: Value, new: Value) -> bool:
        """Return whether two values are equal; a field's type is fixed, so Python's equality is the canonical one."""
        return old == new
