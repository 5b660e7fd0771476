"""The parts of every refold page: a request, its answer, and the site that answers it.

A request's JSON and CBOR are untrusted, and are parsed within bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

import cbor2

from refold.avro.errors import InputError

DEPTH_MAX = 64
# Matches a text, terminated or not, so that brackets in texts do not count and nothing is scanned twice; or a bracket.
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*+\\?(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


def json_object(content: bytes) -> dict[str, object]:
    """Parse a JSON object; {} for an empty content.

    Raises:
        InputError: the content is anything else, or nested too deeply.
    """
    _check_depth(content)
    try:
        found = json.loads(content or b"{}", parse_constant=_refuse)
    except ValueError as error:  # also a number with more digits than Python parses
        raise InputError(f"the request's body is not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InputError("the request's body is not a JSON object")
    return found


def cbor_list(content: bytes) -> list[object]:
    """Parse a CBOR list.

    Raises:
        InputError: the content is anything else, or nested too deeply.
    """
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
    """A page: status, content and its type.

    Attributes:
        headers: The further headers, by name.
    """

    status: int
    content: bytes
    media_type: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple):
    """A request that the guard accepted.

    Attributes:
        path: The path as it was sent, still percent-encoded, without the query.
        headers: The headers, with names in any case.
        is_known: Whether the client sent the token, or the server has none.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    is_known: bool
    content: bytes = b""


class Route(NamedTuple):
    """How a request is answered.

    Attributes:
        lane: The name of the thread pool that answers it.
        is_open: Whether clients without the token get an answer too.
        is_followed: Whether the answer is computed repeatedly, and sent as a server-sent event when it has changed.
    """

    lane: str
    is_open: bool = False
    is_followed: bool = False


class Site(Protocol):
    """A set of pages."""

    @property
    def lanes(self) -> Mapping[str, int]:
        """The number of threads of each lane. Lanes share no thread, so no lane waits for another."""

    def route(self, request: Request) -> Route | PageResponse:
        """Return the route of a request whose content is not read yet, or a refusal. Runs in the event loop, so it must
        not block."""

    def answer(self, request: Request) -> PageResponse:
        """Return the page. Runs in a thread of the route's lane, and may block."""


ProblemPage: TypeAlias = Callable[[str, Mapping[str, str], PageResponse], PageResponse]
"""Returns an error response as its reader can read it: a page for a browser, the given JSON for a program. It is called
in the event loop with the request's target, which may be no path, its headers, and the response.
"""


def json_answer(status: int, document: object) -> PageResponse:
    """Return an answer in JSON."""
    return PageResponse(
        status, (json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n").encode(errors="replace")
    )


def problem(status: int, why: object) -> PageResponse:
    """Return an error response with a message."""
    return json_answer(status, {"error": str(why)})
