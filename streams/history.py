"""The history of an entity: its distinct observations in log order, and the mutations that each made.

History is a function of the log and of the cut's definitions: it is computed on request, never stored.

A diff between two points consists of the same mutations, of one entity or of the whole log. Both sides are folded by
the later point's definitions, so every difference comes from an observation. Between two points of the recorded clock
only entities with records in between are read. Records are read for many entities at a time, because a log without an
index reads the whole partition each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from refold.avro.errors import UnknownEntity
from refold.avro.registry import Registry
from refold.reducers.cells import Mutation
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state
from refold.streams.changes import MutationFormatter, Row, rows
from refold.streams.cut import Cut
from refold.streams.log.port import LogReader, Record, firsts, observation_in
from refold.streams.table.folds import Folds


class RecordedObservation(NamedTuple):
    """A distinct observation of one entity, and its recorded_at in milliseconds since 1970."""

    seen: Seen
    recorded_at: int


class VersionChanges(NamedTuple):
    """One observation, the version it made, and its mutations."""

    observed: RecordedObservation
    version: int
    mutations: Sequence[Mutation]


def seen_in(record: Record, registry: Registry) -> Seen:
    """Decode the observation in a record."""
    observation = observation_in(registry, record)
    return Seen(record.offset, order_key(observation, record.id), observation)


def observed_below(log: LogReader, entity: str, cut: Cut) -> list[RecordedObservation]:
    """Return an entity's distinct observations below a cut, in log order.

    Raises:
        UnknownEntity: There is none.
    """
    records = firsts(log.entity_records(entity, cut.offsets[log.partition_of(entity)]))
    found = [RecordedObservation(seen_in(record, log.registry), record.recorded_at) for record in records]
    if not found:
        raise unknown(entity, cut)
    return found


def unknown(entity: str, cut: Cut) -> UnknownEntity:
    """The error for an entity without an observation below a cut."""
    return UnknownEntity(f"{entity}: it has no observation before {cut.short}; `refold tail` shows what this log holds")


def fold_observed(
    fold: Fold, entity: str, observed: Sequence[RecordedObservation], observed_until: int | None
) -> Entity:
    """Fold an entity from its observations.

    Args:
        fold: Its type's fold.
        entity: Its name, `TYPE/ID`.
        observed: Its distinct observations, in log order.
        observed_until: Leaves out observations made later, in microseconds; None for none.
    """
    return fold.from_nothing(entity, [each.seen for each in observed], observed_until)


def moments(fold: Fold, entity: str, observed: Sequence[RecordedObservation]) -> Iterator[VersionChanges]:
    """Yield each observation with its mutations, in log order.

    Args:
        fold: The type's fold.
        entity: Its name, `TYPE/ID`.
        observed: Its distinct observations, in log order.
    """
    state = Entity(entity)
    folded: list[Seen] = []
    for each in observed:
        state, mutations = fold.step(state, each.seen, lambda: folded)
        folded.append(each.seen)
        yield VersionChanges(each, state.version, mutations)


BATCH_ENTITIES = 2_000


def rows_between(log: LogReader, entity: str, after: Cut | None, last: Cut, *, python: bool) -> list[Row]:
    """Return the mutations of one entity, in log order.

    Args:
        log: The log.
        entity: `type/id`.
        after: Leave out what is below this cut; None for nothing.
        last: Leave out what is not below this cut. Of two observed-clock cuts the times of observation are compared.
        python: Whether values are Python objects; otherwise they are in JSON form.

    Raises:
        UnknownEntity: The entity has no record below `last`.
    """
    partition = log.partition_of(entity)
    observed = observed_below(log, entity, last)
    type_fold = Folds(log.registry, last.schemas).of_entity(entity)
    shown = MutationFormatter(type_fold.version.definition, python=python)
    found: list[Row] = []
    for moment in moments(type_fold.fold, entity, observed):
        seen = moment.observed.seen
        if after is not None and after.observed_until is None and seen.offset < after.offsets[partition]:
            continue
        if not _within(seen.observation.observed_at, after, last):
            continue
        found += rows(
            shown, entity, moment.mutations, by=seen.id, version=moment.version, partition=partition,
            offset=seen.offset, observed_at=seen.observation.observed_at,
            recorded_at=moment.observed.recorded_at, source=seen.observation.source,
        )  # fmt: skip
    return found


def _within(observed_at: int, after: Cut | None, last: Cut) -> bool:
    if last.observed_until is not None and observed_at > last.observed_until:
        return False
    return after is None or after.observed_until is None or observed_at > after.observed_until


def difference(log: LogReader, a: Cut, b: Cut, entity: str | None, *, python: bool) -> list[Row]:
    """Return the rows that lead from one cut to another, by entity.

    Args:
        log: The log.
        a: The first cut.
        b: The second cut.
        entity: The entity to compare; None for all.
        python: Whether values are Python objects; otherwise they are in JSON form.

    Raises:
        UnknownEntity: The given entity exists at neither cut.
    """
    folds = Folds(log.registry, max(a.schemas, b.schemas))
    if entity is not None:
        partition = log.partition_of(entity)
        further = a if a.offsets[partition] > b.offsets[partition] else b
        return _of_entity(log, folds, a, b, entity, observed_below(log, entity, further), python)
    names = iter(sorted(_candidates(log, a, b)))
    found: list[Row] = []
    while some := list(islice(names, BATCH_ENTITIES)):
        observed = _observed(log, a, b, some)
        for name in some:
            with suppress(UnknownEntity):  # its records were observed after both points' times
                found += _of_entity(log, folds, a, b, name, observed[name], python)
    return found


def _candidates(log: LogReader, a: Cut, b: Cut) -> set[str]:
    by_recorded = a.observed_until is None and b.observed_until is None
    names: set[str] = set()
    for partition in a.offsets:
        low, high = sorted((a.offsets[partition], b.offsets[partition]))
        names.update(record.entity for record in log.read(partition, low if by_recorded else 0, high))
    return names


def _observed(log: LogReader, a: Cut, b: Cut, names: list[str]) -> dict[str, list[RecordedObservation]]:
    """The distinct observations of some entities below the later point, in log order for each entity."""
    by_partition: dict[int, set[str]] = {}
    for name in names:
        by_partition.setdefault(log.partition_of(name), set()).add(name)
    found: dict[str, list[RecordedObservation]] = {name: [] for name in names}
    for partition, some in by_partition.items():
        end = max(a.offsets[partition], b.offsets[partition])
        for record in firsts(log.records_among(partition, some, end, lambda more: None)):
            found[record.entity].append(RecordedObservation(seen_in(record, log.registry), record.recorded_at))
    return found


def _of_entity(
    log: LogReader, folds: Folds, a: Cut, b: Cut, name: str, observed: list[RecordedObservation], python: bool
) -> list[Row]:
    partition = log.partition_of(name)
    type_fold = folds.of_entity(name)
    sides = []
    for cut in (a, b):
        below = [each for each in observed if each.seen.offset < cut.offsets[partition]]
        sides.append(fold_observed(type_fold.fold, name, below, cut.observed_until))
    before, after = sides
    if not before.version and not after.version:
        raise UnknownEntity(f"{name}: it has no observation at either point")
    if hash_state(type_fold.fold, before) == hash_state(type_fold.fold, after):
        return []
    last = observed[-1]
    mutations = type_fold.fold.differences(before, after, last.seen.id)
    shown = MutationFormatter(type_fold.version.definition, python=python)
    by_id = {each.seen.id: each for each in observed}
    found: list[Row] = []
    for mutation in mutations:
        cause = by_id.get(mutation.observation, last)
        found += rows(
            shown, name, [mutation], by=cause.seen.id, version=after.version, partition=partition,
            offset=cause.seen.offset, observed_at=cause.seen.observation.observed_at,
            recorded_at=cause.recorded_at, source=cause.seen.observation.source,
        )  # fmt: skip
    return found
