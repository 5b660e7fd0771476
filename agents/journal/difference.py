"""The differences between two JSON trees, path by path, for people.

Lists are compared by their common head and tail, as in a delta: an inserted element is one difference, and not one for
each element after it. Elements between are compared one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from refold.agents.journal.delta import is_same
from refold.agents.journal.objects import bare, is_mark
from refold.agents.journal.record import Plain


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = _Absent()
"""Marks a path at which one of the trees has no value; null is a value."""

SHOWN_MAX = 100


class Difference(NamedTuple):
    """One path at which two trees differ.

    Attributes:
        path: The path, such as `kwargs.order.items[2]`; "" for the whole tree.
        left, right: The values; ABSENT on a side without a value.
    """

    path: str
    left: Plain
    right: Plain

    @property
    def field(self) -> str:
        """The first name of the path, such as `kwargs`."""
        return re.split(r"[.\[]", self.path, maxsplit=1)[0]

    def line(self, left: str, right: str) -> str:
        """Return one line for people, such as `kwargs.id: 18 asked, 17 recorded`.

        Args:
            left: The name of the left side.
            right: The name of the right side.
        """
        a, b = shown_apart(self.left, self.right)
        return f"{self.path}: {a} {left}, {b} {right}" if self.path else f"{a} {left}, {b} {right}"


def differences(left: Plain, right: Plain) -> list[Difference]:
    """Return all differences, in the order of the left tree; empty if the trees are equal."""
    return list(_differences(left, right, ""))


def shown(value: Plain, length_max: int = SHOWN_MAX) -> str:
    """Return a value as JSON on one line, without marks (objects.py). A long text is shortened in the middle.

    Args:
        value: The value.
        length_max: The length from which it is shortened, in characters.
    """
    if isinstance(value, _Absent):
        return repr(value)
    text = msgspec.json.encode(bare(value)).decode()
    if len(text) <= length_max:
        return text
    half = (length_max - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _differences(left: Plain, right: Plain, path: str) -> Iterator[Difference]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            place = path if is_mark(key) else f"{path}.{key}" if path else key
            yield from _members(left.get(key, ABSENT), right.get(key, ABSENT), place)
    elif isinstance(left, list) and isinstance(right, list):
        yield from _elements(left, right, path)
    elif not is_same(left, right):
        yield Difference(path, left, right)


def _members(left: Plain, right: Plain, place: str) -> Iterator[Difference]:
    if left is ABSENT or right is ABSENT:
        yield Difference(place, left, right)
    else:
        yield from _differences(left, right, place)


def _elements(left: list[Plain], right: list[Plain], path: str) -> Iterator[Difference]:
    shorter = min(len(left), len(right))
    head = tail = 0
    while head < shorter and is_same(left[head], right[head]):
        head += 1
    while tail < shorter - head and is_same(left[-1 - tail], right[-1 - tail]):
        tail += 1
    for index in range(head, max(len(left), len(right)) - tail):
        a = left[index] if index < len(left) - tail else ABSENT
        b = right[index] if index < len(right) - tail else ABSENT
        yield from _members(a, b, f"{path}[{index}]")


def shown_apart(left: Plain, right: Plain) -> tuple[str, str]:
    """Return both values as text. If only their types differ, the texts include the marks (objects.py).

    Long texts begin where they differ, because cut elsewhere they could look alike.
    """
    if bare(left) == bare(right):
        return tuple(msgspec.json.encode(each).decode() for each in (left, right))  # type: ignore[return-value]
    if not (isinstance(left, str) and isinstance(right, str)) or len(left) + len(right) <= SHOWN_MAX:
        return shown(left), shown(right)
    shorter = min(len(left), len(right))
    parted = next((index for index in range(shorter) if left[index] != right[index]), shorter)
    begin = max(0, parted - 20)
    a, b = (("..." if begin else "") + text[begin : parted + 60] for text in (left, right))
    return tuple(  # type: ignore[return-value]
        shown(cut + ("..." if parted + 60 < len(text) else ""), 2 * SHOWN_MAX) for cut, text in ((a, left), (b, right))
    )
