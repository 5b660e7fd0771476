"""Folding a batch of records into the entity tables, in one write.

1. Group the batch's records by entity, in log order.
2. Read the touched entities' states at once.
3. For each record: skip it when it is known (by the residue, by this batch, else by the timeline); fold it directly;
   or reopen the entity from its arrivals and timeline, and fold all of it again.
4. For each touched entity put its state, its timeline and arrivals, the index of ids and one change into the write.

The caller adds the log records and its own offsets to the same write, so log and tables never part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from refold.avro.errors import CorruptionError, SchemaError
from refold.avro.observation import Observation
from refold.avro.registry import Registry
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state
from refold.streams.changes import Change, Step
from refold.streams.log.file.batch import Batch
from refold.streams.log.file.database import Database
from refold.streams.log.port import Record
from refold.streams.table import keys
from refold.streams.table.folds import Folds, TypeFold


class Arrived(NamedTuple):
    """A record and the observation in it."""

    record: Record
    observation: Observation


@dataclass(slots=True)
class _Touched:
    """An entity while its part of the batch is folded; `added` by order key, in log order."""

    entity: Entity
    prefix: bytes
    hash_before: bytes | None
    added: dict[bytes, Seen] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


class TableWriter:
    """Folds into one database. Not for several threads at once."""

    def __init__(self, database: Database, registry: Registry) -> None:
        self._database = database
        self._registry = registry
        self._folds = Folds(registry)

    def fold(self, arrived: Sequence[Arrived], write: Batch, next_change: Callable[[int], int]) -> int:
        """Fold records and put what they change into `write`; returns how many were new.

        next_change gives the next offset of `.changes` in a partition, and moves it on.
        """
        grouped: dict[str, list[Arrived]] = {}
        for each in arrived:
            grouped.setdefault(each.record.entity, []).append(each)
        through = {each.record.partition: each.record.offset + 1 for each in arrived}
        stored = self._database.multi_get("state", [name.encode() for name in grouped])
        new = 0
        for (name, records), packed in zip(grouped.items(), stored, strict=True):
            entity = Entity(name) if packed is None else unpack(name, packed)
            touched = _Touched(entity, keys.entity_prefix(name), entity.state_hash or None)
            type_fold = self._folds.of_entity(name)
            for record, observation in records:
                self._fold_one(type_fold, touched, record, observation, write)
            if touched.steps:
                new += len(touched.steps)
                partition = records[0].record.partition
                self._finish(type_fold, touched, partition, through[partition], write, next_change)
        return new

    def _fold_one(
        self, type_fold: TypeFold, touched: _Touched, record: Record, observation: Observation, write: Batch
    ) -> None:
        q = order_key(observation, record.id)
        entity = touched.entity
        if not entity.residue.certainly_new(q) and self._known(touched, q):
            return
        seen = Seen(record.offset, q, observation)
        try:
            touched.entity, mutations = type_fold.fold.step(entity, seen, lambda: self._history(touched))
        except SchemaError as error:
            raise SchemaError(f"{entity.name}: observation {record.id.hex()} cannot be folded: {error}") from error
        touched.added[q] = seen
        write.put("timeline", touched.prefix + q, keys.timeline_value(record))
        write.put(
            "arrivals", keys.arrival_key(touched.prefix, record.offset), keys.arrival_value(record.recorded_at, q)
        )
        write.put("ids", keys.id_key(record.id, record.partition, record.offset), b"")
        version = touched.entity.version
        touched.steps.append(
            Step(record.offset, version, record.id, observation.observed_at, record.recorded_at,
                 observation.source, mutations)
        )  # fmt: skip

    def _known(self, touched: _Touched, q: bytes) -> bool:
        if q in touched.added or q[-32:] in touched.entity.residue.last_ids:
            return True
        return self._database.get("timeline", touched.prefix + q) is not None

    def _history(self, touched: _Touched) -> Iterator[Seen]:
        yield from stored_history(self._database, self._registry, touched.entity.name)
        yield from touched.added.values()

    def _finish(
        self, type_fold: TypeFold, touched: _Touched, partition: int, through: int, write: Batch,
        next_change: Callable[[int], int],
    ) -> None:  # fmt: skip
        entity = touched.entity
        before = touched.steps[0].version - 1
        entity.state_hash = hash_state(type_fold.fold, entity)
        write.put("state", entity.name.encode(), pack(entity))
        change = Change(
            entity.name, type_fold.version.definition.fingerprint, before, entity.version, touched.hash_before,
            entity.state_hash, through, False, touched.steps,
        )  # fmt: skip
        write.put("changes", keys.position_key(partition, next_change(partition)), type_fold.changes.encode(change))


def stored_history(database: Database, registry: Registry, entity: str) -> Iterator[Seen]:
    """An entity's distinct observations in log order, from its arrivals and timeline."""
    prefix = keys.entity_prefix(entity)
    arrivals = [keys.arrival_of(*row) for row in database.scan("arrivals", prefix, keys.after_prefix(prefix))]
    values = database.multi_get("timeline", [prefix + q for _, _, q in arrivals])
    for (offset, _, q), value in zip(arrivals, values, strict=True):
        if value is None:
            raise CorruptionError(
                f"the timeline of {entity} lacks the observation at offset {offset}; run refold verify"
            )
        yield Seen(offset, q, registry.decode(keys.timeline_of(value)[2]))
