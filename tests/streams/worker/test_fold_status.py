"""A worker's reported status: counts compared with the log, times with a clock that the test sets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.avro.errors import RegistryUnavailable
from refold.avro.ids import identify
from refold.avro.registry import Registry
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.rocks.database import Database
from refold.streams.worker.condition import healthy
from refold.streams.worker.fetcher import Fetcher
from refold.streams.worker.host.health import STALLED_S, health_of, readiness_of
from refold.streams.worker.host.metrics import About, metrics_of
from refold.streams.worker.partition_fold import PartitionFold
from refold.streams.worker.partition_table import PartitionTable
from refold.streams.worker.pending_commit import StoredPosition
from refold.streams.worker.verdicts import Decider, MissingSchema
from refold_tests.folding import Running, append, await_status, history, running
from refold_tests.sample_types import THING, A, said

pytestmark = pytest.mark.timeout(300)

METRICS = {
    "lag": "refold_lag_records",
    "batches": "refold_batches_total",
    "observations": "refold_observations_total",
    "late": "refold_late_observations_total",
    "reopened": "refold_reopened_entities_total",
    "deadletters": "refold_dead_letters_total",
    "table_bytes": "refold_table_bytes",
    "snapshot_bytes": "refold_snapshot_bytes",
    "snapshot_lag": "refold_snapshot_lag_records",
    "rebuild_s": "refold_rebuild_seconds",
    "caught_up": "refold_caught_up",
    "timeline_complete": "refold_timeline_complete",
    "last_commit_s": "refold_last_commit_age_seconds",
    "uncommitted_s": "refold_uncommitted_seconds",
}


def metrics_by_partition(text: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "partition" in sample.labels:
                found.setdefault(sample.name, {})[sample.labels["partition"]] = sample.value
    return found


def await_caught_up(found: Running, log: KafkaLog) -> None:
    for partition in range(log.partitions):
        await_status(found, lambda status: bool(status.get("caught_up")), partition)


def late_and_reopened(log: KafkaLog, partition: int) -> tuple[int, int, int]:
    """(distinct, late, reopened), one observation after the other in log order."""
    fold = Fold(THING)
    entities: dict[str, Entity] = {}
    seen: dict[str, dict[bytes, Seen]] = {}
    late = reopened = 0
    for record in log.read(partition, 0, log.ends()[partition]):
        known = seen.setdefault(record.entity, {})
        if record.id in known:
            continue
        observation = log.registry.decode(record.data)
        q = order_key(observation, record.id)
        late += any(q < each.q for each in known.values())
        before = entities.get(record.entity, Entity(record.entity))
        now = Seen(record.offset, q, observation)
        after, _ = fold.step(before, now, lambda known=known: known.values())  # type: ignore[misc]
        reopened += after is not before
        entities[record.entity], known[record.id] = after, now
    return sum(map(len, seen.values())), late, reopened


def test_counts_sizes_and_times_of_a_fold_and_their_metrics(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    observations = history(random.Random(seed), 400, entities=4)
    append(log, [*observations, *observations[:20]])
    with running(log.url, tmp_path) as found:
        await_caught_up(found, log)
        status = found.service.status()
        about = About("a", log.partitions, tmp_path, "1")
        metrics = metrics_by_partition(metrics_of(found.service.status, found.service.condition, about)().decode())
    log.refresh()
    for partition, each in status.items():
        distinct, late, reopened = late_and_reopened(log, partition)
        assert (each["observations"], each["late"], each["reopened"]) == (distinct, late, reopened), partition
        assert each["records"] == each["offset"] == each["end"] == log.ends()[partition]
        assert (each["deadletters"], each["timeline_complete"], each["uncommitted_s"]) == (0, True, 0.0)
        assert each["table_bytes"] > 1_000
        assert each["rebuild_s"] > 0
        assert each["batches"] == 0 or each["last_commit_s"] >= 0
        for key, name in METRICS.items():
            assert str(partition) in metrics[name] or each[key] is None, name
            if key not in {"last_commit_s", "table_bytes"} and each[key] is not None:
                assert metrics[name][str(partition)] == each[key], name
    assert health_of(status, healthy())["healthy"]
    assert readiness_of(status, healthy())["ready"]
    assert sum(each["late"] for each in status.values()) > 0, "the history has none that is late"


def test_sealed_bytes_count_as_snapshot_bytes(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    append(log, history(random.Random(seed), 50))
    with running(log.url, tmp_path) as found:
        await_caught_up(found, log)
        before = found.service.status().values()
        assert {each["snapshot_bytes"] for each in before} == {0}
        assert all(each["snapshot_lag"] == each["offset"] for each in before)
        sealed = found.service._sealing._snapshotter.seal()
        status = found.service.status()
    assert {each.epoch.partition: each.size for each in sealed} == {
        partition: each["snapshot_bytes"] for partition, each in status.items() if each["offset"]
    }
    assert all(each.size > 0 for each in sealed)
    assert {each["snapshot_lag"] for each in status.values()} == {0}


def test_fetched_records_report_their_partitions_end(log: KafkaLog) -> None:
    observations = [said(A, number) for number in range(500)]
    append(log, observations)
    log.refresh()
    partition = log.partition_of(A)
    fetcher = Fetcher(log.clients, log.topics.observations, log.unreadable, (log.topics.schemas, len(log.registry)))
    try:
        assert fetcher.end_of(partition) == 0
        fetcher.begin(partition, 0)
        while not list(fetcher.fetch(1, 1.0)):
            pass
        assert fetcher.end_of(partition) == len(observations) == log.ends()[partition]
    finally:
        fetcher.close()


class Settable:
    """A clock in seconds that only advances when it is set."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Outage:
    """A registry that does not answer while `is_out`."""

    is_out = True

    def __call__(self, wire_id: int) -> MissingSchema | None:
        if self.is_out:
            raise RegistryUnavailable("it does not answer")
        return MissingSchema("no_such_id", "there is none")


