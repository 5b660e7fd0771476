"""One connection of a web server: aiohttp's, with deadlines and without tracebacks.

A connection is open for one of three reasons, and each ends:
1. it waits for a request's head, or its content: until a deadline; the oldest such connection ends earlier where a new
   one needs its place;
2. its request is being answered: as long as the page takes;
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
    """What a caller may take of a server; times in seconds, sizes in bytes."""

    connections: int = 100
    head_s: float = 10.0
    content_s: float = 30.0
    answer_s: float = 60.0
    line_bytes: int = 8_190
    # Python reads no number of more than 4,300 digits.
    header_bytes: int = 4_096
    headers: int = 64
    content_bytes: int = 16 << 20
    contents_bytes: int = 128 << 20
    """All contents that are held at one moment."""


class Slot:
    """A place among the connections: taken when one is accepted, before any handshake."""

    def __init__(self, close: Callable[[], object]) -> None:
        self.close = close
        self.is_sending = False


class Slots:
    """The places of a server's connections.

    Where all are taken, the next connection waits in the kernel's queue for one of these to give its place: one that
    has ended, or that has waited for its caller for CHANCE_S; the oldest of these. So callers that drip hold nothing,
    and a flood of callers leaves each of them enough time to send a request.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: set[Slot] = set()
        self._waiting: dict[Slot, float] = {}

    def make_room(self, now_s: float) -> bool:
        """Whether a place is free, after closing a connection that may be closed for it."""
        if len(self._taken) < self._count:
            return True
        oldest, since_s = next(iter(self._waiting.items()), (None, now_s))
        if oldest is None or now_s - since_s < CHANCE_S:
            return False
        self.leave(oldest)
        oldest.close()
        return True

    def take(self, slot: Slot, now_s: float) -> None:
        """Take a place; there is one."""
        self._taken.add(slot)
        self._waiting[slot] = now_s

    def note(self, slot: Slot, now_s: float, *, waits: bool) -> None:
        """The connection waits for its caller from now on, or its caller for an answer."""
        self._waiting.pop(slot, None)
        if waits and slot in self._taken:
            self._waiting[slot] = now_s

    def close_idle(self) -> None:
        """Close what waits for a caller's request."""
        for slot in [each for each in self._waiting if not each.is_sending]:
            slot.close()

    def leave(self, slot: Slot) -> None:
        """The connection has ended."""
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
            # A small body of zeros is a large one of nothing: contents are taken as they come.
            auto_decompress=False,
        )  # fmt: skip
        self._slot, self._slots, self._bounds = slot, slots, bounds
        self._deadline: asyncio.TimerHandle | None = None
        self._answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a head."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._slot.close = transport.abort
        self._due(self._bounds.head_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place to others."""
        self._due(None)
        self._slots.leave(self._slot)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; what the parser itself fails on ends the connection."""
        try:
            super().data_received(data)
        except Exception as error:  # hostile input: the parser may raise anything
            _log.warning("a request could not be parsed (%s); the connection was closed", type(error).__name__)
            self._slot.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what a caller asked before it closed its side; over TLS that cannot be."""
        if self.ssl_context is not None or self._request_count == self._answered:
            return False
        self._close = True
        return True

    def note_content(self) -> None:
        """The head is there; the content is waited for, by whoever handles the request."""
        self._due(None)
        self._slots.note(self._slot, self._loop.time(), waits=True)

    def note_work(self) -> None:
        """The content is there."""
        self._due(None)
        self._slots.note(self._slot, self._loop.time(), waits=False)

    def note_following(self) -> None:
        """Events are sent for as long as the caller stays; it gives its place to one that has a request."""
        self._due(None)
        self._slots.note(self._slot, self._loop.time(), waits=True)

    async def finish_response(self, *given: Any) -> tuple[web.StreamResponse, bool]:
        """Send an answer, then wait for the next head."""
        self._due(self._bounds.answer_s)
        self._slot.is_sending = True
        self._slots.note(self._slot, self._loop.time(), waits=True)
        try:
            return await super().finish_response(*given)
        finally:
            self._answered += 1
            self._slot.is_sending = False
            self._due(self._bounds.head_s)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what is no request, or could not be answered: one line, and the connection ends."""
        if exc is not None and status >= 500:
            _log.error("a page failed: %s: %s", type(exc).__name__, exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response was started already")
        why = "this is no request of HTTP/1.1, or one of its parts is too long" if status < 500 else "the page failed"
        response = response_of(problem(status, why))
        response.force_close()
        return response

    def log_exception(self, *given: Any, **named: Any) -> None:
        """One line, without a traceback."""
        error = named.get("exc_info")
        _log.error("a connection failed: %s: %s", type(error).__name__, error)

    def _due(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        closes = self.transport is not None and seconds is not None
        self._deadline = self._loop.call_later(seconds, self._slot.close) if closes and seconds is not None else None


def response_of(answer: PageResponse, *, closes: bool = False) -> web.Response:
    """An answer as aiohttp sends it."""
    headers = {**HEADERS, "Content-Type": answer.media_type, **answer.headers}
    if answer.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if answer.status == 405:
        headers["Allow"] = "GET, POST"
    response = web.Response(status=answer.status, body=answer.content, headers=headers)
    if closes:
        response.force_close()
    return response
