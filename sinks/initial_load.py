"""All entities at a cut with their history, for an empty sink or for types with a new definition.

1. States come from a rebuild.
2. History comes from the changes if the type never had another definition and each change is complete
   (states.is_exact).
3. History that cannot be derived from changes is computed from the log, entity by entity: in one pass over the records
   of some entities of a partition, or by lookups if the log has indexes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from refold.avro.definition import TypeDefinition
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.reducers.entity import Entity, unpack
from refold.reducers.state import hash_state
from refold.sinks.port import EntityState, HistoryStep, Load
from refold.sinks.states import is_exact, state_of
from refold.streams.change_reader import ChangeReader
from refold.streams.changes import Change, MutationFormatter
from refold.streams.cut import Cut
from refold.streams.history import RecordedObservation, moments, seen_in
from refold.streams.log.port import LogReader, firsts
from refold.streams.rebuild.partition import Progress
from refold.streams.rebuild.plan import limits_of
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.rebuild.result import Rebuilt
from refold.streams.table.folds import Folds, TypeFold

BATCH_ENTITIES = 500


class RecomputedEntity:
    """One entity at a cut: its state, and the rows of its history on request."""

    def __init__(
        self, log: LogReader, type_fold: TypeFold, entity: str, observed: Sequence[RecordedObservation]
    ) -> None:
        self._log = log
        self._fold = type_fold
        self.entity = entity
        self._observed = observed

    @property
    def type(self) -> str:
        """The name of its type."""
        return type_of(self.entity)

    def state(self) -> EntityState:
        """The entity at the cut."""
        fold, partition = self._fold.fold, self._log.partition_of(self.entity)
        found: Entity = fold.from_nothing(self.entity, [each.seen for each in self._observed])
        found.state_hash = hash_state(fold, found)
        return state_of(found, fold, self._fold.version.definition, partition, self._observed[-1].recorded_at)

    def history(self, shown: MutationFormatter, from_offset: int) -> Iterator[HistoryStep]:
        """The changes by observations at or after an offset, in log order."""
        partition = self._log.partition_of(self.entity)
        for moment in moments(self._fold.fold, self.entity, self._observed):
            seen = moment.observed.seen
            if seen.offset >= from_offset and moment.mutations:
                observation = seen.observation
                yield HistoryStep(
                    self.entity, moment.version, seen.id, partition, seen.offset, observation.observed_at,
                    moment.observed.recorded_at, observation.source, moment.mutations, shown,
                )  # fmt: skip


def recomputed(log: LogReader, folds: Folds, names: Iterable[str], cut: Cut) -> Iterator[RecomputedEntity]:
    """Yield the entities that exist at a cut, of the given names, read in groups.

    Args:
        log: The log.
        folds: The folds of the types.
        names: The entities, `TYPE/ID`.
        cut: The cut.
    """
    waiting = iter(sorted(names, key=log.partition_of))
    while some := list(islice(waiting, BATCH_ENTITIES)):
        by_partition: dict[int, list[str]] = {}
        for name in some:
            by_partition.setdefault(log.partition_of(name), []).append(name)
        for partition, mine in by_partition.items():
            observed: dict[str, list[RecordedObservation]] = {}
            end = cut.offsets[partition]
            for record in firsts(log.records_among(partition, mine, end, lambda more: None)):
                found = RecordedObservation(seen_in(record, log.registry), record.recorded_at)
                observed.setdefault(record.entity, []).append(found)
            for name, each in observed.items():
                yield RecomputedEntity(log, folds.of_entity(name), name, each)


TIMED_BATCH_ENTITIES = 50_000


def definitions_at(registry: Registry, schemas: int) -> dict[str, TypeDefinition]:
    """The definition of each type below an offset of `.schemas`, by name."""
    return {name: registry.newest(name, schemas).definition for name in registry.fingerprints(schemas)}


def load_of(
    log: LogReader, before: Cut | None, cut: Cut, types: frozenset[str] | None, *, history: bool,
    progress: Progress = lambda more, total: None,
) -> Load:  # fmt: skip
    """Rebuild the entities for a sink's load; the rebuild is complete on return.

    Args:
        log: The log.
        before: The position that the load follows; None if the store is empty.
        cut: The cut.
        types: Only entities of these types; None for all.
        history: Whether the load has history.
        progress: Called with the number of further records read, and the present estimate of the total.

    Returns:
        The load.
    """
    rebuilt = rebuild(log, cut, progress, limits=limits_of(log.registry, cut.schemas, types))
    loading = _Loading(log, cut, rebuilt, types)
    return Load(
        before, cut, types, loading.entities, loading.history if history else lambda: iter(()), rebuilt.entities,
        definitions_at(log.registry, cut.schemas),
    )  # fmt: skip


class _Loading:
    """One load's entities and history."""

    def __init__(self, log: LogReader, cut: Cut, rebuilt: Rebuilt, types: frozenset[str] | None) -> None:
        self._log = log
        self._cut = cut
        self._rebuilt = rebuilt
        self._types = types
        self._folds = Folds(log.registry, cut.schemas)
        self._shown: dict[str, MutationFormatter] = {}

    def entities(self) -> Iterator[EntityState]:
        """Each entity with the time of its latest observation; times are looked up for many entities at once."""
        stored = self._rebuilt.rows()
        while some := [unpack(*each) for each in islice(stored, TIMED_BATCH_ENTITIES)]:
            times = self._times(some)
            for entity in some:
                type_fold, partition = self._folds.of_entity(entity.name), self._log.partition_of(entity.name)
                recorded_at = times[partition][entity.dedup_state.highest_offset]
                yield state_of(entity, type_fold.fold, type_fold.version.definition, partition, recorded_at)

    def _times(self, entities: Iterable[Entity]) -> dict[int, dict[int, int]]:
        """recorded_at by partition and offset."""
        wanted: dict[int, set[int]] = {}
        for each in entities:
            wanted.setdefault(self._log.partition_of(each.name), set()).add(each.dedup_state.highest_offset)
        return {partition: self._times_in(partition, offsets) for partition, offsets in wanted.items()}

    def _times_in(self, partition: int, offsets: set[int]) -> dict[int, int]:
        if self._log.is_indexed:
            return {each: self._log.recorded_below(partition, each + 1) for each in offsets}
        records = self._log.read(partition, min(offsets), max(offsets) + 1)
        return {record.offset: record.recorded_at for record in records if record.offset in offsets}

    def history(self) -> Iterator[HistoryStep]:
        """Every mutation below the cut; for redefined types entity by entity."""
        again = {name for name, versions in self._versions().items() if versions > 1}
        for ruling in self._log.registry.rulings.all():  # changes may say what is set aside, or lack what is not
            again.update([type_of(ruling.entity)] if ruling.entity else self._versions())
        if self._types is not None:
            again |= self._types
        for partition in self._cut.offsets if self._types is None else ():
            yield from self._changed(partition, again)
        names = (name for name, _ in self._rebuilt.rows() if type_of(name) in again)
        while some := list(islice(names, BATCH_ENTITIES)) if again else []:
            for each in recomputed(self._log, self._folds, some, self._cut):
                yield from each.history(self._shown_of(each.type), 0)

    def _versions(self) -> Mapping[str, int]:
        """The number of definitions of each type up to the cut."""
        count: dict[str, int] = {}
        for version in self._log.registry:
            if version.offset < self._cut.schemas:
                count[version.definition.name] = count.get(version.definition.name, 0) + 1
        return count

    def _changed(self, partition: int, without: set[str]) -> Iterator[HistoryStep]:
        """The history of a partition from its changes, and from the log where changes are incomplete."""
        reader, end = ChangeReader(self._log), self._cut.offsets[partition]
        inexact: dict[str, set[int]] = {}
        for record in self._log.read_changes(partition, 0):
            change = reader.read(record)
            if change.steps and change.steps[0].offset >= end:
                break
            type_name = type_of(change.entity)
            if type_name in without:
                continue
            if is_exact(change, self._folds.of(type_name).version.definition):
                yield from change_history(self._shown_of(type_name), change, partition, end)
                continue
            inexact.setdefault(change.entity, set()).update(step.version for step in change.steps)
            if len(inexact) == BATCH_ENTITIES:
                yield from self._steps(inexact)
                inexact.clear()
        yield from self._steps(inexact)

    def _steps(self, versions: Mapping[str, set[int]]) -> Iterator[HistoryStep]:
        for each in recomputed(self._log, self._folds, versions, self._cut):
            wanted = versions[each.entity]
            yield from (step for step in each.history(self._shown_of(each.type), 0) if step.version in wanted)

    def _shown_of(self, type_name: str) -> MutationFormatter:
        found = self._shown.get(type_name)
        if found is None:
            found = self._shown[type_name] = MutationFormatter(
                self._folds.of(type_name).version.definition, python=False
            )
        return found


def change_history(
    shown: MutationFormatter, change: Change, partition: int, end: int | None = None
) -> Iterator[HistoryStep]:
    """Yield the history in one change.

    Args:
        shown: The conversion of the definition's values to JSON.
        change: The change.
        partition: The partition of its entity.
        end: Leave out observations from this offset on; None for no limit.
    """
    entity = change.entity
    for step in change.steps:
        if step.mutations and (end is None or step.offset < end):
            yield HistoryStep(
                entity, step.version, step.observation, partition, step.offset, step.observed_at, step.recorded_at,
                step.source, step.mutations, shown,
            )  # fmt: skip
