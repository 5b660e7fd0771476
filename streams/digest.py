"""Digests over many states: buckets, slots and the root, so that two tables are compared by one hash.

1. A bucket holds a slot's entities whose SHA-256(key) begins with the same byte; its digest is the SHA-256 over
   (key length u32 big-endian, key, state hash) of each, in key order. An empty bucket is 32 zero bytes.
2. A slot's digest is the SHA-256 over its 256 bucket digests. An empty slot is 32 zero bytes.
3. root = SHA-256("refold-root/1", number of entities u64 big-endian, the 1,024 slot digests).

The root does not depend on the number of partitions. Vectors: avro/vectors/root.json.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping

from refold.streams.partitioner import BUCKETS, SLOTS, place_of

DOMAIN = b"refold-root/1"
DIGEST_BYTES = 32
EMPTY = bytes(DIGEST_BYTES)
_EMPTY_SLOT = EMPTY * BUCKETS
_LENGTH = struct.Struct(">I")
# hashlib releases the GIL from 2,048 bytes on.
_HASHED_AT_ONCE = 2_047


def preimage(key: bytes, state_hash: bytes) -> bytes:
    """The bytes of one entity that its bucket's digest covers."""
    return _LENGTH.pack(len(key)) + key + state_hash


def bucket_digest(members: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The digest over (key, state hash) pairs."""
    ordered = sorted(members)
    if not ordered:
        return EMPTY
    return hashlib.sha256(b"".join(preimage(key, state_hash) for key, state_hash in ordered)).digest()


def slot_digest(buckets: Mapping[int, bytes]) -> bytes:
    """The digest over a slot's bucket digests; missing ones are empty."""
    if not buckets:
        return EMPTY
    return hashlib.sha256(b"".join(buckets.get(number, EMPTY) for number in range(BUCKETS))).digest()


class Digests:
    """The bucket digests of any number of slots. A slot is hashed again on demand."""

    def __init__(self) -> None:
        self._buckets: dict[int, bytearray] = {}
        self._slots: dict[int, bytes] = {}

    def set(self, place: int, digest: bytes) -> None:
        """Set the digest of a place (slot * 256 + bucket)."""
        slot, at = place >> 8, (place & 0xFF) * DIGEST_BYTES
        self._slots.pop(slot, None)
        buckets = self._buckets.get(slot)
        if buckets is None:
            buckets = self._buckets[slot] = bytearray(_EMPTY_SLOT)
        buckets[at : at + DIGEST_BYTES] = digest

    def bucket(self, place: int) -> bytes:
        """The digest of a place."""
        buckets = self._buckets.get(place >> 8)
        at = (place & 0xFF) * DIGEST_BYTES
        return EMPTY if buckets is None else bytes(buckets[at : at + DIGEST_BYTES])

    def each_bucket(self, slot: int) -> list[bytes]:
        """The digests of all buckets of a slot."""
        buckets = self._buckets.get(slot)
        if buckets is None:
            return [EMPTY] * BUCKETS
        whole = bytes(buckets)
        return [whole[at : at + DIGEST_BYTES] for at in range(0, DIGEST_BYTES * BUCKETS, DIGEST_BYTES)]

    def buckets(self, slot: int) -> bytes:
        """The concatenated digests of all buckets of a slot; empty if all are empty."""
        return bytes(self._buckets.get(slot, b""))

    def set_buckets(self, slot: int, buckets: bytes) -> None:
        """Set the digests of all buckets of a slot, in the form of `buckets`."""
        self._buckets[slot] = bytearray(buckets)
        self._slots.pop(slot, None)

    def slot(self, slot: int) -> bytes:
        """The digest of a slot."""
        found = self._slots.get(slot)
        if found is None:
            buckets = self._buckets.get(slot, _EMPTY_SLOT)
            found = EMPTY if buckets == _EMPTY_SLOT else _sha256(buckets)
            self._slots[slot] = found
        return found

    def add_slots(self, other: Digests) -> None:
        """Add the slots of another, none of which this one has."""
        self._buckets.update(other._buckets)
        self._slots.update(other._slots)


def _sha256(data: bytes | bytearray) -> bytes:
    """The SHA-256. It keeps the GIL: an epoch hashes a hundred slots, and would wait up to 5 ms after each of them
    while another thread folds.
    """
    digest, view = hashlib.sha256(), memoryview(data)
    for start in range(0, len(data), _HASHED_AT_ONCE):
        digest.update(view[start : start + _HASHED_AT_ONCE])
    return digest.digest()


def root(digests: Digests, entities: int) -> bytes:
    """The root over the slots, and the number of entities in them."""
    return root_over({slot: digests.slot(slot) for slot in range(SLOTS)}, entities)


def root_over(slots: Mapping[int, bytes], entities: int) -> bytes:
    """The root over slot digests; missing ones are empty."""
    joined = bytearray(EMPTY * SLOTS)
    for slot, digest in slots.items():
        joined[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES] = digest
    return hashlib.sha256(DOMAIN + struct.pack(">Q", entities) + joined).digest()


def root_of(states: Iterable[tuple[str, bytes]]) -> bytes:
    """The root over (entity, state hash) pairs."""
    places: dict[int, list[tuple[bytes, bytes]]] = {}
    entities = 0
    for entity, state_hash in states:
        places.setdefault(place_of(entity), []).append((entity.encode(), state_hash))
        entities += 1
    digests = Digests()
    for place, members in places.items():
        digests.set(place, bucket_digest(members))
    return root(digests, entities)


def differing_places(one: Digests, other: Digests) -> Iterator[int]:
    """The places whose digests differ. Only slots that differ are searched."""
    for slot in range(SLOTS):
        if one.slot(slot) == other.slot(slot):
            continue
        for place in range(slot * BUCKETS, (slot + 1) * BUCKETS):
            if one.bucket(place) != other.bucket(place):
                yield place
