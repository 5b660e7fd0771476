"""Read `.changes` for users' agents: a member of the agents' group, which delivers one change at a time.

Its thread repeats these steps (`run`):
1. Serve the group. An assigned partition is read from the group's committed offset.
2. Pass the oldest fetched record to the agents, and wait until they are done with it. Meanwhile serve the group, so
   agents may take as long as they like.
3. Every COMMIT_EVERY_S, commit the offset after the last record that the agents are done with.

So each change is delivered at least once, and none is skipped:
- Only committed changes are read, each partition's in order.
- An agent that raises ends the process. Neither the change at which it failed nor any after it was committed.
- Before a partition is given up, the agents finish their current change, and its offset is committed. Other fetched
  records are dropped: the next owner reads them. If agents take longer than REBALANCE_MS, or the commit is refused, the
  next owner delivers that change again.
- A damaged record that is not set aside ends the process (streams/log/kafka/damaged.py).

While no broker answers, it waits. A member that is out of its group although brokers answer would wait silently, so
after OUT_OF_GROUP_S it ends the process.

Decode the records of `.changes` for users' agents.

Agents get what every reader of the log gets. Records that no worker wrote are skipped, and so are those that an
administrator set aside (streams/log/kafka/damaged.py).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, wait
from threading import Event
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaException

from refold.avro.errors import CorruptionError, DamagedRecord, RefoldError, StorageError, Unanswered, UndecodableError
from refold.avro.quarantine import CHANGES
from refold.streams.change_reader import ChangeReader
from refold.streams.changes import Change
from refold.streams.events import log_event
from refold.streams.log.kafka.access import GROUP, READ, Grant
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.committed import CommittedOffsets
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.faults import storage_error
from refold.streams.log.kafka.fold_position import is_emitted
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.port import ChangeRecord
from refold.streams.runtime import close_all
from refold.streams.worker.fetcher import AtEnd, Fetcher, UnreadableOffsets
from refold.streams.worker.membership import GroupMember, Membership

_Item = RawRecord | AtEnd | UnreadableOffsets | DamagedRecord


class RecordDecoder(Protocol):
    """Decodes the records of one `.changes`. For one thread."""

    def decode(self, raw: RawRecord, partition: int) -> Change | None:
        """The change in a record, or None where agents are not given the record.

        Raises:
            RefoldError: The record cannot be read.
        """

    def is_set_aside(self, partition: int, offset: int) -> bool:
        """Whether a record is set aside as of now."""


class ChangeDecoder:
    """The RecordDecoder of a log, which no other thread may use."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._reader = ChangeReader(log)

    def decode(self, raw: RawRecord, partition: int) -> Change | None:
        """Return the change in a record, or None if every reader skips it.

        The log is refreshed if the record cannot be decoded with the known definitions.

        Raises:
            DamagedRecord: The record cannot be read, and is not set aside.
        """
        if not is_emitted(raw) or self._is_known_aside(partition, raw.offset):
            return None
        content = raw.value or b""
        try:
            return self._reader.decode(content)
        except (UndecodableError, CorruptionError):  # of a type that was defined since, or set aside since
            if self.is_set_aside(partition, raw.offset):
                return None
        return self._reader.read(ChangeRecord(partition, raw.offset, content))

    def is_set_aside(self, partition: int, offset: int) -> bool:
        """Whether a record is set aside; refreshes the log."""
        self._log.refresh()
        return self._is_known_aside(partition, offset)

    def _is_known_aside(self, partition: int, offset: int) -> bool:
        return offset in self._log.registry.rulings.of(CHANGES, partition)


COMMIT_EVERY_S = 1.0
FETCHED_AT_ONCE = 500
REBALANCE_MS = 60_000
OUT_OF_GROUP_S = 90.0
RETRY_S = 1.0
_IDLE_S = 0.1
_ASKED_S = 2.0

_log = logging.getLogger(__name__)

