"""Reads many stored entities of one type at a time: each field as a column of canonical values.

A writer of columns needs only the value of each field: neither its holder nor the dedup state. So the stored forms are
read as one MessagePack array, by a decoder for the type that skips the rest. This is three times as fast as reading
each entity completely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from refold.avro.errors import CorruptionError
from refold.reducers.cells import Reducer
from refold.reducers.entity import FORMAT, unpack
from refold.reducers.links import links_tree, without_holders
from refold.reducers.order import FIRST
from refold.reducers.scalar import Winner

_ARRAY_HEAD = b"\xdd"
_LENGTH_BYTES = 4


class _Won(msgspec.Struct, array_like=True, gc=False):
    """The cell of a field that has a winner: its first item is the value; the holder is skipped."""

    value: Any


_value_of = attrgetter("value")


class Columns(NamedTuple):
    """Columns with one item for each entity, in the given order.

    Attributes:
        state_hashes: The state hashes, of 32 bytes each.
        links: The links, as in a state, without `by`.
        values: A column for each field; None if no entity has a value of the field. In a column, None for an entity
            without one.
    """

    versions: list[int]
    state_hashes: list[bytes]
    links: list[list[dict[str, Any]]]
    values: dict[str, list[Any] | None]


class ColumnReader:
    """Reads the stored entities of one type.

    Args:
        reducers: The reducers of its fold.
    """

    def __init__(self, reducers: Mapping[str, Reducer]) -> None:
        # A field may have any name, but an attribute must be an identifier.
        attributes = {name: f"field_{number}" for number, name in enumerate(reducers)}
        cells = msgspec.defstruct(
            "_Cells",
            [(attributes[name], _Won | None if isinstance(each, Winner) else Any, None)
             for name, each in reducers.items()],
            rename={attribute: name for name, attribute in attributes.items()}, gc=False,
        )  # fmt: skip
        stored = msgspec.defstruct(
            "_Stored",
            [("form", int), ("version", int), ("state_hash", bytes), ("highest_offset", int), ("keys", msgspec.Raw),
             ("cells", cells), ("links", list[list[Any]])],
            array_like=True, gc=False,
        )  # fmt: skip
        self._decode: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[stored]).decode  # type: ignore[valid-type]
        self._reducers = [(name, each, attrgetter(f"cells.{attributes[name]}")) for name, each in reducers.items()]

    def read(self, stored: Sequence[tuple[str, bytes]]) -> Columns:
        """Read the columns of (entity, stored form) pairs of the type.

        Raises:
            CorruptionError: names an entity that cannot be read.
        """
        length = len(stored).to_bytes(_LENGTH_BYTES, "big")
        try:
            every = self._decode(b"".join([_ARRAY_HEAD, length, *[data for _, data in stored]]))
        except (msgspec.DecodeError, ValueError) as error:
            raise _unreadable(stored, error) from error
        if {each.form for each in every} - {FORMAT}:
            raise _unreadable(stored, None)
        return Columns(
            [each.version for each in every],
            [each.state_hash for each in every],
            [_shown(each.links) if each.links else [] for each in every],
            {name: _values(reducer, [*map(cell_of, every)]) for name, reducer, cell_of in self._reducers},
        )


def _values(reducer: Reducer, cells: list[Any]) -> list[Any] | None:
    if cells.count(None) == len(cells):
        return None
    if isinstance(reducer, Winner):  # most are; a call for each value would cost as much as everything else here
        if None in cells:
            return [None if cell is None else cell.value for cell in cells]
        return [*map(_value_of, cells)]
    present, value = reducer.present, reducer.value
    return [None if cell is None or not present(cell) else value(cell) for cell in cells]


def _shown(stored: list[list[Any]]) -> list[dict[str, Any]]:
    # A link's holder, which is stored as the number of its order key, is left out.
    links = {(relation, target): [*cell, FIRST] for relation, target, *cell, _ in stored}
    return without_holders(links_tree(links))


def _unreadable(stored: Sequence[tuple[str, bytes]], error: Exception | None) -> CorruptionError:
    for name, data in stored:
        unpack(name, data)  # raises an error that says what is wrong
    return CorruptionError(f"stored states, of {stored[0][0]} and others, cannot be read: {error}; run refold verify")
