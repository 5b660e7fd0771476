"""HTTP servers for tests, each in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer


@contextmanager
def running(server: HTTPServer) -> Iterator[None]:
    """Serve until the end of the block, then close the server."""
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on loopback with this handler until the end of the block; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}"
