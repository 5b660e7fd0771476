"""Pages from templates: markup is escaped, and every value passes rendering.py.

The styles and scripts of the pages: files of this folder, read once.

Recorded text as a page shows it.

Jinja escapes markup. Here what is left is made harmless: control characters, characters that turn the direction of
writing, and halves of UTF-16 pairs are shown as escapes, so that no value can disguise itself or another. Long values
are cut, and say so.
"""

from __future__ import annotations

import datetime as dt
import json
import unicodedata
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from refold.agents.journal.objects import bare
from refold.avro.times import EPOCH, parse_time
from refold.explorer.queries.query import Query, command_text

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


MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip


@cache
def assets() -> MappingProxyType[str, tuple[bytes, str]]:
    """Content and media type by name."""
    found = sorted((Path(__file__).parent / "static").iterdir())
    return MappingProxyType(
        {each.name: (each.read_bytes(), MEDIA_TYPES[each.suffix]) for each in found if each.suffix in MEDIA_TYPES}
    )


NONE = "\N{EN DASH}"
TEMPLATES = Path(__file__).parent / "templates"


def link(*parts: str, **query: object) -> str:
    """The address of a page. parts: of its path, none quoted; query: what is empty is left out."""
    path = "/" + "/".join(quote(each, safe="", errors="replace") for each in parts)
    given = {name: _text(value) for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def entity_link(entity: str, **query: object) -> str:
    """The address of an entity's page."""
    type_name, _, name = entity.partition("/")
    return link("entity", type_name, name, **query)


def _text(value: object) -> str:
    return "1" if value is True else str(value)


def took(started: str | None, ended: str | None) -> str:
    """How long, in the unit that reads best; a dash where a time is missing."""
    if not started or not ended:
        return NONE
    return duration((parse_time(ended, "ended") - parse_time(started, "started")) / 1000)


def duration(milliseconds: float) -> str:
    """A duration in the unit that reads best."""
    if milliseconds < 1:
        return f"{milliseconds * 1000:.0f} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def time_tag(given: str | int | None, missing: str = NONE) -> Markup:
    """A time: in UTC, which a script of the page turns into the reader's zone. given: RFC 3339, or microseconds."""
    if not given:
        return Markup('<span class="none">{}</span>').format(missing)
    micros = given if isinstance(given, int) else parse_time(given, "time")
    moment = EPOCH + dt.timedelta(microseconds=micros)
    text = moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    full = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return Markup('<time datetime="{0}" title="{0}">{1}<span class="zone"> UTC</span></time>').format(full, text)


def number(given: int | None) -> str:
    """A count with separators between thousands; a dash for none."""
    return NONE if given is None else f"{given:,}"


class Renderer:
    """Makes pages of one log.

    shown_url: the log as commands name it, None where REFOLD_LOG does. shown_max: how many characters of one value are
    shown. can_write: whether pages have the forms of actions.
    """

    def __init__(self, shown_url: str | None, shown_max: int = SHOWN_MAX, *, can_write: bool = False) -> None:
        self._shown_url = shown_url
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._environment.globals |= {
            "link": link, "entity_link": entity_link, "command": self.command, "can_write": can_write,
        }  # fmt: skip
        self._environment.filters |= {
            "clip": partial(clipped, most=shown_max), "cell": cell, "visible": visible, "took": took,
            "duration": duration, "time": time_tag, "number": number, "words": lambda text: text.replace("_", " "),
        }  # fmt: skip

    def command(self, query: Query) -> str:
        """The command that asks a question of this log."""
        return command_text(query.arguments, self._shown_url)

    def page(self, template: str, given: Mapping[str, Any]) -> bytes:
        """A page; halves of UTF-16 pairs that are left anywhere become question marks."""
        return self._environment.get_template(template).render(given).encode(errors="replace")
