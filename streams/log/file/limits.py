"""The limits of a `file:` log in this process: its owner's server, appended observations, and messages."""

from __future__ import annotations

from dataclasses import dataclass

MESSAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class FileLogLimits:
    """Limits that change when something is refused, written or closed, but never what is stored.

    The owner's server (server.py):
    connections_max: the number of connections.
    first_s: a new connection sends its first request within so many seconds.
    message_s: a request is complete so many seconds after its first byte.
    answer_s: an answer is received so many seconds after its first byte.
    message_bytes_max: the size of a request or an answer (framing.py).

    Appended observations (outbox.py):
    batch_records, batch_bytes: a batch is written or sent once so many wait for it.
    kept_records, kept_bytes: a flush is due once so many are kept.
    """

    connections_max: int = 64
    first_s: float = 10.0
    message_s: float = 30.0
    answer_s: float = 60.0
    message_bytes_max: int = MESSAGE_BYTES_MAX
    batch_records: int = 1000
    batch_bytes: int = 8 << 20
    kept_records: int = 50_000
    kept_bytes: int = 64 << 20


DEFAULT_LIMITS = FileLogLimits()
