"""Garbage of a whole log's snapshots: which process collects it, and what readers see meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from refold.avro.errors import CorruptionError, InputError
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.snapshots.garbage import GRACE_MS, Collected
from refold.streams.snapshots.manifest import Epoch, Manifest
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.retention_policy import DAY_MS, HOUR_MS, MONTH_MS
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import Pin, SnapshotReader, Tombstone
from refold_tests.aging import old_log
from refold_tests.child import Child
from refold_tests.clock import FileClock
from refold_tests.full_replay import assert_full_replay
from refold_tests.histories import random_history
from refold_tests.opening import PARTITIONS, open_log, take
from refold_tests.sample_types import A, said
from refold_tests.varied_logs import cuts_below


def test_ageing_log_rebuilds_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    clock = FileClock(tmp_path / "clock")
    observations = random_history(seed, 250)
    readers: list[tuple[int, Manifest]] = []
    pinned: set[Epoch] = set()
    with open_log(tmp_path, settings=SnapshotSettings(epoch_records=13, cpu_share=math.inf, collect_every_ms=0)) as log:
        while observations:
            at_once = rng.choice((1, 5, 20))
            take(log, observations[:at_once])
            del observations[:at_once]
            clock.set(clock() + rng.choice((0, 60_000, HOUR_MS // 4, HOUR_MS, GRACE_MS // 2)))
            chosen = rng.random()
            if chosen < 0.15:
                pin = rng.random() < 0.2
                sealed = log.snapshot(pin=pin)
                pinned.update(sealed if pin else ())
            elif chosen < 0.3:
                log.collect()
            elif chosen < 0.4 and log.snapshots():
                epoch = rng.choice(log.snapshots()).epoch
                try:
                    readers.append((clock(), log.port.snapshots.manifest(epoch)))
                except CorruptionError:
                    assert epoch not in {each.epoch for each in log.snapshots()}, "it was not collected meanwhile"
        log.snapshot()
        cuts = cuts_below(log.point().cut, rng, 120)
        for cut in cuts:
            assert_full_replay(log.port, cut)
        removed = log.collect()
        assert all(not each.problems for each in removed)
        for read_at_ms, manifest in readers:
            if clock() - read_at_ms < GRACE_MS:
                read_epoch(log.port.snapshots, manifest, PARTITIONS, ChunkStore())
        assert pinned <= {each.epoch for each in log.snapshots()}
        clock.set(clock() + 2 * MONTH_MS)
        log.collect()
        clock.set(clock() + GRACE_MS)
        log.collect()
        left = log.snapshots()
        assert pinned <= {each.epoch for each in left}
        assert len(left) <= 2 * PARTITIONS + len(pinned)
        for each in left:
            read_epoch(log.port.snapshots, log.port.snapshots.manifest(each.epoch), PARTITIONS, ChunkStore())
        for cut in cuts:
            assert_full_replay(log.port, cut)
        assert log.verify().mismatches == []


def test_garbage_is_collected_automatically_after_a_base(tmp_path: Path) -> None:
    clock = old_log(tmp_path)
    with open_log(tmp_path, settings=SnapshotSettings(collect_every_ms=1_000)) as log:
        before = [each.epoch for each in log.snapshots()]
        assert len(before) == 4
        clock.set(clock() + 10 * DAY_MS)
        take(log, [said(A, 100)])
        log.snapshot()
        assert [each.epoch for each in log.snapshots()][:-1] == before[-1:]
        held = len(list(log.port.snapshots.records(before[0].partition, 0, 100)))
        assert {tomb.epoch for tomb in log.port.snapshots.tombstones()} == set(before[:-1])
        clock.set(clock() + GRACE_MS)
        take(log, [said(A, 101)])
        log.snapshot()
        assert list(log.port.snapshots.tombstones()) == []
        assert len(list(log.port.snapshots.records(before[0].partition, 0, 100))) == held - 3 + 1


def test_garbage_is_not_collected_continuously(tmp_path: Path) -> None:
    clock = old_log(tmp_path)
    with open_log(tmp_path) as log:
        epochs = [each.epoch for each in log.snapshots()]
        log.pin(epochs)
        clock.set(clock() + 40 * DAY_MS)
        log.snapshot()
        log.unpin(epochs)
        clock.set(clock() + DEFAULT_SETTINGS.collect_every_ms - 1)
        log.snapshot()
        assert len(log.snapshots()) == 4
        clock.set(clock() + 1)
        log.snapshot()
        assert [each.epoch for each in log.snapshots()] == epochs[-1:]


def test_another_process_pins_and_collects_through_the_owner(tmp_path: Path) -> None:
    clock = old_log(tmp_path)
    with open_log(tmp_path) as owner, open_log(tmp_path) as other:
        assert other.port.database is not owner.port.database  # type: ignore[attr-defined]
        epochs = [each.epoch for each in other.snapshots()]
        other.pin(epochs[1:2])
        assert [each.pinned_at is not None for each in owner.snapshots()] == [False, True, False, False]
        clock.set(clock() + 40 * DAY_MS)
        said_before = other.collect(dry_run=True)
        assert isinstance(said_before[0], Collected)
        assert len(other.snapshots()) == 4
        assert other.collect() == said_before
        assert [each.epoch for each in other.snapshots()] == [epochs[1], epochs[3]]
        other.unpin(epochs)
        other.collect()
        assert [each.epoch for each in owner.snapshots()] == [epochs[3]]
        with pytest.raises(InputError, match=f"no snapshot of epoch {epochs[0]}; refold snapshot --list"):
            other.pin([epochs[3], epochs[0]])
        assert owner.snapshots()[0].pinned_at is None


class Behind(SnapshotReader):
    """A reader that read every manifest before, and reads the records now."""

    def __init__(self, there: SnapshotReader, partitions: int) -> None:
        self._there = there
        self._epochs = {number: there.epochs(number) for number in range(partitions)}
        self._manifests = {each: there.manifest_bytes(each) for every in self._epochs.values() for each in every}

    def epochs(self, partition: int) -> Sequence[Epoch]:
        return self._epochs[partition]

    def manifest_bytes(self, epoch: Epoch) -> bytes | None:
        return self._manifests[epoch]

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        return self._there.records(partition, start, end)

    def pins(self) -> Sequence[Pin]:
        return self._there.pins()

    def tombstones(self) -> Iterable[Tombstone]:
        return self._there.tombstones()


def test_reader_continues_within_the_grace_period_and_falls_back_after_it(tmp_path: Path) -> None:
    clock = old_log(tmp_path)
    with open_log(tmp_path) as log:
        partition = log.port.partition_of(A)
        cut = log.point("offset:" + f"{partition}=5").cut
        expected = dict(rebuild(log.port, cut, full=True).rows())
        log.port.snapshots = Behind(log.port.snapshots, PARTITIONS)
        clock.set(clock() + 40 * DAY_MS)
        log.collect()
        clock.set(clock() + GRACE_MS - 1)
        log.collect()
        found = rebuild(log.port, cut)
        assert dict(found.rows()) == expected
        assert found.source()["snapshot_epochs"] == {str(partition): 4}
        assert found.source()["fallbacks"] == []
        clock.set(clock() + 1)
        log.collect()
        found = rebuild(log.port, cut)
        assert dict(found.rows()) == expected
        source = found.source()
        assert source["snapshot_epochs"] == {}
        fallbacks = source["fallbacks"]
        assert isinstance(fallbacks, list)
        assert [text.partition(" was not used: ")[0] for text in fallbacks] == [
            f"epoch {partition}=4", f"epoch {partition}=2",
        ]  # fmt: skip
        assert all("is gone" in text for text in fallbacks)


READER = """
import random, sys
from pathlib import Path
from refold_tests.full_replay import assert_full_replay, epochs_used
from refold_tests.opening import open_log
from refold_tests.varied_logs import cuts_below

