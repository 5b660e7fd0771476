"""Sealing in a separate process: epochs of other partitions while one takes long, in the same process."""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest

from refold.avro.errors import StorageError
from refold.streams import runtime
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.seal import Sealer, base_due
from refold.streams.snapshots.sealing_process.sealer import ProcessSealer
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold_tests.processes import is_gone
from refold_tests.sealing import MemoryStore, Table, View
from refold_tests.world import LOG_ID

PARTITIONS = 4
NAMES = 300


class Stores(MemoryStore):
    """Several partitions, each with a store; `failing` are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.each: defaultdict[int, MemoryStore] = defaultdict(MemoryStore)
        self.failing: set[int] = set()
        self.abandoned: list[int] = []

    def epochs(self, partition: int) -> Sequence[Epoch]:
        return self.each[partition].epochs(partition)

    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        return self.each[epoch.partition].manifest_bytes(epoch)

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        return self.each[partition].records(partition, start, end)

    def end(self, partition: int) -> int:
        return self.each[partition].end(partition)

    def append(self, partition: int, data: bytes) -> None:
        if partition in self.failing:
            raise StorageError("the disk is full")
        self.each[partition].append(partition, data)

    def abandon(self, partition: int) -> None:
        self.abandoned.append(partition)

    def seal(self, epoch: Epoch, data: bytes) -> None:
        self.each[epoch.partition].seal(epoch, data)


class Tables:
    """One of each partition, which change at random."""

    def __init__(self, rng: random.Random) -> None:
        self.tables = [Table(rng, NAMES, partition, PARTITIONS) for partition in range(PARTITIONS)]

    def view(self, partition: int, changes: int) -> View:
        for _ in range(changes):
            self.tables[partition].change(0.0)
        return self.tables[partition].view()


@pytest.fixture
def store() -> Stores:
    return Stores()


@pytest.fixture
def tables(seed: int) -> Tables:
    return Tables(random.Random(seed))


@pytest.fixture
def apart(store: Stores, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessSealer]:
    """For tables of any size; everything is read and written in many parts."""
    monkeypatch.setattr(runtime, "cores", lambda: 2)
    settings = SnapshotSettings(process_entities_min=0, message_bytes=10_000)
    found = ProcessSealer(store, LOG_ID, PARTITIONS, settings=settings)
    yield found
    found.close()


def pid_of(sealer: ProcessSealer) -> int:
    assert sealer._child is not None
    return sealer._child._process.pid


def assert_sealed(store: Stores, view: View) -> None:
    layers = read_epoch(store, store.manifest(view.epoch_state.epoch), PARTITIONS, ChunkStore())
    assert dict(layers.rows()) == view.packed


def once(call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that runs `call` the first time it is called."""
    left = [call]

    def made() -> None:
        if left:
            left.pop()()

    return made


def test_concurrent_sealing_equals_sealing_alone(
    seed: int, store: Stores, tables: Tables, apart: ProcessSealer
) -> None:
    """Bases and deltas of any partition, between any two parts of another one's."""
    rng = random.Random(seed)
    alone = Stores()
    here = Sealer(alone, LOG_ID, PARTITIONS)
    views: list[View] = []
    between = 0

    def some(partition: int) -> View:
        view = tables.view(partition, rng.choice((1, NAMES // 2, 3 * NAMES)))
        views.append(view)
        return view

    def meanwhile() -> None:
        nonlocal between
        if rng.random() < 0.3:
            apart.seal(some(rng.choice([each for each in range(PARTITIONS) if each != under_way])))
            between += 1

    for number in range(24):
        under_way = number % PARTITIONS
        apart.seal(some(under_way), meanwhile)
    assert between > 0
    for view in views:
        here.seal(view)
        assert_sealed(store, view)
    for partition in range(PARTITIONS):
        assert store.each[partition].held == alone.each[partition].held
        assert store.each[partition].manifests == alone.each[partition].manifests
    assert apart._child is not None


def test_failure_leaves_the_concurrent_epoch_intact(store: Stores, tables: Tables, apart: ProcessSealer) -> None:
    """Its error is raised in its caller, and the process continues."""
    first, second = tables.view(0, 3 * NAMES), tables.view(1, 3 * NAMES)
    store.failing = {1}

    def fail() -> None:
        with pytest.raises(StorageError, match="the disk is full"):
            apart.seal(second)
        assert store.abandoned == [1]

    apart.seal(first, once(fail))
    pid = pid_of(apart)
    assert_sealed(store, first)
    store.failing = set()
    apart.seal(second)
    assert_sealed(store, second)
    assert pid_of(apart) == pid


@pytest.mark.faults
@pytest.mark.parametrize("is_before", [True, False])
def test_kill_during_concurrent_sealing_is_survived(
    store: Stores, tables: Tables, apart: ProcessSealer, caplog: pytest.LogCaptureFixture, is_before: bool
) -> None:
    """Both epochs are sealed in this process; the failure is logged once."""
    first, second = tables.view(0, 3 * NAMES), tables.view(1, 3 * NAMES)

    def kill() -> None:
        pid = pid_of(apart)
        apart.seal(second, once(lambda: os.kill(pid, signal.SIGKILL)) if is_before else lambda: None)
        if not is_before:
            os.kill(pid, signal.SIGKILL)

    apart.seal(first, once(kill))
    assert apart._child is None
    assert_sealed(store, first)
    assert_sealed(store, second)
    assert ["ended by signal 9" in record.message for record in caplog.records] == [True]


def test_interrupt_abandons_both_concurrent_epochs(store: Stores, tables: Tables, apart: ProcessSealer) -> None:
    """Ctrl-C arrives during the second one; the next one is sealed in the separate process again."""
    first, second = tables.view(0, 3 * NAMES), tables.view(1, 3 * NAMES)
    pids = []

    def interrupt() -> None:
        pids.append(pid_of(apart))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apart.seal(first, once(lambda: apart.seal(second, interrupt)))
    assert is_gone(pids[0])
    assert sorted(store.abandoned) == [0, 1]
    for view in (first, second):
        apart.seal(view)
        assert_sealed(store, view)
    assert pid_of(apart) != pids[0]


def test_equally_growing_partitions_have_staggered_bases(tables: Tables) -> None:
    """No two at the same size, and none far from the size of its base."""
    store = Stores()
    manifests = [Sealer(store, LOG_ID, PARTITIONS).seal(tables.view(each, 5 * NAMES)) for each in range(PARTITIONS)]
    due = [base_due(each, DEFAULT_SETTINGS) for each in manifests]
    warm = [store.manifest(store.epochs(each)[-1]).warm for each in range(PARTITIONS)]
    parts = sorted(each / size for each, size in zip(due, warm, strict=True))
    assert 0.7 < parts[0] < parts[-1] < 1.3
    assert all(later - sooner > 0.05 for sooner, later in pairwise(parts))
