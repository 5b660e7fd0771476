"""How far a partition is decided and folded, as whoever reads the log can see it.

A partition goes one way, and every worker that ever has it goes the same one:

    (offset, schemas, place)    the records below `offset` are folded, by the definitions below `schemas`; of the
                                definition at `schemas`, where place > 0, its type's entities in the places below
                                `place` are folded again

A batch of records moves the offset; taking up a definition moves the place, and at its end the schemas. Each step is
one transaction, and says where it ends in three spots:

1. with the group's committed offset, as its metadata: "refold 1 SCHEMAS PLACE". These can expire or be reset.
2. in the headers of every change and dead letter: `refold-through` (offset u64) and `refold-taken` (schemas u64,
   place u32), big-endian. These stay.
3. in the worker's table, in the write that follows the commit (streams/worker/commit.py).

`refold-through`: the header of each change and dead letter that says through where its partition was folded then.

It is the next offset of the batch that the record was emitted in, u64 big-endian. It rises along a topic's partition,
so what stands up to an offset is found by halving, and the last record says how far emission is.

A client finds up to where the changes of a log are made:

1. Read the point at the group's committed offset.
2. Wait until everything that was in `.changes` and `.deadletters` then is decided: with the offset a worker committed
   its changes, but these show a moment later.
3. Where committed offsets expired or may not be read, the last record that a worker wrote in either topic says how far
   emission is: the greatest of the three counts.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from refold.avro.errors import StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.range_reader import Headers, LogReaders, Raw
from refold.streams.log.kafka.topics import Topics

THROUGH = "refold-through"
_U64 = struct.Struct(">Q")


def through_header(offset: int) -> tuple[str, bytes]:
    """The header that says it."""
    return THROUGH, _U64.pack(offset)


def through_of(raw: Raw) -> int | None:
    """The offset in a record's header; None where no worker wrote the record."""
    given = raw.header(THROUGH) or b""
    if len(given) != _U64.size:
        return None
    offset: int = _U64.unpack(given)[0]
    return offset


TAKEN = "refold-taken"
_TAKEN = struct.Struct(">QI")
_METADATA = re.compile(r"refold 1 (\d{1,18}) (\d{1,9})\Z")


class Reached(NamedTuple):
    """A point of a partition's way; they compare as they follow one another."""

    offset: int
    schemas: int
    place: int = 0

    @property
    def metadata(self) -> str:
        """What stands beside the committed offset."""
        return f"refold 1 {self.schemas} {self.place}"

    @property
    def headers(self) -> Headers:
        """What every change and dead letter says of the step it belongs to."""
        return [through_header(self.offset), (TAKEN, _TAKEN.pack(self.schemas, self.place))]

    def is_before(self, other: Reached) -> bool:
        """Whether the way from here leads to the other: no definition was taken up here that it does not have yet."""
        if self.offset == other.offset:
            return self <= other
        return self.offset < other.offset and (
            self.schemas < other.schemas or (self.schemas == other.schemas and self.place == 0)
        )


BEGIN = Reached(0, 0)


def committed_of(offset: int, metadata: str | None) -> Reached | None:
    """The point behind a committed offset; None where there is none, or another program committed it."""
    found = _METADATA.match(metadata or "")
    return None if found is None or offset < 0 else Reached(offset, int(found[1]), int(found[2]))


def emitted_of(raw: Raw) -> Reached | None:
    """The point in the headers of a change or dead letter; None where no worker wrote the record."""
    taken, through = raw.header(TAKEN) or b"", through_of(raw)
    if through is None or len(taken) != _TAKEN.size:
        return None
    return Reached(through, *_TAKEN.unpack(taken))


def is_emitted(raw: Raw) -> bool:
    """Whether a worker wrote a record of `.changes` or `.deadletters`: both headers are there, of their lengths."""
    return emitted_of(raw) is not None


POLL_S = 0.02
BUSY_POLL_S = 0.1


def emitted(
    topics: Topics, committed: Sequence[tuple[int, str]], offsets: Offsets, reading: LogReaders, timeout_s: float
) -> dict[int, Reached]:
    """The point of each partition; committed: what step 1 read, just now."""
    found = [committed_of(*each) or BEGIN for each in committed]
    places = [TopicPlace(topic, each) for topic in (topics.changes, topics.deadletters) for each in range(len(found))]
    for place, end in _decided(places, offsets, timeout_s).items():
        last = reading.last(place, end, is_emitted)
        point = None if last is None else emitted_of(last)
        if point is not None:
            found[place.partition] = max(found[place.partition], point)
    return dict(enumerate(found))


def settled(ask: Callable[[], dict[int, Reached]], topic: str, timeout_s: float) -> dict[int, Reached]:
    """What is asked for, `emitted` as it is then, once no worker is in the midst of taking a definition up."""
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


def _decided(places: list[TopicPlace], offsets: Offsets, timeout_s: float) -> dict[TopicPlace, int]:
    """Ends below which everything is decided that stood there at this call."""
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
