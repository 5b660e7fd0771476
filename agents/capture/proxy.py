"""The proxy: an agent's requests pass unchanged to the provider, and responses pass unchanged to the agent.

1. A request is accepted with any method and path. Its body is passed on as it arrives; a copy is collected until it is
   complete.
   Under a policy the body is read first, and a request that the policy denies is not forwarded (proxy_guard.py).
2. Then the copy is decoded (encodings.py), credentials are removed (credentials.py), and the exchange begins in the
   spool (spool.py). From there on the spool has everything that the agent gets.
3. Each piece of the response is written to the spool, then sent to the agent, with its own boundaries and encoding.
   Only the copy is decoded. Nothing waits for a log.
4. The exchange ends once: whole; broken, if the provider's connection broke, and the agent's then breaks at the same
   place; left, if the agent hung up, and the provider's connection is closed; or without a response, and the agent gets
   a 502 (a 504 after a timeout) that says why. An agent that hangs up after the last event of a stream (exchange.py),
   as some SDKs do, has received it whole.
5. If the spool cannot store an exchange it is forwarded all the same, and counted as missed.

It listens on loopback only, and admits the same requests as the guard of refold's pages (streams/web/guard.py): a web
page cannot reach it, neither through a DNS name nor from another site. It has no token, because Authorization is the
provider's.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from refold.agents.capture.credentials import known_secrets, url_without_credentials, without_credentials
from refold.agents.capture.encodings import Decoder, Undecodable
from refold.agents.capture.event_stream import CONTENT_TYPE as EVENT_STREAM
from refold.agents.capture.event_stream import Frames, frame_changed
from refold.agents.capture.exchange import (
    NO_RESPONSE,
    Broken,
    LastEvent,
    kept_headers,
    name_of,
    request_of,
    sent_headers,
)
from refold.agents.capture.proxied import Copying, ProxiedExchange, error_of_request
from refold.agents.capture.proxy_guard import CountedCopy, ProxyGuard, denied
from refold.agents.capture.spool import Spool, SpoolWriter
from refold.agents.capture.step_header import STEP_HEADER
from refold.agents.capture.websockets import HandshakeRefused, SocketCopy, connected, is_socket, passed, refusing
from refold.agents.capture.wire import (
    ask_for_body,
    encoded_url,
    error_response,
    forwarded_headers,
    reason_of,
    refusal,
    text_of,
)
from refold.agents.journal.record import Plain
from refold.agents.policy.guard import DENIED_STATUS
from refold.agents.supervise.gate import PauseGate
from refold.avro.errors import InputError

BODY_BYTES_MAX = 64 << 20
CONNECT_S = 30.0
_HEADER_BYTES_MAX = 1 << 16
_STOPPED = Broken("ProxyEnded", "the proxy was ended while the response came")


class Upstreams:
    """The upstream of each request: selected by the first part of its path, else the one without a name."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        """Define the upstreams.

        Args:
            urls: By the first part of the path, without slashes; "" for every other request.

        Raises:
            InputError: One of them is not an http or https URL.
        """
        for url in urls.values():
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise InputError(f"an upstream is http://HOST[:PORT][/PATH] or https://..., given {url}")
        self._urls = {name: url.rstrip("/") for name, url in urls.items()}

    def url(self, target: str) -> str | None:
        """Return the whole URL of a request's target; None if there is no upstream for it."""
        name, slash, rest = target[1:].partition("/")
        if name and name in self._urls:
            return f"{self._urls[name]}{slash}{rest}"
        base = self._urls.get("")
        if base is None:
            return None
        if base.endswith("/v1") and target.startswith("/v1/"):  # a base URL in the form that SDKs take
            base = base.removesuffix("/v1")
        return base + target


