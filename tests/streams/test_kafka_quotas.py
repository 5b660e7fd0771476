"""Clients throttled by the brokers' quotas: they wait, lose nothing, and send nothing twice because of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.testing.kafka import Kafka
from refold_tests.kafka_topics import Broker, limit_producers

BYTES_S = 2_000
RECORDS = 60
RECORD_BYTES = 1_000


@pytest.fixture
def limited(kafka_cluster: Callable[..., Kafka]) -> tuple[Broker, KafkaPartition]:
    """A separate broker with a topic, and a quota with which all records take a quarter of a minute."""
    broker = Broker(kafka_cluster().bootstrap, "limited")
    topic = broker.topic("records")
    # A new broker assigns no producer ids for some seconds; the test should not measure that wait.
    first = LogProducer(broker.clients)
    first.write(OutgoingRecord(KafkaPartition(broker.topic("first"), 0), b"k", b"", [], "the first record"))
    first.close()
    limit_producers(broker.bootstrap, BYTES_S)
    return broker, KafkaPartition(topic, 0)


def sent_to(place: KafkaPartition, outgoing: LogProducer) -> list[bytes]:
    """Records that no compression makes smaller."""
    made = random.Random(7)
    values = [made.randbytes(RECORD_BYTES) for _ in range(RECORDS)]
    for number, value in enumerate(values):
        outgoing.send(OutgoingRecord(place, b"k", value, [], f"record {number}"))
    return values


def found_at(place: KafkaPartition, broker: Broker) -> list[bytes]:
    with broker.reading() as reading:
        return [each.value or b"" for each in reading.records(place, 0, broker.end(place))]


def test_throttled_client_is_not_stuck(limited: tuple[Broker, KafkaPartition], monkeypatch: pytest.MonkeyPatch) -> None:
    broker, place = limited
    made: list[Producer] = []

    def counted(**settings: Any) -> Producer:
        made.append(make(**settings))
        return made[-1]

    make = broker.clients.producer
    monkeypatch.setattr(broker.clients, "producer", counted)
    outgoing = LogProducer(broker.clients, stuck_s=1.0, **{"batch.num.messages": 10})
    values = sent_to(place, outgoing)
    outgoing.flush()
    assert outgoing.is_clean
    assert len(made) == 1
    assert found_at(place, broker) == values
    outgoing.close()


def test_record_throttled_past_its_timeout_is_resent(limited: tuple[Broker, KafkaPartition]) -> None:
    broker, place = limited
    outgoing = LogProducer(broker.clients, **{"batch.num.messages": 10, "message.timeout.ms": 2_000})
    values = sent_to(place, outgoing)
    outgoing.flush()
    assert outgoing.is_clean
    # A record whose acknowledgement came too late may be there twice.
    assert set(found_at(place, broker)) == set(values)
    outgoing.close()
