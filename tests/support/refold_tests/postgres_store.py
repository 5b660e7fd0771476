"""A PostgreSQL sink's schema as the conformance suite reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from refold.sinks.port import Sink
from refold.sinks.postgres.columns import column_name
from refold.sinks.postgres.sink import PostgresSink
from refold.sinks.postgres.tables import HISTORY, POSITION
from refold.sinks.states import unpacked
from refold.streams.cut import parse_cut
from refold.testing.sinks import Store, StoreContent
from refold_tests.sink_logs import SinkLog

SCHEMA = "refold"


class PostgresStore(Store):
    """The sink's schema in a database. followed: the log, whose definitions are needed to show fields."""

    name = "postgres"

    def __init__(self, url: str, followed: SinkLog) -> None:
        self.url = url
        self._followed = followed

    def open(self) -> Sink:
        return PostgresSink(self.url)

    def content(self) -> StoreContent:
        """Return what users see: each type's own columns. `_held` is compared instead of columns that lose
        information.
        """
        with psycopg.connect(self.url) as connection:
            cut_row = connection.execute(f"SELECT cut FROM {SCHEMA}.{POSITION}").fetchone()
            assert cut_row is not None
            cut = parse_cut(cut_row[0])
            states: dict[str, Any] = {}
            for (table,) in connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename NOT LIKE 'refold\\_%%'", (SCHEMA,)
            ).fetchall():
                states.update(self._states(connection, table, cut.schemas))
            rows = connection.execute(
                f"SELECT entity, version, field, op, key, old, new, encode(observation, 'hex') FROM {SCHEMA}.{HISTORY}"
            ).fetchall()
        return StoreContent(cut, states, [(*head, _shown(old), _shown(new), by) for *head, old, new, by in rows])

    def _states(self, connection: Any, table: str, schemas: int) -> Iterator[tuple[str, Any]]:
        from refold.streams.view import _formatters_of  # the function with which views show fields

        definition = self._followed.log.registry.newest(table, schemas).definition
        formatters = _formatters_of(definition, False)
        own = "_entity, _version, encode(_state_hash, 'hex'), _links, _held"
        fields = sql.SQL("").join(
            sql.SQL(", ") + sql.Identifier(column_name(name)) for name in definition.by_first_name
        )
        query = sql.SQL("SELECT {} {} FROM {}").format(sql.SQL(own), fields, sql.Identifier(SCHEMA, table))
        for entity, version, state_hash, links, held, *columns in connection.execute(query):
            state = unpacked(entity, definition, held)
            assert state is not None
            assert (state.version, state.state_hash.hex(), state.links) == (version, state_hash, links)
            shown = {name: formatters[name](value) for name, value in state.fields.items()}
            plain = {
                name: value for name, value in zip(definition.by_first_name, columns, strict=True) if value is not None
            }
            # A text column holds a Blob as JSON.
            plain |= {name: json.loads(plain[name]) for name in plain if isinstance(shown[name], dict)
                      and isinstance(plain[name], str)}  # fmt: skip
            assert {name: _shown(value) for name, value in plain.items()} == shown
            yield entity, (version, state_hash, shown, links)


def _shown(value: Any) -> Any:
    """Convert a numeric to an int or float: PostgreSQL writes large numbers digit by digit."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        return value
    return int(value) if value == int(value) and -(2**63) <= value < 2**64 else float(value)
