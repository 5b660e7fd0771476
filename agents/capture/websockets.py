"""WebSockets by the proxy: messages pass unchanged in both directions, and their copy becomes exchanges.

1. The provider is asked first, with the agent's headers and subprotocols. If it refuses, the agent gets its response.
   Neither side agrees on a compression.
2. Messages, pings, pongs and the close pass as they come. A message is in the spool before it is passed on.
3. A message of the agent begins an exchange, as its request. The provider's messages are its answer, each one a chunk
   with its time.
4. An exchange ends whole with an event that ends a response (ENDS), with the agent's next message, or where the
   connection is closed in order. It ends as `left` if the agent closes the connection, and as `broken` if the provider
   does, with another code, or without one.
5. OpenAI's connections have lanes: an event with a `stream_id` belongs to the exchange whose request has it too.
6. A message of the provider in a lane without an exchange begins one with an empty request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from refold.agents.capture.credentials import url_without_credentials, without_credentials
from refold.agents.capture.exchange import (
    WEBSOCKET,
    WEBSOCKET_HTTP,
    WEBSOCKET_TYPE,
    Broken,
    kept_headers,
    name_of,
    request_of,
    sent_headers,
)
from refold.agents.capture.spool import Spool, SpoolWriter
from refold.agents.capture.wire import encoded_url, forwarded_headers, text_of

ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
MESSAGES_BYTES_MAX = 64 << 20
CLOSED = "WebSocketClosed"
_IN_ORDER = (1000, 1001)
_HANDSHAKE = "sec-websocket-"
_PROTOCOLS = "Sec-WebSocket-Protocol"
# aiohttp would warn with the subprotocols that an agent offers. One of them may be its key.
logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
_LOST = Broken("ConnectionLost", "the provider's connection ended without a close")


class HandshakeRefused(aiohttp.ClientError):
    """The provider answered the handshake with a response.

    Attributes:
        body: The response's body, as received.
    """

    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        super().__init__(f"status {response.status}")
        self.response = response
        self.body = body

    def answer(self) -> web.Response:
        """Return the same response, for the agent."""
        headers = forwarded_headers(self.response.raw_headers)
        headers.popall("Content-Length", None)
        return web.Response(status=self.response.status, headers=headers, body=self.body)


async def refusing(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Client middleware that keeps the body of a refused handshake, which aiohttp itself discards."""
    response = await handler(request)
    if request.headers.get("Upgrade", "").lower() == WEBSOCKET_TYPE and response.status != 101:
        raise HandshakeRefused(response, await response.read())
    return response


def is_socket(request: web.BaseRequest) -> bool:
    """Return whether a request asks for a WebSocket."""
    return request.headers.get("Upgrade", "").lower() == WEBSOCKET_TYPE


async def connected(
    session: aiohttp.ClientSession, request: web.BaseRequest, url: str
) -> aiohttp.ClientWebSocketResponse:
    """Open the connection to the provider.

    Args:
        session: The client.
        request: The agent's request.
        url: The provider's URL.

    Raises:
        HandshakeRefused: The provider answered with a response.
        aiohttp.ClientError: It cannot be reached.
    """
    headers = forwarded_headers(request.raw_headers)
    for name in filter(_is_of_handshake, list(headers)):
        headers.popall(name, None)
    offered = [each.strip() for each in request.headers.get(_PROTOCOLS, "").split(",") if each.strip()]
    return await session.ws_connect(
        encoded_url(url), headers=headers, protocols=offered, autoclose=False, autoping=False, max_msg_size=0
    )


def _is_of_handshake(name: str) -> bool:
    return name.lower().startswith(_HANDSHAKE)


class _OpenExchange(NamedTuple):
    """An exchange in progress.

    Attributes:
        began_s: When it began, by the monotonic clock, in seconds.
    """

    spooling: SpoolWriter | None
    began_s: float


class _SocketEvent(msgspec.Struct):
    type: str = ""
    stream_id: str = ""


class SocketCopy:
    """The copy of one connection's messages, as exchanges in the spool."""

    def __init__(
        self, spool: Spool, url: str, known: tuple[bytes, ...], sent: Sequence[tuple[str, str]],
        provider: aiohttp.ClientWebSocketResponse, now_micros: Callable[[], int],
    ) -> None:  # fmt: skip
        """Begin the copy of a connection.

        Args:
            spool: Stores the exchanges.
            url: The provider's URL.
            known: The secrets in the request.
            sent: The request's headers.
            provider: The connection to the provider.
            now_micros: Returns the time, microseconds.
        """
        self._spool = spool
        self._known = known
        self._now_micros = now_micros
        self._url = url_without_credentials(url, known)
        self._sent = sent_headers(sent)
        headers = [(text_of(name), text_of(value)) for name, value in _response_of(provider).raw_headers]
        self._headers = [each for each in kept_headers(headers) if not _is_of_handshake(each[0])]
        self._open: dict[str, _OpenExchange] = {}
        self._kept = 0

    def asked(self, data: bytes, *, is_binary: bool) -> None:
        """Add a message of the agent."""
        self._begin(_event_of(data, is_binary=is_binary).stream_id, data)

    def answered(self, data: bytes, *, is_binary: bool) -> None:
        """Add a message of the provider."""
        event = _event_of(data, is_binary=is_binary)
        if event.stream_id not in self._open:
            self._begin(event.stream_id, b"")
        spooling, began_s = self._open[event.stream_id]
        self._kept += len(data)
        if spooling is not None and self._kept <= MESSAGES_BYTES_MAX:
            spooling.message(without_credentials(data, self._known), _ms(began_s), is_binary=is_binary)
        if event.type in ENDS:
            self._end(event.stream_id, "whole")

    def closed(self, end: str, error: Broken | None = None) -> None:
        """Note how the connection ended; only the first call counts."""
        for lane in list(self._open):
            self._end(lane, end, error)

    def _begin(self, lane: str, data: bytes) -> None:
        self._end(lane, "whole")
        self._kept = 0 if not self._open else self._kept
        request = request_of(WEBSOCKET, self._url, WEBSOCKET_TYPE, without_credentials(data, self._known))
        spooling = self._spool.begin(name_of(WEBSOCKET, self._url), request, self._now_micros())
        if spooling is not None:
            spooling.head(self._sent, WEBSOCKET_HTTP, 101, self._headers, 0)
        self._open[lane] = _OpenExchange(spooling, time.monotonic())

    def _end(self, lane: str, end: str, error: Broken | None = None) -> None:
        spooling, began_s = self._open.pop(lane, _OpenExchange(None, 0))
        if spooling is not None:
            note = f"more than {MESSAGES_BYTES_MAX} bytes: the rest is not kept"
            is_long = self._kept > MESSAGES_BYTES_MAX
            encoding = {"name": "", "problem": note, "raw": False} if is_long else None
            spooling.end(end, _ms(began_s), error, encoding=encoding)


