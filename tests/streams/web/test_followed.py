"""The web server's events for followers, and clients that connect before it is ready; on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing

import pytest

from refold.streams.web.connection import Bounds
from refold.streams.web.listening import Listener
from refold.streams.web.page import PageResponse, Request, Route, json_answer
from refold.streams.web.server import WebServer
from refold_tests.raw_http import connect, until_closed


class Count:
    """/count says `count`, 503 while that is 0, and is followed; so does anything else, once."""

    lanes: Mapping[str, int] = {"own": 2}

    def __init__(self) -> None:
        self.count = 1

    def route(self, request: Request) -> Route | PageResponse:
        return Route("own", is_open=True, is_followed=request.path == "/count")

    def answer(self, request: Request) -> PageResponse:
        return json_answer(200 if self.count else 503, self.count)


@pytest.fixture
def site() -> Count:
    """The served site."""
    return Count()


ONCE = b"GET /once HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FOLLOW = b"GET /count HTTP/1.1\r\nHost: localhost\r\n\r\n"


def until(connection: socket.socket, end: bytes) -> bytes:
    answer = b""
    while end not in answer:
        part = connection.recv(1 << 16)
        assert part, answer
        answer += part
    return answer


def test_followed_page_is_sent_on_every_change(site: Count) -> None:
    server = WebServer("127.0.0.1", 0)
    server.serve(site)
    with connect(server) as connection, connect(server) as other:
        connection.sendall(FOLLOW)
        other.sendall(FOLLOW)
        first = until(connection, b"data: 1\n\n")
        assert b"Content-Type: text/event-stream" in first
        until(other, b"data: 1\n\n")  # a request that is answered first while the count is 0 is not followed
        site.count = 0  # a temporary error is not an event, and does not end the stream
        until(connection, b":\n\n")
        site.count = 2
        assert b"data: 0" not in until(connection, b"data: 2\n\n")
        assert until(other, b"data: 2\n\n")
        server.close()
        assert b"data" not in until_closed(connection)


def test_follower_yields_its_slot_to_a_request(site: Count) -> None:
    server = WebServer("127.0.0.1", 0, bounds=Bounds(connections=1))
    server.serve(site)
    with closing(server), connect(server) as connection:
        connection.sendall(FOLLOW)
        until(connection, b"data: 1\n\n")
        with connect(server) as other:
            other.sendall(ONCE)
            assert b"200 OK" in until_closed(other)
        until_closed(connection)


def test_page_that_cannot_be_followed_is_answered_once(site: Count) -> None:
    site.count = 0
    server = WebServer("127.0.0.1", 0)
    server.serve(site)
    with closing(server), connect(server) as connection:
        connection.sendall(FOLLOW.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert b"503 " in until_closed(connection)


def test_connection_before_the_server_accepts_is_answered(site: Count) -> None:
    listener = Listener("127.0.0.1", 0)
    with closing(listener), socket.create_connection(listener.socket.getsockname()) as early:
        early.settimeout(60)
        early.sendall(ONCE)
        with closing(WebServer.on(listener)) as server:
            server.serve(site)
            assert b"200 OK" in until_closed(early)
