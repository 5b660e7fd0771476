"""One entity's records on Kafka: from the indexes in the workers' tables, and then from the tail of the log.

The tables are only an optimisation: if no worker answers, or the entity has a ruling, everything is read from
`.observations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from refold.avro.observation import ID_BYTES
from refold.avro.registry import Registry
from refold.streams.log.kafka.damaged import was_ruled_on
from refold.streams.log.kafka.lookups import IndexedHistory, TableClient
from refold.streams.log.kafka.records import Records
from refold.streams.log.port import Checkpoint, IndexedObservation, Record, arrival_of, firsts, missing_observation


class EntityReader:
    """Reads the records of single entities of one log. For the log's thread."""

    def __init__(
        self, tables: TableClient | None, records: Records, registry: Registry, partition_of: Callable[[str], int]
    ) -> None:
        """Create a reader.

        Args:
            tables: the workers' tables, where they are asked.
            records: the log's observations.
            registry: its types and rulings.
            partition_of: the partition of an entity.
        """
        self._tables = tables
        self._records = records
        self._registry = registry
        self._partition_of = partition_of

    def records(self, entity: str, start: int, end: int) -> Iterator[Record]:
        """Return the records of an entity with start <= offset < end, in order.

        Args:
            entity: Its name, `TYPE/ID`.
            start: The first offset.
            end: The offset after the last one, at most the end of the log's view.
        """
        found = self._indexed(entity, start, end)
        if found is None:
            return self._records.among(self._partition_of(entity), (entity,), end, start)
        return self._with_tail(entity, start, end, found)

    def _with_tail(self, entity: str, start: int, end: int, found: IndexedHistory) -> Iterator[Record]:
        yield from self.records_of(entity, [each.q for each in found.arrivals], end)
        yield from self._records.among(self._partition_of(entity), (entity,), end, max(start, found.through))

    def arrivals(self, entity: str, start: int, end: int) -> Iterator[IndexedObservation]:
        """The distinct observations with start <= offset < end, in order."""
        found = self._indexed(entity, start, end)
        if found is None:
            return (
                arrival_of(self._registry, each)
                for each in firsts(self.records(entity, 0, end))
                if each.offset >= start
            )
        return self._arrivals(entity, start, end, found)

    def _arrivals(self, entity: str, start: int, end: int, found: IndexedHistory) -> Iterator[IndexedObservation]:
        """The arrivals in the tables, then the new ones in the log's tail."""
        yield from found.arrivals
        tail = self._records.among(self._partition_of(entity), (entity,), end, max(start, found.through))
        known: set[bytes] | None = None
        for record in tail:
            if known is None:
                before = found.arrivals if start == 0 else self.arrivals(entity, 0, record.offset)
                known = {each.q[-ID_BYTES:] for each in before}
            if record.id not in known:
                known.add(record.id)
                yield arrival_of(self._registry, record)

    def records_of(self, entity: str, qs: Iterable[bytes], end: int) -> Iterator[Record]:
        """Return the first record of each observation below an offset.

        Args:
            entity: Its name, `TYPE/ID`.
            qs: The order keys of the observations.
            end: The offset after the last one.

        Raises:
            CorruptionError: A record is missing.
        """
        wanted, partition = list(qs), self._partition_of(entity)
        tables = self._tables_for(entity)
        held = tables.records_of(partition, entity, wanted) if tables is not None and wanted else None
        records = {} if held is None else {each.id: each for each in held.records if each is not None}
        # Observations that are missing in the tables are normally in the tail; otherwise the tables are damaged or do
        # not answer.
        for start in (0,) if held is None else (held.through, 0):
            if all(q[-ID_BYTES:] in records for q in wanted):
                break
            for record in self._records.among(partition, (entity,), end, start):
                records.setdefault(record.id, record)
        for q in wanted:
            if q[-ID_BYTES:] not in records:
                raise missing_observation(entity, q)
            yield records[q[-ID_BYTES:]]

    def checkpoint(self, entity: str, end: int, definition: int) -> Checkpoint | None:
        """As LogPort.checkpoint."""
        tables = self._tables_for(entity)
        return None if tables is None else tables.checkpoint(self._partition_of(entity), entity, end, definition)

    def _indexed(self, entity: str, start: int, end: int) -> IndexedHistory | None:
        tables = self._tables_for(entity)
        return None if tables is None else tables.arrivals(self._partition_of(entity), entity, start, end)

    def _tables_for(self, entity: str) -> TableClient | None:
        if self._tables is None or was_ruled_on(self._registry.rulings, self._partition_of(entity), entity):
            return None
        return self._tables
