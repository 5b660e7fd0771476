"""A test's own topics on a real broker, and records written without refold: any time, any bytes, transactions."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from refold.streams.deadletters import Verdict, verdict_value
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.deadletters import verdict_key
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.topics import Topics
from refold.testing.kafka.jars import class_path, fetch_jars, find_java
from refold_tests.waiting import await_true

TIMEOUT_S = 20.0
_numbers = itertools.count()


class Broker:
    """Direct access to a broker, with topics that begin with `prefix`."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.clients = Clients({"bootstrap.servers": bootstrap}, prefix)
        self.admin: AdminClient = self.clients.admin()
        self.offsets = Offsets(self.admin, TIMEOUT_S)

    @contextmanager
    def reading(self, timeout_s: float = TIMEOUT_S) -> Iterator[LogReaders]:
        reading = LogReaders(self.clients, timeout_s)
        try:
            yield reading
        finally:
            reading.close()

    def topic(self, name: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic. In the names of settings, _ stands for a dot."""
        topic = f"{self.prefix}.{name}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        for done in self.admin.create_topics([NewTopic(topic, partitions, config=config)]).values():
            done.result()
        return topic

    def alter(self, topic: str, key: str, value: str) -> None:
        """Change one setting of a topic. Later queries see it."""
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        asked = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
        for done in self.admin.incremental_alter_configs(asked).values():
            done.result()
        await_true(lambda: self._setting(topic, key) == value, within_s=TIMEOUT_S)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until the broker reports that it is gone."""
        for done in self.admin.delete_topics([topic]).values():
            done.result()
        self.await_partitions(topic, 0)

    def await_partitions(self, topic: str, count: int) -> None:
        """Wait until the broker reports this number of partitions; 0: the topic is gone."""
        await_true(lambda: self._partitions(topic) == count, within_s=TIMEOUT_S)

    def _setting(self, topic: str, key: str) -> object:
        (done,) = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return done.result()[key].value

    def _partitions(self, topic: str) -> int:
        (done,) = self.admin.describe_topics(TopicCollection([topic])).values()
        try:
            return len(done.result().partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return 0
            raise

    def end(self, place: KafkaPartition) -> int:
        return self.offsets.ends([place])[place]

    def produce(self, place: KafkaPartition, values: Iterable[bytes | None], **given: Any) -> None:
        """Write values, each in its own batch. `given` is passed to Producer.produce."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for value in values:
            self._put(producer, place, value, given)
            assert producer.flush(TIMEOUT_S) == 0

    def transaction(
        self, place: KafkaPartition, values: Sequence[bytes], *, end: str = "commit", **given: Any
    ) -> Producer:
        """Write values in one transaction, which is committed, aborted or left open. Its end is complete on return."""
        name = f"{self.prefix}.{next(_numbers)}"
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for value in values:
            self._put(producer, place, value, given)
        assert producer.flush(TIMEOUT_S) == 0
        if end == "commit":
            producer.commit_transaction(TIMEOUT_S)
        elif end == "abort":
            producer.abort_transaction(TIMEOUT_S)
        if end != "open":
            self.settle(place)
        return producer

    def settle(self, place: KafkaPartition) -> None:
        """Wait until no transaction is open in a partition: its marker arrives after the producer's answer."""
        await_true(lambda: self.end(place) >= self.offsets.ends([place], committed=False)[place], within_s=TIMEOUT_S)

    @staticmethod
    def _put(producer: Producer, place: KafkaPartition, value: bytes | None, given: dict[str, Any]) -> None:
        producer.produce(place.topic, value=value, partition=place.partition, **given)


def deciding(
    broker: Broker, topics: Topics, place: KafkaPartition, through: int, verdicts: Sequence[Verdict]
) -> Producer:
    """Write verdicts and the committed offset in one transaction, as a worker does. Return the open transaction's
    producer.
    """
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topics.group})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topics.prefix}.worker"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for each in verdicts:
        producer.produce(
            topics.deadletters, partition=each.partition, key=verdict_key(each), value=verdict_value(each),
            headers=PartitionPoint(through, 0).headers,
        )  # fmt: skip
    assert producer.flush(TIMEOUT_S) == 0
    offsets = [TopicPartition(place.topic, place.partition, through)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
    consumer.close()
    return producer


def decide(broker: Broker, topics: Topics, place: KafkaPartition, through: int, verdicts: Sequence[Verdict]) -> None:
    """Write verdicts as `deciding` does, and commit them. They are visible on return."""
    deciding(broker, topics, place, through, verdicts).commit_transaction(TIMEOUT_S)
    broker.settle(KafkaPartition(topics.deadletters, place.partition))


def limit_producers(bootstrap: str, bytes_s: int) -> None:
    """Set Kafka's quota for all clients with refold's client id. Kafka's own tool does it, because librdkafka
    cannot.
    """
    words = [find_java().command, "-cp", class_path(fetch_jars()), "kafka.admin.ConfigCommand",
             "--bootstrap-server", bootstrap, "--alter", "--add-config", f"producer_byte_rate={bytes_s}",
             "--entity-type", "clients", "--entity-name", "refold"]  # fmt: skip
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True, capture_output=True)
