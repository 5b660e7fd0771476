"""Workers that seal epochs while they fold: killed midway, fenced, and read by others."""

from __future__ import annotations

import logging
import math
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from refold.streams.cut import Cut
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.child import Child
from refold_tests.folding import (
    PATIENCE_S,
    append,
    await_sealed,
    check_whole,
    drain,
    fold_all,
    history,
    opened,
    running,
    worker,
)
from refold_tests.full_replay import assert_full_replay, epochs_used
from refold_tests.kill_points import SEALING_MOMENTS

pytestmark = pytest.mark.timeout(600)
ENTITIES = 60
SETTINGS = SnapshotSettings(epoch_records=1, cpu_share=math.inf, chunk_bytes=500)
ALWAYS: dict[str, Any] = {"snapshots": SETTINGS, "epoch_every_ms": 0}
"""A worker's settings: seal after each fold."""
APART: dict[str, Any] = {
    **ALWAYS,
    "snapshots": replace(SETTINGS, process_entities_min=0),
    "before": "from refold.streams import runtime; runtime.cores = lambda: 2",
}
"""The same, by a separate process, also on a machine with one core."""


def check_epochs(log: KafkaLog) -> int:
    """Check that each visible epoch is complete, and each visible record is of one. Returns the number of epochs."""
    log.refresh()
    count = 0
    for partition in range(log.partitions):
        place = KafkaPartition(log.topics.snapshots, partition)
        end = log.offsets.ends([place])[place]
        named: set[int] = set()
        for epoch in log.snapshots.epochs(partition):
            for span in log.snapshots.manifest(epoch).spans:
                named.update(offset for offset, _ in log.snapshots.span(partition, span))
            count += 1
        log.refresh()  # an epoch may have been sealed meanwhile: it counts as well
        for epoch in log.snapshots.epochs(partition):
            for span in log.snapshots.manifest(epoch).spans:
                named.update(range(span.start, span.end))
        assert {offset for offset, _ in log.snapshots.records(partition, 0, end)} <= named
    return count


def check_rebuilt(log: KafkaLog) -> None:
    """A client starts from epochs in every partition, and gets the result of a full replay, byte for byte."""
    log.refresh()
    cut = Cut(log.log_id, log.ends(), len(log.registry), log.registry.digest())
    assert len(epochs_used(assert_full_replay(log, cut))) == log.partitions


def check_at_rest(log: KafkaLog) -> None:
    """No transaction is open in the topics of snapshots."""
    places = [KafkaPartition(topic, each) for topic in (log.topics.snapshots, log.topics.manifests)
              for each in range(log.partitions)]  # fmt: skip
    assert log.offsets.ends(places) == log.offsets.ends(places, committed=False)