class Proxy:
    """Forwards requests, and keeps a copy in the spool. It must be created and used in one event loop."""

    def __init__(
        self, upstreams: Upstreams, spool: Spool, now_micros: Callable[[], int], *, silence_s: float | None = None,
        guard: ProxyGuard | None = None, gate: PauseGate | None = None, copying: Copying | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:  # fmt: skip
        """Create a proxy.

        Args:
            upstreams: Where requests are forwarded.
            spool: Stores the copies.
            now_micros: Returns the time, microseconds.
            silence_s: How long a provider may send nothing, seconds; None: as long as the agent waits.
            guard: Checks requests; None: every request is forwarded.
            gate: Requests wait here while the agent is paused.
            copying: Begins the copies; None: each is an exchange in the spool. No guard checks other copies.
            body_bytes_max: Of a larger body, a request's is not kept, and a response's only so far.
        """
        self._body_bytes_max = body_bytes_max
        self._copying = copying
        self._gate = gate
        self._guard = guard
        self._upstreams = upstreams
        self._spool = spool
        self._now_micros = now_micros
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
        self._session: aiohttp.ClientSession | None = None
        self._is_ending = False

    async def handle(self, request: web.BaseRequest, body: bytes | None = None) -> web.StreamResponse:
        """Forward one request.

        Args:
            request: The request.
            body: Its body, if it was already read.
        """
        if (refused := refusal(request)) is not None:
            return refused
        url = self._upstreams.url(request.raw_path)
        if url is None:
            return error_response(404, f"no upstream is known for {request.raw_path.partition('?')[0]}")
        if self._gate is not None:
            await self._gate.wait_async()
        began_at = self._now_micros()
        if self._guard is not None and body is None and not is_socket(request):
            ask_for_body(request)
            body = await request.content.read()
        if self._copying is not None:
            return await self._pass_exchange(request, await self._copying(request, url))
        exchange = _Exchange(self._spool, request, url, began_at, self._body_bytes_max, body)
        if self._guard is not None and (refused := exchange.checked(self._guard)) is not None:
            return refused
        if is_socket(request):
            return await self._socket(request, exchange)
        return await self._pass_exchange(request, exchange)

    async def _pass_exchange(self, request: web.BaseRequest, exchange: ProxiedExchange) -> web.StreamResponse:
        try:
            return await self._forward(request, exchange)
        except asyncio.CancelledError:
            exchange.end("broken" if self._is_ending else "left", _STOPPED if self._is_ending else None)
            raise
        except ConnectionError:
            exchange.end("left")
            raise
        finally:
            exchange.end("broken", Broken("Unknown", "the proxy failed"))

    async def _socket(self, request: web.BaseRequest, exchange: _Exchange) -> web.StreamResponse:
        """Forward a WebSocket. Only if the provider refuses it, the handshake itself is an exchange."""
        try:
            provider = await connected(self._open(), request, exchange.url)
        except HandshakeRefused as refused:
            exchange.head(refused.response)
            exchange.add(refused.body)
            exchange.end("whole")
            return refused.answer()
        except asyncio.CancelledError:
            exchange.end("left")
            raise
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return exchange.unanswered(error)
        copy = SocketCopy(self._spool, exchange.url, exchange.known, exchange.sent, provider, self._now_micros)
        return await passed(request, provider, copy, lambda: _STOPPED if self._is_ending else None)

    def malformed(self, why: str) -> web.Response:
        """As CaptureHandler: the request is not forwarded, and is counted as missed."""
        self._spool.miss(f"a request was not HTTP: {why}")
        return error_response(400, f"this is not HTTP/1.1: {why}")

    async def _forward(self, request: web.BaseRequest, exchange: ProxiedExchange) -> web.StreamResponse:
        if not exchange.has_body:
            ask_for_body(request)
        headers = forwarded_headers(request.raw_headers)
        body = exchange.request_body() if request.can_read_body or exchange.has_body else None
        if body is None:
            exchange.requested()
        try:
            found = await self._open().request(
                request.method, encoded_url(exchange.url), headers=headers, data=body, allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"), timeout=self._timeout,
            )  # fmt: skip
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if (agent := exchange.agent_left) is not None:
                raise agent from None
            return exchange.unanswered(error)
        try:
            return await self._return_response(request, exchange, found)
        finally:
            found.close()

    async def _return_response(
        self, request: web.BaseRequest, exchange: ProxiedExchange, found: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        exchange.head(found)
        response = web.StreamResponse(
            status=found.status, reason=reason_of(found), headers=forwarded_headers(found.raw_headers)
        )
        try:
            await response.prepare(request)
            while True:
                try:
                    data, _ = await found.content.readchunk()
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    exchange.end("broken", Broken(type(error).__name__, str(error)))
                    break
                if not data:
                    exchange.end("whole")
                    await response.write_eof()
                    return response
                exchange.add(data)
                await response.write(data)
        except ConnectionError:
            exchange.end("left")
            raise
        if request.transport is not None:  # the agent's response ends at the same place, and in the same way
            request.transport.close()
        return response

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A provider may close a connection that was idle for long, while a request is on its way.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=10)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=_HEADER_BYTES_MAX, max_field_size=_HEADER_BYTES_MAX, middlewares=(refusing,),
            )  # fmt: skip
        return self._session

    def ending(self) -> None:
        """Note that requests which are cut short from now on were cut short by the proxy."""
        self._is_ending = True

    async def close(self) -> None:
        """Close the connections to providers."""
        if self._session is not None:
            await self._session.close()


