"""Through a tree: one look that tells whether anything in it may be a secret, and one walk that replaces what is."""

from __future__ import annotations

import datetime
import decimal
import uuid
from operator import is_not
from typing import Protocol

from refold.agents.journal.record import Plain
from refold.agents.redaction.cards import is_card
from refold.agents.redaction.hints import DIGITS_MIN, LONG, OWN, SHORTEST
from refold.agents.redaction.jsontext import changed, is_json
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
            is_telling = is_telling or not names.are_harmless(part)
        elif kind is list:
            to_see += part
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
            items = [self.tree(each, is_secret=is_secret) for each in tree]
            return items if any(map(is_not, items, tree)) else tree
        return self.value(tree, is_secret=is_secret)

    def name(self, name: str) -> str:
        """An object's key without its secrets."""
        return self._text(name, self._key_hints) if self._key_hints else name

    def value(self, value: Plain, *, is_secret: bool) -> Plain:
        """A leaf without its secrets."""
        if isinstance(value, str):
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

    def _object(self, tree: dict[str, Plain], is_secret: bool) -> Plain:
        is_plain = is_secret or self._texts.names.are_harmless(tree)
        members: dict[str, Plain] = {}
        is_changed = False
        for name, value in tree.items():
            if not isinstance(name, str):
                raise RedactionFailed("an object's keys have to be texts; nothing was written")
            hides = is_secret if is_plain else self.is_secret(name) and not is_of_a_model(name, tree)
            new = self.tree(value, is_secret=hides)
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
        if is_json(text):
            return changed(text, Walk(self._texts, hints, hints))
        return self._texts.settled(text, hints)
