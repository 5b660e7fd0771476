"""The tables of a sink's schema: created and widened as types evolve, and never dropped.

    refold_position   one row: the cut of the state in all tables
    refold_history    one row for each mutation, by entity, version and number
    TYPE              one row for each entity of the type: refold's own columns, then one for each field

migration.py migrates tables of an earlier format.

A new field gets a column. A field whose type grew gets a wider column. A field that its column cannot hold is refused.
A removed field keeps its column, empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from psycopg import sql

from refold.avro.definition import TypeDefinition
from refold.sinks.port import SinkRefused
from refold.sinks.postgres.columns import (
    HISTORY_COLUMNS,
    OWN_COLUMNS,
    OwnColumn,
    SqlColumn,
    columns_of,
    index_name,
    table_name,
    widens,
)

POSITION, HISTORY = "refold_position", "refold_history"
HISTORY_KEY = ("entity", "version", "mutation")
FORMAT = 2
# The comment of each table, shown by psql.
_COMMENT = (
    "State of the refold log's {type} entities; see refold_position for the cut. Written by refold sink postgres."
)

Connection = psycopg.Connection[tuple[Any, ...]]


class TypeTable:
    """One type's table as it is in the database, and the statements that write it."""

    def __init__(self, schema: str, definition: TypeDefinition, columns: list[SqlColumn]) -> None:
        self.definition = definition
        self.columns = columns
        self.name = table_name(definition.name)
        self.at = sql.Identifier(schema, self.name)
        names = [each.name for each in OWN_COLUMNS] + [each.name for each in columns]
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        self._new = sql.Identifier(f"new_{definition.fingerprint.hex()[:16]}")
        self.copy = sql.SQL("COPY {} ({}) FROM STDIN").format(self.at, listed)
        self.copy_new = sql.SQL("COPY pg_temp.{} ({}) FROM STDIN").format(self._new, listed)
        self.make_new = sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ON COMMIT DELETE ROWS AS "
                                "SELECT {} FROM {} WITH NO DATA").format(self._new, listed, self.at)  # fmt: skip
        self.take_new = sql.SQL("INSERT INTO {at} ({names}) SELECT {names} FROM pg_temp.{new} "
                                "ON CONFLICT (_entity) DO UPDATE SET {sets}").format(
            at=self.at, names=listed, new=self._new,
            sets=sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in names[1:]),
        )  # fmt: skip
        self.held = sql.SQL("SELECT _entity, _held FROM {} WHERE _entity = ANY(%s)").format(self.at)