Deliver = Callable[[Change, str], "Future[None]"]
"""Passes a change and its position to the agents; the future is done when they are, and raises an agent's exception."""


class ChangesSource(NamedTuple):
    """The changes of a log, and who reads them."""

    clients: Clients
    member: GroupMember
    unreadable: UnreadableBatches
    decoder: RecordDecoder


class _Delivery(NamedTuple):
    """A change that the agents work on."""

    partition: int
    offset: int
    done: Future[None]


class ChangeConsumer:
    """Call `run` in a separate thread; any thread may call `drain`.

    Attributes:
        out_of_group_s: How long it may be out of its group while brokers answer.
    """

    def __init__(self, source: ChangesSource, deliver: Deliver,
                 was_outage_within: Callable[[float], bool] = lambda _: False) -> None:  # fmt: skip
        """
        Args:
            source: What is read; nothing is asked of the brokers yet.
            deliver: Hands a change to the agents.
            was_outage_within: Whether no broker answered at some time in the last so many seconds.
        """
        self._clients, self._member, self._unreadable, self._decoder = source
        self._topic = self._member.topic
        self._deliver = deliver
        self._was_outage_within = was_outage_within
        self.out_of_group_s = OUT_OF_GROUP_S
        self._stopping = Event()
        self._in_group_s = self._begin_again_s = self._committed_s = 0.0
        self._to_begin: set[int] = set()
        self._fetched: deque[tuple[int, _Item]] = deque()
        self._delivery: _Delivery | None = None
        # By partition the next offset that the agents are not done with, and the group's committed one.
        self._done: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    def drain(self) -> None:
        """Let `run` return once the agents are done with the change they work on, and its offset is committed."""
        self._stopping.set()

    def run(self) -> None:
        """Read until drained.

        Raises:
            AgentFailed: An agent raised.
            CorruptionError: A record cannot be read.
            StorageError: The log or the group cannot be used, and waiting does not mend it.
        """
        self._in_group_s = time.monotonic()
        self._offsets = Offsets(self._clients.admin(), _ASKED_S, self._clients.admin)
        self._asked = CommittedOffsets(self._clients, self._member.group, self._topic, stable=False)
        self._fetcher = Fetcher(self._clients, self._topic, self._unreadable)
        self._membership = Membership(
            self._clients, self._member, self._on_assigned, self._on_revoked, self._note_membership,
            # Whether another worker has this one's name is for the fold to find out: it ends the process.
            is_alone=lambda: True, was_outage_within=self._was_outage_within,
        )  # fmt: skip
        try:
            while self._delivery is not None or not self._stopping.is_set():
                self._turn()
        finally:
            # A change that an agent failed at is not done, and those before it are.
            close_all([self._membership.leave, self._fetcher.close, self._asked.close])

    def _turn(self) -> None:
        self._membership.serve()
        if self._to_begin:
            self._begin()
        if self._delivery is not None:
            if not wait([self._delivery.done], _IDLE_S).done:
                return
            self._finish(self._delivery)
        if time.monotonic() - self._committed_s > COMMIT_EVERY_S:
            self._commit(self._done)
        if self._stopping.is_set():
            return
        if self._fetched:
            self._consume(*self._fetched[0])
        else:
            for partition, found in self._fetcher.fetch(FETCHED_AT_ONCE, _IDLE_S):
                if partition in self._done:
                    items = found if isinstance(found, list) else [found]
                    self._fetched.extend((partition, item) for item in items)

    def _finish(self, delivery: _Delivery) -> None:
        """Wait until the agents are done with the change they work on; AgentFailed."""
        self._delivery = None
        try:
            delivery.done.result()
        except CancelledError as error:
            raise StorageError(
                "the agents were stopped while they worked on a change; it is delivered again"
            ) from error
        self._done[delivery.partition] = delivery.offset + 1

    def _consume(self, partition: int, found: _Item) -> None:
        """Deliver the oldest fetched record, or skip it."""
        if isinstance(found, RawRecord):
            place = f"{self._topic}/{partition} offset {found.offset}"
            try:
                change = self._decoder.decode(found, partition)
            except Unanswered:  # it stays the oldest
                self._stopping.wait(RETRY_S)
                return
            except RefoldError as error:
                raise CorruptionError(f"{place} cannot be read: {error}") from error
            if change is None:
                self._done[partition] = found.offset + 1
            else:
                self._delivery = _Delivery(partition, found.offset, self._deliver(change, place))
        elif isinstance(found, AtEnd):
            self._done[partition] = max(found.offset, self._done[partition])
        elif isinstance(found, UnreadableOffsets):
            self._done[partition] = found.end
        else:
            self._require_set_aside(partition, found)
        self._fetched.popleft()

    def _require_set_aside(self, partition: int, damaged: DamagedRecord) -> None:
        """That a batch that cannot be read is set aside by now: then the fetcher passes over it next time."""
        with contextlib.suppress(Unanswered):  # it is met again
            if not self._decoder.is_set_aside(partition, damaged.offset):
                place = f"{self._topic}/{partition} offset {damaged.offset}"
                raise CorruptionError(f"{place} cannot be read: {damaged}") from damaged

    # The group

    def _on_assigned(self, partitions: Iterable[int]) -> None:
        self._to_begin.update(partitions)

    def _begin(self) -> None:
        """Read the assigned partitions, from the group's offsets; retried while these are unknown."""
        if time.monotonic() < self._begin_again_s:
            return
        self._begin_again_s = time.monotonic() + RETRY_S
        try:
            begins = self._offsets.begins(KafkaPartition(self._topic, each) for each in self._to_begin)
            committed = self._asked.ask(self._to_begin, _ASKED_S)
        except Unanswered:
            return
        except KafkaException as failed:
            needs = self._clients.denial_message(Grant(GROUP, self._member.group, READ))
            error = storage_error(f"the committed offsets of {self._member.group} cannot be had", failed, needs=needs)
            if isinstance(error, Unanswered):
                return
            raise error from failed
        for partition, at in committed.items():
            first = begins[KafkaPartition(self._topic, partition)]
            start = first if at.offset is None else at.offset
            if start < first:
                log_event(_log, "changes_deleted", logging.WARNING, partition=partition, start=start, end=first)
                start = first
            self._done[partition] = self._committed[partition] = start
            self._fetcher.begin(partition, start)
            self._to_begin.discard(partition)

    def _on_revoked(self, partitions: Iterable[int]) -> None:
        """Give partitions up, after the agents are done with a change of one of them."""
        taken = {*partitions}
        self._fetched = deque(each for each in self._fetched if each[0] not in taken)
        if self._delivery is not None and self._delivery.partition in taken:
            wait([self._delivery.done])
            if not self._delivery.done.cancelled() and self._delivery.done.exception() is None:
                self._finish(self._delivery)  # else `_turn` raises it
        self._commit({each: offset for each, offset in self._done.items() if each in taken})
        for each in taken:
            self._to_begin.discard(each)
            if self._done.pop(each, None) is not None:
                del self._committed[each]
                self._fetcher.end(each)
        self._in_group_s = time.monotonic()  # it may have waited long for the agents

    def _commit(self, done: dict[int, int]) -> None:
        """Commit what the agents are done with. A refused commit is retried, or the change is delivered to another
        member."""
        self._committed_s = time.monotonic()
        new = {each: offset for each, offset in done.items() if offset != self._committed[each]}
        if new and self._membership.commit(new):
            self._committed.update(new)

    def _note_membership(self, is_in: bool) -> None:
        now_s = time.monotonic()
        if is_in or self._was_outage_within(self.out_of_group_s):
            self._in_group_s = now_s
        elif now_s - self._in_group_s > self.out_of_group_s:
            raise StorageError(f"the agents' consumer has not joined its group {self._member.group} for "
                               f"{self.out_of_group_s:.0f} s; start it again")  # fmt: skip
