"""One request for a page: the log, the page, its address and its cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from refold.agents.log import AgentLog
from refold.avro.errors import InputError
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.query import Query
from refold.explorer.web.limits import DEFAULT_LIMITS, PageLimits
from refold.explorer.web.rendering import Renderer
from refold.explorer.web.value_links import ValueLinks
from refold.streams.cut import PREFIX, Cut


class PageMoved(Exception):
    """The page has another address. The browser is redirected there."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


@dataclass(frozen=True, slots=True)
class PageView:
    """One request for a page.

    Attributes:
        path: The decoded parts of the path after the first.
        query: The parameters of the address.
    """

    log: AgentLog
    place: LogTarget
    renderer: Renderer
    name: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    limits: PageLimits = DEFAULT_LIMITS

    def get(self, name: str) -> str:
        """Return a query parameter; empty if it is missing."""
        return self.query.get(name, "")

    def number(self, name: str) -> int | None:
        """Return a query parameter that is a whole number; None if it is missing.

        Raises:
            InputError: It is not a number of at most nine digits.
        """
        text = self.get(name)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise InputError(f"{name}: a whole number of 0 or more, given {text!r:.40}")
        return int(text)

    def cut(self, entity: str | None = None, name: str = "at", clock: str = "recorded") -> Cut:
        """Return the cut that the address names under `name`.

        Raises:
            PageMoved: The address names no cut, or names a point in another way. The new address names the cut.
            InputError: The value is not a WHEN.
        """
        given = self.get(name)
        cut = self.log.point(given or None, entity, clock).cut
        if not given.startswith(PREFIX) or given != str(cut):
            raise PageMoved(self.address(**{name: str(cut)}))
        return cut

    def with_path(self, *path: str) -> PageView:
        """Return the same page at another path."""
        return replace(self, path=path)

    def address(self, **changed: object) -> str:
        """Return the address of this page with other query parameters. None or "" removes one."""
        path = "/".join(quote(each, safe="", errors="replace") for each in (self.name, *self.path) if each)
        query = {name: str(value) for name, value in {**self.query, **changed}.items() if value not in (None, "")}
        return f"/{path}" + (f"?{urlencode(query)}" if query else "")

    def render(
        self, template: str, title: str, cut: Cut | None, queries: Sequence[tuple[str, Query]], /, *,
        is_live: bool = False, **given: Any,
    ) -> bytes:  # fmt: skip
        """Render the page.

        Args:
            template: The file name of the template.
            title: The title of the page.
            cut: The cut that the page shows; None: none.
            queries: The questions that the page answers, each with what it shows. The page lists their commands.
            is_live: Whether the page may change as the log grows.
            given: The variables of the template.
        """
        commands = [(what, self.renderer.command(query)) for what, query in queries]
        return self.renderer.page(
            template,
            {
                "title": title, "at": None if cut is None else str(cut),
                "cut_short": None if cut is None else cut.short, "commands": commands, "page": self.name,
                "here": self.address, "log_url": self.log.port.url, "is_live": is_live, **given,
            },
            None if cut is None else ValueLinks.of(self.log, cut),
        )  # fmt: skip
