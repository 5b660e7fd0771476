"""A provider that answers each request with given bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, BinaryIO, NamedTuple

from refold_tests.http_server import serving


class Raw(NamedTuple):
    """A response. chunks: the parts of its body, each sent as one HTTP chunk."""

    headers: Sequence[tuple[str, str]]
    chunks: Sequence[bytes]
    status: int = 200


class RawProvider:
    """One provider. answers: for the next requests, in order; otherwise: for a request that finds no answer left;
    requests: method, path, headers and body of each; before_end: called before a body ends.
    """

    def __init__(self) -> None:
        self.answers: list[Raw] = []
        self.otherwise: Raw | None = None
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.before_end: Callable[[], object] = lambda: None
        self.url = ""


@contextmanager
def raw_provider() -> Iterator[RawProvider]:
    """Run a provider on loopback until the end of the block."""
    provider = RawProvider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = b""
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            provider.requests.append((self.command, self.path, dict(self.headers.items()), body))
            given = provider.otherwise if not provider.answers and provider.otherwise else provider.answers.pop(0)
            self.send_response(given.status)
            for name, value in given.headers:
                self.send_header(name, value)
            if given.status == 204:
                self.end_headers()
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if self.command == "HEAD":
                return
            for each in given.chunks:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(each), each))
                self.wfile.flush()
            provider.before_end()
            self.wfile.write(b"0\r\n\r\n")

        def do_GET(self) -> None:
            self.do_POST()

        def do_HEAD(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with serving(Handler) as provider.url:
        yield provider


@contextmanager
def answering_with(answer: Callable[[str], bytes]) -> Iterator[str]:
    """Run a provider that reads a request, sends the bytes for its path, and closes the connection; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, connection.makefile("rb") as reading, suppress(OSError):
                    if path := _path_read(reading):
                        connection.sendall(answer(path))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _path_read(reading: BinaryIO) -> str:
    """Read a whole request; return its path, empty if there was none."""
    length, is_chunked = 0, False
    line = first = reading.readline()
    while line.strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
        is_chunked = is_chunked or name.lower() == b"transfer-encoding"
        line = reading.readline()
    if is_chunked:
        while size := int(reading.readline() or b"0", 16):
            reading.read(size + 2)
        reading.readline()
    else:
        reading.read(length)
    return first.split()[1].decode() if first else ""
