"""Writes records: durable after `flush`, with back-pressure from the broker.

1. `send` passes a record to Kafka's client, which sends it in the background, idempotently, with acks from all in-sync
   replicas. While the client's queue is full, `send` waits: that is the back-pressure.
2. `flush` returns when every record is acknowledged. If the client gave some up, it raises a StorageError that names
   them, and keeps them: no further record is accepted until a `flush`, which sends them again, has succeeded. (A record
   that was stored although its acknowledgement was lost is then stored twice; the same id twice is one observation.)
3. A client that failed fatally is replaced by a new one. So is one that is stuck: if a broker lost and regained the
   leadership of a partition, the client may never notice, and sends nothing more (confluentinc/librdkafka issue 5430;
   seen with 2.16). It counts as stuck when nothing is acknowledged for a while although all partitions have leaders;
   its records are sent again.
4. Throttling by the brokers' quotas is waited for without limit: the brokers report the throttle time. Such a client is
   not stuck, and records that it gave up meanwhile, because they exceeded the delivery timeout, are sent again at once.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient

from refold.avro.errors import Denied, InputError, StorageError
from refold.streams.log.kafka.access import TOPIC, WRITE, Grant
from refold.streams.log.kafka.clients import MESSAGE_BYTES_MAX, Clients
from refold.streams.log.kafka.faults import error_of, is_unlisted, text_of
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.range_reader import Headers

RECORD_BYTES_MAX = MESSAGE_BYTES_MAX - 4096
"""The largest key and value: a message also has headers and framing."""
_POLL_S = 0.2
_NAMED_MAX = 3
STUCK_S = 10.0
_ASKED_S = 5.0
_PURGE_TURNS = 25


class OutgoingRecord(NamedTuple):
    """One record to be written; `what` names it in an error."""

    place: KafkaPartition
    key: bytes | None
    value: bytes | None
    headers: Headers
    what: str


class LogProducer:
    """The producer of one log, for one thread.

    Args:
        stuck_s: Its client is replaced after so many seconds without an acknowledgement.
        settings: The settings of the client.
    """

    def __init__(self, clients: Clients, *, stuck_s: float = STUCK_S, **settings: object) -> None:
        self._clients = clients
        self._stuck_s = stuck_s
        self._settings = {"throttle_cb": self._on_throttle, **settings}
        self._producer: Producer | None = None
        self._failed: list[tuple[OutgoingRecord, str]] = []
        self._timed_out: list[tuple[OutgoingRecord, str]] = []
        self._throttled_until_s = 0.0
        self._sent = 0
        self._acknowledged = 0
        self._last_offset = -1
        self._topics: set[str] = set()
        self._last_progress = (0, 0.0)
        self._is_denied = False

    @property
    def is_clean(self) -> bool:
        """Whether no record waits for an acknowledgement."""
        return self._sent == self._acknowledged and not self._failed and not self._timed_out

    def send(self, sent: OutgoingRecord) -> None:
        """Write a record; durable after `flush`.

        Raises:
            InputError: It is too large for any topic of a log.
            StorageError: Earlier records were given up. A `flush` sends them again.
        """
        size = len(sent.value or b"") + len(sent.key or b"")
        if size > RECORD_BYTES_MAX:
            raise InputError(f"{sent.what}: {size} bytes are too many for one record, at most "
                             f"{RECORD_BYTES_MAX}; split it into several observations")  # fmt: skip
        if self._timed_out:
            self._drain()
        if self._failed:
            self._raise_failed()
        self._produce(sent)

    def flush(self) -> None:
        """Return when all records are durable.

        Raises:
            StorageError: Some were given up; the message names them. The next flush sends them again.
        """
        if self._failed:
            self._drain()
            self._replace()
        self._drain()
        if self._failed:
            self._raise_failed()

    def write(self, sent: OutgoingRecord) -> int:
        """Write one record, durable on return. Returns its offset."""
        self.flush()
        self.send(sent)
        self.flush()
        return self._last_offset

    def close(self) -> None:
        """Close the client, without waiting for records that were not flushed."""
        self._close()
        self._failed, self._timed_out = [], []

    def _produce(self, sent: OutgoingRecord) -> None:
        while True:
            if self._producer is None:
                self._producer = self._clients.producer(**self._settings)
            try:
                self._producer.produce(  # by position: names take a third of the call's time
                    sent.place.topic, sent.value, sent.key, sent.place.partition,
                    lambda error, message: self._delivered(sent, error, message), None, 0, sent.headers,
                )  # fmt: skip
            except BufferError:
                self._producer.poll(_POLL_S)
                if self._is_stuck():
                    self._replace()
                continue
            except KafkaException as failed:
                self._failed.append((sent, self._why(failed, sent)))
                self._raise_failed()
            break
        self._sent += 1
        self._topics.add(sent.place.topic)
        try:
            self._producer.poll(0)
        except KafkaException as failed:
            self._give_up(failed)

    def _delivered(self, sent: OutgoingRecord, error: KafkaError | None, message: Message) -> None:
        self._acknowledged += 1
        if error is None:
            self._last_offset = message.offset() or 0
        elif error.code() == KafkaError._MSG_TIMED_OUT and time.monotonic() < self._throttled_until_s + self._stuck_s:
            self._timed_out.append((sent, self._why(error, sent)))
        else:
            self._failed.append((sent, self._why(error, sent)))

    def _on_throttle(self, event: ThrottleEvent) -> None:
        """Handle a throttle event: the time for which a broker throttles; 0 when it ends."""
        self._throttled_until_s = time.monotonic() + event.throttle_time

    def _why(self, failed: KafkaException | KafkaError, sent: OutgoingRecord) -> str:
        """Why a record was not written. A user who may write no topic at all gets an error about the cluster
        (KIP-679).
        """
        error = error_of(failed)
        if error is None or not is_unlisted(error):
            return text_of(failed)
        self._is_denied = True
        return f"{text_of(failed)}: {self._clients.denial_message(Grant(TOPIC, sent.place.topic, WRITE))}"

    def _give_up(self, failed: KafkaException) -> None:
        """The client failed fatally, and so did all of its records."""
        known = len(self._failed)
        self._close()
        self._failed[known:] = [(sent, self._why(failed, sent)) for sent, _ in self._failed[known:]]

    def _drain(self) -> None:
        """Wait until each record is acknowledged or given up; without limit for records that only quotas delay."""
        self._await_answers()
        while self._timed_out and not self._failed:
            self._replace()
            self._await_answers()
        self._failed += self._timed_out
        self._timed_out = []

    def _await_answers(self) -> None:
        """Poll with a short timeout, so that Ctrl-C is handled in between."""
        while self._producer is not None and self._sent > self._acknowledged:
            try:
                self._producer.flush(_POLL_S)
            except KafkaException as failed:
                self._give_up(failed)
            if self._is_stuck():
                self._replace()

    def _is_stuck(self) -> bool:
        """Whether nothing was acknowledged for a while although it was possible."""
        acknowledged, since_s = self._last_progress
        now_s = time.monotonic()
        if acknowledged != self._acknowledged or self._sent == self._acknowledged or not since_s:
            self._last_progress = (self._acknowledged, now_s)
            return False
        if now_s - max(since_s, self._throttled_until_s) < self._stuck_s or self._producer is None:
            return False
        self._last_progress = (acknowledged, now_s)
        # Uses another client, because this one may have outdated metadata.
        admin = self._clients.admin()
        return all(_has_leaders(admin, topic) for topic in self._topics)

    def _replace(self) -> None:
        """Close the client, and send its records and the failed ones by a new one."""
        self._close()
        again = self._timed_out + self._failed
        self._failed, self._timed_out = [], []
        for number, (sent, _) in enumerate(again, 1):
            try:
                self._produce(sent)
            except StorageError:
                self._failed += again[number:]
                raise

    def _raise_failed(self) -> NoReturn:
        (_, why), *_ = self._failed
        named = ", ".join(sent.what for sent, _ in self._failed[:_NAMED_MAX])
        more = f" and {len(self._failed) - _NAMED_MAX} more" if len(self._failed) > _NAMED_MAX else ""
        last_error = f" ({self._clients.last_error})" if self._clients.last_error else ""
        kind, self._is_denied = Denied if self._is_denied else StorageError, False
        raise kind(f"not acknowledged by {self._clients.servers}: {named}{more}: {why}{last_error}; flush again, "
                           "which sends them again")  # fmt: skip

    def _close(self) -> None:
        """Close the client and drop its records."""
        if self._producer is not None:
            self._producer.purge()
            for _ in range(_PURGE_TURNS):  # until it has returned all its records
                with contextlib.suppress(KafkaException):
                    self._producer.flush(_POLL_S)
                if self._acknowledged == self._sent:
                    break
            self._producer = None


def _has_leaders(admin: AdminClient, topic: str) -> bool:
    """Whether every partition has a leader now, according to a broker."""
    try:
        found = admin.list_topics(topic, _ASKED_S).topics[topic]
    except (KafkaException, KeyError):
        return False
    return bool(found.partitions) and all(each.leader >= 0 for each in found.partitions.values())
