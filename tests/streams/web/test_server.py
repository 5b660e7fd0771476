"""The web server with clients that are slow, lie, flood and leave; on real sockets."""

from __future__ import annotations

import json
import logging
import random
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from refold.avro.errors import InputError
from refold.streams.web.client import CA_ENVIRONMENT, PagesClient, pages_client_of
from refold.streams.web.connection import Bounds
from refold.streams.web.guard import TOKEN_ENVIRONMENT, Token
from refold.streams.web.listening import Access
from refold.streams.web.page import PageResponse, Request, Route, json_answer, problem
from refold.streams.web.server import WebServer
from refold.testing.kafka.settings import certificates
from refold_tests.raw_http import connect, until_closed
from refold_tests.waiting import await_true

TOKEN = "0123456789abcdef-secret"
Serve = Callable[..., WebServer]


class Site:
    """/open is for all, /held waits until it is released, /fails has a defect, anything else echoes the request."""

    lanes: Mapping[str, int] = {"own": 2, "slow": 1}

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.held = threading.Semaphore(0)

    def route(self, request: Request) -> Route | PageResponse:
        if request.path == "/none":
            return problem(404, "no such page")
        return Route("slow" if request.path == "/held" else "own", is_open=request.path == "/open")

    def answer(self, request: Request) -> PageResponse:
        if request.path == "/held":
            self.held.release()
            self.let_go.wait(60)
        if request.path == "/fails":
            raise ZeroDivisionError("a defect")
        said = {"path": request.path, "query": request.query, "bytes": len(request.content), "known": request.is_known}
        return json_answer(200, said)


@pytest.fixture
def site() -> Iterator[Site]:
    """The served site; waiting requests continue after the test."""
    made = Site()
    yield made
    made.let_go.set()


@pytest.fixture
def serve(site: Site) -> Iterator[Serve]:
    """Starts a server of the site."""
    with ExitStack() as ending:

        def start(access: Access | None = None, **bounds: Any) -> WebServer:
            server = WebServer("127.0.0.1", 0, access, Bounds()._replace(**bounds))
            ending.callback(server.close)
            server.serve(site)
            return server

        yield start


def sent(server: WebServer, content: bytes) -> bytes:
    """Send bytes, and return everything that is answered until the server closes."""
    with connect(server) as connection:
        connection.sendall(content)
        return until_closed(connection)


def status_of(
    server: WebServer, target: str = "/x", *headers: str, host: str = "127.0.0.1", method: str = "GET"
) -> int:
    """The status of an answer."""
    lines = [f"{method} {target} HTTP/1.1", *([f"Host: {host}"] if host else []), "Connection: close", *headers]
    return int(sent(server, ("\r\n".join(lines) + "\r\n\r\n").encode()).split()[1])


def parse_answer(answer: bytes) -> tuple[int, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


# Access


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("127.0.0.1:80", 200), ("localhost:6066", 200), ("LocalHost.", 200), ("[::1]:1", 200),
        ("worker-0.workers:6066", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("192.0.2.1", 403),
        ("localhost.evil.example:6066", 403), ("a b", 400), ("", 400), ("127.0.0.1@evil.example", 400),
        ("[::1", 400), ("127.0.0.1:6066:6066", 400),
    ],
)  # fmt: skip
def test_unknown_host_is_refused(serve: Serve, host: str, status: int) -> None:
    """A site whose own name resolves to loopback (DNS rebinding) sends that name."""
    assert status_of(serve(Access(allowed_hosts=["Worker-0.workers"])), host=host) == status


def test_duplicate_or_missing_host_is_refused(serve: Serve) -> None:
    server = serve()
    assert status_of(server, "/x", "Host: localhost") == 400
    assert status_of(server, host="") == 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://127.0.0.1:6066", 200), ("https://127.0.0.1:6066", 403), ("http://127.0.0.1", 403), ("null", 403),
     ("http://evil.example", 403), ("", 403), ("http://127.0.0.1:6066.evil.example", 403)],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_other_origins_are_refused(serve: Serve, origin: str, method: str, status: int) -> None:
    assert status_of(serve(), "/x", f"Origin: {origin}", host="127.0.0.1:6066", method=method) == status


