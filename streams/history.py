"""One entity through time: its distinct observations in log order, and the mutations each of them made.

History is a function of the log and of the cut's definitions: it is folded again when asked for, never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from refold.avro.errors import UnknownEntity
from refold.avro.registry import Registry
from refold.reducers.cells import Mutation
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort, Record, firsts, observation_in


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
