"""Emit the result of a batch exactly once: steps 2 to 4 of the protocol in service.py.

2. Begin a transaction; produce each partition's changes and dead letters, with the point that its commit leads to.
3. Send those points as the group's offsets, with the current membership. The broker checks whether it is still valid: a
   worker that was away for too long is refused here, and the records that it produced are never visible.
4. Commit.

If the group's coordinator dies while offsets are sent, the client may wait for it without end, whatever timeout it was
given (confluentinc/librdkafka#5511; seen with 2.16, for minutes after the coordinator was back). So each attempt is
short, attempts are repeated until the transaction times out, and an attempt that does not return is abandoned.

After any failure a new producer is created under the same id, and begins with `init_transactions`: that aborts an open
transaction, or waits until a commit in progress is decided, whatever the old producer does later. Nothing is emitted
before it succeeds; each attempt is short, so that the fold serves its membership between them, and an outage is waited
out.
1. Before the commit is requested, nothing is decided: `NotEmitted`, and the batch may be emitted again.
2. From then on only the log knows the result of the transaction: `CommitUnknown`, and the partitions of the batch are
   taken up again, as at a start of the worker (start.py).
3. Fencing is one of these two cases as well. The coordinator fences a client if its transaction took too long, as in an
   outage; or another process has begun under its id. In the second case the group refuses this worker as well
   (membership.py), and that ends it.
4. An error that says that the broker denies a request, or finds it invalid, ends the worker. Any other error may be of
   a broker that stops, starts or moves a coordinator, and no list can tell which: a new producer tries again. A bounded
   number of refusals in a row without a commit ends the worker.

A transaction without offsets is not made, because it would not be fenced; nor one by a client that is in no generation
of its group, because the broker accepts offsets from those unchecked.

Refusals are counted, so that a worker that cannot commit ends and says why:

1. Each refusal counts, from the last commit on. A transient error, such as a timeout, is no refusal.
2. An outage is waited out, however long it lasts: after it, counting starts at 0.
3. The limit is REFUSALS_MAX refusals and REFUSED_FOR_S: many may happen within a moment while a coordinator moves, and
   a few may happen hours apart.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from refold.avro.errors import StorageError
from refold.streams.deadletters import verdict_value
from refold.streams.deadline import Deadline
from refold.streams.events import log_event
from refold.streams.log.kafka.access import GROUP, READ, TOPIC, TRANSACTIONAL_ID, WRITE, Grant
from refold.streams.log.kafka.clients import Clients, call_within
from refold.streams.log.kafka.deadletters import verdict_key
from refold.streams.log.kafka.faults import error_of, is_denied, may_pass, storage_error, text_of
from refold.streams.log.kafka.range_reader import Headers
from refold.streams.log.kafka.topics import Topics
from refold.streams.partitioner import PLACE_BYTES
from refold.streams.worker.pending_commit import PendingCommit

REFUSALS_MAX = 20
REFUSED_FOR_S = 300.0


class RefusalCount:
    """Counts refusals since the last commit or outage; for one thread."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Start at 0.

        Args:
            now_s: any clock that never goes back, in seconds.
        """
        self._now_s = now_s
        self._since_s = 0.0
        self.times = 0

    def reset(self) -> None:
        """Forget earlier refusals: a transaction was committed, or there was an outage."""
        self.times = 0

    def refused(self) -> None:
        """A transaction was refused."""
        if not self.times:
            self._since_s = self._now_s()
        self.times += 1

    @property
    def seconds(self) -> float:
        """For how long every transaction has been refused."""
        return self._now_s() - self._since_s if self.times else 0.0

    @property
    def is_over_limit(self) -> bool:
        """Whether to stop trying."""
        return self.times >= REFUSALS_MAX and self.seconds >= REFUSED_FOR_S


# A dead letter holds a whole record, which another producer's limits may have let through.
TRANSACTION_MESSAGE_BYTES_MAX = 1_000_000_000
_POLL_S = 0.2
_BEGIN_S = 1.0
_ABORT_S = 5.0
_SEND_S = 3.0
_HANGS_S = 2 * _SEND_S
_AGAIN = "start it again, it goes on where it was"
_USED = "another process uses this transactional id: end that one, or give each worker an --instance of its own"
_REFUSED = f"the brokers' logs say why; then {_AGAIN}"
_log = logging.getLogger(__name__)

_METADATA = b"CGMDv2:"
_GENERATION = struct.Struct("<i")

# Errors that every producer would get again: the request itself is invalid, or it names something that does not exist.
_LASTING = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_REQUEST,
    KafkaError.INVALID_CONFIG, KafkaError.INVALID_GROUP_ID, KafkaError.INVALID_REQUIRED_ACKS,
    KafkaError.INVALID_TRANSACTION_TIMEOUT, KafkaError.OFFSET_METADATA_TOO_LARGE, KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION, KafkaError.UNSUPPORTED_VERSION, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE, KafkaError.UNSUPPORTED_SASL_MECHANISM, KafkaError.ILLEGAL_SASL_STATE,
    KafkaError.SECURITY_DISABLED, KafkaError._INVALID_ARG, KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._NOT_IMPLEMENTED, KafkaError._NOT_CONFIGURED, KafkaError._CRIT_SYS_RESOURCE,
})  # fmt: skip

_FENCED = frozenset({KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._FENCED})


class NotEmitted(Exception):
    """Nothing was emitted, and nothing of it will be; it may be tried again."""


class CommitUnknown(Exception):
    """The commit was requested, and its result is not known here."""


class Emitter:
    """The transactional producer of one worker process."""

    def __init__(
        self, clients: Clients, topics: Topics, transactional_id: str, timeout_ms: int, refusals: RefusalCount,
        is_outage: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Create it; it connects when it is first used.

        Args:
            clients: The factory of Kafka clients.
            topics: The log's topics.
            transactional_id: The worker's; an older process with the same one is fenced.
            timeout_ms: The timeout of transactions, in milliseconds.
            refusals: Counts the refusals since the last commit.
            is_outage: Whether no broker answers, or none did a moment ago.
        """
        self._clients = clients
        self._refusals = refusals
        self._is_outage = is_outage
        self._topics = topics
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._producer = self._connected()
        self._lettered: dict[int, int] = {}
        self._is_begun = False

    def fence(self, is_stopping: Callable[[], bool]) -> None:
        """Abort what an earlier process, or producer, of this id left open, and fence it."""
        while not (self.begin() or is_stopping()):
            pass

    def begin(self) -> bool:
        """Whether this producer may emit: it has fenced those before it, or does so now; within about a second."""
        if not self._is_begun:
            try:
                self._producer.init_transactions(_BEGIN_S)
            except KafkaException as failed:
                self._raise_lasting("begin", failed)
                error = error_of(failed)
                if error is None or not error.retriable():
                    self._reset("begin", failed)
                return False
            self._is_begun = True
        return True

    def is_fenced(self) -> bool:
        """Whether another producer has begun under this id, or the coordinator ended a transaction that took too long.

        Tested by a transaction that is never committed. Also true if no broker answers.
        """
        if not self._is_begun:
            return True
        offsets = [TopicPartition(self._topics.observations, 0, 0)]
        nobody = metadata_of_none(self._topics.group)
        try:
            self._producer.begin_transaction()
            call_within(_HANGS_S, partial(self._producer.send_offsets_to_transaction, offsets, nobody, _SEND_S))
            self._producer.abort_transaction(_ABORT_S)
        except (KafkaException, TimeoutError) as failed:
            self._reset("look whether it is fenced", failed)
            return True
        return False

    def emit(self, commits: Sequence[PendingCommit], membership: Callable[[], bytes]) -> dict[int, int]:
        """Emit commits in one transaction.

        Args:
            commits: The commits, at most one for each partition.
            membership: Returns the metadata of the group's member, read again before the offsets are sent.

        Returns:
            The next offset of `.deadletters`, by partition, where there are new ones.

        Raises:
            NotEmitted: Nothing was committed; it may be tried again.
            CommitUnknown: Whether it was committed is not known; the partitions must be started again.
            StorageError: The broker refused too often, or a record cannot be written.
        """
        self._lettered.clear()
        if not self.begin() or not is_member(membership()):
            raise NotEmitted
        try:
            self._emit(commits, membership)
        except StorageError:
            # A next owner of these partitions need not wait for it to time out.
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)
            raise
        self._refusals.reset()
        return dict(self._lettered)

    def _connected(self) -> Producer:
        return self._clients.producer(**{
            "transactional.id": self._id,
            "transaction.timeout.ms": self._timeout_ms,
            # It may not be the longer of the two.
            "message.timeout.ms": self._timeout_ms,
            "message.max.bytes": TRANSACTION_MESSAGE_BYTES_MAX,
        })  # fmt: skip

    def _reset(self, doing: str, why: Exception) -> None:
        """Abandon the producer, in whatever state it is, and create another; StorageError at the limit of refusals."""
        log_event(_log, "transaction_begun_anew", logging.WARNING, doing=doing, why=text_of(why))
        if self._is_outage():
            self._refusals.reset()
        elif isinstance(why, KafkaException) and not may_pass(why, frozenset()):
            self._refusals.refused()
        if self._refusals.is_over_limit:
            raise StorageError(
                f"the worker's transactions ({self._id}) were refused {self._refusals.times} times in "
                f"{self._refusals.seconds:.0f} s, with none committed in between; the last one could not {doing}: "
                f"{text_of(why)}; {_USED if is_fenced(why) else _REFUSED}"
            ) from why
        self._is_begun = False
        self._producer = self._connected()

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms / 1000)

    def _emit(self, commits: Sequence[PendingCommit], membership: Callable[[], bytes]) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as failed:
            raise self._not_emitted("begin", failed) from failed
        for commit in commits:
            self._produce(commit)
        offsets = [
            TopicPartition(self._topics.observations, commit.partition, at.offset, at.metadata)
            for commit in commits
            for at in (commit.overlay.stored.at,)
        ]
        self._send_offsets(offsets, membership)
        self._commit()

    def _commit(self) -> None:
        """Commit with a limit: without one the client waits for ever if it has no broker left to ask."""
        deadline = self._deadline()
        while True:
            try:
                self._producer.commit_transaction(_SEND_S)
                return
            except KafkaException as failed:
                error = error_of(failed)
                may_resume = error is not None and error.retriable() and not error.txn_requires_abort()
                if may_resume and not deadline.is_past:
                    continue
                self._raise_lasting("commit", failed)
                self._reset("commit", failed)
                raise CommitUnknown from failed

    def _produce(self, commit: PendingCommit) -> None:
        headers = commit.overlay.stored.at.headers
        changes = ((placed[PLACE_BYTES:], change) for placed, _, change in commit.overlay.changes)
        self._send(self._topics.changes, commit.partition, changes, headers)
        verdicts = ((verdict_key(verdict), verdict_value(verdict)) for verdict in commit.verdicts)
        self._send(self._topics.deadletters, commit.partition, verdicts, headers, self._next_deadletter_offset)

    def _send(
        self, topic: str, partition: int, rows: Iterable[tuple[bytes, bytes]], headers: Headers,
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:  # fmt: skip
        """Produce records, given as (key, value).

        This takes a large part of an emission, and holds the GIL. By position a call takes two thirds of its time.
        """
        produce = self._producer.produce
        for key, value in rows:
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery, None, 0, headers)
                    break
                except BufferError:
                    self._producer.poll(_POLL_S)
                except KafkaException as failed:
                    raise self._not_emitted("emit", failed) from failed

    def _next_deadletter_offset(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition, offset = message.partition() or 0, message.offset() or 0
            self._lettered[partition] = max(self._lettered.get(partition, 0), offset + 1)

    def _send_offsets(self, offsets: list[TopicPartition], membership: Callable[[], bytes]) -> None:
        deadline = self._deadline()
        while True:
            member = membership()
            if not is_member(member):
                raise self._not_emitted(
                    "send its offsets", NotEmitted("the worker belongs to no generation of its group")
                )
            try:
                call_within(_HANGS_S, partial(self._producer.send_offsets_to_transaction, offsets, member, _SEND_S))
                return
            except TimeoutError:
                hangs = KafkaError(KafkaError._TIMED_OUT, f"no answer in {_HANGS_S:.0f} s")
                raise self._not_emitted("send its offsets", KafkaException(hangs)) from None
            except KafkaException as failed:
                error = error_of(failed)
                if error is None or not error.retriable() or deadline.is_past:
                    raise self._not_emitted("send its offsets", failed) from failed

    def _not_emitted(self, doing: str, failed: Exception) -> NotEmitted:
        """Return the error for a failure before the commit; StorageError if waiting does not help."""
        if isinstance(failed, KafkaException):
            self._raise_lasting(doing, failed)
        self._reset(doing, failed)
        return NotEmitted()

    def _raise_lasting(self, doing: str, failed: KafkaException) -> None:
        error = error_of(failed)
        if error is None or is_denied(error) or error.code() in _LASTING:
            raise self._failure(doing, failed) from failed

    def _failure(self, doing: str, failed: KafkaException) -> StorageError:
        error = error_of(failed)
        if error is not None and is_denied(error):
            return storage_error(f"the worker's transaction ({self._id}) cannot {doing}", failed,
                                 needs=self._needs(error))  # fmt: skip
        return StorageError(f"the worker's transaction ({self._id}) could not {doing}: {text_of(failed)}; {_AGAIN}")

    def _needs(self, error: KafkaError) -> str:
        group = self._topics.group
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return self._clients.denial_message(Grant(TRANSACTIONAL_ID, f"{group}.fold.", WRITE, is_prefix=True))
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return self._clients.denial_message(Grant(GROUP, group, READ))
        written = self._topics.changes, self._topics.deadletters
        return " and ".join(self._clients.denial_message(Grant(TOPIC, each, WRITE)) for each in written)


def is_fenced(failed: Exception) -> bool:
    """Whether a producer was refused because another one began under its id, or its own transaction was ended."""
    return isinstance(failed, KafkaException) and (error := error_of(failed)) is not None and error.code() in _FENCED


def metadata_of_none(group: str) -> bytes:
    """The metadata of a consumer that is in no generation of a group.

    Made without a consumer: a client that is closed before it is connected may end the process by an assertion of
    librdkafka, and this is asked when brokers restart (confluentinc/librdkafka#3608).
    """
    has_no_instance = b"\1"
    return _METADATA + _GENERATION.pack(-1) + group.encode() + b"\0" + b"\0" + has_no_instance


def is_member(metadata: bytes) -> bool:
    """Whether a consumer's metadata is that of a member in a generation of its group.

    confluent-kafka gives it as librdkafka writes it: "CGMDv2:", generation i32, group, NUL, member, NUL, ...

    Raises:
        StorageError: The metadata has another form.
    """
    if not metadata.startswith(_METADATA):
        raise StorageError(f"this release of confluent-kafka uses another form of a group's metadata: {metadata[:8]!r}")
    (generation,) = _GENERATION.unpack_from(metadata, len(_METADATA))
    _, member, _ = metadata[len(_METADATA) + _GENERATION.size :].split(b"\0", 2)
    return generation >= 0 and member != b""
