"""Every entity at a point: the answer of `refold rebuild`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import rebuild_json


@dataclass(frozen=True, slots=True)
class RebuildQuery:
    """types: only entities of these; then there is no root."""

    at: str | None = None
    types: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """`refold rebuild`."""
        types = [f"--type={each}" for each in self.types]
        return ["rebuild", *types, *options_of({"at": self.at})]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return how many entities there are, and the root."""
        point = log.point(self.at)
        view = log.rebuild(point.cut, types=self.types or None)
        return rebuild_json(point, view, None if self.types else view.root)