class _Exchange:
    """The copy of one request that is being forwarded, and of its response."""

    def __init__(
        self, spool: Spool, request: web.BaseRequest, url: str, began_at: int, body_bytes_max: int,
        body: bytes | None = None,
    ) -> None:  # fmt: skip
        """Begin the copy. began_at: when the request arrived, microseconds. body: its body, if it was already read."""
        self._body_bytes_max = body_bytes_max
        self._read = body
        self._spool = spool
        self._request = request
        self.url = url
        self.sent = [(text_of(name), text_of(value)) for name, value in request.raw_headers]
        self.known = known_secrets(self.sent, url)
        self._began_s, self._began_at = time.monotonic(), began_at
        self._body = bytearray()
        self._is_long = False
        self._spooling: SpoolWriter | None = None
        self._is_requested = self._has_ended = False
        self._copy: _Body | None = None
        self._asked: Plain = None
        self._counted: CountedCopy | None = None
        self.agent_left: BaseException | None = None

    def checked(self, guard: ProxyGuard) -> web.Response | None:
        """Return the response to a request that the policy denies; None if it may be forwarded."""
        name = name_of(self._request.method, self.url)
        if is_socket(self._request):
            message = "a policy checks requests, and the messages of a WebSocket are none: use HTTP"
            self.requested()
            self.end("none", Broken("WebSocketDenied", message))
            return error_response(403, message)
        self._body += self._read or b""
        request = self.requested()
        decision = guard.decide(name, request)
        if decision is None:
            self._counted = CountedCopy(guard, name, request, self._began_at, self.sent)
            return None
        headers, content = denied(decision, name, request)
        if self._spooling is not None:
            kept = kept_headers(headers.items())
            self._spooling.head(sent_headers(self.sent), "HTTP/1.1", DENIED_STATUS, kept, self._ms())
            self._spooling.add(content, self._ms())
        self.end("whole")
        return web.Response(status=DENIED_STATUS, body=content, headers=headers)

    @property
    def has_body(self) -> bool:
        """Whether a body was already read."""
        return bool(self._read)

    async def request_body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        try:
            while data := await self._piece():
                if len(self._body) + len(data) <= self._body_bytes_max:
                    self._body += data
                else:
                    self._is_long = True
                yield data
        except Exception as error:  # an error of the request, not of the provider
            self.agent_left = error_of_request(error)
            raise
        self.requested()

    async def _piece(self) -> bytes:
        if self._read is None:
            return await self._request.content.readany()
        piece, self._read = self._read, b""
        return piece

    def requested(self) -> Plain:
        """Store the request, because it is complete, or will not become so. Returns it as it is recorded."""
        if self._is_requested:
            return self._asked
        self._is_requested = True
        headers = self._request.headers
        content_type = headers.get("Content-Type", "")
        body = self._readable(headers.get("Content-Encoding"), content_type)
        url = url_without_credentials(self.url, self.known)
        request = self._asked = request_of(self._request.method, url, content_type, body)
        self._body.clear()
        by = headers.get(STEP_HEADER, "")
        self._spooling = self._spool.begin(name_of(self._request.method, url), request, self._began_at, by)
        return request

    def _readable(self, encoding: str | None, content_type: str) -> bytes:
        """Return the copy of the body. A body that cannot be decoded cannot be searched for credentials: only its kind
        is kept."""
        body = bytes(self._body)
        why = f"more than {self._body_bytes_max} bytes" if self._is_long else ""
        if body and not why:
            try:
                decoder = Decoder(encoding)
                read = decoder.feed(body)
                if decoder.finish():
                    return without_credentials(read, self.known, content_type)
                why = "cut off"
            except Undecodable as error:
                why = str(error)
        if not body:
            return b""
        return f"[{len(body)} bytes that are not kept: {why}; SHA-256 {hashlib.sha256(body).hexdigest()}]".encode()

    def head(self, found: aiohttp.ClientResponse) -> None:
        """Begin the response."""
        self.requested()
        headers = [(text_of(name), text_of(value)) for name, value in found.raw_headers]
        http = "HTTP/1.1" if found.version is None else f"HTTP/{found.version.major}.{found.version.minor}"
        self._copy = _Body(
            found.headers.get("Content-Encoding"),
            found.headers.get("Content-Type", ""),
            self.known,
            self._body_bytes_max,
        )
        if self._spooling is not None:
            self._spooling.head(sent_headers(self.sent), http, found.status, kept_headers(headers), self._ms())
        if self._counted is not None:
            self._counted.head(http, found.status, headers, self._ms())

    def add(self, data: bytes) -> None:
        """Add a piece of its body. The part that can be decoded is written to the spool."""
        if self._copy is not None:
            self._keep(self._copy.add(data))

    def _keep(self, piece: bytes) -> None:
        if self._spooling is not None:
            self._spooling.add(piece, self._ms())
        if self._counted is not None:
            self._counted.add(piece, self._ms())

    def end(self, end: str, error: Broken | None = None) -> None:
        """Record how the response ended; only the first call counts."""
        self.requested()
        if self._has_ended:
            return
        self._has_ended = True
        if end == "left" and self._copy is not None and self._copy.last_event.has_come:
            end = "whole"
        rest, encoding = (b"", None) if self._copy is None else self._copy.ended()
        self._keep(rest)
        if self._spooling is not None:
            self._spooling.end(
                end, self._ms(), error or (_AGENT_LEFT if self._copy is None else None), encoding=encoding
            )
        self._spooling = None
        if self._counted is not None:
            self._counted.end(self._ms())

    def unanswered(self, error: BaseException) -> web.Response:
        """Return the agent's response if the provider sent none."""
        is_late = isinstance(error, TimeoutError)
        message = f"{NO_RESPONSE}{urlsplit(self.url).hostname}: {type(error).__name__}: {error}"
        message = without_credentials(message.encode(), self.known).decode()
        self.end("none", Broken("TimeoutError" if is_late else type(error).__name__, message))
        return error_response(504 if is_late else 502, message)

    def _ms(self) -> float:
        return round((time.monotonic() - self._began_s) * 1000, 3)


