"""What differs between two points: of one entity, or of a whole log.

Both sides are folded by the later point's definitions, so that what differs is what was observed. Between two points
of the recorded clock only entities with records between them are looked at.
"""

from __future__ import annotations

from refold.avro.errors import UnknownEntity
from refold.reducers.state import hash_state
from refold.streams.cut import Cut
from refold.streams.history import fold_observed, observed_below
from refold.streams.log.port import LogPort
from refold.streams.mutations import Row, Shown, rows
from refold.streams.table.folds import Folds


def difference(log: LogPort, a: Cut, b: Cut, entity: str | None, *, python: bool) -> list[Row]:
    """The rows that lead from `a` to `b`, by entity; UnknownEntity when the one asked for stands at neither."""
    folds = Folds(log.registry, max(a.schemas, b.schemas))
    names = [entity] if entity is not None else sorted(_candidates(log, a, b))
    found: list[Row] = []
    for name in names:
        found += _of_entity(log, folds, a, b, name, python)
    return found


def _candidates(log: LogPort, a: Cut, b: Cut) -> set[str]:
    by_recorded = a.observed_until is None and b.observed_until is None
    names: set[str] = set()
    for partition in a.offsets:
        low, high = sorted((a.offsets[partition], b.offsets[partition]))
        names.update(record.entity for record in log.read(partition, low if by_recorded else 0, high))
    return names


def _of_entity(log: LogPort, folds: Folds, a: Cut, b: Cut, name: str, python: bool) -> list[Row]:
    partition = log.partition_of(name)
    further = a if a.offsets[partition] > b.offsets[partition] else b
    observed = observed_below(log, name, further)
    type_fold = folds.of_entity(name)
    sides = []
    for cut in (a, b):
        below = [each for each in observed if each.seen.offset < cut.offsets[partition]]
        sides.append(fold_observed(type_fold.fold, name, below, cut.observed_until))
    before, after = sides
    if not before.version and not after.version:
        raise UnknownEntity(f"{name}: no observation of it stands at either point")
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
