"""Brokers that are restarted, killed and paused while a worker folds and clients append continuously."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refold.streams.log.kafka.log import KafkaLog
from refold.testing.kafka import Kafka
from refold_tests.child import Child
from refold_tests.folding import await_folded, check_whole, history, opened, url_of, worker
from refold_tests.load import Kept, feeding
from refold_tests.sample_types import THING

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

# Longer than any broker is away in these tests.
PATIENT = {"session_ms": 40_000, "transaction_ms": 60_000}
# Longer than a client's request waits for its broker.
AWAY_S = 22.0


@pytest.mark.parametrize("settings", [PATIENT, {}], ids=["a patient worker", "an impatient one"])
def test_broker_that_is_restarted_or_killed(
    kafka_cluster: Callable[..., Kafka], tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int,
    settings: dict[str, Any],
) -> None:  # fmt: skip
    """Existing clients continue afterwards, and so does a worker, or it ends with a named error and is restarted."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    kafka = kafka_cluster()
    rounds = max(2, fault_rounds // 5)
    url = url_of(kafka.bootstrap, "b")
    with opened(url) as log:
        log.register(THING)
        kept = Kept(partial(worker, child, url, tmp_path, **settings))
        with feeding(url, history(rng, 60 * rounds), rng) as fed:
            for number in range(rounds):
                fed.await_more()
                (kafka.kill if (number + seed) % 2 else kafka.stop)(1)
                if settings is PATIENT and number == 0:
                    time.sleep(AWAY_S)
                kafka.restart(1)
                log.refresh()
                kept.look()
            fed.await_more()
            acknowledged = fed.finish()
        await_folded(log, kept)
        kept.drain()
        check_whole(log, tmp_path, acknowledged)
    print(f"ended {len(kept.said)} times: {kept.said}")
    # A transaction that fails before the commit is emitted again, within its time limit.
    undecided = [each for each in kept.said if re.search("transaction .* could not (emit|send its offsets)", each)]
    assert not undecided or settings is not PATIENT


def test_leaders_and_coordinators_of_three_brokers_die_under_load(
    kafka_cluster: Callable[..., Kafka], tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    """One broker at a time: the leader of a folded partition, or the coordinator of the transactions or the group."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    kafka = kafka_cluster(nodes=3)
    rounds = max(1, fault_rounds // 6)
    url = url_of(kafka.bootstrap, "b")
    with opened(url) as log:
        log.register(THING)
        kept = Kept(partial(worker, child, url, tmp_path, session_ms=15_000, transaction_ms=20_000))
        places = victims(log)
        first = rng.randrange(len(places))
        with feeding(url, history(rng, 60 * rounds), rng) as fed:
            for number in range(rounds):
                fed.await_more()
                what, (topic, partition) = places[(first + number) % len(places)]
                victim = kafka.leader_of(topic, partition)
                # A paused broker is tried for as long as its connections are open, which takes a minute.
                how = rng.choice([kafka.kill, kafka.stop, kafka.pause]) if number else kafka.kill
                print(f"{how.__name__} node {victim}, which {what}")
                how(victim)
                kafka.leader_of(topic, partition, other_than=victim)
                fed.await_more()
                log.refresh()
                kept.look()
                if how == kafka.pause:
                    kafka.resume(victim)
                else:
                    kafka.restart(victim)
            acknowledged = fed.finish()
        await_folded(log, kept)
        kept.drain()
        check_whole(log, tmp_path, acknowledged)
    print(f"ended {len(kept.said)} times: {kept.said}")


def victims(log: KafkaLog) -> list[tuple[str, tuple[str, int]]]:
    """The role of a broker for a worker named w, and the partition whose leader has this role."""
    leads = [(f"leads {topic}/{each}", (topic, each)) for topic in (log.topics.observations, log.topics.changes)
             for each in range(log.partitions)]  # fmt: skip
    transactions = coordinator_of("__transaction_state", f"{log.topics.group}.fold.w")
    group = coordinator_of("__consumer_offsets", log.topics.group)
    return [leads[0], ("coordinates its transactions", transactions), *leads[1:], ("coordinates its group", group)]


def coordinator_of(topic: str, name: str) -> tuple[str, int]:
    """The partition of Kafka's own topic for a name: Java's hash of it, for 4 partitions (settings.py)."""
    value = 0
    for letter in name:
        value = (31 * value + ord(letter)) % 2**32
    return topic, (value & 0x7FFFFFFF) % 4