path, seed, asked = Path(sys.argv[1]), int(sys.argv[2]), 0
rng = random.Random(seed)
with open_log(path, read_only=True) as log:
    print("open", flush=True)
    while not asked or not (path / "end").exists():
        (cut,) = cuts_below(log.point().cut, rng, 1)
        asked += bool(epochs_used(assert_full_replay(log.port, cut)))
print("asked", asked, flush=True)
"""


def test_reader_in_another_process_is_exact_during_collection(
    tmp_path: Path, child: Callable[..., Child], seed: int
) -> None:
    rng = random.Random(seed)
    clock = old_log(tmp_path)
    reader = child(READER, tmp_path, seed)
    assert reader.line() == "open"
    removed = 0
    with open_log(tmp_path, settings=SnapshotSettings(epoch_records=15, cpu_share=math.inf, collect_every_ms=0)) as log:
        first = {each.epoch for each in log.snapshots()}
        observations = random_history(seed, 200)
        for done in range(0, len(observations), 4):
            take(log, observations[done : done + 4])
            clock.set(clock() + rng.choice((0, HOUR_MS // 2, 2 * GRACE_MS)))
            removed += sum(each.records for each in log.collect())
        (tmp_path / "end").touch()
        assert reader.line().startswith("asked ")
        assert reader.end() == 0
        # The log collects in the background too, and may have been first every time.
        assert removed or first - {each.epoch for each in log.snapshots()}
