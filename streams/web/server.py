"""refold's web server, used for all its pages.

It runs in a thread with its own event loop, so pages answer whatever the process's other loops do. Pages may block:
they run in a bounded number of threads (server.py). A request passes these steps, in this order:

1. a connection slot (connection.py);
2. TLS, if there is a certificate;
3. its head, within bounds of time and size;
4. the guard (guard.py): target, Host, Origin, token;
5. the site's route: 404, 405, or 401 if the page is not open to clients without the token;
6. its content, within bounds of time and size, and never compressed;
7. a lane of the site, or 503 if its queue is full;
8. if the route is followed: the lane again every FOLLOW_S, and an event for each answer that has changed.

No answer and no log line contains a traceback. Errors are JSON, unless the site shows them to browsers as pages.

Requests are answered by a bounded number of threads, with a bounded queue in front of them.

They are daemon threads: a request that takes an hour does not delay the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from refold.streams.web.connection import HEADERS, Bounds, Connection, Slot, Slots, response_of
from refold.streams.web.guard import Head, RequestGuard, unknown_caller
from refold.streams.web.listening import Access, Listener
from refold.streams.web.page import JSON, PageResponse, ProblemPage, Request, Route, Site, problem

WAITING_MAX = 64


class Busy(Exception):
    """All threads are busy, and the queue is full."""


class Lane:
    """Runs work in at most `threads` threads; at most `waiting_max` further items wait for one."""

    def __init__(self, name: str, threads: int, waiting_max: int = WAITING_MAX) -> None:
        self._name = name
        self._threads = threads
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._started = self._pending = 0

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Queue work, and return its future.

        Raises:
            Busy: all threads are busy, and the queue is full.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._pending >= self._threads + self._waiting_max:
                raise Busy
            self._pending += 1
            if self._started < min(self._threads, self._pending):
                threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
                self._started += 1
        self._queue.put((future, work))
        return future

    def close(self) -> None:
        """End each thread after its current work."""
        with self._lock:
            started, self._started = self._started, self._threads
        for _ in range(started):
            self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as error:  # raised again by the code that awaits the result
                future.set_exception(error)
            finally:
                with self._lock:
                    self._pending -= 1
                del item, future, work


GRACE_S = 5.0
QUERY_FIELDS_MAX = 32
ACCEPT_PAUSE_S = 0.02
FOLLOW_S = 1.0
EVENTS = "text/event-stream; charset=utf-8"

_log = logging.getLogger(__name__)


class WebServer:
    """One site on one address; served from a thread of its own until closed."""

    def __init__(
        self, host: str, port: int, access: Access | None = None, bounds: Bounds | None = None,
        what: str = "the worker's pages",
    ) -> None:  # fmt: skip
        """Bind immediately; `serve` begins to answer.

        Args:
            host: The address to listen on.
            port: The port; 0 selects a free one.
            access: Token and certificate; None for a loopback address without either.
            bounds: Limits on requests, connections and time; None for the defaults.
            what: What is served, for errors.

        Raises:
            InputError: As Listener.
        """
        self._begin_on(Listener(host, port, access, what), bounds or Bounds())

    @classmethod
    def on(cls, listener: Listener, bounds: Bounds | None = None) -> WebServer:
        """Return a server on an address that is already bound. Clients that have connected since are answered too."""
        found = cls.__new__(cls)
        found._begin_on(listener, bounds or Bounds())
        return found

    def _begin_on(self, listener: Listener, bounds: Bounds) -> None:
        self._bounds = bounds
        self._tls, self._socket, self.url = listener.tls, listener.socket, listener.url
        self._guard = RequestGuard(listener.scheme, listener.names, listener.token)
        self._slots = Slots(self._bounds.connections)
        self._held_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._lanes: dict[str, Lane] = {}
        self._problem_page: ProblemPage | None = None

    def serve(self, site: Site, problem_page: ProblemPage | None = None) -> None:
        """Start answering requests.

        Args:
            site: The pages.
            problem_page: Shows an error in JSON to a browser; None: every error is JSON.
        """
        self._problem_page = problem_page
        self._lanes = {name: Lane(f"refold-web-{name}", threads) for name, threads in site.lanes.items()}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(site,), name="refold-web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting requests, let running ones finish for GRACE_S, then close all connections. Idempotent."""
        if self._thread is not None and self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._socket.close()
        for lane in self._lanes.values():
            lane.close()

    def _run(self, site: Site) -> None:
        assert self._loop is not None
        self._loop.set_exception_handler(_one_line)
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(site))

    async def _serve(self, site: Site) -> None:
        assert self._stop is not None
        manager = web.Server(partial(self._handle, site), handler_cancellation=True)
        accepting = asyncio.ensure_future(self._accept(manager))
        await self._stop.wait()
        accepting.cancel()
        self._socket.close()
        self._slots.close_idle()
        await manager.shutdown(GRACE_S)
        left = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _accept(self, manager: web.Server) -> None:
        loop = asyncio.get_running_loop()
        beginning: set[asyncio.Task[None]] = set()
        while True:
            while not self._slots.make_room(loop.time()):
                await asyncio.sleep(ACCEPT_PAUSE_S)
            try:
                connected, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                # Out of file descriptors, or the client left: the next attempt may succeed.
                _log.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            slot = Slot(connected.close)
            self._slots.take(slot, loop.time())
            task = loop.create_task(self._begin(manager, slot, connected))
            slot.close = task.cancel
            beginning.add(task)
            task.add_done_callback(beginning.discard)
            task.add_done_callback(partial(self._note_begun, slot, connected))

    async def _begin(self, manager: web.Server, slot: Slot, connected: socket.socket) -> None:
        """Do the handshake, then start the connection."""
        loop = asyncio.get_running_loop()
        timeout_s = None if self._tls is None else self._bounds.head_s
        try:
            await loop.connect_accepted_socket(
                partial(Connection, manager, slot, self._slots, self._bounds), connected, ssl=self._tls,
                ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=timeout_s,
            )  # fmt: skip
        except (OSError, ValueError, asyncio.CancelledError):  # the client does not use TLS, left, or is too slow
            self._slots.leave(slot)
            connected.close()

    def _note_begun(self, slot: Slot, connected: socket.socket, task: asyncio.Task[None]) -> None:
        """Free the slot if the task was cancelled before it ran."""
        if task.cancelled():
            self._slots.leave(slot)
            connected.close()

    async def _handle(self, site: Site, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.note_content()
        found = self._admitted(site, request)
        if isinstance(found, PageResponse):
            return response_of(self._readable(request, found), closes=request.can_read_body)
        asked, route = found
        held = bytearray()
        try:
            refused = await self._read(request, held)
            if refused is not None:
                return response_of(self._readable(request, refused), closes=True)
            connection.note_work()
            asked = asked._replace(content=bytes(held))
            answer = await self._answer(site, asked, route.lane)
            if not route.is_followed or answer.status != 200:
                return response_of(self._readable(request, answer))
            connection.note_following()
            return await self._follow(site, request, asked, route.lane, answer)
        finally:
            self._held_bytes -= len(held)

    def _readable(self, request: web.BaseRequest, answer: PageResponse) -> PageResponse:
        """Return an answer. An error in JSON is shown by the site, if it shows errors."""
        if self._problem_page is None or answer.status < 400 or answer.media_type != JSON:
            return answer
        return self._problem_page(request._message.path, request.headers, answer)

    async def _answer(self, site: Site, asked: Request, lane: str) -> PageResponse:
        """Run step 7."""
        try:
            working = self._lanes[lane].submit(partial(_answered, site, asked))
        except Busy:
            return problem(503, "too many requests wait for an answer; ask again")
        return await asyncio.wrap_future(working)

    async def _follow(
        self, site: Site, request: web.BaseRequest, asked: Request, lane: str, answer: PageResponse
    ) -> web.StreamResponse:
        """Run step 8, until the client leaves, reads nothing for the time an answer may take, or the server closes."""
        assert self._stop is not None
        response = web.StreamResponse(headers={**HEADERS, **answer.headers, "Content-Type": EVENTS})
        response.force_close()
        await response.prepare(request)
        sent = b""
        while not self._stop.is_set():
            is_news = answer.status == 200 and answer.content != sent
            async with asyncio.timeout(self._bounds.answer_s):
                # If nothing has changed, a comment is sent, to detect that a client has left.
                await response.write(b"data: " + answer.content.strip() + b"\n\n" if is_news else b":\n\n")
            sent = answer.content if is_news else sent
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), FOLLOW_S)
            answer = await self._answer(site, asked, lane)
        return response

    def _admitted(self, site: Site, request: web.BaseRequest) -> PageResponse | tuple[Request, Route]:
        """Run steps 4 and 5."""
        headers = request.headers
        local = request.transport.get_extra_info("sockname") if request.transport is not None else None
        head = Head(
            request._message.path, headers.getall("Host", []), headers.getall("Origin", []),
            headers.getall("Authorization", []), str(local[0]) if local else "",
        )  # fmt: skip
        refused = self._guard.refusal(head)
        if refused is not None:
            return refused
        path, _, query = head.target.partition("?")
        try:
            given = dict(parse_qsl(query, max_num_fields=QUERY_FIELDS_MAX))
        except ValueError:
            return problem(400, f"a query has at most {QUERY_FIELDS_MAX} fields")
        asked = Request(request.method, path, given, headers, self._guard.is_known(head))
        route = site.route(asked)
        # A client that may not see a page must not learn which pages exist.
        if not asked.is_known and (isinstance(route, PageResponse) or not route.is_open):
            return unknown_caller()
        return route if isinstance(route, PageResponse) else (asked, route)

    async def _read(self, request: web.BaseRequest, held: bytearray) -> PageResponse | None:
        """Run step 6: read the content into `held`; returns an answer if it is refused."""
        bounds = self._bounds
        if not request.can_read_body:
            return None
        length = request.content_length
        if length is None:
            return problem(411, "say how many bytes you send (Content-Length)")
        if "Content-Encoding" in request.headers:
            return problem(415, "send the content as it is, not compressed")
        if length > bounds.content_bytes:
            return problem(413, f"post at most {bounds.content_bytes} bytes")
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(bounds.content_s):
                async for part in request.content.iter_any():
                    if self._held_bytes + len(part) > bounds.contents_bytes:
                        return problem(503, "too much is being posted at once; ask again")
                    held += part
                    self._held_bytes += len(part)
        except TimeoutError:
            return problem(408, f"the content did not come within {bounds.content_s:g} s")
        return None


def _answered(site: Site, asked: Request) -> PageResponse:
    """Return the site's answer. An exception is a defect: one log line says where it occurred, the answer does not."""
    try:
        return site.answer(asked)
    except Exception as error:  # a defect: the client gets an answer, and the log names the location
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
        _log.error("the page %.100s failed: %s: %.300s (%s)", asked.path, type(error).__name__, error, where)
        return problem(500, "the page failed, which is a defect; the server's log says where")


def _one_line(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    _log.warning("a connection failed: %s %s", context.get("message"), "" if error is None else type(error).__name__)