@pytest.mark.parametrize("target", ["http://evil.example/x", "//evil.example/x", "http://127.0.0.1/x", "x", "*"])
def test_absolute_request_target_is_not_followed(serve: Serve, target: str) -> None:
    status, found = parse_answer(
        sent(serve(), f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    )
    if target.startswith("/"):
        assert (status, found["path"]) == (200, target)  # type: ignore[index]
    else:
        assert status == 400


def test_no_header_allows_cross_origin_reads(serve: Serve) -> None:
    request = b"OPTIONS /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b"Access-Control" not in sent(serve(), request)


def test_token_is_required_and_open_pages_reveal_less(serve: Serve) -> None:
    server = serve(Access(token=Token(TOKEN)))
    right, wrong = f"Authorization: Bearer {TOKEN}", "Authorization: Bearer 0123456789abcdef-other"
    assert [status_of(server, "/x", *each) for each in ([], [right], [wrong], [right, right])] == [401, 200, 401, 401]
    assert [status_of(server, "/open", *each) for each in ([], [right], [wrong])] == [200, 200, 401]
    # A client that may not see a page must not learn which pages exist.
    assert [status_of(server, "/none", *each) for each in ([], [right])] == [401, 404]
    get = "GET /open HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert [parse_answer(sent(server, f"{get}{each}\r\n".encode()))[1]["known"] for each in ("", f"{right}\r\n")] == [  # type: ignore[index]
        False,
        True,
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_server_off_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(InputError, match="REFOLD_TOKEN") as caught:
        WebServer(host, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["short", "with space 0123456789", "ä" * 20, "x" * 513, "a\nb" * 20])
def test_token_invalid_in_a_header_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InputError) as caught:
        pages_client_of({TOKEN_ENVIRONMENT: text})
    assert text not in str(caught.value)
    assert TOKEN not in repr(Token(TOKEN)) + str(Token(TOKEN)) + repr(Access(Token(TOKEN)))


# TLS


