"""One entity as of a cut, from a checkpoint near it if the log has one.

Known at (the recorded clock):
1. take the last checkpoint below the cut that was folded by the cut's definition;
2. fold the arrivals from there to the cut onto it, in log order.

True at T (the observed clock), among the records below the cut:
1. read the entity's arrivals: offsets and order keys, which begin with observed_at. Decode those that retract, and
   collect every retracted id;
2. live are those observed at or before T that none retracts; version counts them;
3. take the last checkpoint without an observation after T, and without one that a later arrival retracts;
4. fold the live ones after it onto it, in the order Q. Retracted observations are already left out.

Without a checkpoint, with a damaged one, or if an observation cannot fold directly, the entity is folded from nothing.

Several entities are read together in one pass over each partition, and each is folded from nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from refold.avro.errors import CorruptionError, SchemaError
from refold.avro.observation import ID_BYTES
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import SIGN, order_bound
from refold.reducers.state import hash_state
from refold.streams.cut import Cut
from refold.streams.history import fold_observed, observed_below, seen_in, unknown
from refold.streams.log.port import Checkpoint, IndexedObservation, LogReader, Record, firsts
from refold.streams.table.folds import Folds, TypeFold


def entity_at(log: LogReader, folds: Folds, entity: str, cut: Cut) -> Entity:
    """Return one entity as of a cut.

    Args:
        log: The log.
        folds: The definitions at the cut.
        entity: `type/id`.
        cut: The cut.

    Returns:
        The entity with its hash. Its dedup state is not valid. Its version is 0 if none of its observations was made by
        then.

    Raises:
        UnknownEntity: It has no record below the cut.
    """
    try:
        type_fold = folds.of_entity(entity)
    except SchemaError:  # UnknownEntity says more than an error of the type
        if next(log.arrivals(entity, cut.offsets[log.partition_of(entity)]), None) is None:
            raise unknown(entity, cut) from None
        raise
    if cut.observed_until is None:
        found = _entity_known_at(log, type_fold, entity, cut)
    else:
        found = _true(log, type_fold, entity, cut, cut.observed_until)
    found.state_hash = hash_state(type_fold.fold, found)
    return found


def entities_at(log: LogReader, folds: Folds, names: Iterable[str], cut: Cut) -> dict[str, Entity]:
    """Return entities as of a cut, read together.

    Args:
        log: The log.
        folds: The definitions at the cut.
        names: The entities, as `type/id`.
        cut: The cut.

    Returns:
        Those that have an observation at the cut, by name, in the given order; without hashes.
    """
    asked = list(dict.fromkeys(names))
    by_partition: dict[int, list[str]] = {}
    for name in asked:
        by_partition.setdefault(log.partition_of(name), []).append(name)
    records: dict[str, list[Record]] = {}
    for partition, some in by_partition.items():
        for record in firsts(log.records_among(partition, some, cut.offsets[partition], lambda more: None)):
            records.setdefault(record.entity, []).append(record)
    found: dict[str, Entity] = {}
    for name in asked:
        if name in records:
            fold = folds.of_entity(name).fold
            entity = fold.from_nothing(
                name, [seen_in(each, log.registry) for each in records[name]], cut.observed_until
            )
            if entity.version:
                found[name] = entity
    return found


def _entity_known_at(log: LogReader, type_fold: TypeFold, entity: str, cut: Cut) -> Entity:
    end = cut.offsets[log.partition_of(entity)]
    begin = _checkpoint(log, type_fold, entity, end)
    if begin is not None:
        further = [(each.q, each.offset) for each in log.arrivals(entity, end, begin.offset + 1)]
        found = _fold_onto(type_fold.fold, begin.entity, _observations_of(log, entity, further))
        if found is not None:
            return found
    return fold_observed(type_fold.fold, entity, observed_below(log, entity, cut), None)


def _true(log: LogReader, type_fold: TypeFold, entity: str, cut: Cut, until: int) -> Entity:
    # Two lists, and no object kept for each arrival: the garbage collector would search thousands of them.
    offsets: list[int] = []
    qs: list[bytes] = []
    retracting: list[IndexedObservation] = []
    end = cut.offsets[log.partition_of(entity)]
    for arrival in log.arrivals(entity, end):
        offsets.append(arrival.offset)
        qs.append(arrival.q)
        if arrival.retracts:
            retracting.append(arrival)
    if not offsets:
        raise unknown(entity, cut)
    bound = order_bound(max(-SIGN, min(until + 1, SIGN - 1)))
    retracted = _retracted(log, entity, retracting)

    def live_from(first: int) -> list[tuple[bytes, int]]:
        """The live arrivals from the one at this index on, as order keys and offsets, in log order."""
        places = [(q, offset) for q, offset in zip(qs[first:], offsets[first:], strict=True) if q < bound]
        return [place for place in places if place[0][-ID_BYTES:] not in retracted] if retracted else places

    later = next((offset for q, offset in zip(qs, offsets, strict=True) if q >= bound), end)
    begin = _checkpoint_without(log, type_fold, entity, later, _withdrawals(qs, offsets, retracted))
    if begin is not None:
        rest = sorted(live_from(bisect_right(offsets, begin.offset)))
        begin.entity.dedup_state.pending = set()
        found = _fold_onto(type_fold.fold, begin.entity, map(_without_retractions, _observations_of(log, entity, rest)))
        if found is not None:
            found.version = len(live_from(0)) if retracted else sum(map(bound.__gt__, qs))
            return found
    return type_fold.fold.from_nothing(entity, _observations_of(log, entity, live_from(0)))


def _retracted(log: LogReader, entity: str, retracting: Sequence[IndexedObservation]) -> dict[bytes, int]:
    """Every id that an arrival retracts, with the offset of the first such arrival."""
    found: dict[bytes, int] = {}
    for seen in _observations_of(log, entity, [(each.q, each.offset) for each in retracting]):
        for target in seen.observation.retracts:
            found.setdefault(target, seen.offset)
    return found


def _withdrawals(qs: Sequence[bytes], offsets: Sequence[int], retracted: dict[bytes, int]) -> list[tuple[int, int]]:
    """(offset of an arrival, offset of the first that retracts it) for arrivals that are retracted later."""
    if not retracted:
        return []
    places = ((offset, retracted.get(q[-ID_BYTES:], -1)) for q, offset in zip(qs, offsets, strict=True))
    return [(target, by) for target, by in places if target < by]


def _checkpoint_without(
    log: LogReader, type_fold: TypeFold, entity: str, end: int, withdrawals: Sequence[tuple[int, int]]
) -> Checkpoint | None:
    """The last checkpoint below an offset without an observation that is retracted only after it."""
    while (found := _checkpoint(log, type_fold, entity, end)) is not None:
        inside = [target for target, by in withdrawals if target <= found.offset < by]
        if not inside:
            return found
        end = min(inside)
    return None


def _checkpoint(log: LogReader, type_fold: TypeFold, entity: str, end: int) -> Checkpoint | None:
    """The checkpoint, or None if it is damaged: verify reports it, and the log still has its observations."""
    try:
        return log.checkpoint(entity, end, type_fold.version.offset)
    except CorruptionError:
        return None


def _observations_of(log: LogReader, entity: str, places: Sequence[tuple[bytes, int]]) -> list[Seen]:
    """The observations with these order keys and offsets, in order."""
    records = log.records_of(entity, [q for q, _ in places])
    decode = log.registry.decode
    return [Seen(offset, q, decode(record.data)) for (q, offset), record in zip(places, records, strict=True)]


def _without_retractions(seen: Seen) -> Seen:
    """An observation without its retractions."""
    if not seen.observation.retracts:
        return seen
    return seen._replace(observation=seen.observation._replace(retracts=()))


def _fold_onto(fold: Fold, entity: Entity, further: Iterable[Seen]) -> Entity | None:
    """Fold further observations onto the entity; None if one of them cannot be folded directly."""
    try:
        for seen in further:
            if fold.directly(entity, seen) is None:
                return None
    except SchemaError:  # a custom reducer may fail on assertions that a clear hides in a fold from nothing
        return None
    return entity
