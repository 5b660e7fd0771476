"""Users' agents get only committed changes, each until it is done."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, MemberDescription

from refold.streams.deadline import Deadline
from refold.streams.log.kafka.committed import describe_group
from refold.streams.log.kafka.offsets import KafkaPartition
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.hosted_worker import change, change_codec
from refold_tests.kafka_topics import Broker
from refold_tests.waiting import await_true

OUT_S = 15.0
CODE = "from refold_tests.hosted_worker import main; main()"
Start = Callable[..., Child]


class Followed:
    """A `.changes`, and the workers that follow it."""

    def __init__(self, kafka: SharedKafka, prefix: str, child: Start, folder: Path, partitions: int = 1) -> None:
        self.broker = Broker(kafka.bootstrap, prefix)
        # Compressed like the fold's own writes.
        topic = self.broker.topic("changes", partitions, compression_type="lz4")
        self.place = KafkaPartition(topic, 0)
        self.group = f"{prefix}.agents"
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self._child = child
        self._folder = folder
        self._codec = change_codec()

    def commit(self, *versions: int, end: str = "commit", partition: int = 0) -> None:
        """Write changes of document/a in one transaction."""
        place = self.place._replace(partition=partition)
        self.broker.transaction(place, self._encoded(versions), end=end, key=b"document/a")

    def members(self) -> list[MemberDescription]:
        """The members of the agents' group."""
        return list(self._described().members)

    def shares(self) -> list[int]:
        """Return how many partitions each member has once the group is stable; empty before."""
        described = self._described()
        if described.state != ConsumerGroupState.STABLE:
            return []
        return sorted(len(each.assignment.topic_partitions) for each in described.members)

    def _described(self) -> ConsumerGroupDescription:
        return describe_group(self._admin, self.group, 60)

    def start(self, monkeypatch: pytest.MonkeyPatch, poison: str = "", instance: str = "one") -> Child:
        monkeypatch.setenv("REFOLD_TEST_POISON", poison)
        return self._child(CODE, self.broker.bootstrap, self.broker.prefix, self._folder / instance,
                           "refold_tests.following_agents", instance)  # fmt: skip

    def _encoded(self, versions: Iterable[int]) -> list[bytes]:
        return [self._codec.encode(change("a", version)) for version in versions]


@pytest.fixture
def followed(kafka: SharedKafka, prefix: str, child: Start, tmp_path: Path) -> Followed:
    return Followed(kafka, prefix, child, tmp_path)


def ended(process: Child) -> tuple[list[str], int]:
    """Return its remaining output, and its exit status."""
    lines = []
    while line := process.line():
        lines.append(line)
    return lines, process.process.wait(300)


def stopped(process: Child) -> tuple[list[str], int]:
    os.kill(process.process.pid, signal.SIGTERM)
    return ended(process)


