"""A worker's metrics for Prometheus, computed from the fold's status at each scrape.

So nothing is counted twice, and nothing goes stale. Counters count for this process and restart whenever it takes up a
partition, as Prometheus expects of counters. Ages are computed at the scrape, so an age keeps growing when the code it
measures hangs. All metrics have the label `log`, because a partition's number means nothing without it. docs/METRICS.md
lists them all, and a test compares it with the tables here.

No series ends while the process runs, except the gauges of a partition that another worker may own:
1. `refold_partition_owned`, the group's lag, and the metrics of brokers, group and topics exist from the start.
2. Counters of a partition that was folded once keep their last value when the partition is lost.
3. Its gauges keep their last value too while the worker is out of its group, while it takes up the partition again,
   and for SETTLING_S after it lost the partition or joined the group: until then it may get the partition back.
   Afterwards its owner exports them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from refold.avro.kernel import find_kernel
from refold.avro.quarantine import TOPICS
from refold.reducers import failed
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.port import Foreign, SetAside
from refold.streams.worker.condition import WorkerCondition
from refold.streams.worker.host.health import Status, health_of, readiness_of

SETTLING_S = 10.0

# Of the worker as a whole.
WORKER_GAUGES = {
    "info": ("refold_worker_info", "Always 1; its version."),
    "kernel": ("refold_kernel_used", "1 if the native kernel folds what it can, 0 if Python folds everything."),
    "log_partitions": ("refold_log_partitions", "Partitions of the log."),
    "partitions": ("refold_partitions", "Partitions that this worker owns, by state."),
    "healthy": ("refold_healthy", "1 while the worker commits what there is to commit."),
    "ready": ("refold_ready", "1 while the worker owns partitions, and each is caught up."),
    "broker_connected": ("refold_broker_connected", "1 while a broker answers this worker."),
    "brokers": ("refold_brokers", "Brokers of the cluster, as one of them reports; 0 while none answers."),
    "broker_lost": ("refold_broker_lost_seconds", "How long no broker has answered; 0 while one answers."),
    "group_member": ("refold_group_member", "1 while the worker is a member of its consumer group."),
    "group_out": ("refold_group_out_seconds", "Time out of the group; 0 while the worker is a member."),
    "group_changed": (
        "refold_group_changed_timestamp_seconds",
        "When it last joined or left its group; 0 before.",
    ),
    "topic_drifted": ("refold_topic_settings_drifted", "Settings of a topic that differ from those a log requires."),
    "topic_missing": ("refold_topic_missing", "1 for a topic of the log that the brokers no longer have."),
    "owned": ("refold_partition_owned", "1 for each partition that this worker folds, else 0."),
    "damaged": ("refold_damaged_waiting", "1 while the partition waits here at a damaged record, else 0."),
    "group_lag": ("refold_group_lag_records", "Offsets of .observations that the group has not committed."),
    "held": ("refold_types_held", "Types of which this worker can fold no version: their code is not registered."),
    "pending": ("refold_type_versions_pending", "New versions of types with custom code that no worker has activated."),
    "disk_free": ("refold_disk_free_bytes", "Free space on the disk of the tables, for the worker's user."),
    "disk_size": ("refold_disk_size_bytes", "Size of the disk of the tables."),
}
WORKER_COUNTERS = {
    "reducer_failures": ("refold_reducer_failures_total", "Calls of custom reducers that failed in this process."),
}
# Of each partition that it folds.
GAUGES = {
    "lag": ("refold_lag_records", "Offsets of .observations that are not folded yet."),
    "offset": ("refold_folded_offset", "Next offset of .observations to fold."),
    "caught_up": (
        "refold_caught_up",
        "1 while all is folded that was recorded before it last read the log's end.",
    ),
    "timeline_complete": ("refold_timeline_complete", "1 if the table's indexes hold every record."),
    "lacking": ("refold_timeline_lacking_records", "Records whose index entries may still be missing."),
    "table_bytes": ("refold_table_bytes", "Size of the entity table on disk."),
    "snapshot_bytes": ("refold_snapshot_bytes", "Bytes written for the epochs that exist."),
    "snapshot_lag": (
        "refold_snapshot_lag_records",
        "Folded offsets that no epoch covers; a rebuild replays them.",
    ),
    "rebuild_s": ("refold_rebuild_seconds", "How long opening or rebuilding the table took at the last start."),
    "last_commit_s": ("refold_last_commit_age_seconds", "Time since this process last committed the partition."),
    "uncommitted_s": ("refold_uncommitted_seconds", "How long there has been something to commit without a commit."),
    "followed": ("refold_followed_records", "Records that the table was behind when the partition was taken up."),
    "waits_for": ("refold_registry_waiting", "1 while the partition waits for an answer of the Schema Registry."),
}
# Of tables that follow another worker's fold. Their names differ, so that sums over workers stay correct.
STANDBY_GAUGES = {
    "lag": ("refold_standby_lag_records", "Committed offsets of .observations that are not followed yet."),
    "offset": ("refold_standby_offset", "Next offset of .observations to follow."),
    "table_bytes": ("refold_standby_table_bytes", "Size of the standby's table on disk."),
}
COUNTERS = {
    "batches": ("refold_batches_total", "Committed batches that moved the partition."),
    "observations": ("refold_observations_total", "Distinct observations folded."),
    "records": ("refold_records_total", "Records folded."),
    "kernel_records": ("refold_kernel_records_total", "Records that the native kernel folded."),
    "changes": ("refold_changes_total", "Changes emitted."),
    "late": ("refold_late_observations_total", "Observations folded after a later one of their entity."),
    "reopened": ("refold_reopened_entities_total", "Entities folded again from all their observations."),
    "deadletters": ("refold_dead_letters_total", "Records that got a verdict."),
}


@dataclass(frozen=True, slots=True)
class About:
    """Facts of a worker that are not in its status.

    Attributes:
        log: The log's prefix.
        folder: Where its tables are.
    """

    log: str
    partitions: int
    folder: Path
    version: str


# Of each topic of the log that it follows.
FOLLOWED = ("deadletters", "manifests", "schemas")
TOPIC_GAUGES = {
    "set_aside": ("refold_set_aside_records", "Damaged records of a topic that an administrator set aside."),
    "passed_over": ("refold_damaged_records", "Records of a topic in batches that cannot be read, passed over."),
    "foreign": ("refold_foreign_records", "Records in a topic that refold did not write, as far as it was read."),
}

ForeignFound = Callable[[], Iterable[Foreign]]
"""Lists the topics with records that refold did not write."""
AsideFound = Callable[[], Iterable[SetAside]]
"""Lists the topics with records that are set aside, or passed over."""
UNNEEDED = ("contents", "manifests", "snapshots")
"""Topics of which damaged batches are passed over."""


class _StatusCollector(Collector):
    def __init__(
        self, status: Callable[[], Status], condition: Callable[[], WorkerCondition], about: About,
        foreign: ForeignFound, clock_ms: Callable[[], int], set_aside: AsideFound, passed_over: AsideFound,
    ) -> None:  # fmt: skip
        self._set_aside = set_aside
        self._passed_over = passed_over
        self._status = status
        self._condition = condition
        self._about = about
        self._foreign = foreign
        self._clock_ms = clock_ms
        # The last status of each partition that was folded here, for when it is lost; and since when it is lost.
        self._last: dict[int, Mapping[str, Any]] = {}
        self._lost_ms: dict[int, int] = {}
        # When a partition was last committed here: one that was taken up again does not know it.
        self._committed_ms: dict[int, float] = {}

    def collect(self) -> Iterator[Metric]:
        """Every metric that has a value."""
        # In this order: the membership is known a moment after the partitions.
        condition, status, now_ms = self._condition(), self._status(), self._clock_ms()
        yield from self._of_worker(status, condition)
        yield from self._of_condition(condition, now_ms)
        yield self._of_others()
        yield self._of_damaged("set_aside", TOPICS, self._set_aside())
        yield self._of_damaged("passed_over", UNNEEDED, self._passed_over())
        folded = {number: each for number, each in status.items() if each.get("state") == "folding"}
        standby = {number: each for number, each in status.items() if each.get("state") == "standby"}
        yield self._gauge(
            "owned", [([str(each)], each in folded) for each in range(self._about.partitions)], "partition"
        )
        damage = {number: bool(each.get("damage")) for number, each in status.items()}
        yield self._gauge(
            "damaged", [([str(each)], damage.get(each, False)) for each in range(self._about.partitions)], "partition"
        )
        self._last |= folded
        self._committed_ms |= {number: now_ms - 1000 * each["last_commit_s"] for number, each in folded.items()
                               if each.get("last_commit_s") is not None}  # fmt: skip
        for gauges, given in ((GAUGES, self._exported(status, condition, now_ms)), (STANDBY_GAUGES, standby)):
            for key, (name, text) in gauges.items():
                yield from self._filled(GaugeMetricFamily(name, text, labels=["log", "partition"]), key, given)
        for key, (name, text) in COUNTERS.items():
            yield from self._filled(CounterMetricFamily(name, text, labels=["log", "partition"]), key, self._last)

    def _exported(self, status: Status, condition: WorkerCondition, now_ms: int) -> Status:
        """Return the partitions whose gauges are exported: those that it folds, and those that it may get back."""
        states = {number: status.get(number, {}).get("state") for number in self._last}
        self._lost_ms = {number: self._lost_ms.get(number, now_ms) for number, state in states.items()
                         if state != "folding"}  # fmt: skip
        group = condition.group
        is_settling = group is None or not group.holds or group.seconds(now_ms) < SETTLING_S
        ages = {number: {"last_commit_s": (now_ms - at_ms) / 1000} for number, at_ms in self._committed_ms.items()}
        return {
            number: {**self._last[number], **ages.get(number, {})}
            for number, state in states.items()
            if state in ("folding", "starting") or is_settling or now_ms - self._lost_ms[number] < SETTLING_S * 1000
        }

    def _of_condition(self, condition: WorkerCondition, now_ms: int) -> Iterator[Metric]:
        broker, group = condition.broker, condition.group
        yield self._gauge("broker_connected", [([], broker.holds)])
        yield self._gauge("brokers", [([], condition.brokers)])
        yield self._gauge("broker_lost", [([], 0 if broker.holds else broker.seconds(now_ms))])
        yield self._gauge("group_member", [([], group is not None and group.holds)])
        yield self._gauge("group_out", [([], 0 if group is None or group.holds else group.seconds(now_ms))])
        yield self._gauge("group_changed", [([], 0 if group is None else group.since_ms / 1000)])
        drifted = [each.topic for each in condition.unfit if not each.is_missing]
        missing = {each.topic for each in condition.unfit if each.is_missing}
        topics = sorted(Topics(self._about.log).needed)
        yield self._gauge("topic_drifted", [([each], drifted.count(each)) for each in topics], "topic")
        yield self._gauge("topic_missing", [([each], each in missing) for each in topics], "topic")
        yield self._gauge("held", [([], condition.held)])
        yield self._gauge("pending", [([], condition.pending)])
        failures = CounterMetricFamily(*WORKER_COUNTERS["reducer_failures"], labels=["log"])
        failures.add_metric([self._about.log], float(failed.total()))
        yield failures
        lag = [([str(number)], records) for number, records in sorted(condition.group_lag.items())]
        yield self._gauge("group_lag", lag, "partition")

    def _of_worker(self, status: Status, condition: WorkerCondition) -> Iterator[Metric]:
        states = [str(each.get("state", "")) for each in status.values()]
        yield self._gauge("info", [([self._about.version], 1)], "version")
        yield self._gauge("kernel", [([], find_kernel().kernel is not None)])
        yield self._gauge("log_partitions", [([], self._about.partitions)])
        # A series for each usual state from the start on, so that none ends when the last partition is lost.
        shown = sorted({"folding", "starting", *states})
        yield self._gauge("partitions", [([each], states.count(each)) for each in shown], "state")
        yield self._gauge("healthy", [([], health_of(status, condition)["healthy"])])
        yield self._gauge("ready", [([], readiness_of(status, condition)["ready"])])
        try:
            disk = shutil.disk_usage(self._about.folder)
        except OSError:  # a folder that is about to be created, or was removed: an absent value is more accurate
            return
        yield self._gauge("disk_free", [([], disk.free)])
        yield self._gauge("disk_size", [([], disk.total)])

    def _of_others(self) -> Metric:
        gauge = GaugeMetricFamily(*TOPIC_GAUGES["foreign"], labels=["log", "topic"])
        counts = dict.fromkeys(FOLLOWED, 0) | {
            each.topic.removeprefix(f"{self._about.log}."): each.records for each in self._foreign()
        }
        for topic, records in sorted(counts.items()):
            gauge.add_metric([self._about.log, topic], float(records))
        return gauge

    def _of_damaged(self, key: str, topics: Iterable[str], found: Iterable[SetAside]) -> Metric:
        gauge = GaugeMetricFamily(*TOPIC_GAUGES[key], labels=["log", "topic"])
        counts = dict.fromkeys(topics, 0) | {
            each.topic.removeprefix(f"{self._about.log}."): each.records for each in found
        }
        for topic, records in sorted(counts.items()):
            gauge.add_metric([self._about.log, topic], float(records))
        return gauge

    def _gauge(self, key: str, samples: Sequence[tuple[list[str], float]], *labels: str) -> Metric:
        gauge = GaugeMetricFamily(*WORKER_GAUGES[key], labels=["log", *labels])
        for values, value in samples:
            gauge.add_metric([self._about.log, *values], float(value))
        return gauge

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, key: str, status: Status) -> Iterator[Metric]:
        known = {partition: each[key] for partition, each in status.items() if each.get(key) is not None}
        for partition, value in sorted(known.items()):
            family.add_metric([self._about.log, str(partition)], float(bool(value) if key == "waits_for" else value))
        if known:
            yield family


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def metrics_of(
    status: Callable[[], Status], condition: Callable[[], WorkerCondition], about: About,
    foreign: ForeignFound = lambda: (), set_aside: AsideFound = lambda: (), passed_over: AsideFound = lambda: (),
    clock_ms: Callable[[], int] = _now_ms,
) -> Callable[[], bytes]:  # fmt: skip
    """Return a function that renders a fold's status and condition in Prometheus' text format.

    Args:
        clock_ms: Milliseconds since 1970.
    """
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status, condition, about, foreign, clock_ms, set_aside, passed_over))
    return lambda: generate_latest(registry)
