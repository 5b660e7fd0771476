"""Tables of format 1 under this release: migrated once, whole, and equal to a fresh load.

postgres_format_1/ holds a log's archive, and what the release before made of it, as pg_dump wrote it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import refold
from refold.sinks.port import SinkBusy, SinkRefused
from refold.sinks.postgres.sink import PostgresSink
from refold.sinks.run import keep_up
from refold.streams.client import Log
from refold.streams.cut import parse_cut
from refold.streams.exchange.archive_import import Archive
from refold.streams.exchange.files import ExchangeFile
from refold_tests.child import Child
from refold_tests.postgres import Database
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true

FORMAT_1 = ROOT / "tests" / "sinks" / "postgres_format_1"
SINK = """
import sys
from threading import Event
from refold.sinks.registry import open_sink
from refold.sinks.run import keep_up
from refold.streams.open import open_port
print("ready", flush=True)
keep_up(open_port(sys.argv[1], read_only=True), open_sink("postgres", sys.argv[2]), follow=False, stop=Event())
print("done", flush=True)
"""
CATALOG = """
    SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, col_description(pg_class.oid, attnum)
      FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
     WHERE relnamespace = '{0}'::regnamespace AND attnum > 0 AND NOT attisdropped AND relkind = 'r'
    UNION ALL SELECT tablename, indexname, replace(indexdef, '{0}.', ''), NULL, NULL FROM pg_indexes
     WHERE schemaname = '{0}'
    UNION ALL SELECT relname, NULL, obj_description(pg_class.oid), NULL, NULL FROM pg_class
     WHERE relnamespace = '{0}'::regnamespace AND relkind = 'r'
    ORDER BY 1, 2
"""


@pytest.fixture
def log(tmp_path: Path, postgres_database: Database) -> Iterator[Log]:
    """The archived log, and its tables as the release before left them."""
    Archive(ExchangeFile(FORMAT_1 / "log.avro")).restore(tmp_path / "log")
    with psycopg.connect(postgres_database.url) as connection:
        connection.execute((FORMAT_1 / "tables.sql").read_bytes())
    with refold.open(f"file:{tmp_path / 'log'}", read_only=True) as opened:
        yield opened


def follow(log: Log, url: str) -> None:
    with contextlib.closing(PostgresSink(url)) as sink:
        keep_up(log.port, sink, follow=False, stop=threading.Event())


def query(database: Database, text: str) -> list[Any]:
    with psycopg.connect(database.url) as connection:
        return connection.execute(text.encode()).fetchall()


def content(database: Database, schema: str) -> dict[str, set[Any]]:
    """Every row of every table as text, by the columns' names; `_held` may have one state in several orders."""
    found = {}
    with psycopg.connect(database.url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        for (table,) in tables:
            rows = connection.execute(
                sql.SQL("SELECT to_jsonb(t) - 'written_at' - '_held' FROM {} t").format(sql.Identifier(schema, table))
            )
            found[table] = {str(sorted(row.items())) for (row,) in rows.fetchall()}
    return found


def assert_as_fresh(log: Log, database: Database) -> None:
    """What stands there is, in data and in definitions, what a sink makes that begins now."""
    follow(log, f"{database.url}?schema=fresh")
    migrated, fresh = content(database, "refold"), content(database, "fresh")
    for table in migrated.keys() | fresh.keys():
        assert migrated[table] == fresh[table], table
    assert query(database, CATALOG.format("refold")) == query(database, CATALOG.format("fresh"))


def test_tables_of_format_1_are_migrated_to_those_of_a_fresh_load(log: Log, postgres_database: Database) -> None:
    ((before, number),) = query(postgres_database, "SELECT cut, format FROM refold.refold_position")
    assert number == 1
    for _ in range(2):
        with contextlib.closing(PostgresSink(postgres_database.url)) as sink:
            sink.attach(log.port)
            assert sink.position() == parse_cut(before)
        assert query(postgres_database, "SELECT cut, format FROM refold.refold_position") == [(before, 2)]
    bodies = query(postgres_database, "SELECT _entity, user_, user__, order_, body FROM refold.message ORDER BY 1")
    awkward = 'tab\t line\n back\\ \\N "quoted" nul\u2400 \U0001f600'
    assert bodies[1] == ("message/1", "u-1", "two", 9, awkward)
    assert bodies[3][4] == "again"
    assert bodies[0][4].startswith('{"$blob": {"hash": "1c2343ab')
    described = (
        "SELECT col_description(attrelid, attnum) FROM pg_attribute "
        "WHERE attrelid = 'refold.message'::regclass AND attname = 'user_'"
    )
    assert ("Whom it is for.",) in query(postgres_database, described)
    follow(log, postgres_database.url)
    assert_as_fresh(log, postgres_database)


def test_killed_migration_changes_nothing(log: Log, postgres_database: Database, child: Callable[..., Child]) -> None:
    """The process is killed while the server waits for a reader's lock, with everything before that done."""
    before = content(postgres_database, "refold"), query(postgres_database, CATALOG.format("refold"))
    for table in ("refold_history", "tool_config"):
        with psycopg.connect(postgres_database.url) as reader:
            reader.execute(f"LOCK TABLE refold.{table} IN ACCESS SHARE MODE".encode())
            process = child(SINK, log.port.url, postgres_database.url)
            assert process.line() == "ready"
            waiting = "SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
            await_true(lambda: bool(query(postgres_database, waiting)), "the migration waits for the reader")  # noqa: B023
            process.kill()
        postgres_database.disconnect()
        assert (content(postgres_database, "refold"), query(postgres_database, CATALOG.format("refold"))) == before
    follow(log, postgres_database.url)
    assert_as_fresh(log, postgres_database)


def test_one_of_two_concurrent_migrations_runs(log: Log, postgres_database: Database) -> None:
    with (
        psycopg.connect(postgres_database.url) as other,
        contextlib.closing(PostgresSink(postgres_database.url)) as sink,
    ):
        sink.attach(log.port)
        other.execute("SELECT pg_advisory_xact_lock(%s)", (sink._lock,))
        with pytest.raises(SinkBusy, match="another sink is writing there now"):
            sink.position()
        other.rollback()
        assert sink.position() is not None
    follow(log, postgres_database.url)
    assert_as_fresh(log, postgres_database)


def test_tables_of_another_log_are_not_migrated(log: Log, postgres_database: Database, tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'other'}") as other:
        other.observe("tool_config/acme", {"rate_limit": 5})
        other.flush()
        with pytest.raises(SinkRefused):
            follow(other, postgres_database.url)
    assert query(postgres_database, "SELECT format FROM refold.refold_position") == [(1,)]
