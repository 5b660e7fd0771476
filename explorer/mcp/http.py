"""MCP over streamable HTTP, on refold's web server.

The web server checks Host, Origin, token and size limits (streams/web/server.py), as for every page of refold. Then the
SDK's own transport answers. It opens no stream and keeps no session: each POST is answered with JSON. GET would open a
stream, so it is answered with 405, as the protocol allows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from refold.explorer.mcp.server import HistoryServer
from refold.streams.web.page import PageResponse, Request, Route, problem

PATH = "/mcp"
LANE = "mcp"
CONTENT_BYTES_MAX = 1 << 20


class McpSite:
    """The only page of an MCP server: the address that messages are posted to."""

    def __init__(self, history: HistoryServer) -> None:
        self._loop = asyncio.new_event_loop()
        self._manager = StreamableHTTPSessionManager(
            history.server, json_response=True, stateless=True, max_request_body_size=CONTENT_BYTES_MAX
        )
        self._stop = asyncio.Event()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refold-mcp", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    @property
    def lanes(self) -> Mapping[str, int]:
        """The threads that wait for answers. HistoryServer has its own threads, which compute them."""
        return {LANE: 8}

    def route(self, request: Request) -> Route | PageResponse:
        """Accept messages that are posted to PATH, and refuse everything else."""
        if request.path != PATH:
            return problem(404, f"{request.path[:100]}: there is no such page; messages of MCP are posted to {PATH}")
        if request.method != "POST":
            refusal = problem(405, f"{PATH} takes messages with POST; it opens no stream and keeps no session")
            return refusal._replace(headers={"Allow": "POST"})
        return Route(LANE)

    def answer(self, request: Request) -> PageResponse:
        """Return the response of the SDK."""
        return asyncio.run_coroutine_threadsafe(self._exchange(request), self._loop).result()

    def close(self) -> None:
        """Stop, and cancel requests in progress."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with self._manager.run():
            self._is_ready.set()
            await self._stop.wait()

    async def _exchange(self, request: Request) -> PageResponse:
        """Run one ASGI exchange: pass the whole request, and collect the whole response."""
        headers = [
            (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in request.headers.items()
        ]
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
            "scheme": "http", "path": request.path, "raw_path": request.path.encode(), "root_path": "",
            "query_string": urlencode(request.query).encode(), "headers": headers, "client": None, "server": None,
        }  # fmt: skip
        waiting = [{"type": "http.request", "body": request.content, "more_body": False}]
        status, named, content = 500, {}, bytearray()

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()  # the caller stays connected until it has its answer
            raise AssertionError

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status, named
            if message["type"] == "http.response.start":
                status = message["status"]
                named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
            else:
                content.extend(message.get("body", b""))

        await self._manager.handle_request(scope, receive, send)
        media_type = named.pop("content-type", "application/json")
        named.pop("content-length", None)
        return PageResponse(status, bytes(content), media_type, named)
