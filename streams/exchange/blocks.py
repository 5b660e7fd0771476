"""Reads an Avro container file block by block, within bounds.

1. The header: the four bytes of MAGIC, a map of metadata (text to bytes), 16 bytes of sync marker.
2. Each block: its number of records, its size in bytes, the bytes, the sync marker again. Decompression stops at the
   bound.
3. Each record is read with refold's schema, never with the file's: a schema can declare that 2^33 records take no
   bytes. The caller has compared the two schemas first. Every record in refold's schema takes bytes, so a block cannot
   claim more records than it holds.

No memory is allocated for a length that the file only claims: a length above its bound is refused, and one past the end
of the file reads what is there.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, TypeAlias

from refold.avro.decoder import read_long
from refold.avro.errors import InputError
from refold.streams.exchange.json_lines import Progress
from refold.streams.exchange.limits import FileLimits

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
XZ_MEMORY_MAX = 128 << 20
_CHUNK_BYTES = 1 << 20
_VARINT_BYTES_MAX = 10

Expand: TypeAlias = Callable[[bytes, int], bytes]
"""Takes compressed bytes and a bound; returns the decompressed bytes, or at least bound + 1 of them if more exist."""


class Blocks:
    """An Avro container file, read once; `metadata` is its header's. InputError names `shown`, and the block."""

    def __init__(self, file: IO[bytes], shown: str, limits: FileLimits) -> None:
        self._file = file
        self._shown = shown
        self._limits = limits
        self._size = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError(f"{shown}: is not an Avro container (it starts with other bytes)")
        self.metadata: Mapping[str, bytes] = self._header()
        self._sync = self._take(SYNC_BYTES, "header")
        codec = self.metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in CODECS:
            raise InputError(
                f"{shown}: its codec {codec!r:.80} is not one of {', '.join(CODECS)}; write the file again with deflate"
            )
        self._codec = codec

    def records(self, read: Callable[[io.BytesIO], Any], progress: Progress | None = None) -> Iterator[tuple[str, Any]]:
        """Yield each record with its place, FILE:RECORD counted from 1. `read` reads one record from a stream."""
        number = expanded = block = 0
        while self._file.tell() < self._size:
            block += 1
            place = f"{self._shown}: block {block}"
            count, data = self._block(place)
            expanded += len(data)
            self._limits.check_expansion(self._file.tell(), expanded, place)
            stream = io.BytesIO(data)
            for _ in range(count):
                number += 1
                if stream.tell() >= len(data):
                    raise _damaged(place, "it claims more records than it holds")
                try:
                    found = read(stream)
                except Exception as error:  # fastavro raises arbitrary exceptions
                    raise _damaged(f"{self._shown}:{number}", f"{error!r:.120}") from None
                if progress is not None:
                    progress(self._file.tell(), self._size)
                yield f"{self._shown}:{number}", found
            if stream.tell() != len(data):
                raise _damaged(place, "it holds more bytes than its records take")

    def _block(self, place: str) -> tuple[int, bytes]:
        count, size = self._long(place), self._long(place)
        if count < 0 or size < 0:
            raise _damaged(place, "a negative count")
        raw = self._take(self._bounded(size, place), place)
        if self._take(SYNC_BYTES, place) != self._sync:
            raise _damaged(place, "its sync marker is another")
        bound = self._limits.block_bytes
        try:
            data = CODECS[self._codec](raw, bound)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        except Exception as error:  # each codec raises errors of its own
            raise _damaged(place, f"{self._codec}: {error!r:.120}") from None
        return count, data[: self._bounded(len(data), place)]

    def _header(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        left = self._limits.block_bytes
        while count := self._long("header"):
            if count < 0:
                count = -count
                self._long("header")  # the block's size in bytes, with which a reader could skip it
            for _ in range(count):
                parts = []
                for _ in range(2):
                    size = self._long("header")
                    left -= max(size, 1)
                    if size < 0 or left < 0:
                        raise self._too_long(f"{self._shown}: its header")
                    parts.append(self._take(size, "header"))
                found[parts[0].decode(errors="replace")] = parts[1]
        return found

    def _bounded(self, size: int, place: str) -> int:
        if size > self._limits.block_bytes:
            raise self._too_long(place)
        return size

    def _too_long(self, place: str) -> InputError:
        return InputError(
            f"{place} is longer than {self._limits.block_bytes:,} bytes; if it is meant to be, raise the bound with "
            "--max-block-bytes"
        )

    def _long(self, place: str) -> int:
        data = b""
        while len(data) < _VARINT_BYTES_MAX:
            data += self._take(1, place)
            if data[-1] < 0x80:
                break
        try:
            return read_long(data, 0)[0]
        except (LookupError, ValueError):
            raise _damaged(self._named(place), "a number past 64 bits") from None

    def _take(self, size: int, place: str) -> bytes:
        parts, left = [], size
        while left:
            part = self._file.read(min(left, _CHUNK_BYTES))
            if not part:
                raise _damaged(self._named(place), "the file ends in it")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _named(self, place: str) -> str:
        return place if place.startswith(self._shown) else f"{self._shown}: {place}"


def _damaged(place: str, reason: str) -> InputError:
    return InputError(f"{place}: the Avro container is damaged or truncated ({reason}); copy it or export it again")


def _plain(data: bytes, bound: int) -> bytes:
    return data


def _deflate(data: bytes, bound: int) -> bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    found = stream.decompress(data, bound + 1)
    if len(found) <= bound and not stream.eof:
        raise ValueError("the compressed data ends early")
    return found


def _bzip2(data: bytes, bound: int) -> bytes:
    return _decompressed(bz2.BZ2Decompressor(), data, bound)


def _xz(data: bytes, bound: int) -> bytes:
    return _decompressed(lzma.LZMADecompressor(memlimit=XZ_MEMORY_MAX), data, bound)


def _decompressed(stream: bz2.BZ2Decompressor | lzma.LZMADecompressor, data: bytes, bound: int) -> bytes:
    found = stream.decompress(data, bound + 1)
    if len(found) <= bound and not stream.eof:
        raise ValueError("the compressed data ends early")
    return found


def _snappy(data: bytes, bound: int) -> bytes:
    """Decompress: the length is at the front; a CRC-32 of the decompressed bytes is at the end."""
    try:
        from cramjam import snappy
    except ModuleNotFoundError:
        raise InputError(
            "the codec snappy needs the package cramjam, which comes with refold[kafka]; or write the file with deflate"
        ) from None
    body, length, shift = data[:-4], 0, 0
    for byte in body[:_VARINT_BYTES_MAX]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > bound:
        return bytes(bound + 1)
    found = bytes(snappy.decompress_raw(body))
    if zlib.crc32(found).to_bytes(4, "big") != data[-4:]:
        raise ValueError("its checksum is another")
    return found


CODECS: Mapping[str, Expand] = {
    "null": _plain,
    "deflate": _deflate,
    "bzip2": _bzip2,
    "xz": _xz,
    "snappy": _snappy,
}
