"""A provider whose stream continues as long as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from refold_tests.http_server import serving

PIECE = b"data: " + b"x" * ((1 << 16) - 8) + b"\n\n"


@contextmanager
def long_stream() -> Iterator[tuple[str, threading.Semaphore]]:
    """Yield the URL, and a semaphore each release of which lets it send another piece of 64 KiB."""
    more = threading.Semaphore(0)
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                while more.acquire() and not ended.is_set():
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with serving(Handler) as url:
        try:
            yield url, more
        finally:
            ended.set()
            more.release(10)
