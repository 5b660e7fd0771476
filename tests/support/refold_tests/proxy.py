"""An HTTP proxy on loopback in front of a Schema Registry. It accepts only one user, and gives forged answers on
request.

Apicurio's own basic authentication needs an identity server. So the proxy checks the password, as a gateway does in
production.
"""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from refold_tests.http_server import running

FORWARDED = ("Accept", "Content-Type")


class Gateway(ThreadingHTTPServer):
    """The proxy. `forged`: a path's prefix -> (status, body) instead of the registry's answer; `asked`: the paths
    passed on.
    """

    daemon_threads = True

    def __init__(self, registry: str, user_info: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        parts = urlsplit(registry)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.root = parts.path
        self.url = f"http://127.0.0.1:{self.server_port}{parts.path}"
        self.expected = None if user_info is None else "Basic " + base64.b64encode(user_info.encode()).decode()
        self.forged: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        if self.server.expected not in (None, self.headers.get("Authorization")):
            self._send(401, b'{"error_code": 401, "message": "Unauthorized"}')
            return
        path = self.path.removeprefix(self.server.root)
        forged = next((answer for begin, answer in self.server.forged.items() if path.startswith(begin)), None)
        if forged is not None:
            self._send(*forged)
            return
        self.server.asked.append(self.path)
        headers = {name: self.headers[name] for name in FORWARDED if name in self.headers}
        request = urllib.request.Request(self.server.origin + self.path, body, headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                self._send(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                self._send(error.code, error.read())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def gateway(registry: str, user_info: str | None = None) -> Iterator[Gateway]:
    """Run a gateway in front of the registry at this URL. It ends after the block."""
    server = Gateway(registry, user_info)
    with running(server):
        yield server
