"""Folds a batch of records into the entity tables, in one write.

1. Group the batch's records by entity, in log order, and read the entities' states at once. The kernel, if there is
   one, groups them, also those that it keeps itself.
2. The kernel folds the entities that it takes (native.py): first those with certainly new records, then the others,
   once the timeline was read for their doubtful records.
3. For each record of the entities that it leaves, or of all without a kernel: skip a repeat (recognised by the dedup
   state, by this batch, or else by the timeline); fold the record directly; or reopen the entity from its arrivals and
   timeline, and fold it again from nothing.
4. For each of these entities put its state, its timeline and arrivals, its due checkpoints and the index of ids into
   the write, and report one change.

The caller adds its offsets to the same write, so that the tables always match the folded records.

A new definition of a type that has entities folds each of them again, from all its observations. Folding again is
idempotent, so after an interruption it begins at the first entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from refold.avro.errors import CorruptionError, SchemaError, StorageError
from refold.avro.kernel import DecidedRecords, find_kernel
from refold.avro.observation import Observation, type_of
from refold.avro.registry import Registry
from refold.reducers.cells import new_tuple
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state
from refold.streams.changes import Change, ChangeStep
from refold.streams.log.port import Record, observation_in
from refold.streams.partitioner import all_placed
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.rocks.scan import Row
from refold.streams.table import keys
from refold.streams.table.checked import CheckedRecord, checked_records
from refold.streams.table.checkpoints import FIRST, checkpoint_value, is_due
from refold.streams.table.folds import Folds, TypeFold
from refold.streams.table.index_gaps import Gaps, ReadRecords, index, records_in
from refold.streams.table.native import fold_groups

Decoded = Callable[[], Mapping[bytes, Observation]]
"""Returns the observations of a batch that are decoded already, by id."""
EntityChange = tuple[bytes, bytes, bytes]
"""A changed entity: its key in the table, its stored form, and its framed change."""


class FoldOutcome(Protocol):
    """Receives the results of a fold that are not in the tables."""

    def changed(self, partition: int, changes: Sequence[EntityChange]) -> None:
        """Some entities changed; in the order of `.changes`."""

    def folded(self, partition: int, entities: int, observations: int, late: int, reopened: int) -> None:
        """Report the numbers of entities and of distinct observations that were folded for the first time.

        Args:
            late: The number of these observations with an order key below one that was folded earlier.
            reopened: How often an entity was folded again from nothing.
        """


class NotFolded(SchemaError):
    """A custom reducer failed on an observation.

    Attributes:
        definition: The offset of its type's definition in `.schemas`.
    """

    def __init__(self, problem: str, definition: int) -> None:
        super().__init__(problem)
        self.definition = definition


@dataclass(slots=True)
class _Touched:
    """An entity whose part of the batch is being folded.

    Attributes:
        added: The added elements by order key, in log order.
        key: The key of its state.
        size: The approximate size of the state in bytes.
    """

    entity: Entity
    key: bytes
    prefix: bytes
    hash_before: bytes | None
    size: int
    added: dict[bytes, Seen] = field(default_factory=dict)
    steps: list[ChangeStep] = field(default_factory=list)
    late: int = 0
    reopened: int = 0


class _NotedChanges:
    """Adds the changes of some entities of a batch to those of the others, which are reported together."""

    def __init__(self, outcome: FoldOutcome, changes: Mapping[int, list[EntityChange]]) -> None:
        self.folded = outcome.folded
        self._changes = changes

    def changed(self, partition: int, changes: Sequence[EntityChange]) -> None:
        self._changes[partition].extend(changes)


class BatchFold:
    """Folds into one database, by the definitions below an offset of `.schemas`, or by all definitions.

    `read` reads the log that is folded. Not thread-safe.

    Attributes:
        kernel_records: The number of records that the kernel folded.
    """

    def __init__(self, database: Database, registry: Registry, read: ReadRecords, below: int | None = None) -> None:
        self.gaps: Gaps = {}
        self._database = database
        self._read = read
        self._registry = registry
        self._folds = Folds(registry, below)
        self._unindexed: dict[str, list[Record]] = {}
        self._kernel = find_kernel().kernel
        self.kernel_records = 0

    def fold_below(self, schemas: int) -> None:
        """From now on fold by the definitions below this offset of `.schemas`."""
        self._folds = Folds(self._registry, schemas)

    def fold(
        self,
        arrived: Sequence[CheckedRecord],
        write: WriteSet,
        outcome: FoldOutcome,
        through: Mapping[int, int] | None = None,
    ) -> None:
        """Fold records and put what they change into `write`.

        Args:
            arrived: The records, in log order.
            write: The write of the batch.
            outcome: Receives the changes and counts.
            through: The batch's next offset by partition, if the batch also has other records.

        Raises:
            NotFolded: A custom reducer fails on a record.
        """
        if through is None:
            through = {record.partition: record.offset + 1 for record, _ in arrived}
        given = None if self._kernel is None else self._kernel.given(list(arrived))
        decoded = partial(_decoded, arrived)
        if given is not None and self._fold_by_kernel([given], decoded, through, write, outcome):
            return
        self._fold_all_by_python([record for record, _ in arrived], decoded, through, write, outcome)

    def fold_decided(
        self, decided: Sequence[DecidedRecords], through: Mapping[int, int], write: WriteSet, outcome: FoldOutcome,
        decoded: Decoded = dict,
    ) -> None:  # fmt: skip
        """Like `fold`, of observations that the kernel keeps.

        Args:
            decided: The observations, in log order; all of them are plain.
            through: The batch's next offset by partition.
            write: The write of the batch.
            outcome: Receives the changes and counts.
            decoded: Returns those that are decoded already.

        Raises:
            NotFolded: A custom reducer fails on a record.
        """
        if not self._fold_by_kernel(decided, decoded, through, write, outcome):
            kept = [each for found in decided for each in checked_records(found) if each is not None]
            self._fold_all_by_python([record for record, _ in kept], decoded, through, write, outcome)

    def _fold_all_by_python(
        self, records: Iterable[Record], decoded: Decoded, through: Mapping[int, int], write: WriteSet,
        outcome: FoldOutcome,
    ) -> None:  # fmt: skip
        grouped: dict[str, list[Record]] = {}
        for record in records:
            grouped.setdefault(record.entity, []).append(record)
        places = all_placed(list(grouped))
        stored = self._database.multi_get("state", places)
        self._fold_by_python(grouped, places, stored, decoded(), through, write, outcome)

    def _fold_by_kernel(
        self, batch: Sequence[DecidedRecords], decoded: Decoded, through: Mapping[int, int], write: WriteSet,
        outcome: FoldOutcome,
    ) -> bool:  # fmt: skip
        """Fold a batch by the kernel, and the entities that it leaves by Python.

        Args:
            batch: The batch's records.
            decoded: Returns the observations that are decoded already.

        Returns:
            False if there is no kernel, or it panicked: nothing is done.
        """
        kernel = self._kernel
        if kernel is None:
            return False
        groups = kernel.grouped(batch)
        if groups is None:
            return False
        places = groups.keys()
        stored = self._database.multi_get("state", places)
        timeline = None if self.gaps else partial(self._database.multi_get, "timeline")
        found = fold_groups(kernel, self._folds, groups, places, stored, through, write, timeline)
        if found is None:
            return False
        self.kernel_records += found.records
        changed = {partition: changes for partition, (changes, _) in zip(through, found.partitions, strict=True)}
        for partition, (_, (entities, observations, late)) in zip(through, found.partitions, strict=True):
            if observations:
                outcome.folded(partition, entities, observations, late, 0)
        if found.left:
            noted = _NotedChanges(outcome, changed)
            each = [[new_tuple(Record, parts) for parts in records] for records in groups.records(found.left)]
            grouped = {records[0].entity: records for records in each}
            some = [places[number] for number in found.left], [stored[number] for number in found.left]
            self._fold_by_python(grouped, *some, decoded(), through, write, noted)
            order = {key: number for number, key in enumerate(places)}
            for changes in changed.values():
                changes.sort(key=lambda change: order[change[0]])
        for partition, changes in changed.items():
            if changes:
                outcome.changed(partition, changes)
        return True

    def _fold_by_python(
        self, grouped: Mapping[str, Sequence[Record]], places: Sequence[bytes], stored: Sequence[bytes | None],
        decoded: Mapping[bytes, Observation], through: Mapping[int, int], write: WriteSet, outcome: FoldOutcome,
    ) -> None:  # fmt: skip
        """Fold the records of some entities.

        Args:
            grouped: The records by entity, in log order.
            places: The keys of the entities' states.
            stored: These states.
            decoded: Observations that are decoded already, by id.
        """
        if self.gaps:
            self._look_into_gaps(grouped, stored, decoded)
        folds: dict[str, TypeFold] = {}
        for key, packed, (name, records) in zip(places, stored, grouped.items(), strict=True):
            # Each state is unpacked just before its fold, while it is still in the processor's cache.
            entity = _entity(name, packed)
            touched = _Touched(entity, key, keys.entity_prefix(name), entity.state_hash or None, len(packed or b""))
            type_name = type_of(name)
            type_fold = folds.get(type_name)
            if type_fold is None:
                type_fold = folds[type_name] = self._fold_of(name)
            for record in records:
                self._fold_one(type_fold, touched, record, self._observation(record, decoded), write)
            if touched.steps:
                partition = records[0].partition
                self._finish(type_fold, touched, partition, through[partition], write, outcome)

    def _observation(self, record: Record, decoded: Mapping[bytes, Observation]) -> Observation:
        """Return a record's observation. decoded: those that are decoded already, by id."""
        return decoded.get(record.id) or observation_in(self._registry, record)

    def _fold_of(self, name: str) -> TypeFold:
        try:
            return self._folds.of_entity(name)
        except SchemaError as error:
            if not self._registry.versions(type_of(name)):
                raise
            # The observation is valid: a process with the custom reducer's code can fold it.
            raise StorageError(f"{name} cannot be folded by this process: {error}") from error

    def _fold_one(
        self, type_fold: TypeFold, touched: _Touched, record: Record, observation: Observation, write: WriteSet
    ) -> None:
        q = order_key(observation, record.id)
        entity = touched.entity
        if not entity.dedup_state.certainly_new(q) and self._is_known(touched, q):
            return
        seen = new_tuple(Seen, (record.offset, q, observation))
        touched.late += q < entity.dedup_state.greatest
        try:
            touched.entity, mutations = type_fold.fold.step(entity, seen, lambda: self._history(touched))
        except SchemaError as error:
            problem = f"{entity.name}: observation {record.id.hex()} cannot be folded: {error}"
            raise NotFolded(problem, type_fold.version.offset) from error
        touched.added[q] = seen
        touched.reopened += touched.entity is not entity
        index(record, touched.prefix, q, bool(observation.retracts), write)
        version = touched.entity.version
        if version >= FIRST and (touched.entity is not entity or is_due(version, touched.size)):
            touched.size = self.checkpoint(type_fold, touched.entity, write)
        touched.steps.append(
            new_tuple(ChangeStep, (record.offset, version, record.id, observation.observed_at, record.recorded_at,
                             observation.source, mutations))
        )  # fmt: skip

    def checkpoint(self, type_fold: TypeFold, entity: Entity, write: WriteSet) -> int:
        """Store a checkpoint of the entity; returns its size in bytes."""
        prefix, offset = keys.entity_prefix(entity.name), entity.dedup_state.highest_offset
        value = checkpoint_value(entity)
        write.put("checkpoints", keys.checkpoint_key(prefix, offset, type_fold.version.offset), value)
        return len(value)

    def _is_known(self, touched: _Touched, q: bytes) -> bool:
        if q in touched.added or q[-32:] in touched.entity.dedup_state.last_ids:
            return True
        if self._database.get("timeline", touched.prefix + q) is not None:
            return True
        return any(record.id == q[-32:] for record in self._in_gaps(touched.entity.name))

    def _history(self, touched: _Touched) -> Iterator[Seen]:
        yield from self.history(touched.entity.name)
        yield from touched.added.values()

    def history(self, entity: str) -> list[Seen]:
        """An entity's distinct observations in log order, from the indexes and their gaps."""
        found = {seen.id: seen for seen in stored_history(self._database, self._registry, entity)}
        for record in self._in_gaps(entity):
            if record.id not in found:
                observation = observation_in(self._registry, record)
                found[record.id] = Seen(record.offset, order_key(observation, record.id), observation)
        return sorted(found.values(), key=lambda seen: seen.offset)

    def _look_into_gaps(
        self,
        grouped: Mapping[str, Sequence[Record]],
        stored: Sequence[bytes | None],
        decoded: Mapping[bytes, Observation],
    ) -> None:
        """Read the gaps of the indexes for the entities whose records may be repeats, in one pass."""
        doubtful = []
        for (name, records), packed in zip(grouped.items(), stored, strict=True):
            dedup_state = _entity(name, packed).dedup_state
            keys_of_records = (order_key(self._observation(each, decoded), each.id) for each in records)
            if not all(map(dedup_state.certainly_new, keys_of_records)):
                doubtful.append(name)
        self._unindexed = records_in(self._read, self.gaps, doubtful) if doubtful else {}

    def _in_gaps(self, entity: str) -> list[Record]:
        if not self.gaps:
            return []
        found = self._unindexed.get(entity)
        return records_in(self._read, self.gaps, [entity])[entity] if found is None else found

    def _finish(
        self,
        type_fold: TypeFold,
        touched: _Touched,
        partition: int,
        through: int,
        write: WriteSet,
        outcome: FoldOutcome,
    ) -> None:
        entity = touched.entity
        before = touched.steps[0].version - 1
        outcome.folded(partition, not before, len(touched.steps), touched.late, touched.reopened)
        entity.state_hash = hash_state(type_fold.fold, entity)
        state = pack(entity)
        write.put("state", touched.key, state)
        parts = (entity.name, type_fold.version.definition.fingerprint, before, entity.version, touched.hash_before,
                 entity.state_hash, through, False, touched.steps)  # fmt: skip
        outcome.changed(partition, [(touched.key, state, type_fold.changes.encode(new_tuple(Change, parts)))])


