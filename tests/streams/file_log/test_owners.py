"""Owners that are silent, end or close: appended records arrive, through the next owner if necessary."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import OwnerSilent, StorageError
from refold.avro.ids import identify
from refold.streams.log.file import log as file_log
from refold.streams.log.file import server
from refold.streams.log.file.client import Client
from refold.streams.log.file.limits import DEFAULT_LIMITS, FileLogLimits
from refold.streams.log.file.log import FileLog
from refold.streams.log.port import LogPort, Marked
from refold.streams.point import Points
from refold.streams.rocks.layout import synced_number
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.child import Child
from refold_tests.cuts import cut_text
from refold_tests.file_logs import FileOpened, Owned, Remote, assert_verified, records_of
from refold_tests.log_handles import assert_folded, put
from refold_tests.sample_types import OTHER, THING, A, said

# Taking over

BATCH_RECORDS = DEFAULT_LIMITS.batch_records


def test_request_as_soon_as_the_socket_exists_is_answered(owned: FileOpened, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []

    def serve_and_ask(path: Path, handler: server.Handler, limits: FileLogLimits) -> server.Server:
        found = server.serve(path, handler, limits)
        with Client(path, 60) as client:
            answers.append(client.call("flush", None))
        return found

    monkeypatch.setattr(file_log, "serve", serve_and_ask)
    with owned() as (log, _):
        put(log, [said(A, 1)])
        log.flush()
    assert answers == [None]


def test_unreachable_process_owns_nothing(owned: FileOpened, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(path: Path, handler: server.Handler, limits: FileLogLimits) -> server.Server:
        raise StorageError(f"{path}: no room for a socket")

    monkeypatch.setattr(file_log, "serve", serve)
    with pytest.raises(StorageError, match="no room for a socket"), owned():
        pass
    monkeypatch.undo()
    with owned() as (log, _):
        put(log, [said(A, 1)])
        log.flush()
        assert_folded(log, [said(A, 1)])


# Flushing


@pytest.mark.parametrize(
    "count",
    [
        1,
        BATCH_RECORDS - 1,
        BATCH_RECORDS,
        BATCH_RECORDS + 1,
        3 * BATCH_RECORDS,
    ],
)
def test_flushed_records_are_synced(owned: FileOpened, count: int) -> None:
    # An epoch that is sealed in the background writes meanwhile, and need not be synced.
    owned.settings = SnapshotSettings(epoch_records=4 * BATCH_RECORDS)
    with owned() as (log, _):
        assert isinstance(log, FileLog)
        put(log, [said(f"{A}{number}", number) for number in range(count)])
        log.flush()
        assert synced_number(owned.path) == log.database.sequence
        log.flush()
        put(log, [said(A, count)])
        log.mark(Marked("m", cut_text(log), 1), replace=False)
        log.flush()
        assert synced_number(owned.path) == log.database.sequence


def test_silent_owner_is_named_in_time_and_appends_arrive_when_it_wakes(
    owned: FileOpened,
) -> None:
    long = "x" * 100_000  # many times what a socket holds: a part of it is lost with the connection
    observations = [said(f"{A}{number}", number, start=f"{number}{long}") for number in range(40)]
    with owned.owned_by_another() as owner:
        log = FileLog(owned.path, clock_ms=owned.clock, new_id=lambda: b"", owner_timeout_s=0.5)
        until_answered(lambda: put(log, [said(A, 0)]))
        until_answered(log.flush)
        marked = Marked("m", cut_text(log), 1)
        owner.signal(signal.SIGSTOP)
        put(log, observations)
        for _ in range(2):
            with pytest.raises(OwnerSilent, match=r"did not answer in 0\.5 s"):
                log.flush()
        with pytest.raises(OwnerSilent):
            log.mark(marked, replace=False)
        owner.signal(signal.SIGCONT)
        until_answered(log.flush)
        until_answered(lambda: log.mark(marked, replace=False))
        assert {each.id for each in records_of(log)} == {identify(each) for each in [said(A, 0), *observations]}
        assert_folded(log, [said(A, 0), *observations])
        log.close()


def until_answered(use: Callable[[], object]) -> None:
    """The owner first has to answer the requests that arrived while it slept."""
    while True:
        try:
            use()
            return
        except OwnerSilent:
            continue


# Taking over


def test_writer_takes_over_with_its_pending_writes_and_its_reads_continue(
    tmp_path: Path, child: Callable[..., Child]
) -> None:
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


def test_writer_that_only_reads_or_marks_takes_over_too(tmp_path: Path, child: Callable[..., Child]) -> None:
    opened = Remote(tmp_path, child)
    uses: list[Callable[[LogPort], None]] = [
        lambda log: log.mark(Marked("m", cut_text(log), 1), replace=True),
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


def test_writer_continues_with_the_next_owner(tmp_path: Path, child: Callable[..., Child]) -> None:
    """Records sent to the first owner but not flushed are sent to the second one, before they are acknowledged."""
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


def test_owner_closes_while_others_write(tmp_path: Path, child: Callable[..., Child]) -> None:
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
