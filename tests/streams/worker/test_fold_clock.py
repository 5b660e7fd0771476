"""A broker whose clock steps back while a folding worker is killed: recorded_at never decreases."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import accumulate, islice
from pathlib import Path

import pytest

from refold.avro.ids import identify
from refold.streams.change_reader import ChangeReader
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.records import ID
from refold.streams.worker.pending_commit import read_stored
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.folding import await_folded, check_whole, drain, history, tables, worker
from refold_tests.kafka_topics import Broker
from refold_tests.kill_points import MOMENTS
from refold_tests.sample_types import THING

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

STEPS_MS = (0, 1, 7, 1_000, -1, -900, -50_000)


def test_clock_that_steps_back_under_a_worker(
    log: KafkaLog, kafka: SharedKafka, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    """The broker is simulated by producers that set timestamps while a worker runs; each kill is between its steps."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    broker = Broker(kafka.bootstrap, log.topics.prefix)
    codec = log.registry.newest(THING.name).codec
    rounds = max(2, fault_rounds // 4)
    observations = iter(history(rng, 30 * rounds))
    stamps: dict[int, list[int]] = {partition: [] for partition in range(log.partitions)}
    now_ms = time.time_ns() // 1_000_000
    acknowledged: set[bytes] = set()
    for _ in range(rounds):
        killed = worker(child, log.url, tmp_path, moment=rng.choice(["", *MOMENTS]), count=rng.randrange(1, 4))
        broker.alter(log.topics.observations, "message.timestamp.type", "CreateTime")
        for each in islice(observations, 30):
            now_ms += rng.choice(STEPS_MS)
            place = KafkaPartition(log.topics.observations, log.partition_of(each.entity))
            headers = [(ID, identify(each))]
            value = codec.encode_observation(each)
            broker.produce(place, [value], key=each.entity.encode(), headers=headers, timestamp=now_ms)
            stamps[place.partition].append(now_ms)
            acknowledged.add(identify(each))
        broker.alter(log.topics.observations, "message.timestamp.type", "LogAppendTime")
        killed.kill()
    last = worker(child, log.url, tmp_path)
    await_folded(log, last)
    drain(last)
    check_whole(log, tmp_path, acknowledged)
    recorded = {partition: [*accumulate(each, max)] for partition, each in stamps.items()}
    reader = ChangeReader(log)
    for partition, expected in recorded.items():
        for change in log.read_changes(partition, 0):
            for step in reader.decode(change.data).steps:
                assert step.recorded_at == expected[step.offset]
    for partition, database in tables(tmp_path, log.partitions).items():
        with database:
            stored = read_stored(database)
        assert stored is not None
        assert stored.recorded_at == max(recorded[partition], default=0)
