"""The edits between two states. A step stores them instead of the state.

A state is a JSON tree. An edit names a path of keys and indexes from the root:

    ["set", path, value]                       the member at path is now value (path [] is the whole state)
    ["remove", path]                           the member of an object is gone
    ["splice", path, index, removed, items]    in the list at path, `removed` elements at index became `items`

Lists are compared by their common head and tail, which appending, dropping and replacing preserve. So for a list that
grows, an edit costs as much as the growth. Law: apply(before, edits(before, after)) == after, and neither tree is
changed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from refold.agents.journal.record import Edit, Plain
from refold.avro.errors import InputError

Path = list[str | int]


def edits(before: Plain, after: Plain) -> tuple[Edit, ...]:
    """Return the edits that turn `before` into `after`; none if they are equal. They share values with `after`."""
    found: list[Edit] = []
    _compare(before, after, [], found)
    return tuple(found)


def applied(state: Plain, changes: Sequence[Edit]) -> Plain:
    """Return a copy of the state with the edits applied; `state` does not change.

    Raises:
        InputError: As `following`.
    """
    return copy.deepcopy(following(state, changes))


def following(state: Plain, changes: Sequence[Edit]) -> Plain:
    """Apply edits like `applied`, for readers: unchanged parts are shared with `state`, and new values with the edits.

    Raises:
        InputError: The state lacks what an edit changes, or an edit is invalid.
    """
    try:
        for kind, path, *rest in changes:
            state = _apply_below(state, path, kind, rest)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"an edit of the state cannot be made in it ({type(error).__name__}: {error})") from None
    return state


def is_same(a: Plain, b: Plain) -> bool:
    """Return whether two JSON trees are equal. true does not equal 1."""
    if type(a) is not type(b):
        numbers = (int, float)
        return type(a) in numbers and type(b) in numbers and a == b
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    return bool(a == b)


def _compare(before: Plain, after: Plain, path: Path, found: list[Edit]) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        found += [["remove", [*path, key]] for key in before if key not in after]
        for key, value in after.items():
            if key in before:
                _compare(before[key], value, [*path, key], found)
            else:
                found.append(["set", [*path, key], value])
    elif isinstance(before, list) and isinstance(after, list):
        _compare_lists(before, after, path, found)
    elif not is_same(before, after):
        found.append(["set", path, after])


def _compare_lists(before: list[Plain], after: list[Plain], path: Path, found: list[Edit]) -> None:
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and is_same(before[head], after[head]):
        head += 1
    tail = 0
    while tail < shorter - head and is_same(before[-1 - tail], after[-1 - tail]):
        tail += 1
    removed, items = len(before) - head - tail, after[head : len(after) - tail]
    if removed == len(items) == 1:
        _compare(before[head], items[0], [*path, head], found)
    elif removed or items:
        found.append(["splice", path, head, removed, items])


def _apply_below(inside: Plain, path: Path, kind: str, rest: list[Any]) -> Plain:
    """Return the tree with one edit applied below it; only the nodes on the path are copied."""
    if kind == "set" and not path:
        return rest[0]
    if kind == "splice" and not path:
        index, removed, items = rest
        return [*inside[:index], *items, *inside[index + removed :]]
    copied = inside.copy()
    if kind == "remove" and len(path) == 1:
        del copied[path[0]]
    elif kind == "set" and len(path) == 1:  # the member may be new
        copied[path[0]] = rest[0]
    else:
        copied[path[0]] = _apply_below(inside[path[0]], path[1:], kind, rest)
    return copied
