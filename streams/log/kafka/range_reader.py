"""Reads a range of one partition, with a consumer whose partition and start offset are assigned.

Reading a range always ends, even if its last offsets have no record that the client returns (records of aborted
transactions, transaction markers, records removed by compaction):
1. The range's end is at most an end that the broker returned before (offsets.py), so everything below is decided.
2. A record at the range's last offset, or after it, ends the range.
3. Without such a record, the consumer reports the partition's end, which is at or after the range's end.
4. If neither arrives, nor anything else, the broker is gone: after a time-out this is an error.
5. At a batch that cannot be decompressed, the client returns an error at the batch's first offset, repeatedly. Reading
   resumes after the offsets that are set aside (damaged.py). If the batch is not set aside, this is an error.
6. At a record whose length is damaged, in an uncompressed batch, the client returns nothing more. If nothing arrives
   for a while, and the partition's end can be read, the range is handled as in 5, from this record on.

Each reader uses a consumer exclusively until it has finished, so reads do not disturb each other. Consumers are pooled
for later reads. Single records are read by separate consumers that fetch little.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.avro.errors import DamagedRecord, StorageError, Unanswered
from refold.reducers.cells import new_tuple
from refold.streams.log.kafka.access import READ, TOPIC, Grant
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.damaged import UnreadableBatches, unreadable
from refold.streams.log.kafka.faults import SILENT, is_unreadable, raise_lasting, storage_error, text_of
from refold.streams.log.kafka.offsets import KafkaPartition

BATCH_RECORDS = 1000
IDLE_MAX = 4
_POLL_S = 0.5
SILENT_S = 10.0
_SMALL_FETCHES = {"fetch.message.max.bytes": 4096, "queued.min.messages": 1}

Headers = list[tuple[str, "str | bytes | None"]]


class RawRecord(NamedTuple):
    """A record as the broker stores it; timestamp in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """Return the value of the first header with a name, or None."""
        for each, value in self.headers:
            if each == name:
                return value if isinstance(value, bytes) else None
        return None


class UnreadableBatch(NamedTuple):
    """A batch that cannot be decompressed: the offsets first <= offset < end, and the client's error text."""

    first: int
    end: int
    why: str


class _Unreadable(Exception):
    """The client reached a batch that it cannot decompress, or of which it returns nothing."""

    def __init__(self, first: int, why: str) -> None:
        super().__init__(why)
        self.first = first
        self.why = why


class _Reader:
    """A consumer, and the topics it has read so far."""

    def __init__(self, consumer: Consumer, timeout_s: float) -> None:
        self.consumer = consumer
        self._timeout_s = timeout_s
        self._met: set[str] = set()

    def assign(self, place: KafkaPartition, start: int) -> None:
        """Start reading at an offset. Fetches a new topic's metadata, which a running client fetches a second later."""
        if self._met and place.topic not in self._met:
            with contextlib.suppress(KafkaException):  # the read that follows waits, and reports the error
                self.consumer.list_topics(place.topic, self._timeout_s)
        self._met.add(place.topic)
        self.consumer.assign([TopicPartition(place.topic, place.partition, start)])


