"""A member of a consumer group: which partitions it owns. It reads nothing.

The member is a separate consumer with every partition paused, so that fetching (by another consumer, at given offsets)
and membership do not affect each other. Rebalancing is cooperative: partitions that do not move are not given up while
members join and leave. Callbacks are made only from `serve`, in the calling thread; a member joins no next generation
before its callback has returned.

A client may lose its last broker permanently: the one broker it knew was fenced, answered that there is none, and was
dropped before the client could start again with the named servers (confluentinc/librdkafka#5301; seen with 2.16). So a
member requests its topic from time to time. If it has no answer twice, and another client has one, it is closed, its
partitions are given up, and a new member joins.

A client gives up its partitions before it is closed. If its close has to revoke them, librdkafka can wait for ever for
its own answer (confluentinc/librdkafka#4884; seen with 2.16), and confluent-kafka holds Python's lock meanwhile.

A static member (group.instance.id) may be fenced without another member: a broker that died had registered it again,
and the answer with its new member id was lost. `is_alone` distinguishes this from another worker under the same name
(service.py), because the group cannot: a broker that replaces a static member keeps the data of the old one. A member
that is alone joins again, which makes the broker forget the lost id. After REJOINS_MAX times in REJOINS_WITHIN_S the
worker ends all the same. An outage in between explains the next time, and counting starts again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from refold.avro.errors import StorageError
from refold.streams.deadline import Deadline
from refold.streams.events import log_event
from refold.streams.log.kafka.access import GROUP, READ, Grant
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.faults import error_of, is_denied, is_lasting, storage_error, text_of
from refold.streams.log.kafka.topics import Topics
from refold.streams.worker.config import SESSION_MS, FoldConfig
from refold.streams.worker.emission import is_member

# A client joins when it receives the topic's metadata, and never does if the broker that it asked was dropped at that
# moment (seen with librdkafka 2.16): its next regular refresh helps, which would be five minutes later.
_LOOK_MS = 5_000
_ASKED_EVERY_S = 5.0
_ANSWERED_S = 1.0
_MEMBERSHIP_EVERY_S = 0.5
_SERVED_S = 0.02
_REVOKED_S = 5.0
REJOINS_MAX = 3
REJOINS_WITHIN_S = 120.0

OnPartitions = Callable[[Iterable[int]], None]

_log = logging.getLogger(__name__)


class GroupMember(NamedTuple):
    """The configuration of a group's member.

    Attributes:
        group: The group.
        topic: The topic whose partitions its members share.
        instance: Its name among the members.
        is_static: The group knows it by that name, and returns its partitions if it is back within a session.
        session_ms: How long the group waits for a silent member.
        rebalance_ms: How long it waits for a member that has to give up partitions; None for Kafka's default.
        client_id: Its name for others.
    """

    group: str
    topic: str
    instance: str
    is_static: bool = False
    session_ms: int = SESSION_MS
    rebalance_ms: int | None = None
    client_id: str = "refold"

    @classmethod
    def of_fold(cls, topics: Topics, config: FoldConfig) -> GroupMember:
        """A worker in the group that folds the log."""
        return cls(topics.group, topics.observations, config.instance, config.is_static, config.session_ms,
                   client_id=config.client_id)  # fmt: skip


class Membership:
    """A member of a consumer group, which calls back when the group assigns or revokes partitions."""

    def __init__(
        self, clients: Clients, member: GroupMember, on_assigned: OnPartitions, on_revoked: OnPartitions,
        on_membership: Callable[[bool], None] = lambda _: None, is_alone: Callable[[], bool] = lambda: False,
        was_outage_within: Callable[[float], bool] = lambda _: False,
    ) -> None:  # fmt: skip
        """Join the group.

        Args:
            clients: The factory of Kafka clients.
            member: The group, the topic, and how it joins.
            on_assigned: Gets the partitions that are its own from now on.
            on_revoked: Gets the partitions to give up before it returns; others may have them already.
            on_membership: Gets whether it is a member, about every half second while it polls.
            is_alone: Whether no other worker has its name.
            was_outage_within: Whether no broker answered at some time in the last so many seconds.
        """
        self._settings: dict[str, object] = {
            "group.id": member.group,
            "client.id": member.client_id,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": member.session_ms,
            "heartbeat.interval.ms": max(100, member.session_ms // 10),
            "enable.partition.eof": False,
            "topic.metadata.refresh.interval.ms": _LOOK_MS,
        }
        if member.is_static:
            self._settings["group.instance.id"] = member.instance
        if member.rebalance_ms is not None:
            self._settings["max.poll.interval.ms"] = member.rebalance_ms
        self._clients, self._group = clients, member.group
        self._instance = member.instance
        self._topic = member.topic
        self._assigned_callback, self._revoked_callback = on_assigned, on_revoked
        self._membership_callback, self._noted_s = on_membership, 0.0
        self._is_alone = is_alone
        self._was_outage_within = was_outage_within
        self._own: set[int] = set()
        self._problem: Exception | None = None
        self._asked_s = time.monotonic()
        self._is_unanswered = False
        self._rejoined_s: list[float] = []
        self._consumer = self._joining()

    def serve(self, timeout_s: float = 0) -> None:
        """Process the group's decisions; raises a callback's exception, or a fatal error of the member."""
        message = self._consumer.poll(timeout_s)
        self._raise_problem()
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._FATAL:
            self._require_alone(error)
            self._rejoin("it was fenced, and nobody else is in the group under its name")
        if error is not None and is_lasting(error, _ENDING):
            needs = self._clients.denial_message(Grant(GROUP, self._group, READ))
            raise storage_error(f"the worker cannot join its group {self._group}", error, needs=needs)
        self._note_membership()
        if time.monotonic() - self._asked_s > _ASKED_EVERY_S:
            self._check()

    def metadata(self) -> bytes:
        """The membership as it is at this moment."""
        found: bytes = self._consumer.consumer_group_metadata()
        return found

    def commit(self, offsets: Mapping[int, int]) -> bool:
        """Commit offsets as this member.

        Args:
            offsets: By partition the next offset to be read.

        Returns:
            Whether they are committed. They are not where no broker answers, or the group did not take them from it:
            it is rebalanced, or has given the partitions to another member.

        Raises:
            StorageError: This user may not.
        """
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        try:
            found = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as failed:
            error = error_of(failed)
            if error is not None and is_denied(error):
                needs = self._clients.denial_message(Grant(GROUP, self._group, READ))
                raise storage_error(f"offsets cannot be committed in {self._group}", failed, needs=needs) from failed
            return False
        except RuntimeError:  # it has left
            return False
        return all(each.error is None for each in found or ())

    def leave(self) -> None:
        """Release all partitions through the callback, and leave the group; raises the callback's exception."""
        self._close()
        self._raise_problem()

    def _close(self) -> None:
        """Give up all partitions, also those of a decision that was not served yet; then close the client."""
        with suppress(KafkaException, RuntimeError):  # it is fenced, or closed
            self._consumer.unsubscribe()
            deadline = Deadline(_REVOKED_S)
            while not deadline.is_past:
                self._consumer.poll(_SERVED_S)
                if not self._own:
                    break
        self._consumer.close()

    def _joining(self) -> Consumer:
        consumer = self._clients.reader(**self._settings)
        # Lost partitions need the same as revoked ones: the broker refuses their commits (emission.py).
        consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoked, on_lost=self._on_revoked
        )
        return consumer

    def _note_membership(self) -> None:
        now_s = time.monotonic()
        if now_s - self._noted_s > _MEMBERSHIP_EVERY_S:
            self._noted_s = now_s
            self._membership_callback(is_member(self.metadata()))

    def _check(self) -> None:
        """Join again if only this client has no answer."""
        was_unanswered, self._is_unanswered = self._is_unanswered, not self._has_answer(self._consumer)
        if was_unanswered and self._is_unanswered and self._has_another_answer():
            self._is_unanswered = False
            self._rejoin("of all clients only the one in the group has no answer from any broker")
        self._asked_s = time.monotonic()

    def _rejoin(self, why: str) -> None:
        log_event(_log, "group_joined_anew", logging.WARNING, group=self._group, why=why)
        self._close()
        # A fenced member is not informed which partitions it lost.
        self._call_back(self._revoked_callback, [TopicPartition(self._topic, each) for each in sorted(self._own)])
        self._own.clear()
        self._raise_problem()
        self._consumer = self._joining()

    def _require_alone(self, fatal: KafkaError) -> None:
        """Check that no other worker has this one's name, as far as is known; StorageError."""
        now_s = time.monotonic()
        if self._rejoined_s and self._was_outage_within(now_s - self._rejoined_s[-1]):
            self._rejoined_s.clear()
        self._rejoined_s = [each for each in self._rejoined_s if now_s - each < REJOINS_WITHIN_S] + [now_s]
        if len(self._rejoined_s) > REJOINS_MAX or not self._is_alone():
            raise StorageError(
                f"the worker was removed from its group {self._group} ({text_of(fatal)}): another worker runs under "
                f"its name, {self._instance}; give each its own --instance, then start it again"
            )

    def _has_answer(self, consumer: Consumer) -> bool:
        try:
            consumer.list_topics(self._topic, timeout=_ANSWERED_S)
        except KafkaException:
            return False
        return True

    def _has_another_answer(self) -> bool:
        other = self._clients.reader()
        try:
            return self._has_answer(other)
        finally:
            other.close()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_assign([TopicPartition(self._topic, each.partition, 0) for each in places])
        consumer.pause(places)
        self._own |= {each.partition for each in places}
        self._call_back(self._assigned_callback, places)

    def _on_revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._own -= {each.partition for each in places}
        self._call_back(self._revoked_callback, places)
        consumer.incremental_unassign(places)

    def _call_back(self, callback: OnPartitions, places: list[TopicPartition]) -> None:
        try:
            callback([each.partition for each in places])
        except Exception as problem:  # raised again from `serve`, outside of librdkafka's callback
            self._problem = problem


_ENDING = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError.INVALID_SESSION_TIMEOUT,
})  # fmt: skip
