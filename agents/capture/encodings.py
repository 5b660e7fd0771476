"""Decode content encodings incrementally: gzip, deflate, br, zstd, and several of them in layers.

1. The header Content-Encoding lists the layers in the order in which they were applied; `identity` adds no layer.
2. `feed` takes the received bytes and returns what can be decoded by now.
3. `finish` says whether the stream was complete. A stream that ended early is kept as far as it could be decoded.
4. A layer returns OUTPUT_BYTES_MAX at most, and gets its input in small pieces, so that a few bytes that expand to
   gigabytes cost no memory.
"""

from __future__ import annotations

import zlib
from typing import Any, Literal, Protocol

from refold.avro.errors import InputError

OUTPUT_BYTES_MAX = 48 << 20
WINDOW_BYTES_MAX = 32 << 20
_PIECE_BYTES = 512
_GZIP_BITS = 16 + zlib.MAX_WBITS
NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "br": "br", "zstd": "zstd"}


class Undecodable(InputError):
    """A body cannot be decoded as its header says.

    Attributes:
        kind: Whether the encoding is unknown, the body is damaged, or it is too long.
    """

    def __init__(self, kind: Literal["unsupported", "undecodable", "oversize"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Layer(Protocol):
    """The decoder of one encoding."""

    is_whole: bool

    def feed(self, data: bytes) -> bytes:
        """Return what can be decoded now. Raises any exception if the bytes are damaged."""


class Decoder:
    """Decodes one body.

    Attributes:
        produced: The number of bytes decoded so far.
    """

    def __init__(self, header: str | None) -> None:
        """Create the decoder of a header Content-Encoding.

        Raises:
            Undecodable: The header names an unknown encoding.
        """
        names = [each for each in ((header or "").lower().replace(" ", "").split(",")) if each not in ("", "identity")]
        for name in reversed(names):
            if name not in NAMES:
                raise Undecodable("unsupported", f"the encoding {name} of Content-Encoding: {header} is not known")
        self._layers = [(name, _layer(NAMES[name])) for name in reversed(names)]
        self._given = [0] * len(names)
        self._taken = 0
        self.produced = 0

    def feed(self, data: bytes) -> bytes:
        """Return what can be decoded now.

        Raises:
            Undecodable: The bytes are damaged or too long, even if earlier bytes could be decoded.
        """
        self._taken += len(data)
        for index, (name, layer) in enumerate(self._layers):
            data = self._feed_layer(index, name, layer, data)
        self.produced += len(data)
        return data

    def _feed_layer(self, index: int, name: str, layer: Layer, data: bytes) -> bytes:
        found: list[bytes] = []
        for begin in range(0, len(data), _PIECE_BYTES):
            try:
                piece = layer.feed(data[begin : begin + _PIECE_BYTES])
            except Exception as error:  # each decoder raises errors of its own
                raise Undecodable("undecodable", f"the body is not valid {name}: {error}") from None
            self._given[index] += len(piece)
            if self._given[index] > OUTPUT_BYTES_MAX:
                raise Undecodable("oversize", f"the decoded body of {name} has more than {OUTPUT_BYTES_MAX} bytes")
            found.append(piece)
        return b"".join(found)

    def finish(self) -> bool:
        """Return whether the stream is complete.

        Raises:
            Undecodable: Nothing of an encoded body could be decoded.
        """
        if all(layer.is_whole for _, layer in self._layers) and (self._taken or not self._layers):
            return True
        if not self.produced:
            what = "ends before anything can be read" if self._taken else "has no bytes"
            raise Undecodable("undecodable", f"the body {what}, and its header says {self._layers[0][0]}")
        return False


class _Zlib:
    """gzip, possibly of several members, and deflate, with or without zlib's header."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._stream: Any = zlib.decompressobj(_GZIP_BITS) if is_gzip else None
        self._first = b""
        self.is_whole = False

    def feed(self, data: bytes) -> bytes:
        if self._stream is None:
            self._first += data
            if len(self._first) < 2:
                return b""
            data = self._first
            has_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
        found = b""
        while data:
            if self._stream.eof:
                if not self._is_gzip:
                    raise ValueError("more bytes follow the end")
                self._stream = zlib.decompressobj(_GZIP_BITS)
            found += self._stream.decompress(data)
            data = self._stream.unused_data
        self.is_whole = self._stream.eof
        return found


class _Zstd:
    def __init__(self) -> None:
        import zstandard

        self._reader = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        self._stream: Any = self._reader.decompressobj()
        self.is_whole = False

    def feed(self, data: bytes) -> bytes:
        found = b""
        while data:
            if self._stream.eof:
                self._stream = self._reader.decompressobj()
            found += self._stream.decompress(data)
            data = self._stream.unused_data
        self.is_whole = self._stream.eof
        return found


class _Brotli:
    def __init__(self) -> None:
        import brotli

        self._stream: Any = brotli.Decompressor()

    @property
    def is_whole(self) -> bool:
        return bool(self._stream.is_finished())

    def feed(self, data: bytes) -> bytes:
        found: bytes = self._stream.process(data)
        return found


def _layer(name: str) -> Any:
    if name == "zstd":
        return _Zstd()
    if name == "br":
        return _Brotli()
    return _Zlib(is_gzip=name == "gzip")
