"""A tee for MCP servers over streamable HTTP: a proxy on loopback that passes every byte on, and captures a copy.

1. The request's body is read whole, and its requests are in the spool before the server gets them. A body over
   LINE_BYTES_MAX is passed on unparsed.
2. The response is passed on as it arrives (proxy.py). Its messages are parsed from the copy: the whole body, or the
   events of a stream. An answer is in the spool before the client gets the end of its message.
3. An answer belongs to the request with its id in the same session, which the header Mcp-Session-Id names; without a
   session, in the same POST. So the answer of a stream that broke may come in another stream of its session.
4. A POST that ends without the answers to its requests ends them, with the reason. In a session a broken stream may be
   resumed, so its requests wait, at most until the tee ends.
5. GET and DELETE are passed on. Headers are not recorded, and so no token.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from refold.agents.capture.capture import CaptureSettings, spool_root
from refold.agents.capture.encodings import Decoder, Undecodable
from refold.agents.capture.exchange import Broken
from refold.agents.capture.mcp_playback import RecordedSession
from refold.agents.capture.mcp_runs import McpRuns
from refold.agents.capture.mcp_tee import FOLDER
from refold.agents.capture.mcp_wire import LINE_BYTES_MAX, McpWire, MessageLines, Pending, messages_in
from refold.agents.capture.proxied import error_of_request
from refold.agents.capture.proxy import Proxy, Upstreams
from refold.agents.capture.server import LoopbackServer
from refold.agents.capture.spool import Spool
from refold.agents.capture.spool_drain import StoredExchanges
from refold.agents.capture.wire import ask_for_body, error_response, refusal
from refold.streams.open import process_context

EVENTS = "text/event-stream"
SESSION = "Mcp-Session-Id"
_END_BYTES = 64
_posts = itertools.count(1)


class McpHttpTee:
    """A tee. It is running when the constructor returns.

    Attributes:
        url: The URL that the client is given in place of the server's.
    """

    def __init__(self, settings: CaptureSettings, url: str) -> None:
        """Start the tee.

        Raises:
            InputError: The URL is no address of HTTP, or the tee cannot listen.
        """
        Upstreams({"": url})  # refuses what is no address of HTTP
        parts = urlsplit(url)
        runtime = settings.runtime or process_context()
        root = (settings.spool or spool_root(settings.log_url, os.environ)) / FOLDER
        spool = Spool(root, runtime, settings.spool_bytes_max)
        self._wire = wire = McpWire(spool, runtime.now_micros)
        upstreams = Upstreams({"": f"{parts.scheme}://{parts.netloc}"})

        def handling() -> Proxy:
            return Proxy(upstreams, spool, runtime.now_micros, copying=partial(McpExchange.begun, wire))

        try:
            self._serving = LoopbackServer(handling, settings.host, settings.port)
        except BaseException:
            spool.close()
            raise
        self.url = self._serving.url + parts.path
        self._storing = settings.drain(root, spool, runtime, McpRuns)

    def close(self, closing_s: float) -> StoredExchanges:
        """As McpTee.close."""
        self._serving.close()
        self._wire.end(Broken("TeeEnded", "the tee was ended, and the server had not answered"))
        return self._storing.close(closing_s)


class McpExchange:
    """The copy of one HTTP request and its response (ProxiedExchange)."""

    @classmethod
    async def begun(cls, wire: McpWire, request: web.BaseRequest, url: str) -> McpExchange:
        """Read the request's body. Its requests are in the spool on return."""
        ask_for_body(request)
        body = bytearray()
        while len(body) <= LINE_BYTES_MAX and (data := await request.content.readany()):
            body += data
        return cls(wire, request, url, bytes(body))

    def __init__(self, wire: McpWire, request: web.BaseRequest, url: str, body: bytes) -> None:
        """Begin the copy.

        Args:
            wire: Stores the requests, and later their answers.
            request: The HTTP request of the client.
            url: The URL to which it is forwarded.
            body: The request's body; only its beginning if it is longer than LINE_BYTES_MAX bytes.
        """
        self.url = url
        self.agent_left: BaseException | None = None
        self._body = body
        self._wire = wire
        self._request = request
        session = request.headers.get(SESSION)
        self._may_resume = session is not None
        self._channel = f"post {next(_posts)}" if session is None else f"session {session}"
        self._pending: list[Pending] = []
        self._decoder: Decoder | None = None
        self._parser: EventMessages | WholeMessages | None = None
        self._status = 0
        for message in messages_in(body) if len(body) <= LINE_BYTES_MAX else ():
            if (pending := wire.asked(message, self._channel)) is not None:
                self._pending.append(pending)

    @property
    def has_body(self) -> bool:
        """As ProxiedExchange."""
        return bool(self._body)

    async def request_body(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        yield self._body
        try:
            while data := await self._request.content.readany():
                yield data
        except Exception as error:  # an error of the request, not of the server
            self.agent_left = error_of_request(error)
            raise

    def requested(self) -> None:
        """Nothing is to be done for a request without a body."""

    def head(self, found: aiohttp.ClientResponse) -> None:
        """Begin the response."""
        self._status = found.status
        self._parser = EventMessages() if found.headers.get("Content-Type", "").startswith(EVENTS) else WholeMessages()
        try:
            self._decoder = Decoder(found.headers.get("Content-Encoding"))
        except Undecodable:
            self._parser = None

    def add(self, data: bytes) -> None:
        """Take a piece of the response that is about to be passed on."""
        if self._parser is None or self._decoder is None:
            return
        try:
            for message in self._parser.feed(self._decoder.feed(data)):
                self._wire.answered(message, self._channel)
        except Undecodable:
            self._parser = None

    def end(self, end: str, error: Broken | None = None) -> None:
        """End the requests that have no answer, unless the session may resume their stream."""
        if self._may_resume and isinstance(self._parser, EventMessages):
            return
        if error is None:
            error = (
                Broken("ClientLeft", "the client hung up before the answer came") if end == "left"
                else Broken("HttpStatus", f"the server answered with HTTP status {self._status}") if self._status >= 400
                else Broken("AnswerLost", "the response ended without the answer")
            )  # fmt: skip
        self._wire.lost(self._pending, error)

    def unanswered(self, error: BaseException) -> web.Response:
        """Return the client's response if the server sent none."""
        is_late = isinstance(error, TimeoutError)
        message = f"the tee got no response from {urlsplit(self.url).hostname}: {type(error).__name__}: {error}"
        self.end("none", Broken(type(error).__name__, message))
        return error_response(504 if is_late else 502, message)


class WholeMessages:
    """A body that is one JSON text. It is complete once it parses."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._is_done = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the body's messages, once it is complete."""
        if self._is_done:
            return
        self._body += data
        found = [*messages_in(bytes(self._body))] if self._body[-_END_BYTES:].rstrip().endswith((b"}", b"]")) else []
        yield from found
        if found or len(self._body) > LINE_BYTES_MAX:
            self._is_done = True
            self._body.clear()


class EventMessages:
    """A stream of events, each of which holds one message."""

    def __init__(self) -> None:
        self._lines = MessageLines()
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages of each event that is complete now."""
        for line in self._lines.lines(data):
            text = line.removesuffix(b"\r")
            if not text:
                whole, self._data = bytes(self._data), bytearray()
                if len(whole) <= LINE_BYTES_MAX:
                    yield from messages_in(whole)
            elif text.startswith(b"data:") and len(self._data) <= LINE_BYTES_MAX:
                self._data += text.removeprefix(b"data:") + b"\n"


class McpReplayServer:
    """Answers a client over HTTP from a recorded session (CaptureHandler). Each POST is answered with JSON."""

    def __init__(self, session: RecordedSession) -> None:
        self._session = session

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if (refused := refusal(request)) is not None:
            return refused
        if request.method != "POST":
            return error_response(405, "a replay takes messages with POST; it opens no stream and keeps no session")
        answers = [*self._session.answers(await request.content.read())]
        if not answers:
            return web.Response(status=202)
        return web.json_response(answers[0] if len(answers) == 1 else answers)

    def malformed(self, why: str) -> web.Response:
        """As CaptureHandler."""
        return error_response(400, f"this is not HTTP/1.1: {why}")

    def ending(self) -> None:
        """As CaptureHandler: nothing is waited for."""

    async def close(self) -> None:
        """As CaptureHandler: it has no resources."""
