"""A test's own S3 store, and a proxy in front of it that refuses requests, gives no answer, or loses answers.

The store is moto's server. It keeps everything in memory, so when it is killed, its data is lost, as with a failed
disk. For a store that is temporarily unavailable, the proxy blocks all requests for a while.
"""

from __future__ import annotations

import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from refold.testing.processes import HOST, Supervised, free_ports
from refold_tests.http_server import running
from refold_tests.servers import Started

READY_S = 60.0
BUCKET = "contents"
KEY, SECRET = "AKIATESTTESTTESTTEST", "a-secret-key-that-nobody-may-see"


class S3:
    """A running store. `endpoint` is the address for clients."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.endpoint = f"http://{HOST}:{self.port}"
        self._folder = Path(tempfile.mkdtemp(prefix="refold-s3-"))
        self._process = Supervised("the S3 store", self._folder / "server.log", remove=self._folder)

    def start(self) -> None:
        """Start it, empty, at the same address; return when it serves."""
        self._process.launch([sys.executable, "-P", "-m", "moto.server", "-H", HOST, "-p", str(self.port)])
        self._process.await_ready(self._answers, READY_S)

    def kill(self) -> None:
        """Send SIGKILL; return when it is gone. All objects are lost."""
        self._process.kill()

    def make(self, bucket: str = BUCKET) -> None:
        """Create an empty bucket."""
        make_bucket(self.endpoint, bucket)

    def close(self) -> None:
        """End it."""
        self.kill()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


def make_bucket(endpoint: str, bucket: str) -> None:
    """Create an empty bucket at an endpoint."""
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"), timeout=60):
        pass


def start() -> Started:
    """Start the store of the test run, for `servers.own`."""
    store = S3()
    try:
        store.start()
    except BaseException:
        store.close()
        raise
    return Started(store, store.endpoint)


@contextmanager
def started_s3() -> Iterator[S3]:
    """Run a store with the bucket BUCKET until the end of the block."""
    store = S3()
    try:
        store.start()
        store.make()
        yield store
    finally:
        store.kill()


Verdict = Callable[[str, str], "int | None"]
"""From method and path: a status to answer with, 0 to close the connection, or None to pass the request on."""


class Door(ThreadingHTTPServer):
    """A proxy in front of a store. `refuse` decides about requests, `lose` about answers; `asked`: all requests."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__((HOST, 0), _Handler)
        self.store_port = int(endpoint.rpartition(":")[2])
        self.endpoint = f"http://{HOST}:{self.server_port}"
        self.refuse: Verdict = lambda method, path: None
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        self.asked: list[tuple[str, str]] = []

    def open(self) -> None:
        """Pass all requests on again."""
        self.refuse = lambda method, path: None
        self.lose = lambda method, path: False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: Door
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path))
        status = self.server.refuse(self.command, self.path)
        if status is not None:
            self._refuse(status)
            return
        store = HTTPConnection(HOST, self.server.store_port, timeout=30)
        try:
            store.request(self.command, self.path, body, dict(self.headers))
            answer = store.getresponse()
            data = answer.read()
        finally:
            store.close()
        if self.server.lose(self.command, self.path):
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int) -> None:
        if status == 0:
            self.close_connection = True
            return
        code = {403: "AccessDenied", 503: "SlowDown"}.get(status, "InternalError")
        body = f"<Error><Code>{code}</Code><Message>{KEY}</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def door(endpoint: str) -> Iterator[Door]:
    """Run a proxy in front of a store until the end of the block."""
    server = Door(endpoint)
    with running(server):
        yield server


def reach(patch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Make this process and its children use S3 at this endpoint, by the standard environment variables."""
    for name, value in environment(endpoint).items():
        patch.setenv(name, value)


def environment(endpoint: str) -> dict[str, str]:
    """Return the environment variables with the endpoint and the credentials."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
    }
