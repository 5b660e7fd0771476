"""The embedded database under kills, damage, full devices and a compacting owner, with real processes."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.avro.errors import CorruptionError, InputError, LockedError, StorageError
from refold.streams.log.file import layout
from refold.streams.log.file.database import Database
from refold.streams.log.file.families import FAMILIES
from refold_tests.child import Child, children

CHILD = "import os, signal, sys\nfrom refold.streams.log.file.database import Database\npath = sys.argv[1]\n"


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts Python code with the log's path as `path`."""
    with children() as start:
        yield lambda code, *arguments: start(CHILD + code, *arguments)


def put(database: Database, rows: dict[bytes, bytes], *, sync: bool = True) -> None:
    batch = database.batch()
    for key, value in rows.items():
        batch.put("observations", key, value)
    database.write(batch, sync=sync)


def numbered(count: int) -> dict[bytes, bytes]:
    return {b"%06d" % number: b"value %d" % number for number in range(count)}


# Reading and writing


def test_reads_give_what_was_written_in_order(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("start", "stop"), [(b"", None), (b"000300", b"000900"), (b"0003", b"0009"), (b"9", b"8")])
def test_a_scan_against_the_order_is_the_scan_turned_round(tmp_path: Path, start: bytes, stop: bytes | None) -> None:
    with Database.create(tmp_path / "log") as log:
        put(log, numbered(1_000))
        forth = list(log.scan("observations", start, stop))
        assert list(log.scan("observations", start, stop, reverse=True)) == forth[::-1]


def test_a_scan_is_a_view_of_its_moment(tmp_path: Path) -> None:
    with Database.create(tmp_path / "log") as log:
        put(log, numbered(1_000))
        scan = log.scan("observations")
        next(scan)
        put(log, {b"0005005": b"later"})
        assert len(list(scan)) == 999


def test_a_batch_spans_families_and_keeps_its_order(tmp_path: Path) -> None:
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
        with pytest.raises(InputError, match="make another"):
            log.write(batch, sync=True)
        log.sync()


def test_wrong_calls_are_refused_and_poison_nothing(tmp_path: Path) -> None:
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


def test_close_is_certain_whatever_still_refers_to_the_database(tmp_path: Path) -> None:
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


def test_a_closed_log_needs_no_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Database.create(path) as log:
        put(log, numbered(1_000), sync=False)
    for file in (path / "db").glob("*.log"):
        file.unlink()
    with Database.open(path) as log:
        assert dict(log.scan("observations")) == numbered(1_000)


def test_close_waits_for_reads_under_way(tmp_path: Path) -> None:
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


def test_a_forked_child_does_not_write(tmp_path: Path, child: Callable[..., Child]) -> None:
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


# What stands at a path


