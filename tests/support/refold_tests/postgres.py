"""The PostgreSQL server of the test run, and a test's own database in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from refold.testing.postgres import binaries, started
from refold.testing.processes import ServerMissing
from refold_tests import servers
from refold_tests.absent import without
from refold_tests.servers import Owner, Started

NEEDS = "needs PostgreSQL: "


def start() -> Started:
    """Start the server of the test run, for `servers.own`."""
    server = started()
    return Started(server, server.url)


def shared(owner: Owner | None) -> str:
    """Return the URL of the run's server, starting it if necessary. Without PostgreSQL the test is skipped; in CI it
    fails.
    """
    try:
        return servers.address_of(owner, "postgres")
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


def require(item: pytest.Item) -> None:
    """End a test that needs a server if none is available."""
    try:
        binaries()
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


class Database:
    """A test's own database, with a user who is not a superuser, and may connect and create schemas."""

    def __init__(self, server_url: str, name: str) -> None:
        self.server_url = server_url
        self.name = name
        self._place = server_url.rpartition("/")[0]
        self.url = f"{self._place.replace('admin@', f'{name}@')}/{name}"
        with self.admin("postgres") as connection:
            connection.execute(f'CREATE ROLE "{name}" LOGIN')
            connection.execute(f'CREATE DATABASE "{name}" OWNER "{name}"')

    @contextmanager
    def admin(self, database: str | None = None) -> Iterator[Any]:
        """Open a connection as the superuser. Each statement is a transaction."""
        import psycopg

        with psycopg.connect(f"{self._place}/{database or self.name}", autocommit=True) as connection:
            yield connection

    def disconnect(self) -> None:
        """Close all other connections to it."""
        with self.admin("postgres") as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (self.name,)
            )

    def drop(self) -> None:
        with self.admin("postgres") as connection:
            connection.execute(f'DROP DATABASE "{self.name}" WITH (FORCE)')
            connection.execute(f'DROP ROLE "{self.name}"')
