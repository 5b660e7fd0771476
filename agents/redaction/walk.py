"""Redact a tree: a fast check whether anything in it may be a secret, and a walk that replaces the secrets.

JSON inside a string is redacted in place: everything else keeps its bytes, including white space and the order of keys.

Secrets whose name is in another item of a list, or another member of an object, are found too:

["--password", "x"]    [["authorization", "x"], ["accept", "y"]]    {"name": "DB_PASSWORD", "value": "x"}

`redacted_edits` redacts the edits of a state: the value at a path that ends in a secret's name is a secret, although
the name is not next to it.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import is_not
from typing import Any, NamedTuple, Protocol

from refold.agents.journal.record import Edit, Plain
from refold.agents.redaction.commands import hidden_words
from refold.agents.redaction.names import Names, is_of_a_model
from refold.agents.redaction.patterns import is_card
from refold.agents.redaction.prefilter import DIGITS_MIN, LONG, OWN, SHORTEST
from refold.avro.blob import Blob, Sealed
from refold.avro.errors import RedactionFailed


def redacted_edits(edits: Sequence[Edit], redact: Callable[[Plain], Plain]) -> list[Edit]:
    """Return the edits (journal/delta.py) in the form in which they may be written."""
    return [_redact_edit(each, redact) for each in edits]


def _redact_edit(edit: Edit, redact: Callable[[Plain], Plain]) -> Edit:
    kind, path, *rest = edit
    value = rest[-1] if rest else None
    tree: Plain = value
    for key in reversed(path):
        tree = {key: tree} if isinstance(key, str) else [tree]
    found = redact(tree)
    keys: list[str | int] = []
    for key in path:
        if isinstance(key, str):
            (name, found), *_ = found.items()
            keys.append(name)
        else:
            (found,) = found
            keys.append(key)
    return [kind, keys, *rest[:-1], found] if rest else [kind, keys]


_SEQUENCES = (list, tuple)
_NAMES_OF_A_VALUE = (("value", ("name", "key")), ("Value", ("Name", "Key")))


def secret_items(items: Sequence[Any], names: Names) -> dict[int, int]:
    """Return the items of a list that are secrets: by index, the character at which the secret begins."""
    return hidden_words(items, names) if len(items) > 1 else {}


def are_pairs(items: Sequence[Any]) -> bool:
    """Return whether a list consists of pairs of name and value, as headers do: two items each, the first a string."""
    return bool(items) and all(type(each) in _SEQUENCES and len(each) == 2 and type(each[0]) is str for each in items)


def secret_member(members: Mapping[str, Any], names: Names) -> str:
    """Return the member of an object that is a secret named by another member; empty if there is none."""
    for value, keys in _NAMES_OF_A_VALUE:
        if value in members:
            for key in keys:
                name = members.get(key)
                if type(name) is str and len(name) < 100 and names.is_secret(name):
                    return value
    return ""


_SCALAR = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\s{}\[\],:"]+')


class Members(list[tuple[str, Any]]):
    """An object as it is written in a text, in which a name may occur twice."""


class LeafRules(Protocol):
    """The rules that replace parts of a tree."""

    def name(self, name: str) -> str:
        """Return the replacement of an object's key."""

    def value(self, value: Plain, *, is_secret: bool, start: int = 0) -> Plain:
        """Return the replacement of a text, a number, true, false or null.

        Args:
            start: The character at which the secret begins.
        """

    def secret_members(self, members: Mapping[str, Plain]) -> Collection[str]:
        """Return the names of the members of an object that are secrets."""

    def secret_items(self, items: Sequence[Plain]) -> Mapping[int, int]:
        """Return the items of a list that are secrets: by index, the character at which the secret begins."""

    def secret_second(self, pair: Sequence[Plain]) -> bool:
        """Return whether the second of two items is a secret; called if the list that contains them is of pairs."""


class _Part(NamedTuple):
    """A part of a tree that is still to be visited.

    Attributes:
        is_key: Whether it is the key of an object.
        start: As in LeafRules.value.
    """

    tree: Any
    is_secret: bool = False
    start: int = 0
    is_key: bool = False
    is_pair: bool = False


def read(text: str) -> list[Any] | None:
    """Return the tree of a text that is a JSON object or list, with objects as Members; None for any other text."""
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


def changed(text: str, tree: list[Any], leaves: LeafRules) -> str:
    """Return the text of a JSON object or list with its keys and leaves replaced; the text itself if none changes.

    Args:
        text: The text.
        tree: Its tree, from `read`.
        leaves: What replaces keys and leaves.
    """
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


def _marks(tree: list[Any], leaves: LeafRules) -> Iterator[_Part]:
    """Yield the keys and leaves of a tree in the order of its text."""
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


_INERT = (Blob, Sealed, datetime.datetime, datetime.date, decimal.Decimal, uuid.UUID)
_CARD_MIN = 10 ** (DIGITS_MIN - 1)


class Texts(Protocol):
    """The rules that replace texts; see SecretReader."""

    names: Names
    has_cards: bool

    def hints(self, text: str, among: int) -> int:
        """Return the hints, of those in `among`, that the text gives; 0 if nothing can be found in it."""

    def settled(self, text: str, hints: int) -> str:
        """Return the text without its secrets."""

    def hidden(self, text: str) -> str:
        """Return a text that is a secret as a whole as tokens."""

    def token(self, kind: str, secret: str) -> str:
        """Return the token of a secret."""


