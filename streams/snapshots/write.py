"""Writing spans: records appended one after another, and the digest over them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from refold.streams.snapshots.chunk import Group, Piece, chunks_of, chunks_of_pieces, hash_chunks_of
from refold.streams.snapshots.manifest import Span
from refold.streams.snapshots.store import EpochWriter


class SpanWriter:
    """Appends records to one partition, span by span."""

    def __init__(self, store: EpochWriter, partition: int) -> None:
        self._store = store
        self.partition = partition
        self.count = 0
        self.size = 0

    def span(self, groups: Iterable[Group]) -> Span:
        """Entities as chunks."""
        return self.records(chunks_of(groups))

    def pieces(self, pieces: Iterable[Piece]) -> Span:
        """Entities as chunks."""
        return self.records(chunks_of_pieces(pieces))

    def hashes(self, groups: Iterable[Group]) -> Span:
        """(key, state hash) pairs as chunks."""
        return self.records(hash_chunks_of(groups))

    def records(self, records: Iterable[bytes]) -> Span:
        """Records as they are."""
        start, digest = self._store.end(self.partition), hashlib.sha256()
        for data in records:
            self._store.append(self.partition, data)
            self.count += 1
            self.size += len(data)
            digest.update(data)
        return Span(start, self._store.end(self.partition), digest.digest())
