"""The differences between two JSON trees (journal/difference.py), of one side or both, also inside texts that hold
JSON.

    set      the value at the path differs
    add      only b has the path
    remove   only a has it

A tool's result is often a text that holds a JSON object or list. If both sides hold one it is parsed, and the path
continues after `#`.

Alignment decides which items of two sequences belong together, if some were inserted, removed or changed. Items with
equal keys belong together first (longest runs of them, as in difflib). Between those, items with equal weaker keys
belong together; the rest is paired in order.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple, TypeAlias

from refold.agents.journal import difference
from refold.agents.journal.record import Plain


class Pair(NamedTuple):
    """Indexes that belong together; None if the other side has no such item.

    Attributes:
        same: Whether they are equal by the stronger key.
    """

    a: int | None
    b: int | None
    same: bool = False


def aligned(
    a: Sequence[Hashable], b: Sequence[Hashable], weak_a: Sequence[Hashable], weak_b: Sequence[Hashable]
) -> Iterator[Pair]:
    """Yield every item of both sequences, in order.

    Args:
        a: The keys of one side's items.
        b: The keys of the other side's.
        weak_a: Weaker keys of one side's items.
        weak_b: Weaker keys of the other side's.
    """
    for tag, a_from, a_to, b_from, b_to in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (Pair(a_from + at, b_from + at, True) for at in range(a_to - a_from))
            continue
        inner = SequenceMatcher(None, weak_a[a_from:a_to], weak_b[b_from:b_to], autojunk=False)
        for _, x_from, x_to, y_from, y_to in inner.get_opcodes():
            for at in range(max(x_to - x_from, y_to - y_from)):
                one, other = a_from + x_from + at, b_from + y_from + at
                yield Pair(one if one < a_from + x_to else None, other if other < b_from + y_to else None)


Op: TypeAlias = Literal["set", "add", "remove"]


class FieldDifference(NamedTuple):
    """One path at which two trees differ.

    Attributes:
        a, b: The values; None on a side that has none.
    """

    path: str
    op: Op
    a: Plain
    b: Plain


def differences(a: Plain, b: Plain) -> list[FieldDifference]:
    """Return every path at which b differs from a; empty if they are equal."""
    return list(_differences(a, b))


def _differences(a: Plain, b: Plain) -> Iterator[FieldDifference]:
    for path, left, right in difference.differences(a, b):
        if left is difference.ABSENT:
            yield FieldDifference(path, "add", None, right)
        elif right is difference.ABSENT:
            yield FieldDifference(path, "remove", left, None)
        else:
            # If nothing differs inside, the texts only differ in form.
            inner = [each._replace(path=_joined_path(path, each.path)) for each in _in_texts(left, right)]
            yield from inner or [FieldDifference(path, "set", left, right)]


def _joined_path(path: str, inner: str) -> str:
    return f"{path}#{inner}" if inner.startswith("[") else f"{path}#.{inner}" if inner else f"{path}#"


def _in_texts(a: Plain, b: Plain) -> Iterator[FieldDifference]:
    inner = (_container(a), _container(b))
    if None not in inner:
        yield from _differences(*inner)


def _container(value: Plain) -> Plain:
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, (dict, list)) else None
