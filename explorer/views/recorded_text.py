"""Recorded values as text for people, for the explorer's pages and the deck.

Control characters, characters that change the writing direction, and lone surrogates are escaped. So no value can
disguise itself or another value, and none can control a terminal. Long values are cut, with a note.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, NamedTuple

from refold.agents.journal.objects import bare
from refold.avro.times import parse_time

NONE = "\N{EN DASH}"
KEPT = frozenset("\n\t")
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# This one joins emoji, and some languages need it within words.
JOINERS = frozenset("\u200c\u200d")

TOO_DEEP = "nested too deeply to be shown"
SHOWN_MAX = 12_000
CELL_MAX = 160


class Clipped(NamedTuple):
    """A text to be shown.

    Attributes:
        left_out: How many of its characters are not shown.
    """

    text: str
    left_out: int = 0


def visible(text: str) -> str:
    """Return the text with every invisible or misleading character escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in KEPT or character in JOINERS or unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


def clipped(value: Any, most: int = SHOWN_MAX) -> Clipped:
    """Return the beginning of a value as text.

    Args:
        value: The value. A text is returned as it is, anything else as indented JSON.
        most: The maximum number of characters, counted before invisible or misleading ones are escaped.
    """
    whole = value if isinstance(value, str) else json_text(value)
    if len(whole) <= most:
        return Clipped(visible(whole))
    return Clipped(visible(whole[:most]), len(whole) - most)


def json_text(value: Any) -> str:
    """Return a value as indented JSON, without the journal's type marks."""
    return _dump(value, 2)


def _dump(value: Any, indent: int | None) -> str:
    try:
        return json.dumps(bare(value), ensure_ascii=False, indent=indent)
    except RecursionError:
        return TOO_DEEP


def cell(value: Any, most: int = CELL_MAX) -> str:
    """Return a value on one line, for a table cell. A long value is cut in its middle."""
    text = value if isinstance(value, str) else _dump(value, None)
    if len(text) > most:
        text = f"{text[: most * 2 // 3]} … {text[-(most // 4) :]}"
    return visible(" ".join(text.split()))


def took(started: str | None, ended: str | None) -> str:
    """Return the time between two RFC 3339 times, in the most readable unit. A dash if one is missing."""
    if not started or not ended:
        return NONE
    return duration((parse_time(ended, "ended") - parse_time(started, "started")) / 1000)


def duration(milliseconds: float) -> str:
    """Format a duration in the most readable unit."""
    if milliseconds < 1:
        return f"{milliseconds * 1000:.0f} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(given: int | None) -> str:
    """Format a count with thousands separators. A dash for None."""
    return NONE if given is None else f"{given:,}"
