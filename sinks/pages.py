"""A sink's pages: /metrics for Prometheus, and /health, which says that the process serves.

refold's web server serves them (streams/web/server.py): its bounds, its token and its rules about hosts are theirs.
/health answers callers without the token too: a probe needs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refold.streams.web.page import PageResponse, Request, Route, json_answer, problem

TEXT = "text/plain; version=0.0.4; charset=utf-8"
LANE = "pages"


class SinkPages:
    """The site of one sink. metrics: Prometheus' text, made at each call."""

    def __init__(self, metrics: Callable[[], bytes]) -> None:
        self._metrics = metrics

    @property
    def lanes(self) -> Mapping[str, int]:
        """Two threads: each page takes a moment."""
        return {LANE: 2}

    def route(self, request: Request) -> Route | PageResponse:
        """The pages there are, to GET."""
        name = request.path.strip("/")
        if name not in ("health", "metrics"):
            return problem(404, f"no such page: {request.path[:100]}; there are /health and /metrics")
        if request.method != "GET":
            return problem(405, f"{request.path[:100]} is asked for with GET")
        return Route(LANE, is_open=name == "health")

    def answer(self, request: Request) -> PageResponse:
        """Return the response to a request."""
        if request.path.strip("/") == "health":
            return json_answer(200, {"healthy": True})
        return PageResponse(200, self._metrics(), TEXT)
