"""What is read of a `file:` log: its records, by place and by the indexes, and what verify compares with them.

While the indexes have gaps (table/index_gaps.py), a question that needs them is answered by the records themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from refold.avro.registry import Registry
from refold.streams.log.file import records
from refold.streams.log.file.check import check_ends, check_snapshots, index_check
from refold.streams.log.port import (
    ChangeRecord,
    Checkpoint,
    DeadLetter,
    IndexedObservation,
    LogReader,
    Marked,
    Mismatch,
    Record,
    is_hole,
    missing_observation,
)
from refold.streams.partitioner import partition_of
from refold.streams.rocks.database import Database
from refold.streams.table import indexes, keys
from refold.streams.table.check import IndexCheck
from refold.streams.table.checkpoints import checkpoint_of
from refold.streams.table.index_gaps import read_gaps

# Reading an entity's records by the index costs about as much as skipping so many other records.
INDEXED_WORTH = 30


class FileLogReads(LogReader):
    """The reads of a `file:` log from one view of its database."""

    registry: Registry
    partitions: int

    @property
    @abstractmethod
    def _view(self) -> Database:
        """The database, no older than what this process wrote."""

    def changes_end(self, partition: int) -> int:
        return records.read_progress(self._view, self.partitions).changes[partition]

    def read(self, partition: int, start: int, end: int) -> Iterator[Record]:
        return records.read(self._view, partition, start, end)

    def read_changes(self, partition: int, start: int) -> Iterator[ChangeRecord]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition + 1, 0)
        for key, value in self._view.scan("changes", first, stop):
            yield ChangeRecord(*keys.change_position(key), value)

    def read_with_holes(self, partition: int, start: int, end: int) -> Iterator[Record]:
        return records.with_holes(self._view, partition, start, end)

    def record_at(self, partition: int, offset: int) -> Record | None:
        found = self._place_at(partition, offset)
        return None if found is None or is_hole(found) else found

    def recorded_below(self, partition: int, offset: int) -> int:
        found = self._place_at(partition, offset - 1) if offset else None
        return 0 if found is None else found.recorded_at

    def first_after(self, partition: int, time_ms: int) -> int:
        low, high = 0, self.ends()[partition]
        while low < high:  # recorded_at never decreases, and every offset has one
            middle = (low + high) // 2
            if self.recorded_below(partition, middle + 1) <= time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _place_at(self, partition: int, offset: int) -> Record | None:
        key = keys.position_key(partition, offset)
        value = self._view.get("observations", key)
        return None if value is None else keys.record_of(key, value)

    def _is_indexed(self, *partitions: int) -> bool:
        """Whether timeline, arrivals and ids are complete for the partitions."""
        gaps = read_gaps(self._view)
        return gaps is not None and gaps.keys().isdisjoint(partitions)

    def entity_records(self, entity: str, end: int, start: int = 0) -> Iterator[Record]:
        if not self._is_indexed(self.partition_of(entity)):
            return super().entity_records(entity, end, start)
        found = indexes.arrivals(self._view, entity, start, end)
        return self._indexed_records(entity, (arrival.q for arrival in found))

    def arrivals(self, entity: str, end: int, start: int = 0) -> Iterator[IndexedObservation]:
        if not self._is_indexed(self.partition_of(entity)):
            return super().arrivals(entity, end, start)
        return indexes.arrivals(self._view, entity, start, end)

    def records_of(self, entity: str, qs: Iterable[bytes]) -> Iterator[Record]:
        if not self._is_indexed(self.partition_of(entity)):
            return super().records_of(entity, qs)
        return self._indexed_records(entity, qs)

    def _indexed_records(self, entity: str, qs: Iterable[bytes]) -> Iterator[Record]:
        for q, record in indexes.records_of(self._view, self.partition_of(entity), entity, qs):
            if record is None:
                raise missing_observation(entity, q)
            yield record

    def checkpoint(self, entity: str, end: int, definition: int) -> Checkpoint | None:
        row = indexes.checkpoint(self._view, entity, end, definition)
        return None if row is None else checkpoint_of(*row)

    def records_among(
        self, partition: int, names: Collection[str], end: int, looked_at: Callable[[int], None]
    ) -> Iterator[Record]:
        if len(names) * INDEXED_WORTH >= end or not self._is_indexed(partition):
            yield from super().records_among(partition, names, end, looked_at)
            return
        for name in names:
            for record in self.entity_records(name, end):
                looked_at(1)
                yield record

    @property
    def has_id_index(self) -> bool:
        return self._is_indexed(*range(self.partitions))

    def find(self, observation_id: bytes) -> Record | None:
        if not self.has_id_index:
            return super().find(observation_id)
        found = (self.record_at(*place) for place in indexes.positions(self._view, observation_id))
        return next((record for record in found if record is not None and record.id == observation_id), None)

    def are_first(self, records: Sequence[Record]) -> list[bool]:
        if not self.has_id_index:
            return super().are_first(records)
        # The index has each id at its first record.
        found = self._view.multi_get("ids", [keys.id_key(each.id, each.partition, each.offset) for each in records])
        return [entry is not None or self._is_first(each) for each, entry in zip(records, found, strict=True)]

    def deadletters(self) -> Iterator[DeadLetter]:
        for key, value in self._view.scan("deadletters"):
            yield DeadLetter(*keys.deadletter_position(key), value)

    def markers(self) -> Sequence[Marked]:
        return records.read_markers(self._view)

    def partition_of(self, entity: str) -> int:
        return partition_of(entity, self.partitions)

    def stored_entities(self) -> Iterator[tuple[str, bytes]]:
        return ((keys.entity_of(key), packed) for key, packed in self._view.scan("state"))

    def totals(self, partition: int) -> tuple[int, int]:
        progress = records.read_progress(self._view, self.partitions)
        return progress.entities[partition], progress.distinct[partition]

    def check_indexes(self, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
        yield from check_snapshots(self._view, self.partitions)
        yield from check_ends(self._view, offsets)
        if not self._is_indexed(*offsets):
            unfinished = "being filled again after a recovery; let `refold recover` finish it, then verify"
            yield Mismatch("timeline", unfinished)

    def record_rows(self, checks: Callable[[str], bool]) -> IndexCheck | None:
        if not self._is_indexed(*range(self.partitions)):
            return None
        return index_check(self._view, self.registry, self.partitions, checks)