class LogReaders:
    """The readers of one log; several threads may read.

    Args:
        clients: Makes the consumers.
        timeout_s: How long a read waits for the broker, in seconds.
        committed: Whether only committed records are returned.
        ahead_kb: How much each reader prefetches, in KiB; None for the default.
        unreadable: Knows which offsets of the log are set aside; None if no offset is.
        silent_s: The time without a record, in seconds, after which an offset is checked. If it gives no answer twice
            for this long, and the partition's end gives one in between, it is damaged, and the broker is not slow.
    """

    def __init__(
        self, clients: Clients, timeout_s: float, *, committed: bool = True, ahead_kb: int | None = None,
        unreadable: UnreadableBatches | None = None, silent_s: float = SILENT_S,
    ) -> None:  # fmt: skip
        self._clients = clients
        self._unreadable = unreadable
        self._settings: dict[str, Any] = {}
        if ahead_kb is not None:
            self._settings["queued.max.messages.kbytes"] = ahead_kb
        if not committed:
            self._settings["isolation.level"] = "read_uncommitted"
        self._timeout_s, self._silent_s = timeout_s, silent_s
        self._lock = Lock()
        self._idle: dict[bool, list[_Reader]] = {False: [], True: []}
        self._empty: dict[KafkaPartition, tuple[int, int]] = {}
        self._closed = False

    def records(self, place: KafkaPartition, start: int, end: int, *, few: bool = False) -> Generator[RawRecord]:
        """Yield the records with start <= offset < end, in order.

        Args:
            place: the topic and partition.
            start: the first offset.
            end: at most an end offset that the broker returned before.
            few: fetch little at a time, for a caller that needs one or two records.

        Raises:
            CorruptionError: records before `start` are gone.
            DamagedRecord: a batch cannot be decompressed, and is not set aside.
        """
        known = self._empty.get(place, (0, 0))
        if start >= end or (known[0] <= start and end <= known[1]):
            return
        reader = self._borrow(few)
        is_sound, is_empty = False, True
        at = start
        try:
            try:
                while at < end:
                    reader.assign(place, at)
                    try:
                        for message in self._messages(reader, place, at, end):
                            offset = message.offset() or 0
                            if offset < end:
                                is_empty = False
                                yield raw_of(message)
                            at = offset + 1
                            if at >= end:
                                break
                        break
                    except _Unreadable as met:
                        is_empty = False  # a ruling may be lifted: then the batch must be read again
                        at = self._resume_after(place, met, at, end)
            except KafkaException as failed:
                doing = f"{place.topic}/{place.partition} cannot be read"
                raise storage_error(doing, failed, needs=self._needs(place)) from failed
            if is_empty:
                self._empty[place] = (start, end)
            is_sound = True
        except GeneratorExit:
            is_sound = True
            raise
        finally:
            self._give_back(reader, few=few, is_sound=is_sound)

    def first(self, place: KafkaPartition, start: int, end: int) -> RawRecord | None:
        """Return the first record of a range, or None."""
        with contextlib.closing(self.records(place, start, end, few=True)) as found:
            return next(found, None)

    def last(self, place: KafkaPartition, end: int, is_wanted: Callable[[RawRecord], bool]) -> RawRecord | None:
        """Return the last record below an end for which `is_wanted` is true, or None.

        Searches backwards from the end, in ranges of doubling length.

        Args:
            place: The partition.
            end: The offset after the last one to look at.
            is_wanted: Selects the record.

        Raises:
            DamagedRecord: The last such record may be in a batch that cannot be decompressed.
        """
        length = 2
        stop = end
        while stop > 0:
            start = max(0, stop - length)
            last = self._last_in(place, start, stop, is_wanted)
            if last is not None:
                return last
            stop, length = start, length * 2
        return None

    def _last_in(
        self, place: KafkaPartition, start: int, end: int, is_wanted: Callable[[RawRecord], bool]
    ) -> RawRecord | None:
        """Return the last wanted record of a range; skips batches before it that cannot be decompressed."""
        last, met = None, None
        while start < end:
            try:
                for raw in self.records(place, start, end):
                    if is_wanted(raw):
                        last = raw
                break
            except DamagedRecord as error:
                batch = self.unreadable_at(place, error.offset, end)
                if batch is not None:
                    last, met, start = None, error, batch.end
        if last is None and met is not None:
            raise met
        return last

    def unreadable_at(self, place: KafkaPartition, offset: int, end: int) -> UnreadableBatch | None:
        """Return the extent of the unreadable batch at an offset, found by reading from later offsets.

        Args:
            place: The partition.
            offset: An offset in the batch.
            end: The end of the partition.

        Returns:
            None if the batch is readable.
        """
        reader = self._borrow(True)
        try:
            met = self._met_at(reader, place, offset, end)
            if met is None:
                return None
            inside, step = max(offset, met.first), 1
            while (outside := min(inside + step, end)) < end and self._is_met(reader, place, outside, end, met):
                inside, step = outside, step * 2
            while outside - inside > 1:
                middle = (inside + outside) // 2
                if self._is_met(reader, place, middle, end, met):
                    inside = middle
                else:
                    outside = middle
            return UnreadableBatch(met.first, outside, met.why)
        finally:
            reader.consumer.close()

    def _is_met(self, reader: _Reader, place: KafkaPartition, offset: int, end: int, met: _Unreadable) -> bool:
        """Return whether reading from an offset reaches the same unreadable batch."""
        if met.why == SILENT:
            return self._is_silent(reader, place, offset)
        again = self._met_at(reader, place, offset, end)
        return again is not None and again.first == met.first

    def _met_at(self, reader: _Reader, place: KafkaPartition, offset: int, end: int) -> _Unreadable | None:
        reader.assign(place, offset)
        try:
            next(self._messages(reader, place, offset, end), None)
        except _Unreadable as met:
            return met
        return None

    def _is_silent(self, reader: _Reader, place: KafkaPartition, offset: int) -> bool:
        """Return whether the client returns nothing from an offset on, although the partition's end can be read."""
        return (
            not self._is_heard(reader, place, offset)
            and self._is_heard(reader, place, OFFSET_END)
            and not self._is_heard(reader, place, offset)
        )

    def _is_heard(self, reader: _Reader, place: KafkaPartition, offset: int) -> bool:
        """Return whether a record, the partition's end or an error arrives when reading from an offset."""
        reader.assign(place, offset)
        waited_s = 0.0
        while waited_s < self._silent_s:
            message = reader.consumer.poll(_POLL_S)
            if message is not None and (message.topic(), message.partition()) == (place.topic, place.partition):
                return True
            waited_s += _POLL_S
        return False

    def _resume_after(self, place: KafkaPartition, met: _Unreadable, wanted: int, end: int) -> int:
        """Return where reading resumes after an unreadable batch; raises if the batch is needed and not set aside."""
        if self._unreadable is None:
            raise unreadable(place, met.first, met.why)
        if not self._unreadable.is_needed(place):
            batch = self.unreadable_at(place, max(met.first, wanted), end)
            if batch is None:
                return wanted
            self._unreadable.pass_over(place, max(batch.first, wanted), batch.end)
            return batch.end
        return self._unreadable.after(place, met.first, wanted, met.why)

    def close(self) -> None:
        """Close the idle readers; readers in use are closed when their read ends."""
        with self._lock:
            self._closed = True
            idle = [*chain(*self._idle.values())]
            self._idle = {False: [], True: []}
        for each in idle:
            each.consumer.close()

    def _messages(self, reader: _Reader, place: KafkaPartition, start: int, end: int) -> Iterator[Message]:
        """Yield messages until the partition's end is reached; raises errors that are not transient."""
        consumer, waited_s, at, was_tried = reader.consumer, 0.0, start, False
        while True:
            first = consumer.poll(_POLL_S)
            if first is None:
                waited_s += _POLL_S
                if self._unreadable is not None and self._unreadable.is_aside(place, at):
                    raise _Unreadable(at, SILENT)
                if waited_s > self._silent_s and not was_tried:
                    was_tried = True
                    if self._is_silent(reader, place, at):
                        raise _Unreadable(at, SILENT)
                    reader.assign(place, at)
                elif waited_s > self._timeout_s:
                    raise Unanswered(
                        f"{place.topic}/{place.partition}: {self._clients.servers} sent nothing for "
                        f"{self._timeout_s:g} s, while offsets {start} to {end} were read; "
                        f"{self._clients.last_error or 'is the broker running?'}"
                    )
                continue
            for message in chain((first,), consumer.consume(BATCH_RECORDS, 0)):
                error = message.error()
                if error is None:
                    waited_s, at = 0.0, (message.offset() or 0) + 1
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= end:
                        return
                elif is_unreadable(error):
                    raise _Unreadable(message.offset() or 0, text_of(error))
                else:
                    raise_lasting(error, f"{place.topic}/{place.partition}", start, self._needs(place))

    def _needs(self, place: KafkaPartition) -> str:
        return self._clients.denial_message(Grant(TOPIC, place.topic, READ))

    def _borrow(self, few: bool) -> _Reader:
        with self._lock:
            if self._closed:
                raise StorageError("the log is closed")
            if self._idle[few]:
                return self._idle[few].pop()
        return _Reader(self._clients.reader(**self._settings, **(_SMALL_FETCHES if few else {})), self._timeout_s)

    def _give_back(self, reader: _Reader, *, few: bool, is_sound: bool) -> None:
        if is_sound:
            with contextlib.suppress(KafkaException, RuntimeError):
                reader.consumer.unassign()
                with self._lock:
                    if not self._closed and len(self._idle[few]) < IDLE_MAX:
                        self._idle[few].append(reader)
                        return
        reader.consumer.close()


def raw_of(message: Message) -> RawRecord:
    headers = message.headers()
    found = headers if isinstance(headers, list) else []
    parts = (message.offset() or 0, message.timestamp()[1], message.key(), message.value(), found)
    return new_tuple(RawRecord, parts)