def _decoded(arrived: Sequence[CheckedRecord]) -> dict[bytes, Observation]:
    """Return the observations that are decoded already, by id."""
    return {record.id: observation for record, observation in arrived if observation is not None}


def _entity(name: str, packed: bytes | None) -> Entity:
    return Entity(name) if packed is None else unpack(name, packed)


def stored_history(database: Database, registry: Registry, entity: str) -> Iterator[Seen]:
    """Yield an entity's distinct observations in log order, from its arrivals and timeline.

    Args:
        database: The table.
        registry: The log's types, which decode them.
        entity: Its name, `TYPE/ID`.

    Raises:
        CorruptionError: The timeline lacks an observation that has an arrival.
    """
    prefix = keys.entity_prefix(entity)
    arrivals = [keys.arrival_of(*row) for row in database.scan("arrivals", prefix, keys.after_prefix(prefix))]
    values = database.multi_get("timeline", [prefix + arrival.q for arrival in arrivals])
    for arrival, value in zip(arrivals, values, strict=True):
        if value is None:
            raise CorruptionError(
                f"the timeline of {entity} lacks the observation at offset {arrival.offset}; run refold verify"
            )
        yield Seen(arrival.offset, arrival.q, registry.decode(keys.timeline_of(value)[2]))


def states_of_type(database: Database, type_name: str) -> Iterator[Row]:
    """(key, encoded) of a type's entities."""
    prefix = f"{type_name}/"
    return (row for row in database.scan("state") if keys.entity_of(row[0]).startswith(prefix))


