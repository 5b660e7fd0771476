"""The embedded database under kills, damage and full devices, with real processes."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import CorruptionError, StorageError
from refold.streams.rocks.database import Database
from refold_tests.child import Child
from refold_tests.devices import small_device
from refold_tests.rows import put

# Kills and damage

KILLED_WRITER = """
log = Database.create(path)
for number in range(int(sys.argv[2])):
    batch = log.batch()
    batch.put("observations", b"%06d" % number, os.urandom(100))
    batch.put("state", b"%02d" % (number % 50), b"%06d" % number)
    log.write(batch, sync=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path, child: Callable[..., Child]) -> Path:
    """A log of 1,000 acknowledged batches, all in its write-ahead log, whose owner was killed."""
    path = tmp_path / "log"
    assert child(KILLED_WRITER, path, 1_000).end() == -signal.SIGKILL
    return path


def journal(path: Path) -> Path:
    """The write-ahead log that holds the batches."""
    return max((path / "db").glob("*.log"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("make", [Database.open, Database.read])
def test_acknowledged_batches_survive_a_kill(killed: Path, make: Callable[[Path], Database]) -> None:
    with make(killed) as log:
        assert sum(1 for _ in log.scan("observations")) == 1_000
        assert log.sequence == 2_000


def test_owner_killed_while_writing_loses_nothing_acknowledged(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    code = """
try:
    log = Database.open(path)
except Exception:
    log = Database.create(path)
number = sum(1 for _ in log.scan("observations"))
while True:
    batch = log.batch()
    batch.put("observations", b"%06d" % number, os.urandom(20_000))
    batch.put("meta", b"count", b"%d" % (number + 1))
    log.write(batch, sync=True)
    number += 1
    print(number, flush=True)
"""
    path, draw = tmp_path / "log", random.Random(seed)
    for _ in range(min(fault_rounds, 10)):
        owner = child(code, path)
        acknowledged = 0
        for _ in range(draw.randrange(1, 200)):
            acknowledged = int(owner.line())
        owner.kill()
        with Database.read(path) as reader, Database.open(path) as log:
            count = int(log.get("meta", b"count") or b"0")
            assert count >= acknowledged
            assert [int(key) for key, _ in log.scan("observations")] == list(range(count))
            assert sum(1 for _ in reader.scan("observations")) == count


def test_torn_end_opens(killed: Path) -> None:
    with journal(killed).open("ab") as file:
        file.write(os.urandom(5))
    with Database.open(killed) as log:
        assert sum(1 for _ in log.scan("observations")) == 1_000


@pytest.mark.parametrize("make", [Database.open, Database.read])
@pytest.mark.parametrize("where", [0.02, 0.25, 0.5, 0.75, 0.98])
def test_flipped_byte_in_the_write_ahead_log_is_refused(
    killed: Path, where: float, make: Callable[[Path], Database]
) -> None:
    data = bytearray(journal(killed).read_bytes())
    data[int(len(data) * where)] ^= 0x10
    journal(killed).write_bytes(data)
    with pytest.raises(CorruptionError):
        make(killed)
    assert journal(killed).read_bytes() == data


@pytest.mark.parametrize("make", [Database.open, Database.read])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_truncated_write_ahead_log_is_refused(killed: Path, kept: float, make: Callable[[Path], Database]) -> None:
    os.truncate(journal(killed), int(journal(killed).stat().st_size * kept))
    with pytest.raises(CorruptionError, match="write 2000 was acknowledged"):
        make(killed)


@pytest.mark.parametrize("make", [Database.open, Database.read])
def test_missing_write_ahead_log_is_refused(killed: Path, make: Callable[[Path], Database]) -> None:
    journal(killed).unlink()
    with pytest.raises(CorruptionError, match="write 2000 was acknowledged"):
        make(killed)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A closed log: 20,000 rows in table files."""
    path = tmp_path / "log"
    draw = random.Random(1)
    with Database.create(path) as log:
        put(log, {b"%06d" % number: draw.randbytes(100) for number in range(20_000)})
        batch = log.batch()
        batch.put("state", b"k", b"v")
        log.write(batch, sync=True)
    return path


@pytest.mark.parametrize("make", [Database.open, Database.read])
def test_flipped_byte_in_a_table_never_shortens_an_answer(closed: Path, make: Callable[[Path], Database]) -> None:
    table = max((closed / "db").glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    with make(closed) as log:
        with pytest.raises(CorruptionError, match=rf"scanning observations .* after key b'\d+'.*{table.name}"):
            list(log.scan("observations"))
        with pytest.raises(CorruptionError, match="scanning observations"):
            list(log.scan("observations", reverse=True))
        with pytest.raises(CorruptionError, match="20000 keys of observations"):
            log.multi_get("observations", [b"%06d" % number for number in range(20_000)])
        assert log.get("state", b"k") == b"v"
    Database.open(closed).close()


@pytest.mark.parametrize("make", [Database.open, Database.read])
@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_missing_file_is_refused(closed: Path, pattern: str, make: Callable[[Path], Database]) -> None:
    min((closed / "db").glob(pattern)).unlink()
    with pytest.raises(CorruptionError):
        make(closed)


# A full device


def test_failed_write_is_reported_and_later_writes_are_refused(tmp_path: Path, child: Callable[..., Child]) -> None:
    code = """
import resource
from refold.avro.errors import StorageError
log = Database.create(path)
number = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
try:
    while True:
        batch = log.batch()
        batch.put("observations", b"%06d" % number, os.urandom(10_000))
        log.write(batch, sync=True)
        number += 1
except StorageError as error:
    assert "not acknowledged" in str(error), error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert sum(1 for _ in log.scan("observations")) >= number
try:
    log.write(log.batch(), sync=True)
except StorageError as error:
    assert "a write failed before" in str(error), error
    print(number, flush=True)
log.close()
log = Database.open(path)
log.write(log.batch(), sync=True)
print(sum(1 for _ in log.scan("observations")), flush=True)
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    writer = child(code, tmp_path / "log")
    acknowledged, found = int(writer.line()), int(writer.line())
    assert writer.end() == 0
    assert 50 < acknowledged <= found <= acknowledged + 1


def test_full_device_names_the_remedy(tmp_path: Path) -> None:
    with small_device(tmp_path / "small") as small:
        log = Database.create(small / "log")
        for number in range(100):
            put(log, {b"%06d" % number: os.urandom(100_000)})
        with pytest.raises(StorageError, match="no space left"):
            put(log, {b"%06d" % number: os.urandom(100_000) for number in range(100, 200)})
        log.close()
        with pytest.raises(StorageError, match="no space left"):
            Database.open(small / "log")
        (small / "filler").write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize))
        with pytest.raises(StorageError, match=r"no space left|No space left"):
            Database.create(small / "another")
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        with Database.open(small / "log") as log:
            assert sum(1 for _ in log.scan("observations")) == 100
        Database.create(small / "another").close()
