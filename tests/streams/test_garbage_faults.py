"""Sealing and collecting killed at any moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.streams.client import Log
from refold.streams.snapshots.garbage import GRACE_MS
from refold.streams.snapshots.manifest import read_manifest
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.retention_policy import MONTH_MS
from refold.streams.snapshots.spill import ChunkStore
from refold_tests.child import Child
from refold_tests.clock import FileClock
from refold_tests.full_replay import assert_full_replay
from refold_tests.opening import PARTITIONS, open_log
from refold_tests.varied_logs import cuts_below
from refold_tests.world import offsets

# Its snapshot records are many and slow, so that kills happen between them.
AGER = """
import random, sys, time
from pathlib import Path
from refold.streams.log.file import snapshots
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.clock import FileClock
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take

path, seed = Path(sys.argv[1]), int(sys.argv[2])
append = snapshots.FileSnapshotStore.append

def slowly(*given):
    append(*given)
    time.sleep(0.02)

snapshots.FileSnapshotStore.append = slowly
rng = random.Random(seed)
clock = FileClock(path / "clock")
settings = SnapshotSettings(epoch_records=11, cpu_share=float("inf"), collect_every_ms=0, removed_at_once=1,
                            chunk_bytes=200)
log = open_log(path, settings=settings)
observations = random_history(seed, 60)
print("open", flush=True)
for done in range(0, len(observations), 7):
    take(log, observations[done : done + 7])
    clock.set(clock() + rng.choice((0, 1_000, 1_800_000, 3_600_000, 86_400_000)))
    if rng.random() < 0.4:
        log.snapshot(pin=rng.random() < 0.05)
    if rng.random() < 0.4:
        log.collect()
    print("done", done, flush=True)
log.close()
print("closed", flush=True)
"""


@pytest.mark.faults
def test_sealing_and_collecting_killed_at_any_moment(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    clock = FileClock(tmp_path / "clock")
    orphans = 0
    for number in range(fault_rounds):
        writer = child(AGER, tmp_path, seed + number)
        for _ in range(rng.choice((0, 1, 2, rng.randrange(8), rng.randrange(8)))):
            if not writer.line():
                break
        time.sleep(rng.random() * rng.choice((0.002, 0.02, 0.1)))
        writer.kill()
        if not (tmp_path / "log" / "FORMAT").exists():
            continue
        with open_log(tmp_path) as log:
            assert_whole(log, rng)
            orphans += len(unnamed(log))
            removed = log.collect()
            assert [each.problems for each in removed] == [()] * PARTITIONS
            assert unnamed(log) == set()
            if number % 5 == 0:
                assert_whole(log, rng)
                assert log.verify().mismatches == []
    clock.set(clock() + 2 * MONTH_MS)
    with open_log(tmp_path) as log:
        log.snapshot()
        log.collect()
        clock.set(clock() + GRACE_MS)
        log.collect()
        assert unnamed(log) == set()
        assert list(log.port.snapshots.tombstones()) == []
        assert_whole(log, rng)
        assert log.verify().mismatches == []
    print(f"{orphans} records were left by writers that were killed")


def assert_whole(log: Log, rng: random.Random) -> None:
    """Every epoch can be read, and rebuilds at some cuts are those from nothing."""
    for each in log.snapshots():
        assert each.problem == ""
        read_epoch(log.port.snapshots, log.port.snapshots.manifest(each.epoch), PARTITIONS, ChunkStore())
    for cut in cuts_below(log.point().cut, rng, 5):
        assert_full_replay(log.port, cut)


def unnamed(log: Log) -> set[tuple[int, int]]:
    """The records that neither a manifest nor a tomb names."""
    reader = log.port.snapshots
    named = [reader.manifest(each.epoch) for each in log.snapshots()]
    named += [read_manifest(tomb.data, tomb.epoch) for tomb in reader.tombstones()]
    held = {(number, offset) for number in range(PARTITIONS) for offset, _ in reader.records(number, 0, 1 << 40)}
    return held - offsets(named)
