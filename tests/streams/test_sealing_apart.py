"""Sealing in a separate process: the same bytes as without one, whatever happens to the process or its owner."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from refold.avro.errors import CorruptionError, StorageError
from refold.reducers.arithmetic import Count
from refold.streams import runtime
from refold.streams.snapshots.chunk import Group
from refold.streams.snapshots.closed_entities import ClosingRule
from refold.streams.snapshots.dirty_entities import DirtyEntities
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.sealing_process.sealer import ProcessSealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.snapshotter import Snapshotter
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.table import TableView
from refold_tests.processes import is_gone
from refold_tests.sealing import MemoryStore, Table, View
from refold_tests.world import LOG_ID

Over = Callable[..., ProcessSealer]
APART = SnapshotSettings(process_entities_min=0)
"""A separate process seals tables of any size."""
SAID = "are sealed in this process from now on"


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the process with one core too."""
    monkeypatch.setattr(runtime, "cores", lambda: 2)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def over() -> Iterator[Over]:
    """Makes sealers over stores."""
    with ExitStack() as ending:

        def made(store: MemoryStore, partitions: int = 1, settings: SnapshotSettings = APART) -> ProcessSealer:
            found = ProcessSealer(store, LOG_ID, partitions, settings=settings)
            ending.callback(found.close)
            return found

        yield made


@pytest.fixture
def apart(store: MemoryStore, over: Over) -> ProcessSealer:
    return over(store)


def pid_of(sealer: ProcessSealer) -> int:
    assert sealer._child is not None
    return sealer._child._process.pid


def changed(table: Table, times: int, closing_chance: float = 0.5) -> View:
    for _ in range(times):
        table.change(closing_chance)
    return table.view()


def assert_sealed(store: MemoryStore, view: View) -> None:
    layers = read_epoch(store, store.manifest(view.epoch_state.epoch), 1, ChunkStore())
    assert dict(layers.rows()) == view.packed


