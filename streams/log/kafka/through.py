"""`refold-through`: the header of each change and dead letter that says through where its partition was folded then.

It is the next offset of the batch that the record was emitted in, u64 big-endian. It rises along a topic's partition,
so what stands up to an offset is found by halving, and the last record says how far emission is.
"""

from __future__ import annotations

import struct

from refold.streams.log.kafka.reading import Raw

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
