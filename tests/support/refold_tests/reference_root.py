"""Bucket, slot and root digests over a whole table of state hashes, and Kafka's murmur2, in a naive implementation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

SLOTS = 1024
BUCKETS = 256
EMPTY = bytes(32)


def murmur2(key: bytes) -> int:
    """Return the hash of Kafka's Java client, as an unsigned 32-bit number."""
    word = 0xFFFFFFFF
    mix = 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) - len(key) % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * mix & word
        k = (k ^ k >> 24) * mix & word
        h = (h * mix & word) ^ k
    if key[whole:]:
        h = (h ^ int.from_bytes(key[whole:], "little")) * mix & word
    h = (h ^ h >> 13) * mix & word
    return h ^ h >> 15


def reference_slot(entity: str) -> int:
    """Return which of the 1,024 slots contains `entity`."""
    return (murmur2(entity.encode("utf-8")) & 0x7FFFFFFF) % SLOTS


def reference_bucket(entity: str) -> int:
    """Return which of its slot's 256 buckets contains `entity`."""
    return hashlib.sha256(entity.encode("utf-8")).digest()[0]


def reference_root(state_hashes: Mapping[str, bytes]) -> bytes:
    """Return the root (32 bytes) of a table of entity -> state hash (32 bytes). Without entities, it has 1,024 empty
    slots.
    """
    slots: list[dict[str, bytes]] = [{} for _ in range(SLOTS)]
    for entity, state_hash in state_hashes.items():
        slots[reference_slot(entity)][entity] = state_hash
    digests = b"".join(_slot_digest(slot) for slot in slots)
    return hashlib.sha256(b"refold-root/1" + len(state_hashes).to_bytes(8, "big") + digests).digest()


def _slot_digest(slot_hashes: Mapping[str, bytes]) -> bytes:
    if not slot_hashes:
        return EMPTY
    buckets: list[dict[bytes, bytes]] = [{} for _ in range(BUCKETS)]
    for entity, state_hash in slot_hashes.items():
        buckets[reference_bucket(entity)][entity.encode("utf-8")] = state_hash
    return hashlib.sha256(b"".join(map(_bucket_digest, buckets))).digest()


def _bucket_digest(bucket_hashes: Mapping[bytes, bytes]) -> bytes:
    if not bucket_hashes:
        return EMPTY
    content = b"".join(len(key).to_bytes(4, "big") + key + bucket_hashes[key] for key in sorted(bucket_hashes))
    return hashlib.sha256(content).digest()
