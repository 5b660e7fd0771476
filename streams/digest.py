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
from collections.abc import Iterable

from refold.streams.partition import SLOTS, slot_of

DOMAIN = b"refold-root/1"
EMPTY = bytes(32)
BUCKETS = 256


def bucket_digest(members: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The digest over (key, state hash) pairs."""
    ordered = sorted(members)
    if not ordered:
        return EMPTY
    digest = hashlib.sha256()
    for key, state_hash in ordered:
        digest.update(struct.pack(">I", len(key)) + key + state_hash)
    return digest.digest()


def slot_digest(buckets: dict[int, bytes]) -> bytes:
    """The digest over a slot's bucket digests; those not given are empty."""
    if not buckets:
        return EMPTY
    return hashlib.sha256(b"".join(buckets.get(number, EMPTY) for number in range(BUCKETS))).digest()


def root_of(states: Iterable[tuple[str, bytes]]) -> bytes:
    """The root over (entity, state hash) pairs."""
    slots: dict[int, dict[int, list[tuple[bytes, bytes]]]] = {}
    entities = 0
    for entity, state_hash in states:
        key = entity.encode()
        bucket = hashlib.sha256(key).digest()[0]
        slots.setdefault(slot_of(entity), {}).setdefault(bucket, []).append((key, state_hash))
        entities += 1
    root = hashlib.sha256(DOMAIN + struct.pack(">Q", entities))
    for slot in range(SLOTS):
        root.update(slot_digest({number: bucket_digest(members) for number, members in slots.get(slot, {}).items()}))
    return root.digest()
