"""What every page of refold's is made of: a request, its answer, and the site that answers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple, Protocol

JSON = "application/json"


class Answer(NamedTuple):
    """A page: status, content and its type."""

    status: int
    content: bytes
    media_type: str = JSON


class Request(NamedTuple):
    """What is asked for, after the guard let it pass.

    path: as it was sent, percent signs included, without the query. headers: names in any case. is_known: whether the
    caller sent the token, or the server has none.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    is_known: bool
    content: bytes = b""


class Route(NamedTuple):
    """Where a request is answered.

    lane: the name of the threads that answer it. is_open: callers without the token get an answer too.
    """

    lane: str
    is_open: bool = False


class Site(Protocol):
    """A set of pages."""

    @property
    def lanes(self) -> Mapping[str, int]:
        """How many threads answer in each lane. Lanes share no thread, so none waits for another."""

    def route(self, request: Request) -> Route | Answer:
        """The lane of a request whose content is not read yet, or a refusal. Runs in the event loop: never blocks."""

    def answer(self, request: Request) -> Answer:
        """The page. Runs in a thread of the route's lane and may block."""


def json_answer(status: int, said: object) -> Answer:
    """An answer in JSON."""
    return Answer(status, (json.dumps(said, ensure_ascii=False, separators=(",", ":")) + "\n").encode(errors="replace"))


def problem(status: int, why: object) -> Answer:
    """An answer that says why there is no other."""
    return json_answer(status, {"error": str(why)})
