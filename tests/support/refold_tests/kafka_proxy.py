"""A proxy on loopback before a broker that keeps fetches back when told to: everything else is answered, as
by a broker whose disk hangs while records are read from it."""

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
_FRAME = struct.Struct(">ih")  # of a request: its length after these 4 bytes, and which request it is
_COUNTED = 4
_CHUNK_BYTES = 1 << 16


class FetchProxy(socketserver.ThreadingTCPServer):
    """Passes what clients send on to a broker; while `keeps_fetches` is set, no request for records."""

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
        # Where the broker is not there, or either side ends: so does the connection.
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
    """Have a Kafka of one node tell its clients to come by a proxy, which is gone after the block."""
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
