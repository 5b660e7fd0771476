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
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from refold.streams.log.kafka.range_reader import Headers, Raw

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
