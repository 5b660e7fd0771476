"""A proxy on loopback in front of a broker, which holds back fetches on request. Everything else is passed on, as by a
broker whose disk hangs while records are read.
"""

from __future__ import annotations

import socket
import socketserver
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from refold.testing.kafka import Kafka
from refold.testing.processes import HOST

_FETCH = 1
_FRAME = struct.Struct(">ih")  # of a request: its length after these 4 bytes, and its kind
_COUNTED = 4
_CHUNK_BYTES = 1 << 16


class FetchProxy(socketserver.ThreadingTCPServer):
    """Passes clients' requests on to a broker, except fetches while `keeps_fetches` is set."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, broker: tuple[str, int]) -> None:
        super().__init__((HOST, 0), _Connection)
        self.broker = broker
        self.keeps_fetches = Event()


class _Connection(socketserver.BaseRequestHandler):
    server: FetchProxy
    request: socket.socket

    def handle(self) -> None:
        # If the broker is not available, or either side ends the connection, it is closed.
        with suppress(OSError), socket.create_connection(self.server.broker) as broker:
            back = Thread(target=self._answer, args=(broker,), daemon=True)
            back.start()
            try:
                self._ask(broker)
            finally:
                broker.shutdown(socket.SHUT_RDWR)
                back.join()

    def _ask(self, broker: socket.socket) -> None:
        with self.request.makefile("rb") as asked:
            while len(head := asked.read(_FRAME.size)) == _FRAME.size:
                length, kind = _FRAME.unpack(head)
                rest = asked.read(length + _COUNTED - _FRAME.size)
                if kind != _FETCH or not self.server.keeps_fetches.is_set():
                    broker.sendall(head + rest)

    def _answer(self, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := broker.recv(_CHUNK_BYTES):
                self.request.sendall(data)
            self.request.shutdown(socket.SHUT_RDWR)


@contextmanager
def fetches_through_proxy(kafka: Kafka) -> Iterator[FetchProxy]:
    """Make a Kafka of one node advertise a proxy to its clients. The proxy ends after the block."""
    host, port = kafka.bootstrap.split(":")
    with FetchProxy((host, int(port))) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        settings = kafka.folder / "node1" / "server.properties"
        with settings.open("a", encoding="utf-8") as file:
            file.write(f"advertised.listeners=PLAINTEXT://{HOST}:{proxy.server_address[1]}\n")
        kafka.restart(1)
        try:
            yield proxy
        finally:
            proxy.shutdown()
