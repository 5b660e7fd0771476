"""The copy that a proxy makes of a request and its response, as the proxy sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from refold.agents.capture.exchange import Broken


class ProxiedExchange(Protocol):
    """The copy of one request that is being forwarded, and of its response.

    Attributes:
        url: Where it is forwarded to.
        has_body: Whether its body was already read.
        agent_left: The error by which the request's body ended early.
    """

    url: str
    agent_left: BaseException | None

    @property
    def has_body(self) -> bool: ...

    def request_body(self) -> AsyncIterator[bytes]:
        """Yield the body to forward."""

    def requested(self) -> Any:
        """Take a request that has no body."""

    def head(self, found: aiohttp.ClientResponse) -> None:
        """Take the head of the response."""

    def add(self, data: bytes) -> None:
        """Take a piece of the response's body, before it is passed on."""

    def end(self, end: str, error: Broken | None = None) -> None:
        """Take how it ended, as in an exchange; only the first call counts."""

    def unanswered(self, error: BaseException) -> web.Response:
        """Return the response if the provider sent none."""


def error_of_request(error: Exception) -> ConnectionError:
    """Return the error of a request's body as one of its connection, which no error of the server is."""
    return error if isinstance(error, ConnectionError) else ConnectionResetError(str(error))


Copying = Callable[[web.BaseRequest, str], Awaitable[ProxiedExchange]]
"""Begins the copy of a request that is forwarded to a URL."""