def test_tls_workers_are_verified_by_their_authority_and_strangers_refused(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = certificates(tmp_path / "own")
    pem = str(made.server)
    server = serve(Access(token=Token(TOKEN), certificate=pem, key=pem), head_s=5.0)
    assert server.url.startswith("https://127.0.0.1:")
    environment = {CA_ENVIRONMENT: str(made.authority), TOKEN_ENVIRONMENT: TOKEN}
    assert pages_client_of(environment).ask(f"{server.url}/x", None, {}, 60).status == 200
    assert pages_client_of({CA_ENVIRONMENT: str(made.authority)}).ask(f"{server.url}/x", None, {}, 60).status == 401
    other = certificates(tmp_path / "other")
    with pytest.raises(OSError, match=r"(?i)certificate"):
        pages_client_of({CA_ENVIRONMENT: str(other.authority)}).ask(f"{server.url}/x", None, {}, 60)
    # A client without TLS is disconnected without a line in the log.
    caplog.clear()
    assert b"HTTP" not in sent(server, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert pages_client_of(environment).ask(f"{server.url}/x", None, {}, 60).status == 200
    assert caplog.text == ""


def test_invalid_certificate_is_reported(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(InputError, match="--tls-key"):
        WebServer("127.0.0.1", 0, Access(certificate=str(junk)))
    with pytest.raises(InputError, match=r"--tls-cert .*junk\.pem"):
        WebServer("127.0.0.1", 0, Access(certificate=str(junk), key=str(junk)))
    with pytest.raises(InputError, match="REFOLD_TLS_CA"):
        pages_client_of({CA_ENVIRONMENT: str(junk)})


# Bounds


def test_slow_clients_block_nothing(serve: Serve) -> None:
    """200 clients that send a byte now and then, half of them of a content: others are answered meanwhile."""
    server = serve(connections=100, head_s=600.0, content_s=600.0)
    heads = [b"GET /x HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
             b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"]  # fmt: skip
    over = threading.Event()
    with ExitStack() as ending:
        dripping = [ending.enter_context(connect(server)) for _ in range(200)]
        for number, each in enumerate(dripping):
            each.sendall(heads[number % 2])

        def drip() -> None:
            while not over.wait(0.01):
                for each in dripping:
                    with suppress(OSError):  # its slot went to another connection
                        each.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert [status_of(server) for _ in range(120)] == [200] * 120
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("begun", [b"", b"GET /x HT", b"GET /x HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_missing_request_head_closes_the_connection(serve: Serve, begun: bytes) -> None:
    with connect(serve(head_s=0.2)) as connection:
        connection.sendall(begun)
        assert until_closed(connection) == b""


def test_missing_request_body_is_refused(serve: Serve) -> None:
    request = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n123"
    assert parse_answer(sent(serve(content_s=0.2), request))[0] == 408


def test_missing_handshake_closes_the_connection(serve: Serve, tmp_path: Path) -> None:
    pem = str(certificates(tmp_path).server)
    with connect(serve(Access(certificate=pem, key=pem), head_s=0.2)) as connection:
        assert until_closed(connection) == b""


def test_request_waits_while_all_slots_are_busy(serve: Serve, site: Site) -> None:
    server = serve(connections=3)
    with ExitStack() as ending:
        for _ in range(3):
            connection = ending.enter_context(connect(server))
            connection.sendall(b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n")
        site.held.acquire()
        await_true(lambda: len(server._slots._taken) == 3 and not server._slots._waiting)
        one_more = ending.enter_context(connect(server))
        one_more.sendall(b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        site.let_go.set()
        assert until_closed(one_more).startswith(b"HTTP/1.1 200")


def test_full_queue_says_so_and_other_lanes_continue(serve: Serve, site: Site) -> None:
    server = serve(connections=200)
    with ExitStack() as ending:
        for _ in range(65):
            ending.enter_context(connect(server)).sendall(b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n")
        site.held.acquire()
        await_true(lambda: server._lanes["slow"]._pending == 65)
        assert status_of(server, "/held") == 503
        assert status_of(server, "/open") == 200
        site.let_go.set()


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("Content-Length: " + "9" * 5_000, 400), ("Content-Length: " + "9" * 30, 400), ("Content-Length: -1", 400),
        ("Content-Length: 1e3", 400), (f"Content-Length: {(16 << 20) + 1}", 413), ("Transfer-Encoding: chunked", 411),
        ("Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello", 415), ("X: " + "y" * 9_000, 400),
        ("\r\n".join(f"X-{number}: y" for number in range(200)), 400), ("Content-Length: 3\r\nContent-Length: 4", 400),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", 400), ("X y", 400), ("X: \x00", 400),
        ("Content-Length: 2\r\n\r\nok", 200), ("Content-Length: 2\r\nExpect: 100-continue\r\n\r\nok", 100),
    ],
)  # fmt: skip
def test_sizes_and_numbers_are_bounded(serve: Serve, more: str, status: int) -> None:
    request = f"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n\r\n".encode()
    answer = sent(serve(content_s=0.5), request)
    assert int(answer.split()[1]) == status
    if status not in (100, 200):
        assert "error" in parse_answer(answer)[1]  # type: ignore[operator]


def test_request_target_is_bounded(serve: Serve) -> None:
    server = serve()
    assert status_of(server, "/" + "x" * 7_000) == 200
    assert status_of(server, "/" + "x" * 9_000) == 400
    assert status_of(server, "/x?" + "&".join(f"a{number}=1" for number in range(40))) == 400


def test_total_size_of_request_bodies_is_bounded(serve: Serve) -> None:
    server = serve(contents_bytes=1_000)
    post = b"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1001\r\n\r\n"
    assert parse_answer(sent(server, post + bytes(1_001)))[0] == 503
    await_true(lambda: server._held_bytes == 0)
    assert parse_answer(sent(server, post.replace(b"1001", b"1000") + bytes(1_000)))[0] == 200


# Faults


def test_defect_of_a_page_is_one_line_without_a_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    answer = sent(server, b"GET /fails HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert parse_answer(answer) == (500, {"error": "the page failed, which is a defect; the server's log says where"})
    assert [record.exc_info for record in caplog.records] == [None]
    assert "ZeroDivisionError" in caplog.text
    assert "test_server.py" in caplog.text
    assert "Traceback" not in caplog.text + capsys.readouterr().err


def test_client_that_leaves_before_the_answer_is_not_logged(
    serve: Serve, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    for begun in (b"", b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with connect(server) as left:
            left.sendall(begun)
            if begun:
                site.held.acquire()
            left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, and no end
    await_true(lambda: not server._slots._taken)
    site.let_go.set()
    assert status_of(server) == 200
    assert caplog.text == ""


def test_close_lets_requests_in_progress_finish(site: Site) -> None:
    server = WebServer("127.0.0.1", 0)
    server.serve(site)
    with connect(server) as connection:
        connection.sendall(b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n")
        site.held.acquire()
        threading.Timer(0.1, site.let_go.set).start()
        server.close()
        assert b"200 OK" in until_closed(connection)
    server.close()
    with pytest.raises(OSError, match="refused"):
        connect(server)


# The client


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:text/plain,x", "http://", "http://[",
                                 "http://127.0.0.1:x/"])  # fmt: skip
def test_pages_client_accepts_only_page_urls(url: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        PagesClient().ask(url, None, {}, 5)


def test_redirect_is_not_followed_so_the_token_is_not_leaked() -> None:
    heard: list[bytes] = []
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as other,
        closing(socket.create_server(("127.0.0.1", 0))) as one,
    ):

        def answer() -> None:
            connection, _ = one.accept()
            with connection:
                heard.append(connection.recv(1 << 16))
                where = f"http://127.0.0.1:{other.getsockname()[1]}/"
                connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        found = PagesClient(Token(TOKEN)).ask(f"http://127.0.0.1:{one.getsockname()[1]}/x", None, {}, 60)
        thread.join()
        assert found.status == 302
        assert TOKEN.encode() in heard[0]
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_response_over_its_bound_is_refused(serve: Serve) -> None:
    url = f"{serve().url}/x"
    whole = PagesClient().ask(url, None, {}, 60).content
    assert PagesClient(answer_bytes_max=len(whole)).ask(url, None, {}, 60).content == whole
    with pytest.raises(OSError, match=f"the answer has more than {len(whole) - 1} bytes"):
        PagesClient(answer_bytes_max=len(whole) - 1).ask(url, None, {}, 60)


# Random input


PARTS = [
    b"GET ", b"POST ", b"PUT ", b"CONNECT ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"/x", b"/held?",
    b"http://evil.example/x",
    b"//evil/", b"/%ff%00%", b"/\xff\xfe", b"?a=1&a=2", b"#", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/9.9", b" HTTP/",
    b"\r\n",
    b"\n", b"\r", b"Host: localhost\r\n", b"Host: evil.example\r\n", b"Content-Length: 3\r\n", b"Content-Length: x\r\n",
    b"Content-Length: " + b"9" * 5_000 + b"\r\n", b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffff\r\n", b"-1\r\n",
    b"0\r\n\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Expect: 100-continue\r\n", b"X: " + b"y" * 9_000,
    b"Origin: null\r\n", b"Authorization: Bearer \xff\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00", b"{" * 1_000, b"abc",
    b"Content-Encoding: gzip\r\n", b"Host: \xff\r\n", b"Connection: close\r\n", b" folded\r\n", b"\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_cause_a_traceback_a_hang_or_a_defect(
    serve: Serve, site: Site, seed: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    site.let_go.set()
    server = serve(head_s=1.0, content_s=0.2)
    draw = random.Random(seed)
    caplog.set_level(logging.WARNING)
    answered = 0
    for number in range(250):
        if draw.random() < 0.2:
            request = draw.randbytes(draw.randrange(1, 300))
        else:
            begin = b"GET /x HTTP/1.1\r\nHost: localhost\r\n" if draw.random() < 0.5 else b""
            request = begin + b"".join(draw.choices(PARTS, k=draw.randrange(1, 9)))
            if draw.random() < 0.5:
                request += b"\r\n\r\n"
        with connect(server) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue
            answer = until_closed(connection)
        assert b"Traceback" not in answer, (seed, number, request)
        statuses = [int(each) for each in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
        assert not [each for each in statuses if each >= 500], (seed, number, request, answer)
        answered += bool(statuses)
    assert answered > 100, seed
    assert status_of(server) == 200
    assert [record.getMessage() for record in caplog.records] == [], seed
    assert capsys.readouterr().err == "", seed
