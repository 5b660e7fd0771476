"""The stored records of spans: each is there and whole, and they hold entities by place and key.

What is wrong with a record is named by its place; its neighbours are read all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from refold.avro.errors import CorruptionError
from refold.reducers.entity import stored_hash
from refold.streams.log.port import LogPort, Mismatch
from refold.streams.partition import place_of, slots_of
from refold.streams.snapshots.chunk import Chunk
from refold.streams.snapshots.manifest import OffsetSpan

Entry = tuple[str, str, bytes, bytes]
"""(place of the record, entity, state hash, encoded entity; empty in the index of closed ones)."""


class SpanReader:
    """Reads the spans of one partition. `problems` is what was found wrong since it was last emptied."""

    def __init__(self, log: LogPort, partition: int) -> None:
        self._log = log
        self._partition = partition
        self._slots = frozenset(slots_of(partition, log.partitions))
        self.problems: list[Mismatch] = []

    def records(self, span: OffsetSpan) -> Iterator[tuple[str, bytes]]:
        """(place, bytes) of the records there are; after the last the span's digest is checked."""
        digest, expected, before = hashlib.sha256(), span.start, len(self.problems)
        for offset, data in self._log.snapshots.records(self._partition, span.start, span.end):
            self._missing(expected, offset)
            expected = offset + 1
            digest.update(data)
            yield self._place(offset), data
        self._missing(expected, span.end)
        if len(self.problems) == before and digest.digest() != span.digest:
            self._say(f"{self._place(span.start)} to {span.end - 1}", "not what was sealed")

    def entries(self, span: OffsetSpan) -> Iterator[Entry]:
        """The entities, or entries of the index, of a span in order."""
        last_place = -1
        for place, data in self.records(span):
            try:
                chunk = Chunk(data, place)
            except CorruptionError as error:
                self._say(place, str(error))
                continue
            for group, at in enumerate(chunk.places):
                if at <= last_place or at >> 8 not in self._slots:
                    self._say(place, f"the bucket {at >> 8}/{at & 0xFF} does not belong there")
                last_place = at
                yield from self._members(place, chunk, group)

    def _members(self, place: str, chunk: Chunk, group: int) -> Iterator[Entry]:
        at, last_key = chunk.places[group], b""
        for (key, state_hash), (_, body) in zip(chunk.hashes(group), chunk.members(group), strict=True):
            name = key.decode(errors="replace")
            if key <= last_key or place_of(name) != at:
                self._say(place, f"stands in the wrong place of bucket {at >> 8}/{at & 0xFF}", name)
            elif body and stored_hash(body) != state_hash:
                self._say(place, "stands beside another state hash than its own", name)
            last_key = key
            yield place, name, state_hash, body

    def _missing(self, expected: int, found: int) -> None:
        if found != expected:
            to = "" if found == expected + 1 else f" to {found - 1}"
            self._say(f"{self._place(expected)}{to}", "missing")

    def _say(self, place: str, problem: str, entity: str = "") -> None:
        self.problems.append(Mismatch(place, problem, entity))

    def _place(self, offset: int) -> str:
        return f"snapshots {self._partition}={offset}"
