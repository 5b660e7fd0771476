"""Several workers of one log: they join, leave, die, and come back after others took over."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from refold.avro.errors import StorageError
from refold.avro.observation import Observation
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.partitioner import placed
from refold.streams.rocks.families import Memory
from refold.streams.worker.config import FoldConfig
from refold.streams.worker.emission import Emitter, NotEmitted, RefusalCount, is_member, metadata_of_none
from refold.streams.worker.membership import REJOINS_MAX, GroupMember, Membership
from refold.streams.worker.partition_table import PartitionTable, open_database
from refold.streams.worker.pending_commit import PendingCommit, StoredPosition
from refold_tests.child import Child
from refold_tests.folding import (
    append,
    await_folded,
    await_status,
    check_whole,
    committed,
    drain,
    fold_all,
    history,
    running,
    worker,
)
from refold_tests.kafka_topics import TIMEOUT_S
from refold_tests.waiting import await_true

pytestmark = pytest.mark.timeout(900)
PARTITIONS = 4


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


@pytest.mark.faults
@pytest.mark.parametrize("is_shared", [True, False], ids=["one folder", "a folder each"])
def test_workers_join_leave_and_die(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int, is_shared: bool
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = max(4, fault_rounds // 3)
    observations = history(rng, 15 * rounds)
    rest = iter(observations)
    acknowledged: set[bytes] = set()
    alive: dict[str, Child] = {}
    names = ("a", "b", "c")
    for _ in range(rounds):
        name = rng.choice(names)
        if name not in alive:
            folder = tmp_path if is_shared else tmp_path / name
            alive[name] = worker(child, log.url, folder, name, static=rng.random() < 0.5)
        elif rng.random() < 0.5:
            drain(alive.pop(name))
        else:
            alive.pop(name).kill()
        for _ in range(3):
            acknowledged |= append(log, [*islice(rest, 5)])
            time.sleep(rng.random() * 0.5)
        assert all(each.process.poll() is None for each in alive.values())
    for each in alive.values():
        drain(each)
    acknowledged |= append(log, rest)
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, acknowledged)


@pytest.mark.faults
@pytest.mark.parametrize("moment", ["", "begun", "produced", "sent", "committed"])
def test_worker_past_its_session_timeout_writes_nothing(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, moment: str
) -> None:
    """A worker is paused past its session, in the middle of a batch, and resumes after another has folded on."""
    observations = history(random.Random(seed), 300)
    stopped = worker(child, log.url, tmp_path / "a", "a", static=False, moment=moment, count=2, sent=signal.SIGSTOP)
    acknowledged = append(log, observations[:50])
    if moment == "":
        await_folded(log, stopped)
        stopped.signal(signal.SIGSTOP)
    else:
        acknowledged |= append_until_stopped(log, observations[50:100], stopped)
    acknowledged |= append(log, observations[100:200])
    other = worker(child, log.url, tmp_path / "b", "b", static=False)
    await_folded(log, other)
    stopped.process.send_signal(signal.SIGCONT)
    acknowledged |= append(log, observations[200:])
    await_folded(log, other)
    check_chain(log, stopped, other, acknowledged, tmp_path)


def append_until_stopped(log: KafkaLog, observations: Sequence[Observation], stopped: Child) -> set[bytes]:
    acknowledged: set[bytes] = set()
    deadline = time.monotonic() + 60
    while not stopped.is_stopped:
        assert time.monotonic() < deadline
        acknowledged |= append(log, observations)
        time.sleep(0.1)
    return acknowledged


def check_chain(log: KafkaLog, stopped: Child, other: Child, acknowledged: set[bytes], folder: Path) -> None:
    """Whether the paused worker ends or becomes a member again, nothing is visible twice."""
    for each in (stopped, other):
        each.signal(signal.SIGTERM)
    assert other.end() == 0
    stopped.end()
    for name in ("a", "b"):  # each has tables that another may be past
        fold_all(log, folder / name)
        check_whole(log, folder / name, acknowledged)


def test_earlier_of_two_workers_with_one_name_ends_even_when_idle(log: KafkaLog, tmp_path: Path) -> None:
    with running(log.url, tmp_path / "a", is_static=True) as earlier:
        await_status(earlier, lambda status: status.get("state") == "folding", 0)
        with running(log.url, tmp_path / "b", is_static=True):
            problem = earlier.failed()
    assert "give each its own --instance" in str(problem)


@pytest.mark.parametrize("is_outage", [True, False])
def test_fenced_member_rejoins_as_often_as_outages_explain(log: KafkaLog, tmp_path: Path, is_outage: bool) -> None:
    given: list[int] = []
    config = FoldConfig(log.url, tmp_path, "w", is_static=True)
    member = Membership(
        log.clients, GroupMember.of_fold(log.topics, config), given.extend, lambda _: None, is_alone=lambda: True,
        was_outage_within=lambda _: is_outage,
    )  # fmt: skip

    def serve_until(holds: Callable[[], bool], other: Callable[[], object] = lambda: None) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline
            other()
            member.serve(0.05)

    def fenced() -> None:
        """As if a broker had registered it again without its knowledge: it rejoins, and gets all partitions again."""
        outside = log.clients.reader(**{
            "group.id": log.topics.group, "group.instance.id": config.instance, "enable.partition.eof": False,
            "partition.assignment.strategy": "cooperative-sticky",
        })  # fmt: skip
        outside.subscribe([log.topics.observations])
        try:
            given.clear()
            serve_until(lambda: len(given) == PARTITIONS, lambda: outside.poll(0.05))
        finally:
            outside.close()

    try:
        serve_until(lambda: len(given) == PARTITIONS)
        for _ in range(REJOINS_MAX):
            fenced()
        if is_outage:
            fenced()
        else:
            with pytest.raises(StorageError, match="another worker runs under its name"):
                fenced()
    finally:
        member.leave()


class WatchedConsumer:
    """A consumer that notes how many partitions it has when it is closed."""

    def __init__(self, consumer: Consumer, had: list[int]) -> None:
        self._consumer, self._had = consumer, had

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def close(self) -> None:
        self._had.append(len(self._consumer.assignment()))
        self._consumer.close()


def test_leaving_member_gives_its_partitions_up_before_its_client_is_closed(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that revokes partitions within its close may never return from it."""
    had: list[int] = []
    reader = log.clients.reader
    monkeypatch.setattr(log.clients, "reader", lambda **settings: WatchedConsumer(reader(**settings), had))
    given: list[int] = []
    taken: list[int] = []
    config = FoldConfig(log.url, tmp_path, "w")
    member = Membership(log.clients, GroupMember.of_fold(log.topics, config), given.extend, taken.extend)
    deadline = time.monotonic() + TIMEOUT_S
    while len(given) < PARTITIONS:
        assert time.monotonic() < deadline
        member.serve(0.05)
    member.leave()
    assert (had, sorted(taken)) == ([0], sorted(given))


