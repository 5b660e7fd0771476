"""State and history of a log in PostgreSQL: a table for each type, one for history, and the cut, in one transaction.

A write, and a load likewise:
1. Begin. Take the schema's advisory lock, which ends with the transaction. If it is taken, raise SinkBusy.
2. Compare the cut in refold_position with the one that this write follows. If they differ, raise SinkBusy: another
   process wrote meanwhile, and its write counts.
3. Create or widen tables if a definition is new to this connection.
4. COPY states into a temporary table for each type and upsert from these. COPY history, whose lines are made while the
   server upserts. A load first deletes what it replaces, and copies directly into the tables.
5. Write the cut. Commit: all of the write is stored, or nothing.

Tables of an earlier format are migrated by the first call of `position`, in a separate transaction (migration.py).

After any failure the connection is closed, and the next call opens another. After a commit whose response was lost,
`keep_up` reads the position, which shows whether the commit succeeded.

PostgreSQL's errors are translated: SinkBusy if waiting helps, SinkRefused if not.

The SQLSTATE decides, if there is one. While connecting libpq gives none: then errors about passwords, roles and
databases are refused, and all others (connection refused, starting up, too many clients) are waited for.

Where a PostgreSQL sink writes: a URL as libpq takes it, and refold's own options in its query.

    postgresql://USER@HOST:PORT/DATABASE?schema=refold&history=yes

For missing parts of the URL libpq uses PGHOST, PGUSER, PGPASSWORD and its other variables, ~/.pgpass, and a service
file. A password in the URL is passed to libpq and shown nowhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import psycopg
from psycopg import sql

from refold.avro.errors import InputError, RefoldError
from refold.avro.observation import type_of
from refold.sinks.port import Batch, EntityState, Load, Sink, SinkBusy, SinkRefused
from refold.sinks.postgres.columns import NAME_BYTES_MAX, history_lines, state_line
from refold.sinks.postgres.migration import BEFORE, migrate
from refold.sinks.postgres.tables import FORMAT, Connection, SchemaTables, TypeTable
from refold.streams.cut import Cut, parse_cut
from refold.streams.log.port import LogPort

SCHEMES = ("postgresql", "postgres")
SCHEMA = "refold"
HELP = "give postgresql://USER@HOST:PORT/DATABASE, with ?schema=NAME where refold is not to be its name"
_SWITCH = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A parsed address.

    Attributes:
        conninfo: The connection string for libpq, with its password; never shown.
        secrets: The texts that no message may contain.
    """

    conninfo: str = field(repr=False)
    schema: str
    history: bool
    place: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """Return a message without secrets, on one line."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


def parse_address(url: str, environment_password: str = "") -> PostgresAddress:
    """Parse a database's URL.

    Args:
        url: The URL.
        environment_password: PGPASSWORD, which no message may show either.

    Raises:
        InputError: It is invalid. The message never shows the URL.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise InputError(f"this is not a URL of a PostgreSQL database: {HELP}")
    if rest.partition("?")[0].count("@") > 1 or "#" in url:
        raise InputError("the URL has an @ or # that is not meant as one: write it as %40 or %23 in user and password")
    try:
        parts = urlsplit(url)
        host, port, password = parts.hostname or "", parts.port, unquote(parts.password or "")
    except ValueError:
        raise InputError(f"host and port of the URL cannot be separated: {HELP}") from None
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema, history = given.pop("schema", SCHEMA), given.pop("history", "yes")
    if not schema or len(schema.encode()) > NAME_BYTES_MAX or not schema.isprintable() or schema.startswith("pg_"):
        raise InputError(f"schema={schema!r:.80}: the name of a schema of its own, at most {NAME_BYTES_MAX} bytes")
    if history not in _SWITCH:
        raise InputError(f"history={history!r:.20}: give yes or no")
    secrets = {password, unquote(given.get("password", "")), given.get("sslpassword", ""), environment_password}
    named = "" if port is None else f":{port}"
    place = f"{host}{named}{parts.path}" if host or parts.path.strip("/") else "the database of PGHOST and PGDATABASE"
    given.setdefault("application_name", "refold sink")
    given.setdefault("connect_timeout", "10")
    conninfo = f"postgresql://{rest.partition('?')[0]}?{urlencode(given, quote_via=quote)}"
    # The forms that messages may contain: as given, and as written in the URL.
    shown = {each for each in secrets if each} | {quote(each, safe="") for each in secrets if each}
    return PostgresAddress(
        conninfo, schema, _SWITCH[history], f"PostgreSQL at {place}, schema {schema}",
        tuple(sorted(shown, key=len, reverse=True)),
    )  # fmt: skip


