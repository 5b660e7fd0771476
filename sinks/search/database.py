"""The search index: an SQLite file with the words of every turn of a log, at one cut.

    meta       format, cut, whether sealed content was asked for, and the price table that costs were made by
    run        agent, conversation and beginning of each run
    turn       each turn; its id is its time, in microseconds, times TURNS_AT_ONCE, so the newest has the greatest
    tokens     the tokens of each model in each turn
    said       FTS5: the text of turns in clear, and facts: tools, models, errors, agents and cost as words of their own
    sealed     the hashes of the words and facts of sealed turns, under a key made of the run's own (words.py). Those of
               a run are next to each other, so adding a turn touches few pages of a large index
    sealed_run the number of each run in `sealed`, and its newest turn
    sealed_filter  a filter of the hashes of each run in `sealed` (filters.py)

1. A batch and its cut are written in one transaction. A write that does not follow the stored cut is refused.
2. A turn that is written again is replaced. Its old hashes stay, because they cannot be listed by turn; a hit is read
   again before it is shown (find.py).
3. Costs are computed again if the price table changed.

The file can be deleted: it is computed again from the log.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refold.agents.usage.of_runs import ModelUsage
from refold.agents.usage.prices import Prices
from refold.agents.usage.tokens import TokenUsage
from refold.sinks.port import SinkBusy, SinkRefused
from refold.sinks.search.filters import WordFilter
from refold.sinks.search.turns import SearchedRun, SearchedTurn
from refold.sinks.search.words import blinded, words_of
from refold.streams.cut import Cut, parse_cut

FORMAT = "3"
TURNS_AT_ONCE = 1 << 11
BUSY_S = 5.0
CACHE_KIB = 256 << 10
"""At most."""
FILTERS_BYTES_MAX = 64 << 20
"""Of filters that a transaction changed: beyond that they are written before its end."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run (
    run TEXT PRIMARY KEY, agent TEXT NOT NULL, session TEXT NOT NULL, started_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS run_session ON run (session);
CREATE TABLE IF NOT EXISTS turn (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, step INTEGER NOT NULL, is_sealed INTEGER NOT NULL,
    error TEXT NOT NULL, facts TEXT NOT NULL, cost REAL, UNIQUE (owner, step));
