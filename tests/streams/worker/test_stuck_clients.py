"""Clients that would hang for ever: after their broker lost its partitions for a while, and in one call."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import ClusterMetadata

from refold.streams.log.kafka import clients
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.topics import Topics
from refold.streams.worker import fetcher
from refold.streams.worker.config import FoldConfig
from refold.streams.worker.membership import GroupMember, Membership
from refold.testing.kafka import Kafka
from refold_tests.child import Child
from refold_tests.folding import append, await_folded, check_whole, drain, history, opened, running, url_of, worker
from refold_tests.load import Kept, feeding
from refold_tests.sample_types import THING
from refold_tests.waiting import await_true

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

# Longer than the broker's session with its controller, which then fences it.
FENCED_S = 14.0

MEMBERS = 40
JOINED_S = 60.0

# The third call that sends offsets never returns.
HANGING = """
import threading
from refold.streams.log.kafka import clients

calls = []
class Hanging(clients.Producer):
    def send_offsets_to_transaction(self, *given):
        calls.append(None)
        if len(calls) == 3:
            threading.Event().wait()
        super().send_offsets_to_transaction(*given)
clients.Producer = Hanging
"""


@pytest.mark.parametrize("after_s", [0.3, 3.0])
def test_broker_that_was_fenced(
    kafka_cluster: Callable[..., Kafka], tmp_path: Path, child: Callable[..., Child], seed: int, after_s: float
) -> None:
    """Clients of a worker that has just started may know no broker at all: the one that answers is fenced itself.

    Failed transactions may end the worker (streams/log/kafka/clients.py); then it is started again.
    """
    print(f"seed {seed}")
    rng = random.Random(seed)
    kafka = kafka_cluster()
    url = url_of(kafka.bootstrap, "b")
    with opened(url) as log:
        log.register(THING)
        kept = Kept(partial(worker, child, url, tmp_path, session_ms=40_000, transaction_ms=20_000))
        with feeding(url, history(rng, 200), rng) as fed:
            time.sleep(after_s)
            kafka.pause(1)
            time.sleep(FENCED_S)
            kafka.resume(1)
            fed.await_more()
            acknowledged = fed.finish()
        await_folded(log, kept)
        kept.drain()
        check_whole(log, tmp_path, acknowledged)
    print(f"ended {len(kept.said)} times: {kept.said}")


def test_members_that_join_while_a_broker_recovers(kafka_cluster: Callable[..., Kafka], tmp_path: Path) -> None:
    """Of several clients, some request the topic from a broker that no longer answers, and get nothing."""
    kafka = kafka_cluster()
    with opened(url_of(kafka.bootstrap, "b")) as log:
        kafka.pause(1)
        time.sleep(FENCED_S)
        kafka.resume(1)
        given: list[list[int]] = [[] for _ in range(MEMBERS)]
        members = []
        for number, found in enumerate(given):
            topics = Topics(log.topics.prefix)
            topics.group += f".{number}"
            config = FoldConfig(log.url, tmp_path, str(number))
            members.append(Membership(log.clients, GroupMember.of_fold(topics, config), found.extend, lambda _: None))
        deadline = time.monotonic() + JOINED_S
        while not all(given):
            assert time.monotonic() < deadline, [number for number, found in enumerate(given) if not found]
            for each in members:
                each.serve(0.01)
        for each in members:
            each.leave()


def test_member_without_a_coordinator(log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member is silent from the beginning, as if it lost its only broker: the one that replaces it gets answers."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = "{}:{}".format(*nobody.getsockname())
        servers = [dead]

        def deaf(settings: dict[str, Any], **named: Any) -> Consumer:
            return Consumer(settings | ({"bootstrap.servers": servers.pop()} if servers else {}), **named)

        monkeypatch.setattr(clients, "Consumer", deaf)
        given, taken = _serve(log, tmp_path, lambda given, _: len(given) == log.partitions)
        assert (sorted(given), taken) == ([*range(log.partitions)], [])


@pytest.mark.parametrize("are_all", [False, True])
def test_member_that_lost_its_coordinator(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_all: bool
) -> None:
    """Its partitions go to the member that replaces it; if no other member gets an answer either, it keeps them."""
    asked: list[Consumer] = []

    class Deafened(Consumer):
        def list_topics(self, *given: Any, **named: Any) -> ClusterMetadata:
            asked.append(self)
            if are_all or self is asked[0]:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            found: ClusterMetadata = super().list_topics(*given, **named)
            return found

    monkeypatch.setattr(clients, "Consumer", Deafened)
    every = [*range(log.partitions)]
    if are_all:
        # The member was compared with another one twice.
        given, taken = _serve(log, tmp_path, lambda *_: len({*asked}) == 3)
        assert (sorted(given), taken) == (every, [])
    else:
        given, taken = _serve(log, tmp_path, lambda given, _: len(given) > len(every))
        assert (sorted(given), sorted(taken)) == (sorted(every * 2), every)


@pytest.mark.parametrize("is_told_records", [False, True])
def test_client_without_end_offsets_catches_up(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_told_records: bool
) -> None:
    """A partition without a lag: another client gets the end, and the worker catches up."""
    print(f"seed {seed}")
    made: list[Consumer] = []

    class Untold(Consumer):
        def __init__(self, settings: dict[str, Any], **named: Any) -> None:
            super().__init__(settings, **named)
            if settings.items() >= fetcher._SETTINGS.items():
                made.append(self)

        def consume(self, *given: Any) -> list[Message]:
            found = super().consume(*given)
            is_kept = is_told_records and self in made[:1]
            return [each for each in found if not is_kept or each.error() is None]

        def incremental_assign(self, places: list[TopicPartition]) -> None:
            is_kept = not is_told_records and self in made[:1]
            super().incremental_assign([each for each in places if not is_kept or each.topic == log.topics.schemas])

    monkeypatch.setattr(clients, "Consumer", Untold)
    if is_told_records:
        append(log, history(random.Random(seed), 60))
    with running(log.url, tmp_path, stuck_s=1.0) as found:
        await_true(lambda: len(found.service.status()) == log.partitions
                   and all(each.get("caught_up") for each in found.service.status().values()))  # fmt: skip
        found.look()
    assert len(made) == 2


def _serve(log: KafkaLog, folder: Path, is_over: Callable[[list[int], list[int]], bool]) -> tuple[list[int], list[int]]:
    """The partitions that a member got, and those that were revoked before it left."""
    given: list[int] = []
    taken: list[int] = []
    config = FoldConfig(log.url, folder, "w", session_ms=40_000)
    member = Membership(log.clients, GroupMember.of_fold(log.topics, config), given.extend, taken.extend)
    deadline = time.monotonic() + 2 * JOINED_S
    while not is_over(given, taken):
        assert time.monotonic() < deadline, (given, taken)
        member.serve(0.1)
    found = given[:], taken[:]
    member.leave()
    return found


def test_call_that_never_returns(log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int) -> None:
    """Another producer emits the batch, and the worker can end."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    found = worker(child, log.url, tmp_path, before=HANGING, transaction_ms=30_000)
    observations = history(rng, 300)
    acknowledged = set()
    for begin in range(0, len(observations), 60):
        acknowledged |= append(log, observations[begin : begin + 60])
        await_folded(log, found)
    drain(found)
    check_whole(log, tmp_path, acknowledged)
