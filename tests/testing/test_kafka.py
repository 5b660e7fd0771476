"""The brokers that tests and trials run on: they serve, survive what is done to them, and end for certain."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from refold.avro.errors import InputError
from refold.testing.kafka import Kafka, ServerFailed, start_kafka
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.waiting import await_true

TOPIC = "events"
DEADLINE_S = 120.0


def make_topic(kafka: Kafka | SharedKafka, topic: str = TOPIC) -> None:
    """A new cluster may not have told its controller yet, and a client that asked then does not ask again."""

    def is_made() -> bool:
        admin = AdminClient(kafka.client_config())
        made = admin.create_topics([NewTopic(topic, 1)], request_timeout=10)[topic]
        try:
            made.result()
        except KafkaException as failed:
            if failed.args[0].code() not in {KafkaError._TIMED_OUT, KafkaError.TOPIC_ALREADY_EXISTS}:
                raise
            return bool(failed.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    await_true(is_made, within_s=DEADLINE_S)


def send(producer: Producer, *values: str, topic: str = TOPIC) -> list[KafkaError | None]:
    """What became of each value: None for an acknowledged one."""
    ends: list[KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: ends.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return ends


def read(config: dict[str, Any], count: int, topic: str = TOPIC) -> list[str]:
    """The first `count` values of the topic."""
    consumer = Consumer({**config, "group.id": "readers"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, DEADLINE_S)
        assert [message.error() for message in messages] == [None] * count
        return [(message.value() or b"").decode() for message in messages]
    finally:
        consumer.close()


def refusal(config: dict[str, Any]) -> int:
    """The error that a client meets instead of connecting."""
    met: list[int] = []
    client = Producer({**config, "error_cb": lambda error: met.append(error.code())})
    await_true(lambda: bool(client.poll(0.1) or met), within_s=DEADLINE_S)
    return met[0]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_committed_transaction_is_read_and_an_aborted_one_is_not(kafka: SharedKafka, prefix: str) -> None:
    topic = f"{prefix}.{TOPIC}"
    make_topic(kafka, topic)
    producer = Producer({**kafka.client_config(), "transactional.id": prefix})
    producer.init_transactions()
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        assert send(producer, value, topic=topic) == [None]
        end()
    assert read(kafka.client_config(), 1, topic) == ["committed"]


def test_three_nodes_survive_a_killed_and_then_a_paused_leader(
    kafka_cluster: Callable[..., Kafka],
) -> None:
    kafka = kafka_cluster(nodes=3)
    make_topic(kafka)
    # A paused broker keeps its connections: only a time-out tells a client to look for another leader.
    producer = Producer({**kafka.client_config(), "enable.idempotence": True, "socket.timeout.ms": 3000})
    assert send(producer, "before") == [None]

    killed = kafka.leader_of(TOPIC)
    kafka.kill(killed)
    assert not kafka.is_running(killed)
    assert send(producer, "one is dead") == [None]
    second = kafka.leader_of(TOPIC, other_than=killed)

    kafka.restart(killed)
    kafka.pause(second)
    assert send(producer, "one is paused") == [None]
    kafka.leader_of(TOPIC, other_than=second)
    kafka.resume(second)

    third = next(node for node in kafka.nodes if node not in (killed, second))
    kafka.stop(third)
    assert send(producer, "one is stopped") == [None]
    assert read(kafka.client_config(), 4) == ["before", "one is dead", "one is paused", "one is stopped"]


def test_secured_kafka_allows_users_only_their_rights_even_after_a_kill(
    kafka_cluster: Callable[..., Kafka],
) -> None:
    kafka = kafka_cluster(secure=True)
    make_topic(kafka)
    kafka.create_user("writer")
    assert [error.code() for error in send(Producer(kafka.client_config("writer")), "denied") if error] == [
        KafkaError.TOPIC_AUTHORIZATION_FAILED
    ]
    admin = AdminClient(kafka.client_config())
    allowed = AclBinding(
        ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, "User:writer", "*",
        AclOperation.WRITE, AclPermissionType.ALLOW,
    )  # fmt: skip
    for made in admin.create_acls([allowed]).values():
        made.result()
    assert send(Producer(kafka.client_config("writer")), "allowed") == [None]
    assert read(kafka.client_config(), 1) == ["allowed"]

    for user in ("admin", "writer", "nobody"):
        assert refusal(kafka.client_config(user, password="wrong")) == KafkaError._AUTHENTICATION


STARTER = """
import os, time
from refold.testing.kafka import start_kafka
kafka = start_kafka()
fork = os.fork()
if not fork:
    time.sleep(600)
print(kafka.folder, kafka.pid(1), fork, flush=True)
input()
"""


@pytest.mark.kafka
def test_no_broker_outlives_a_killed_starter(child: Callable[..., Child]) -> None:
    """Not even a paused one, while a fork of the starter holds what the starter held."""
    starter = child(STARTER)
    folder, broker, fork = starter.line().split()
    try:
        os.kill(int(broker), signal.SIGSTOP)
        assert is_alive(int(broker))
        starter.process.kill()
        await_true(lambda: not is_alive(int(broker)) and not Path(folder).exists(), within_s=DEADLINE_S)
    finally:
        os.kill(int(fork), signal.SIGKILL)


@pytest.mark.kafka
def test_command_line_server_ends_on_sigterm_and_keeps_its_data(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "refold.testing.kafka", "--port", "0", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = "".join(iter(process.stdout.readline, "Ctrl-C ends it.\n"))
        try:
            bootstrap = re.search(r"kafka://([\d.:]+)/agents", told)
            assert bootstrap is not None, told
            given = SharedKafka(bootstrap[1])
            make_topic(given)
            assert send(Producer(given.client_config()), "kept") == [None]
        finally:
            process.terminate()
    assert process.returncode == 0
    with start_kafka(data=tmp_path) as kafka:
        assert read(kafka.client_config(), 1) == ["kept"]
    with pytest.raises(InputError, match="holds a Kafka of 1 node, plain"):
        start_kafka(nodes=3, data=tmp_path)


@pytest.mark.kafka
def test_broker_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "node1" / "data"
    folder.mkdir(parents=True)
    (folder / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")
    with pytest.raises(ServerFailed, match=r"node 1 ended instead of starting(.|\n)*node.id"):
        start_kafka(data=tmp_path)


def test_port_in_use_is_named(kafka: SharedKafka) -> None:
    port = int(kafka.bootstrap.rpartition(":")[2])
    with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is taken"):
        start_kafka(port=port)
