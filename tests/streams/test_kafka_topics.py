"""A log's topics on a real broker: created once by the first process, checked by every process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from refold.avro.errors import InputError, StorageError
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.topics import LogTopics, TopicAdmin, Topics
from refold.streams.log.kafka.url import Address, merged, parse_url
from refold.testing.kafka import Kafka
from refold_tests.kafka_topics import TIMEOUT_S, Broker

# A broker is silent for longer than its session with the controller, so it must start a new one.
FENCED_S = 14.0


@pytest.fixture
def address(broker: Broker) -> Address:
    return parse_url(f"kafka://{broker.bootstrap}/{broker.prefix}")


def opened(broker: Broker, address: Address, partitions: int | None = None, *, make: bool = True) -> LogTopics:
    return TopicAdmin(broker.admin, TIMEOUT_S).open(address._replace(partitions=partitions), make=make)


def test_log_is_created_once_and_keeps_its_partitions(broker: Broker, address: Address) -> None:
    with pytest.raises(InputError, match="there is no log here"):
        opened(broker, address, make=False)
    assert not TopicAdmin(broker.admin, TIMEOUT_S).exists(address)
    made = opened(broker, address, 4)
    assert TopicAdmin(broker.admin, TIMEOUT_S).exists(address)
    assert made.partitions == 4
    assert len(made.log_id) == 16
    assert opened(broker, address, make=False)[1:] == opened(broker, address, 4)[1:] == made[1:]
    with pytest.raises(
        InputError, match=r"has 4 partitions, fixed when it was created; open it without \?partitions=8"
    ):
        opened(broker, address, 8)


def test_concurrent_creators_make_one(broker: Broker, address: Address) -> None:
    counts = (8, 8, 4, 8, 4, 8)
    with ThreadPoolExecutor(len(counts)) as pool:
        asked = [pool.submit(opened, broker, address, count) for count in counts]
    found = [each.result()[1:] for each in asked if each.exception() is None]
    assert len(set(found)) == 1
    assert len(found) == counts.count(found[0][1])
    assert all("fixed when it was created" in str(each.exception()) for each in asked if each.exception() is not None)


def test_creation_interrupted_by_a_kill_is_completed(broker: Broker, address: Address) -> None:
    broker.topic("changes", 2, cleanup_policy="delete", retention_ms="-1", retention_bytes="-1",
                 unclean_leader_election_enable="false", max_message_bytes=str(9 << 20))  # fmt: skip
    assert opened(broker, address).partitions == 2


def test_different_setting_is_named(broker: Broker, address: Address) -> None:
    opened(broker, address, 1)
    for topic, key, value in (
        ("observations", "message.timestamp.type", "CreateTime"),
        ("observations", "retention.ms", "604800000"),
        ("observations", "retention.bytes", "1000000"),
        ("observations", "cleanup.policy", "compact,delete"),
        ("observations", "max.message.bytes", "1000"),
        ("observations", "unclean.leader.election.enable", "true"),
        ("changes", "retention.ms", "1"),
        ("deadletters", "cleanup.policy", "compact"),
        ("snapshots", "cleanup.policy", "delete"),
        ("manifests", "cleanup.policy", "delete"),
        ("schemas", "message.timestamp.type", "CreateTime"),
    ):
        name = f"{broker.prefix}.{topic}"
        needed = Topics(broker.prefix).needed[name][key]
        broker.alter(name, key, value)
        with pytest.raises(StorageError, match=rf"{name} has {key}={value}, and a log needs {needed}; .*--alter"):
            opened(broker, address)
        broker.alter(name, key, needed)
        opened(broker, address)


def test_larger_limit_is_not_a_difference(broker: Broker, address: Address) -> None:
    opened(broker, address, 1)
    broker.alter(f"{broker.prefix}.observations", "max.message.bytes", str(64 << 20))
    opened(broker, address)


def test_different_partition_count_is_named(broker: Broker, address: Address) -> None:
    opened(broker, address, 2)
    for done in broker.admin.create_partitions([NewPartitions(f"{broker.prefix}.changes", 3)]).values():
        done.result()
    broker.await_partitions(f"{broker.prefix}.changes", 3)
    with pytest.raises(StorageError, match=r"\.changes has 3 partitions, and this log needs 2"):
        opened(broker, address)


def test_missing_topic_is_named(broker: Broker, address: Address) -> None:
    opened(broker, address, 2)
    for done in broker.admin.delete_topics([f"{broker.prefix}.manifests"]).values():
        done.result()
    broker.await_partitions(f"{broker.prefix}.manifests", 0)
    with pytest.raises(StorageError, match=r"\.manifests is missing"):
        opened(broker, address)


def test_unreachable_broker_is_an_error_in_time() -> None:
    nobody = Broker("127.0.0.1:1", "none")
    with pytest.raises(StorageError, match=r"no answer from 127\.0\.0\.1:1"):
        TopicAdmin(nobody.admin, 1).open(parse_url("kafka://127.0.0.1:1/x"), make=False)


def opened_by_new_client(address: Address, *, make: bool) -> LogTopics:
    clients = Clients(merged(address, None), address.prefix)
    return TopicAdmin(clients.admin(), TIMEOUT_S, clients).open(address, make=make)


@pytest.mark.faults
def test_broker_without_a_controller_is_asked_again(kafka_cluster: Callable[..., Kafka]) -> None:
    kafka = kafka_cluster()
    address = parse_url(f"kafka://{kafka.bootstrap}/back?partitions=1")
    made = opened_by_new_client(address, make=True)
    kafka.pause(1)
    time.sleep(FENCED_S)
    kafka.resume(1)
    assert opened_by_new_client(address, make=False).log_id == made.log_id


def test_client_that_finds_no_broker_is_replaced(broker: Broker, address: Address) -> None:
    made = opened(broker, address, 1)
    lost = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    admin = TopicAdmin(lost, TIMEOUT_S, Clients(merged(address, None), address.prefix))
    assert admin.open(address, make=False).log_id == made.log_id


def test_full_queue_is_back_pressure(broker: Broker, address: Address) -> None:
    topics = Topics(broker.prefix)
    opened(broker, address, 1)
    outgoing = LogProducer(broker.clients, **{"queue.buffering.max.messages": 10, "linger.ms": 50})
    place = KafkaPartition(topics.observations, 0)
    for number in range(300):
        outgoing.send(OutgoingRecord(place, b"k", b"%d" % number, [], str(number)))
    outgoing.flush()
    assert outgoing.is_clean
    with broker.reading() as reading:
        found = [each.value for each in reading.records(place, 0, broker.end(place))]
    assert found == [b"%d" % number for number in range(300)]
    outgoing.close()
