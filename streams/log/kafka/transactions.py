"""The transactional writer of one partition's snapshots: records and manifests.

1. Fence: `init_transactions` under the partition's transactional id. The previous writer of the partition can no longer
   write, and its open transaction is aborted. The next record's offset is the end of `.snapshots`: no other process
   moves it from now on.
2. The first write begins a transaction. A record's key is the offset that it will have. The client's queue is bounded:
   a writer that is faster than the brokers waits.
3. To commit: send everything; check that the end of `.snapshots` is the counted one; commit; wait until the committed
   records can be read, because Kafka's response comes before that.
4. After any failure the caller aborts. After being fenced, nothing is written again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from refold.avro.errors import StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.access import TOPIC, TRANSACTIONAL_ID, WRITE, Grant
from refold.streams.log.kafka.clients import MESSAGE_BYTES_MAX, Clients
from refold.streams.log.kafka.faults import error_of, is_denied, storage_error
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.topics import Topics

# The longest time that brokers allow by default: an epoch of a large partition takes minutes.
TRANSACTION_TIMEOUT_MS = 900_000
# More than the largest record: a record that is larger than the queue would never be accepted.
QUEUED_KB = (MESSAGE_BYTES_MAX >> 10) + (2 << 10)
ANSWER_S = 60.0
_WAIT_S = 0.1
_SETTLING_S = 0.002
KEY = struct.Struct(">Q")
_FENCED = frozenset({
    KafkaError._FENCED, KafkaError._FATAL, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
})  # fmt: skip


class Fenced(StorageError):
    """Another process writes the partition now."""


class PartitionWriter:
    """The only writer of a partition, until it is fenced.

    Args:
        may_write: Raises if writing is no longer allowed.

    Attributes:
        next: The offset of the next record of `.snapshots`.
    """

    def __init__(
        self, clients: Clients, topics: Topics, offsets: Offsets, partition: int, may_write: Callable[[], None],
        timeout_ms: int,
    ) -> None:  # fmt: skip
        self._clients = clients
        self._ids = f"refold.{topics.prefix}.snapshots."
        self._places = KafkaPartition(topics.snapshots, partition), KafkaPartition(topics.manifests, partition)
        self._offsets = offsets
        self._may_write = may_write
        self._name = f"the snapshots of {topics.prefix}, partition {partition},"
        self._is_open = False
        self.fenced: Fenced | None = None
        self._producer: Producer = clients.producer(**{
            "transactional.id": f"{self._ids}{partition}",
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "queue.buffering.max.kbytes": QUEUED_KB,
        })  # fmt: skip
        # A client that is already connected fences at once; otherwise it retries after half a second.
        self._call(lambda: self._producer.list_topics(topics.manifests, ANSWER_S))
        self._call(self._producer.init_transactions, ANSWER_S)
        self.begin = self.next = self._ends(committed=False)[0]

    def append(self, data: bytes) -> None:
        """Write a record at the next offset."""
        self._produce(0, KEY.pack(self.next), data)
        self.next += 1

    def free(self, offset: int) -> None:
        """Free a record for compaction."""
        self._produce(0, KEY.pack(offset), None)
        self.next += 1

    def put(self, key: bytes, value: bytes | None) -> None:
        """Give a key of `.manifests` a value, or remove it."""
        self._produce(1, key, value)

    def send(self) -> None:
        """Return when the brokers have acknowledged everything."""
        while self._call(self._producer.flush, _WAIT_S):
            self._may_write()

    def commit(self) -> None:
        """Make everything written since the last commit durable and visible. If it fails, nothing of it is.

        Raises:
            StorageError: Another process wrote to the partition or fenced this one, or no broker answers.
        """
        if not self._is_open:
            return
        self.send()
        ends = self._ends(committed=False)
        if ends[0] != self.next:
            counted = self.next
            # If another process has fenced this one, report that.
            self.abort()
            raise StorageError(
                f"{self._name} end at {ends[0]} and not at {counted}: another process writes there; nothing was sealed"
            )
        self._call(self._producer.commit_transaction, ANSWER_S)
        self._await_visible_ends(ends)

    def abort(self) -> None:
        """Abort everything since the last commit."""
        if not self._is_open or self.fenced is not None:
            return
        # Records in flight arrive before the transaction's end, not after it.
        self._call(self._producer.flush, ANSWER_S)
        ends = self._ends(committed=False)
        self._call(self._producer.abort_transaction, ANSWER_S)
        self._await_visible_ends(ends)

    def close(self) -> None:
        """Abort the open transaction, and close the client."""
        try:
            self.abort()
        finally:
            # The client's `close` would abort again, and warn if that fails.
            del self._producer

    def _await_visible_ends(self, ends: tuple[int, int]) -> None:
        """Wait until no transaction is open below these ends, so that it is over for readers too."""
        deadline = Deadline(ANSWER_S)
        while any(stable < end for stable, end in zip(self._ends(committed=True), ends, strict=True)):
            if deadline.is_past:
                raise StorageError(f"{self._name}: a transaction's end was not visible for {ANSWER_S:.0f} s; try again")
            time.sleep(_SETTLING_S)
        self.begin = self.next = self._ends(committed=False)[0]
        self._is_open = False

    def _ends(self, *, committed: bool) -> tuple[int, int]:
        """The ends of the partition in `.snapshots` and `.manifests`."""
        found = self._offsets.ends(self._places, committed=committed)
        return found[self._places[0]], found[self._places[1]]

    def _produce(self, number: int, key: bytes, value: bytes | None) -> None:
        self._may_write()
        if not self._is_open:
            self._call(self._producer.begin_transaction)
            self._is_open = True
        topic, partition = self._places[number]
        while True:
            try:
                self._call(lambda: self._producer.produce(topic, value, key, partition))
                break
            except BufferError:
                self._call(self._producer.poll, _WAIT_S)
                self._may_write()
        self._call(self._producer.poll, 0)

    def _needs(self, error: KafkaError) -> str:
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return self._clients.denial_message(Grant(TRANSACTIONAL_ID, self._ids, WRITE, is_prefix=True))
        return " and ".join(self._clients.denial_message(Grant(TOPIC, place.topic, WRITE)) for place in self._places)

    def _call(self, what: Callable[..., Any], *given: float) -> Any:
        """Call the client, and retry while that may help; translate its errors."""
        deadline = Deadline(ANSWER_S)
        while True:
            try:
                return what(*given)
            except KafkaException as failed:
                error = error_of(failed)
                if error is not None and error.retriable() and not deadline.is_past:
                    continue
                if error is not None and is_denied(error):
                    raise storage_error(f"{self._name} cannot be written", failed, needs=self._needs(error)) from failed
                if error is not None and (error.fatal() or error.code() in _FENCED):
                    self.fenced = Fenced(
                        f"{self._name} are written by another process now, or a transaction took longer than it may; "
                        "this process writes them no more"
                    )
                    raise self.fenced from failed
                raise storage_error(f"{self._name} could not be written", failed) from failed
