"""Reads the committed offsets of a consumer group. All reads of committed offsets use this module.

1. They are requested by a consumer. An admin client crashes the process if a coordinator that has just started answers
   (seen with librdkafka 2.16: rd_kafka_handle_OffsetFetch without a group).
2. For stable offsets the coordinator answers when no transaction is open that would change them. Other requests are
   answered at once with the last committed offsets.
3. If the consumer may not describe the group, the request gives no error: it looks for a coordinator until its timeout.
   The denial arrives as an event, so the time is divided into parts that double, and events are polled in between. The
   event comes once; for DENIED_S after it the group counts as denied and no request is made.

`describe_group` returns a group's description. Brokers that have just started have no coordinator until they have made
their topic of offsets. librdkafka 2.16 looks for a coordinator three times within a second, and then waits in silence
until its request times out or a connection changes. So this time too is divided into parts, each with a new request.
The first parts are long: an answer that comes as its request times out ends the process (confluentinc/librdkafka#4605;
seen once with 2.16, on a machine under heavy load).
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
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.topics import Topics

FIRST_S = 0.5
DENIED_S = 30.0


class CommittedOffset(NamedTuple):
    """A group's committed offset of one partition, and its metadata.

    Attributes:
        offset: None without a committed offset.
    """

    offset: int | None
    metadata: str


class CommittedOffsets:
    """Requests a group's committed offsets of one topic, until closed. Thread-safe."""

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
        """Close the consumer."""
        self._consumer.close()

    def ask(self, partitions: Iterable[int], timeout_s: float) -> dict[int, CommittedOffset]:
        """Return the committed offsets at this moment.

        Args:
            partitions: their numbers.
            timeout_s: how long to wait for the coordinator.

        Returns:
            By partition, without those that the coordinator does not answer for.

        Raises:
            KafkaException: No answer in time, or this user may not describe the group or the topic.
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
_FIRST_DESCRIPTION_S = 5.0


def describe_group(admin: AdminClient, group: str, timeout_s: float, **asked: Any) -> ConsumerGroupDescription:
    """Return the group's description; repeats the request until a coordinator answers. Raises the last
    KafkaException.
    """
    deadline = Deadline(timeout_s)
    part_s = _FIRST_DESCRIPTION_S
    while True:
        within_s = max(1.0, min(part_s, deadline.left_s))
        (described,) = admin.describe_consumer_groups([group], request_timeout=within_s, **asked).values()
        try:
            found: ConsumerGroupDescription = described.result()
            return found
        except KafkaException as failed:
            if not may_pass(failed, frozenset()) or deadline.is_past:
                raise
        part_s *= 2
        time.sleep(_PAUSE_S)


def group_lag(
    committed: CommittedOffsets, admin: AdminClient, topics: Topics, partitions: Iterable[int], timeout_s: float
) -> dict[int, int]:
    """Return how many offsets of `.observations` the workers' group has not committed, by partition.

    Partitions that the coordinator does not answer for are left out.

    Args:
        committed: Reads the group's offsets.
        admin: A client of the cluster.
        topics: The log's topics.
        partitions: Which ones.
        timeout_s: The timeout of each request, in seconds.

    Raises:
        KafkaException: The coordinator answered with an error.
        StorageError: No broker answers.
    """
    ends = Offsets(admin, timeout_s).ends(KafkaPartition(topics.observations, each) for each in partitions)
    found = committed.ask([each.partition for each in ends], timeout_s)
    return {place.partition: max(0, end - (found[place.partition].offset or 0))
            for place, end in ends.items() if place.partition in found}  # fmt: skip
