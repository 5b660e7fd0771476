"""Servers for a whole test run. The first test that needs a server starts it, in whichever worker it runs.

1. The process in which pytest was started owns the servers. For xdist's workers it listens on a Unix socket, whose
   address is in their environment. Without xdist it runs the tests itself, and no socket is needed.
2. The first request for a server starts it. Every request is answered with its address, or with the reason why it is
not
   available.
3. The servers end with the run. If the run is killed, a server's supervisor notices that its starter is gone, and ends
   the server.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from typing import NamedTuple, Protocol

import pytest

from refold.testing.processes import ServerMissing

_ADDRESS, _KEY = "REFOLD_TESTS_SERVERS", "REFOLD_TESTS_SERVERS_KEY"


class Server(Protocol):
    """A running server."""

    def close(self) -> None:
        """End the server."""


class Started(NamedTuple):
    """A running server, and the address that tests get."""

    server: Server
    address: str


class Owner:
    """The owner of the servers, in the process in which pytest was started. `starts`: the function that starts each,
    by name.
    """

    def __init__(self, starts: Mapping[str, Callable[[], Started]]) -> None:
        self._starts = starts
        self._locks = {name: threading.Lock() for name in starts}
        self._started: dict[str, Started] = {}
        self._listener: Listener | None = None
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def address(self, name: str) -> str:
        """Return a server's address, starting it if necessary.

        Raises:
            ServerMissing: It is not available.
        """
        with self._locks[name]:
            if name not in self._started:
                self._started[name] = self._starts[name]()
            return self._started[name].address

    def listen(self) -> None:
        """Answer xdist's workers from now on. They inherit the environment."""
        key = secrets.token_bytes(16)
        self._listener = Listener(family="AF_UNIX", authkey=key)
        os.environ[_ADDRESS], os.environ[_KEY] = str(self._listener.address), key.hex()
        self._thread.start()

    def close(self) -> None:
        if self._listener is not None:
            with _connected() as last:
                last.send(None)
            self._thread.join()
            self._listener.close()
            del os.environ[_ADDRESS], os.environ[_KEY]
        for each in self._started.values():
            each.server.close()

    def _listen(self) -> None:
        assert self._listener is not None
        answering: list[threading.Thread] = []
        while True:
            connection = self._listener.accept()
            name = connection.recv()
            if name is None:
                connection.close()
                break
            # A slow start of one server does not delay another.
            answering.append(threading.Thread(target=self._answer, args=(connection, name), daemon=True))
            answering[-1].start()
        for each in answering:
            each.join()

    def _answer(self, connection: Connection, name: str) -> None:
        with connection:
            try:
                connection.send(("address", self.address(name)))
            except ServerMissing as error:
                connection.send(("missing", str(error)))
            except Exception as error:
                connection.send(("failed", str(error)))


def own(config: pytest.Config, starts: Mapping[str, Callable[[], Started]]) -> Owner | None:
    """Call once in each process of the run. Return an owner in the process in which pytest was started, else None."""
    if hasattr(config, "workerinput"):
        return None
    owner = Owner(starts)
    config.add_cleanup(owner.close)
    if config.getoption("dist", "no") != "no":
        owner.listen()
    return owner


def address_of(owner: Owner | None, name: str) -> str:
    """Return the address of the run's server of that name, starting it if necessary. Without an owner here, ask the
    owner.
    """
    if owner is not None:
        return owner.address(name)
    with _connected() as connection:
        connection.send(name)
        kind, text = connection.recv()
    if kind == "missing":
        raise ServerMissing(text)
    assert kind == "address", text
    return str(text)


def _connected() -> Connection:
    return Client(os.environ[_ADDRESS], family="AF_UNIX", authkey=bytes.fromhex(os.environ[_KEY]))
