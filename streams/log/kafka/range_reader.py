"""Reading a range of one partition, by a consumer that is told what to read.

A range ends for certain, also where its last offsets hold nothing that is given out (records of aborted transactions,
the markers of transactions, what compaction took):
1. Its end is at most an end that the broker gave before (offsets.py), so all below is decided.
2. A record at its last offset, or behind it, ends it.
3. Without one, the consumer comes to the partition's end, which is at or behind the range's, and says so.
4. Where neither comes and nothing else, the broker is gone: after a while that is an error.
5. At a batch that cannot be unpacked the client gives an error at its first offset, again and again. Reading begins
   again after what is set aside (damaged.py); where the batch is not, that is an error.
6. At a record whose length is damaged, in a batch that is not compressed, the client gives nothing more. Where nothing
   came for a while, and the end of the partition can be read, that is as in 5, from this record on.

Whoever reads has a consumer of his own until he is done: a read under way is not disturbed by the next one. Consumers
are kept for the next reader; single records are read by others that fetch little.
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
from refold.streams.log.kafka.offsets import TopicPlace

AT_ONCE = 1000
IDLE_MAX = 4
_POLL_S = 0.5
SILENT_S = 10.0
"""Twice this without an answer about an offset, with an answer about another one between, is no slow broker."""
_FEW = {"fetch.message.max.bytes": 4096, "queued.min.messages": 1}

Headers = list[tuple[str, "str | bytes | None"]]


class Raw(NamedTuple):
    """A record as the broker has it; timestamp in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """The first header of a name, or None."""
        for each, value in self.headers:
            if each == name:
                return value if isinstance(value, bytes) else None
        return None


class UnreadableBatch(NamedTuple):
    """A batch that cannot be unpacked: the offsets first <= offset < end, and what the client says of it."""

    first: int
    end: int
    why: str


class _Unreadable(Exception):
    """The client met a batch that it cannot unpack, or gives nothing of."""

    def __init__(self, first: int, why: str) -> None:
        super().__init__(why)
        self.first = first
        self.why = why


class _Reader:
    """A consumer, and the topics it has met."""

    def __init__(self, consumer: Consumer, timeout_s: float) -> None:
        self.consumer = consumer
        self._timeout_s = timeout_s
        self._met: set[str] = set()

    def assign(self, place: TopicPlace, start: int) -> None:
        """Begin to read. A client that is at work already looks for a topic that is new to it after a second."""
        if self._met and place.topic not in self._met:
            with contextlib.suppress(KafkaException):  # then reading waits, and says what is wrong
                self.consumer.list_topics(place.topic, self._timeout_s)
        self._met.add(place.topic)
        self.consumer.assign([TopicPartition(place.topic, place.partition, start)])


