"""One request for a page: what is asked for, of which log, and at which cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from refold.agents.log import AgentLog
from refold.avro.errors import InputError
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.query import Query
from refold.explorer.web.rendering import Renderer
from refold.streams.cut import PREFIX, Cut


class PageMoved(Exception):
    """The page has another address."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


@dataclass(frozen=True, slots=True)
class PageView:
    """path: the parts behind the first, as text; query: of the address."""

    log: AgentLog
    place: LogTarget
    renderer: Renderer
    name: str
    path: tuple[str, ...]
    query: Mapping[str, str]

    def get(self, name: str) -> str:
        """A part of the query; "" where there is none."""
        return self.query.get(name, "")

    def number(self, name: str) -> int | None:
        """A whole number of the query, None where there is none. InputError for anything else."""
        text = self.get(name)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise InputError(f"{name}: a whole number of 0 or more, given {text!r:.40}")
        return int(text)

    def cut(self, entity: str | None = None, name: str = "at", clock: str = "recorded") -> Cut:
        """The cut that the address names under `name`.

        Raises:
            Moved: It names none, or names one in another way; there is the address that names the cut.
            InputError: It is no WHEN.
        """
        given = self.get(name)
        cut = self.log.point(given or None, entity, clock).cut
        if not given.startswith(PREFIX) or given != str(cut):
            raise PageMoved(self.address(**{name: str(cut)}))
        return cut

    def address(self, **changed: object) -> str:
        """This page with other values in its query; None or "" takes one away."""
        path = "/".join(quote(each, safe="", errors="replace") for each in (self.name, *self.path) if each)
        query = {name: str(value) for name, value in {**self.query, **changed}.items() if value not in (None, "")}
        return f"/{path}" + (f"?{urlencode(query)}" if query else "")

    def render(
        self, template: str, title: str, cut: Cut | None, queries: Sequence[tuple[str, Query]], /, *,
        is_live: bool = False, **given: Any,
    ) -> bytes:  # fmt: skip
        """The page. queries: the commands that give the same answers, each with what it shows; is_live: it may change
        as the log grows."""
        commands = [(what, self.renderer.command(query)) for what, query in queries]
        return self.renderer.page(
            template,
            {
                "title": title, "at": None if cut is None else str(cut),
                "cut_short": None if cut is None else cut.short, "commands": commands, "page": self.name,
                "here": self.address, "log_url": self.log.port.url, "is_live": is_live, **given,
            },
        )  # fmt: skip
