"""The partition and slot of an entity: slot = (murmur2(key) & 0x7fffffff) mod 1024, partition = slot mod P.

P is a power of two, so this is the partition the Java client's default partitioner picks. The key is UTF-8 of type/id.
A slot has 256 buckets, by the first byte of SHA-256(key); a place is slot * 256 + bucket.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache

from refold.avro.errors import InputError
from refold.avro.kernel import find_kernel

SLOTS = 1024
BUCKETS = 256
PLACE_BYTES = 3
PARTITIONS_DEFAULT = 8
_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def murmur2(key: bytes) -> int:
    """Kafka's murmur2 of a key, as an unsigned 32-bit integer."""
    length = len(key)
    state = 0x9747B28C ^ length
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        mixed = (word * _M) & _MASK
        state = ((mixed ^ (mixed >> 24)) * _M ^ state * _M) & _MASK
    if length & 3:
        state = ((state ^ int.from_bytes(key[whole:], "little")) * _M) & _MASK
    state = ((state ^ (state >> 13)) * _M) & _MASK
    return state ^ (state >> 15)


@lru_cache(maxsize=32_768)
def place_of(entity: str) -> int:
    """The place of `type/id`: its slot and, in the last byte, its bucket."""
    kernel = find_kernel().kernel
    if kernel is not None:
        return place_in(kernel.placed([entity])[0])
    key = entity.encode()
    return ((murmur2(key) & 0x7FFFFFFF) % SLOTS) << 8 | hashlib.sha256(key).digest()[0]


def placed(entity: str) -> bytes:
    """The place (PLACE_BYTES, big-endian) and the key of `type/id`: sorts by place, then by key."""
    return place_of(entity).to_bytes(PLACE_BYTES, "big") + entity.encode()


def all_placed(entities: Sequence[str]) -> list[bytes]:
    """`placed` of each entity, by the native kernel if there is one."""
    kernel = find_kernel().kernel
    return kernel.placed(entities) if kernel is not None else list(map(placed, entities))


def place_in(placed_key: bytes) -> int:
    """The place in a result of `placed`."""
    return int.from_bytes(placed_key[:PLACE_BYTES], "big")


def slot_of(entity: str) -> int:
    """The slot of `type/id`, 0 to 1023."""
    return place_of(entity) >> 8


def partition_of(entity: str, partitions: int) -> int:
    """The partition of `type/id` in a log with `partitions` partitions."""
    return slot_of(entity) % partitions


def partition_in(placed_key: bytes, partitions: int) -> int:
    """The partition in a result of `placed`."""
    return (place_in(placed_key) >> 8) % partitions


def slots_of(partition: int, partitions: int) -> range:
    """The slots of a partition in a log with `partitions` partitions."""
    return range(partition, SLOTS, partitions)


def check_partitions(count: int) -> int:
    """Return a number of partitions.

    Raises:
        InputError: It is not a power of two from 1 to 1,024.
    """
    if not 1 <= count <= SLOTS or count & (count - 1):
        raise InputError(f"partitions={count}: the number of partitions is a power of two from 1 to {SLOTS}")
    return count
