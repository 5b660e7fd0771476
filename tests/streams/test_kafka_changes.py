"""Following `.changes` on a real broker: committed changes once and in order, whatever records are in between.

The changes are those that a `file:` log of the same observations made, written here in transactions as a worker does.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import Producer

import refold
from refold.streams.changes import Change
from refold.streams.client import Log
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.port import ChangeRecord, LogPort
from refold_tests.kafka_topics import TIMEOUT_S, Broker
from refold_tests.log_handles import PARTITIONS, mixed, put


@pytest.fixture
def logs(broker: Broker, tmp_path: Path, seed: int) -> Iterator[tuple[Log, Log]]:
    """The same observations on Kafka, where nothing folds them yet, and in a folder, where changes were written."""
    url = f"kafka://{broker.bootstrap}/{broker.prefix}?partitions={PARTITIONS}"
    with refold.open(url) as log, refold.open(f"file:{tmp_path / 'log'}?partitions={PARTITIONS}") as file:
        observations = mixed(seed)
        for start in range(0, len(observations), 40):
            for each in (log, file):
                put(each.port, observations[start : start + 40])
                each.flush()
        yield log, file


def expected_changes(file: LogPort) -> dict[int, list[ChangeRecord]]:
    return {partition: list(file.read_changes(partition, 0)) for partition in range(PARTITIONS)}


def emit(broker: Broker, log: Log, partition: int, some: list[ChangeRecord], end: str = "commit") -> Producer:
    place = KafkaPartition(f"{broker.prefix}.changes", partition)
    producer = broker.transaction(place, [each.data for each in some], end=end, headers=PartitionPoint(1, 1).headers)
    log.port.refresh()
    return producer


def scattered(broker: Broker, log: Log, file: LogPort, rng: random.Random) -> None:
    """Commit every change once, with aborted transactions in between, some with other content."""
    for partition, records in expected_changes(file).items():
        rest = iter(records)
        while some := list(islice(rest, rng.choice((1, 3, 20)))):
            if rng.random() < 0.4:
                emit(broker, log, partition, rng.sample(records, min(3, len(records))), "abort")
            emit(broker, log, partition, some)
        emit(broker, log, partition, records[:2], "abort")


def by_partition(log: Log, changes: Iterator[Change]) -> dict[int, list[Change]]:
    found: dict[int, list[Change]] = {partition: [] for partition in range(PARTITIONS)}
    for each in changes:
        found[log.port.partition_of(each.entity)].append(each)
    return found


def test_changes_are_those_of_committed_transactions(broker: Broker, logs: tuple[Log, Log], seed: int) -> None:
    log, file = logs
    rng = random.Random(seed)
    assert list(log.changes()) == []
    scattered(broker, log, file.port, rng)
    assert by_partition(log, log.changes()) == by_partition(file, file.changes())
    for _ in range(8):
        # A cut between any two records, also in the middle of changes.
        offsets = {partition: rng.randrange(end + 1) for partition, end in log.port.ends().items()}
        when = "offset:" + ",".join(f"{partition}={offset}" for partition, offset in offsets.items())
        assert by_partition(log, log.changes(from_=when)) == by_partition(file, file.changes(from_=when)), when


def test_changes_end_before_an_open_transaction(broker: Broker, logs: tuple[Log, Log]) -> None:
    log, file = logs
    partition, records = max(expected_changes(file.port).items(), key=lambda item: len(item[1]))
    half = len(records) // 2
    emit(broker, log, partition, records[:half])
    emit(broker, log, partition, records[:1], "abort")
    hanging = emit(broker, log, partition, records[half:], "open")
    expected = by_partition(file, file.changes())[partition]
    assert by_partition(log, log.changes())[partition] == expected[:half]
    assert [each.data for each in log.port.read_changes(partition, 0)] == [each.data for each in records[:half]]
    hanging.commit_transaction(TIMEOUT_S)
    broker.settle(KafkaPartition(f"{broker.prefix}.changes", partition))
    assert by_partition(log, log.changes())[partition] == expected


def test_live_changes_arrive_once_as_transactions_commit(broker: Broker, logs: tuple[Log, Log], seed: int) -> None:
    log, file = logs
    total = sum(len(records) for records in expected_changes(file.port).values())
    writer = threading.Thread(target=scattered_beside, args=(broker, log.port.url, file.port, random.Random(seed)))
    live = log.changes(live=True, poll_s=0.01)
    writer.start()
    try:
        found = list(islice(live, total))
    finally:
        writer.join()
    assert by_partition(log, iter(found)) == by_partition(file, file.changes())
    assert list(log.changes()) == list(log.changes())


def scattered_beside(broker: Broker, url: str, file: LogPort, rng: random.Random) -> None:
    with refold.open(url, read_only=True) as log:
        scattered(broker, log, file, rng)
