"""Bare connections to a web server, for requests that no HTTP client would send."""

from __future__ import annotations

import socket

from refold.streams.web.server import WebServer


def connect(server: WebServer) -> socket.socket:
    """Return a connection on which nothing was sent yet."""
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    connection.settimeout(60)
    return connection


def until_closed(connection: socket.socket) -> bytes:
    """Return everything that arrives until the server closes the connection."""
    answer = bytearray()
    try:
        while part := connection.recv(1 << 16):
            answer += part
    except ConnectionError:
        pass
    return bytes(answer)