_AGENT_LEFT = Broken("AgentLeft", "the agent hung up before a response came")


class _Body:
    """The copy of a response's body, decoded if possible, else as received.

    Attributes:
        last_event: Detects a stream's last event.
    """

    def __init__(self, encoding: str | None, content_type: str, known: tuple[bytes, ...], bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames = Frames() if content_type.startswith(EVENT_STREAM) else None
        self.last_event = LastEvent()
        self._encoding = encoding
        self._known = known
        self._decoder: Decoder | None = None
        self._problem = ""
        self._unread = bytearray()  # bytes received before anything could be decoded
        self._is_raw = False
        self._kept = 0
        try:
            self._decoder = Decoder(encoding)
        except Undecodable as error:
            self._problem, self._is_raw = str(error), True

    def add(self, data: bytes) -> bytes:
        """Return the part to store now."""
        if self._kept > self._bytes_max:
            self._problem = f"more than {self._bytes_max} bytes: the rest is not kept"
            return b""
        found = self._read(data)
        self.last_event.add(found)
        self._kept += len(found)
        return self._clean(found) if self._frames is None else self._clean_frames(self._frames.feed(found))

    def _clean(self, data: bytes) -> bytes:
        return without_credentials(data, self._known)

    def _clean_frames(self, frames: list[bytes]) -> bytes:
        return b"".join(frame_changed(each, self._clean) for each in frames)

    def _read(self, data: bytes) -> bytes:
        if self._decoder is None:
            return data if self._is_raw else b""
        if not self._decoder.produced:
            self._unread += data
        try:
            return self._decoder.feed(data)
        except Undecodable as error:
            self._problem = str(error)
            self._is_raw = not self._decoder.produced
            self._decoder = None
            return bytes(self._unread) if self._is_raw else b""

    def ended(self) -> tuple[bytes, Any]:
        """Return the rest to store, and the note about the encoding: None if everything was decoded."""
        rest = b""
        if self._decoder is not None and (self._unread or self._decoder.produced):
            try:
                if not self._decoder.finish():
                    self._problem = "it ends early"
            except Undecodable as error:
                self._problem, self._is_raw, rest = str(error), True, bytes(self._unread)
        if self._frames is not None:
            rest = self._clean_frames(self._frames.rest()) + rest
        if not self._problem:
            return rest, None
        return rest, {"name": self._encoding or "", "problem": self._problem, "raw": self._is_raw}
