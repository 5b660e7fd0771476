"""What every page of refold's is made of: a request, its answer, and the site that answers it.

JSON and CBOR from strangers, read within bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import cbor2

from refold.avro.errors import InputError

DEPTH_MAX = 64
# A text, ended or not, so that no bracket in one counts and no part is read twice; or a bracket.
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*+\\?(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


def json_object(content: bytes) -> dict[str, object]:
    """The JSON object in a content, {} where that is empty. InputError for anything else, or one nested too deeply."""
    _check_depth(content)
    try:
        found = json.loads(content or b"{}", parse_constant=_refuse)
    except ValueError as error:  # also a number of more digits than Python reads
        raise InputError(f"the request's body is not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InputError("the request's body is not a JSON object")
    return found


def cbor_list(content: bytes) -> list[object]:
    """The CBOR list in a content. InputError for anything else, or one nested too deeply."""
    try:
        found = cbor2.loads(content, max_depth=DEPTH_MAX)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise InputError(f"the request's body is not CBOR: {str(error)[:200]}") from error
    if not isinstance(found, list):
        raise InputError("the request's body is not a list in CBOR")
    return found


def _check_depth(content: bytes) -> None:
    depth = 0
    for mark in _MARKS.finditer(content):
        if mark[0] in b"[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise InputError(f"the request's body is nested more than {DEPTH_MAX} levels deep")
        elif mark[0] in b"]}":
            depth -= 1


def _refuse(literal: str) -> object:
    raise ValueError(f"{literal} is not JSON")


JSON = "application/json"


class PageResponse(NamedTuple):
    """A page: status, content and its type. headers: more of them, by name."""

    status: int
    content: bytes
    media_type: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})


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

    lane: the name of the threads that answer it. is_open: callers without the token get an answer too. is_followed: the
    answer is asked for again and again, and sent as a server-sent event whenever it is another.
    """

    lane: str
    is_open: bool = False
    is_followed: bool = False


class Site(Protocol):
    """A set of pages."""

    @property
    def lanes(self) -> Mapping[str, int]:
        """How many threads answer in each lane. Lanes share no thread, so none waits for another."""

    def route(self, request: Request) -> Route | PageResponse:
        """The lane of a request whose content is not read yet, or a refusal. Runs in the event loop: never blocks."""

    def answer(self, request: Request) -> PageResponse:
        """The page. Runs in a thread of the route's lane and may block."""


def json_answer(status: int, said: object) -> PageResponse:
    """An answer in JSON."""
    return PageResponse(
        status, (json.dumps(said, ensure_ascii=False, separators=(",", ":")) + "\n").encode(errors="replace")
    )


def problem(status: int, why: object) -> PageResponse:
    """An answer that says why there is no other."""
    return json_answer(status, {"error": str(why)})
