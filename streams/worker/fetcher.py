"""Fetches records of a topic's partitions. The consumer is in no group and gets the offset to read from.

A partition is fetched from exactly the offset of its fold, or of its agents. A partition whose records cannot be
decided now is paused. For the fold it also watches `.schemas`, so that a new definition is known at once.

A consumer may be stuck: if a broker lost the lead of a partition and got it back, the client may never notice, and
fetches nothing more (confluentinc/librdkafka#5430; seen with 2.16). So when everything fetched has been returned, the
fetcher asks for the ends of partitions that have been silent for a while. If one of them is behind its end, and is
still at the same offset a while later, a new consumer fetches it and all others.

The same is done for a partition that is not behind, and whose end was never reported: seen after a broker that had been
suspended for over a minute continued. Its fold would never be caught up.

A new consumer that is stuck at the same offset has met a damaged record: if the length of a record is damaged, the
client returns neither a record nor an error (range_reader.py). That counts as a batch that cannot be unpacked, from
this offset on.

The client fetches a batch that cannot be unpacked again and again, as fast as it can, and nothing after it:
1. Records before the batch are returned, then the error (log/kafka/damaged.py). The partition is not fetched further.
2. DAMAGED_AGAIN_S later it is fetched again: the brokers' data may be restored, or the batch set aside.
3. If it is set aside, that is returned, and the partition is fetched from the first offset after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from refold.avro.errors import DamagedRecord, StorageError
from refold.streams.events import log_event
from refold.streams.log.kafka.access import READ, TOPIC, Grant
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.faults import SILENT, is_unreadable, raise_lasting, storage_error, text_of
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import RawRecord, raw_of
from refold.streams.worker.config import STUCK_S

# A worker folds some megabytes a second. Fetched data is unpacked to about three times its size, whatever the bound of
# the queue.
_SETTINGS = {
    "fetch.wait.max.ms": 100,
    "fetch.message.max.bytes": 1 << 20,
    "fetch.max.bytes": 2 << 20,
    "queued.max.messages.kbytes": 4 << 10,
}
DAMAGED_AGAIN_S = 2.0
_ASKED_S = 2.0

_log = logging.getLogger(__name__)


class AtEnd(NamedTuple):
    """A partition's end was reached, at this offset."""

    offset: int


class UnreadableOffsets(NamedTuple):
    """Offsets that are set aside and cannot be read: start <= offset < end."""

    start: int
    end: int


Fetched = list[RawRecord] | AtEnd | UnreadableOffsets | DamagedRecord
"""What is fetched of a partition: records in order, or what is there instead of a record."""


