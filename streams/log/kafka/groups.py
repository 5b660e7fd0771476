"""What the coordinator of a consumer group says of it. On brokers that have just started there is none for a moment."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from refold.streams.log.kafka.faults import may_pass

_PAUSE_S = 0.2


def describe_group(admin: AdminClient, group: str, timeout_s: float, **asked: Any) -> ConsumerGroupDescription:
    """The group, asked for until a coordinator answers. KafkaException of the last answer, where it was no other."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(deadline - time.monotonic(), 1.0)
        (described,) = admin.describe_consumer_groups([group], request_timeout=left_s, **asked).values()
        try:
            found: ConsumerGroupDescription = described.result()
            return found
        except KafkaException as failed:
            if not may_pass(failed, frozenset()) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
