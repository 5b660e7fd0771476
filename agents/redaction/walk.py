"""Through a tree: one look that tells whether anything in it may be a secret, and one walk that replaces what is."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Collection, Mapping, Sequence
from operator import is_not
from typing import Protocol

from refold.agents.journal.record import Plain
from refold.agents.redaction.cards import is_card
from refold.agents.redaction.hints import DIGITS_MIN, LONG, OWN, SHORTEST
from refold.agents.redaction.jsontext import changed, read
from refold.agents.redaction.lists import are_pairs, secret_items, secret_member
from refold.agents.redaction.names import Names, is_of_a_model
from refold.avro.blob import Blob, Sealed
from refold.avro.errors import RedactionFailed

_INERT = (Blob, Sealed, datetime.datetime, datetime.date, decimal.Decimal, uuid.UUID)
_CARD_MIN = 10 ** (DIGITS_MIN - 1)


class Texts(Protocol):
    """What becomes of texts; see Redactor."""

    names: Names
    has_cards: bool

    def hints(self, text: str, among: int) -> int:
        """Those of the hints that the text gives; 0 where nothing can be in it."""

    def settled(self, text: str, hints: int) -> str:
        """The text without its secrets."""

    def hidden(self, text: str) -> str:
        """The text, which is a secret, as tokens."""

    def token(self, kind: str, secret: str) -> str:
        """The token of a secret."""


def look(tree: Plain, names: Names) -> tuple[str, str, bool]:
    """All keys of a tree as one text, all other texts, and whether a name, a number, or what is no JSON is telling."""
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
    """Replaces the secrets of a tree. key_hints, hints: those that its keys give together, and its other texts."""

    def __init__(self, texts: Texts, key_hints: int, hints: int) -> None:
        self._texts = texts
        self._key_hints = key_hints
        self._hints = hints
        self.is_secret = texts.names.is_secret

    def tree(self, tree: Plain, *, is_secret: bool = False) -> Plain:
        """The tree without its secrets, itself where it has none. is_secret: all of it is one."""
        if isinstance(tree, str):
            return self._string(tree, is_secret)
        if isinstance(tree, dict):
            return self._object(tree, is_secret)
        if isinstance(tree, (list, tuple)):
            return self._list(tree, is_secret)
        return self.value(tree, is_secret=is_secret)

    def name(self, name: str) -> str:
        """An object's key without its secrets."""
        return self._text(name, self._key_hints) if self._key_hints else name

    def value(self, value: Plain, *, is_secret: bool, start: int = 0) -> Plain:
        """A leaf without its secrets; start: from which character on it is one."""
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
            f"a value of type {type(value).__name__} cannot be looked into; nothing was written: give text instead"
        )

    def _string(self, text: str, is_secret: bool) -> str:
        if is_secret:
            return self._texts.hidden(text)
        return self._text(text, self._hints) if self._hints else text

    def secret_members(self, members: Mapping[str, Plain]) -> Collection[str]:
        """The names of an object under which secrets stand."""
        names = self._texts.names
        found = set() if names.are_harmless(members) else {
            each for each in members if self.is_secret(each) and not is_of_a_model(each, members)
        }  # fmt: skip
        if member := secret_member(members, names):
            found.add(member)
        return found

    def secret_items(self, items: Sequence[Plain]) -> Mapping[int, int]:
        """The items of a list that are secrets, and from which character on."""
        return secret_items(items, self._texts.names)

    def secret_second(self, pair: Sequence[Plain]) -> bool:
        """Whether the first of two items is the name of a secret."""
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
            raise RedactionFailed("an object's keys have to be texts; nothing was written")
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