class Fetcher:
    """Fetches one topic. For one thread."""

    def __init__(self, clients: Clients, topic: str, unreadable: UnreadableBatches,
                 schemas: tuple[str, int] | None = None, stuck_s: float = STUCK_S) -> None:  # fmt: skip
        """Create a fetcher that fetches no partition yet.

        Args:
            clients: Makes the Kafka clients.
            topic: The topic whose partitions are fetched.
            unreadable: The unreadable batches, and which of them are set aside.
            schemas: The topic `.schemas`, and the offset to watch it from; None to watch nothing.
            stuck_s: After so many seconds without an answer about a partition, another client is asked for its end.
        """
        self._stuck_s = stuck_s
        self._clients = clients
        self._offsets = Offsets(clients.admin(), _ASKED_S)
        self._consumer = clients.reader(**_SETTINGS)
        self._topic = topic
        self._schemas = None if schemas is None else KafkaPartition(schemas[0], 0)
        # The next offset of everything that is fetched, and when something was last received.
        self._next: dict[KafkaPartition, int] = {}
        self._received_s: dict[KafkaPartition, float] = {}
        # Partitions whose end was not reported, and those that were stuck at the last check.
        self._unended: set[KafkaPartition] = set()
        self._stuck: dict[KafkaPartition, int] = {}
        self._checked_s = time.monotonic()
        self._paused: set[int] = set()
        self._unreadable = unreadable
        # Partitions paused at a batch that cannot be read: when to fetch them again.
        self._damaged: dict[KafkaPartition, float] = {}
        # The offsets at which the previous consumer was stuck, and those at which this one returns nothing either.
        self._stuck_before: dict[KafkaPartition, int] = {}
        self._silent: dict[KafkaPartition, int] = {}
        self.schemas_moved = False
        if schemas is not None:
            self._assign({KafkaPartition(schemas[0], 0): schemas[1]})

    def begin(self, partition: int, offset: int) -> None:
        """Fetch a partition from an offset on."""
        self._assign({KafkaPartition(self._topic, partition): offset})

    def end(self, partition: int) -> None:
        """Stop fetching it; records already fetched are not returned."""
        self._paused.discard(partition)
        place = KafkaPartition(self._topic, partition)
        del self._next[place], self._received_s[place]
        self._unended.discard(place)
        if self._damaged.pop(place, None) is None:
            self._consumer.incremental_unassign([TopicPartition(*place)])

    def set_paused(self, partition: int, *, is_paused: bool) -> None:
        """Pause or resume a partition."""
        if is_paused == (partition in self._paused):
            return
        place = KafkaPartition(self._topic, partition)
        (self._paused.add if is_paused else self._paused.discard)(partition)
        if place not in self._damaged:
            (self._consumer.pause if is_paused else self._consumer.resume)([TopicPartition(*place)])

    def fetch(self, records_max: int, timeout_s: float) -> Iterator[tuple[int, Fetched]]:
        """Return the received records by partition; raise an error that waiting does not fix."""
        yield from self._fetch_again()
        try:
            messages = self._consumer.consume(records_max, timeout_s)
        except KafkaException as failed:
            raise storage_error("the log cannot be read", failed) from failed
        if len(messages) < records_max and time.monotonic() - self._checked_s > self._stuck_s:
            yield from self._check_stuck()
        if all(message.error() is None for message in messages):
            yield from self._records(messages)
            return
        messages, unreadable = self._until_unreadable(messages)
        self._note_received(messages)
        for message in messages:
            error = message.error()
            if self._schemas is not None and message.topic() == self._schemas.topic:
                self.schemas_moved = self.schemas_moved or error is None
            elif error is None:
                yield message.partition() or 0, [raw_of(message)]
            else:
                yield from self._end_or_raise(message)
        for place, message in unreadable.items():
            error = message.error()
            if error is not None and place in self._next:
                yield from self._at_unreadable(place, message.offset() or 0, text_of(error))

    def _records(self, messages: Iterable[Message]) -> Iterable[tuple[int, list[RawRecord]]]:
        """Return the records of messages without errors by partition: this is the usual case, and has few calls."""
        schemas = None if self._schemas is None else self._schemas.topic
        found: dict[int, list[RawRecord]] = {}
        for message in messages:
            if message.topic() != schemas:
                found.setdefault(message.partition() or 0, []).append(raw_of(message))
            else:
                self._note_received([message])
                self.schemas_moved = True
        now_s = time.monotonic()
        for partition, raws in found.items():
            self._note(KafkaPartition(self._topic, partition), raws[-1].offset + 1, now_s, is_end=False)
        return found.items()

    def end_of(self, partition: int) -> int:
        """Return a partition's end as of its last fetch; 0 before one."""
        place = TopicPartition(self._topic, partition)
        _, end = self._consumer.get_watermark_offsets(place, cached=True) or (0, 0)
        return max(0, int(end))

    def close(self) -> None:
        self._consumer.close()

    def _fetch_again(self) -> Iterator[tuple[int, Fetched]]:
        """Fetch again partitions that were paused because a batch could not be read."""
        now_s = time.monotonic()
        due = [place for place, again_s in self._damaged.items() if now_s >= again_s]
        for place in due:
            del self._damaged[place]
        if due:
            self._assign({place: self._next[place] for place in due})
            self._pause_again(due)
        for place in [each for each in self._silent if each in self._next and each not in self._damaged]:
            if self._silent[place] != self._next[place]:
                del self._silent[place]
            elif self._unreadable.is_aside(place, self._next[place]):
                yield from self._at_unreadable(place, self._next[place], SILENT)

    def _until_unreadable(self, messages: Sequence[Message]) -> tuple[list[Message], dict[KafkaPartition, Message]]:
        """Return the usable messages, and by partition the first batch that cannot be read; later messages are
        dropped."""
        used: list[Message] = []
        unreadable: dict[KafkaPartition, Message] = {}
        for message in messages:
            place, error = KafkaPartition(message.topic() or "", message.partition() or 0), message.error()
            if place in unreadable:
                continue
            if error is None or not is_unreadable(error):
                used.append(message)
            elif place.topic == self._topic:
                unreadable[place] = message
            elif place not in self._damaged:  # of `.schemas`: its reader raises the error
                self.schemas_moved = True
                self._consumer.incremental_unassign([TopicPartition(*place)])
                self._damaged[place] = time.monotonic() + DAMAGED_AGAIN_S
        return used, unreadable

    def _at_unreadable(self, place: KafkaPartition, first: int, why: str) -> Iterator[tuple[int, Fetched]]:
        """Skip a batch that cannot be read if it is set aside; otherwise yield its error. first: its first offset."""
        self._consumer.incremental_unassign([TopicPartition(*place)])
        try:
            after = self._unreadable.after(place, first, self._next[place], why)
        except DamagedRecord as damaged:
            self._damaged[place] = time.monotonic() + DAMAGED_AGAIN_S
            yield place.partition, damaged
        else:
            start = self._next[place]
            self._assign({place: after})
            self._pause_again([place])
            yield place.partition, UnreadableOffsets(start, after)

    def _pause_again(self, places: Iterable[KafkaPartition]) -> None:
        paused = [
            TopicPartition(*each) for each in places if each.topic == self._topic and each.partition in self._paused
        ]
        if paused:
            self._consumer.pause(paused)

    def _assign(self, offsets: Mapping[KafkaPartition, int]) -> None:
        now_s = time.monotonic()
        self._next.update(offsets)
        self._received_s.update(dict.fromkeys(offsets, now_s))
        self._unended |= offsets.keys()
        self._consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in offsets.items()])

    def _note_received(self, messages: Sequence[Message]) -> None:
        """Update each place's position from its last message."""
        known: set[tuple[str | None, int | None]] = set()
        now_s = time.monotonic()
        for message in reversed(messages):
            topic, partition = named = message.topic(), message.partition()
            if named in known:
                continue
            offset, error = message.offset(), message.error()
            if offset is None or offset < 0 or not (error is None or error.code() == KafkaError._PARTITION_EOF):
                continue
            known.add(named)
            place = KafkaPartition(topic or "", partition or 0)
            self._note(place, offset + (error is None), now_s, is_end=error is not None)

    def _note(self, place: KafkaPartition, next_offset: int, now_s: float, *, is_end: bool) -> None:
        """Update a place's position, unless it is no longer fetched."""
        if place in self._next:
            self._next[place] = next_offset
            self._received_s[place] = now_s
            (self._unended.discard if is_end else self._unended.add)(place)

    def _check_stuck(self) -> Iterator[tuple[int, Fetched]]:
        """Request the ends of silent partitions; replace the consumer if it is stuck.

        Yields the damaged records at which a new consumer is stuck, too.
        """
        self._checked_s = time.monotonic()
        silent = [
            place for place, heard_s in self._received_s.items()
            if self._checked_s - heard_s > self._stuck_s
            and place not in self._damaged
            and (place.topic != self._topic or place.partition not in self._paused)
        ]  # fmt: skip
        try:
            ends = self._offsets.ends(silent)
        except StorageError:  # no broker answers, or not this client, permanently (membership.py)
            self._offsets = Offsets(self._clients.admin(), _ASKED_S)
            ends = {}
        before = self._stuck
        self._stuck = {
            place: self._next[place] for place, end in ends.items()
            if end > self._next[place] or place in self._unended
        }  # fmt: skip
        stuck = [place for place, offset in self._stuck.items() if before.get(place) == offset]
        damaged = [
            place for place in stuck
            if ends[place] > self._next[place] == self._stuck_before.get(place) and place.topic == self._topic
        ]  # fmt: skip
        for place in damaged:
            self._silent[place] = self._next[place]
            yield from self._at_unreadable(place, self._next[place], SILENT)
        unread = [place for place in stuck if place not in damaged]
        if unread:
            self._stuck_before = {place: self._next[place] for place in stuck}
            self._reset(unread)

    def _reset(self, stuck: Sequence[KafkaPartition]) -> None:
        why = "a broker says where these end, and the client that fetches them gets nothing"
        log_event(_log, "fetching_begun_anew", logging.WARNING, why=why,
                  stuck=",".join(f"{each.topic}/{each.partition}" for each in stuck))  # fmt: skip
        self._consumer.close()
        self._consumer = self._clients.reader(**_SETTINGS)
        self._stuck.clear()
        self._damaged.clear()
        self._assign(dict(self._next))
        self._pause_again(self._next)

    def _end_or_raise(self, message: Message) -> Iterator[tuple[int, AtEnd]]:
        error, partition = message.error(), message.partition() or 0
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            yield partition, AtEnd(message.offset() or 0)
        else:
            needs = self._clients.denial_message(Grant(TOPIC, self._topic, READ))
            raise_lasting(error, f"{self._topic}/{partition}", message.offset() or 0, needs)
