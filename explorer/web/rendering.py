"""Renders pages from templates. The styles and scripts of this folder are read once.

Jinja escapes markup. Every recorded value also passes through views/recorded_text.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from refold.avro.times import EPOCH, parse_time
from refold.explorer.queries.query import Query, command_text
from refold.explorer.views.recorded_text import NONE, SHOWN_MAX, cell, clipped, duration, number, took, visible
from refold.explorer.web.addresses import entity_link, link
from refold.explorer.web.value_links import ValueLinks

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip

_LINKS: ContextVar[ValueLinks | None] = ContextVar("refold.value-links", default=None)
"""The links of the page that is being rendered. Jinja gives macros that are imported no variables of the page."""


@cache
def assets() -> MappingProxyType[str, tuple[bytes, str]]:
    """Return the content and the media type of each static file, by name."""
    found = sorted((Path(__file__).parent / "static").iterdir())
    return MappingProxyType(
        {each.name: (each.read_bytes(), MEDIA_TYPES[each.suffix]) for each in found if each.suffix in MEDIA_TYPES}
    )


TEMPLATES = Path(__file__).parent / "templates"


def linked(text: str) -> Markup:
    """Return the text of a value as markup, with links where it names entities and runs; see ValueLinks."""
    links = _LINKS.get()
    return escape(text) if links is None else links.marked(text)


def time_tag(given: str | int | None, missing: str = NONE) -> Markup:
    """Return a time in UTC. A script of the page converts it to the reader's time zone.

    Args:
        given: The time, in RFC 3339 or in microseconds since 1970.
        missing: The text to show if there is no time.
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
            "duration": duration, "time": time_tag, "linked": linked, "number": number,
            "words": lambda text: text.replace("_", " "),
        }  # fmt: skip

    def command(self, query: Query) -> str:
        """Return the command that asks a question of this log."""
        return command_text(query.arguments, self._shown_url)

    def page(self, template: str, given: Mapping[str, Any], links: ValueLinks | None = None) -> bytes:
        """Render a page as UTF-8. Any remaining lone surrogate becomes a question mark.

        Args:
            template: The file name of the template.
            given: The variables of the template.
            links: Finds what the ids in values name; None: values have no links.
        """
        token = _LINKS.set(links)
        try:
            text = self._environment.get_template(template).render(given)
        finally:
            _LINKS.reset(token)
        return (text if links is None else links.filled(text)).encode(errors="replace")
