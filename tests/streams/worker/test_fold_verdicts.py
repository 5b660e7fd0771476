"""Records that are not observations: each gets its verdict, with its bytes, and the fold continues after it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

import refold
from refold.avro.ids import identify
from refold.avro.registry import TypeVersion
from refold.reducers import failed
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.registry.ids import SchemaIds
from refold.streams.registry.settings import RegistrySettings
from refold.testing.registry import SchemaRegistry
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.folding import (
    append,
    await_folded,
    await_status,
    check_whole,
    drain,
    fold_all,
    history,
    opened,
    running,
    url_of,
    worker,
)
from refold_tests.kill_points import MOMENTS
from refold_tests.poison import bad_records, framed, produce, verdicts
from refold_tests.sample_types import OTHER, PICKY, THING, said

pytestmark = pytest.mark.timeout(600)


def test_every_bad_record_gets_one_verdict_and_the_rest_is_folded(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    observations = history(rng, 200)
    acknowledged = append(log, observations[:100])
    expected = []
    for partition in range(log.partitions):
        for sent in rng.sample(bad := bad_records(log, partition), len(bad)):
            produce(log, partition, sent)
            expected.append((partition, sent))
            acknowledged |= append(log, rng.sample(observations, 2))
    acknowledged |= append(log, observations[100:])
    for _ in range(2):  # the second one decides nothing again
        fold_all(log, tmp_path)
        found = verdicts(log)
        assert [(each.partition, (each.key, each.value, each.headers, each.reason)) for each in found] == expected
        assert all(each.detail for each in found)
    check_whole(log, tmp_path, acknowledged)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_invalid_and_misplaced_records_get_one_verdict_across_kills(
    kafka: SharedKafka, prefix: str, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    """Kills at any moment, also between the steps of the protocol; good records are between the bad ones."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    with opened(url_of(kafka.bootstrap, prefix, 4)) as log:
        log.register(THING)
        bad = {partition: bad_records(log, partition) for partition in range(log.partitions)}
        expected: dict[int, list[str]] = {partition: [] for partition in bad}
        observations = iter(history(rng, 20 * fault_rounds + 40))
        acknowledged: set[bytes] = set()
        for _ in range(max(2, fault_rounds // 4)):
            moment = rng.choice(["", *MOMENTS])
            killed = worker(child, log.url, tmp_path, moment=moment, count=rng.randrange(1, 4))
            ends_at = time.monotonic() + rng.random() * 2
            while killed.process.poll() is None and (moment or time.monotonic() < ends_at):
                for partition, kinds in bad.items():
                    poison = rng.choice([each for each in kinds if each[3] != "misplaced"])
                    misplaced = rng.choice([each for each in kinds if each[3] == "misplaced"])
                    for sent in rng.sample([poison, misplaced], 2):
                        produce(log, partition, sent)
                        expected[partition].append(sent[3])
                acknowledged |= append(log, islice(observations, 8))
                time.sleep(rng.random() * 0.1)
            killed.kill()
        last = worker(child, log.url, tmp_path)
        acknowledged |= append(log, observations)
        await_folded(log, last)
        drain(last)
        found = verdicts(log)
        assert len({each[:2] for each in found}) == len(found)
        for partition, reasons in expected.items():
            assert [each.reason for each in found if each.partition == partition] == reasons
        check_whole(log, tmp_path, acknowledged)


def test_verdict_outlives_later_registration_of_its_schema_and_loss_of_the_table(
    log: KafkaLog, tmp_path: Path, seed: int
) -> None:
    early = said(f"{OTHER.name}/early", 1)
    partition = log.partition_of(early.entity)
    data = TypeVersion(OTHER, 0, 0).codec.encode_observation(early)
    produce(log, partition, (early.entity.encode(), data, [], ""))
    acknowledged = append(log, history(random.Random(seed), 60))
    fold_all(log, tmp_path / "one")
    log.register(OTHER)
    produce(log, partition, (early.entity.encode(), data, [], ""))
    fold_all(log, tmp_path / "one")
    fold_all(log, tmp_path / "other")
    assert [each.reason for each in verdicts(log)] == ["no_such_id"]
    check_whole(log, tmp_path / "other", acknowledged | {identify(early)})


def test_record_that_fails_a_reducer_leaves_the_value_in_any_order(
    kafka: SharedKafka, prefix: str, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    every = [said(f"{THING.name}/a", number, start="bad" if number % 3 else f"{number}") for number in range(12)]
    random.Random(seed).shuffle(every)
    before = failed.total()
    with opened(url_of(kafka.bootstrap, prefix)) as log:
        log.register(PICKY)
        ids = append(log, every)
        fold_all(log, tmp_path)
        assert verdicts(log) == []
        with refold.open(log.url, read_only=True) as reader:
            state = reader.state(f"{THING.name}/a")
            assert (state.version, state.fields["start"]) == (len(ids), "0369")
            assert reader.verify().ok
    assert failed.total() >= before + 8
    assert "reducer_failed refold_tests.sample_types:picky on observation" in caplog.text


def test_reducer_failure_of_its_process_ends_the_worker_without_a_verdict(
    kafka: SharedKafka, prefix: str, tmp_path: Path
) -> None:
    with opened(url_of(kafka.bootstrap, prefix)) as log:
        log.register(PICKY)
        append(log, [said(f"{THING.name}/a", 1, start="good"), said(f"{THING.name}/a", 2, start="no file")])
        for _ in range(2):
            with running(log.url, tmp_path) as found:
                problem = found.failed()
            assert re.search(r"a: observation [0-9a-f]{64} cannot be folded: .*FileNotFoundError", str(problem))
            assert "refold quarantine add 0=" in str(problem)
        assert verdicts(log) == []
        log.refresh()
        assert all(log._decided.through(each) <= 1 for each in range(log.partitions))


def test_unknown_ids_are_looked_up_in_the_registry_and_an_outage_decides_nothing(
    kafka: SharedKafka, prefix: str, own_registry: SchemaRegistry, tmp_path: Path, seed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The worker asks repeatedly, and logs once that it waits, and once that it continues."""
    url, settings = url_of(kafka.bootstrap, prefix), RegistrySettings((own_registry.url,))
    observations = history(random.Random(seed), 20)
    with closing(KafkaLog(parse_url(url), schema_ids=SchemaIds(settings))) as log, SchemaIds(settings) as others:
        log.register(THING)
        foreign = others.register("another", OTHER).observation
        own_registry.pause()
        framed_by = {"no_such_id": foreign + 1_000, "foreign_schema": foreign}
        for reason, wire_id in framed_by.items():
            value = b"\0" + wire_id.to_bytes(4, "big") + framed(log, observations[0])[5:]
            produce(log, 0, (observations[0].entity.encode(), value, [], reason))
        acknowledged = append(log, observations)
        with running(url, tmp_path, registry=settings, registry_s=0.1, retry_s=0.1) as found:
            await_status(found, lambda each: bool(each.get("waits_for")), partition=0)
            asked: set[float] = set()
            while len(asked) < 5:
                asked.add(found.service._partitions[0].registry_retry_at_s)
                time.sleep(0.02)
            assert verdicts(log) == []
            own_registry.resume()
            await_folded(log, found)
        said = [text for text in caplog.messages if text.startswith("partition 0 ")]
        assert ["waits" in text for text in said] == [True, False], said
        assert [each.reason for each in verdicts(log)] == [*framed_by]
        check_whole(log, tmp_path, acknowledged)
