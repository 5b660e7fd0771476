"""`.deadletters`: the verdicts on records that are no observations, with everything it takes to look at them again.

A verdict (streams/deadletters.py) is stored in the partition of its record. Its key is the offset of the record, u64
big-endian; its headers `refold-through` and `refold-taken` say where the batch ends in which it was decided
(fold_position.py).
Verdicts are written in the transaction that commits that offset for the workers' group.

A record without these is none of refold's, and is passed over (foreign_records.py).

Who reads a partition skips the offsets with verdicts. For that he has to know up to where it is decided:
1. read the workers' committed offset;
2. then read `.deadletters` to its last stable offset. Where that is its end, no transaction is open in it, so all
   verdicts below the committed offset were read, and it is decided up to there.
3. Otherwise what was known before still holds. A verdict that shows has all others of its batch beside it: it is
   decided up to its `refold-through`.
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
from refold.streams.log.kafka.fold_position import emitted_of
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.range_reader import LogReaders, Raw
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.port import DeadLetter

_KEY = struct.Struct(">Q")


def verdict_on(partition: int, raw: Raw, reason: str, detail: str) -> Verdict:
    """A verdict on a record as it was read."""
    return Verdict(partition, raw.offset, reason, detail, raw.key, raw.value, raw.headers, raw.timestamp)


def verdict_key(verdict: Verdict) -> bytes:
    """The key of a verdict's record."""
    return _KEY.pack(verdict.offset)


def record_of(raw: Raw) -> int | None:
    """The offset of the record that a verdict, as `.deadletters` has it, is on; None where the record is no verdict."""
    key, point = raw.key or b"", emitted_of(raw)
    if len(key) != _KEY.size or point is None:
        return None
    offset: int = _KEY.unpack(key)[0]
    return offset if offset < point.offset else None


def is_verdict(raw: Raw) -> bool:
    """Whether a record of `.deadletters` is a verdict: a key and headers as workers write them."""
    return record_of(raw) is not None


class Decided:
    """Which offsets have verdicts, and up to where a partition is decided; as of the last `refresh`."""

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
        # Stable ones are waited for while a worker's transaction is open, and here an older answer will do.
        self._asking = CommittedOffsets(clients, topics.group, topics.observations, stable=False)
        self._offsets = offsets
        self._reading = reading
        self._timeout_s = timeout_s
        self._places = [TopicPlace(topics.deadletters, each) for each in range(partitions)]
        self._skipped: list[set[int]] = [set() for _ in self._places]
        self._through = [0] * partitions
        self._committed: list[tuple[int, str]] = [(0, "")] * partitions
        self._next = [0] * partitions

    def skipped(self, partition: int) -> Set[int]:
        """The offsets with verdicts. It goes on growing."""
        return self._skipped[partition]

    def through(self, partition: int) -> int:
        """The offset below which every record without a verdict is the observation that it says it is."""
        return self._through[partition]

    def committed(self, partition: int) -> tuple[int, str]:
        """A committed offset of the workers' and its metadata, the last below which all verdicts are known here."""
        return self._committed[partition]

    def close(self) -> None:
        """Ask no more."""
        self._asking.close()

    def letters(self) -> Iterator[DeadLetter]:
        """The verdicts as of the last `refresh`. One whose value cannot be read still is a verdict, and is left out."""
        for place in self._places:
            for raw in self._reading.records(place, 0, self._next[place.partition]):
                if not is_verdict(raw):
                    continue
                try:
                    read_verdict(place.partition, raw.value or b"")
                except CorruptionError:
                    self._foreign.saw(place, raw.offset)
                else:
                    yield DeadLetter(place.partition, raw.offset, raw.value or b"")

    def refresh(self) -> None:
        """See what was decided by now."""
        found = self.ask_committed()
        written = self._offsets.ends(self._places, committed=False)
        stable = self._offsets.ends(self._places)
        for place, committed in zip(self._places, found, strict=True):
            self._read_on(place, stable[place])
            if stable[place] >= written[place]:
                self._committed[place.partition] = committed
                self._through[place.partition] = max(self._through[place.partition], committed[0])

    def _read_on(self, place: TopicPlace, end: int) -> None:
        partition = place.partition
        for raw in self._reading.records(place, self._next[partition], end):
            offset, point = record_of(raw), emitted_of(raw)
            if offset is None or point is None:
                self._foreign.saw(place, raw.offset)
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
            # Who may not look at the group, or cannot now, checks every record himself.
            if error is not None and (is_denied(error) or is_passing(error)):
                return [(0, "")] * len(self._places)
            raise storage_error(f"the offsets of the group {self._topics.group} cannot be read", failed) from failed
        nothing = CommittedOffset(None, "")
        given = [found.get(each, nothing) for each in partitions]
        return [(each.offset or 0, each.metadata) for each in given]