def require_foldable(database: Database, tables: BatchFold, type_fold: TypeFold) -> None:
    """Check that a new definition's custom reducers fold every existing entity of its type.

    Args:
        database: The table.
        tables: Its writer.
        type_fold: The new definition's fold.

    Raises:
        SchemaError: A custom reducer fails; the message names the entity.
    """
    definition = type_fold.version.definition
    if all(field.reducer != "custom" for field in definition.fields.values()):
        return
    for key, _ in states_of_type(database, definition.name):
        name = keys.entity_of(key)
        try:
            type_fold.fold.from_nothing(name, tables.history(name))
        except SchemaError as error:
            raise SchemaError(f"{definition.name}: this version cannot fold {name}: {error}") from error


def fold_again(
    tables: BatchFold,
    type_fold: TypeFold,
    row: Row,
    partition: int,
    through: int,
    write: WriteSet,
    outcome: FoldOutcome,
) -> None:
    """Fold an entity by the definition and put its state; if its hash differs, report one change `redefined`.

    Args:
        through: The next offset of its partition.
    """
    name, before = keys.entity_of(row[0]), unpack(keys.entity_of(row[0]), row[1])
    after = type_fold.fold.from_nothing(name, tables.history(name))
    after.state_hash = hash_state(type_fold.fold, after)
    state = pack(after)
    write.put("state", row[0], state)
    if after.version >= FIRST:
        tables.checkpoint(type_fold, after, write)
    if after.state_hash == before.state_hash:
        return
    change = Change(
        name, type_fold.version.definition.fingerprint, after.version, after.version, before.state_hash,
        after.state_hash, through, True, (),
    )  # fmt: skip
    outcome.changed(partition, [(row[0], state, type_fold.changes.encode(change))])
