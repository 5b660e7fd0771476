"""A group's committed offsets on a real broker; nothing else in the package requests them."""

from __future__ import annotations

import re
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.committed import CommittedOffset, CommittedOffsets
from refold_tests.kafka_topics import TIMEOUT_S, Broker
from refold_tests.tree import ROOT
from refold_tests.waiting import answered_within

FOLDERS = ("avro", "reducers", "streams", "agents", "sinks", "explorer")
ASKS = re.compile(r"list_consumer_group_offsets|(?:consumer|reader|member)\.committed\(", re.IGNORECASE)


def test_one_module_requests_committed_offsets() -> None:
    asking = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if ASKS.search(path.read_text(encoding="utf-8"))
    }
    assert asking == {"streams/log/kafka/committed.py"}


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic("observations", 3)


def asking(broker: Broker, topic: str, *, stable: bool = False) -> CommittedOffsets:
    return CommittedOffsets(broker.clients, broker.prefix, topic, stable=stable)


def member(broker: Broker) -> Consumer:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": broker.prefix, "enable.auto.commit": False}
    return Consumer(settings)


def test_offsets_with_their_commit_metadata(broker: Broker, topic: str) -> None:
    with asking(broker, topic) as committed:
        assert committed.ask([0, 1], TIMEOUT_S) == dict.fromkeys((0, 1), CommittedOffset(None, ""))
        consumer = member(broker)
        places = [TopicPartition(topic, 0, 0), TopicPartition(topic, 2, 7, metadata="refold 1 2 3")]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
        assert committed.ask(range(3), TIMEOUT_S) == {
            0: CommittedOffset(0, ""),
            1: CommittedOffset(None, ""),
            2: CommittedOffset(7, "refold 1 2 3"),
        }


def test_stable_offsets_wait_for_a_transaction_and_others_do_not(broker: Broker, topic: str) -> None:
    consumer = member(broker)
    consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": broker.prefix})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], consumer.consumer_group_metadata(), TIMEOUT_S)
    with asking(broker, topic) as committed, asking(broker, topic, stable=True) as stable:
        assert committed.ask([0], TIMEOUT_S) == {0: CommittedOffset(5, "")}
        with pytest.raises(KafkaException):
            stable.ask([0], 1.0)
        producer.commit_transaction(TIMEOUT_S)
        assert stable.ask([0], TIMEOUT_S) == {0: CommittedOffset(9, "")}
    consumer.close()


def test_request_without_a_broker_ends_in_time() -> None:
    with CommittedOffsets(Clients({"bootstrap.servers": "127.0.0.1:1"}, "x"), "x", "x", stable=False) as committed:

        def ask() -> float:
            begun_s = time.monotonic()
            with pytest.raises(KafkaException):
                committed.ask([0], 2.0)
            return time.monotonic() - begun_s

        assert answered_within(10, ask) > 1
