"""Pages from templates: markup is escaped, and every value passes text.py."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from refold.avro.times import EPOCH, parse_time
from refold.explorer.queries.query import Query, command_text
from refold.explorer.web.text import SHOWN_MAX, cell, clipped, visible

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
