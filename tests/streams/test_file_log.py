"""The embedded log: the conformance suite over each way of having it open, and what is its own."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.avro.errors import CorruptionError, InputError, OwnerSilent, SchemaError, UndecodableError
from refold.avro.ids import identify
from refold.avro.registry import Registry
from refold.streams.log.file.layout import synced_number
from refold.streams.log.file.log import FileLog
from refold.streams.log.file.outbox import BATCH_RECORDS
from refold.streams.log.port import LogPort, Marked, Record
from refold.streams.point import Points
from refold.streams.verify import verify
from refold_tests.child import Child, children
from refold_tests.clock import FileClock
from refold_tests.things import HOLDING, NAMES, OTHER, PICKY, THING, A, said

pytest.register_assert_rewrite("refold_tests.log_conformance")
from refold_tests.log_conformance import (  # noqa: E402
    PARTITIONS,
    Handles,
    LogConformance,
    Opened,
    assert_chain,
    assert_folded,
    changes_of,
    everything,
    put,
    written,
)

OWNER = """
import sys, uuid
from pathlib import Path
from refold.streams.log.file.log import FileLog
from refold_tests.clock import FileClock

log = FileLog(Path(sys.argv[1]), clock_ms=FileClock(Path(sys.argv[2])), new_id=lambda: uuid.uuid4().bytes,
              partitions=int(sys.argv[3]))
assert log.database.is_owner
print("open", flush=True)
sys.stdin.readline()
log.close()
"""


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    with children() as start:
        yield start


class FileOpened(Opened):
    """One `file:` log in a folder."""

    def __init__(self, folder: Path, child: Callable[..., Child]) -> None:
        self.path = folder / "log"
        self.clock = FileClock(folder / "clock")
        self.child = child

    def file(self, *, read_only: bool = False) -> FileLog:
        """The log as this process may have it."""
        return FileLog(
            self.path,
            clock_ms=self.clock,
            new_id=lambda: uuid.uuid4().bytes,
            partitions=PARTITIONS,
            read_only=read_only,
        )

    @contextlib.contextmanager
    def owned_by_another(self) -> Iterator[Child]:
        """A process that owns the log, until the end of the block."""
        owner = self.child(OWNER, self.path, self.clock.path, PARTITIONS)
        assert owner.line() == "open"
        yield owner
        if owner.process.poll() is None:
            owner.say("close")
        assert owner.end() in {0, -9}


class Owned(FileOpened):
    """Written and read by its owner."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with contextlib.closing(self.file()) as log:
            assert log.database.is_owner
            yield Handles(log, log)


class Remote(FileOpened):
    """Written and read beside the process that owns it."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with self.owned_by_another(), contextlib.closing(self.file()) as log:
            assert not log.database.is_owner
            yield Handles(log, log)
            assert not log.database.is_owner


class ReadOnly(FileOpened):
    """Written by its owner, read by a reader that follows."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with (
            contextlib.closing(self.file()) as owner,
            contextlib.closing(self.file(read_only=True)) as reader,
        ):
            yield Handles(owner, reader)


