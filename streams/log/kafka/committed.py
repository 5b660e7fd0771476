"""The committed offsets of a consumer group: every read of them goes through here.

1. They are asked for by a consumer. An admin client ends the process where a coordinator that has just started answers
   (seen with librdkafka 2.16: rd_kafka_handle_OffsetFetch without a group).
2. For stable ones the coordinator answers once no transaction is open that would move them. Others are the last that
   were committed, and answered at once.
3. Of a group that it may not describe the consumer says nothing: it looks for a coordinator until its time is over. The
   refusal is an event, so the time is divided, into parts that double, and events are taken in between. The event comes
   once; for DENIED_S after it the group counts as denied and is not asked for.

What the coordinator of a consumer group says of it. On brokers that have just started there is none for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from refold.streams.deadline import Deadline
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.faults import error_of, is_denied, is_passing, may_pass
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.topics import Topics

FIRST_S = 0.5
DENIED_S = 30.0


class CommittedOffset(NamedTuple):
    """A group's committed offset of one partition, and what was committed with it. offset: None where there is none."""

    offset: int | None
    metadata: str


class CommittedOffsets:
    """Asks for a group's committed offsets of one topic until closed; any thread may."""

    def __init__(self, clients: Clients, group: str, topic: str, *, stable: bool) -> None:
        self._topic = topic
        isolation = "read_committed" if stable else "read_uncommitted"
        self._consumer = clients.reader(**{"group.id": group, "isolation.level": isolation})
        self._refusal: KafkaError | None = None
        self._refused_s = 0.0

    def __enter__(self) -> CommittedOffsets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ask no more."""
        self._consumer.close()

    def ask(self, partitions: Iterable[int], timeout_s: float) -> dict[int, CommittedOffset]:
        """The committed offsets at this moment.

        Args:
            partitions: which ones.
            timeout_s: how long to wait for the coordinator.

        Returns:
            By partition; without those that the coordinator does not answer for.

        Raises:
            KafkaException: Nobody answered in time, or this user may not describe the group or the topic.
        """
        self._require_not_refused()
        places = [TopicPartition(self._topic, each) for each in partitions]
        answers = self._answers(places, Deadline(timeout_s))
        for each in answers:
            if each.error is not None and is_denied(each.error):
                raise KafkaException(each.error)
        return {each.partition: CommittedOffset(each.offset if each.offset >= 0 else None, each.metadata or "")
                for each in answers if each.error is None}  # fmt: skip

    def _answers(self, places: list[TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        part_s = FIRST_S
        while True:
            left_s = deadline.left_s
            try:
                return self._consumer.committed(places, max(0.001, min(part_s, left_s)))
            except KafkaException as failed:
                self._take_events()
                error = error_of(failed)
                if error is None or not is_passing(error) or left_s <= part_s:
                    raise
            part_s *= 2

    def _take_events(self) -> None:
        message = self._consumer.poll(0)
        error = None if message is None else message.error()
        if error is not None and is_denied(error):
            self._refusal, self._refused_s = error, time.monotonic()
            raise KafkaException(error)

    def _require_not_refused(self) -> None:
        if self._refusal is None:
            return
        if time.monotonic() - self._refused_s < DENIED_S:
            raise KafkaException(self._refusal)
        self._refusal = None


_PAUSE_S = 0.2


def describe_group(admin: AdminClient, group: str, timeout_s: float, **asked: Any) -> ConsumerGroupDescription:
    """The group, asked for until a coordinator answers. KafkaException of the last answer, where it was no other."""
    deadline = Deadline(timeout_s)
    while True:
        left_s = max(deadline.left_s, 1.0)
        (described,) = admin.describe_consumer_groups([group], request_timeout=left_s, **asked).values()
        try:
            found: ConsumerGroupDescription = described.result()
            return found
        except KafkaException as failed:
            if not may_pass(failed, frozenset()) or deadline.is_past:
                raise
        time.sleep(_PAUSE_S)


def group_lag(
    committed: CommittedOffsets, admin: AdminClient, topics: Topics, partitions: Iterable[int], timeout_s: float
) -> dict[int, int]:
    """Offsets of `.observations` that the workers' group has not committed, by partition; without those that the
    coordinator does not answer for. KafkaException, StorageError."""
    ends = Offsets(admin, timeout_s).ends(TopicPlace(topics.observations, each) for each in partitions)
    found = committed.ask([each.partition for each in ends], timeout_s)
    return {place.partition: max(0, end - (found[place.partition].offset or 0))
            for place, end in ends.items() if place.partition in found}  # fmt: skip