def test_rebuild_starts_from_a_workers_epoch(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    observations = history(random.Random(seed), 400, ENTITIES)
    acknowledged: set[bytes] = set()
    with running(log.url, tmp_path, **ALWAYS) as found:
        for start in range(0, 350, 70):
            acknowledged |= append(log, observations[start : start + 70])
            await_sealed(log, found)
    assert check_epochs(log) >= 2 * log.partitions
    acknowledged |= append(log, observations[350:])
    with opened(log.url) as client:
        check_rebuilt(client)
    check_at_rest(log)
    fold_all(log, tmp_path, **ALWAYS)
    check_whole(log, tmp_path, acknowledged)


def test_lost_table_is_remade_from_epochs(
    log: KafkaLog, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    print(f"seed {seed}")
    observations = history(random.Random(seed), 300, ENTITIES)
    with running(log.url, tmp_path, **ALWAYS) as found:
        acknowledged = append(log, observations[:200])
        await_sealed(log, found)
    sealed = {each: log.snapshots.epochs(each)[-1].offset for each in range(log.partitions)}
    acknowledged |= append(log, observations[200:])
    fold_all(log, tmp_path, snapshots=replace(SETTINGS, epoch_records=10_000))
    for each in range(log.partitions):
        shutil.rmtree(tmp_path / str(each))
    with caplog.at_level(logging.INFO, "refold.streams.worker.start"):
        fold_all(log, tmp_path, **ALWAYS)
    sources = [record.args[2] for record in caplog.records if "made again at" in record.msg]  # type: ignore[index]
    used = {key: value for source in sources for key, value in source["snapshot_epochs"].items()}  # type: ignore[index]
    assert used == {str(each): offset for each, offset in sealed.items()}
    check_whole(log, tmp_path, acknowledged)


@pytest.mark.faults
def test_kills_while_sealing_leave_no_half_epoch(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = max(4, fault_rounds // 5)
    rest = iter(history(rng, 400 * rounds, ENTITIES))
    acknowledged: set[bytes] = set()
    for number in range(rounds):
        moment = ["", *SEALING_MOMENTS][number % 4]
        sealing = rng.choice((ALWAYS, APART))
        found = worker(child, log.url, tmp_path, moment=moment, count=rng.randrange(1, 8), **sealing)
        ends_at = time.monotonic() + rng.random() * 3
        while found.process.poll() is None and (moment or time.monotonic() < ends_at):
            some = [*islice(rest, 5)]
            if not some:  # repeats alone change nothing that is sealed
                break
            acknowledged |= append(log, some)
            time.sleep(rng.random() * 0.1)
        found.kill()
        check_epochs(log)
    last = worker(child, log.url, tmp_path, **ALWAYS)
    acknowledged |= append(log, rest)
    await_sealed(log, last)
    drain(last)
    assert check_epochs(log) > log.partitions
    check_at_rest(log)
    check_rebuilt(log)
    check_whole(log, tmp_path, acknowledged)


@pytest.mark.faults
def test_partitions_move_while_they_are_sealed(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rest = iter(history(rng, 300, ENTITIES))
    acknowledged: set[bytes] = set()

    def write(times: int) -> None:
        for _ in range(times):
            acknowledged.update(append(log, islice(rest, 5)))
            time.sleep(rng.random() * 0.1)

    one = worker(child, log.url, tmp_path / "a", "a", static=False, **ALWAYS)
    write(15)
    other = worker(child, log.url, tmp_path / "b", "b", static=False, **APART)
    write(25)
    await_sealed(log, one, other)
    drain(one)
    write(20)
    await_sealed(log, other)
    drain(other)
    check_epochs(log)
    check_at_rest(log)
    check_rebuilt(log)
    fold_all(log, tmp_path / "a")
    check_whole(log, tmp_path / "a", acknowledged)


@pytest.mark.faults
@pytest.mark.parametrize("moment", SEALING_MOMENTS)
def test_worker_that_lost_its_partition_while_sealing_writes_nothing(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, moment: str
) -> None:
    """It resumes after another worker has taken its partitions and sealed further epochs."""
    print(f"seed {seed}")
    observations = history(random.Random(seed), 300, ENTITIES)
    rest = iter(observations)
    acknowledged = append(log, islice(rest, 50))
    stopped = worker(child, log.url, tmp_path / "a", "a", static=False, moment=moment, count=5,
                     sent=signal.SIGSTOP, **(APART if moment == "named" else ALWAYS))  # fmt: skip
    deadline = time.monotonic() + PATIENCE_S
    while not stopped.is_stopped:
        assert time.monotonic() < deadline
        acknowledged |= append(log, [*islice(rest, 5)] or observations[:5])
        time.sleep(0.1)
    other = worker(child, log.url, tmp_path / "b", "b", static=False, **ALWAYS)
    acknowledged |= append(log, rest)
    await_sealed(log, other)
    stopped.process.send_signal(signal.SIGCONT)
    repeat = partial(append, log, observations[:50])
    acknowledged |= repeat()
    await_sealed(log, other, more=repeat)
    check_epochs(log)
    stopped.signal(signal.SIGTERM)
    stopped.end()
    acknowledged |= append(log, observations[50:70])
    await_sealed(log, other, more=repeat)
    drain(other)
    check_epochs(log)
    check_at_rest(log)
    check_rebuilt(log)
    fold_all(log, tmp_path / "b")
    check_whole(log, tmp_path / "b", acknowledged)