class TestOwner(LogConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return Owned(tmp_path, child)


class TestRemoteWriter(LogConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return Remote(tmp_path, child)


class TestReader(LogConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return ReadOnly(tmp_path, child)


@pytest.fixture
def owned(tmp_path: Path, child: Callable[..., Child]) -> FileOpened:
    return Owned(tmp_path, child)


@pytest.fixture(params=[Owned, Remote])
def opened(request: pytest.FixtureRequest, tmp_path: Path, child: Callable[..., Child]) -> FileOpened:
    found = request.param(tmp_path, child)
    assert isinstance(found, FileOpened)
    return found


# What is refused is not there, and all else is


def test_what_cannot_be_folded_is_refused_alone(opened: FileOpened) -> None:
    """One observation that a custom reducer fails on takes none of its neighbours along, and blocks nothing."""
    good = [said(name, number, start="a") for number, name in enumerate(NAMES[:6])]
    with opened() as handles:
        put(handles.write, [*good[:3], said(f"{A}bad", 99, start="bad"), *good[3:]], PICKY)
        with pytest.raises(SchemaError, match=f"{A}bad: observation [0-9a-f]{{64}} cannot be folded: .*not that"):
            handles.write.flush()
        handles.write.flush()
        put(handles.write, [said(A, 50, start="c")], PICKY)
        handles.write.flush()
        assert sum(handles.read.ends().values()) == len(good) + 1
        assert {name for name, _ in handles.read.stored_entities()} == set(NAMES[:6])


def test_many_that_cannot_be_folded_are_all_refused(opened: FileOpened) -> None:
    every = [said(f"{A}{number}", number, start="bad" if number % 7 == 3 else "a") for number in range(2_500)]
    with opened() as handles, contextlib.suppress(SchemaError):
        put(handles.write, every, PICKY)
        handles.write.flush()
    with opened() as handles:
        found = {name for name, _ in handles.read.stored_entities()}
        assert found <= {each.entity for each in every if each.patch["start"] == "a"}


def test_bytes_of_no_registered_schema_are_refused_alone(opened: FileOpened) -> None:
    codec = Registry().add(OTHER).codec
    stranger = said(f"{OTHER.name}/a", 0)
    with opened() as (log, _):
        put(log, [said(A, 0)])
        log.append(stranger, identify(stranger), codec.encode_observation(stranger))
        put(log, [said(A, 1)])
        with pytest.raises((UndecodableError, SchemaError)):
            log.flush()
        log.flush()
        assert [each.entity for each in records_of(log)] == [A, A]


def test_an_id_that_is_not_the_contents_is_refused_by_the_owner(tmp_path: Path, child: Callable[..., Child]) -> None:
    with Remote(tmp_path, child)() as (log, _):
        put(log, [said(A, 0)])
        codec = log.registry.versions(THING.name)[0].codec
        log.append(said(A, 1), bytes(32), codec.encode_observation(said(A, 1)))
        with pytest.raises(InputError, match="not the id of its content"):
            log.flush()
        log.flush()
        assert [each.id for each in records_of(log)] == [identify(said(A, 0))]


def test_a_definition_that_cannot_fold_what_is_there_is_refused(opened: FileOpened) -> None:
    observations = [said(A, 0, start="a"), said(f"{A}b", 1, start="bad"), said(f"{A}c", 2, start="c")]
    with opened() as handles:
        written(handles, observations)
        with pytest.raises(SchemaError, match=rf"this version cannot fold {A}b: .*not that"):
            handles.write.register(PICKY)
        observations.append(said(A, 3, last=2))
        written(handles, observations[-1:])
    with opened() as handles:
        assert len(handles.read.registry) == 1
        assert_folded(handles.read, observations)


def test_a_reader_refuses_to_write(owned: FileOpened) -> None:
    with owned() as (log, _), contextlib.closing(owned.file(read_only=True)) as reader:
        put(log, [said(A, 0)])
        log.flush()
        reader.refresh()
        uses: list[Callable[[], object]] = [
            lambda: put(reader, [said(A, 1)]),
            lambda: reader.register(OTHER),
            lambda: reader.mark(Marked("m", "cut:1", 1), replace=False),
            lambda: reader.put_blob(bytes(32), b""),
        ]
        for use in uses:
            with pytest.raises(InputError, match="opened for reading"):
                use()
        reader.flush()


# Taking up a definition, cut short


REGISTERING = """
import sys, uuid
from pathlib import Path
from refold.streams.log.file.log import FileLog
from refold_tests.clock import FileClock
from refold_tests.things import HOLDING

log = FileLog(Path(sys.argv[1]), clock_ms=FileClock(Path(sys.argv[2])), new_id=lambda: uuid.uuid4().bytes)
log.register(HOLDING)
"""


@pytest.mark.parametrize("folded_again", [0, 1, 499, 700, 1_199])
def test_a_definition_whose_taking_up_was_killed_is_taken_up_on_opening(
    owned: FileOpened, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch, folded_again: int
) -> None:
    entities = 1_200
    observations = [
        said(f"{A}{number}", number + entities * more, start="xy"[more])
        for more in (0, 1)
        for number in range(entities)
    ]
    observations.append(said(A, 9_999, last=2))  # nothing of the changed field: its hash stays
    with owned() as handles:
        written(handles, observations)
    # One call for each "x" and "y" to see that they can be folded, then as many as they are folded again.
    monkeypatch.setenv("REFOLD_HOLD_AT", str(2 * entities + 2 * folded_again + 1))
    registering = child(REGISTERING, owned.path, owned.clock.path)
    assert registering.line() == "holding"
    registering.kill()
    monkeypatch.delenv("REFOLD_HOLD_AT")
    with owned() as (log, _):
        assert [each.definition.fingerprint for each in log.registry] == [each.fingerprint for each in (THING, HOLDING)]
        chains = changes_of(log)
        assert chains.keys() == {each.entity for each in observations}
        for name, chain in chains.items():
            assert_chain(chain)
            assert [each.redefined for each in chain].count(True) == (name != A)
        assert_verified(log)


# Flushing


@pytest.mark.parametrize("count", [1, BATCH_RECORDS - 1, BATCH_RECORDS, BATCH_RECORDS + 1, 3 * BATCH_RECORDS])
def test_what_was_flushed_is_synced(owned: FileOpened, count: int) -> None:
    with owned() as (log, _):
        assert isinstance(log, FileLog)
        put(log, [said(f"{A}{number}", number) for number in range(count)])
        log.flush()
        assert synced_number(owned.path) == log.database.sequence
        log.flush()
        put(log, [said(A, count)])
        log.mark(Marked("m", "cut:1", 1), replace=False)
        log.flush()
        assert synced_number(owned.path) == log.database.sequence


def test_a_silent_owner_is_named_in_time_and_what_was_appended_arrives_when_it_wakes(
    owned: FileOpened,
) -> None:
    long = "x" * 100_000  # many times what a socket holds: a part of it is lost with the connection
    observations = [said(f"{A}{number}", number, start=f"{number}{long}") for number in range(40)]
    with owned.owned_by_another() as owner:
        log = FileLog(owned.path, clock_ms=owned.clock, new_id=lambda: b"", owner_timeout_s=0.5)
        put(log, [said(A, 0)])
        log.flush()
        owner.signal(signal.SIGSTOP)
        put(log, observations)
        for _ in range(2):
            with pytest.raises(OwnerSilent, match=r"did not answer in 0\.5 s"):
                log.flush()
        with pytest.raises(OwnerSilent):
            log.mark(Marked("m", "cut:1", 1), replace=False)
        owner.signal(signal.SIGCONT)
        until_answered(log.flush)
        until_answered(lambda: log.mark(Marked("m", "cut:1", 1), replace=False))
        assert {each.id for each in records_of(log)} == {identify(each) for each in [said(A, 0), *observations]}
        assert_folded(log, [said(A, 0), *observations])
        log.close()


def until_answered(use: Callable[[], object]) -> None:
    """The owner first has to get through what it was asked while it slept."""
    while True:
        try:
            use()
            return
        except OwnerSilent:
            continue


# Taking over


def test_a_writer_takes_over_with_all_it_has_and_its_reads_go_on(tmp_path: Path, child: Callable[..., Child]) -> None:
    opened = Remote(tmp_path, child)
    first = [said(A, number) for number in range(600)]
    second = [said(A, number) for number in range(600, 2_900)]
    with opened.owned_by_another() as owner, contextlib.closing(opened.file()) as log:
        for start in range(0, 600, 100):
            put(log, first[start : start + 100])
            log.flush()
        partition = log.partition_of(A)
        reads = [log.read(partition, 0, 600), log.entity_records(A, 600)]
        changes = log.read_changes(partition, 0)
        assert [next(each).offset for each in reads] == [0, 0]
        assert next(changes).offset == 0
        put(log, second)  # of these 2,000 are sent, 300 wait
        owner.kill()
        log.flush()
        assert log.database.is_owner
        assert [[each.offset for each in read] for read in reads] == [list(range(1, 600))] * 2
        assert [each.offset for each in changes] == [1, 2, 3, 4, 5]
        assert_folded(log, [*first, *second])
        assert {each.id for each in records_of(log)} == {identify(each) for each in (*first, *second)}
        log.mark(Marked("m", str(Points(log, 0).end()), 1), replace=False)
        assert_verified(log)


def test_a_writer_that_only_reads_or_marks_takes_over_too(tmp_path: Path, child: Callable[..., Child]) -> None:
    opened = Remote(tmp_path, child)
    uses: list[Callable[[LogPort], None]] = [
        lambda log: log.mark(Marked("m", "cut:1", 1), replace=True),
        lambda log: log.register(OTHER),
    ]
    for use in uses:
        with opened.owned_by_another() as owner, contextlib.closing(opened.file()) as log:
            put(log, [said(A, 0)])
            log.flush()
            owner.kill()
            use(log)
            assert log.database.is_owner
    with Owned(tmp_path, child)() as (_, read):
        assert [each.name for each in read.markers()] == ["m"]
        assert [each.definition.name for each in read.registry] == [THING.name, OTHER.name]


def test_a_writer_goes_on_with_the_next_owner(tmp_path: Path, child: Callable[..., Child]) -> None:
    """What was sent to the first owner and not flushed is sent to the second one, before it is acknowledged."""
    opened = Remote(tmp_path, child)
    observations = [said(A, number) for number in range(BATCH_RECORDS + 10)]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(opened.owned_by_another())
        log = stack.enter_context(contextlib.closing(opened.file()))
        put(log, observations)
        first.kill()
        stack.enter_context(Remote(tmp_path, child).owned_by_another())
        log.flush()
        assert not log.database.is_owner
        assert_folded(log, observations)
        assert sum(log.ends().values()) >= 2 * BATCH_RECORDS + 10


def test_an_owner_closes_while_others_write(tmp_path: Path, child: Callable[..., Child]) -> None:
    opened = Remote(tmp_path, child)
    observations = [said(f"{A}{number % 9}", number) for number in range(3_000)]
    with opened.owned_by_another() as owner, contextlib.closing(opened.file()) as log:
        for number, each in enumerate(observations):
            put(log, [each])
            if number == 1_500:
                owner.say("close")
            if number % 50 == 0:
                log.flush()
        log.flush()
        assert log.database.is_owner
        assert_folded(log, observations)
        assert_verified(log)


# Threads and interrupts


def test_other_processes_register_while_the_owner_reads(owned: FileOpened, child: Callable[..., Child]) -> None:
    code = REGISTERING.replace("log.register(HOLDING)", "print('open', flush=True)") + (
        "from refold_tests.things import defined, document\n"
        "for number in range(60):\n"
        "    log.register(defined(document(f'{sys.argv[3]}{number}')))\n"
        "log.close()\n"
    )
    with owned() as (log, _):
        registering = [child(code, owned.path, owned.clock.path, name) for name in ("p", "q")]
        assert [each.line() for each in registering] == ["open", "open"]
        while any(each.process.poll() is None for each in registering):
            log.refresh()
            put(log, [said(A, len(log.registry))])
            log.flush()
        assert [each.end() for each in registering] == [0, 0]
        assert [each.offset for each in log.registry] == list(range(121))
        expected = [each.definition.fingerprint for each in log.registry]
        assert len(set(expected)) == 121
    with owned() as (log, _):
        assert [each.definition.fingerprint for each in log.registry] == expected
        assert_verified(log)


INTERRUPTED = """
import random, signal, sys, uuid
from pathlib import Path
from refold.avro.ids import identify
from refold.streams.log.file.log import FileLog
from refold_tests.clock import FileClock
from refold_tests.log_conformance import put
from refold_tests.things import A, said

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(int(sys.argv[3]))
log = FileLog(Path(sys.argv[1]), clock_ms=FileClock(Path(sys.argv[2])), new_id=lambda: uuid.uuid4().bytes)
interrupts = 0
for number in range(0, 2_000, 20):
    some = [said(f"{A}{rng.randrange(9)}", each) for each in range(number, number + 20)]
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.random() * float(sys.argv[4]))
            put(log, some)
            log.flush()
            signal.setitimer(signal.ITIMER_REAL, 0)
            break
        except KeyboardInterrupt:
            interrupts += 1
    print(" ".join(identify(each).hex() for each in some), flush=True)
assert interrupts > 5, interrupts
log.close()
"""


@pytest.mark.parametrize("kind", [Owned, Remote])
def test_an_interrupted_writer_goes_on_without_loss(
    tmp_path: Path, child: Callable[..., Child], kind: type[FileOpened], seed: int
) -> None:
    """As in a notebook: Ctrl-C in the middle of anything, and the same again."""
    opened = kind(tmp_path, child)
    with opened():
        pass
    with contextlib.ExitStack() as stack:
        if kind is Remote:
            stack.enter_context(opened.owned_by_another())
        # Seconds to an interrupt, at most: a few times what twenty observations take.
        writer = child(INTERRUPTED, opened.path, opened.clock.path, seed, 0.004 if kind is Owned else 0.02)
        acknowledged = []
        while line := writer.line():
            acknowledged += line.split()
        assert writer.end() == 0
    assert len(acknowledged) == 2_000
    with Owned(tmp_path, child)() as (log, _):
        assert {each.id.hex() for each in records_of(log)} == set(acknowledged)
        assert_verified(log)


# Of its own make


def test_ids_that_begin_alike_are_told_apart(owned: FileOpened) -> None:
    ids = [bytes(8) + bytes([number]) * 24 for number in (3, 1, 2)]
    with owned() as (log, _):
        log.register(THING)
        codec = log.registry.versions(THING.name)[0].codec
        for number, each in enumerate(ids):
            log.append(said(f"{A}{number}", 0), each, codec.encode_observation(said(f"{A}{number}", 0)))
        log.flush()
        for number, each in enumerate(ids):
            found = log.find(each)
            assert found is not None
            assert (found.id, found.entity) == (each, f"{A}{number}")
        assert log.find(bytes(8) + bytes([4]) * 24) is None


def test_a_damaged_content_is_an_error(owned: FileOpened) -> None:
    digest = hashlib.sha256(b"content").digest()
    with owned() as (log, _):
        log.put_blob(digest, b"content")
        (owned.path / "blobs" / digest.hex()[:2] / digest.hex()).write_bytes(b"other")
        with pytest.raises(CorruptionError, match="not what its name says"):
            log.blob(digest)


def test_the_number_of_partitions_is_fixed(owned: FileOpened) -> None:
    with owned():
        pass
    with pytest.raises(InputError, match="this log has 4 partitions, fixed when it was made"):
        FileLog(owned.path, clock_ms=owned.clock, new_id=lambda: b"", partitions=8)
    # What was refused lets go of the log.
    with owned() as (log, _):
        assert isinstance(log, FileLog)
        assert log.database.is_owner


def test_two_handles_in_one_process(owned: FileOpened) -> None:
    with owned() as (first, _), contextlib.closing(owned.file()) as second:
        observations = [said(A, number) for number in range(3)]
        assert not second.database.is_owner
        put(second, observations[:1])
        second.flush()
        put(first, observations[1:2])
        first.flush()
        second.refresh()
        assert_folded(second, observations[:2])
        first.close()
        put(second, observations[2:])
        second.flush()
        assert second.database.is_owner
        assert_folded(second, observations)
        assert_verified(second)


def test_still_is_the_log_as_it_was(opened: FileOpened) -> None:
    with opened() as (log, _), contextlib.closing(opened.file()) as other:
        put(log, [said(A, 0)])
        with log.still() as still:
            put(other, [said(A, 1)])
            other.flush()
            assert sum(still.ends().values()) == 1
            assert_folded(still, [said(A, 0)])
        log.refresh()
        assert_folded(log, [said(A, 0), said(A, 1)])


def assert_verified(log: LogPort) -> None:
    """Every table, index and change is what the records say."""
    with log.still() as still:
        assert verify(still, Points(still, 0).end()).mismatches == []


def records_of(log: LogPort) -> Iterator[Record]:
    """All records, partition by partition."""
    for records in everything(log).values():
        yield from records
