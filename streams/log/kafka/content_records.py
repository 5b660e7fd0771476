"""The records of `PREFIX.contents` that say which contents there are, and where their bytes are.

The topic has twice the partitions of the log (P). A content belongs to partition N = the first two bytes of its SHA-256
modulo P. Its bytes are chunks in partition P + N; what is said of it is in partition N:

"put/", SHA-256, token              the content was put, and these are its chunks; without a value: they were removed
"again/", SHA-256, token            it was put again, and the chunks of that put serve
"removing/", SHA-256, token, token  somebody removes that put; kept until its chunks are erased
"expired/", SHA-256                 it was removed because it had expired

A token is 8 random bytes. The first names a put, the second who removes it. The value of "put/" and "removing/" is
CBOR [size, the chunks' offsets, ascending] and its CRC-32C, that of the others one byte, 1. A chunk's key is SHA-256,
token and the chunk's number (u32 big-endian); its value is the bytes and their CRC-32C.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError
from refold.avro.observation import ID_BYTES
from refold.streams.checksum import sealed, unsealed
from refold.streams.log.kafka.offsets import TopicPlace
from refold.streams.log.kafka.range_reader import Raw

PUT, AGAIN, REMOVING, EXPIRED = b"put/", b"again/", b"removing/", b"expired/"
TOKEN_BYTES = 8
VERSION_BYTES = ID_BYTES + TOKEN_BYTES
_NUMBER_BYTES = 4
SAID = b"\x01"
"""The value of a record that says everything by its key."""
_LENGTHS = {PUT: VERSION_BYTES, AGAIN: VERSION_BYTES, REMOVING: VERSION_BYTES + TOKEN_BYTES, EXPIRED: ID_BYTES}


class Chunks(NamedTuple):
    """The bytes of one put: how many, and the offsets of its chunks, ascending."""

    size: int
    offsets: Sequence[int]


def partition_of_content(digest: bytes, partitions: int) -> int:
    """The partition of a log with so many that says where a content is; its chunks are `partitions` further."""
    return int.from_bytes(digest[:2], "big") % partitions


def chunk_key(version: bytes, number: int) -> bytes:
    """The key of a chunk. version: SHA-256 and token of the put."""
    return version + number.to_bytes(_NUMBER_BYTES, "big")


def is_chunk_key(key: bytes) -> bool:
    """Whether a key is one of a chunk, by its length."""
    return len(key) == VERSION_BYTES + _NUMBER_BYTES


def chunks_value(chunks: Chunks) -> bytes:
    """What `chunks_of` reads."""
    return sealed(encode([chunks.size, list(chunks.offsets)]))


def chunks_of(value: bytes) -> Chunks:
    """Where a put has its chunks; CorruptionError where a value does not say."""
    body = unsealed(value, "a record of contents")
    try:
        size, offsets = cbor2.loads(body)
        is_sound = type(size) is int and size >= 0 and type(offsets) is list
        is_sound = is_sound and all(type(each) is int and each >= 0 for each in offsets)
    except Exception as error:  # cbor2 raises whatever comes of odd bytes
        raise CorruptionError(f"a record of contents cannot be read: {error}") from error
    if not is_sound or not offsets or any(one >= another for one, another in pairwise(offsets)):
        raise CorruptionError("a record of contents names no chunks, or names them out of order")
    return Chunks(size, offsets)


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """A key's kind and the rest; empty where it is none of these."""
    kind, slash, rest = key.partition(b"/")
    kind += slash
    return (kind, rest) if len(rest) == _LENGTHS.get(kind, -1) else (b"", b"")


def is_content_record(raw: Raw, place: TopicPlace, partitions: int) -> bool:
    """Whether a record of one of the first P partitions is one of refold's."""
    kind, rest = split_key(raw.key or b"")
    if not kind or partition_of_content(rest, partitions) != place.partition:
        return False
    if raw.value is None:
        return True
    if kind in (AGAIN, EXPIRED):
        return raw.value == SAID
    try:
        chunks_of(raw.value)
    except CorruptionError:
        return False
    return True
