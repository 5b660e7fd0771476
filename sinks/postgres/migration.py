"""Migrates tables of format 1, which earlier releases wrote, to the present format.

Differences, with format 1 on the left and format 2 after the arrow:

    a string or enum that may be a Blob or Sealed    jsonb, a text in its quotes   ->   text
    a field whose name is a reserved word            a column of that name         ->   that name and `_`
    refold_history.offset                            offset                        ->   offset_
    refold_history                                   no key, (entity, version)     ->   a primary key with `mutation`
    refold's own columns                             may be NULL                   ->   NOT NULL
    indexes on times and agents, comments on columns none                          ->   there

1. A process that opens the sink and finds format 1 begins a transaction and takes the schema's advisory lock.
2. It reads the format again, because another process may have migrated meanwhile.
3. Names and types of columns follow from the definitions that the log held at the cut: of a field that is gone, from
   the last one that had it. Values are converted by the server; the position stays.
4. The rows of one version in refold_history are numbered in their present order.
5. Write format 2. Commit. So a kill at any moment leaves the tables in one of the two formats. A sink of an earlier
release that still runs is refused from then on, because of the format.
"""

from __future__ import annotations

from psycopg import sql

from refold.avro.registry import Registry, TypeVersion
from refold.sinks.postgres.columns import OWN_COLUMNS, SqlColumn, column_name, columns_of, is_reserved, table_name
from refold.sinks.postgres.tables import FORMAT, HISTORY, Connection, SchemaTables, comment_on

BEFORE = 1


def migrate(connection: Connection, tables: SchemaTables, registry: Registry, schemas: int) -> None:
    """Steps 3 to 5.

    Args:
        registry: The log's, with all definitions below `schemas`.
    """
    for type_name, columns in _last_columns(registry, schemas).items():
        _migrate_type(connection, tables, table_name(type_name), columns)
    _migrate_history(connection, tables)
    connection.execute(sql.SQL("UPDATE {} SET format = %s").format(tables.position), (FORMAT,))


def _last_columns(registry: Registry, schemas: int) -> dict[str, dict[str, SqlColumn]]:
    """Each column that a type ever had, by type and by the column's name in format 1."""
    found: dict[str, dict[str, SqlColumn]] = {}
    for version in registry.entries():
        if isinstance(version, TypeVersion) and version.offset < schemas:
            last = found.setdefault(version.definition.name, {})
            # A field that is gone says nothing any more.
            for name, column in last.items():
                last[name] = column._replace(doc="")
            last |= {_name_before(each): each for each in columns_of(version.definition)}
    return found


def _name_before(column: SqlColumn) -> str:
    return column.field if is_reserved(column.field) else column.name


def _migrate_type(connection: Connection, tables: SchemaTables, table: str, columns: dict[str, SqlColumn]) -> None:
    held = tables.columns(connection, table)
    if any(held.get(each.name, ("", ""))[0] != each.sql for each in OWN_COLUMNS):
        return  # not there, or not refold's: who writes it next says so
    at = tables.at(table)
    # The longest first: `user_` makes room before `user` takes its name.
    for before in sorted(held.keys() & columns.keys(), key=len, reverse=True):
        column, (kind, _) = columns[before], held[before]
        if before != column.name:
            _rename(connection, at, before, column_name(column.field))
        if column.sql == "text" and kind == "jsonb":
            connection.execute(
                sql.SQL(
                    "ALTER TABLE {0} ALTER COLUMN {1} TYPE text "
                    "USING CASE jsonb_typeof({1}) WHEN 'string' THEN {1} #>> '{{}}' ELSE {1}::text END"
                ).format(at, sql.Identifier(column.name))
            )
        if column.doc:
            comment_on(connection, at, column.name, column.doc)
    tables.complete_type(connection, at, table, keyed=True)


def _migrate_history(connection: Connection, tables: SchemaTables) -> None:
    at = tables.history
    _rename(connection, at, "offset", "offset_")
    # Most versions have one mutation, and their rows are left as they are.
    connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN mutation integer NOT NULL DEFAULT 0").format(at))
    connection.execute(
        sql.SQL(
            "UPDATE {0} AS rows SET mutation = numbered.number FROM (SELECT ctid, row_number() OVER "
            "(PARTITION BY entity, version ORDER BY ctid) - 1 AS number FROM {0}) AS numbered "
            "WHERE rows.ctid = numbered.ctid AND numbered.number > 0"
        ).format(at)
    )
    connection.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN mutation DROP DEFAULT").format(at))
    connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(tables.at(f"{HISTORY}_entity")))
    tables.complete_history(connection)


def _rename(connection: Connection, table: sql.Identifier, before: str, after: str) -> None:
    names = table, sql.Identifier(before), sql.Identifier(after)
    connection.execute(sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(*names))
