"""Temporary storage for chunks: in memory up to a limit, beyond it in an unnamed temporary file."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import OrderedDict
from typing import IO, NamedTuple

from refold.streams.defaults import CHUNK_BYTES, OPEN_CHUNKS, PUT_BYTES
from refold.streams.snapshots.chunk import Chunk

# The memory limits during a fold, and for a view that a caller waits for.
MEMORY_BYTES = 64 << 20
VIEW_BYTES = 512 << 20


class ChunkPlace(NamedTuple):
    """The position of a chunk in a file, which is kept open as long as this object."""

    file: IO[bytes]
    at: int
    size: int


class ChunkStore:
    """Chunks by number: in memory up to memory_bytes, the others in the file.

    Of the chunks in the file at most open_chunks are open, and only as many as take memory_bytes again, but at least
    open_min.

    Args:
        open_min: How many are open in any case: a merge of several layers has one chunk of each open.

    Attributes:
        chunk_bytes: The size at which chunks that are made to be put here are full.
        put_bytes: The size at which entities that are put are made a layer here.
    """

    def __init__(
        self, memory_bytes: int = MEMORY_BYTES, *, open_min: int = 1, chunk_bytes: int = CHUNK_BYTES,
        open_chunks: int = OPEN_CHUNKS, put_bytes: int = PUT_BYTES,
    ) -> None:  # fmt: skip
        self.put_bytes = put_bytes
        self.chunk_bytes = chunk_bytes
        self.open_chunks = open_chunks
        self._memory_bytes = memory_bytes
        self._open_max = min(open_chunks, max(open_min, memory_bytes // chunk_bytes))
        self._held: dict[int, Chunk | ChunkPlace] = {}
        self._open: OrderedDict[int, Chunk] = OrderedDict()
        self._held_bytes = 0
        self._next = 0
        self._file: IO[bytes] | None = None
        self._file_bytes = 0

    def add(self, chunk: Chunk, filed: ChunkPlace | None = None) -> int:
        """Add a chunk, which may already be in a file; returns its number."""
        number = self._next
        self._next += 1
        if filed is None and self._held_bytes + len(chunk.data) <= self._memory_bytes:
            self._held[number] = chunk
            self._held_bytes += len(chunk.data)
        else:
            self._held[number] = filed or self._file_away(chunk.data)
            self._remember(number, chunk)
        return number

    def keep(self, file: IO[bytes]) -> None:
        """Keep a file with chunks open until the store is deleted."""
        weakref.finalize(self, file.close)

    def get(self, number: int) -> Chunk:
        """A chunk by its number."""
        held = self._held[number]
        if isinstance(held, Chunk):
            return held
        chunk = self._open.get(number)
        if chunk is None:
            chunk = Chunk(os.pread(held.file.fileno(), held.size, held.at), f"chunk {number} of a view")
            self._remember(number, chunk)
        else:
            self._open.move_to_end(number)
        return chunk

    def drop(self, number: int) -> None:
        """Drop a chunk; its space in the file is freed when the store is deleted."""
        held = self._held.pop(number)
        if isinstance(held, Chunk):
            self._held_bytes -= len(held.data)
        self._open.pop(number, None)

    def _remember(self, number: int, chunk: Chunk) -> None:
        self._open[number] = chunk
        if len(self._open) > self._open_max:
            self._open.popitem(last=False)

    def _file_away(self, data: bytes) -> ChunkPlace:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="refold-view-", buffering=0)  # noqa: SIM115
            self.keep(self._file)
        left = memoryview(data)
        while left:  # an unbuffered write may be partial
            left = left[self._file.write(left) :]
        self._file_bytes += len(data)
        return ChunkPlace(self._file, self._file_bytes - len(data), len(data))