CREATE TABLE IF NOT EXISTS tokens (
    turn INTEGER NOT NULL, model TEXT NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL,
    cached INTEGER NOT NULL, written INTEGER NOT NULL, written_hour INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS tokens_turn ON tokens (turn);
CREATE TABLE IF NOT EXISTS name (kind TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sealed (
    run INTEGER NOT NULL, word INTEGER NOT NULL, turn INTEGER NOT NULL, PRIMARY KEY (run, word, turn)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sealed_run (number INTEGER PRIMARY KEY, owner TEXT NOT NULL UNIQUE, newest INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sealed_filter (run INTEGER PRIMARY KEY, bits BLOB NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS said USING fts5(
    text, facts, tokenize = "unicode61 remove_diacritics 0 tokenchars '_'");
"""


class SearchDatabase:
    """One open index file. Creates its folder; only the owner may read the file."""

    def __init__(self, path: Path, table: Prices, filters_bytes_max: int = FILTERS_BYTES_MAX) -> None:
        """
        Args:
            path: The index file.
            table: The prices by which costs are made.
            filters_bytes_max: The maximum size in memory of the filters that a transaction changed, in bytes.
                Beyond that they are written before its end.

        Raises:
            SinkRefused: The file is no such index, or cannot be made.
            SinkBusy: SQLite cannot use the file now; for example another process has locked it.
        """
        self.path = path
        self._prices = table
        self._filters_bytes_max = filters_bytes_max
        self._filters: dict[int, WordFilter] = {}  # those that the transaction changed
        self._filters_bytes = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA secure_delete = ON")
            self.connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if not self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                self.connection.executescript(_SCHEMA)
                self.put_meta("format", FORMAT)
        except OSError as error:
            raise SinkRefused(f"{path}: the search index cannot be kept there: {error}") from None
        except sqlite3.OperationalError as error:
            raise SinkBusy(f"{path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise _damaged(path, error) from None
        if self.meta("format") != FORMAT:
            raise SinkRefused(f"{path} is no search index of this refold; remove it, and it is made again")

    def failure(self, error: sqlite3.DatabaseError) -> SinkBusy | SinkRefused:
        """What an error of SQLite means for who reads."""
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SinkBusy(f"{self.path}: {error}")
        return _damaged(self.path, error)

    def meta(self, name: str) -> str | None:
        """A setting."""
        try:
            row = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, error) from None
        return None if row is None else str(row[0])

    def put_meta(self, name: str, value: str) -> None:
        """Store a setting."""
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    @property
    def cut(self) -> Cut | None:
        """The cut of the index; None if it is empty."""
        text = self.meta("cut")
        return None if text is None else parse_cut(text)

    @property
    def has_sealed(self) -> bool:
        """Whether sealed content is in it."""
        return self.meta("sealed") == "yes"

    @property
    def sealed_count(self) -> int:
        """How many turns are sealed."""
        return int(self.connection.execute("SELECT count(*) FROM turn WHERE is_sealed").fetchone()[0])

    def runs_of(self, session: str) -> list[str]:
        """The runs of a conversation."""
        return [run for (run,) in self.connection.execute("SELECT run FROM run WHERE session = ?", (session,))]

    @contextmanager
    def writing(self, before: Cut | None, cut: Cut) -> Iterator[None]:
        """A transaction that moves the index from one cut to another.

        Raises:
            SinkBusy: It is not at the first one.
        """
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self.cut != before:
                    raise SinkBusy(f"{self.path}: another process wrote it in between", 0.1)
                yield
                self._put_filters()
                self.put_meta("cut", str(cut))
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            finally:
                self._forget_filters()
        except sqlite3.OperationalError as error:
            raise SinkBusy(f"{self.path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, error) from None

    def clear(self) -> None:
        """Delete everything but the settings, within a transaction."""
        self._forget_filters()
        for name in ("run", "turn", "tokens", "name", "sealed", "sealed_run", "sealed_filter", "said"):
            self.connection.execute(f"DELETE FROM {name}")
        self.put_meta("prices", self._digest)

    def put_run(self, run: SearchedRun) -> None:
        """What is in clear of a run."""
        self.connection.execute(
            "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?)", (run.run, run.agent, run.session, run.started_at)
        )

    def put_turn(self, turn: SearchedTurn, key: bytes | None = None) -> None:
        """Store a turn, and replace an earlier version of it.

        Args:
            key: The words of a sealed turn are hashed under it.
        """
        connection = self.connection
        self.remove(turn.owner, turn.step)
        number = self._free_id(turn.at)
        cost = self._cost(turn.usage)
        facts = " ".join(_facts(turn))
        connection.execute(
            "INSERT INTO turn VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, turn.owner, turn.step, turn.is_sealed, turn.error, facts, cost),
        )
        connection.executemany(
            "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (number, each.model, tokens.input, tokens.output, tokens.cached, tokens.written, tokens.written_hour)
                for each in turn.usage for tokens in (each.tokens,)
            ],
        )  # fmt: skip
        named = [("tool", each) for each in turn.tools] + [("model", each) for each in turn.models]
        named += [("error", turn.error)] if turn.error else []
        connection.executemany("INSERT OR IGNORE INTO name VALUES (?, ?)", named)
        there = words_of(turn.text or "")
        text = "" if turn.is_sealed else " ".join(there)
        connection.execute(
            "INSERT INTO said (rowid, text, facts) VALUES (?, ?, ?)", (number, text, _with_cost(facts, cost))
        )
        if turn.is_sealed and key is not None:
            (run,) = connection.execute(
                "INSERT INTO sealed_run (owner, newest) VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET newest = max(newest, excluded.newest) RETURNING number",
                (turn.owner, number),
            ).fetchone()
            hashes = sorted(blinded(key, {*there, *facts.split()}))
            connection.executemany(
                "INSERT OR IGNORE INTO sealed VALUES (?, ?, ?)", [(run, word, number) for word in hashes]
            )
            self._add_to_filter(run, hashes)

    def remove(self, owner: str, step: int) -> None:
        """Forget a turn."""
        found = self.connection.execute("SELECT id FROM turn WHERE owner = ? AND step = ?", (owner, step)).fetchone()
        if found is not None:
            self.connection.execute("DELETE FROM said WHERE rowid = ?", found)
            self.connection.execute("DELETE FROM tokens WHERE turn = ?", found)
            self.connection.execute("DELETE FROM turn WHERE id = ?", found)

    def reprice(self) -> None:
        """Compute costs again if they were computed from another price table."""
        if self.meta("prices") == self._digest:
            return
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        counted = "SELECT id, facts FROM turn WHERE id IN (SELECT turn FROM tokens)"
        for number, facts in connection.execute(counted).fetchall():
            cost = self._cost(self.usage(number))
            connection.execute("UPDATE turn SET cost = ? WHERE id = ?", (cost, number))
            connection.execute("UPDATE said SET facts = ? WHERE rowid = ?", (_with_cost(facts, cost), number))
        self.put_meta("prices", self._digest)
        connection.execute("COMMIT")

    def usage(self, number: int) -> list[ModelUsage]:
        """The tokens that the model calls of a turn used."""
        rows = self.connection.execute("SELECT * FROM tokens WHERE turn = ?", (number,))
        return [ModelUsage(row[1], TokenUsage(*row[2:])) for row in rows]

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _add_to_filter(self, run: int, hashes: Sequence[int]) -> None:
        """Add hashes to a run's filter, after they were written to `sealed`."""
        held = self._filters.get(run)
        if held is None:
            row = self.connection.execute("SELECT bits FROM sealed_filter WHERE run = ?", (run,)).fetchone()
            held = WordFilter.of(hashes) if row is None else WordFilter(row[0])
        else:
            self._filters_bytes -= len(held)
        held.add(hashes)
        if held.is_full:
            rows = self.connection.execute("SELECT DISTINCT word FROM sealed WHERE run = ?", (run,))
            held = WordFilter.of([word for (word,) in rows])
        self._filters[run] = held
        self._filters_bytes += len(held)
        if self._filters_bytes > self._filters_bytes_max:
            self._put_filters()
            self._forget_filters()

    def _put_filters(self) -> None:
        self.connection.executemany(
            "INSERT OR REPLACE INTO sealed_filter VALUES (?, ?)",
            ((run, held.bits) for run, held in self._filters.items()),
        )

    def _forget_filters(self) -> None:
        self._filters, self._filters_bytes = {}, 0

    @property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(self._prices.models, sort_keys=True).encode()).hexdigest()

    def _cost(self, usage: Iterable[ModelUsage]) -> float | None:
        found = [self._prices.cost(each.model, each.tokens) for each in usage]
        known = [each for each in found if each is not None]
        return sum(known) if known else None

    def _free_id(self, at: int) -> int:
        """A free id of this microsecond, or of the first later one that has a free id."""
        while True:
            first = at * TURNS_AT_ONCE
            last = first + TURNS_AT_ONCE - 1
            (taken,) = self.connection.execute(
                "SELECT max(id) FROM turn WHERE id BETWEEN ? AND ?", (first, last)
            ).fetchone()
            if taken is None or taken < last:
                return first if taken is None else int(taken) + 1
            at += 1


def fact(kind: str, name: str) -> str:
    """The word that represents a fact in the index; no text contains it."""
    return f"_{kind}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def cost_bucket(cost: float) -> int:
    """The power of two that a cost in microdollars falls in, from 0."""
    return max(0, math.frexp(max(cost, 0) * 1e6)[1])


def _facts(turn: SearchedTurn) -> Iterator[str]:
    yield from (fact("tool", each) for each in turn.tools)
    yield from (fact("model", each) for each in turn.models)
    yield from (fact("error", each) for each in (turn.error,) if each)
    yield from (fact("agent", each) for each in (turn.agent,) if each)


def _with_cost(facts: str, cost: float | None) -> str:
    return facts if cost is None else f"{facts} _cost_{cost_bucket(cost)}"


def _damaged(path: Path, error: Any) -> SinkRefused:
    return SinkRefused(f"{path} is no search index, or is damaged ({error}); remove it, and it is made again")