def test_what_is_no_log_is_said_without_touching_it(tmp_path: Path) -> None:
    assert not layout.is_log(tmp_path / "nothing")
    with pytest.raises(InputError, match="create it first"):
        Database.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="create it first"):
        Database.read(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()

    (tmp_path / "folder").mkdir()
    assert not layout.is_log(tmp_path / "folder")
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for other in (tmp_path / "folder", tmp_path / "file", tmp_path / "file" / "below"):
        for make in (Database.create, Database.open, Database.read):
            with pytest.raises(InputError):
                make(other)
    assert sorted(tmp_path.rglob("*")) == [
        tmp_path / "file",
        tmp_path / "folder",
        tmp_path / "folder" / "mine.txt",
    ]


def test_a_newer_format_names_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Database.create(path).close()
    assert (path / "FORMAT").read_text() == "refold-file 1\n"
    with pytest.raises(InputError, match="is here already"):
        Database.create(path)
    (path / "FORMAT").write_text("refold-file 2\n")
    for make in (Database.create, Database.open, Database.read):
        with pytest.raises(InputError, match=r"file format 2.*newer refold"):
            make(path)
    (path / "FORMAT").write_text("something else\n")
    with pytest.raises(InputError, match="not a refold log"):
        Database.open(path)


@pytest.mark.faults
def test_a_kill_while_creating_leaves_a_log_or_nothing(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    draw = random.Random(seed)
    # The child dies at its n-th system call of note; past the last one it finishes.
    code = """
import random, threading
log = None
def die(event, arguments, left=[int(sys.argv[2])]):
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "shutil.rmtree") and path in str(arguments[0]):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
threading.Timer(float(sys.argv[3]), os.kill, (os.getpid(), signal.SIGKILL)).start()
Database.create(path)
os.kill(os.getpid(), signal.SIGKILL)
"""
    seen = set()
    for turn in range(fault_rounds):
        path = tmp_path / str(turn)
        for _ in range(draw.randrange(1, 3)):
            child(code, path, draw.randrange(1, 12), draw.uniform(0.0, 0.1)).end()
            if layout.is_log(path):
                break
        seen.add(layout.is_log(path))
        with Database.open(path) if layout.is_log(path) else Database.create(path) as log:
            put(log, {b"k": b"v"})
        with Database.open(path) as log:
            assert log.get("observations", b"k") == b"v"
    assert seen


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


def test_an_owner_killed_while_writing_loses_nothing_acknowledged(
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


def test_a_torn_end_opens(killed: Path) -> None:
    with journal(killed).open("ab") as file:
        file.write(os.urandom(5))
    with Database.open(killed) as log:
        assert sum(1 for _ in log.scan("observations")) == 1_000


@pytest.mark.parametrize("make", [Database.open, Database.read])
@pytest.mark.parametrize("where", [0.02, 0.25, 0.5, 0.75, 0.98])
def test_a_flipped_byte_in_the_write_ahead_log_refuses(
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
def test_a_write_ahead_log_cut_short_refuses(killed: Path, kept: float, make: Callable[[Path], Database]) -> None:
    os.truncate(journal(killed), int(journal(killed).stat().st_size * kept))
    with pytest.raises(CorruptionError, match="write 2000 was acknowledged"):
        make(killed)


@pytest.mark.parametrize("make", [Database.open, Database.read])
def test_a_write_ahead_log_removed_refuses(killed: Path, make: Callable[[Path], Database]) -> None:
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
def test_a_flipped_byte_in_a_table_is_never_a_short_answer(closed: Path, make: Callable[[Path], Database]) -> None:
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
def test_a_missing_file_refuses(closed: Path, pattern: str, make: Callable[[Path], Database]) -> None:
    min((closed / "db").glob(pattern)).unlink()
    with pytest.raises(CorruptionError):
        make(closed)


# A device that takes no more


def test_a_failed_write_is_said_and_nothing_more_is_taken(tmp_path: Path, child: Callable[..., Child]) -> None:
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


def test_a_full_device_says_what_to_do(tmp_path: Path) -> None:
    mount = shutil.which("mount")
    small = tmp_path / "small"
    small.mkdir()
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a small device takes root")
    try:
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
        subprocess.run([mount, "-o", "remount,size=64m", str(small)], check=True)
        with Database.open(small / "log") as log:
            assert sum(1 for _ in log.scan("observations")) == 100
        Database.create(small / "another").close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


# Readers beside an owner


def test_a_reader_sees_what_the_owner_wrote_when_it_catches_up(tmp_path: Path, child: Callable[..., Child]) -> None:
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


def test_a_reader_never_answers_with_an_overwritten_value(tmp_path: Path) -> None:
    """RocksDB's secondary instances do: what they read from the write-ahead log hides later tables."""
    with Database.create(tmp_path / "log") as log, Database.read(tmp_path / "log") as reader:
        for number in range(20):
            put(log, {b"k": b"%d" % number})
            if number % 3 == 0:
                log.compact("observations")
            reader.catch_up()
            assert reader.get("observations", b"k") == b"%d" % number
            assert list(reader.scan("observations")) == [(b"k", b"%d" % number)]


def test_a_reader_leaves_nothing_behind(
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
    """Checks that the reader's view is one moment of the owner's log; the number of its rows."""
    count = int(reader.get("meta", b"count") or b"0")
    assert [int(key) for key, _ in reader.scan("observations")] == list(range(count))
    assert None not in reader.multi_get("observations", [b"%09d" % number for number in range(count)])
    states = sorted(int(value) for _, value in reader.scan("state"))
    assert states == list(range(count - 500, count) if count else [])
    return count


def test_an_owner_compacts_under_a_reader_that_has_not_caught_up(tmp_path: Path, child: Callable[..., Child]) -> None:
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


def test_readers_are_right_while_the_owner_compacts_without_pause(
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
