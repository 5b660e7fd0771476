"""The limits of a `file:` log in this process: its owner's server, appended observations, messages and tables."""

from __future__ import annotations

from dataclasses import dataclass

from refold.streams.table.limits import DEFAULT_TABLE_LIMITS, TableLimits

MESSAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class FileLogLimits:
    """Limits that change when something is refused, written or closed, but never what is stored.

    Attributes:
        connections_max: The number of connections to the owner's server (server.py).
        first_s: The time within which a new connection sends its first request, in seconds.
        message_s: The time from a request's first byte to its last, in seconds.
        answer_s: The time from an answer's first byte until all of it is received, in seconds.
        message_bytes_max: The size of a request or an answer (framing.py).
        batch_records, batch_bytes: The number and the size of appended observations at which a batch is written or sent
            (outbox.py).
        kept_records, kept_bytes: The number and the size of kept observations at which a flush is due.
        table: How much of the owner's entity tables is written at a time.
    """

    connections_max: int = 64
    first_s: float = 10.0
    message_s: float = 30.0
    answer_s: float = 60.0
    message_bytes_max: int = MESSAGE_BYTES_MAX
    batch_records: int = 5000
    batch_bytes: int = 8 << 20
    kept_records: int = 50_000
    kept_bytes: int = 64 << 20
    table: TableLimits = DEFAULT_TABLE_LIMITS


DEFAULT_LIMITS = FileLogLimits()
