"""Readers next to an owner that writes and compacts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import InputError
from refold.streams.rocks.database import Database
from refold.streams.rocks.reader import footprint
from refold.streams.rocks.wal_limit import WalLimit
from refold_tests.child import Child
from refold_tests.rows import put
from refold_tests.waiting import await_true


def test_reader_sees_the_owners_writes_after_catching_up(tmp_path: Path, child: Callable[..., Child]) -> None:
    code = """
log = Database.create(path)
number = 0
while True:
    for _ in range(100):
        batch = log.batch()
        batch.put("observations", b"%06d" % number, b"v")
        log.write(batch, sync=True)
        number += 1
    print(log.sequence, flush=True)
    if not sys.stdin.readline():
        break
"""
    owner = child(code, tmp_path / "log")
    assert owner.line() == "100"
    with Database.read(tmp_path / "log") as reader:
        assert reader.sequence == 100
        with pytest.raises(InputError, match="opened for reading"):
            reader.batch()
        for expected in (200, 300, 400):
            scan = reader.scan("observations")
            next(scan)
            owner.say("more")
            assert owner.line() == str(expected)
            assert sum(1 for _ in reader.scan("observations")) == expected - 100
            assert reader.catch_up() == expected
            assert sum(1 for _ in reader.scan("observations")) == expected
            assert sum(1 for _ in scan) == expected - 101
        owner.kill()
        assert reader.catch_up() == 400
        with Database.open(tmp_path / "log") as log:
            assert log.catch_up() == 400
            put(log, {b"last": b"v"})
            assert reader.catch_up() == 401
            assert reader.last("observations") == (b"last", b"v")


def test_reader_never_returns_an_overwritten_value(tmp_path: Path) -> None:
    """RocksDB's secondary instances do this: rows that they read from the write-ahead log hide later tables."""
    with Database.create(tmp_path / "log") as log, Database.read(tmp_path / "log") as reader:
        for number in range(20):
            put(log, {b"k": b"%d" % number})
            if number % 3 == 0:
                log.compact("observations")
            reader.catch_up()
            assert reader.get("observations", b"k") == b"%d" % number
            assert list(reader.scan("observations")) == [(b"k", b"%d" % number)]


def wal_bytes(path: Path) -> int:
    """Return how much a reader has to read of the write-ahead log."""
    return sum(size for name, size in footprint(path)[1:] if name.endswith(".log"))


def test_owner_that_writes_little_keeps_its_write_ahead_log_small(tmp_path: Path) -> None:
    """So that a reader need not read hours of it at each catch-up. An owner that writes much is left to RocksDB."""
    Database.create(tmp_path / "log").close()
    clock = Clock()
    limit = WalLimit(clock, bytes_max=10_000, every_s=30.0)
    with Database.open(tmp_path / "log", wal_limit=limit) as log, Database.read(tmp_path / "log") as reader:
        for number in range(50):
            put(log, {b"%d" % number: bytes(1_000)})
        assert wal_bytes(log.path) > 50_000
        clock.now_s = 30.0
        put(log, {b"50": bytes(1_000)})
        await_true(lambda: wal_bytes(log.path) < 5_000)
        reader.catch_up()
        assert sum(1 for _ in reader.scan("observations")) == 51
        clock.now_s = 90.0
        put(log, {b"51": bytes(1_000)})
        assert not limit.is_due(0), "little was written since"
    with Database.open(tmp_path / "log") as log:
        assert sum(1 for _ in log.scan("observations")) == 52


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_reader_leaves_nothing_behind(
    tmp_path: Path, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    Database.create(path).close()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    code = "Database.read(path).close(); log = Database.read(path); print(len(os.listdir(os.environ['TMPDIR'])))"
    reader = child(code, path)
    assert reader.line() == "1"
    assert reader.end() == 0
    assert list(temporary.iterdir()) == []


OVERWRITER = """
log = Database.create(path)
number = 0
while True:
    for _ in range(5):
        batch = log.batch()
        for _ in range(1_000):
            batch.put("observations", b"%09d" % number, os.urandom(60))
            batch.put("state", b"%03d" % (number % 500), b"%09d" % number)
            number += 1
        # Overlaps all earlier rows, so that compaction rewrites their tables and removes the old ones.
        batch.put("observations", b"%09d" % 0, os.urandom(60))
        batch.put("meta", b"count", b"%d" % number)
        log.write(batch, sync=True)
    for column in log._columns.values():
        column.flush(wait=True)
    log.compact("observations")
    log.compact("state")
    log.compact("meta")
    if number % %s == 0:
        print(number, flush=True)
        if not sys.stdin.readline():
            break
""".replace("% %s", "% int(sys.argv[2])")


def whole(reader: Database) -> int:
    """Check that the reader's view is one moment of the owner's log, and return the number of its rows."""
    count = int(reader.get("meta", b"count") or b"0")
    assert [int(key) for key, _ in reader.scan("observations")] == list(range(count))
    assert None not in reader.multi_get("observations", [b"%09d" % number for number in range(count)])
    states = sorted(int(value) for _, value in reader.scan("state"))
    assert states == list(range(count - 500, count) if count else [])
    return count


def test_owner_compacts_under_a_reader_that_has_not_caught_up(tmp_path: Path, child: Callable[..., Child]) -> None:
    owner = child(OVERWRITER, tmp_path / "log", 50_000)
    assert owner.line() == "50000"
    with Database.read(tmp_path / "log") as reader:
        begun = reader.scan("observations")
        next(begun)
        tables = {file.name for file in (tmp_path / "log" / "db").glob("*.sst")}
        owner.say("more")
        assert owner.line() == "100000"
        assert not tables & {file.name for file in (tmp_path / "log" / "db").glob("*.sst")}
        assert whole(reader) == 50_000
        assert sum(1 for _ in begun) == 49_999
        reader.catch_up()
        assert whole(reader) == 100_000


def test_readers_are_correct_while_the_owner_compacts_continuously(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int
) -> None:
    owner = child(OVERWRITER, tmp_path / "log", 5_000)
    assert owner.line() == "5000"
    feeding = threading.Event()

    def feed() -> None:
        while not feeding.is_set():
            owner.say("more")
            owner.line()

    feeder = threading.Thread(target=feed)
    feeder.start()
    seen = []
    try:
        for _ in range(max(2, fault_rounds // 10)):
            with Database.read(tmp_path / "log") as reader:
                for _ in range(5):
                    seen.append(whole(reader))
                    reader.catch_up()
    finally:
        feeding.set()
        feeder.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
