"""Writing records: certain at `flush`, and never faster than the broker takes them.

1. `send` hands a record to Kafka's client, which sends it in the background, idempotently, to be acknowledged by all
   replicas in sync. While the client's queue is full it waits: that is the back-pressure.
2. `flush` returns when every record is acknowledged. If some were given up it raises StorageError that names them, and
   holds on to them: nothing more is taken until a `flush`, which sends them again, has gone well. (A record that was
   stored though its acknowledgement was lost then stands there twice; the same id twice is one observation.)
3. A client that failed for good is replaced by a new one. So is one that is stuck: where a broker lost and got back the
   lead of a partition by itself, the client may never learn of it, and sends nothing more (confluentinc/librdkafka
   issue 5430; seen with 2.16). It is taken for stuck when nothing is acknowledged for a while though all partitions
   have leaders; whatever it held is sent again.
4. What the brokers' quotas hold back is waited for, however long: they say how long they will not listen. Such a client
   is not stuck, and what it gave up meanwhile, for having waited longer than a record may, is sent again at once.
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
from refold.streams.log.kafka.offsets import TopicPlace
from refold.streams.log.kafka.range_reader import Headers

_POLL_S = 0.2
_NAMED_MAX = 3
STUCK_S = 10.0
_ASKED_S = 5.0
_PURGE_TURNS = 25


class Sent(NamedTuple):
    """One record to be written; `what` names it in an error."""

    place: TopicPlace
    key: bytes | None
    value: bytes | None
    headers: Headers
    what: str


class LogProducer:
    """The writing side of one log, for one thread."""

    def __init__(self, clients: Clients, **settings: object) -> None:
        self._clients = clients
        self._settings = {"throttle_cb": self._hear_of_quota, **settings}
        self._producer: Producer | None = None
        self._failed: list[tuple[Sent, str]] = []
        self._late: list[tuple[Sent, str]] = []
        self._deaf_until_s = 0.0
        self._sent = 0
        self._acknowledged = 0
        self._last = -1
        self._topics: set[str] = set()
        self._moved = (0, 0.0)
        self._is_denied = False

    @property
    def is_clean(self) -> bool:
        """Whether nothing waits to be acknowledged."""
        return self._sent == self._acknowledged and not self._failed and not self._late

    def send(self, sent: Sent) -> None:
        """Have a record written; durable after `flush`. InputError where it is too large for any topic of a log."""
        size = len(sent.value or b"") + len(sent.key or b"")
        if size > MESSAGE_BYTES_MAX - 4096:
            raise InputError(f"{sent.what}: {size} bytes are too many for one record, at most "
                             f"{MESSAGE_BYTES_MAX - 4096}; split it into several observations")  # fmt: skip
        if self._late:
            self._drain()
        if self._failed:
            self._complain()
        self._produce(sent)

    def flush(self) -> None:
        """Return when all is durable; StorageError names what is not, which the next flush sends again."""
        if self._failed:
            self._drain()
            self._replace()
        self._drain()
        if self._failed:
            self._complain()

    def write(self, sent: Sent) -> int:
        """Write one record, durable on return; its offset."""
        self.flush()
        self.send(sent)
        self.flush()
        return self._last

    def close(self) -> None:
        """Let go; what was not flushed is not waited for."""
        self._close()
        self._failed, self._late = [], []

    def _produce(self, sent: Sent) -> None:
        while True:
            if self._producer is None:
                self._producer = self._clients.producer(**self._settings)
            try:
                self._producer.produce(
                    sent.place.topic, partition=sent.place.partition, key=sent.key, value=sent.value,
                    headers=sent.headers, on_delivery=lambda error, message: self._delivered(sent, error, message),
                )  # fmt: skip
            except BufferError:
                self._producer.poll(_POLL_S)
                if self._is_stuck():
                    self._replace()
                continue
            except KafkaException as failed:
                self._failed.append((sent, self._why(failed, sent)))
                self._complain()
            break
        self._sent += 1
        self._topics.add(sent.place.topic)
        try:
            self._producer.poll(0)
        except KafkaException as failed:
            self._give_up(failed)

    def _delivered(self, sent: Sent, error: KafkaError | None, message: Message) -> None:
        self._acknowledged += 1
        if error is None:
            self._last = message.offset() or 0
        elif error.code() == KafkaError._MSG_TIMED_OUT and time.monotonic() < self._deaf_until_s + STUCK_S:
            self._late.append((sent, self._why(error, sent)))
        else:
            self._failed.append((sent, self._why(error, sent)))

    def _hear_of_quota(self, event: ThrottleEvent) -> None:
        """A broker does not listen for so long; 0 when that is over."""
        self._deaf_until_s = time.monotonic() + event.throttle_time

    def _why(self, failed: KafkaException | KafkaError, sent: Sent) -> str:
        """Why a record is not there. Who may write no topic at all hears of the cluster (KIP-679)."""
        error = error_of(failed)
        if error is None or not is_unlisted(error):
            return text_of(failed)
        self._is_denied = True
        return f"{text_of(failed)}: {self._clients.lacks(Grant(TOPIC, sent.place.topic, WRITE))}"

    def _give_up(self, failed: KafkaException) -> None:
        """The client failed for good, and with it whatever it holds."""
        known = len(self._failed)
        self._close()
        self._failed[known:] = [(sent, self._why(failed, sent)) for sent, _ in self._failed[known:]]

    def _drain(self) -> None:
        """Wait until each record is acknowledged or given up; for what only quotas hold back, however long."""
        self._await_answers()
        while self._late and not self._failed:
            self._replace()
            self._await_answers()
        self._failed += self._late
        self._late = []

    def _await_answers(self) -> None:
        """In short turns: Ctrl-C is heard between them."""
        while self._producer is not None and self._sent > self._acknowledged:
            try:
                self._producer.flush(_POLL_S)
            except KafkaException as failed:
                self._give_up(failed)
            if self._is_stuck():
                self._replace()

    def _is_stuck(self) -> bool:
        """Whether nothing was acknowledged for a while that could be."""
        acknowledged, since_s = self._moved
        now_s = time.monotonic()
        if acknowledged != self._acknowledged or self._sent == self._acknowledged or not since_s:
            self._moved = (self._acknowledged, now_s)
            return False
        if now_s - max(since_s, self._deaf_until_s) < STUCK_S or self._producer is None:
            return False
        self._moved = (acknowledged, now_s)
        # Another client is asked: this one may be wrong about them.
        admin = self._clients.admin()
        return all(_has_leaders(admin, topic) for topic in self._topics)

    def _replace(self) -> None:
        """Give the client up, and send by a new one what it held and what failed."""
        self._close()
        again = self._late + self._failed
        self._failed, self._late = [], []
        for number, (sent, _) in enumerate(again, 1):
            try:
                self._produce(sent)
            except StorageError:
                self._failed += again[number:]
                raise

    def _complain(self) -> NoReturn:
        (_, why), *_ = self._failed
        named = ", ".join(sent.what for sent, _ in self._failed[:_NAMED_MAX])
        more = f" and {len(self._failed) - _NAMED_MAX} more" if len(self._failed) > _NAMED_MAX else ""
        heard = f" ({self._clients.said})" if self._clients.said else ""
        kind, self._is_denied = Denied if self._is_denied else StorageError, False
        raise kind(f"not acknowledged by {self._clients.servers}: {named}{more}: {why}{heard}; flush again, "
                           "which sends them again")  # fmt: skip

    def _close(self) -> None:
        """Give the client up, with whatever it still holds."""
        if self._producer is not None:
            self._producer.purge()
            for _ in range(_PURGE_TURNS):  # until it has given back whatever it held
                with contextlib.suppress(KafkaException):
                    self._producer.flush(_POLL_S)
                if self._acknowledged == self._sent:
                    break
            self._producer = None


def _has_leaders(admin: AdminClient, topic: str) -> bool:
    """Whether every partition has one now, as a broker says."""
    try:
        found = admin.list_topics(topic, _ASKED_S).topics[topic]
    except (KafkaException, KeyError):
        return False
    return bool(found.partitions) and all(each.leader >= 0 for each in found.partitions.values())
