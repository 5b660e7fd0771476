"""Reading, writing, owning and closing the embedded database."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.errors import InputError, LockedError, StorageError
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import FAMILIES
from refold_tests.child import Child
from refold_tests.rows import numbered, put

# Reading and writing


def test_reads_return_writes_in_order(tmp_path: Path) -> None:
    with Database.create(tmp_path / "log") as log:
        put(log, numbered(1_000))
        assert log.get("observations", b"000007") == b"value 7"
        assert log.get("observations", b"x") is None
        assert log.get("state", b"000007") is None
        assert log.multi_get("observations", [b"000999", b"x", b"000000"]) == [b"value 999", None, b"value 0"]
        assert log.multi_get("observations", []) == []
        assert list(log.scan("observations")) == sorted(numbered(1_000).items())
        assert [key for key, _ in log.scan("observations", b"000010", b"000013")] == [
            b"000010",
            b"000011",
            b"000012",
        ]
        assert [key for key, _ in log.scan("observations", b"000998")] == [b"000998", b"000999"]
        assert log.last("observations") == (b"000999", b"value 999")
        assert log.last("observations", b"000100", b"000200") == (b"000199", b"value 199")
        assert log.last("observations", b"0005005", b"000501") is None
        assert log.sequence == 1_000


def test_cleared_family_has_no_rows(tmp_path: Path) -> None:
    """Ids are random: some begin with 0xFF."""
    with Database.create(tmp_path / "log") as log:
        rows = {bytes([first]) + bytes(17): b"" for first in range(256)} | {b"\xff" * 8 + bytes(10): b""}
        put(log, rows)
        log.clear("observations")
        assert list(log.scan("observations")) == []


@pytest.mark.parametrize(("start", "stop"), [(b"", None), (b"000300", b"000900"), (b"0003", b"0009"), (b"9", b"8")])
def test_reverse_scan_is_the_reversed_scan(tmp_path: Path, start: bytes, stop: bytes | None) -> None:
    with Database.create(tmp_path / "log") as log:
        put(log, numbered(1_000))
        forth = list(log.scan("observations", start, stop))
        assert list(log.scan("observations", start, stop, reverse=True)) == forth[::-1]


def test_scan_is_a_snapshot(tmp_path: Path) -> None:
    with Database.create(tmp_path / "log") as log:
        put(log, numbered(1_000))
        scan = log.scan("observations")
        next(scan)
        put(log, {b"0005005": b"later"})
        assert len(list(scan)) == 999


def test_rows_of_many_prefixes(tmp_path: Path) -> None:
    """Near and far ranges, with many rows and with none, up to the family's end."""
    numbers = itertools.count()

    @given(st.sets(st.binary(min_size=1, max_size=4), max_size=80), st.sets(st.binary(min_size=2, max_size=2)))
    def check(keys: set[bytes], prefixes: set[bytes]) -> None:
        example = next(numbers).to_bytes(4, "big")
        put(log, {example + key: key for key in keys}, sync=False)
        pinned = log.pin("observations")
        found = list(pinned.prefixed(example + each for each in sorted(prefixes)))
        pinned.release()
        assert found == [
            [(example + key, key) for key in sorted(keys) if key.startswith(each)] for each in sorted(prefixes)
        ]

    with Database.create(tmp_path / "log") as log:
        check()


def test_batch_spans_families_and_keeps_its_order(tmp_path: Path) -> None:
    with Database.create(tmp_path / "log") as log:
        batch = log.batch()
        for family in FAMILIES:
            batch.put(family, b"k", family.encode())
        batch.delete("meta", b"k")
        batch.put("meta", b"k", b"again")
        assert len(batch) == len(FAMILIES) + 2
        assert batch.size_bytes > 0
        log.write(batch, sync=False)
        assert [log.get(family, b"k") for family in FAMILIES[:-1]] == [family.encode() for family in FAMILIES[:-1]]
        assert log.get("meta", b"k") == b"again"
        with pytest.raises(InputError, match="create another"):
            log.write(batch, sync=True)
        log.sync()


def test_invalid_calls_are_refused_without_lasting_effect(tmp_path: Path) -> None:
    with Database.create(tmp_path / "log") as log:
        with pytest.raises(InputError, match="no family 'states'"):
            log.get("states", b"k")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="bytes"):
            log.get("state", "k")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="bytes"):
            log.batch().put("state", "k", b"")  # type: ignore[arg-type]
        put(log, {b"k": b"v"})


# Owning and closing


def test_one_process_owns_the_log(tmp_path: Path, child: Callable[..., Child]) -> None:
    path = tmp_path / "log"
    with Database.create(path), pytest.raises(LockedError, match="owned by a running process"):
        Database.open(path)
    owner = child("log = Database.open(path); print('open', flush=True); sys.stdin.readline()", path)
    assert owner.line() == "open"
    with pytest.raises(LockedError):
        Database.open(path)
    owner.kill()
    Database.open(path).close()


def test_concurrent_openers_are_told_only_of_the_owner(tmp_path: Path, child: Callable[..., Child]) -> None:
    Database.create(tmp_path / "log").close()
    code = """
from refold.avro.errors import LockedError
for _ in range(150):
    try:
        Database.open(path).close()
    except LockedError:
        pass
print("ended", flush=True)
"""
    opening = [child(code, tmp_path / "log") for _ in range(3)]
    assert [each.line() for each in opening] == ["ended"] * 3


def test_close_succeeds_despite_remaining_references(tmp_path: Path) -> None:
    log = Database.create(tmp_path / "log")
    put(log, numbered(1_000))
    batch = log.batch()
    batch.put("meta", b"k", b"v")
    scan, unread = log.scan("observations"), log.scan("observations")
    next(scan)
    log.close()
    log.close()
    again = Database.open(tmp_path / "log")
    with pytest.raises(StorageError, match="closed"):
        list(scan)
    with pytest.raises(StorageError, match="closed"):
        list(unread)
    for use in (
        lambda: log.get("meta", b"k"),
        lambda: log.multi_get("meta", [b"k"]),
        lambda: log.scan("meta"),
        lambda: log.last("meta"),
        lambda: log.write(batch, sync=True),
        lambda: batch.put("meta", b"k", b"v"),
        lambda: log.sequence,
    ):
        with pytest.raises(StorageError, match="closed"):
            use()
    assert again.sequence == 1_000
    again.close()


def test_closed_log_needs_no_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Database.create(path) as log:
        put(log, numbered(1_000), sync=False)
    for file in (path / "db").glob("*.log"):
        file.unlink()
    with Database.open(path) as log:
        assert dict(log.scan("observations")) == numbered(1_000)


def test_close_waits_for_reads_in_progress(tmp_path: Path) -> None:
    log = Database.create(tmp_path / "log")
    put(log, numbered(20_000))
    keys, problems = list(numbered(20_000)), []

    def read() -> None:
        try:
            while True:
                assert None not in log.multi_get("observations", keys)
                assert sum(1 for _ in log.scan("observations")) == 20_000
        except StorageError:
            return
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    log.multi_get("observations", keys)
    log.close()
    for thread in threads:
        thread.join()
    assert problems == []
    Database.open(tmp_path / "log").close()


def test_forked_child_does_not_write(tmp_path: Path, child: Callable[..., Child]) -> None:
    code = """
from refold.avro.errors import InputError
log = Database.create(path)
if os.fork() == 0:
    try:
        log.write(log.batch(), sync=True)
        os._exit(1)
    except InputError:
        os._exit(0)
assert os.wait()[1] == 0
log.close()
"""
    assert child(code, tmp_path / "log").end() == 0
