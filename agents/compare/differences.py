"""Where two JSON trees differ (journal/difference.py), as one side's or both's, and into texts that hold JSON.

    set      the value at the path is another one
    add      only b has the path
    remove   only a has it

A tool's result is often a text that holds a JSON object or list. Where both sides do it is looked into, and the path
goes on behind `#`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from refold.agents.journal import difference
from refold.agents.journal.record import Plain

Op: TypeAlias = Literal["set", "add", "remove"]


class Difference(NamedTuple):
    """One place. a, b: what stands there; None on the side that has nothing there."""

    path: str
    op: Op
    a: Plain
    b: Plain


def differences(a: Plain, b: Plain) -> list[Difference]:
    """Every place where b is not a; none where they are equal."""
    return list(_differences(a, b))


def _differences(a: Plain, b: Plain) -> Iterator[Difference]:
    for path, left, right in difference.differences(a, b):
        if left is difference.ABSENT:
            yield Difference(path, "add", None, right)
        elif right is difference.ABSENT:
            yield Difference(path, "remove", left, None)
        else:
            # Where nothing differs inside, they are written differently.
            inner = [each._replace(path=_inside(path, each.path)) for each in _in_texts(left, right)]
            yield from inner or [Difference(path, "set", left, right)]


def _inside(path: str, inner: str) -> str:
    return f"{path}#{inner}" if inner.startswith("[") else f"{path}#.{inner}" if inner else f"{path}#"


def _in_texts(a: Plain, b: Plain) -> Iterator[Difference]:
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
