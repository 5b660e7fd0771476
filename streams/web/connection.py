"""One connection of a web server: aiohttp's, with deadlines and without tracebacks.

A connection is open for one of three reasons, and each has an end:
1. it waits for a request's head, or its content: until a deadline; the oldest such connection is closed earlier if a
   new one needs its slot;
2. its request is being answered: for as long as the page takes;
3. its answer is being sent: until a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from refold.streams.web.page import PageResponse, problem

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

HEADERS = {"Server": "refold", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
           "Cross-Origin-Resource-Policy": "same-origin"}  # fmt: skip


CHANCE_S = 0.5


class Bounds(NamedTuple):
    """Limits on what clients may use of a server; times in seconds, sizes in bytes."""

    connections: int = 100
    head_s: float = 10.0
    content_s: float = 30.0
    answer_s: float = 60.0
    line_bytes: int = 8_190
    # Below 4,300, the most digits of a number that Python parses.
    header_bytes: int = 4_096
    headers: int = 64
    content_bytes: int = 16 << 20
    contents_bytes: int = 128 << 20
    """The total size of all request bodies in memory at one time."""


class Slot:
    """One of a server's connection slots: taken when a connection is accepted, before any handshake."""

    def __init__(self, close: Callable[[], object]) -> None:
        self.close = close
        self.is_sending = False


class Slots:
    """A server's connection slots.

    If all are taken, the next connection waits in the kernel's queue until a slot is free: until a connection ends, or
    has waited for its client for CHANCE_S; then the one that has waited longest is closed. So slow clients hold nothing
    for long, and even in a flood of clients each has enough time to send a request.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: set[Slot] = set()
        self._waiting: dict[Slot, float] = {}

    def make_room(self, now_s: float) -> bool:
        """Return whether a slot is free; closes a connection for it if one may be closed."""
        if len(self._taken) < self._count:
            return True
        oldest, since_s = next(iter(self._waiting.items()), (None, now_s))
        if oldest is None or now_s - since_s < CHANCE_S:
            return False
        self.leave(oldest)
        oldest.close()
        return True

    def take(self, slot: Slot, now_s: float) -> None:
        """Take a slot; one must be free."""
        self._taken.add(slot)
        self._waiting[slot] = now_s

    def note(self, slot: Slot, now_s: float, *, waits: bool) -> None:
        """Record who the connection waits for from now on.

        Args:
            slot: The connection's slot.
            now_s: A monotonic clock, in seconds.
            waits: True if it waits for its client; False if its client waits for an answer.
        """
        self._waiting.pop(slot, None)
        if waits and slot in self._taken:
            self._waiting[slot] = now_s

    def close_idle(self) -> None:
        """Close the connections that wait for a client's request."""
        for slot in [each for each in self._waiting if not each.is_sending]:
            slot.close()

    def leave(self, slot: Slot) -> None:
        """Free the slot of a connection that has ended."""
        self._taken.discard(slot)
        self._waiting.pop(slot, None)


class Connection(RequestHandler):
    """A connection with deadlines."""

    def __init__(self, manager: web.Server, slot: Slot, slots: Slots, bounds: Bounds) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            manager, loop=loop, keepalive_timeout=bounds.head_s, lingering_time=1.0,
            access_log=None,  # type: ignore[arg-type]
            max_line_size=bounds.line_bytes, max_field_size=bounds.header_bytes, max_headers=bounds.headers,
            # A small compressed body can expand to a huge one, so bodies are never decompressed.
            auto_decompress=False,
        )  # fmt: skip
        self._slot, self._slots, self._bounds = slot, slots, bounds
        self._deadline: asyncio.TimerHandle | None = None
        self._answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request's head."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._slot.close = transport.abort
        self._set_deadline(self._bounds.head_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the slot."""
        self._set_deadline(None)
        self._slots.leave(self._slot)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; an error in the parser itself closes the connection."""
        try:
            super().data_received(data)
        except Exception as error:  # hostile input: the parser may raise anything
            _log.warning("a request could not be parsed (%s); the connection was closed", type(error).__name__)
            self._slot.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open to answer a request sent before the client closed its side; impossible over TLS."""
        if self.ssl_context is not None or self._request_count == self._answered:
            return False
        self._close = True
        return True

    def note_content(self) -> None:
        """Record that the head has arrived; the request's handler waits for the content, with its own deadline."""
        self._set_deadline(None)
        self._slots.note(self._slot, self._loop.time(), waits=True)

    def note_work(self) -> None:
        """Record that the content has arrived."""
        self._set_deadline(None)
        self._slots.note(self._slot, self._loop.time(), waits=False)

    def note_following(self) -> None:
        """Record that events are sent until the client leaves; the connection may be closed for one with a request."""
        self._set_deadline(None)
        self._slots.note(self._slot, self._loop.time(), waits=True)

    async def finish_response(self, *given: Any) -> tuple[web.StreamResponse, bool]:
        """Send an answer, then wait for the next head."""
        self._set_deadline(self._bounds.answer_s)
        self._slot.is_sending = True
        self._slots.note(self._slot, self._loop.time(), waits=True)
        try:
            return await super().finish_response(*given)
        finally:
            self._answered += 1
            self._slot.is_sending = False
            self._set_deadline(self._bounds.head_s)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer an invalid request, or one that could not be answered, with one line, and close the connection.

        Raises:
            ConnectionError: A response was started already.
        """
        if exc is not None and status >= 500:
            _log.error("a page failed: %s: %s", type(exc).__name__, exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response was started already")
        why = "this is no request of HTTP/1.1, or one of its parts is too long" if status < 500 else "the page failed"
        response = response_of(problem(status, why))
        response.force_close()
        return response

    def log_exception(self, *given: Any, **named: Any) -> None:
        """Log one line, without a traceback."""
        error = named.get("exc_info")
        _log.error("a connection failed: %s: %s", type(error).__name__, error)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        closes = self.transport is not None and seconds is not None
        self._deadline = self._loop.call_later(seconds, self._slot.close) if closes and seconds is not None else None


def response_of(answer: PageResponse, *, closes: bool = False) -> web.Response:
    """Convert an answer to aiohttp's response."""
    headers = {**HEADERS, "Content-Type": answer.media_type, **answer.headers}
    if answer.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if answer.status == 405:
        headers["Allow"] = "GET, POST"
    response = web.Response(status=answer.status, body=answer.content, headers=headers)
    if closes:
        response.force_close()
    return response