async def passed(
    request: web.BaseRequest, provider: aiohttp.ClientWebSocketResponse, copy: SocketCopy,
    stopped: Callable[[], Broken | None],
) -> web.WebSocketResponse:  # fmt: skip
    """Pass messages on until one side ends the connection, and end the other in the same way.

    Args:
        request: The agent's request.
        provider: The connection to the provider.
        copy: Stores the messages.
        stopped: Returns how it ended, if this process ends it.

    Returns:
        The connection to the agent.
    """
    protocols = (provider.protocol,) if provider.protocol else ()
    agent = web.WebSocketResponse(autoclose=False, autoping=False, compress=False, max_msg_size=0, protocols=protocols)
    for name, value in forwarded_headers(_response_of(provider).raw_headers).items():
        if not _is_of_handshake(name):
            agent.headers.add(name, value)
    tasks: list[asyncio.Task[aiohttp.WSMessage]] = []
    try:
        await agent.prepare(request)
        tasks = [asyncio.ensure_future(_pump(agent, provider, copy.asked)),
                 asyncio.ensure_future(_pump(provider, agent, copy.answered))]  # fmt: skip
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        by_agent, by_provider = (_end_message(each) for each in tasks)
        await _stop_tasks(tasks)
        if by_provider is not None and by_provider.type is WSMsgType.CLOSE:
            in_order = by_provider.data in _IN_ORDER
            broken = Broken(CLOSED, f"{by_provider.data}: {by_provider.extra or ''}")
            copy.closed("whole" if in_order else "broken", None if in_order else broken)
            await agent.close(code=by_provider.data or 1000, message=(by_provider.extra or "").encode())
            await provider.close()
        elif by_agent is not None and by_agent.type is WSMsgType.CLOSE:
            copy.closed("left")
            await provider.close(code=by_agent.data or 1000, message=(by_agent.extra or "").encode())
            await agent.close(code=by_agent.data or 1000)
        else:  # one of the connections is gone
            copy.closed("broken" if provider.closed else "left", _LOST if provider.closed else None)
    finally:
        ended = stopped()
        copy.closed("left" if ended is None else "broken", ended)
        await _stop_tasks(tasks)
        _response_of(provider).close()
        if request.transport is not None:
            request.transport.close()
    return agent


async def _pump(
    source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    target: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    keep: Callable[..., None],
) -> aiohttp.WSMessage:
    """Pass on one direction; return the message that ended it."""
    while True:
        message = await source.receive()
        if message.type is WSMsgType.TEXT:
            keep(message.data.encode(), is_binary=False)
            await target.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            keep(bytes(message.data), is_binary=True)
            await target.send_bytes(message.data)
        elif message.type is WSMsgType.PING:
            await target.ping(bytes(message.data))
        elif message.type is WSMsgType.PONG:
            await target.pong(bytes(message.data))
        else:
            return message


def _end_message(task: asyncio.Task[aiohttp.WSMessage]) -> aiohttp.WSMessage | None:
    """Return the message that ended a direction; None if it continues, or ended with an error of its connection."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()


async def _stop_tasks(tasks: Sequence[asyncio.Task[aiohttp.WSMessage]]) -> None:
    for each in tasks:
        each.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


def _response_of(provider: aiohttp.ClientWebSocketResponse) -> aiohttp.ClientResponse:
    """Return the response of the handshake. aiohttp has no other access to its headers."""
    return provider._response


def _event_of(data: bytes, *, is_binary: bool) -> _SocketEvent:
    if is_binary:
        return _SocketEvent()
    try:
        return msgspec.json.decode(data, type=_SocketEvent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _SocketEvent()


def close_of(message: str) -> tuple[int, bytes]:
    """Return the code and the reason of a connection's close, from the error that an exchange records."""
    code, _, reason = message.partition(": ")
    return (int(code) if code.isdigit() else 1011), reason.encode()


def _ms(began_s: float) -> float:
    return round((time.monotonic() - began_s) * 1000, 3)
