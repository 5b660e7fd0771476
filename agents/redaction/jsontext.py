"""JSON inside a string, changed in place: what is no secret keeps its bytes, white space and order of keys included."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from refold.agents.journal.record import Plain
from refold.agents.redaction.lists import are_pairs

_SCALAR = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\s{}\[\],:"]+')


class Members(list[tuple[str, Any]]):
    """An object as it stands in a text, where a name may stand twice."""


class Leaves(Protocol):
    """What becomes of the parts of a tree."""

    def name(self, name: str) -> str:
        """An object's key."""

    def value(self, value: Plain, *, is_secret: bool, start: int = 0) -> Plain:
        """A text, a number, true, false or null; start: from which character on it is a secret."""

    def secret_members(self, members: Mapping[str, Plain]) -> Collection[str]:
        """The names of an object under which secrets stand."""

    def secret_items(self, items: Sequence[Plain]) -> Mapping[int, int]:
        """The items of a list that are secrets, and from which character on."""

    def secret_second(self, pair: Sequence[Plain]) -> bool:
        """Whether the second of two items is a secret, where the list that they stand in is of pairs."""


class _Part(NamedTuple):
    """A part of a tree on its way to be marked. is_key: an object's key. start: as for Leaves.value."""

    tree: Any
    is_secret: bool = False
    start: int = 0
    is_key: bool = False
    is_pair: bool = False


def read(text: str) -> list[Any] | None:
    """The tree of a text that is a JSON object or list, its objects as Members; None where it is none."""
    first, last = text[:1], text[-1:]
    if first in " \t\r\n" or last in " \t\r\n":
        stripped = text.strip(" \t\r\n")
        first, last = stripped[:1], stripped[-1:]
    if (first, last) not in (("{", "}"), ("[", "]")):
        return None
    try:
        found: list[Any] = json.loads(text, object_pairs_hook=Members)
    except ValueError:
        return None
    return found


def changed(text: str, tree: list[Any], leaves: Leaves) -> str:
    """The text of a JSON object or list with its keys and leaves changed; itself where none is. tree: as `read`."""
    pieces: list[str] = []
    done = 0
    marks = _marks(tree, leaves)
    for match in _SCALAR.finditer(text):
        piece, mark = match[0], next(marks)
        value = mark.tree
        new = leaves.name(value) if mark.is_key else leaves.value(value, is_secret=mark.is_secret, start=mark.start)
        if new is not value and new != value:
            pieces += text[done : match.start()], json.dumps(new, ensure_ascii=piece.isascii())
            done = match.end()
    return "".join([*pieces, text[done:]]) if pieces else text


def _marks(tree: list[Any], leaves: Leaves) -> Iterator[_Part]:
    """The keys and leaves of a tree in the order in which they stand in its text."""
    waiting = [_Part(tree)]
    while waiting:
        part = waiting.pop()
        if type(part.tree) is Members:
            secret = () if part.is_secret else leaves.secret_members(dict(part.tree))
            for name, value in reversed(part.tree):
                waiting += _Part(value, part.is_secret or name in secret), _Part(name, is_key=True)
        elif type(part.tree) is list:
            items = part.tree
            starts = {} if part.is_secret else leaves.secret_items(items)
            if part.is_pair and not part.is_secret and leaves.secret_second(items):
                starts = {**starts, 1: 0}
            is_of_pairs = are_pairs(items)
            for at in range(len(items) - 1, -1, -1):
                start = starts.get(at)
                waiting.append(_Part(items[at], part.is_secret or start is not None, start or 0, is_pair=is_of_pairs))
        else:
            yield part
