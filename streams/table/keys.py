"""Keys and values of the stored families. An entity's name has no control characters, so a NUL ends it and sorts below
any other byte. Rows of any other form raise CorruptionError.

    observations  partition u16, offset u64          -> recorded_at u64, id 32, key length u16, key, framed bytes
    changes       partition u16, offset u64          -> framed bytes
    state         slot u16, bucket u8, entity        -> the packed entity (reducers/entity.py); `placed`, so that a
                                                         bucket's entities are together, in the order of their keys
    timeline      entity, NUL, order key             -> offset u64, recorded_at u64, framed bytes
    arrivals      entity, NUL, offset u64            -> recorded_at u64, flags u8 (1: it retracts), order key
    checkpoints   entity, NUL, offset u64, schemas offset of the definition u64 -> streams/table/checkpoints.py
    ids           the id's first 8 bytes, partition u16, offset u64 -> nothing
"""

from __future__ import annotations

import struct

from refold.avro.errors import CorruptionError
from refold.reducers.cells import new_tuple
from refold.streams.log.port import IndexedObservation, Record
from refold.streams.partitioner import PLACE_BYTES

POSITION = struct.Struct(">HQ")
_RECORD = struct.Struct(">Q32sH")
_U64 = struct.Struct(">Q")
_TIMELINE = struct.Struct(">QQ")
_ARRIVED = struct.Struct(">QB")
_ARRIVED_BYTES = _ARRIVED.size
_CHECKPOINT = struct.Struct(">QQ")
ID_PREFIX_BYTES = 8


def position_key(partition: int, offset: int) -> bytes:
    """Return the key of a record; keys sort in log order."""
    return POSITION.pack(partition, offset)


def record_value(record: Record) -> bytes:
    """Encode a record without its position."""
    key = record.entity.encode()
    return _RECORD.pack(record.recorded_at, record.id, len(key)) + key + record.data


def record_of(key: bytes, value: bytes) -> Record:
    """Decode a record from its key and value.

    Raises:
        CorruptionError: It is damaged.
    """
    partition, offset = _unpacked(POSITION, key, "the position of an observation")
    try:
        recorded_at, observation_id, length = _RECORD.unpack_from(value)
        body = _RECORD.size + length
        return Record(partition, offset, recorded_at, value[_RECORD.size : body].decode(), observation_id, value[body:])
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"the observation {partition}={offset} cannot be read: {error}; run refold verify"
        ) from error


def record_entity(value: bytes) -> str:
    """The entity of a stored record, without reading the rest."""
    (length,) = struct.unpack_from(">H", value, _RECORD.size - 2)
    return value[_RECORD.size : _RECORD.size + length].decode()


def place_key(place: int) -> bytes:
    """The prefix of the keys of a place's states."""
    return place.to_bytes(PLACE_BYTES, "big")


def entity_of(key: bytes) -> str:
    """The entity in a state's key.

    Raises:
        CorruptionError: It is damaged.
    """
    try:
        return key[PLACE_BYTES:].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"the entity {key!r:.200} cannot be read: {error}; run refold verify") from error


def entity_prefix(entity: str) -> bytes:
    """The prefix of an entity's timeline and arrivals keys."""
    return entity.encode() + b"\0"


def after_prefix(prefix: bytes) -> bytes:
    """The least key above every key with this NUL-ended prefix."""
    return prefix[:-1] + b"\1"


def timeline_value(offset: int, recorded_at: int, data: bytes) -> bytes:
    """Encode a timeline entry."""
    return _TIMELINE.pack(offset, recorded_at) + data


def timeline_of(value: bytes) -> tuple[int, int, bytes]:
    """(offset, recorded_at in milliseconds, framed bytes)."""
    offset, recorded_at = _unpacked(_TIMELINE, value, "a timeline entry")
    return offset, recorded_at, value[_TIMELINE.size :]


def arrival_key(prefix: bytes, offset: int) -> bytes:
    """An entity's arrival at an offset."""
    return prefix + _U64.pack(offset)


def arrival_value(recorded_at: int, q: bytes, retracts: bool) -> bytes:
    """Encode an arrival: its time, its order key, and whether it retracts."""
    return _ARRIVED.pack(recorded_at, retracts) + q


def arrival_of(key: bytes, value: bytes) -> IndexedObservation:
    """Decode an arrival from its key and value.

    Raises:
        CorruptionError: It is damaged.
    """
    try:
        recorded_at, flags = _ARRIVED.unpack_from(value)
        parts = int.from_bytes(key[-8:], "big"), recorded_at, value[_ARRIVED_BYTES:], flags != 0
        return new_tuple(IndexedObservation, parts)
    except struct.error as error:
        raise CorruptionError(f"an arrival cannot be read ({value.hex()[:80]}): {error}; run refold verify") from error


def checkpoint_key(prefix: bytes, offset: int, definition: int) -> bytes:
    """An entity's checkpoint after the arrival at an offset, under the definition at one of `.schemas`."""
    return prefix + _CHECKPOINT.pack(offset, definition)


def checkpoint_place(key: bytes) -> tuple[str, int, int]:
    """(entity, offset, schemas offset of the definition) of a checkpoint.

    Raises:
        CorruptionError: Its key is damaged.
    """
    offset, definition = _unpacked(_CHECKPOINT, key[-_CHECKPOINT.size :], "a checkpoint's place")
    try:
        return key[: -_CHECKPOINT.size - 1].decode(), offset, definition
    except UnicodeDecodeError as error:
        raise CorruptionError(f"the checkpoint {key!r:.200} cannot be read: {error}; run refold verify") from error


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


def deadletter_position(key: bytes) -> tuple[int, int]:
    """(partition, offset) of a dead letter."""
    partition, offset = _unpacked(POSITION, key, "a dead letter's position")
    return partition, offset


def _unpacked(form: struct.Struct, data: bytes, what: str) -> tuple[int, ...]:
    try:
        return form.unpack_from(data)
    except struct.error as error:
        raise CorruptionError(f"{what} cannot be read ({data.hex()[:80]}): {error}; run refold verify") from error
