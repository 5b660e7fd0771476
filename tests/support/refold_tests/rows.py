"""Plain rows in an embedded database."""

from __future__ import annotations

from refold.streams.rocks.database import Database


def put(database: Database, rows: dict[bytes, bytes], *, sync: bool = True) -> None:
    """Write rows as observations, in one batch."""
    batch = database.batch()
    for key, value in rows.items():
        batch.put("observations", key, value)
    database.write(batch, sync=sync)


def numbered(count: int) -> dict[bytes, bytes]:
    """Return `count` rows, in the order of their keys."""
    return {b"%06d" % number: b"value %d" % number for number in range(count)}
