"""Entities as the log itself has them at a cut, with their history: for what changes alone do not tell.

One pass over the records of some entities of a partition, by look-ups where the log has indexes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from refold.avro.observation import type_of
from refold.reducers.entity import Entity
from refold.reducers.state import hash_state
from refold.sinks.port import EntityState, HistoryStep
from refold.sinks.states import state_of
from refold.streams.changes import Shown
from refold.streams.cut import Cut
from refold.streams.history import Observed, moments, seen_in
from refold.streams.log.port import LogPort, firsts
from refold.streams.table.folds import Folds, TypeFold

AT_ONCE = 500


class RecomputedEntity:
    """One entity at a cut: its state, and the rows of its history on request."""

    def __init__(self, log: LogPort, type_fold: TypeFold, entity: str, observed: Sequence[Observed]) -> None:
        self._log = log
        self._fold = type_fold
        self.entity = entity
        self._observed = observed

    @property
    def type(self) -> str:
        """The name of its type."""
        return type_of(self.entity)

    def state(self) -> EntityState:
        """The entity as it is at the cut."""
        fold, partition = self._fold.fold, self._log.partition_of(self.entity)
        found: Entity = fold.from_nothing(self.entity, [each.seen for each in self._observed])
        found.state_hash = hash_state(fold, found)
        return state_of(found, fold, self._fold.version.definition, partition, self._observed[-1].recorded_at)

    def history(self, shown: Shown, from_offset: int) -> Iterator[HistoryStep]:
        """What observations at an offset or behind it changed, in log order."""
        partition = self._log.partition_of(self.entity)
        for moment in moments(self._fold.fold, self.entity, self._observed):
            seen = moment.observed.seen
            if seen.offset >= from_offset and moment.mutations:
                said = seen.observation
                yield HistoryStep(
                    self.entity, moment.version, seen.id, partition, seen.offset, said.observed_at,
                    moment.observed.recorded_at, said.source, moment.mutations, shown,
                )  # fmt: skip


def told(log: LogPort, folds: Folds, names: Iterable[str], cut: Cut) -> Iterator[RecomputedEntity]:
    """Those of some entities that stand at a cut, some at a time."""
    waiting = iter(sorted(names, key=log.partition_of))
    while some := list(islice(waiting, AT_ONCE)):
        by_partition: dict[int, list[str]] = {}
        for name in some:
            by_partition.setdefault(log.partition_of(name), []).append(name)
        for partition, mine in by_partition.items():
            observed: dict[str, list[Observed]] = {}
            end = cut.offsets[partition]
            for record in firsts(log.records_among(partition, mine, end, lambda more: None)):
                found = Observed(seen_in(record, log.registry), record.recorded_at)
                observed.setdefault(record.entity, []).append(found)
            for name, each in observed.items():
                yield RecomputedEntity(log, folds.of_entity(name), name, each)
