"""Databases of one process that share a block cache and a write-buffer budget, and folders told apart by their kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import refold
from refold.avro.errors import InputError
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Family, Memory
from refold_tests.waiting import await_true

WRITE_BYTES = 16 << 20
WRITTEN: dict[Family, int] = {"state": 1_000, "timeline": 250, "arrivals": 250, "ids": 250}
"""Bytes per value."""


@pytest.mark.parametrize("databases", [1, 4, 16])
def test_write_buffers_stay_within_one_budget(databases: int, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    memory = Memory(databases, write_bytes=WRITE_BYTES)
    each = [Database.create(tmp_path / str(number), kind="table", memory=memory) for number in range(databases)]
    try:
        written = 0
        while written < 5 * WRITE_BYTES:
            for database in each:
                batch = database.batch()
                for _ in range(100):
                    for family, size in WRITTEN.items():
                        batch.put(family, rng.randbytes(20), rng.randbytes(size))
                written += batch.size_bytes
                database.write(batch, sync=False)
            # Buffers that are being flushed count until they are on the disk.
            await_true(lambda: 0 < memory.buffers.get_usage() < 1.5 * WRITE_BYTES)
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


def test_owner_of_a_log_has_the_given_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Memory] = []
    limited_to = Memory.limited_to

    def kept(size_bytes: int) -> Memory:
        made.append(limited_to(size_bytes))
        return made[-1]

    monkeypatch.setattr(Memory, "limited_to", kept)
    url, text = f"file:{tmp_path / 'log'}", "x" * 20_000
    for start in (0, 150):  # created, then opened again
        with refold.open(url, memory_bytes=8 << 20) as log:
            for number in range(start, start + 150):
                log.observe(f"document/{number}", {"kind": f"{number}{text}"})
            log.flush()
            assert 0 < made[-1].buffers.get_usage() < 24 << 20
    with refold.open(url, read_only=True) as log:
        assert log.state("document/299").fields["kind"] == f"299{text}"


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1,048,576"):
        refold.open(f"file:{tmp_path / 'log'}", memory_bytes=64)


def test_table_is_no_log_and_log_is_no_table(tmp_path: Path) -> None:
    Database.create(tmp_path / "table", kind="table").close()
    Database.create(tmp_path / "log").close()
    with pytest.raises(InputError, match="not a"):
        Database.open(tmp_path / "table")
    with pytest.raises(InputError, match="not a"):
        Database.open(tmp_path / "log", kind="table")
    with pytest.raises(InputError, match="not a"):
        Database.create(tmp_path / "table")
