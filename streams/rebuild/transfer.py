"""The file in which one process hands a rebuilt partition to another.

1. Its entities, except closed ones of its epoch that no record was folded onto: chunks (streams/snapshots/chunk.py) in
   order of place, each preceded by its length, u32 big-endian. Length 0 ends them.
2. If all entities were asked for, the digests of its buckets: for each slot that has any, its number, u16 big-endian,
   and 256 bucket digests (8,192 bytes). Anything after them is no part of the data.
The reader is told where the data begins and ends. It leaves the chunks in the file.
"""

from __future__ import annotations

import os
import struct
from typing import IO

from refold.avro.errors import CorruptionError
from refold.streams.digest import Digests
from refold.streams.partition import BUCKETS
from refold.streams.snapshots.chunk import chunks_of_pieces
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.spill import Filed

_LENGTH = struct.Struct(">I")
_SLOT = struct.Struct(">H")
_BUCKETS_BYTES = 32 * BUCKETS


def write_entities(file: IO[bytes], layers: Layers, digests: Digests | None, slots: range) -> None:
    """Write a partition at the file's position; digests: of all its buckets, None to leave them out."""
    for data in chunks_of_pieces(layers.pieces()):
        file.write(_LENGTH.pack(len(data)) + data)
    file.write(_LENGTH.pack(0))
    for slot in slots if digests is not None else ():
        assert digests is not None
        buckets = digests.buckets(slot)
        if buckets:
            file.write(_SLOT.pack(slot) + buckets)
    file.flush()


def read_entities(file: IO[bytes], start: int, end: int, layers: Layers) -> None:
    """Let layers take up what was written between two positions; CorruptionError where it is not whole."""
    at = start
    while (length := _LENGTH.unpack(_read(file, at, _LENGTH.size, end))[0]) != 0:
        at += _LENGTH.size
        data = _read(file, at, length, end)
        layers.add(data, "a partition folded by another process", Filed(file, at, length))
        at += length
    at += _LENGTH.size
    if at == end:
        return
    digests = Digests()
    while at < end:
        (slot,) = _SLOT.unpack(_read(file, at, _SLOT.size, end))
        digests.set_buckets(slot, _read(file, at + _SLOT.size, _BUCKETS_BYTES, end))
        at += _SLOT.size + _BUCKETS_BYTES
    layers.settled_by(digests)


def _read(file: IO[bytes], at: int, size: int, end: int) -> bytes:
    data = os.pread(file.fileno(), size, at) if at + size <= end else b""
    if len(data) != size:
        raise CorruptionError("a partition folded by another process is not whole")
    return data
