"""Which partition is sealed next, while the fold continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from refold.avro.errors import StorageError
from refold.streams.snapshots import snapshotter as module
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.snapshotter import Pace, Snapshotter
from refold_tests.waiting import await_true

WAIT_S = 30
HOLDS_BACK = Pace(share=0.1, unsealed_max=100)


class Sealing:
    """Seals nothing, and notes which partitions it was to seal; it stops at each until the test lets it continue.

    bases: the partitions of which every epoch is a base; before it ends others are let in, twice. wholes: those that
    get a base after 32 records, without looking at the changed entities. costs_s: how long the sealing process works
    for an epoch.
    """

    def __init__(self) -> None:
        self.partitions: list[int] = []
        self.viewed: list[list[int]] = []
        self.bases: set[int] = set()
        self.wholes: set[int] = set()
        self.ended: list[int | str] = []
        self.failing: set[int] = set()
        self.pressing: set[int] = set()
        self.let_go: list[tuple[int, int]] = []
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.is_stopped = False
        self.used_s = self.costs_s = 0.0

    @contextmanager
    def views(self, partitions: Collection[int] | None) -> Iterator[list[int]]:
        self.viewed.append(sorted(partitions or ()))
        yield self.viewed[-1]

    def seal(self, partition: int, meanwhile: Callable[[], object]) -> Any:
        self.partitions.append(partition)
        self.begun.release()
        if not self.is_stopped:
            assert self.go_on.acquire(timeout=WAIT_S)
        self.used_s += self.costs_s
        if partition in self.failing:
            raise StorageError("the disk is full")
        if partition in self.bases:
            meanwhile()
            meanwhile()
        self.ended.append(partition)
        return Sealed(partition, is_base=partition in self.bases, is_cold=partition not in self.wholes)

    def is_urgent(self, partition: int) -> bool:
        """As what the fold keeps."""
        return partition in self.pressing

    def sealed(self, partition: int, end: int) -> None:
        """As what the fold keeps."""
        self.let_go.append((partition, end))

    def collect(self, _partitions: object, _now_ms: int) -> list[Any]:
        """As what collects garbage."""
        self.ended.append("collecting")
        return []

    def stop(self) -> None:
        self.is_stopped = True
        self.go_on.release()

    def close(self) -> None:
        pass

    def next_begun(self) -> list[int]:
        """Wait for the next seal to start, and return the started ones."""
        assert self.begun.acquire(timeout=WAIT_S), "no epoch was begun"
        return self.partitions


class Sealed:
    def __init__(self, partition: int, *, is_base: bool, is_cold: bool) -> None:
        self.epoch = Epoch(partition, 10, 1)
        self.is_base = is_base
        self.size = 0
        self.warm = 64
        self.cold = ["closed ones"] if is_cold else []


SETTINGS = SnapshotSettings(epoch_records=8, cpu_share=float("inf"))
NEVER_IDLE = replace(SETTINGS, idle_s=float("inf"))


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def sealing(monkeypatch: pytest.MonkeyPatch) -> Sealing:
    monkeypatch.setattr(module, "Collector", lambda store, *_: store)
    return Sealing()


@contextmanager
def sealed_by(
    sealing: Sealing, clock: Clock, every_ms: int = 0, pace: Pace | None = None, settings: SnapshotSettings = SETTINGS,
    at_once: int = 1,
) -> Iterator[Snapshotter]:  # fmt: skip
    given: Any = sealing
    found = Snapshotter(
        given, given, given.views, lambda: range(4), clock, touched=given, every_ms=every_ms,
        pace=pace, at_once=at_once, settings=settings,
    )  # fmt: skip
    try:
        yield found
    finally:
        found.stop()


def test_most_lagging_partition_is_next(sealing: Sealing) -> None:
    """Whichever was due first: the others are sealed between two long ones."""
    with sealed_by(sealing, Clock()) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        for partition, records in ((1, 3), (2, 9), (3, 5), (0, 1)):
            snapshotter.folded(records, partition)
        for expected in ([0, 2], [0, 2, 3], [0, 2, 3, 1]):
            sealing.go_on.release()
            assert sealing.next_begun() == expected
        snapshotter.folded(6, 2)
        snapshotter.folded(1, 0)
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 2, 3, 1, 2]
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 2, 3, 1, 2, 0], "what came meanwhile counts, in two parts too"


def test_partition_is_due_by_its_share_of_the_records(sealing: Sealing) -> None:
    with sealed_by(sealing, Clock()) as snapshotter:
        snapshotter.folded(7, 0)
        assert not sealing.begun.acquire(timeout=0.3), "of the only partition all are needed"
        snapshotter.folded(4, 1)
        assert sealing.next_begun() == [0], "of two, a half"
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 1]


def test_failed_partition_waits_for_its_next_records_and_blocks_no_other(
    sealing: Sealing, caplog: pytest.LogCaptureFixture
) -> None:
    sealing.failing = {0}
    with sealed_by(sealing, Clock()) as snapshotter:
        snapshotter.folded(9, 0)
        sealing.next_begun()
        snapshotter.folded(4, 1)
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 1]
        sealing.go_on.release()
        assert not sealing.begun.acquire(timeout=0.3), "not at once again"
        assert "the disk is full" in caplog.text
        snapshotter.folded(4, 0)
        assert sealing.next_begun() == [0, 1, 0]


def test_due_partitions_are_sealed_from_views_of_one_moment(sealing: Sealing) -> None:
    """Those with the most records, and none of them twice while one gets a base. One that fails blocks no other."""
    sealing.bases, sealing.failing = {1}, {2}
    with sealed_by(sealing, Clock(), at_once=3) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        for partition, records in ((0, 3), (1, 4), (2, 5), (3, 6)):
            snapshotter.folded(records, partition)
        for expected in ([0, 1], [0, 1, 0], [0, 1, 0, 2], [0, 1, 0, 2, 3]):
            sealing.go_on.release()
            assert sealing.next_begun() == expected
        sealing.go_on.release()
    assert sealing.viewed[:3] == [[0], [1, 2, 3], [0]]


def test_partition_pauses_between_its_epochs_and_others_continue(sealing: Sealing) -> None:
    clock = Clock()
    with sealed_by(sealing, clock, every_ms=300) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        snapshotter.folded(20, 0)
        snapshotter.folded(4, 1)
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 1], "the first has more, and had an epoch just now"
        clock.now_ms += 300
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 1, 0]


def test_urgent_partition_does_not_pause(sealing: Sealing) -> None:
    sealing.pressing.update((0, 1))
    with sealed_by(sealing, Clock(), every_ms=300) as snapshotter:
        for number in range(1, 4):
            snapshotter.folded(8, 0)
            assert sealing.next_begun() == [0] * number
            sealing.go_on.release()
        snapshotter.folded(1, 0)
        snapshotter.folded(8, 1)
        assert sealing.next_begun() == [0, 0, 0, 1], "nothing is sealed for a single record, pressing or not"


def test_urgent_partition_waits_if_it_will_be_sealed_whole(sealing: Sealing) -> None:
    """It gets some 32 records in its time, so what presses is not needed; another gets fewer."""
    clock = Clock()
    sealing.pressing.update((0, 8))
    sealing.wholes.update((0, 8))
    settings = replace(SETTINGS, observations_min=1)
    with sealed_by(sealing, clock, every_ms=300, settings=settings) as snapshotter:
        for partition, expected in ((0, [0]), (8, [0, 8])):
            snapshotter.folded(8, partition)
            assert sealing.next_begun() == expected
            sealing.go_on.release()
        clock.now_ms += 150
        snapshotter.folded(16, 0)
        snapshotter.folded(15, 8)
        assert sealing.next_begun() == [0, 8, 8]
        sealing.go_on.release()
        assert not sealing.begun.acquire(timeout=0.3)
        clock.now_ms += 150
        snapshotter.folded(1, 0)
        assert sealing.next_begun() == [0, 8, 8, 0]


def test_partition_with_too_many_records_does_not_wait(sealing: Sealing) -> None:
    with sealed_by(sealing, Clock(), every_ms=300, pace=HOLDS_BACK) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        sealing.go_on.release()
        snapshotter.folded(99, 0)
        assert not sealing.begun.acquire(timeout=0.3)
        snapshotter.folded(1, 0)
        assert sealing.next_begun() == [0, 0]


def test_urgent_partition_precedes_a_pausing_one(sealing: Sealing) -> None:
    clock = Clock()
    with sealed_by(sealing, clock, every_ms=300) as snapshotter:
        for partition in (0, 1):
            snapshotter.folded(20, partition)
            assert sealing.next_begun() == [*range(partition + 1)]
            sealing.go_on.release()
        sealing.pressing.add(1)
        snapshotter.folded(20, 0)
        snapshotter.folded(8, 1)
        assert sealing.next_begun() == [0, 1, 1]


def test_preimages_are_released_when_their_epoch_is_sealed(sealing: Sealing) -> None:
    sealing.failing = {1}
    with sealed_by(sealing, Clock()) as snapshotter:
        for partition, begun in ((1, [1]), (2, [1, 2]), (3, [1, 2, 3])):
            snapshotter.folded(8, partition)
            assert sealing.next_begun() == begun
            sealing.go_on.release()
    assert sealing.let_go == [(2, 10), (3, 10)]


def test_others_are_sealed_while_a_base_is_written(sealing: Sealing) -> None:
    """One after another, those that lag most first, without the running one; a base among them is not interrupted.

    Records that are not sealed yet would be garbage, so collection runs after all are sealed.
    """
    sealing.bases = {0, 2}
    with sealed_by(sealing, Clock()) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        for partition, records in ((0, 50), (1, 3), (2, 9), (3, 5)):
            snapshotter.folded(records, partition)
        for expected in ([0, 2], [0, 2, 3], [0, 2, 3, 0]):
            sealing.go_on.release()
            assert sealing.next_begun() == expected
        assert sealing.ended == [2, 3, 0, "collecting"]


def test_failure_while_a_base_is_written_leaves_the_base(sealing: Sealing, caplog: pytest.LogCaptureFixture) -> None:
    sealing.bases, sealing.failing = {0}, {1}
    with sealed_by(sealing, Clock()) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        snapshotter.folded(4, 1)
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 1]
        snapshotter.folded(4, 2)
        sealing.go_on.release()
        assert sealing.next_begun() == [0, 1, 2]
        assert "the disk is full" in caplog.text
        sealing.go_on.release()
        snapshotter.folded(4, 1)
        sealing.next_begun()
        assert sealing.ended[:2] == [2, 0]


def test_cpu_of_the_sealing_process_counts_while_records_are_folded(sealing: Sealing) -> None:
    """An hour of work, of which a tenth is allowed: the next epoch waits until a partition has too many records."""
    sealing.costs_s = 3600.0
    with sealed_by(sealing, Clock(), pace=HOLDS_BACK, settings=NEVER_IDLE) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        snapshotter.folded(8, 1)
        sealing.go_on.release()
        assert not sealing.begun.acquire(timeout=0.5), "it rests"
        snapshotter.folded(99, 0)
        assert not sealing.begun.acquire(timeout=0.3)
        snapshotter.folded(1, 0)
        assert sealing.next_begun() == [0, 0]
        sealing.go_on.release()
        assert not sealing.begun.acquire(timeout=0.3), "the other one is due, and it rests again"
        snapshotter.wake()
        assert sealing.next_begun() == [0, 0, 1]


def test_sealing_is_not_limited_when_nothing_is_folded(sealing: Sealing) -> None:
    sealing.costs_s = 3600.0
    with sealed_by(sealing, Clock(), pace=HOLDS_BACK) as snapshotter:
        for partition in range(3):
            snapshotter.folded(8, partition)
        for number in range(3):
            assert len(sealing.next_begun()) == number + 1
            sealing.go_on.release()


def test_no_other_is_sealed_during_a_base_that_used_the_share(sealing: Sealing) -> None:
    sealing.bases, sealing.costs_s = {0}, 3600.0
    with sealed_by(sealing, Clock(), pace=HOLDS_BACK, settings=NEVER_IDLE) as snapshotter:
        snapshotter.folded(8, 0)
        sealing.next_begun()
        snapshotter.folded(8, 1)
        sealing.go_on.release()
        await_true(lambda: sealing.ended == [0, "collecting"], within_s=WAIT_S)
        assert sealing.partitions == [0]