def raws(registry: Registry, start: int, stop: int) -> list[RawRecord]:
    """Observations of one entity at the offsets from start on."""
    codec = registry.newest(THING.name).codec
    return [
        RawRecord(offset, 1_000 + offset, A.encode(), codec.encode_observation(each), [("refold-id", identify(each))])
        for offset in range(start, stop)
        for each in (said(A, offset),)
    ]


@contextmanager
def a_partition(folder: Path, registry: Registry, clock: Settable, resolve: Outage) -> Iterator[PartitionFold]:
    registry.add(THING)
    with Database.create(folder / "0", kind="table") as database:
        table = PartitionTable(database, registry, lambda *_: iter(()), StoredPosition(bytes(16), 0, 1))
        table.apply_up_to(1)
        yield PartitionFold(0, table, registry, Decider(registry, resolve, 0, 1), clock, rebuild_s=2.5)


def commit(partition: PartitionFold) -> None:
    pending = partition.next_commit()
    assert pending is not None
    partition.complete(pending, None)


def test_pending_time_and_time_since_the_last_commit(tmp_path: Path) -> None:
    clock, registry = Settable(), Registry()
    with a_partition(tmp_path, registry, clock, Outage()) as partition:
        assert partition.status()["last_commit_s"] is None
        clock.now_s += 10_000  # nothing to commit, for any time
        assert health_of({0: partition.status()}, healthy())["healthy"]
        for raw in raws(registry, 0, 3):
            partition.receive([raw])
        partition.ends_at(9)
        partition.decide()
        clock.now_s += STALLED_S + 1
        status = partition.status()
        assert (status["lag"], status["uncommitted_s"], status["rebuild_s"]) == (9, STALLED_S + 1, 2.5)
        assert not health_of({0: status}, healthy())["healthy"]
        commit(partition)
        clock.now_s += 7
        status = partition.status()
        assert (status["lag"], status["last_commit_s"], status["uncommitted_s"]) == (6, 7, 7)
        partition.reached_end(9)  # the six behind it hold nothing that is given out
        partition.decide()
        clock.now_s += 10_000
        status = partition.status()
        assert (status["lag"], status["last_commit_s"], status["uncommitted_s"]) == (0, 10_007, 0)
        assert status["caught_up"]
        assert health_of({0: status}, healthy())["healthy"]


def test_partition_keeps_up_when_it_reaches_the_end_between_two_commits(tmp_path: Path) -> None:
    registry = Registry()
    with a_partition(tmp_path, registry, Settable(), Outage()) as partition:
        coming = iter(raws(registry, 0, 99))

        def come(number: int) -> bool:
            for _ in range(number):
                partition.receive([next(coming)])
            partition.decide()
            return bool(partition.status()["caught_up"])

        assert not come(3)
        commit(partition)
        assert not come(1)
        partition.reached_end(4)
        assert not come(0), "it has seen the end, and not folded all before it"
        assert not come(2)
        commit(partition)
        assert come(1), "and has by now, with more on its way"
        partition.reached_end(7)
        commit(partition)
        assert come(50)
        commit(partition)
        assert come(5), "it was at the end one commit ago"
        commit(partition)
        assert not come(1)
        commit(partition)
        partition.reached_end(63)
        assert come(0)


def test_worker_awaiting_the_registry_has_pending_records_and_needs_no_restart(tmp_path: Path) -> None:
    clock, registry_there = Settable(), Outage()
    with a_partition(tmp_path, Registry(), clock, registry_there) as partition:
        partition.receive([RawRecord(0, 1_000, A.encode(), b"\0\0\0\0\7more", [])])
        partition.decide()
        clock.now_s += STALLED_S + 1
        status = partition.status()
        assert status["waits_for"] == "it does not answer"
        assert status["uncommitted_s"] == STALLED_S + 1
        assert health_of({0: status}, healthy())["healthy"]
        registry_there.is_out = False
        partition.decide()
        assert not health_of({0: partition.status()}, healthy())["healthy"]
        commit(partition)
        partition.reached_end(1)
        assert (partition.status()["deadletters"], partition.status()["uncommitted_s"]) == (1, 0)
