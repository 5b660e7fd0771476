"""`.deadletters`: the verdicts on records that are not observations, each with a full copy of the record.

A verdict (streams/deadletters.py) is stored in the partition of its record. Its key is the offset of the record, u64
big-endian; its headers `refold-through` and `refold-taken` have the end of the batch in which it was decided
(fold_position.py). Verdicts are written in the transaction that commits that offset for the workers' group.

A record without these was not written by refold, and is skipped (foreign_records.py).

A reader of a partition skips the offsets with verdicts. For that it needs the decided offset:
1. read the workers' committed offset;
2. then read `.deadletters` to its last stable offset. If that is its end, no transaction is open in it, so all verdicts
   below the committed offset were read, and the partition is decided up to there.
3. Otherwise the previous decided offset is still valid. A visible verdict implies that all others of its batch are
   visible: the partition is decided up to its `refold-through`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Set

from confluent_kafka import KafkaException

from refold.avro.errors import CorruptionError
from refold.streams.deadletters import Verdict, read_verdict
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.committed import CommittedOffset, CommittedOffsets
from refold.streams.log.kafka.faults import error_of, is_denied, is_passing, storage_error
from refold.streams.log.kafka.fold_position import emitted_point_of
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.port import DeadLetter

_KEY = struct.Struct(">Q")


def verdict_on(partition: int, raw: RawRecord, reason: str, detail: str) -> Verdict:
    """Return a verdict on a record.

    Args:
        partition: The record's partition.
        raw: The record, as it was read.
        reason: One of the fixed reasons of docs/FORMAT.md.
        detail: One sentence for the administrator.
    """
    return Verdict(partition, raw.offset, reason, detail, raw.key, raw.value, raw.headers, raw.timestamp)


def verdict_key(verdict: Verdict) -> bytes:
    """The key of a verdict's record."""
    return _KEY.pack(verdict.offset)


def offset_of_record(raw: RawRecord) -> int | None:
    """Return the offset of the record that a verdict is on; None if `raw` is not a verdict."""
    key, point = raw.key or b"", emitted_point_of(raw)
    if len(key) != _KEY.size or point is None:
        return None
    offset: int = _KEY.unpack(key)[0]
    return offset if offset < point.offset else None


def is_verdict(raw: RawRecord) -> bool:
    """Whether a record of `.deadletters` is a verdict: a key and headers as workers write them."""
    return offset_of_record(raw) is not None


class DecidedOffsets:
    """The offsets with verdicts, and the decided offset of each partition, as of the last `refresh`."""

    def __init__(
        self,
        topics: Topics,
        partitions: int,
        clients: Clients,
        offsets: Offsets,
        reading: LogReaders,
        timeout_s: float,
        foreign: ForeignRecords,
    ) -> None:
        self._topics = topics
        self._foreign = foreign
        # Reading stable offsets waits while a worker's transaction is open, and here an older value is sufficient.
        self._asking = CommittedOffsets(clients, topics.group, topics.observations, stable=False)
        self._offsets = offsets
        self._reading = reading
        self._timeout_s = timeout_s
        self._places = [KafkaPartition(topics.deadletters, each) for each in range(partitions)]
        self._skipped: list[set[int]] = [set() for _ in self._places]
        self._through = [0] * partitions
        self._committed: list[tuple[int, str]] = [(0, "")] * partitions
        self._next = [0] * partitions

    def skipped(self, partition: int) -> Set[int]:
        """The offsets with verdicts. The set grows later."""
        return self._skipped[partition]

    def through(self, partition: int) -> int:
        """The decided offset: below it every record without a verdict is the observation that its key and header
        claim.
        """
        return self._through[partition]

    def committed(self, partition: int) -> tuple[int, str]:
        """The last committed offset of the workers' group below which all verdicts are known here, and its metadata."""
        return self._committed[partition]

    def close(self) -> None:
        """Close the consumer."""
        self._asking.close()

    def letters(self) -> Iterator[DeadLetter]:
        """The verdicts as of the last `refresh`. A verdict with an unreadable value still counts as one, but is left
        out here.
        """
        for place in self._places:
            for raw in self._reading.records(place, 0, self._next[place.partition]):
                if not is_verdict(raw):
                    continue
                try:
                    read_verdict(place.partition, raw.value or b"")
                except CorruptionError:
                    self._foreign.count_skipped(place, raw.offset)
                else:
                    yield DeadLetter(place.partition, raw.offset, raw.value or b"")

    def refresh(self) -> None:
        """Read all decisions up to now."""
        found = self.ask_committed()
        written = self._offsets.ends(self._places, committed=False)
        stable = self._offsets.ends(self._places)
        for place, committed in zip(self._places, found, strict=True):
            self._read_on(place, stable[place])
            if stable[place] >= written[place]:
                self._committed[place.partition] = committed
                self._through[place.partition] = max(self._through[place.partition], committed[0])

    def _read_on(self, place: KafkaPartition, end: int) -> None:
        partition = place.partition
        for raw in self._reading.records(place, self._next[partition], end):
            offset, point = offset_of_record(raw), emitted_point_of(raw)
            if offset is None or point is None:
                self._foreign.count_skipped(place, raw.offset)
                continue
            self._skipped[partition].add(offset)
            self._through[partition] = max(self._through[partition], point.offset)
        self._next[partition] = max(self._next[partition], end)

    def ask_committed(self) -> list[tuple[int, str]]:
        """The workers' committed offset of each partition at this moment, and its metadata; 0 without one."""
        partitions = range(len(self._places))
        try:
            found = self._asking.ask(partitions, self._timeout_s)
        except KafkaException as failed:
            error = error_of(failed)
            # A client that may not or cannot describe the group checks every record itself.
            if error is not None and (is_denied(error) or is_passing(error)):
                return [(0, "")] * len(self._places)
            raise storage_error(f"the offsets of the group {self._topics.group} cannot be read", failed) from failed
        nothing = CommittedOffset(None, "")
        given = [found.get(each, nothing) for each in partitions]
        return [(each.offset or 0, each.metadata) for each in given]
