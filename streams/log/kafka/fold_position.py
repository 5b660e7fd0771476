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

A client finds the emitted point of each partition:

1. Read the point at the group's committed offset.
2. Wait until no transaction is open below the present ends of `.changes` and `.deadletters`: a worker commits its
   changes with the offset, but they become visible a moment later.
3. If committed offsets expired or may not be read, the last record of a worker in either topic has the emitted point:
   the greatest of the three counts.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Sequence
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
    """A point of a partition's sequence; points are ordered as they follow one another."""

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


POLL_S = 0.02
BUSY_POLL_S = 0.1


def emitted(
    topics: Topics, committed: Sequence[tuple[int, str]], offsets: Offsets, reading: LogReaders, timeout_s: float
) -> dict[int, PartitionPoint]:
    """The emitted point of each partition.

    Args:
        committed: The result of step 1, just read.
    """
    found = [committed_point_of(*each) or BEGIN for each in committed]
    places = [
        KafkaPartition(topic, each) for topic in (topics.changes, topics.deadletters) for each in range(len(found))
    ]
    for place, end in _stable_ends(places, offsets, timeout_s).items():
        last = reading.last(place, end, is_emitted)
        point = None if last is None else emitted_point_of(last)
        if point is not None:
            found[place.partition] = max(found[place.partition], point)
    return dict(enumerate(found))


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
