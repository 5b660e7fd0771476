"""Recorded text as a page shows it.

Jinja escapes markup. Here what is left is made harmless: control characters, characters that turn the direction of
writing, and halves of UTF-16 pairs are shown as escapes, so that no value can disguise itself or another. Long values
are cut, and say so.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, NamedTuple

from refold.agents.journal.objects import bare

KEPT = frozenset("\n\t")
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Emoji are joined by this one, and words of some languages need it.
JOINERS = frozenset("\u200c\u200d")

TOO_DEEP = "nested too deeply to be shown"
SHOWN_MAX = 12_000
CELL_MAX = 160


class Clipped(NamedTuple):
    """A text to be shown. left_out: how many characters of it are not."""

    text: str
    left_out: int = 0


def visible(text: str) -> str:
    """The text, with what would not be seen as it is escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in KEPT or character in JOINERS or unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


def clipped(value: Any, most: int = SHOWN_MAX) -> Clipped:
    """A value as text: a text itself, anything else as indented JSON. At most so many characters of it."""
    whole = value if isinstance(value, str) else json_text(value)
    if len(whole) <= most:
        return Clipped(visible(whole))
    return Clipped(visible(whole[:most]), len(whole) - most)


def json_text(value: Any) -> str:
    """Indented JSON for people, without the marks of the journal."""
    return _dumped(value, 2)


def _dumped(value: Any, indent: int | None) -> str:
    try:
        return json.dumps(bare(value), ensure_ascii=False, indent=indent)
    except RecursionError:
        return TOO_DEEP


def cell(value: Any, most: int = CELL_MAX) -> str:
    """A value on one line of a table; a long one is cut in its middle."""
    text = value if isinstance(value, str) else _dumped(value, None)
    if len(text) > most:
        text = f"{text[: most * 2 // 3]} … {text[-(most // 4) :]}"
    return visible(" ".join(text.split()))