def test_aborted_and_open_transactions_are_never_seen(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed.commit(101, 102, end="abort")
    followed.commit(1)
    followed.commit(103, end="abort")
    followed.commit(2, 3)
    process = followed.start(monkeypatch)
    assert [process.line() for _ in range(3)] == ["saw document/a v1", "saw document/a v2", "saw document/a v3"]
    followed.commit(104, end="abort")
    followed.commit(4)
    assert process.line() == "saw document/a v4"
    still_open = followed.broker.transaction(
        followed.place, [change_codec().encode(change("a", 105))], end="open", key=b"document/a"
    )
    assert stopped(process) == (["drained"], 0)
    still_open.abort_transaction(20)
    followed.broker.settle(followed.place)
    followed.commit(5)
    again = followed.start(monkeypatch)
    assert again.line() == "saw document/a v5"
    assert stopped(again) == (["drained"], 0)


def test_folder_is_created_with_its_parents(
    kafka: SharedKafka, prefix: str, child: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(kafka, prefix, child, tmp_path / "not" / "there")
    followed.commit(1)
    process = followed.start(monkeypatch)
    assert process.line() == "saw document/a v1"
    assert stopped(process) == (["drained"], 0)


def test_failure_while_starting_ends_the_worker(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "one" / "faust").mkdir(parents=True)
    (tmp_path / "one" / "faust" / "v1").write_bytes(b"")  # where Faust wants a folder
    lines, status = ended(followed.start(monkeypatch))
    assert status == 2
    assert lines[-1].startswith("failed: ")
    assert str(tmp_path / "one" / "faust" / "v1") in lines[-1]


def test_change_that_an_agent_fails_on_is_redelivered_and_none_is_skipped(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(1, 7):
        followed.commit(version)
    for _ in range(2):
        lines, status = ended(followed.start(monkeypatch, "document/a v3"))
        assert status == 2
        assert [line for line in lines if line.startswith("failed:")] == [lines[-1]]
        assert "sees failed at the change of document/a to v3" in lines[-1]
        assert "saw document/a v4" not in lines
    process = followed.start(monkeypatch)
    assert [process.line() for _ in range(4)] == [f"saw document/a v{version}" for version in range(3, 7)]
    assert stopped(process) == (["drained"], 0)


def test_change_is_acknowledged_only_after_the_agents_finish(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a kill while an agent works, the change is delivered again; SIGTERM waits for the agent."""
    gate = tmp_path / "gate"
    monkeypatch.setenv("REFOLD_TEST_GATE", f"document/a v2={gate}")
    followed.commit(1, 2, 3)
    killed = followed.start(monkeypatch)
    assert [killed.line(), killed.line()] == ["saw document/a v1", "at document/a v2"]
    killed.kill()
    process = followed.start(monkeypatch)
    lines = [process.line()]
    while lines[-1] != "at document/a v2":
        lines.append(process.line())
    assert lines[:-1] in ([], ["saw document/a v1"])  # whether it was committed before the kill
    os.kill(process.process.pid, signal.SIGTERM)
    gate.touch()
    lines, status = ended(process)
    assert (lines[0], lines[-1], status) == ("saw document/a v2", "drained", 0)
    again = followed.start(monkeypatch)
    assert again.line() == f"saw document/a v{len(lines) + 1}"
    assert stopped(again)[1] == 0


def test_partition_is_released_after_its_change_and_none_is_delivered_twice(
    kafka: SharedKafka, prefix: str, child: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker reads two partitions and works on a change when another joins; nobody is killed."""
    followed = Followed(kafka, prefix, child, tmp_path, partitions=2)
    gate = tmp_path / "gate"
    monkeypatch.setenv("REFOLD_TEST_GATE", f"document/a v1={gate}")
    followed.commit(1)
    first = followed.start(monkeypatch)
    assert first.line() == "at document/a v1"
    second = followed.start(monkeypatch, instance="two")
    await_true(lambda: len(followed.members()) == 2, within_s=300)
    gate.touch()
    await_true(lambda: followed.shares() == [1, 1], within_s=300)
    for partition in range(2):
        followed.commit(2, partition=partition)
    lines = [*stopped_after(first, 2), *stopped_after(second, 1)]
    assert sorted(line for line in lines if line != "drained") == ["saw document/a v1"] + 2 * ["saw document/a v2"]


def stopped_after(process: Child, count: int) -> list[str]:
    """Stop a worker once it has printed this many lines, and return its whole output."""
    lines = [process.line() for _ in range(count)]
    rest, status = stopped(process)
    assert status == 0
    return [*lines, *rest]


STRANGER = """
import sys, time
from confluent_kafka import Consumer
servers, group, topic, strategy = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "partition.assignment.strategy": strategy,
                     "session.timeout.ms": 120_000, "max.poll.interval.ms": 300_000})
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(0.1)
print("in", flush=True)
while True:
    consumer.poll(0.1)
"""


def stranger(followed: Followed, child: Start, strategy: str) -> Child:
    """Another program in the agents' group, which has the partition."""
    found = child(STRANGER, followed.broker.bootstrap, followed.group, followed.place.topic, strategy)
    assert found.line() == "in"
    return found


def test_member_with_another_assignor_ends_the_worker(
    followed: Followed, child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger(followed, child, "range")
    lines, status = ended(followed.start(monkeypatch))
    assert (lines[0], status) == ("drained", 2)
    assert lines[-1].startswith(f"failed: the worker cannot join its group {followed.group}: ")


def test_consumer_that_stays_out_of_its_group_ends_the_worker(
    followed: Followed, child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a member is silent, the group admits no other member until its session has expired."""
    monkeypatch.setenv("REFOLD_TEST_OUT_OF_GROUP_S", "5")
    stranger(followed, child, "cooperative-sticky").signal(signal.SIGSTOP)
    lines, status = ended(followed.start(monkeypatch))
    assert lines == ["drained", f"failed: the agents' consumer has not joined its group {followed.group} for 5 s; "
                     "start it again"]  # fmt: skip
    assert status == 2


def test_deleted_records_are_skipped(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's offset is below the first remaining record; agents continue there."""
    followed.commit(1)
    process = followed.start(monkeypatch)
    assert process.line() == "saw document/a v1"
    assert stopped(process) == (["drained"], 0)
    followed.commit(2)
    followed.commit(3)
    place = followed.place
    admin = AdminClient({"bootstrap.servers": followed.broker.bootstrap})
    deleted = admin.delete_records([TopicPartition(place.topic, place.partition, 4)], operation_timeout=60)
    assert [each.result().low_watermark for each in deleted.values()] == [4]
    again = followed.start(monkeypatch)
    assert again.line() == "saw document/a v3"
    assert stopped(again) == (["drained"], 0)


@pytest.mark.timeout(900)
def test_idle_worker_is_in_its_group(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers share one partition, and nothing is written for longer than a worker may be out of the group."""
    followed.commit(1)
    processes = [followed.start(monkeypatch), followed.start(monkeypatch, instance="two")]

    def have_joined() -> bool:
        for process in processes:
            process.look()
        return followed.shares() == [0, 1]

    # Joining may take any time; after that neither has a reason to leave.
    await_true(have_joined, within_s=300)
    for process in processes:
        process.say(f"{OUT_S}")
    deadline = Deadline(OUT_S + 2)
    while not deadline.is_past:
        for process in processes:
            process.look()
        time.sleep(0.1)
    for process in processes:
        os.kill(process.process.pid, signal.SIGTERM)
    assert [ended(process)[1] for process in processes] == [0, 0]


def test_invalid_change_record_ends_the_worker_and_is_not_skipped(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.commit(1)
    followed.broker.transaction(followed.place, [b"\0\0\0\0\1 no change"], key=b"document/a")
    followed.commit(2)
    for _ in range(2):
        lines, status = ended(followed.start(monkeypatch))
        assert (status, "cannot be read" in lines[-1]) == (2, True)
        assert "saw document/a v2" not in lines
