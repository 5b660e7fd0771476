"""`refold rewind`: a group's offsets at a cut, and refused cases."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer

from refold.avro.errors import InputError
from refold.explorer.cli.main import run
from refold.streams.client import Log
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.range_reader import Headers
from refold.streams.log.kafka.rewind import CHANGES, rewind
from refold.streams.log.kafka.url import parse_url
from refold.streams.open import process_context
from refold_tests.brokers import SharedKafka
from refold_tests.opening import take
from refold_tests.sample_types import OTHER, THING, A, said

PARTITIONS = 2


@pytest.fixture
def log(kafka: SharedKafka, prefix: str) -> Iterator[Log]:
    """Ten records of one entity."""
    port = KafkaLog(parse_url(f"kafka://{kafka.bootstrap}/{prefix}?partitions={PARTITIONS}"))
    with Log(port, {each.name: each for each in (THING, OTHER)}, set(), process_context()) as found:
        take(found, [said(A, number) for number in range(10)])
        yield found


def port_of(log: Log) -> KafkaLog:
    assert isinstance(log.port, KafkaLog)
    return log.port


@contextlib.contextmanager
def member(kafka: SharedKafka, group: str, topic: str, came: list[Message] | None = None) -> Iterator[Consumer]:
    """A live member of a group; records received while it waited for its partitions are put into `came`."""
    config = {**kafka.client_config(), "group.id": group, "client.id": "somebody", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + 60
        while not consumer.assignment():
            assert time.monotonic() < deadline
            found = consumer.poll(0.1)
            if came is not None and found is not None:
                came.append(found)
        yield consumer
    finally:
        consumer.close()


def test_dry_run_reports_without_setting_and_apply_sets(
    kafka: SharedKafka, prefix: str, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    partition, group = log.port.partition_of(A), f"{prefix}-readers"
    url, to = f"kafka://{kafka.bootstrap}/{prefix}", f"offset:{partition}=4"
    expected = {number: 4 if number == partition else 0 for number in range(PARTITIONS)}
    for _ in range(2):
        assert run(["rewind", group, "--to", to, "--log", url]) == 0
        said_then = capsys.readouterr().out
        assert "dry run" in said_then
        assert {each.partition: each.before for each in rewind(port_of(log), group, log.point(to).cut)} == {
            0: None,
            1: None,
        }
    assert run(["rewind", group, "--to", to, "--log", url, "--apply", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["applied"] is True
    assert {each["partition"]: each["after"] for each in answer["partitions"]} == expected
    assert {each.partition: each.before for each in rewind(port_of(log), group, log.point(to).cut)} == expected
    came: list[Message] = []
    with member(kafka, group, f"{prefix}.observations", came) as consumer:
        message = came[0] if came else None
        while message is None:
            message = consumer.poll(1)
        assert (message.partition(), message.offset()) == (partition, 4)


def test_group_with_members_and_the_workers_group_are_refused(kafka: SharedKafka, prefix: str, log: Log) -> None:
    group, cut = f"{prefix}-live", log.point().cut
    with member(kafka, group, f"{prefix}.observations"):
        for apply in (False, True):
            with pytest.raises(InputError, match=r"has members: somebody on .*; end them first"):
                rewind(port_of(log), group, cut, apply=apply)
    rewind(port_of(log), group, cut, apply=True)
    with pytest.raises(InputError, match="the group of this log's workers: its offsets record what is folded"):
        rewind(port_of(log), f"refold.{prefix}", cut, apply=True)


def test_changes_continue_after_those_up_to_the_cut(kafka: SharedKafka, prefix: str, log: Log) -> None:
    """Batches end at 3, 3, 5 and 9; one was aborted, so offsets have holes."""
    partition = log.port.partition_of(A)
    producer = Producer({**kafka.client_config(), "transactional.id": prefix})
    producer.init_transactions()
    stands: list[tuple[int, int]] = []
    for throughs, commit in (((3, 3), True), ((4,), False), ((5,), True), ((9,), True)):
        stood: list[int] = []

        def delivered(error: object, message: Message, stood: list[int] = stood) -> None:
            stood.append(message.offset() or 0)

        producer.begin_transaction()
        for through in throughs:
            headers: Headers = [("refold-through", struct.pack(">Q", through))]
            producer.produce(f"{prefix}.changes", b"change", A.encode(), partition, delivered, headers=headers)
        producer.flush()
        if commit:
            producer.commit_transaction()
            stands += zip(throughs, stood, strict=True)
        else:
            producer.abort_transaction()
    deadline = time.monotonic() + 60
    while (end := port_of(log).changes_end(partition)) <= stands[-1][1]:
        assert time.monotonic() < deadline
        log.port.refresh()
    read = [offset for _, offset in stands]
    for offset in range(11):
        cut = log.point(f"offset:{partition}={offset}").cut
        after = {each.partition: each.after for each in rewind(port_of(log), f"{prefix}-c", cut, CHANGES)}
        assert after[partition] <= end
        assert [each for each in read if each >= after[partition]] == [
            each for through, each in stands if through > offset
        ]
