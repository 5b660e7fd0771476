"""Requests the first and last offsets of partitions, and the first offset at or after a time, from the brokers.

An end is the last stable offset: every transaction below it is committed or aborted, so records below it can be read at
once.

The client sends requests to each partition's last known leader, and waits for an unavailable one. After a restart or an
election that may be the wrong broker, and the client would retry it for minutes. So requests have a short timeout, and
leaders are looked up in between. If that does not help, for example after a broker was paused, another client is
created. When a broker dies during a request, the response may have neither an error nor an offset.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from refold.avro.errors import StorageError, Unanswered
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.faults import error_of, may_pass, storage_error

POLL_S = 0.05
SHOWS_POLL_S = 0.01
_ASK_S = 3.0
_ANOTHER_AFTER = frozenset({3, 10, 30, 100})


class KafkaPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class TimedOffset(NamedTuple):
    """An offset, and the time of its record, in milliseconds since 1970."""

    offset: int
    timestamp: int


class NotSearchable(StorageError):
    """The broker failed to search for a time: it unpacks the batch with that time, which may be damaged."""


class Offsets:
    """Requests offsets. Waits for temporary errors, such as a leader election."""

    def __init__(self, admin: AdminClient, timeout_s: float, another: Callable[[], AdminClient] | None = None) -> None:
        """Create it.

        Args:
            admin: A client of the cluster.
            timeout_s: The timeout of requests, in seconds.
            another: Creates a replacement for a client that finds no leaders, for long-lived users.
        """
        self._admin = admin
        self._another = another
        self._timeout_s = timeout_s
        self._asked_s = min(timeout_s, _ASK_S)

    def ends(self, places: Iterable[KafkaPartition], *, committed: bool = True) -> dict[KafkaPartition, int]:
        """Return the next offsets: the last stable ones, or with committed=False those of all written records."""
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        found = self._ask({place: OffsetSpec.latest() for place in places}, isolation)
        return {place: each.offset for place, each in found.items()}

    def begins(self, places: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        """Return the first existing offsets."""
        found = self._ask({place: OffsetSpec.earliest() for place in places}, IsolationLevel.READ_UNCOMMITTED)
        return {place: each.offset for place, each in found.items()}

    def wait_past(self, place: KafkaPartition, offset: int, else_: str) -> None:
        """Wait until a record that was written at an offset is visible, which another open transaction may delay.

        Args:
            place: The partition.
            offset: The record's offset.
            else_: The end of the error's message: what to do.

        Raises:
            StorageError: It is not visible after the timeout.
        """
        deadline = Deadline(self._timeout_s)
        while self.ends([place])[place] <= offset:
            if deadline.is_past:
                raise StorageError(f"{place.topic}: offset {offset} was written and is not visible: {else_}")
            time.sleep(SHOWS_POLL_S)

    def first_at(self, place: KafkaPartition, time_ms: int) -> TimedOffset | None:
        """Return the first offset with a time at or after `time_ms`, including control records and aborted ones; None
        if there is none.

        Raises NotSearchable if the broker fails to search.
        """
        spec = OffsetSpec.for_timestamp(time_ms)
        try:
            found = self._ask({place: spec}, IsolationLevel.READ_COMMITTED)[place]
        except StorageError as failed:
            cause = failed.__cause__
            error = error_of(cause) if isinstance(cause, KafkaException) else None
            if error is None or error.code() != KafkaError.UNKNOWN:
                raise
            raise NotSearchable(str(failed)) from failed
        return TimedOffset(found.offset, found.timestamp) if found.offset >= 0 else None

    def _ask(
        self, asked: dict[KafkaPartition, OffsetSpec], isolation: IsolationLevel
    ) -> dict[KafkaPartition, ListOffsetsResultInfo]:
        deadline = Deadline(self._timeout_s)
        found: dict[KafkaPartition, ListOffsetsResultInfo] = {}
        tries = 0
        while rest := {place: spec for place, spec in asked.items() if place not in found}:
            given = {TopicPartition(*place): spec for place, spec in rest.items()}
            admin, tries = self._admin, tries + 1  # keep a reference: a deleted client drops its requests
            answers = admin.list_offsets(given, isolation_level=isolation, request_timeout=self._asked_s)
            unled = set()
            for each, done in answers.items():
                doing = f"the offsets of {each.topic}/{each.partition} cannot be had"
                try:
                    answer = done.result()
                except KafkaException as failed:
                    if not may_pass(failed, _NOT_YET) or deadline.is_past:
                        raise storage_error(doing, failed) from failed
                    unled.add(each.topic)
                    continue
                if answer.offset != OFFSET_INVALID:
                    found[KafkaPartition(each.topic, each.partition)] = answer
                elif deadline.is_past:
                    raise Unanswered(f"{doing}: no leader gave one; check that all brokers are up")
                else:
                    unled.add(each.topic)
            if unled and self._another is not None and tries in _ANOTHER_AFTER:
                self._admin = self._another()
            for topic in unled:
                self._look_for_leaders(topic)
        return found

    def _look_for_leaders(self, topic: str) -> None:
        with contextlib.suppress(KafkaException):  # a repeated request will report the error
            self._admin.list_topics(topic, self._asked_s)
        time.sleep(POLL_S)


# A broker that just started, or has no metadata of a new topic yet, knows no leader ("No leaders found"), or no topic.
_NOT_YET = frozenset({KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART})
