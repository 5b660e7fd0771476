"""The PostgreSQL sink on a real server: the contract on both backends, and what is its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from refold.testing.postgres import Postgres
from refold.testing.sinks import SinkConformance, Store
from refold_tests.postgres import Database
from refold_tests.postgres_store import PostgresStore
from refold_tests.sink_conformance import OwnConformance, OwnSamples, OwnServedConformance
from refold_tests.sink_logs import SinkLog

LIMIT = 'ALTER ROLE "{0}" CONNECTION LIMIT {1}'
READ_ONLY = 'ALTER ROLE "{0}" SET default_transaction_read_only = {1}'


class DatabaseStore(PostgresStore):
    """In a database of the run's server."""

    def __init__(self, database: Database, followed: SinkLog) -> None:
        super().__init__(database.url, followed)
        self.database = database
        self.refusal = LIMIT.format(database.name, 0), LIMIT.format(database.name, -1)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        refuse, allow = self.refusal
        with self.database.admin() as admin:
            admin.execute(refuse)
            self.database.disconnect()
        try:
            yield
        finally:
            with self.database.admin("postgres") as admin:
                admin.execute(allow)
            self.database.disconnect()


class OwnServerStore(PostgresStore):
    """On a server of the test's own."""

    def __init__(self, server: Postgres, followed: SinkLog) -> None:
        super().__init__(server.url, followed)
        self._server = server

    def restart(self) -> None:
        self._server.restart()

    def refusing(self) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError


class TestOnFile(OwnConformance):
    @pytest.fixture
    def followed(self, file_log: SinkLog) -> SinkLog:
        return file_log

    @pytest.fixture
    def store(self, postgres_database: Database, followed: SinkLog) -> Store:
        return DatabaseStore(postgres_database, followed)


class TestOnKafka(OwnSamples):
    """What depends on the log, too."""

    test_after_every_turn = SinkConformance.test_store_equals_the_log_after_every_write
    test_new_definition = SinkConformance.test_new_definition_takes_effect
    test_killed = SinkConformance.test_kill_at_any_moment_loses_nothing
    test_two = SinkConformance.test_two_concurrent_followers

    @pytest.fixture
    def followed(self, kafka_log: SinkLog) -> SinkLog:
        return kafka_log

    @pytest.fixture
    def store(self, postgres_database: Database, followed: SinkLog) -> Store:
        return DatabaseStore(postgres_database, followed)


class TestOwnServer(OwnServedConformance):
    @pytest.fixture
    def followed(self, file_log: SinkLog) -> SinkLog:
        return file_log

    @pytest.fixture
    def store(self, own_postgres: Postgres, followed: SinkLog) -> Store:
        return OwnServerStore(own_postgres, followed)
