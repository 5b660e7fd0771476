"""JSON inside a string, changed in place: what is no secret keeps its bytes, white space and order of keys included."""

from __future__ import annotations

import json
import re
from typing import Protocol

from refold.agents.journal.record import Plain

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_LOGPROB = '"logprob"'


class Leaves(Protocol):
    """What becomes of the parts of a tree."""

    def name(self, name: str) -> str:
        """An object's key."""

    def is_secret(self, name: str) -> bool:
        """Whether what stands under that key is a secret."""

    def value(self, value: Plain, *, is_secret: bool) -> Plain:
        """A text, a number, true, false or null."""


def is_json(text: str) -> bool:
    """Whether the text is a JSON object or list."""
    first, last = text[:1], text[-1:]
    if first in " \t\r\n" or last in " \t\r\n":
        stripped = text.strip(" \t\r\n")
        first, last = stripped[:1], stripped[-1:]
    if (first, last) not in (("{", "}"), ("[", "]")):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def changed(text: str, leaves: Leaves) -> str:
    """The text of a JSON object or list with its keys and leaves changed; itself where none is."""
    pieces: list[str] = []
    done = 0
    # Of what is open: is it an object, is all in it a secret, is a key to come, is the value under that key a secret.
    is_object, is_hidden, is_key, is_secret = False, False, False, False
    opened: list[tuple[bool, bool]] = []
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece in "{[":
            opened.append((is_object, is_hidden))
            is_hidden = is_hidden or (is_object and is_secret)
            is_object = is_key = piece == "{"
            is_secret = False
        elif piece in "}]":
            is_object, is_hidden = opened.pop()
            is_key = False
        elif piece == ",":
            is_key = is_object
        elif piece == ":":
            is_key = False
        else:
            value = json.loads(piece)
            new: Plain
            if is_key:
                is_secret = leaves.is_secret(value) and not (_LOGPROB in text and value == "token")
                new = leaves.name(value)
            else:
                new = leaves.value(value, is_secret=is_hidden or (is_object and is_secret))
            if new is not value and new != value:
                pieces += text[done : match.start()], json.dumps(new, ensure_ascii=piece.isascii())
                done = match.end()
    return "".join([*pieces, text[done:]]) if pieces else text
