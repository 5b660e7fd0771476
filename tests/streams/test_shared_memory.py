"""Databases of one process that share a block cache and a write-buffer budget, and folders told apart by their kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from refold.avro.errors import InputError
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import SHARED_WRITE_BYTES, Family, Memory
from refold_tests.waiting import await_true

WRITTEN: dict[Family, int] = {"state": 1_000, "timeline": 250, "arrivals": 250, "ids": 250}
"""Bytes per value."""


@pytest.mark.parametrize("databases", [1, 4, 16])
def test_write_buffers_stay_within_one_budget(databases: int, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    memory = Memory(databases)
    each = [Database.create(tmp_path / str(number), kind="table", memory=memory) for number in range(databases)]
    try:
        written = 0
        while written < 5 * SHARED_WRITE_BYTES:
            for database in each:
                batch = database.batch()
                for _ in range(100):
                    for family, size in WRITTEN.items():
                        batch.put(family, rng.randbytes(20), rng.randbytes(size))
                written += batch.size_bytes
                database.write(batch, sync=False)
            # Buffers that are being flushed count until they are on the disk.
            await_true(lambda: 0 < memory.buffers.get_usage() < 1.5 * SHARED_WRITE_BYTES)
    finally:
        for database in each:
            database.close()


def test_shared_memory_does_not_change_stored_data(tmp_path: Path) -> None:
    memory = Memory(2)
    with Database.create(tmp_path / "table", kind="table", memory=memory) as database:
        batch = database.batch()
        batch.put("state", b"key", b"value")
        database.write(batch, sync=False)
    with Database.open(tmp_path / "table", kind="table", memory=memory) as database:
        assert database.get("state", b"key") == b"value"


def test_table_is_no_log_and_log_is_no_table(tmp_path: Path) -> None:
    Database.create(tmp_path / "table", kind="table").close()
    Database.create(tmp_path / "log").close()
    with pytest.raises(InputError, match="not a"):
        Database.open(tmp_path / "table")
    with pytest.raises(InputError, match="not a"):
        Database.open(tmp_path / "log", kind="table")
    with pytest.raises(InputError, match="not a"):
        Database.create(tmp_path / "table")
