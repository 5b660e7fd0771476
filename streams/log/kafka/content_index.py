"""The index of contents in one partition of `PREFIX.contents`, read incrementally.

Uncommitted records are read too: refold uses no transactions there, so an open transaction of another program causes no
delay. Records that are not refold's are skipped and counted (foreign_records.py).

Every process sees the records in the same order, which these rules use:
- a put counts until its record is removed, and never again: no two puts have one token;
- "again/" counts for a put that counts, and gives it the offset and time of that record;
- "expired/" counts for ever.

Removals are visible as long as Kafka keeps the records without a value (`delete.retention.ms`, a day): an index that
was not refreshed for FORGOTTEN_S is read again from the start.

The index records of `PREFIX.contents` list the contents and the offsets of their bytes.

The topic has twice the partitions of the log (P). A content belongs to partition N = the first two bytes of its SHA-256
modulo P. Its bytes are chunks in partition P + N; its index records are in partition N:

"put/", SHA-256, token              the content was put, and these are its chunks; without a value: they were removed
"again/", SHA-256, token            it was put again, and the chunks of that put serve
"removing/", SHA-256, token, token  a process removes that put; kept until its chunks are erased
"expired/", SHA-256                 it was removed because it had expired

A token is 8 random bytes. The first identifies a put, the second a removal. The value of "put/" and "removing/" is CBOR
[size, the chunks' offsets, ascending] and its CRC-32C, that of the others one byte, 1. A chunk's key is SHA-256, token
and the chunk's number (u32 big-endian); its value is the bytes and their CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError
from refold.avro.observation import ID_BYTES
from refold.streams.checksum import sealed, unsealed
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.manifests import FORGOTTEN_S
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord

PUT, AGAIN, REMOVING, EXPIRED = b"put/", b"again/", b"removing/", b"expired/"
TOKEN_BYTES = 8
VERSION_BYTES = ID_BYTES + TOKEN_BYTES
_NUMBER_BYTES = 4
SAID = b"\x01"
"""The value of a record whose key has all the information."""
_LENGTHS = {PUT: VERSION_BYTES, AGAIN: VERSION_BYTES, REMOVING: VERSION_BYTES + TOKEN_BYTES, EXPIRED: ID_BYTES}


class Chunks(NamedTuple):
    """The bytes of one put: how many, and the offsets of its chunks, ascending."""

    size: int
    offsets: Sequence[int]


def partition_of_content(digest: bytes, partitions: int) -> int:
    """Return the index partition of a content; its chunks are in the partition `partitions` higher."""
    return int.from_bytes(digest[:2], "big") % partitions


def chunk_key(version: bytes, number: int) -> bytes:
    """The key of a chunk.

    Args:
        version: SHA-256 and token of the put.
    """
    return version + number.to_bytes(_NUMBER_BYTES, "big")


def is_chunk_key(key: bytes) -> bool:
    """Whether a key is one of a chunk, by its length."""
    return len(key) == VERSION_BYTES + _NUMBER_BYTES


def chunks_value(chunks: Chunks) -> bytes:
    """What `chunks_of` reads."""
    return sealed(encode([chunks.size, list(chunks.offsets)]))


def chunks_of(value: bytes) -> Chunks:
    """Decode the chunks of a put.

    Raises:
        CorruptionError: The value is invalid.
    """
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
    """Split a key into its kind and the rest; both are empty for an unknown kind."""
    kind, slash, rest = key.partition(b"/")
    kind += slash
    return (kind, rest) if len(rest) == _LENGTHS.get(kind, -1) else (b"", b"")


def is_content_record(raw: RawRecord, place: KafkaPartition, partitions: int) -> bool:
    """Whether refold wrote a record of one of the first P partitions of `.contents`.

    Args:
        raw: The record.
        place: Its partition.
        partitions: P, the number of the log's partitions.
    """
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


# Token, offset and time of the last put, and the length of the value after them.
_ENTRY = struct.Struct(f">{TOKEN_BYTES}sQQI")


class ContentPut(NamedTuple):
    """A put that counts: its token, offset and time of the last record that put it, and the value that names chunks."""

    token: bytes
    offset: int
    put_ms: int
    value: bytes

    @property
    def chunks(self) -> Chunks:
        return chunks_of(self.value)


class ContentIndex:
    """The index of one partition; for one thread at a time.

    Args:
        clock_s: A monotonic clock, in seconds.

    Attributes:
        next: The next offset to read.
        read_at: When it was last read.
        time_ms: The append time of the last record.
    """

    def __init__(
        self, place: KafkaPartition, partitions: int, offsets: Offsets, reading: LogReaders, foreign: ForeignRecords,
        clock_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self.place = place
        self.chunks = KafkaPartition(place.topic, place.partition + partitions)
        self._partitions = partitions
        self._offsets = offsets
        self._reading = reading
        self._foreign = foreign
        self._clock_s = clock_s
        self._chunks_end = self.next = self.time_ms = 0
        self._forget()
        self.read_at = -FORGOTTEN_S

    def read_new(self) -> None:
        """Read everything that was written by now."""
        now_s = self._clock_s()
        if now_s - self.read_at > FORGOTTEN_S:
            self._forget()
        end = self._offsets.ends([self.place], committed=False)[self.place]
        for raw in self._reading.records(self.place, self.next, end):
            if is_content_record(raw, self.place, self._partitions):
                self._apply(raw)
            else:
                self._foreign.count_skipped(self.place, raw.offset)
        self.next, self.read_at = max(end, self.next), now_s

    def chunks_end(self, offset: int | None) -> int:
        """An end of the chunks' partition. It is at or below `offset` only if there is no record at that offset.

        Args:
            offset: None for the end as it is now.
        """
        if offset is None or self._chunks_end <= offset:
            self._chunks_end = self._offsets.ends([self.chunks], committed=False)[self.chunks]
        return self._chunks_end

    def puts(self, digest: bytes) -> list[ContentPut]:
        """The puts of a content that count; empty if the content does not exist."""
        found, packed, at = list[ContentPut](), self._puts.get(digest, b""), 0
        while at < len(packed):
            token, offset, put_ms, length = _ENTRY.unpack_from(packed, at)
            at += _ENTRY.size + length
            found.append(ContentPut(token, offset, put_ms, packed[at - length : at]))
        return found

    def digests(self) -> Iterator[bytes]:
        """The existing contents."""
        return iter([*self._puts])

    def has_expired(self, digest: bytes) -> bool:
        """Whether a content was removed because it had expired."""
        return digest in self._expired

    def expired(self) -> Iterator[bytes]:
        """The contents that were removed because they had expired."""
        return iter([*self._expired])

    def is_being_removed(self, version: bytes) -> bool:
        """Whether a removal of a put was announced."""
        return version in self._removing

    def knows(self, version: bytes) -> bool:
        """Whether a put counts, or was removed and its chunks may still exist."""
        puts = self.puts(version[:ID_BYTES])
        return version in self._removing or any(each.token == version[ID_BYTES:] for each in puts)

    def removed(self) -> Iterator[tuple[bytes, list[bytes], Chunks]]:
        """Removed puts whose chunks may still exist: SHA-256 and token, the keys of their removal records, and the
        chunks.
        """
        for version, marks in [*self._removing.items()]:
            if all(each.token != version[ID_BYTES:] for each in self.puts(version[:ID_BYTES])):
                keys = [REMOVING + version + token for token in marks]
                yield version, keys, chunks_of(next(iter(marks.values())))

    def _forget(self) -> None:
        self.next = self.time_ms = 0
        self._puts: dict[bytes, bytes] = {}
        self._removing: dict[bytes, dict[bytes, bytes]] = {}
        self._expired: set[bytes] = set()

    def _apply(self, raw: RawRecord) -> None:
        self.time_ms = max(self.time_ms, raw.timestamp)
        kind, rest = split_key(raw.key or b"")
        digest, token = rest[:ID_BYTES], rest[ID_BYTES:VERSION_BYTES]
        if kind == EXPIRED:
            (self._expired.discard if raw.value is None else self._expired.add)(digest)
        elif kind == REMOVING and raw.value is not None:
            self._removing.setdefault(rest[:VERSION_BYTES], {})[rest[VERSION_BYTES:]] = raw.value
        elif kind == REMOVING:
            marks = self._removing.get(rest[:VERSION_BYTES], {})
            marks.pop(rest[VERSION_BYTES:], None)
            if not marks:
                self._removing.pop(rest[:VERSION_BYTES], None)
        elif kind == PUT and raw.value is not None:
            self._keep(digest, [*self._others(digest, token), ContentPut(token, raw.offset, raw.timestamp, raw.value)])
        elif kind == PUT:
            self._keep(digest, self._others(digest, token))
        elif kind == AGAIN and raw.value is not None:
            again = [each._replace(offset=raw.offset, put_ms=raw.timestamp) if each.token == token else each
                     for each in self.puts(digest)]  # fmt: skip
            self._keep(digest, again)

    def _others(self, digest: bytes, token: bytes) -> list[ContentPut]:
        return [each for each in self.puts(digest) if each.token != token]

    def _keep(self, digest: bytes, puts: list[ContentPut]) -> None:
        packed = b"".join(_ENTRY.pack(each.token, each.offset, each.put_ms, len(each.value)) + each.value
                          for each in puts)  # fmt: skip
        if packed:
            self._puts[digest] = packed
        else:
            self._puts.pop(digest, None)