def test_member_without_a_generation_sends_no_offsets(log: KafkaLog, tmp_path: Path) -> None:
    """The broker would accept them: a client that lost its membership looks like one that never needed any."""
    config = FoldConfig(log.url, tmp_path, "w")
    outside = log.clients.reader(**{"group.id": log.topics.group, "enable.partition.eof": False})
    nobody = outside.consumer_group_metadata()
    assert not is_member(nobody)
    assert nobody == metadata_of_none(log.topics.group)
    members: list[int] = []
    member = Membership(log.clients, GroupMember.of_fold(log.topics, config), members.extend, lambda _: None)
    deadline = time.monotonic() + 60
    while len(members) < PARTITIONS:
        assert time.monotonic() < deadline
        member.serve(0.1)
    assert is_member(member.metadata())

    producer = log.clients.producer(
        **{"transactional.id": f"{log.topics.prefix}.raw", "transaction.timeout.ms": 5_000, "message.timeout.ms": 5_000}
    )
    producer.init_transactions()
    producer.begin_transaction()
    at = PartitionPoint(1, 1)
    producer.send_offsets_to_transaction([TopicPartition(log.topics.observations, 0, 1, at.metadata)], nobody)
    producer.commit_transaction()
    await_true(lambda: committed(log)[0] == 1, within_s=TIMEOUT_S)  # what was committed shows a little later

    refusals = RefusalCount(time.monotonic)
    emitter = Emitter(log.clients, log.topics, f"{log.topics.group}.fold.w", 5_000, refusals, lambda: False)
    emitter.fence(lambda: False)
    database = open_database(tmp_path / "1", Memory(1), 1, lambda: None)
    with database:
        table = PartitionTable(database, log.registry, log.read, None)
        table.stored = StoredPosition(log.log_id, 1, PARTITIONS)
        overlay = table.empty_overlay().to(PartitionPoint(3, 1), 0)
        overlay.changed(1, [(placed("t/1"), b"", b"change")])
        with pytest.raises(NotEmitted):
            emitter.emit([PendingCommit(1, overlay, ())], lambda: nobody)
        assert committed(log)[1] == 0
        assert list(log.read_changes(1, 0)) == []
        emitter.emit([PendingCommit(1, overlay, ())], member.metadata)
    await_true(lambda: committed(log)[1] == 3 and log.changes_end(1) > 0, within_s=TIMEOUT_S)
    assert [each.data for each in log.read_changes(1, 0)] == [b"change"]
    member.leave()
    outside.close()