RETRY_S = 1.0
# Classes, and single states: connection, resources, operator's intervention, transactions, read-only, locks.
_PASSING = ("08", "53", "57", "40", "25006", "55P03", "55006", "25P03", "58")
_LASTING_WORDS = (
    "password", "authentication failed", "does not exist", "pg_hba.conf", "certificate", "invalid connection option",
    "invalid sslmode", "invalid URI", "missing \"=\"", "SSL", "permission denied", "service file",
)  # fmt: skip
_REMEDIES = {
    "42501": "grant the role what docs/SINKS.md names",
    "28": "check user and password (PGPASSWORD, ~/.pgpass)",
    "3D000": "create the database, or name another one",
    "0A000": "views or rules of your own may depend on the table: drop them, or name another schema with ?schema=",
    "2BP01": "views or rules of your own may depend on the table: drop them, or name another schema with ?schema=",
}


def fault(address: PostgresAddress, error: psycopg.Error) -> RefoldError:
    """Return the sink's error for an error of psycopg. Its message contains no secret."""
    message = address.clean(str(error) or type(error).__name__)
    state = error.sqlstate or ""
    if not state:
        lasting = isinstance(error, psycopg.ProgrammingError) or any(word in message for word in _LASTING_WORDS)
        if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or lasting:
            return SinkRefused(f"{address.place}: {message}")
        return SinkBusy(f"{address.place}: {message}", RETRY_S)
    if state.startswith(_PASSING):
        return SinkBusy(f"{address.place}: {message} ({state})", RETRY_S)
    remedy = next((text for start, text in _REMEDIES.items() if state.startswith(start)), "")
    return SinkRefused(f"{address.place}: {message} ({state}){remedy and '; '}{remedy}")


LINES_AT_ONCE = 2_000
STATES_AT_ONCE = 10_000


class _Stored(NamedTuple):
    """The row of refold_position."""

    format: int
    cut: Cut


