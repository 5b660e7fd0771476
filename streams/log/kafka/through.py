"""`refold-through`: the header of each change and dead letter that says through where its partition was folded then.

It is the next offset of the batch that the record was emitted in, u64 big-endian. It rises along a topic's partition,
so what stands up to an offset is found by halving, and the last record says how far emission is.
"""

from __future__ import annotations

import struct

from refold.avro.errors import CorruptionError
from refold.streams.log.kafka.offsets import Place
from refold.streams.log.kafka.reading import Raw

THROUGH = "refold-through"
_U64 = struct.Struct(">Q")


def through_header(offset: int) -> tuple[str, bytes]:
    """The header that says it."""
    return THROUGH, _U64.pack(offset)


def through_of(place: Place, raw: Raw) -> int:
    """The offset in a record's header; CorruptionError where the record is not a worker's."""
    given = raw.header(THROUGH) or b""
    if len(given) != _U64.size:
        raise not_a_workers(place, raw, THROUGH)
    offset: int = _U64.unpack(given)[0]
    return offset


def not_a_workers(place: Place, raw: Raw, lacking: str) -> CorruptionError:
    """What to say of a record in a workers' topic that lacks what they all have."""
    return CorruptionError(
        f"{place.topic}/{place.partition}={raw.offset}: it has no {lacking}, so no worker of refold wrote it; only "
        "workers may write this topic, and it cannot be read past this record"
    )