def look(tree: Plain, names: Names) -> tuple[str, str, bool]:
    """Collect what a fast check of a tree needs.

    Returns:
        All keys as one text, all other texts as one text, and whether a full walk is needed because of a name, a
        number, or a value that is not JSON.
    """
    keys: list[str] = []
    texts: list[str] = []
    to_see: list[Plain] = [tree]
    is_telling = False
    while to_see:
        part = to_see.pop()
        kind = type(part)
        if kind is str:
            texts.append(part)
        elif kind is dict:
            keys += part
            to_see += part.values()
            is_telling = is_telling or not names.are_harmless(part) or secret_member(part, names) != ""
        elif kind is list:
            to_see += part
            is_telling = is_telling or (len(part) == 2 and type(part[0]) is str and names.is_secret(part[0]))
        elif kind is int:
            is_telling = is_telling or (part >= _CARD_MIN and is_card(str(part)))
        elif kind is not bool and part is not None and (kind is not float or part >= _CARD_MIN):
            is_telling = True
    return "\n".join(keys), "\n".join(texts), is_telling


class Walk:
    """Replaces the secrets of a tree.

    Args:
        key_hints: The hints of all its keys together.
        hints: The hints of its other texts together.
    """

    def __init__(self, texts: Texts, key_hints: int, hints: int) -> None:
        self._texts = texts
        self._key_hints = key_hints
        self._hints = hints
        self.is_secret = texts.names.is_secret

    def tree(self, tree: Plain, *, is_secret: bool = False) -> Plain:
        """Return the tree without its secrets; the tree itself if it has none.

        Args:
            is_secret: All of it is a secret.
        """
        if isinstance(tree, str):
            return self._string(tree, is_secret)
        if isinstance(tree, dict):
            return self._object(tree, is_secret)
        if isinstance(tree, (list, tuple)):
            return self._list(tree, is_secret)
        return self.value(tree, is_secret=is_secret)

    def name(self, name: str) -> str:
        """Return an object's key without its secrets."""
        return self._text(name, self._key_hints) if self._key_hints else name

    def value(self, value: Plain, *, is_secret: bool, start: int = 0) -> Plain:
        """Return a leaf without its secrets.

        Args:
            start: The character at which the secret begins.

        Raises:
            RedactionFailed: The value has a type that cannot be searched.
        """
        if isinstance(value, str):
            if is_secret and start:
                return self._string(value[:start], False) + self._string(value[start:], True)
            return self._string(value, is_secret)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return self._number(value, is_secret)
        if isinstance(value, _INERT):
            return value
        raise RedactionFailed(
            f"a value of type {type(value).__name__} cannot be searched; nothing was written: give text instead"
        )

    def _string(self, text: str, is_secret: bool) -> str:
        if is_secret:
            return self._texts.hidden(text)
        return self._text(text, self._hints) if self._hints else text

    def secret_members(self, members: Mapping[str, Plain]) -> Collection[str]:
        """Return the names of the members of an object that are secrets."""
        names = self._texts.names
        found = set() if names.are_harmless(members) else {
            each for each in members if self.is_secret(each) and not is_of_a_model(each, members)
        }  # fmt: skip
        if member := secret_member(members, names):
            found.add(member)
        return found

    def secret_items(self, items: Sequence[Plain]) -> Mapping[int, int]:
        """Return the items of a list that are secrets: by index, the character at which the secret begins."""
        return secret_items(items, self._texts.names)

    def secret_second(self, pair: Sequence[Plain]) -> bool:
        """Return whether the first of two items is a secret's name."""
        return bool(self.is_secret(pair[0]))

    def _list(self, tree: Sequence[Plain], is_secret: bool) -> Plain:
        if is_secret:
            items = [self.tree(each, is_secret=True) for each in tree]
        elif are_pairs(tree):
            items = [self._pair(each) for each in tree]
        else:
            starts = self.secret_items(tree)
            items = [
                self.value(each, is_secret=True, start=starts[at]) if at in starts else self.tree(each)
                for at, each in enumerate(tree)
            ]
        return items if any(map(is_not, items, tree)) else tree

    def _pair(self, pair: Sequence[Plain]) -> Plain:
        items = [self.tree(pair[0]), self.tree(pair[1], is_secret=self.secret_second(pair))]
        return items if any(map(is_not, items, pair)) else pair

    def _object(self, tree: dict[str, Plain], is_secret: bool) -> Plain:
        members: dict[str, Plain] = {}
        is_changed = False
        if any(not isinstance(name, str) for name in tree):
            raise RedactionFailed("an object's keys must be text; nothing was written")
        secret = () if is_secret else self.secret_members(tree)
        for name, value in tree.items():
            new = self.tree(value, is_secret=is_secret or name in secret)
            new_name = self._text(name, self._key_hints) if self._key_hints else name
            if new is not value or new_name is not name:
                is_changed = True
            members[new_name] = new
        if len(members) != len(tree):
            raise RedactionFailed("two keys of one object become the same token; nothing was written")
        return members if is_changed else tree

    def _number(self, number: int | float, is_secret: bool) -> Plain:
        if not (is_secret or number >= _CARD_MIN):
            return number
        text = str(int(number)) if isinstance(number, int) or number.is_integer() else repr(number)
        if is_secret:
            return self._texts.token("secret", text)
        return self._texts.token("card", text) if self._texts.has_cards and is_card(text) else number

    def _text(self, text: str, hints: int) -> str:
        if len(text) < DIGITS_MIN and (hints <= LONG or (len(text) < SHORTEST and not hints & OWN)):
            return text
        hints = self._texts.hints(text, hints)
        if not hints:
            return text
        tree = read(text)
        if tree is not None:
            return changed(text, tree, Walk(self._texts, hints, hints))
        return self._texts.settled(text, hints)
