"""Lookups in the tables that this worker keeps, by threads other than the fold (streams/log/kafka/lookups.py).

A table may be closed at any moment, because another worker owns its partition now. Then a lookup answers as if this
worker had never folded the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import cbor2

from refold.avro.errors import CorruptionError, InputError, StorageError
from refold.streams.log.kafka.lookups import IdMatches, IndexedHistory, IndexedRecords, TableClient, parse_lookup
from refold.streams.log.port import Checkpoint
from refold.streams.rocks.scan import Row
from refold.streams.table import indexes, keys
from refold.streams.table.checkpoints import checkpoint_of
from refold.streams.worker.partition_table import PartitionTable

Found = TypeVar("Found")
ROWS_BYTES = 4 << 20


class OwnTables(TableClient):
    """folded_here: the table of a partition that is folded here, or None. partitions: how many the log has."""

    def __init__(self, folded_here: Callable[[int], PartitionTable | None], partitions: int) -> None:
        self._folded_here = folded_here
        self._partitions = partitions

    def arrivals(self, partition: int, entity: str, start: int, end: int) -> IndexedHistory | None:
        def ask(table: PartitionTable) -> IndexedHistory:
            through = table.indexed
            return IndexedHistory(through, list(indexes.arrivals(table.database, entity, start, min(end, through))))

        return self._lookup(partition, ask)

    def records_of(self, partition: int, entity: str, qs: Sequence[bytes]) -> IndexedRecords | None:
        def ask(table: PartitionTable) -> IndexedRecords:
            through = table.indexed
            found = indexes.records_of(table.database, partition, entity, qs)
            return IndexedRecords(through, [record for _, record in found])

        return self._lookup(partition, ask)

    def checkpoint(self, partition: int, entity: str, end: int, definition: int) -> Checkpoint | None:
        row = self.checkpoint_row(partition, entity, end, definition)
        return None if row is None else checkpoint_of(*row)

    def checkpoint_row(self, partition: int, entity: str, end: int, definition: int) -> Row | None:
        """Return the last checkpoint of an entity below an offset, as it is stored.

        Args:
            partition: The entity's partition.
            entity: Its name, `TYPE/ID`.
            end: The offset after the last one.
            definition: The offset in `.schemas` of the definition that folded it.
        """
        return self._lookup(partition, lambda table: indexes.checkpoint(table.database, entity, end, definition))

    def places_of(self, observation_id: bytes) -> IdMatches:
        places: list[tuple[int, int]] = []
        through: dict[int, int] = {}

        def ask(table: PartitionTable) -> tuple[int, list[tuple[int, int]]]:
            return table.indexed, list(indexes.positions(table.database, observation_id))

        for partition in range(self._partitions):
            found = self._lookup(partition, ask)
            if found is not None:
                through[partition] = found[0]
                places += found[1]
        return IdMatches(places, through)

    def entities(self, partition: int) -> Iterator[tuple[str, bytes]]:
        rows = self._table(partition).database.scan("state")
        return ((keys.entity_of(key), packed) for key, packed in rows)

    def rows(self, partition: int, after: bytes) -> list[Row]:
        """The next of a partition's states as they are stored, about ROWS_BYTES of them.

        Args:
            after: The last key had.
        """
        found: list[Row] = []
        size = 0
        for row in self._table(partition).database.scan("state", after and after + b"\0"):
            found.append(row)
            size += len(row[0]) + len(row[1])
            if size >= ROWS_BYTES:
                break
        return found

    def totals(self, partition: int) -> tuple[int, int]:
        here = self._table(partition).position
        return here.entities, here.distinct

    def _table(self, partition: int) -> PartitionTable:
        found = self._folded_here(partition)
        if found is None:
            raise StorageError(f"partition {partition} is not folded by this worker at this moment; ask again")
        return found

    def _lookup(self, partition: int, ask: Callable[[PartitionTable], Found]) -> Found | None:
        table = self._folded_here(partition)
        if table is None:
            return None
        try:
            return ask(table)
        except CorruptionError:
            raise
        except StorageError:
            if self._folded_here(partition) is table:
                raise
            return None


def answer_lookup(tables: OwnTables, content: bytes) -> bytes:
    """Return the answer to a question, both in CBOR. InputError if it is invalid; StorageError as OwnTables."""
    name, arguments = parse_lookup(content)
    try:
        return cbor2.dumps(_answer(tables, name, arguments))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"the look-up {name!r:.40} has invalid arguments: {error}") from error


def _answer(tables: OwnTables, name: str, given: list[Any]) -> Any:
    match name:
        case "arrivals":
            arrived = tables.arrivals(*given)
            return None if arrived is None else [arrived.through, [list(each) for each in arrived.arrivals]]
        case "records":
            indexed = tables.records_of(*given)
            return None if indexed is None else [indexed.through, [each and list(each) for each in indexed.records]]
        case "checkpoint":
            row = tables.checkpoint_row(*given)
            return None if row is None else list(row)
        case "places":
            found = tables.places_of(*given)
            return [[list(each) for each in found.positions], dict(found.through)]
        case "rows":
            return [list(each) for each in tables.rows(*given)]
        case "totals":
            return list(tables.totals(*given))
    raise InputError(f"the look-up {name!r:.40} is not known to this release")
