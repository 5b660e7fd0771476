"""One entity through time: its distinct observations in log order, and the mutations each of them made.

History is a function of the log and of the cut's definitions: it is folded again when asked for, never stored.

A difference between two points is made of the same mutations, of one entity or of a whole log. Both sides are folded by
the later point's definitions, so every difference was observed. Between two points of the recorded clock only entities
with records between them are read. Their records are read many entities at a time: a log without an index passes over a
partition for each reading.
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
from refold.streams.changes import Row, Shown, rows
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort, Record, firsts, observation_in
from refold.streams.table.folds import Folds


class Observed(NamedTuple):
    """A distinct observation of one entity and when the log took it, in milliseconds."""

    seen: Seen
    recorded_at: int


class Moment(NamedTuple):
    """One observation, the version it made, and what it changed."""

    observed: Observed
    version: int
    mutations: Sequence[Mutation]


def seen_in(record: Record, registry: Registry) -> Seen:
    """The observation in a record."""
    observation = observation_in(registry, record)
    return Seen(record.offset, order_key(observation, record.id), observation)


def observed_below(log: LogPort, entity: str, cut: Cut) -> list[Observed]:
    """An entity's distinct observations below a cut, in log order; UnknownEntity where there is none."""
    records = firsts(log.entity_records(entity, cut.offsets[log.partition_of(entity)]))
    found = [Observed(seen_in(record, log.registry), record.recorded_at) for record in records]
    if not found:
        raise unknown(entity, cut)
    return found


def unknown(entity: str, cut: Cut) -> UnknownEntity:
    """The error that says so where nothing of an entity stands below a cut."""
    return UnknownEntity(f"{entity}: it has no observation before {cut.short}; `refold tail` shows what this log holds")


def fold_observed(fold: Fold, entity: str, observed: Sequence[Observed], observed_until: int | None) -> Entity:
    """The entity behind its observations."""
    return fold.from_nothing(entity, [each.seen for each in observed], observed_until)


def moments(fold: Fold, entity: str, observed: Sequence[Observed]) -> Iterator[Moment]:
    """Each observation with its mutations, in log order."""
    state = Entity(entity)
    folded: list[Seen] = []
    for each in observed:
        state, mutations = fold.step(state, each.seen, lambda: folded)
        folded.append(each.seen)
        yield Moment(each, state.version, mutations)


AT_ONCE = 2_000


def difference(log: LogPort, a: Cut, b: Cut, entity: str | None, *, python: bool) -> list[Row]:
    """The rows that lead from `a` to `b`, by entity; UnknownEntity when the one asked for stands at neither."""
    folds = Folds(log.registry, max(a.schemas, b.schemas))
    if entity is not None:
        partition = log.partition_of(entity)
        further = a if a.offsets[partition] > b.offsets[partition] else b
        return _of_entity(log, folds, a, b, entity, observed_below(log, entity, further), python)
    names = iter(sorted(_candidates(log, a, b)))
    found: list[Row] = []
    while some := list(islice(names, AT_ONCE)):
        observed = _observed(log, a, b, some)
        for name in some:
            with suppress(UnknownEntity):  # what is recorded of it was observed after both points' times
                found += _of_entity(log, folds, a, b, name, observed[name], python)
    return found


def _candidates(log: LogPort, a: Cut, b: Cut) -> set[str]:
    by_recorded = a.observed_until is None and b.observed_until is None
    names: set[str] = set()
    for partition in a.offsets:
        low, high = sorted((a.offsets[partition], b.offsets[partition]))
        names.update(record.entity for record in log.read(partition, low if by_recorded else 0, high))
    return names


def _observed(log: LogPort, a: Cut, b: Cut, names: list[str]) -> dict[str, list[Observed]]:
    """The distinct observations of some entities below the further point, each entity's in log order."""
    by_partition: dict[int, set[str]] = {}
    for name in names:
        by_partition.setdefault(log.partition_of(name), set()).add(name)
    found: dict[str, list[Observed]] = {name: [] for name in names}
    for partition, some in by_partition.items():
        end = max(a.offsets[partition], b.offsets[partition])
        for record in firsts(log.records_among(partition, some, end, lambda more: None)):
            found[record.entity].append(Observed(seen_in(record, log.registry), record.recorded_at))
    return found


def _of_entity(
    log: LogPort, folds: Folds, a: Cut, b: Cut, name: str, observed: list[Observed], python: bool
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
    shown = Shown(type_fold.version.definition, python=python)
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