@pytest.mark.parametrize(("names", "closing_chance"), [(40, 0.0), (4_000, 0.5)])
def test_sealing_process_writes_the_same_as_in_process_sealing(
    seed: int,
    names: int,
    closing_chance: float,
    store: MemoryStore,
    over: Over,
) -> None:
    """Bases, deltas, cold spans and their merges, in small and large parts."""
    apart = over(store, settings=replace(APART, message_bytes=10_000))
    rng = random.Random(seed)
    table, beside = Table(rng, names), MemoryStore()
    here = Sealer(beside, LOG_ID, 1)
    bases = colds = 0
    for _ in range(12):
        view = changed(table, rng.choice((0, 1, names // 2, 2 * names)), closing_chance)
        manifest = apart.seal(view)
        assert manifest == here.seal(view)
        assert store.held == beside.held
        assert store.manifests == beside.manifests
        assert_sealed(store, view)
        bases += manifest.is_base
        colds = max(colds, len(manifest.cold))
    assert apart._child is not None
    assert bases > 1
    assert (colds > 0) == (closing_chance > 0)


@pytest.mark.faults
def test_killed_sealing_process_is_replaced_by_in_process_sealing(
    seed: int, store: MemoryStore, apart: ProcessSealer, caplog: pytest.LogCaptureFixture
) -> None:
    """At any moment of an epoch: it is still sealed, and the failure is logged once."""
    rng = random.Random(seed)
    table = Table(rng, 2_000)
    apart.seal(changed(table, 4_000))
    pid = pid_of(apart)
    killing = threading.Timer(rng.random() * 0.2, os.kill, (pid, signal.SIGKILL))
    killing.start()
    while not caplog.records:
        view = changed(table, 500)
        apart.seal(view)
        assert_sealed(store, view)
    assert is_gone(pid)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert SAID in record.message
    assert "ended by signal 9" in record.message
    for _ in range(3):
        view = changed(table, 500)
        apart.seal(view)
        assert_sealed(store, view)
    assert len(caplog.records) == 1


class Counting(MemoryStore):
    """Knows how many epochs were abandoned."""

    abandoned = 0

    def abandon(self, partition: int) -> None:
        self.abandoned += 1


class Failing(Counting):
    """Refuses to append while it has an error, or the one record that is `fatal` more away."""

    error: Exception | None = None
    fatal = -1

    def append(self, partition: int, data: bytes) -> None:
        self.fatal -= 1
        if self.error is not None:
            raise self.error
        if self.fatal == 0:
            raise StorageError("this one, once")
        super().append(partition, data)


@pytest.mark.parametrize("error", [StorageError("the disk is full"), CorruptionError("a bit"), ValueError("a defect")])
def test_stores_error_is_raised_in_the_owner(seed: int, over: Over, error: Exception) -> None:
    """The same error, and the process continues with the next epoch."""
    store, table = Failing(), Table(random.Random(seed), 100)
    sealer = over(store)
    sealer.seal(changed(table, 200))
    pid = pid_of(sealer)
    view = changed(table, 20)
    store.error = error
    with pytest.raises(type(error)) as raised:
        sealer.seal(view)
    assert raised.value is error
    store.error = None
    sealer.seal(view)
    assert_sealed(store, view)
    assert pid_of(sealer) == pid


def test_failed_base_is_written_again_at_its_offset(seed: int, over: Over) -> None:
    """Its earlier records stay where they are, and belong to no epoch."""
    store, table = Failing(), Table(random.Random(seed), 25_000)
    sealer = over(store)
    assert [sealer.seal(changed(table, count, 0.0)).is_base for count in (50_000, 19_000)] == [True, False]
    store.fatal = 5
    view = changed(table, 19_000, 0.0)
    assert sealer.seal(view).is_base
    assert store.fatal < 0
    assert_sealed(store, view)


class Interrupting(Counting):
    """Ctrl-C arrives while its latest epoch is requested."""

    is_interrupted = False

    def epochs(self, partition: int) -> Sequence[Epoch]:
        if self.is_interrupted:
            raise KeyboardInterrupt
        return super().epochs(partition)


def test_interrupt_abandons_the_epoch_and_the_next_is_sealed_in_a_process(
    seed: int, over: Over, caplog: pytest.LogCaptureFixture
) -> None:
    store, table = Interrupting(), Table(random.Random(seed), 50)
    sealer = over(store)
    sealer.seal(changed(table, 100))
    pid = pid_of(sealer)
    view = changed(table, 10)
    store.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        sealer.seal(view)
    assert is_gone(pid)
    assert store.abandoned == 1
    store.is_interrupted = False
    sealer.seal(view)
    assert_sealed(store, view)
    assert pid_of(sealer) != pid
    assert caplog.text == ""


class Broken(View):
    """Fails in the middle of its groups."""

    def __init__(self, view: View, error: Exception) -> None:
        super().__init__(view.epoch_state, view.packed, view._touched)
        self._error = error

    def groups(self) -> Iterator[Group]:
        for number, group in enumerate(super().groups()):
            if number == 20:
                raise self._error
            yield group


def test_views_error_is_raised_in_the_owner(seed: int, store: MemoryStore, over: Over) -> None:
    apart = over(store, settings=replace(APART, message_bytes=100))
    view = changed(Table(random.Random(seed), 100), 200)
    error = StorageError("the table was closed")
    with pytest.raises(StorageError) as raised:
        apart.seal(Broken(view, error))
    assert raised.value is error
    assert not store.manifests
    apart.seal(view)
    assert_sealed(store, view)


def test_damaged_range_is_answered_with_a_base_of_the_table(
    seed: int, store: MemoryStore, apart: ProcessSealer
) -> None:
    table = Table(random.Random(seed), 200)
    [span] = apart.seal(changed(table, 400, 0.0)).ranges
    del store.held[span.start]
    views = [changed(table, 100, 0.0) for _ in range(6)]
    last = [apart.seal(view) for view in views][-1]
    assert span not in last.ranges
    assert_sealed(store, views[-1])


def test_damaged_manifest_is_not_built_upon(seed: int, store: MemoryStore, apart: ProcessSealer) -> None:
    table = Table(random.Random(seed), 50)
    first = apart.seal(changed(table, 100))
    store.manifests[first.epoch] = store.manifests[first.epoch][:-1]
    view = changed(table, 3)
    assert apart.seal(view).is_base
    assert_sealed(store, view)


def closing_by(view: View, reducer: Count) -> None:
    """Let its runs be closed by a field of that reducer."""
    view.epoch_state = replace(view.epoch_state, closing={"run": ClosingRule("ended_at", reducer)})


def test_types_that_cannot_be_sent_are_sealed_in_process(
    seed: int, store: MemoryStore, apart: ProcessSealer, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(Count):
        """A reducer of a class that only this function has."""

    view = changed(Table(random.Random(seed), 50), 100)
    closing_by(view, Own("ended_at"))
    apart.seal(view)
    assert_sealed(store, view)
    assert [SAID in record.message for record in caplog.records] == [True]


class Unreadable(Count):
    """A reducer that cannot be sent to another process: unpickling it raises there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_types_that_another_process_cannot_read_are_sealed_in_process(
    seed: int, over: Over, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing()
    sealer = over(store)
    view = changed(Table(random.Random(seed), 50), 100)
    closing_by(view, Unreadable("ended_at"))
    sealer.seal(view)
    assert_sealed(store, view)
    assert store.abandoned == 1, "what the process wrote of the epoch"
    [record] = caplog.records
    assert "no number" in record.message


def test_damage_found_by_the_process_is_no_failure_of_it(seed: int, store: MemoryStore, apart: ProcessSealer) -> None:
    """An unreadable entity, so it is unknown whether it is closed."""
    table = Table(random.Random(seed), 50)
    apart.seal(changed(table, 100))
    pid = pid_of(apart)
    table.types["run"] = b"n" * 32  # so a base of the whole table is due
    view = changed(table, 100)
    name = next(name for name in view.packed if name.startswith("run/"))
    whole = view.packed[name]
    spoiled = {**view.packed, name: whole[:-1]}
    with pytest.raises(CorruptionError):
        apart.seal(View(view.epoch_state, spoiled, view._touched))
    apart.seal(view)
    assert_sealed(store, view)
    assert pid_of(apart) == pid


def test_machine_without_an_interpreter_seals_in_process(
    seed: int,
    store: MemoryStore,
    apart: ProcessSealer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    view = changed(Table(random.Random(seed), 50), 100)
    apart.seal(view)
    assert_sealed(store, view)
    assert "/nowhere/python" in caplog.text


def test_one_core_or_a_small_table_starts_no_process(
    seed: int, over: Over, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(random.Random(seed), 50)
    large = SnapshotSettings(process_entities_min=51)
    several = over(store, 2, large)
    several.seal(changed(table, 500))
    assert several._child is None
    other = Table(random.Random(seed), 50, 1, 2)
    several.seal(changed(other, 500))
    assert several._child is not None, "the tables count together"
    monkeypatch.setattr(runtime, "cores", lambda: 1)
    alone = over(store, settings=large)
    alone.seal(changed(table, 500))
    assert alone._child is None


@pytest.mark.parametrize("cores", [1, 2])
def test_base_is_announced_wherever_it_was_sealed(
    cores: int, seed: int, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cores", lambda: cores)
    said: list[int] = []
    sealer = ProcessSealer(store, LOG_ID, 1, lambda: said.append(len(store.manifests)), settings=APART)
    table = Table(random.Random(seed), 50)
    try:
        manifests = [sealer.seal(changed(table, times, 0.0)) for times in (100, 1, 1, 200)]
        assert (sealer._child is not None) == (cores > 1)
    finally:
        sealer.close()
    assert [each.is_base for each in manifests] == [True, False, False, True]
    assert said == [1, 4]


class Stuck(TableView):
    """Waits in the middle of its groups."""

    def __init__(self, view: View) -> None:
        self.epoch_state = view.epoch_state
        self._view = view
        self.is_reached = threading.Event()

    def members(self, place: int) -> list[tuple[bytes, bytes]]:
        return self._view.members(place)

    def touched(self, start: int) -> dict[bytes, bytes]:
        return dict(self._view.touched(start))

    def groups(self) -> Iterator[Group]:
        yield from self._view.groups()
        self.is_reached.set()
        time.sleep(0.5)


def test_stopping_ends_an_epoch_in_progress(seed: int, store: MemoryStore, apart: ProcessSealer) -> None:
    view = Stuck(changed(Table(random.Random(seed), 50), 100))
    raised: list[BaseException] = []

    def seal() -> None:
        try:
            apart.seal(view)
        except StorageError as error:
            raised.append(error)

    sealing = threading.Thread(target=seal)
    sealing.start()
    assert view.is_reached.wait(300)
    pid = pid_of(apart)
    apart.stop()
    sealing.join(30)
    assert [str(error) for error in raised] == ["the log is being closed"]
    assert is_gone(pid)
    assert not store.manifests


class Stoppable(MemoryStore):
    """As a log's is."""

    def stop(self) -> None:
        pass


def test_log_closes_during_a_snapshot(seed: int, over: Over) -> None:
    """The process is ended once the sealing thread has noticed the close, and not while the thread uses it."""
    store = Stoppable()
    sealer = over(store)
    view = Stuck(changed(Table(random.Random(seed), 50), 100))
    is_over = threading.Event()

    @contextmanager
    def views(_: object) -> Iterator[list[TableView]]:
        try:
            yield [view]
        finally:
            is_over.set()

    snapshotter = Snapshotter(store, sealer, views, lambda: [0], lambda: 0, touched=DirtyEntities())
    raised: list[BaseException] = []

    def snapshot() -> None:
        try:
            snapshotter.seal()
        except BaseException as error:
            raised.append(error)

    asking = threading.Thread(target=snapshot)
    asking.start()
    assert view.is_reached.wait(300)
    snapshotter.stop()
    assert is_over.is_set()
    asking.join(30)
    assert [(type(error), str(error)) for error in raised] == [(StorageError, "the log is being closed")]
    assert sealer._child is None


@pytest.mark.outside
def test_termination_signals_go_to_the_owner(seed: int, store: MemoryStore, apart: ProcessSealer) -> None:
    """Ctrl-C, or the end of a service, sends the signals to both processes."""
    table = Table(random.Random(seed), 50)
    apart.seal(changed(table, 100))
    pid = pid_of(apart)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    view = changed(table, 10)
    apart.seal(view)
    assert_sealed(store, view)
    assert pid_of(apart) == pid
