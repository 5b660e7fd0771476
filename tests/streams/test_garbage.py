"""Garbage collection of snapshots: kept epochs are readable, unneeded data is removed, after a kill at any moment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from refold.streams.log.file.snapshots import FileSnapshotStore
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.snapshots import closed_entities
from refold.streams.snapshots.garbage import GRACE_MS
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.retention_policy import DAY_MS, HOUR_MS, MONTH_MS
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.store import Pin, Tombstone
from refold_tests.damaged import with_changed_end
from refold_tests.opening import PARTITIONS
from refold_tests.world import World, offsets


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.create(tmp_path / "store") as found:
        yield found


def world_of(rng: random.Random, database: Database, settings: SnapshotSettings = DEFAULT_SETTINGS) -> World:
    return World(rng, lambda: FileSnapshotStore(database, PARTITIONS, settings), settings)


@pytest.mark.parametrize("number", range(3))
def test_kept_epochs_are_readable_and_nothing_else_stays(
    database: Database, seed: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed + number)
    settings = SnapshotSettings(
        changed_min=20, chunk_bytes=rng.choice((1, 2_000)), tombs_at_once=2, removed_at_once=3,
        compacted_bytes=rng.choice((1, 1 << 30)),
    )  # fmt: skip
    monkeypatch.setattr(closed_entities, "BUCKET_SLOTS", 64)
    world = world_of(rng, database, settings)
    for _ in range(25):
        for _ in range(rng.choice((1, 4))):
            world.step()
        world.collect()
        world.assert_readable()
    world.assert_readable(1_000)
    world.now_ms += MONTH_MS + DAY_MS
    world.collect()
    world.now_ms += GRACE_MS
    world.collect()
    world.assert_readable()
    assert list(world.store.tombstones()) == []
    assert all(len(world.store.epochs(each)) <= 2 + len(world.pinned) for each in range(PARTITIONS))


def test_slower_rebuilds_are_predicted_correctly(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    told = 0
    for _ in range(5):
        world = world_of(rng, database)
        world.tables = world.tables[:1]
        for _ in range(12):
            world.seal(world.tables[0])
            world.now_ms += rng.choice((0, HOUR_MS // 2, 2 * HOUR_MS))
        before = world.store.epochs(0)
        (report,) = world.collector.collect([0], world.now_ms)
        stretches = [range(each.start, each.end) for each in report.slower]
        more: dict[range, int] = dict.fromkeys(stretches, 0)
        for offset in range(before[-1].offset + 10):
            begins, began = begin(world.store.epochs(0), offset), begin(before, offset)
            stretch = next((each for each in stretches if offset in each), None)
            assert (stretch is not None) == (begins != began)
            if stretch is not None:
                told += 1
                more[stretch] = max(more[stretch], began - begins)
                assert report.slower[stretches.index(stretch)].begins_at == begins
        assert [each.more_records for each in report.slower] == list(more.values())
        for each in [Tombstone(epoch, 0, b"") for epoch in world.store.epochs(0)]:  # for the next round
            world.store.add_tombstone(each)
    assert told


def begin(epochs: Sequence[Epoch], offset: int) -> int:
    """Return the epoch from which a rebuild at an offset starts."""
    return max((each.offset for each in epochs if each.offset <= offset), default=0)


def test_damaged_manifest_keeps_its_partition_until_abandoned(database: Database, seed: int) -> None:
    world = world_of(random.Random(seed), database)
    while world.seal(world.tables[1]).is_base:  # six epochs may all be bases, which are kept for longer
        pass
    for _ in range(6):
        for table in world.tables:
            world.seal(table)
        world.now_ms += 2 * HOUR_MS
    world.store.append(0, b"left")
    first, whole = world.store.epochs(0)[0], world.store.manifest_bytes(world.store.epochs(0)[0])
    assert whole is not None
    world.store.seal(first, with_changed_end(whole))
    world.store.pin(Pin(first, 0))
    held, epochs = world.held(), world.store.epochs(0)
    for dry_run in (True, False):
        one, other = world.collector.collect(range(2), world.now_ms, dry_run=dry_run)
        assert len(one.problems) == 1
        assert str(first) in one.problems[0]
        assert "--damaged" in one.problems[0]
        assert (one.kept, one.removed, one.records) == (len(epochs), (), 0)
        assert other.removed
        assert other.problems == ()
    assert world.store.epochs(0) == epochs
    assert {each: size for each, size in held.items() if each[0] == 0}.items() <= world.held().items()
    given_up = world.collector.collect([0], world.now_ms, damaged=True)[0]
    assert given_up.problems == ()
    assert first in given_up.removed
    assert given_up.records == 0  # the records it named are unknown
    assert first not in world.store.epochs(0)
    assert world.store.pins() == []
    waiting = world.collector.collect([0], world.now_ms + GRACE_MS - 1)[0]
    assert len(waiting.problems) == 1
    assert waiting.records == 0
    last = world.collector.collect([0], world.now_ms + GRACE_MS)[0]
    assert last.problems == ()
    assert last.records > 0
    assert {offset for partition, offset in world.held() if partition == 0} == {
        offset for _, offset in offsets(world.manifests[each] for each in world.store.epochs(0))
    }


class Ended(Exception):
    """The collector's process ended."""


class Ending:
    """A database that fails after a number of writes."""

    def __init__(self, database: Database, last: int) -> None:
        self._database = database
        self._last = last
        self.done = 0

    def write(self, batch: WriteSet, *, sync: bool) -> None:
        if self.done == self._last:
            raise Ended
        self.done += 1
        Database.write(self._database, batch, sync=sync)


def test_collection_interrupted_at_any_write_is_completed_later(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SnapshotSettings(chunk_bytes=1, tombs_at_once=1, removed_at_once=1)
    expected, writes = None, 0
    for last in range(1_000):
        with Database.create(tmp_path / f"store{last}") as database:
            world = world_of(random.Random(seed), database, settings)
            for number in range(8):
                world.seal(world.tables[0])
                world.now_ms += (HOUR_MS, 2 * DAY_MS)[number % 2]
                if number == 5:
                    world.collector.collect([0], world.now_ms)  # these tombs' grace ends, those of the next do not
            world.store.append(0, b"left")
            ending = Ending(database, last or 1_000)
            with monkeypatch.context() as patched:
                patched.setattr(database, "write", ending.write)
                ended = False
                try:
                    world.collector.collect([0], world.now_ms)
                except Ended:
                    ended = True
            world.assert_readable(100)
            world.open()
            world.collector.collect([0], world.now_ms)
            found = (
                world.store.epochs(0),
                sorted(tomb.epoch for tomb in world.store.tombstones()),
                world.held().keys(),
            )
            if last == 0:
                expected, writes = found, ending.done
            assert found == expected
            if last and not ended:
                assert last == writes > 3
                return


def test_records_at_or_above_the_end_stay(database: Database) -> None:
    world = world_of(random.Random(0), database)
    world.seal(world.tables[0])
    end = world.store.end(0)
    write = database.batch()
    for offset in (end, end + 5):
        write.put("snapshots", bytes(2) + offset.to_bytes(8, "big"), b"another's")
    database.write(write, sync=True)
    assert world.collector.collect([0], world.now_ms + MONTH_MS)[0].records == 0
    assert [offset for offset, _ in world.store.records(0, end, end + 9)] == [end, end + 5]
