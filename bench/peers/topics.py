"""The broker of the comparison and its topics: each workload's topic is created once, and read by every peer.

KAFKA_BOOTSTRAP names a broker that is already running: topics from an earlier run are used again.

`reset` deletes a worker's group and everything it wrote, so that refold's worker can fold the log again. The topic of
observations stays, so every run of every peer reads the same records.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from peers.workloads import Workload, plain_schema

import refold
from refold.agents.log import open_log
from refold.streams.log.kafka.topics import Topics
from refold.testing.kafka import start_kafka

PATIENCE_S = 60.0
# Kafka's default. Without it the first of two members gets all partitions and gives up half of them soon after, which a
# short run would measure.
JOIN_DELAY_MS = 3_000
TYPE = "tool_config"
LOGICAL = "logicalType"
_FLUSHED_AT_ONCE = 50_000


@contextmanager
def broker() -> Iterator[str]:
    """Yield the address of a broker. If it was started here, it ends with the block, and its data is deleted."""
    if given := os.environ.get("KAFKA_BOOTSTRAP"):
        yield given
        return
    with start_kafka(join_delay_ms=JOIN_DELAY_MS) as kafka:
        yield kafka.bootstrap


class Place:
    """The topics and groups on the broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def url(self, workload: Workload) -> str:
        """Return the URL of a workload's log."""
        return f"kafka://{self.bootstrap}/{workload.prefix}?partitions={workload.partitions}"

    def make(self, workload: Workload) -> str:
        """Create the workload's topic, if it is missing or incomplete, and return its Avro schema."""
        if workload.topic in self._names() and sum(self.ends(workload).values()) < workload.count:
            self.remove(workload.prefix)  # a run was stopped while it wrote this topic
        return self._make_plain(workload) if workload.is_plain else self._make_log(workload)

    def ends(self, workload: Workload) -> dict[int, int]:
        """Return the number of records by partition."""
        consumer = self._consumer("bench")
        try:
            places = [TopicPartition(workload.topic, each) for each in range(workload.partitions)]
            return {each.partition: consumer.get_watermark_offsets(each, timeout=PATIENCE_S)[1] for each in places}
        finally:
            consumer.close()

    def progress(self, workload: Workload, group: str) -> Progress:
        """Return the group's progress on the workload."""
        return Progress(self._consumer(group), workload)

    def written(self, topic: str, partitions: int) -> Written:
        """Return the progress of a peer that only its output shows."""
        return Written(self._consumer("bench"), topic, partitions)

    def await_empty(self, group: str) -> None:
        """Return once the group is empty: a process that has ended may stay in it for a session time-out."""
        deadline = time.monotonic() + PATIENCE_S
        while self._admin.describe_consumer_groups([group])[group].result().members:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.bootstrap}: somebody is in the group {group} still")
            time.sleep(0.1)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic for a peer's output."""
        self._create([NewTopic(topic, num_partitions=partitions, config={"retention.ms": "-1"})])

    def remove(self, prefix: str) -> None:
        """Delete all topics whose name contains `prefix`, and wait until they are gone."""
        deadline = time.monotonic() + PATIENCE_S
        while names := [name for name in self._names() if prefix in name]:
            for done in self._admin.delete_topics(names).values():
                _passed_over(done)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.bootstrap}: {names} are still there; delete them, then repeat")
            time.sleep(0.2)

    def reset(self, workload: Workload) -> None:
        """Restore the workload's log to the state in which no worker had folded it."""
        topics = Topics(workload.prefix)
        written = [topics.changes, topics.deadletters, topics.snapshots, topics.manifests]
        self._delete_group(topics.group)
        for name in written:
            self.remove(name)
        self._create([NewTopic(each, workload.partitions, config=dict(topics.needed[each])) for each in written])

    def _delete_group(self, group: str) -> None:
        """Delete a group with its offsets: with those of an earlier worker, the next one would have nothing to fold."""
        with suppress(KafkaException):  # there is none
            self.await_empty(group)
            for done in self._admin.delete_consumer_groups([group]).values():
                done.result()

    def _make_log(self, workload: Workload) -> str:
        is_there = workload.topic in self._names()
        if is_there:
            self.reset(workload)
        with open_log(self.url(workload)) as log:
            if not is_there:
                _write(log, workload)
            text = log.port.registry.newest(TYPE).codec.text
        # Decode times as integers, so that no peer spends time on creating datetimes.
        return json.dumps(json.loads(text, object_hook=lambda node: {k: v for k, v in node.items() if k != LOGICAL}))

    def _make_plain(self, workload: Workload) -> str:
        if workload.topic not in self._names():
            self.create(workload.topic, workload.partitions)
            producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "partitioner": "murmur2"})
            for number, (key, value) in enumerate(workload.plain(), 1):
                producer.produce(workload.topic, key=key, value=value)
                if number % _FLUSHED_AT_ONCE == 0:
                    producer.flush()
            producer.flush()
        return plain_schema()

    def _create(self, topics: list[NewTopic]) -> None:
        for done in self._admin.create_topics(topics).values():
            done.result()
        deadline = time.monotonic() + PATIENCE_S
        while not {each.topic for each in topics} <= self._names():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.bootstrap}: {[each.topic for each in topics]} were made and are not there")
            time.sleep(0.1)

    def _names(self) -> set[str]:
        return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def _consumer(self, group: str) -> Consumer:
        return Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})


class Progress:
    """Reads how many records of a workload a group has committed."""

    def __init__(self, consumer: Consumer, workload: Workload) -> None:
        self._consumer = consumer
        self._places = [TopicPartition(workload.topic, each) for each in range(workload.partitions)]

    def committed(self) -> int:
        """Return the current number."""
        try:
            found = self._consumer.committed(self._places, timeout=PATIENCE_S)
        except KafkaException:  # the group's coordinator is not ready yet
            return 0
        return sum(max(0, each.offset) for each in found)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class Written:
    """Reads how many changes a peer has written."""

    def __init__(self, consumer: Consumer, topic: str, partitions: int) -> None:
        self._consumer = consumer
        self._places = [TopicPartition(topic, each) for each in range(partitions)]

    def committed(self) -> int:
        """Return the current number."""
        return sum(self._consumer.get_watermark_offsets(each, timeout=PATIENCE_S)[1] for each in self._places)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def _write(log: refold.Log, workload: Workload) -> None:
    for number, each in enumerate(workload.observations(), 1):
        log.observe(**each)
        if number % _FLUSHED_AT_ONCE == 0:
            log.flush()
    log.flush()


def _passed_over(done: Future[None]) -> None:
    """Wait for a deletion; ignores that the item does not exist."""
    with suppress(KafkaException):
        done.result()
