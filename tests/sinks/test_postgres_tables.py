"""What stands in PostgreSQL: native columns, how they grow, odd names, and what is refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

import refold
from refold.avro.definition import TypeDefinition, parse
from refold.sinks.port import SinkBusy, SinkRefused
from refold.sinks.postgres.columns import RESERVED, column_name, table_name
from refold.sinks.postgres.sink import PostgresSink
from refold.sinks.run import SinkWatch, keep_up
from refold.streams.client import Log
from refold_tests.postgres import Database

LATEST = {"refold.reducer": "latest"}
LONG = "a_name_that_is_much_longer_than_the_sixty_three_bytes_that_postgresql_has_for_it"
ENUM = {"type": "enum", "name": "Colour", "symbols": ["red", "green"]}
FIELDS: dict[str, Any] = {
    "yes": "boolean",
    "small": "int",
    "large": "long",
    "share": "double",
    "text": "string",
    "colour": ENUM,
    "raw": "bytes",
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "key": {"type": "string", "logicalType": "uuid"},
    "day": {"type": "int", "logicalType": "date"},
    "hour": {"type": "long", "logicalType": "time-micros"},
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "json": {"type": "string", "logicalType": "refold-json"},
    "blob": ["null", "string", "refold.Blob"],
    "list": {"type": "array", "items": "string"},
    "version": "string",
    "_entity": "string",
    "xmin": "string",
    "Upper": "string",
    LONG: "string",
}
KEY = "0f8fad5b-d9cb-469f-a165-70867728950e"
AT = dt.datetime(2026, 11, 22, 1, 2, 3, 4000, tzinfo=dt.UTC)


def build_type(fields: dict[str, Any], name: str = "thing", **reducers: str) -> TypeDefinition:
    listed = [
        {"name": each, "type": node, "refold.reducer": reducers.get(each, "latest")} for each, node in fields.items()
    ]
    return parse({"type": "record", "name": name, "namespace": "refold.types", "fields": listed})


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with refold.open(f"file:{tmp_path / 'log'}") as opened:
        yield opened


@pytest.fixture
def keep(log: Log, postgres_database: Database) -> Callable[..., list[Any]]:
    """Brings the sink up, and asks for some rows."""

    def run(query: str = "", options: str = "") -> list[Any]:
        log.flush()
        with contextlib.closing(PostgresSink(postgres_database.url + options)) as sink:
            keep_up(log.port, sink, follow=False, stop=threading.Event())
        with psycopg.connect(postgres_database.url) as connection:
            return connection.execute(query.encode()).fetchall() if query else []

    return run


def test_every_kind_of_field_has_its_own_column_type(log: Log, keep: Callable[..., list[Any]]) -> None:
    log.register(build_type(FIELDS))
    blob = log.put_blob(b"much", "text/plain")
    awkward = 'tab\t line\n back\\ \\N "quoted" nul\0 \U0001f600'
    log.observe("thing/1", {
        "yes": True, "small": -5, "large": 2**63 - 1, "share": 0.1, "text": awkward, "colour": "green",
        "raw": b"\0\xff", "price": "-12.5", "key": KEY, "day": dt.date(2026, 11, 22), "hour": dt.time(1, 2, 3, 4),
        "at": AT, "local": AT.replace(tzinfo=None), "json": {"a": [1, 0.5, None, "\\u0000 \0"]}, "blob": blob,
        "list": ["x", awkward], "version": "v", "_entity": "mine", "xmin": "x", "Upper": "U", LONG: "long",
    })  # fmt: skip
    log.observe("thing/2", {"price": 3}, source="a")
    plain = "yes, small, large, share, text, colour, raw, price, key, day, hour, at, local, json, blob, list, version"
    odd = ", ".join(f'"{column_name(each)}"' for each in ("_entity", "xmin", "Upper", LONG))
    (one,) = keep(f"SELECT {plain}, {odd} FROM refold.thing WHERE _entity = 'thing/1'")
    shown = awkward.replace("\0", "\u2400")
    assert str(one[8]) == KEY
    assert one[:8] == (True, -5, 2**63 - 1, 0.1, shown, "green", b"\0\xff", Decimal("-12.5"))
    assert one[9:13] == (dt.date(2026, 11, 22), dt.time(1, 2, 3, 4), AT, AT.replace(tzinfo=None))
    assert one[13] == {"a": [1, 0.5, None, "\\u0000 \u2400"]}
    assert json.loads(one[14]) == {"$blob": {"hash": blob.hash.hex(), "size": 4, "media_type": "text/plain"}}
    assert one[15:] == (["x", shown], "v", "mine", "x", "U", "long")
    assert keep("SELECT price, yes FROM refold.thing WHERE _entity = 'thing/2'") == [(Decimal(3), None)]
    ((place, state_hash),) = keep("SELECT _recorded_at, _state_hash FROM refold.thing WHERE _entity = 'thing/2'")
    assert place.tzinfo is not None
    assert state_hash.hex() == log.state("thing/2").state_hash


def test_text_that_may_be_a_blob_is_text(log: Log, keep: Callable[..., list[Any]]) -> None:
    options = ["null", "string", "refold.Blob", "refold.Sealed"]
    log.register(build_type({"body": options, "colour": ["null", ENUM], "number": ["null", "int", "refold.Blob"]}))
    awkward = 'tab\t line\n back\\ \\N "quoted" nul\0 {"$blob": 1}'
    blob = log.put_blob(b"much", 'a/"\x7f\u00e4')
    log.observe("thing/1", {"body": awkward, "colour": "red", "number": 5})
    log.observe("thing/2", {"body": blob, "number": blob})
    rows = keep("SELECT body, colour, number FROM refold.thing ORDER BY _entity")
    shown = {"$blob": {"hash": blob.hash.hex(), "size": 4, "media_type": 'a/"\x7f\u00e4'}}
    assert rows[0] == (awkward.replace("\0", "\u2400"), "red", 5)
    assert (json.loads(rows[1][0]), rows[1][2]) == (shown, shown)
    # As the server itself writes it: what is migrated and what is loaded are the same text.
    assert keep("SELECT body = body::jsonb::text FROM refold.thing WHERE _entity = 'thing/2'") == [(True,)]


def test_no_column_needs_quoting(log: Log, keep: Callable[..., list[Any]], postgres_database: Database) -> None:
    with psycopg.connect(postgres_database.url) as connection:
        listed = connection.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')").fetchall()
    words = sorted(word for (word,) in listed)
    assert {"user", "order"} <= set(words) <= RESERVED
    fields = [*words, "user_", "order__", "users", "key", "of"]
    log.register(build_type(dict.fromkeys(fields, "string")))
    log.observe("thing/1", {field: field for field in fields})
    columns = [column_name(field) for field in fields]
    assert (columns[-5:], len({*columns})) == (["user__", "order___", "users", "key", "of"], len(fields))
    assert keep(f"SELECT {', '.join(columns)} FROM refold.thing") == [tuple(fields)]
    assert keep("SELECT type, offset_, key, new, old FROM refold.refold_history LIMIT 1")[0][0] == "thing"


def test_keys_indexes_and_comments(log: Log, keep: Callable[..., list[Any]]) -> None:
    document: dict[str, Any] = {"type": "record", "name": "thing", "namespace": "refold.types", "fields": [
        {"name": "user", "type": "string", "refold.reducer": "latest", "doc": "Who's it?"},
        {"name": "plain", "type": "string", "refold.reducer": "latest"}]}  # fmt: skip
    log.register(parse(document))
    log.observe("thing/1", {"user": "u", "plain": "p"})
    log.observe("thing/1", {"user": "v", "plain": "q"})
    assert keep("SELECT version, mutation FROM refold.refold_history ORDER BY 1, 2") == [(1, 0), (1, 1), (2, 0), (2, 1)]
    indexes = dict(keep("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'refold'"))
    assert {name: each.partition(" btree ")[2] for name, each in indexes.items()} == {
        "thing_pkey": "(_entity)", "refold_recorded_at_thing": "(_recorded_at)", "refold_position_pkey": "(only_one)",
        "refold_history_pkey": "(entity, version, mutation)", "refold_history_recorded_at": "(recorded_at)",
        "refold_history_agent": "(agent)",
    }  # fmt: skip
    columns = keep(
        "SELECT attrelid::regclass::text, attname, attnotnull, col_description(attrelid, attnum) FROM pg_attribute "
        "JOIN pg_class ON pg_class.oid = attrelid "
        "WHERE relnamespace = 'refold'::regnamespace AND relkind = 'r' AND attnum > 0"
    )
    may_be_null = {name for _, name, is_required, _ in columns if not is_required}
    assert may_be_null == {"user_", "plain", "key", "old", "new"}
    said = {name: doc for table, name, _, doc in columns if table == "refold.thing"}
    assert (said["user_"], said["plain"], said["_entity"]) == ("Who's it?", None, "TYPE/ID.")
    assert all(doc for table, _, _, doc in columns if table == "refold.refold_history")
    document["fields"][1]["doc"] = "Said later."  # a doc is no part of a definition's fingerprint
    document["fields"].append({"name": "more", "type": "string", "refold.reducer": "latest", "doc": "New."})
    log.register(parse(document))
    log.observe("thing/1", {"more": "m"})
    # A session that has just been closed may still have its temporary table with the same columns.
    described = (
        "SELECT col_description(attrelid, attnum) FROM pg_attribute "
        "WHERE attrelid = 'refold.thing'::regclass AND attname = '{0}'"
    )
    assert keep(described.format("plain")) == [("Said later.",)]
    assert keep(described.format("more")) == [("New.",)]


def test_columns_are_added_with_their_type_and_stay(log: Log, keep: Callable[..., list[Any]]) -> None:
    kinds = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'refold.thing'::regclass "
        "AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_%'"
    )
    log.register(build_type({"count": "int", "gone": "string"}))
    log.observe("thing/1", {"count": 5, "gone": "x"})
    assert keep(kinds) == [("count", "integer"), ("gone", "text")]
    log.register(build_type({"count": "long", "more": "string"}))
    log.observe("thing/1", {"count": 2**40, "more": "y"})
    assert keep(kinds) == [("count", "bigint"), ("gone", "text"), ("more", "text")]
    assert keep("SELECT count, gone, more FROM refold.thing") == [(2**40, None, "y")]
    log.register(build_type({"count": "long", "more": "string", "gone": "string"}, count="sum"))
    assert keep("SELECT count, gone, more FROM refold.thing") == [(2**40 + 5, "x", "y")]
    log.register(build_type({"count": "long", "more": "string"}))  # a numeric holds every bigint
    assert dict(keep(kinds))["count"] == "numeric"
    log.register(build_type({"count": "long", "more": "string"}, more="count"))
    with pytest.raises(SinkRefused, match=r"thing\.more is bigint now.*is text: rename or drop that column"):
        keep()


def test_foreign_table_is_left_alone(log: Log, keep: Callable[..., list[Any]], postgres_database: Database) -> None:
    with psycopg.connect(postgres_database.url) as connection:
        connection.execute("CREATE TABLE public.tool_config (mine text)")
    log.observe("tool_config/acme", {"rate_limit": 5})
    with pytest.raises(SinkRefused, match="there is a table tool_config that refold did not make"):
        keep(options="?schema=public")
    assert keep("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]


def test_unusual_schemas_and_types(log: Log, keep: Callable[..., list[Any]]) -> None:
    log.register(build_type({"a": "int"}, "refold_position"))
    log.register(build_type({"a": "int"}, LONG))
    log.observe("refold_position/1", {"a": 1})
    log.observe(f"{LONG}/1", {"a": 2})
    schema = 'a "schema"; DROP'
    keep(options="?schema=a%20%22schema%22%3B%20DROP&history=no")
    for name, value in (("refold_position", 1), (LONG, 2)):
        quoted = schema.replace('"', '""')
        assert keep(f'SELECT a FROM "{quoted}"."{table_name(name)}"', "?schema=a%20%22schema%22%3B%20DROP") == [
            (value,)
        ]
    assert len({table_name(LONG), table_name(f"{LONG}x"), table_name("refold_position")}) == 3


def test_missing_rights_are_named(log: Log, keep: Callable[..., list[Any]], postgres_database: Database) -> None:
    log.observe("tool_config/acme", {"rate_limit": 5})
    with postgres_database.admin() as admin:
        admin.execute(f'ALTER DATABASE "{postgres_database.name}" OWNER TO admin')
    with pytest.raises(SinkRefused, match=r"permission denied.*42501.*docs/SINKS\.md"):
        keep()


@pytest.mark.parametrize("state", ["53100", "53300", "57P03", "25006", "40001"])
def test_transient_failure_is_awaited(
    log: Log, keep: Callable[..., list[Any]], postgres_database: Database, state: str
) -> None:
    """A full disk among them: what the server raises is raised by a trigger here."""
    log.observe("tool_config/acme", {"rate_limit": 5})
    keep()
    with psycopg.connect(postgres_database.url) as connection:
        connection.execute(f"""
            CREATE FUNCTION refold.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON refold.refold_position EXECUTE FUNCTION refold.refuse();
        """)  # fmt: skip
    log.observe("tool_config/acme", {"rate_limit": 6})
    log.flush()
    stop = threading.Event()
    refused: list[Exception] = []

    def refuse(error: Exception, _: float) -> None:
        refused.append(error)
        stop.set()

    with contextlib.closing(PostgresSink(postgres_database.url)) as sink:
        keep_up(log.port, sink, follow=False, stop=stop, watch=SinkWatch(refused=refuse))
    assert isinstance(refused[0], SinkBusy)
    with psycopg.connect(postgres_database.url) as connection:
        assert connection.execute("SELECT rate_limit FROM refold.tool_config").fetchall() == [(5,)]
        connection.execute("DROP TRIGGER refuse ON refold.refold_position")
        connection.commit()
    assert keep("SELECT rate_limit FROM refold.tool_config") == [(6,)]
