"""A small server on loopback in its own thread: for a proxy, or for a recording."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from aiohttp import web

from refold.avro.errors import InputError
from refold.streams.web.guard import require_loopback

_HEADER_BYTES_MAX = 1 << 16
_STARTING_S = 60.0


class CaptureHandler(Protocol):
    """Answers requests."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""

    def malformed(self, why: str) -> web.Response:
        """Return the answer to a request that is not HTTP.

        Args:
            why: The reason, without any of the request's bytes, which may be credentials.
        """

    def ending(self) -> None:
        """Stop waiting for anything from now on."""

    async def close(self) -> None:
        """Release its resources."""


class _Connection(web.RequestHandler):
    """A client's connection. aiohttp would log a malformed request with a traceback and with its bytes."""

    def __init__(self, server: _Server, malformed: Callable[[str], web.Response], settings: dict[str, Any]) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **settings)
        self._malformed = malformed

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """As RequestHandler. A status of 500 is an error of refold's own, and is logged; a client that left is not an
        error."""
        if isinstance(exc, ConnectionError):
            raise exc
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        answer = self._malformed(type(exc).__name__)
        answer.force_close()
        return answer


class _Server(web.Server):
    def __init__(self, handling: CaptureHandler, settings: dict[str, Any]) -> None:
        super().__init__(handling.handle, handler_cancellation=True)
        self._malformed = handling.malformed
        self._settings = settings

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._malformed, self._settings)


class LoopbackServer:
    """A server. It is running when the constructor returns.

    Attributes:
        url: Its URL.
    """

    def __init__(self, handling: Callable[[], CaptureHandler], host: str = "127.0.0.1", port: int = 0) -> None:
        """Start the server.

        Args:
            handling: Creates what answers requests; called in the server's event loop.
            host: The address.
            port: The port; 0 for any free one.

        Raises:
            InputError: The address is not on loopback, or cannot be used.
        """
        require_loopback(host, "--listen")
        self._make = handling
        self._host, self._port = host, port
        self._loop = _event_loop()
        self._stop = asyncio.Event()
        self._is_up = threading.Event()
        self._problem: BaseException | None = None
        self.url = ""
        self._thread = threading.Thread(target=self._run, name="refold-proxy", daemon=True)
        self._thread.start()
        self._is_up.wait(_STARTING_S)
        if not self.url:
            number = getattr(self._problem, "errno", None)
            why = os.strerror(number) if number else self._problem
            raise InputError(
                f"cannot listen on {host}:{port}: {why}; "
                "name another address with --listen, or port 0 for any free port"
            )

    def close(self) -> None:
        """Accept no more requests, and cut off those in progress."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._is_up.set()
            self._loop.close()

    async def _serve(self) -> None:
        handling = self._make()
        server = _Server(handling, {
            "access_log": None, "auto_decompress": False, "max_line_size": _HEADER_BYTES_MAX,
            "max_field_size": _HEADER_BYTES_MAX, "max_headers": 512, "logger": logging.getLogger(__name__),
        })  # fmt: skip
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
        try:
            await runner.setup()
            site = web.TCPSite(runner, self._host, self._port)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        except OSError as error:
            self._problem = error
            await runner.cleanup()
            return
        self._is_up.set()
        await self._stop.wait()
        handling.ending()
        await _in_time(runner.cleanup)
        await handling.close()


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's if the extra `capture` is installed, because it takes less time for a piece."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _in_time(work: Callable[[], Awaitable[None]]) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.ensure_future(work()), 5)
