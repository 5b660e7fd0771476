"""What PostgreSQL's errors mean for a sink: wait and try again, or nothing that waiting mends.

By SQLSTATE where there is one. While connecting libpq gives none: what it says of passwords, roles and databases is
refused, everything else (nobody listens, starting up, too many clients) is waited for.
"""

from __future__ import annotations

import psycopg

from refold.avro.errors import RefoldError
from refold.sinks.port import SinkBusy, SinkRefused
from refold.sinks.postgres.address import PostgresAddress

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
    "0A000": "views or rules of your own may stand on the table: drop them, or name another schema with ?schema=",
    "2BP01": "views or rules of your own may stand on the table: drop them, or name another schema with ?schema=",
}


def fault(address: PostgresAddress, error: psycopg.Error) -> RefoldError:
    """The same as a sink's error; its message holds no secret."""
    said = address.clean(str(error) or type(error).__name__)
    state = error.sqlstate or ""
    if not state:
        lasting = isinstance(error, psycopg.ProgrammingError) or any(word in said for word in _LASTING_WORDS)
        if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or lasting:
            return SinkRefused(f"{address.place}: {said}")
        return SinkBusy(f"{address.place}: {said}", RETRY_S)
    if state.startswith(_PASSING):
        return SinkBusy(f"{address.place}: {said} ({state})", RETRY_S)
    remedy = next((text for start, text in _REMEDIES.items() if state.startswith(start)), "")
    return SinkRefused(f"{address.place}: {said} ({state}){remedy and '; '}{remedy}")
