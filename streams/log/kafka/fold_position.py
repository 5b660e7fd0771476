"""The decided and folded position of a partition, as readers of the log see it.

Every partition advances along one sequence of points, the same for every worker that ever owns it:

    (offset, schemas, place)    the records below `offset` are folded, by the definitions below `schemas`; of the
                                definition at `schemas`, where place > 0, its type's entities in the places below
                                `place` are folded again

A batch of records advances the offset. Applying a definition advances the place, and at its end the schemas. Each
commit is one transaction, and the point at its end is stored three times:

1. with the group's committed offset, as its metadata: "refold 1 SCHEMAS PLACE". These can expire or be reset.
2. in the headers of every change and dead letter: `refold-through` (offset u64) and `refold-taken` (schemas u64,
   place u32), big-endian. These stay. `refold-through` rises along a topic's partition, so a record can be found by
   binary search, and the last record has the emitted offset.
3. in the worker's table, in the write that follows the commit (streams/worker/pending_commit.py).

The emitted point of a partition is the point of its last commit. Committed offsets expire, so `emitted_point` is the
greatest of three: the point at the committed offset, and those in the last record of a worker in `.changes` and in
`.deadletters`. A worker that starts reads them in streams/worker/start.py, a client here:

1. Read the point at the group's committed offset.
2. Wait until no transaction is open below the present ends of `.changes` and `.deadletters`: a worker commits its
   changes with the offset, but they become visible a moment later.
3. Read the last record of a worker in either topic.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from refold.avro.errors import StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import Headers, LogReaders, RawRecord
from refold.streams.log.kafka.topics import Topics

THROUGH = "refold-through"
_U64 = struct.Struct(">Q")


def folded_offset_header(offset: int) -> tuple[str, bytes]:
    """Return the header."""
    return THROUGH, _U64.pack(offset)


def folded_offset_of(raw: RawRecord) -> int | None:
    """Return the offset in a record's header; None if no worker wrote the record."""
    given = raw.header(THROUGH) or b""
    if len(given) != _U64.size:
        return None
    offset: int = _U64.unpack(given)[0]
    return offset


TAKEN = "refold-taken"
_TAKEN = struct.Struct(">QI")
_METADATA = re.compile(r"refold 1 (\d{1,18}) (\d{1,9})\Z")


class PartitionPoint(NamedTuple):
    """A point of a partition's sequence; points are ordered as they follow one another.

    Attributes:
        offset: The next offset of the partition's observations.
        schemas: The next offset of `.schemas`.
        place: The place up to which the definition at `schemas` is applied; 0 if it is not begun.
    """

    offset: int
    schemas: int
    place: int = 0

    @property
    def metadata(self) -> str:
        """The metadata of the committed offset."""
        return f"refold 1 {self.schemas} {self.place}"

    @property
    def headers(self) -> Headers:
        """The headers of every change and dead letter of the commit."""
        return [folded_offset_header(self.offset), (TAKEN, _TAKEN.pack(self.schemas, self.place))]

    def is_before(self, other: PartitionPoint) -> bool:
        """Whether this point is before the other: no definition is applied here that is not applied there."""
        if self.offset == other.offset:
            return self <= other
        return self.offset < other.offset and (
            self.schemas < other.schemas or (self.schemas == other.schemas and self.place == 0)
        )


BEGIN = PartitionPoint(0, 0)


def committed_point_of(offset: int, metadata: str | None) -> PartitionPoint | None:
    """The point of a committed offset; None if there is none, or another program committed it."""
    found = _METADATA.match(metadata or "")
    return None if found is None or offset < 0 else PartitionPoint(offset, int(found[1]), int(found[2]))


def emitted_point_of(raw: RawRecord) -> PartitionPoint | None:
    """The point in the headers of a change or dead letter; None if no worker wrote the record."""
    taken, through = raw.header(TAKEN) or b"", folded_offset_of(raw)
    if through is None or len(taken) != _TAKEN.size:
        return None
    return PartitionPoint(through, *_TAKEN.unpack(taken))


def is_emitted(raw: RawRecord) -> bool:
    """Whether a worker wrote a record of `.changes` or `.deadletters`: it has both headers, with the right lengths."""
    return emitted_point_of(raw) is not None


def emitted_point(committed: PartitionPoint | None, last_records: Iterable[RawRecord | None]) -> PartitionPoint:
    """The emitted point of a partition.

    Args:
        committed: The point at the group's committed offset; None if there is none.
        last_records: The last record of a worker in `.changes` and in `.deadletters`; None where there is none.

    Returns:
        The greatest of these points; BEGIN if nothing was emitted.
    """
    points = [emitted_point_of(raw) for raw in last_records if raw is not None]
    return max([BEGIN, committed or BEGIN, *(each for each in points if each is not None)])


POLL_S = 0.02
BUSY_POLL_S = 0.1


def read_emitted_points(
    topics: Topics, committed: Sequence[tuple[int, str]], offsets: Offsets, reading: LogReaders, timeout_s: float
) -> dict[int, PartitionPoint]:
    """Read the emitted point of each partition.

    Args:
        topics: The log's topics.
        committed: The result of step 1, just read: (offset, metadata) of each partition.
        offsets: Asks for ends.
        reading: Reads committed records.
        timeout_s: How long step 2 may take, in seconds.

    Returns:
        Partition to point.

    Raises:
        StorageError: A transaction stays open, or no broker answers.
    """
    both = (topics.changes, topics.deadletters)
    places = [KafkaPartition(topic, each) for topic in both for each in range(len(committed))]
    ends = _stable_ends(places, offsets, timeout_s)
    last = {place: reading.last(place, ends[place], is_emitted) for place in places}
    return {
        partition: emitted_point(committed_point_of(*each), [last[KafkaPartition(topic, partition)] for topic in both])
        for partition, each in enumerate(committed)
    }


def stable_points(
    ask: Callable[[], dict[int, PartitionPoint]], topic: str, timeout_s: float
) -> dict[int, PartitionPoint]:
    """Return the emitted points at a moment when no worker is applying a definition.

    Args:
        ask: Reads the points now.
        topic: The topic's name, for the error.
        timeout_s: How long to wait for that moment, in seconds.

    Raises:
        StorageError: A worker is still applying a definition.
    """
    deadline = Deadline(timeout_s)
    found = ask()
    while busy := [partition for partition, at in found.items() if at.place]:
        if deadline.is_past:
            raise StorageError(
                f"{topic}/{busy[0]}: a worker is applying a definition, or ended while it did; start it again if it "
                "did, and ask again when it is done"
            )
        time.sleep(BUSY_POLL_S)
        found = ask()
    return found


def _stable_ends(places: list[KafkaPartition], offsets: Offsets, timeout_s: float) -> dict[KafkaPartition, int]:
    """Return the ends, after all transactions below the ends at the time of the call are over."""
    written = offsets.ends(places, committed=False)
    deadline = Deadline(timeout_s)
    while any((ends := offsets.ends(places))[place] < written[place] for place in places):
        if deadline.is_past:
            open_at = min(place for place in places if ends[place] < written[place])
            raise StorageError(
                f"{open_at.topic}/{open_at.partition}: a transaction stays open; its worker may have been killed: it "
                "is aborted after its timeout, or when that worker starts again. Ask again then"
            )
        time.sleep(POLL_S)
    return ends
