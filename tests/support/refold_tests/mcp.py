"""refold's MCP server on a real transport, and the official client."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from refold.explorer.mcp.http import PATH, McpSite
from refold.explorer.mcp.server import HistoryServer
from refold.explorer.queries.log_target import LogTarget
from refold.streams.web.guard import Token
from refold.streams.web.listening import Access
from refold.streams.web.server import WebServer
from refold_tests.command import COMMAND, environment

MODES = ("auto", "legacy")
"""Today's protocol, and the handshake of earlier versions."""
POSTED = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
T = TypeVar("T")


class HttpServer(NamedTuple):
    """A server. url: the address that messages are posted to."""

    url: str

    def post(self, content: bytes, method: str = "POST", headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Send one request unchanged; return status and body."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        try:
            connection.request(method, parts.path, content, {**POSTED, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@contextmanager
def http_server(url: str, token: str | None = None, *, writes: bool = False) -> Iterator[HttpServer]:
    """Run the MCP server of a log on a free port."""
    server = WebServer("127.0.0.1", 0, Access(None if token is None else Token(token)), what="the MCP server")
    history = HistoryServer(LogTarget(url), writes=writes)
    site = McpSite(history)
    try:
        server.serve(site)
        yield HttpServer(f"{server.url}{PATH}")
    finally:
        server.close()
        site.close()
        history.close()


def by_stdio(url: str, *options: str, more: Mapping[str, str] | None = None) -> Any:
    """Return a transport for the client: `refold mcp` as its own process."""
    command, *rest = map(str, COMMAND)
    given = StdioServerParameters(
        command=command, args=[*rest, "mcp", *options], env=environment(url, dict(more or {}))
    )
    return stdio_client(given)


def asked(target: Any, work: Callable[[Client], Awaitable[T]], mode: str = "auto") -> T:
    """Connect a client to a server, given by URL or transport, and return the result of `work`."""

    async def run() -> T:
        async with Client(target, mode=mode) as client:
            return await work(client)

    return asyncio.run(run())


def text_of(result: Any) -> str:
    """Return the only text of a tool's result."""
    (content,) = result.content
    return str(content.text)


async def call(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    """Call a tool, which must have an answer; return the parsed answer."""
    result = await client.call_tool(tool, given)
    assert not result.is_error, text_of(result)
    found: dict[str, Any] = json.loads(text_of(result))
    return found


async def refused(client: Client, tool: str, **given: Any) -> str:
    """Call a tool that must have no answer; return the reason."""
    result = await client.call_tool(tool, given)
    assert result.is_error, text_of(result)
    return text_of(result)
