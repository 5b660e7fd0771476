"""Emitting what a batch brings about: steps 2 to 4 of the protocol in service.py, exactly once.

2. Begin a transaction; produce each partition's changes and dead letters, with the point that its step leads to.
3. Send those points as the group's offsets, with the membership as it is at this moment. It is the broker that looks
   whether it still holds: a worker that was away for too long is refused here, and what it produced is never seen.
4. Commit.
When the group's coordinator dies while offsets are sent, the client may wait for it without end, whatever time it was
given (confluentinc/librdkafka#5511; seen with 2.16, for minutes after the coordinator was back). So each try is short,
they are repeated until the transaction's time is over, and a try that does not come back is left where it is.

Before the commit is asked for, nothing is decided. Where the membership moved on in this very moment, a broker was away
for longer than the client waits, or the client hangs, the producer is made anew under its id, which aborts the
transaction for certain, whatever the old one does later: `NotEmitted`, and the batch may be emitted again. That goes on
no longer than a transaction may take. All other failures end the worker, for what became of the transaction is not
known here; the next start finds out.

A transaction without offsets is not made, for it would not be fenced; nor one by a client that is in no generation of
its group at all, for the broker takes offsets from those unasked.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from refold.avro.errors import StorageError
from refold.streams.log.kafka.access import GROUP, READ, TOPIC, TRANSACTIONAL_ID, WRITE, Grant
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.deadletters import verdict_key
from refold.streams.log.kafka.faults import error_of, is_denied, may_pass, storage_error, text_of
from refold.streams.log.kafka.hanging import within
from refold.streams.log.kafka.reading import Headers
from refold.streams.log.kafka.topics import Topics
from refold.streams.partition import PLACE_BYTES
from refold.streams.verdicts import Verdict, verdict_value
from refold.streams.worker.table import Overlay, PartitionTable

# A dead letter holds a whole record, which another producer's limits may have let through.
MESSAGE_BYTES_MAX = 1_000_000_000
_POLL_S = 0.2
_ABORT_S = 5.0
_SEND_S = 3.0
_HANGS_S = 2 * _SEND_S
_AGAIN = "start it again, it goes on where it was"
_METADATA = b"CGMDv2:"
_GENERATION = struct.Struct("<i")

_MOVED = frozenset({
    KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID,
})  # fmt: skip

# A broker that came back has no such transaction open.
_LOST = frozenset({KafkaError.INVALID_TXN_STATE})


class NotEmitted(Exception):
    """The transaction was aborted, for certain: nothing was emitted."""


class Step(NamedTuple):
    """What one partition has to emit."""

    partition: int
    table: PartitionTable
    overlay: Overlay
    verdicts: Sequence[Verdict]


class Emitter:
    """The transactional producer of one worker process."""

    def __init__(self, clients: Clients, topics: Topics, transactional_id: str, timeout_ms: int) -> None:
        self._clients = clients
        self._topics = topics
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._producer = self._connected()
        self._lettered: dict[int, int] = {}
        self._failing_from_s: float | None = None

    def fence(self, is_stopping: Callable[[], bool]) -> None:
        """Abort what an earlier process, or producer, of this id left open, and keep it from going on."""
        while not is_stopping():
            if self._tried("begin", lambda: self._producer.init_transactions(_POLL_S * 5)):
                return

    def emit(self, steps: Sequence[Step], membership: Callable[[], bytes]) -> dict[int, int]:
        """Emit steps in one transaction; NotEmitted, StorageError.

        Returns the next offset of `.deadletters` in those partitions where there are new ones.
        """
        self._lettered.clear()
        if not is_member(membership()):
            raise NotEmitted
        try:
            self._emit(steps, membership)
        except NotEmitted:
            self._begin_anew()
            raise
        except StorageError:
            # A next owner of these partitions need not wait for it to time out.
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)
            raise
        self._failing_from_s = None
        return dict(self._lettered)

    def _connected(self) -> Producer:
        return self._clients.producer(**{
            "transactional.id": self._id,
            "transaction.timeout.ms": self._timeout_ms,
            # It may not be the longer of the two.
            "message.timeout.ms": self._timeout_ms,
            "message.max.bytes": MESSAGE_BYTES_MAX,
        })  # fmt: skip

    def _begin_anew(self) -> None:
        deadline = self._deadline_s()
        self._producer = self._connected()
        self.fence(lambda: time.monotonic() > deadline)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._timeout_ms / 1000

    def _emit(self, steps: Sequence[Step], membership: Callable[[], bytes]) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as failed:
            raise self._failure("begin", failed) from failed
        for step in steps:
            self._produce(step)
        offsets = [
            TopicPartition(self._topics.observations, step.partition, at.offset, at.metadata)
            for step in steps
            for at in (step.overlay.stored.at,)
        ]
        self._send_offsets(offsets, membership)
        self._commit()

    def _commit(self) -> None:
        """Without a limit of its own the client waits for ever, where it has no broker left to ask."""
        deadline = self._deadline_s()
        while not self._tried("commit", lambda: self._producer.commit_transaction(_SEND_S)):
            if time.monotonic() > deadline:
                raise StorageError(f"the worker's transaction ({self._id}) could not commit: no answer in "
                                   f"{self._timeout_ms / 1000:.0f} s; {_AGAIN}")  # fmt: skip

    def _produce(self, step: Step) -> None:
        headers = step.overlay.stored.at.headers
        for change in step.overlay.changes:
            self._send(self._topics.changes, step.partition, change.placed[PLACE_BYTES:], change.data, headers)
        for verdict in step.verdicts:
            self._send(
                self._topics.deadletters, step.partition, verdict_key(verdict), verdict_value(verdict), headers,
                on_delivery=self._lettered_at,
            )  # fmt: skip

    def _send(
        self, topic: str, partition: int, key: bytes, value: bytes, headers: Headers,
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:  # fmt: skip
        while True:
            try:
                self._producer.produce(
                    topic, partition=partition, key=key, value=value, headers=headers, on_delivery=on_delivery
                )
                return
            except BufferError:
                self._producer.poll(_POLL_S)
            except KafkaException as failed:
                raise self._undecided("emit", failed) from failed

    def _lettered_at(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition, offset = message.partition() or 0, message.offset() or 0
            self._lettered[partition] = max(self._lettered.get(partition, 0), offset + 1)

    def _send_offsets(self, offsets: list[TopicPartition], membership: Callable[[], bytes]) -> None:
        deadline = self._deadline_s()
        while True:
            member = membership()
            if not is_member(member):
                raise NotEmitted
            try:
                within(_HANGS_S, partial(self._producer.send_offsets_to_transaction, offsets, member, _SEND_S))
                return
            except TimeoutError:
                hangs = KafkaError(KafkaError._TIMED_OUT, f"no answer in {_HANGS_S:.0f} s")
                raise self._undecided("send its offsets", KafkaException(hangs)) from None
            except KafkaException as failed:
                error = error_of(failed)
                if error is not None and error.code() in _MOVED and not error.fatal():
                    raise NotEmitted from failed
                if error is None or not error.retriable() or time.monotonic() > deadline:
                    raise self._undecided("send its offsets", failed) from failed

    def _undecided(self, doing: str, failed: KafkaException) -> NotEmitted | StorageError:
        """What a failure before the commit is: once it has gone on for as long as a transaction may, it ends."""
        now_s = time.monotonic()
        if self._failing_from_s is None:
            self._failing_from_s = now_s
        is_over = now_s - self._failing_from_s > self._timeout_ms / 1000
        return self._failure(doing, failed) if is_over or not may_pass(failed, _LOST) else NotEmitted()

    def _tried(self, doing: str, call: Callable[[], None]) -> bool:
        """Whether it went well; False where it may be tried again."""
        try:
            call()
        except KafkaException as failed:
            error = error_of(failed)
            if error is not None and error.retriable() and not error.txn_requires_abort():
                return False
            raise self._failure(doing, failed) from failed
        return True

    def _failure(self, doing: str, failed: KafkaException) -> StorageError:
        error = error_of(failed)
        if error is not None and is_denied(error):
            return storage_error(f"the worker's transaction ({self._id}) cannot {doing}", failed,
                                 needs=self._needs(error))  # fmt: skip
        return StorageError(f"the worker's transaction ({self._id}) could not {doing}: {text_of(failed)}; {_AGAIN}")

    def _needs(self, error: KafkaError) -> str:
        group = self._topics.group
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return self._clients.lacks(Grant(TRANSACTIONAL_ID, f"{group}.fold.", WRITE, is_prefix=True))
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return self._clients.lacks(Grant(GROUP, group, READ))
        written = self._topics.changes, self._topics.deadletters
        return " and ".join(self._clients.lacks(Grant(TOPIC, each, WRITE)) for each in written)


def is_member(metadata: bytes) -> bool:
    """Whether a consumer's metadata is that of a member in a generation of its group.

    confluent-kafka gives it as librdkafka writes it: "CGMDv2:", generation i32, group, NUL, member, NUL, ...
    """
    if not metadata.startswith(_METADATA):
        raise StorageError(f"this release of confluent-kafka gives a group's metadata another form: {metadata[:8]!r}")
    (generation,) = _GENERATION.unpack_from(metadata, len(_METADATA))
    _, member, _ = metadata[len(_METADATA) + _GENERATION.size :].split(b"\0", 2)
    return generation >= 0 and member != b""
