"""The plan of a rebuild: what to rebuild (limits), from where (an epoch) to where (a cut), in each partition.

A plan is made once (`plan_rebuild`) and passed to all code that rebuilds partitions, child processes included.

Limits of a view: entities by type or by name, and closed entities by when they closed. `types` and `entities` together
say which entities are wanted; without both, all are. `since` excludes entities that closed before it: those of a type
with `refold.closed_by` whose closing field is set at the cut, by an observation that was observed before `since`. It
never excludes an open entity, or one of a type that does not close.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from refold.avro.envelope import check_entity
from refold.avro.errors import InputError, SchemaError
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.streams.cut import Cut, parse_cut
from refold.streams.log.port import LogReader
from refold.streams.partitioner import partition_of
from refold.streams.rebuild.memory import DEFAULT_MEMORY, RebuildMemory
from refold.streams.snapshots.closed_entities import ClosingRule, closed_at, closings, month_of
from refold.streams.snapshots.manifest import OFFSET_MAX, Epoch
from refold.streams.snapshots.store import EpochReader

MONTH = re.compile(r"\d{4}-\d{2}\Z")


@dataclass(frozen=True, slots=True)
class RebuildLimits:
    """The limits of a view.

    Attributes:
        types, entities: The wanted ones, by name; None for all.
        since: Leave out entities that were closed before this time, in microseconds since 1970; None for no limit.
        closing: How each type closes at the cut, by type name.
    """

    types: frozenset[str] | None = None
    entities: frozenset[str] | None = None
    since: int | None = None
    closing: Mapping[str, ClosingRule] = field(default_factory=dict)

    @property
    def by_name_alone(self) -> bool:
        """Whether the names of all wanted entities are known."""
        return self.types is None and self.entities is not None

    def reads(self, type_name: str, month: str) -> bool:
        """Whether wanted entities can be among the closed ones of a type and month."""
        if self.types is not None and type_name not in self.types:
            return False
        first = "" if self.since is None else month_of(self.since)
        return not (MONTH.match(first) and MONTH.match(month)) or month >= first

    def wants(self, name: str) -> bool:
        """Whether an entity is wanted, by its name."""
        return self.of_type(name) or (self.entities is not None and name in self.entities)

    def of_type(self, name: str) -> bool:
        """Whether an entity is wanted because of its type."""
        if self.types is None:
            return self.entities is None
        return type_of(name) in self.types

    def keeps(self, name: str, packed: bytes) -> bool:
        """Whether a wanted entity, as it is at the cut, was not closed before `since`."""
        if self.since is None:
            return True
        closed = closed_at(self.closing, name, packed)
        return closed is None or closed >= self.since


def limits_of(
    registry: Registry, schemas: int, types: Iterable[str] | None = None, entities: Iterable[str] | None = None,
    since: int | None = None,
) -> RebuildLimits | None:  # fmt: skip
    """Return the limits of a view.

    Args:
        registry: The log's definitions.
        schemas: The cut's offset of `.schemas`.
        types: Only entities of these types.
        entities: Only these entities, as `type/id`.
        since: Without entities that were closed before this time, in microseconds since 1970.

    Returns:
        The limits; None if nothing is limited.

    Raises:
        InputError: A list is empty, or an entity is not of the form `type/id`.
        SchemaError: A type is unknown.
    """
    if types is None and entities is None and since is None:
        return None
    wanted_types = _name_set("types", types)
    wanted_entities = _name_set("entities", entities)
    for name in sorted(wanted_types or ()):
        _require_known(registry, name, name)
    for name in sorted(wanted_entities or ()):
        _require_known(registry, type_of(check_entity(name)), name)
    return RebuildLimits(wanted_types, wanted_entities, since, {} if since is None else closings(registry, schemas))


def _name_set(what: str, given: Iterable[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    names = frozenset((given,) if isinstance(given, str) else given)
    if not names:
        raise InputError(f"{what}: name at least one, or leave {what} out to get all")
    return names


def _require_known(registry: Registry, type_name: str, asked: str) -> None:
    known = registry.fingerprints()
    if type_name not in known:
        shown = ", ".join(sorted(known)) or "none yet"
        raise SchemaError(f"{asked}: nothing of the type {type_name!r} was recorded here; this log has {shown}")


class PartitionRange(NamedTuple):
    """The records of a partition that a rebuild folds: those from `epoch` on, or all, with offset < end."""

    partition: int
    epoch: Epoch | None
    end: int

    @property
    def begin(self) -> int:
        """The offset of the first of them."""
        return 0 if self.epoch is None else self.epoch.offset


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """The plan of a rebuild.

    Attributes:
        ranges: The ranges by partition, only for partitions that can hold wanted entities.
        limits: None for all entities.
        memory: The memory of each process that rebuilds.
    """

    cut: Cut
    ranges: Mapping[int, PartitionRange]
    limits: RebuildLimits | None = None
    memory: RebuildMemory = DEFAULT_MEMORY

    @property
    def records(self) -> int:
        """The number of offsets between the epochs and the cut."""
        return sum(each.end - each.begin for each in self.ranges.values())

    def epochs(self, reader: EpochReader, partition: int) -> Iterator[Epoch]:
        """Yield the planned epoch of a partition, then the next nearest ones, for use if it is damaged."""
        planned = self.ranges[partition].epoch
        if planned is not None:
            yield planned
            yield from (each for each in _nearest_epochs(reader, self.cut, partition) if each != planned)

    def to_json(self) -> dict[str, object]:
        """The plan for a child process, without `since`: the parent removes entities that closed before it."""
        limits = self.limits
        return {
            "cut": str(self.cut),
            "ranges": list(self.ranges.values()),
            "is_whole": limits is None,
            "types": None if limits is None or limits.types is None else sorted(limits.types),
            "entities": None if limits is None or limits.entities is None else sorted(limits.entities),
            "memory": asdict(self.memory),
        }


def plan_of_json(tree: Mapping[str, Any]) -> RebuildPlan:
    """The plan that a parent made (`RebuildPlan.to_json`)."""
    ranges = [
        PartitionRange(number, None if epoch is None else Epoch(*epoch), end) for number, epoch, end in tree["ranges"]
    ]
    types, entities = (None if tree[each] is None else frozenset(tree[each]) for each in ("types", "entities"))
    limits = None if tree["is_whole"] else RebuildLimits(types, entities)
    memory = RebuildMemory(**tree["memory"])
    return RebuildPlan(parse_cut(tree["cut"]), {each.partition: each for each in ranges}, limits, memory)


def plan_rebuild(
    log: LogReader, cut: Cut, limits: RebuildLimits | None, *, full: bool, memory: RebuildMemory = DEFAULT_MEMORY
) -> RebuildPlan:
    """Choose the partitions that can hold wanted entities, and the nearest epoch of each.

    Args:
        log: The log.
        cut: The cut.
        limits: Which entities are wanted; None for all.
        full: Whether to begin at the first record and use no epochs. An observed-clock cut always does.
        memory: The limits of each process that rebuilds.

    Returns:
        The plan.
    """
    from_nothing = full or cut.observed_until is not None
    ranges = {}
    for partition in _partitions_wanted(cut, limits):
        epoch = None if from_nothing else next(_nearest_epochs(log.snapshots, cut, partition), None)
        ranges[partition] = PartitionRange(partition, epoch, cut.offsets[partition])
    return RebuildPlan(cut, ranges, limits, memory)


def _partitions_wanted(cut: Cut, limits: RebuildLimits | None) -> Collection[int]:
    """The partitions that can hold wanted entities."""
    if limits is None or not limits.by_name_alone:
        return sorted(cut.offsets)
    return sorted({partition_of(name, len(cut.offsets)) for name in limits.entities or ()})


def _nearest_epochs(reader: EpochReader, cut: Cut, partition: int) -> Iterator[Epoch]:
    """Yield a partition's epochs at or below the cut, nearest first; each is looked up on demand."""
    for _, alike in groupby(_epochs_below(reader, partition, cut.offsets[partition]), lambda each: each.offset):
        yield from sorted(alike, key=lambda each: (each.schemas <= cut.schemas, each.schemas), reverse=True)


def _epochs_below(reader: EpochReader, partition: int, end: int) -> Iterator[Epoch]:
    """Yield a partition's epochs at or below an offset, the latest first."""
    found = reader.latest(Epoch(partition, end, OFFSET_MAX))
    while found is not None and found.offset > 0:
        yield found
        _, offset, schemas = found
        found = reader.latest(
            Epoch(partition, offset, schemas - 1) if schemas else Epoch(partition, offset - 1, OFFSET_MAX)
        )
