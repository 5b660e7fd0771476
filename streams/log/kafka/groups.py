"""What the coordinator of a consumer group says of it. On brokers that have just started there is none for a moment."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from refold.streams.deadline import Deadline
from refold.streams.log.kafka.committed import CommittedOffsets
from refold.streams.log.kafka.faults import may_pass
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.topics import Topics

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
