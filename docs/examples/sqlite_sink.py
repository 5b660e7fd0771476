"""A sink of your own: the state of a log in one SQLite file, followed exactly.

    python docs/examples/sqlite_sink.py

What makes it exact is in three places: state, history and the cut are written in one transaction; the transaction
begins by comparing the cut that is held with the one it follows; and a database that is locked is SinkBusy.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event

import refold
from refold.sink import (
    Batch,
    Cut,
    EntityState,
    HistoryStep,
    Load,
    Row,
    Sink,
    SinkBusy,
    SinkRefused,
    formatter,
    keep_up,
    packed,
    parse_cut,
)

TABLES = """
    CREATE TABLE IF NOT EXISTS position (only INTEGER PRIMARY KEY CHECK (only = 1), cut TEXT);
    CREATE TABLE IF NOT EXISTS state (entity TEXT PRIMARY KEY, type TEXT, version INTEGER, state_hash TEXT, fields TEXT,
                                      links TEXT, held BLOB);
    CREATE TABLE IF NOT EXISTS history (entity TEXT, version INTEGER, field TEXT, op TEXT, key TEXT, old TEXT, new TEXT,
                                        observation TEXT);
    CREATE INDEX IF NOT EXISTS history_entity ON history (entity);
"""


class SqliteSink(Sink):
    def __init__(self, path: str) -> None:
        self.name = f"the SQLite file {path}"
        self._database = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        with self._errors_translated():
            self._database.executescript(TABLES)

    def position(self) -> Cut | None:
        with self._errors_translated():
            found = self._database.execute("SELECT cut FROM position").fetchone()
        return None if found is None else parse_cut(found[0])

    def load(self, load: Load) -> None:
        with self._transaction(load.before, load.cut):
            for table in ("state", "history"):
                if load.types is None:
                    self._database.execute(f"DELETE FROM {table}")
                for name in load.types or ():
                    self._database.execute(f"DELETE FROM {table} WHERE entity GLOB ?", (f"{name}/*",))
            self._put(load.states(), load.history())

    def stored(self, names: Collection[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        with self._errors_translated():
            for some in (list(names)[at : at + 500] for at in range(0, len(names), 500)):
                places = ", ".join("?" * len(some))
                found.update(self._database.execute(f"SELECT entity, held FROM state WHERE entity IN ({places})", some))
        return found

    def write(self, batch: Batch) -> None:
        with self._transaction(batch.before, batch.cut):
            self._put(batch.states, batch.history)

    def close(self) -> None:
        self._database.close()

    def _put(self, states: Iterable[EntityState], history: Iterable[HistoryStep]) -> None:
        self._database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?, ?, ?, ?)", map(_state, states))
        self._database.executemany(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            map(_change, (row for step in history for row in step.rows())),
        )

    @contextmanager
    def _transaction(self, before: Cut | None, after: Cut) -> Iterator[None]:
        """All or nothing, and only where the file holds what this follows."""
        with self._errors_translated():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                if self.position() != before:
                    raise SinkBusy(f"{self.name} was written by another process meanwhile", retry_after_s=0)
                yield
                self._database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (str(after),))
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        """Translate SQLite's errors into SinkBusy, if waiting helps, or SinkRefused."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
                raise SinkBusy(f"{self.name}: {error}", retry_after_s=0.2) from error
            raise SinkRefused(f"{self.name}: {error}") from error


def _state(state: EntityState) -> tuple[object, ...]:
    fields = state.definition.by_first_name
    shown = {
        name: value if fields[name].reducer in ("sum", "count") else formatter(fields[name].node)(value)
        for name, value in state.fields.items()
    }
    return (state.entity, state.type, state.version, state.state_hash.hex(), json.dumps(shown),
            json.dumps(state.links), packed(state))  # fmt: skip


def _change(row: Row) -> tuple[object, ...]:
    key, old, new = (None if each is None else json.dumps(each) for each in (row.key, row.old, row.new))
    return row.entity, row.version, row.field, row.op, key, old, new, row.observation


def open_sink(url: str) -> Sink:
    return SqliteSink(url)


def main() -> None:
    with refold.open("file:desk") as log:
        log.observe("tool_config/acme", {"rate_limit": 100}, source="deployer")
        log.observe("tool_config/acme", {"rate_limit": 50}, source="operator")
        log.flush()
        sink = open_sink("desk.db")
        report = keep_up(log.port, sink, follow=False, stop=Event())
        print(f"loaded {report.entities} entity")
        log.observe("tool_config/acme", {"rate_limit": 75}, source="operator")
        log.flush()
        report = keep_up(log.port, sink, follow=False, stop=Event())
        print(f"then {report.changes} change")
        print("at the log's end:", sink.position() == log.point().cut)
        sink.close()
    database = sqlite3.connect("desk.db")
    print(*database.execute("SELECT entity, version, json_extract(fields, '$.rate_limit') FROM state").fetchone())
    for old, new in database.execute("SELECT old, new FROM history WHERE field = 'rate_limit' ORDER BY version"):
        print(f"rate_limit {old} -> {new}")
    database.close()


if __name__ == "__main__":
    main()
