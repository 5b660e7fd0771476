"""Renders pages from templates. The styles and scripts of this folder are read once.

Jinja escapes markup. Every recorded value also passes through views/recorded_text.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from refold.avro.times import EPOCH, parse_time
from refold.explorer.queries.query import Query, command_text
from refold.explorer.views.recorded_text import NONE, SHOWN_MAX, cell, clipped, duration, number, took, visible

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip


@cache
def assets() -> MappingProxyType[str, tuple[bytes, str]]:
    """Return the content and the media type of each static file, by name."""
    found = sorted((Path(__file__).parent / "static").iterdir())
    return MappingProxyType(
        {each.name: (each.read_bytes(), MEDIA_TYPES[each.suffix]) for each in found if each.suffix in MEDIA_TYPES}
    )


TEMPLATES = Path(__file__).parent / "templates"


def link(*parts: str, **query: object) -> str:
    """Return the address of a page. parts: the parts of its path, unquoted; query: empty values are left out."""
    path = "/" + "/".join(quote(each, safe="", errors="replace") for each in parts)
    given = {name: _text(value) for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def entity_link(entity: str, **query: object) -> str:
    """Return the address of an entity's page."""
    type_name, _, name = entity.partition("/")
    return link("entity", type_name, name, **query)


def _text(value: object) -> str:
    return "1" if value is True else str(value)


def time_tag(given: str | int | None, missing: str = NONE) -> Markup:
    """Return a time in UTC. A script of the page converts it to the reader's time zone. given: RFC 3339, or
    microseconds since 1970.
    """
    if not given:
        return Markup('<span class="none">{}</span>').format(missing)
    micros = given if isinstance(given, int) else parse_time(given, "time")
    moment = EPOCH + dt.timedelta(microseconds=micros)
    text = moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    full = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return Markup('<time datetime="{0}" title="{0}">{1}<span class="zone"> UTC</span></time>').format(full, text)


class Renderer:
    """Renders the pages of one log.

    Args:
        shown_url: The log as commands name it; None: REFOLD_LOG names it.
        shown_max: The maximum number of characters shown of one value.
        can_write: Whether pages have the forms of actions.
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
        """Return the command that asks a question of this log."""
        return command_text(query.arguments, self._shown_url)

    def page(self, template: str, given: Mapping[str, Any]) -> bytes:
        """Render a page as UTF-8. Any remaining lone surrogate becomes a question mark."""
        return self._environment.get_template(template).render(given).encode(errors="replace")