class LogReaders:
    """The readers of one log; several threads may read.

    committed: whether nothing undecided is given out. ahead_kb: how much each reader fetches before it is asked for,
    where that is not as usual. unreadable: knows what is set aside in the log; without it nothing is.
    """

    def __init__(
        self, clients: Clients, timeout_s: float, *, committed: bool = True, ahead_kb: int | None = None,
        unreadable: UnreadableBatches | None = None,
    ) -> None:  # fmt: skip
        self._clients = clients
        self._unreadable = unreadable
        self._settings: dict[str, Any] = {}
        if ahead_kb is not None:
            self._settings["queued.max.messages.kbytes"] = ahead_kb
        if not committed:
            self._settings["isolation.level"] = "read_uncommitted"
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._idle: dict[bool, list[_Reader]] = {False: [], True: []}
        self._empty: dict[TopicPlace, tuple[int, int]] = {}
        self._closed = False

    def records(self, place: TopicPlace, start: int, end: int, *, few: bool = False) -> Generator[Raw]:
        """What is given out with start <= offset < end, in order; end: at most one that the broker gave.

        few: fetch little at a time, for who wants one or two. CorruptionError where records before `start` are gone;
        DamagedRecord where a batch cannot be unpacked that is not set aside.
        """
        known = self._empty.get(place, (0, 0))
        if start >= end or (known[0] <= start and end <= known[1]):
            return
        reader = self._take(few)
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
                        is_empty = False  # a ruling may be taken back: then it is met again
                        at = self._after(place, met, at, end)
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

    def first(self, place: TopicPlace, start: int, end: int) -> Raw | None:
        """The first record of a range, or None."""
        with contextlib.closing(self.records(place, start, end, few=True)) as found:
            return next(found, None)

    def last(self, place: TopicPlace, end: int, is_wanted: Callable[[Raw], bool]) -> Raw | None:
        """The last record below an end that is wanted, found in doubling ranges back from it; None where none is.

        DamagedRecord where one in a batch that cannot be unpacked may be the last.
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

    def _last_in(self, place: TopicPlace, start: int, end: int, is_wanted: Callable[[Raw], bool]) -> Raw | None:
        """The last record of a range that is wanted; batches before it that cannot be unpacked are passed over."""
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

    def unreadable_at(self, place: TopicPlace, offset: int, end: int) -> UnreadableBatch | None:
        """The batch at an offset that cannot be unpacked, found by reading from offsets after it; None where it can."""
        reader = self._take(True)
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

    def _is_met(self, reader: _Reader, place: TopicPlace, offset: int, end: int, met: _Unreadable) -> bool:
        """Whether who reads from an offset on meets the same batch."""
        if met.why == SILENT:
            return self._is_silent(reader, place, offset)
        again = self._met_at(reader, place, offset, end)
        return again is not None and again.first == met.first

    def _met_at(self, reader: _Reader, place: TopicPlace, offset: int, end: int) -> _Unreadable | None:
        reader.assign(place, offset)
        try:
            next(self._messages(reader, place, offset, end), None)
        except _Unreadable as met:
            return met
        return None

    def _is_silent(self, reader: _Reader, place: TopicPlace, offset: int) -> bool:
        """Whether nothing is given out from an offset on, while the end of the partition can be read."""
        return (
            not self._is_heard(reader, place, offset)
            and self._is_heard(reader, place, OFFSET_END)
            and not self._is_heard(reader, place, offset)
        )

    def _is_heard(self, reader: _Reader, place: TopicPlace, offset: int) -> bool:
        """Whether a record, the end or an error comes of a partition from an offset on."""
        reader.assign(place, offset)
        waited_s = 0.0
        while waited_s < SILENT_S:
            message = reader.consumer.poll(_POLL_S)
            if message is not None and (message.topic(), message.partition()) == (place.topic, place.partition):
                return True
            waited_s += _POLL_S
        return False

    def _after(self, place: TopicPlace, met: _Unreadable, wanted: int, end: int) -> int:
        """Where reading goes on after a batch that cannot be unpacked; raises where it is needed and not set aside."""
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
        """Let go of the readers that are idle; those under way go when they end."""
        with self._lock:
            self._closed = True
            idle = [*chain(*self._idle.values())]
            self._idle = {False: [], True: []}
        for each in idle:
            each.consumer.close()

    def _messages(self, reader: _Reader, place: TopicPlace, start: int, end: int) -> Iterator[Message]:
        """What comes, until the partition's end is there; errors that do not pass are raised."""
        consumer, waited_s, at, was_tried = reader.consumer, 0.0, start, False
        while True:
            first = consumer.poll(_POLL_S)
            if first is None:
                waited_s += _POLL_S
                if self._unreadable is not None and self._unreadable.is_aside(place, at):
                    raise _Unreadable(at, SILENT)
                if waited_s > SILENT_S and not was_tried:
                    was_tried = True
                    if self._is_silent(reader, place, at):
                        raise _Unreadable(at, SILENT)
                    reader.assign(place, at)
                elif waited_s > self._timeout_s:
                    raise Unanswered(
                        f"{place.topic}/{place.partition}: {self._clients.servers} sent nothing for "
                        f"{self._timeout_s:g} s, while offsets {start} to {end} were read; "
                        f"{self._clients.said or 'is the broker running?'}"
                    )
                continue
            for message in chain((first,), consumer.consume(AT_ONCE, 0)):
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

    def _needs(self, place: TopicPlace) -> str:
        return self._clients.lacks(Grant(TOPIC, place.topic, READ))

    def _take(self, few: bool) -> _Reader:
        with self._lock:
            if self._closed:
                raise StorageError("the log is closed")
            if self._idle[few]:
                return self._idle[few].pop()
        return _Reader(self._clients.reader(**self._settings, **(_FEW if few else {})), self._timeout_s)

    def _give_back(self, reader: _Reader, *, few: bool, is_sound: bool) -> None:
        if is_sound:
            with contextlib.suppress(KafkaException, RuntimeError):
                reader.consumer.unassign()
                with self._lock:
                    if not self._closed and len(self._idle[few]) < IDLE_MAX:
                        self._idle[few].append(reader)
                        return
        reader.consumer.close()


def raw_of(message: Message) -> Raw:
    headers = message.headers()
    found = headers if isinstance(headers, list) else []
    parts = (message.offset() or 0, message.timestamp()[1], message.key(), message.value(), found)
    return new_tuple(Raw, parts)