class PostgresSink(Sink):
    """A sink in one schema of a database. It connects at the first call."""

    def __init__(self, url: str) -> None:
        self._address = parse_address(url, os.environ.get("PGPASSWORD", ""))
        self.name = self._address.place
        self.wants_history = self._address.history
        self._tables = SchemaTables(self._address.schema, self.name)
        self._connection: Connection | None = None
        self._log: LogPort | None = None
        digest = hashlib.sha256(b"refold sink\0" + self._address.schema.encode()).digest()
        self._lock = int.from_bytes(digest[:8], "big", signed=True)

    def attach(self, log: LogPort) -> None:
        self._log = log

    def position(self) -> Cut | None:
        with self._transaction() as connection:
            self._migrate(connection)
            return self._position(connection)

    def stored(self, names: Collection[str]) -> Mapping[str, bytes]:
        by_type: dict[str, list[str]] = {}
        for name in names:
            by_type.setdefault(type_of(name), []).append(name)
        found: dict[str, bytes] = {}
        with self._transaction() as connection:
            for type_name, some in by_type.items():
                if type_name in self._tables.known():
                    found.update(connection.execute(self._tables.of(type_name).held, (some,)).fetchall())
        return found

    def load(self, load: Load) -> None:
        with self._fenced(load.before, load.cut) as connection:
            self._tables.forget()
            self._tables.ensure(connection, load.definitions)
            types = load.definitions.keys() if load.types is None else load.types
            for name in types:
                connection.execute(sql.SQL("DELETE FROM {}").format(self._tables.of(name).at))
            delete = sql.SQL("DELETE FROM {} WHERE type = ANY(%s)").format(self._tables.history)
            connection.execute(delete, (sorted(types),))
            found = load.states()
            while some := list(islice(found, STATES_AT_ONCE)):
                for table, states in self._by_table(some):
                    _copy(connection, table.copy, _parts(state_line(table.columns, each) for each in states))
            if self.wants_history:
                _copy(connection, self._tables.copy_history, _parts(map(history_lines, load.history())))

    def write(self, batch: Batch) -> None:
        with self._fenced(batch.before, batch.cut) as connection:
            self._tables.ensure(connection, batch.definitions)
            tables = []
            for table, states in self._by_table(batch.states):
                connection.execute(table.make_new)
                _copy(connection, table.copy_new, _parts(state_line(table.columns, each) for each in states))
                tables.append(table)
            with ThreadPoolExecutor(1, "refold-postgres") as executor:
                taken = [executor.submit(connection.execute, table.take_new) for table in tables]
                history = list(_parts(map(history_lines, batch.history))) if self.wants_history else []
                for each in taken:
                    each.result()
            if history:
                _copy(connection, self._tables.copy_history, history)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _by_table(self, states: Iterable[EntityState]) -> Iterator[tuple[TypeTable, list[EntityState]]]:
        by_type: dict[str, list[EntityState]] = {}
        for each in states:
            by_type.setdefault(each.type, []).append(each)
        for name, some in by_type.items():
            yield self._tables.of(name), some

    def _position(self, connection: Connection) -> Cut | None:
        found = self._stored(connection)
        if found is None:
            return None
        if found.format != FORMAT:
            raise SinkRefused(
                f"{self.name} was written in format {found.format} by another release of refold; use that release, or "
                "name another schema with ?schema="
            )
        return found.cut

    def _stored(self, connection: Connection) -> _Stored | None:
        if not self._tables.is_made(connection):
            return None
        found = connection.execute(sql.SQL("SELECT format, cut FROM {}").format(self._tables.position)).fetchone()
        return None if found is None else _Stored(found[0], parse_cut(found[1]))

    def _migrate(self, connection: Connection) -> None:
        """Migrate tables of an earlier format, if they belong to the log that is followed."""
        found, log = self._stored(connection), self._log
        if found is None or found.format != BEFORE or log is None or found.cut.log_id != log.log_id:
            return
        self._take_lock(connection)
        found = self._stored(connection)
        if found is not None and found.format == BEFORE:
            log.refresh()
            migrate(connection, self._tables, log.registry, found.cut.schemas)

    def _take_lock(self, connection: Connection) -> None:
        locked = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (self._lock,)).fetchone()
        if locked is None or not locked[0]:
            raise SinkBusy(f"{self.name}: another sink is writing there now")

    @contextmanager
    def _fenced(self, before: Cut | None, after: Cut) -> Iterator[Connection]:
        """A transaction that moves the store from one cut to the next, or changes nothing."""
        with self._transaction() as connection:
            self._take_lock(connection)
            if self._position(connection) != before:
                raise SinkBusy(f"{self.name}: another sink wrote there meanwhile", retry_after_s=0.0)
            self._tables.make(connection)
            yield connection
            connection.execute(
                sql.SQL(
                    "INSERT INTO {0} (format, cut, log_id, written_at) VALUES (%s, %s, %s, clock_timestamp()) "
                    "ON CONFLICT (only_one) DO UPDATE SET format = EXCLUDED.format, cut = EXCLUDED.cut, "
                    "log_id = EXCLUDED.log_id, written_at = EXCLUDED.written_at"
                ).format(self._tables.position),
                (FORMAT, str(after), after.log_id.hex()),
            )

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """One transaction, on a connection that is closed if anything fails."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._address.conninfo)
                self._tables.forget()
            with self._connection.transaction():
                yield self._connection
        except psycopg.Error as error:
            self._give_up()
            raise fault(self._address, error) from None  # psycopg's own text may name what must not be shown
        except SinkBusy:
            raise
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Close the connection, and forget the tables: a rollback may have undone their creation or widening."""
        self._tables.forget()
        self.close()


def _copy(connection: Connection, statement: sql.Composed, parts: Iterable[bytes]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in parts:
            copy.write(part)


def _parts(lines: Iterable[str]) -> Iterator[bytes]:
    """COPY's text in parts, so that the client's buffers stay small."""
    rest = iter(lines)
    while some := "".join(islice(rest, LINES_AT_ONCE)):
        yield some.encode()


def open_sink(url: str) -> Sink:
    """For `refold sink postgres --to URL`."""
    return PostgresSink(url)
