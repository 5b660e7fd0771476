"""Advance a partition's fold: records in batches, definitions between batches (streams/log/kafka/fold_position.py).

A definition at an offset of `.schemas` is applied once the records before it are folded and emitted:
1. A definition of a new type, or of a held one (streams/held_types.py), or a hole, changes nothing: the next commit
   records that it is applied.
2. Otherwise the entities of its type are folded again by it, a limited number at a time, in the order of the table.
   Each entity whose hash changes gives one change `redefined`. Each such overlay is emitted and written like a batch,
   and records how far it went.
3. The last of these overlays records that the definition is applied.
No record is folded in between. While the indexes are still being filled, this waits, because each entity's history is
read. A process that ends continues at the emitted point: nothing is emitted twice.

Following the log without emitting has the same three parts: whole definitions, while the target point has more of them;
records; the part of a definition that the target point is in. The order of definitions and records on the way does not
matter: a state is a function of observations and definition, and the table only has to equal the one at that point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from refold.avro.errors import SchemaError, StorageError
from refold.avro.registry import Registry, TypeVersion
from refold.reducers.registered import NotRegistered
from refold.streams.held_types import held, problem_of
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.port import LogReader, Record, observation_in
from refold.streams.table.checked import CheckedRecord
from refold.streams.table.folds import TypeFold
from refold.streams.worker.partition_table import PartitionTable, rows_by_place
from refold.streams.worker.pending_commit import Overlay

RECORDS_AT_ONCE = 2_000
FILLING_POLL_S = 0.05


def apply_without_fold(table: PartitionTable, registry: Registry, below: int) -> TypeVersion | None:
    """Apply definitions that change no entity.

    Args:
        table: The partition's table.
        registry: The log's definitions.
        below: The offset of `.schemas` to stop at.

    Returns:
        The first definition that needs a fold; the table stops before it. None if there is none below the offset.
    """
    schemas = table.position.at.schemas
    found = None
    while found is None and schemas < below:
        version = registry.at(schemas)
        if version is not None and _takes_something(registry, version):
            found = version
        else:
            schemas += 1
    if schemas != table.position.at.schemas:
        table.apply_up_to(schemas)
    return found


def _takes_something(registry: Registry, version: TypeVersion) -> bool:
    """Whether there may be entities to fold again by a version.

    False for a type's first version, while the type is held, and for a version that cannot be folded here and was set
    aside since: then the version before it is registered again.
    """
    name = version.definition.name
    if not registry.is_in_effect(version, len(registry)) and problem_of(version) is not None:
        return False
    return registry.versions(name)[0] is not version and held(registry, name, version.offset + 1) is None


def require_folded(table: PartitionTable, registry: Registry) -> None:
    """Check that the table has no entities of a held type.

    If only a version that is still to be applied can be folded, its entities are first folded again by that one.

    Raises:
        StorageError: It has some: another process had the type's code.
    """
    for name in sorted({each.definition.name for each in registry if each.definition.has_code}):
        problem = held(registry, name)
        if problem is not None and rows_by_place(table.database, name, 0, None, 1)[0]:
            raise StorageError(f"the table has entities of {name} that this process cannot fold: {problem}")


def redefinition_overlay(table: PartitionTable, version: TypeVersion, below: int | None = None) -> Overlay:
    """Fold the next entities again by a definition that is being applied.

    Args:
        table: The partition's table.
        version: The definition.
        below: A place at which to stop in any case; None for none.

    Returns:
        The overlay. It records how far the definition is applied.

    Raises:
        StorageError: This process cannot apply the definition.
    """
    at = table.position.at
    try:
        type_fold = TypeFold(version)
        entities_max = table.limits.refolded_entities
        rows, place = rows_by_place(table.database, version.definition.name, at.place, below, entities_max)
        to = PartitionPoint(at.offset, version.offset + 1) if place is None else at._replace(place=place)
        return table.fold_again(type_fold, rows, to)
    except NotRegistered as error:
        raise StorageError(
            f"a definition of {version.definition.name} cannot be applied by this process: {error}. If it is not "
            f"yours, set it aside with refold quarantine add 0={version.offset}"
        ) from error
    except SchemaError as error:
        raise StorageError(
            f"a definition of {version.definition.name} cannot be applied by this process: {error}"
        ) from error


def follow(table: PartitionTable, log: LogReader, to: PartitionPoint, check_cancelled: Callable[[], None]) -> int:
    """Fold the log from the table's point to a later one, and emit nothing.

    Args:
        table: The partition's table.
        log: The log.
        to: The later point.
        check_cancelled: Raises to stop.

    Returns:
        The number of offsets that were folded.
    """
    start = table.position.at.offset
    _apply_definitions(table, log, PartitionPoint(to.offset, to.schemas), check_cancelled)
    records = log.read(table.position.partition, table.position.at.offset, to.offset)
    while table.position.at.offset < to.offset:
        check_cancelled()
        _fold_some(table, log, records, to.offset)
    _apply_definitions(table, log, to, check_cancelled)
    return to.offset - start


def _apply_definitions(
    table: PartitionTable, log: LogReader, to: PartitionPoint, check_cancelled: Callable[[], None]
) -> None:
    """Apply definitions up to a point."""
    while table.position.at[1:] < to[1:]:
        version = apply_without_fold(table, log.registry, to.schemas if to.place == 0 else to.schemas + 1)
        if version is None:
            return
        while table.is_filling:
            check_cancelled()
            time.sleep(FILLING_POLL_S)
        while table.position.at.schemas == version.offset and table.position.at[1:] < to[1:]:
            check_cancelled()
            table.write(redefinition_overlay(table, version, to.place if version.offset == to.schemas else None))


def _fold_some(table: PartitionTable, log: LogReader, records: Iterator[Record], end: int) -> None:
    some = list(islice(records, RECORDS_AT_ONCE))
    arrived = [CheckedRecord(each, observation_in(log.registry, each)) for each in some]
    if len(some) == RECORDS_AT_ONCE:
        through, recorded_at = some[-1].offset + 1, some[-1].recorded_at
    else:  # records with verdicts may follow the last one, and their times count
        through, recorded_at = end, log.recorded_below(table.position.partition, end)
    table.write(table.fold(arrived, through, recorded_at))


def store_deadletters_offset(table: PartitionTable, deadletters: int) -> None:
    """Store the next offset of `.deadletters` at the table's point."""
    if table.position.deadletters != deadletters:
        overlay = table.empty_overlay()
        overlay.stored = replace(overlay.stored, deadletters=deadletters)
        table.write(overlay)
