"""Keys and values of the stored families. Entities hold no control characters, so NUL ends them below any other byte.
What is not of these forms raises CorruptionError.

    observations  partition u16, offset u64          -> recorded_at u64, id 32, key length u16, key, framed bytes
    changes       partition u16, offset u64          -> framed bytes
    state         entity                             -> the packed entity (reducers/entity.py)
    timeline      entity, NUL, order key             -> offset u64, recorded_at u64, framed bytes
    arrivals      entity, NUL, offset u64            -> recorded_at u64, order key
    ids           the id's first 8 bytes, partition u16, offset u64 -> nothing
"""

from __future__ import annotations

import struct

from refold.avro.errors import CorruptionError
from refold.streams.log.port import Record

POSITION = struct.Struct(">HQ")
_RECORD = struct.Struct(">Q32sH")
_U64 = struct.Struct(">Q")
_TIMELINE = struct.Struct(">QQ")
ID_PREFIX_BYTES = 8


def position_key(partition: int, offset: int) -> bytes:
    """Where a record stands, in order."""
    return POSITION.pack(partition, offset)


def record_value(record: Record) -> bytes:
    """A record without its position."""
    key = record.entity.encode()
    return _RECORD.pack(record.recorded_at, record.id, len(key)) + key + record.data


def record_of(key: bytes, value: bytes) -> Record:
    """The record behind its stored key and value."""
    partition, offset = _unpacked(POSITION, key, "the position of an observation")
    try:
        recorded_at, observation_id, length = _RECORD.unpack_from(value)
        body = _RECORD.size + length
        return Record(partition, offset, recorded_at, value[_RECORD.size : body].decode(), observation_id, value[body:])
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"the observation {partition}={offset} cannot be read: {error}; run refold verify"
        ) from error


def entity_of(key: bytes) -> str:
    """The entity that a state is stored by."""
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"the entity {key!r:.200} cannot be read: {error}; run refold verify") from error


def entity_prefix(entity: str) -> bytes:
    """What the timeline and arrivals keys of an entity begin with."""
    return entity.encode() + b"\0"


def after_prefix(prefix: bytes) -> bytes:
    """The least key above every key with this NUL-ended prefix."""
    return prefix[:-1] + b"\1"


def timeline_value(record: Record) -> bytes:
    """An observation as the timeline holds it."""
    return _TIMELINE.pack(record.offset, record.recorded_at) + record.data


def timeline_of(value: bytes) -> tuple[int, int, bytes]:
    """(offset, recorded_at in milliseconds, framed bytes)."""
    offset, recorded_at = _unpacked(_TIMELINE, value, "a timeline entry")
    return offset, recorded_at, value[_TIMELINE.size :]


def arrival_key(prefix: bytes, offset: int) -> bytes:
    """An entity's arrival at an offset."""
    return prefix + _U64.pack(offset)


def arrival_value(recorded_at: int, q: bytes) -> bytes:
    """When it arrived, and its order key."""
    return _U64.pack(recorded_at) + q


def arrival_of(key: bytes, value: bytes) -> tuple[int, int, bytes]:
    """(offset, recorded_at in milliseconds, order key)."""
    return _unpacked(_U64, key[-8:], "an arrival")[0], _unpacked(_U64, value, "an arrival")[0], value[8:]


def id_key(observation_id: bytes, partition: int, offset: int) -> bytes:
    """An id's entry in the index."""
    return observation_id[:ID_PREFIX_BYTES] + POSITION.pack(partition, offset)


def after_id(prefix: bytes) -> bytes | None:
    """The least key above every key with this prefix; None when there is none above."""
    number = int.from_bytes(prefix, "big") + 1
    return number.to_bytes(len(prefix), "big") if number < 1 << (8 * len(prefix)) else None


def id_position(key: bytes) -> tuple[int, int]:
    """(partition, offset) in an id's entry."""
    partition, offset = _unpacked(POSITION, key[ID_PREFIX_BYTES:], "an entry of the index of ids")
    return partition, offset


def change_position(key: bytes) -> tuple[int, int]:
    """(partition, offset) of a change."""
    partition, offset = _unpacked(POSITION, key, "a change's position")
    return partition, offset


def _unpacked(form: struct.Struct, data: bytes, what: str) -> tuple[int, ...]:
    try:
        return form.unpack_from(data)
    except struct.error as error:
        raise CorruptionError(f"{what} cannot be read ({data.hex()[:80]}): {error}; run refold verify") from error