class SchemaTables:
    """The tables of the schema that this connection knows."""

    def __init__(self, schema: str, place: str) -> None:
        self._schema = schema
        self._place = place
        self._known: dict[str, TypeTable] = {}
        self.position = sql.Identifier(schema, POSITION)
        self.history = sql.Identifier(schema, HISTORY)
        names = sql.SQL(", ").join(sql.Identifier(each.name) for each in HISTORY_COLUMNS)
        self.copy_history = sql.SQL("COPY {} ({}) FROM STDIN").format(self.history, names)

    def at(self, name: str) -> sql.Identifier:
        """A table or an index of the schema, by its name."""
        return sql.Identifier(self._schema, name)

    def forget(self) -> None:
        """Forget the known tables: another connection may have added a new definition's columns."""
        self._known.clear()

    def of(self, type_name: str) -> TypeTable:
        """A type's table, after `ensure` for the type."""
        return self._known[type_name]

    def known(self) -> Iterable[str]:
        """The types whose tables are known."""
        return self._known.keys()

    def is_made(self, connection: Connection) -> bool:
        """Whether a sink's tables are in the schema."""
        query = "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = %s"
        return connection.execute(query, (self._schema, POSITION)).fetchone() is not None

    def make(self, connection: Connection) -> None:
        """Create the schema and refold's own tables if they are missing."""
        if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema)))
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one), "
                "format integer NOT NULL, cut text NOT NULL, log_id text NOT NULL, written_at timestamptz NOT NULL)"
            ).format(self.position)
        )
        if not self.columns(connection, HISTORY):
            listed = _column_list([(each.name, each.sql) for each in HISTORY_COLUMNS])
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self.history, listed))
            self.complete_history(connection)

    def complete_history(self, connection: Connection) -> None:
        """Add keys, indexes and comments to refold_history, whose columns exist."""
        _complete(connection, self.history, HISTORY_COLUMNS, HISTORY_KEY)
        for name in ("recorded_at", "agent"):
            at = sql.Identifier(f"{HISTORY}_{name}"), self.history, sql.Identifier(name)
            connection.execute(sql.SQL("CREATE INDEX {} ON {} ({})").format(*at))

    def complete_type(self, connection: Connection, at: sql.Identifier, table: str, *, keyed: bool = False) -> None:
        """Add keys, index and comments to a type's table.

        Args:
            connection: The connection, in a transaction.
            at: The table, whose columns exist.
            table: Its name.
            keyed: Whether it already has its primary key.
        """
        _complete(connection, at, OWN_COLUMNS, () if keyed else ("_entity",))
        index = sql.Identifier(index_name(table))
        connection.execute(sql.SQL("CREATE INDEX {} ON {} (_recorded_at)").format(index, at))

    def ensure(self, connection: Connection, definitions: Mapping[str, TypeDefinition]) -> None:
        """Create or widen the tables of types, unless they are known to be current."""
        for name, definition in definitions.items():
            known = self._known.get(name)
            if known is None or known.definition.fingerprint != definition.fingerprint:
                self._known[name] = self._ensured(connection, definition)

    def _ensured(self, connection: Connection, definition: TypeDefinition) -> TypeTable:
        held = self.columns(connection, table_name(definition.name))
        columns = columns_of(definition, {name: kind for name, (kind, _) in held.items()})
        found = TypeTable(self._schema, definition, columns)
        if not held:
            wanted = [(each.name, each.sql) for each in OWN_COLUMNS] + [(each.name, each.sql) for each in columns]
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(found.at, _column_list(wanted)))
            comment = sql.Literal(_COMMENT.format(type=definition.name))
            connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(found.at, comment))
            self.complete_type(connection, found.at, found.name)
        elif any(held.get(each.name, ("", ""))[0] != each.sql for each in OWN_COLUMNS):
            raise SinkRefused(f"{self._place}: there is a table {found.name} that refold did not make; name another "
                              "schema with ?schema=")  # fmt: skip
        for column in columns:
            kind, doc = held.get(column.name, (None, "")) if held else (column.sql, "")
            self._widen(connection, found, column, kind)
            if column.doc != doc:
                comment_on(connection, found.at, column.name, column.doc)
        return found

    def _widen(self, connection: Connection, table: TypeTable, column: SqlColumn, held: str | None) -> None:
        name, kind = sql.Identifier(column.name), sql.SQL(column.sql)
        if held is None:
            connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(table.at, name, kind))
        elif held != column.sql and widens(held, column.sql):
            # Every row of the type is rewritten in this transaction.
            using = sql.SQL("NULL" if column.sql == "jsonb" else "{}").format(name)
            connection.execute(
                sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {} USING {}::{}").format(table.at, name, kind, using, kind)
            )
        elif held != column.sql:
            raise SinkRefused(
                f"{self._place}: {table.definition.name}.{column.field} is {column.sql} now, and the column "
                f"{column.name} of {table.name} is {held}: rename or drop that column, and a new one is made, or name "
                "another schema with ?schema="
            )

    def columns(self, connection: Connection, table: str) -> dict[str, tuple[str, str]]:
        """SQL type and comment of a table's columns, by name; empty if there is no such table."""
        query = """
            SELECT attname, format_type(atttypid, atttypmod), coalesce(col_description(pg_class.oid, attnum), '')
            FROM pg_attribute
            JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE nspname = %s AND relname = %s AND attnum > 0 AND NOT attisdropped
        """
        found = connection.execute(query, (self._schema, table)).fetchall()
        return {name: (kind, doc) for name, kind, doc in found}


def comment_on(connection: Connection, table: sql.Identifier, column: str, text: str) -> None:
    """Set a column's comment.

    Args:
        connection: A connection, in a transaction.
        table: The table.
        column: The column's name.
        text: The comment; an empty one removes it.
    """
    comment = sql.Literal(text) if text else sql.SQL("NULL")
    at = sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(table, sql.Identifier(column), comment)
    connection.execute(at)


def _complete(
    connection: Connection, table: sql.Identifier, columns: Iterable[OwnColumn], key: Iterable[str]
) -> None:  # fmt: skip
    for each in columns:
        if not each.is_null:
            name = sql.Identifier(each.name)
            connection.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET NOT NULL").format(table, name))
        comment_on(connection, table, each.name, each.doc)
    if key:
        names = sql.SQL(", ").join(map(sql.Identifier, key))
        connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(table, names))


def _column_list(columns: Iterable[tuple[str, str]]) -> sql.Composed:
    # SQL types are constants of this program, never user input.
    return sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns)
