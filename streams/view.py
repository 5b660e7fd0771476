"""The views that a rebuild returns: every entity at a cut, read-only, each field with the observation that set it.

`trace` follows ids to observations, their positions in the log, and their causes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.errors import InputError, UnknownEntity
from refold.avro.jsonform import Format, formatter
from refold.avro.observation import Observation, Source
from refold.avro.registry import TypeVersion
from refold.reducers.conflicts import Conflicts, conflicts
from refold.reducers.entity import Entity, stored_hash, unpack
from refold.reducers.fold import Seen
from refold.reducers.order import split_order_key
from refold.reducers.state import hash_state, state_tree
from refold.streams.cut import Cut
from refold.streams.history import RecordedObservation, observed_below
from refold.streams.log.port import LogReader, Position, observation_in
from refold.streams.rebuild.result import Rebuilt
from refold.streams.table.folds import Folds


class TraceLink(NamedTuple):
    """One observation in a chain.

    Attributes:
        observation_id: Its id, in hex.
        depth: The number of causes between it and the value: 0 for an observation that set the value.
        position: Its position in the log; None, like recorded_at and observation, if it is not below the cut.
        recorded_at: In milliseconds since 1970.
        causes: The ids of its causes, in hex.
        observation: What was observed.
    """

    observation_id: str
    depth: int
    position: Position | None
    recorded_at: int | None
    causes: list[str]
    observation: Observation | None


def trace(log: LogReader, cut: Cut, ids: Iterable[bytes], limit: int | None = None) -> list[TraceLink]:
    """Follow the causes of observations.

    Args:
        log: The log.
        cut: Observations at or after this cut are listed without content.
        ids: The observations to begin at.
        limit: At most so many observations; None: all.

    Returns:
        The chain, each observation once, nearest first.
    """
    waiting = deque((observation_id, 0) for observation_id in ids)
    reached: set[bytes] = set()
    chain: list[TraceLink] = []
    while waiting and (limit is None or len(chain) < limit):
        observation_id, depth = waiting.popleft()
        if observation_id in reached:
            continue
        reached.add(observation_id)
        record = log.find(observation_id)
        if record is None or record.offset >= cut.offsets[record.partition]:
            chain.append(TraceLink(observation_id.hex(), depth, None, None, [], None))
            continue
        observation = observation_in(log.registry, record)
        position = Position(record.partition, record.offset)
        causes = [cause.hex() for cause in observation.causes]
        chain.append(TraceLink(observation_id.hex(), depth, position, record.recorded_at, causes, observation))
        waiting.extend((cause, depth + 1) for cause in observation.causes)
    return chain


@dataclass(frozen=True, slots=True)
class Holder:
    """The observation that set a value.

    Attributes:
        observation_id: Its id, in hex.
        observed_at: In microseconds since 1970.
        recorded_at: In milliseconds since 1970.
    """

    observation_id: str
    observed_at: int
    recorded_at: int
    source: Source


class EntityView:
    """One entity at a cut. `fields` holds plain Python values by first name; `state_hash` is hexadecimal."""

    def __init__(self, log: LogReader, folds: Folds, cut: Cut, entity: Entity) -> None:
        self._log = log
        self._fold = folds.of_entity(entity.name)
        self._cut = cut
        self._entity = entity
        self._holders: dict[bytes, Holder] = {}
        self.entity = entity.name
        self.version = entity.version

    @cached_property
    def state_hash(self) -> str:
        """The hash of the canonical state, in hex."""
        return (self._entity.state_hash or hash_state(self._fold.fold, self._entity)).hex()

    @property
    def cut(self) -> Cut:
        """The cut of this state."""
        return self._cut

    @property
    def definition(self) -> TypeVersion:
        """The type version this was folded by."""
        return self._fold.version

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The canonical state that `state_hash` covers."""
        return state_tree(self._fold.fold, self._entity)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The value of each field that has one."""
        return self.shown(python=True)

    def shown(self, *, python: bool = False) -> dict[str, Any]:
        """The fields as Python values, or in their JSON form."""
        formatters = _formatters_of(self._fold.version.definition, python)
        return {name: formatters[name](value) for name, value in self.tree["fields"].items()}

    @property
    def links(self) -> list[dict[str, Any]]:
        """The live links: {relation, target, by, valid_from?, valid_to?}, times in microseconds."""
        links: list[dict[str, Any]] = self.tree["links"]
        return links

    def why(self, field: str, key: str | None = None) -> list[TraceLink]:
        """Return the chain of causes of a field: the observations that set it, then theirs, nearest first.

        Args:
            field: The field's first name.
            key: One key of a map or one element of a union; None for the whole field.
        """
        return trace(self._log, self._cut, self.observations_of(field, key))

    def observations_of(self, field: str, key: str | None = None) -> list[bytes]:
        """Return which observations set a field's value.

        Args:
            field: The field's first name.
            key: One key of a map or one element of a union; None for the whole field.

        Returns:
            Their ids, 32 bytes each. For sum, count and custom reducers, all contributing observations.

        Raises:
            InputError: There is no such field or key, or it has no value at this point.
        """
        definition = self._fold.version.definition.by_first_name.get(field)
        if definition is None:
            known = ", ".join(self._fold.version.definition.by_first_name)
            raise InputError(f"{self.entity}.{field}: {self._fold.version.definition.name} has the fields {known}")
        if field not in self.tree["fields"]:
            raise InputError(f"{self.entity}.{field}: the field has no value at this point")
        if definition.reducer in ("sum", "count", "custom"):
            return self._contributors(field)
        holders = self.tree["by"][field]
        if key is not None:
            if not isinstance(holders, dict) or key not in holders:
                raise InputError(f"{self.entity}.{field}.{key}: no such key at this point")
            return [holders[key]]
        found = (
            list(holders.values()) if isinstance(holders, dict) else holders if isinstance(holders, list) else [holders]
        )
        return list(dict.fromkeys(found))

    def _contributors(self, field: str) -> list[bytes]:
        floor = self._entity.clears.get(field, b"")
        return [seen.id for seen in self._live if seen.q >= floor and field in seen.observation.patch]

    @cached_property
    def history(self) -> list[RecordedObservation]:
        """The entity's distinct observations below the cut, in log order."""
        return observed_below(self._log, self.entity, self._cut)

    @cached_property
    def _live(self) -> list[Seen]:
        """The live observations: observed by the cut's time, and not retracted below the cut."""
        retracted = {target for each in self.history for target in each.seen.observation.retracts}
        until, every = self._cut.observed_until, (each.seen for each in self.history)
        return [
            seen
            for seen in every
            if seen.id not in retracted and (until is None or seen.observation.observed_at <= until)
        ]

    def holder(self, field: str) -> Holder:
        """The newest observation (in Q order) that set the field or one of its elements."""
        cell = self._entity.cells[field]
        q = max(element.q for element in self._fold.fold.reducers[field].elements(cell).values())
        return self._holders_of([q])[q]

    def element_holders(self, field: str) -> list[tuple[Any, Any, Holder]]:
        """(key in the form of mutations, value, holder) for each element of a collection."""
        reducer = self._fold.fold.reducers[field]
        elements = reducer.elements(self._entity.cells[field])
        held = self._holders_of(element.q for element in elements.values())
        return [(reducer.shown_key(key), element.value, held[element.q]) for key, element in elements.items()]

    def _holders_of(self, qs: Iterable[bytes]) -> Mapping[bytes, Holder]:
        """The observations of some order keys, each looked up once."""
        missing = [q for q in dict.fromkeys(qs) if q not in self._holders]
        for q, record in zip(missing, self._log.records_of(self.entity, missing), strict=True):
            observation = observation_in(self._log.registry, record)
            self._holders[q] = Holder(record.id.hex(), observation.observed_at, record.recorded_at, observation.source)
        return self._holders

    @cached_property
    def conflicts(self) -> Conflicts:
        """The agents whose last assertion lost; at most 8 are listed, all are counted."""
        return conflicts(self._fold.fold, self._entity, self._live) if self._may_conflict else Conflicts([], 0)

    @property
    def _may_conflict(self) -> bool:
        """False if a single agent made all observations, because then no assertions conflict."""
        fields = self._fold.version.definition.by_first_name
        if any(fields[name].reducer == "first" for name in self._entity.cells if name in fields):
            return True
        end = self._cut.offsets[self._log.partition_of(self.entity)]
        return len({split_order_key(each.q).agent for each in self._log.arrivals(self.entity, end)}) > 1


class StateView:
    """Every entity of a log at a cut, or the wanted ones. `root` and hashes are in hex.

    `source` says how it was rebuilt; see Rebuilt.source.
    """

    def __init__(self, log: LogReader, cut: Cut, rebuilt: Rebuilt) -> None:
        self._log = log
        self._folds = Folds(log.registry, cut.schemas)
        self._rebuilt = rebuilt
        self.cut = cut

    def __getitem__(self, entity: str) -> EntityView:
        packed = self._packed(entity)
        if packed is None:
            raise UnknownEntity(f"{entity}: it has no observation at {self.cut.short}")
        return EntityView(self._log, self._folds, self.cut, unpack(entity, packed))

    def __contains__(self, entity: object) -> bool:
        return isinstance(entity, str) and self._packed(entity) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name, _ in self._rebuilt.rows()))

    def __len__(self) -> int:
        return self._rebuilt.entities

    def _packed(self, entity: str) -> bytes | None:
        try:
            partition = self._log.partition_of(entity)
        except UnicodeEncodeError:  # a lone surrogate: no entity's name
            return None
        return self._rebuilt.get(partition, entity)

    @property
    def source(self) -> dict[str, object]:
        """How it was rebuilt; see Rebuilt.source. It can grow, because damage may be found when entities are read
        later.
        """
        return self._rebuilt.source()

    @property
    def observations(self) -> int:
        """The number of distinct observations folded."""
        return self._rebuilt.observations

    @property
    def folds(self) -> Folds:
        """The fold of each type, by the newest definition at the cut."""
        return self._folds

    def stored(self, partition: int) -> Iterator[tuple[str, bytes]]:
        """Yield (entity, encoded) of a partition, in no particular order, for reading in bulk."""
        return self._rebuilt.rows_in(partition)

    def entity_hashes(self) -> dict[str, bytes]:
        """Each entity's state hash."""
        return {name: stored_hash(packed) for name, packed in self._rebuilt.rows()}

    @cached_property
    def root(self) -> str:
        """The root over all entities' state hashes.

        Raises:
            NotAnswerable: The view is limited.
        """
        return self._rebuilt.root().hex()

    def differing(self, other: StateView) -> list[str]:
        """Return the entities whose state differs in the other view, or that only one of them has, in order.

        Roots, slots and buckets of both are compared first: only entities in differing buckets are read.
        """
        return self._rebuilt.differing(other._rebuilt)


# By fingerprint: a definition is shown for each of its entities.
_FORMATTERS: dict[tuple[bytes, bool], dict[str, Format]] = {}


def _formatters_of(definition: TypeDefinition, python: bool) -> dict[str, Format]:
    """How each field of a type is shown, by its first name."""
    found = _FORMATTERS.get((definition.fingerprint, python))
    if found is None:
        found = {name: _formatter_of(field, python) for name, field in definition.by_first_name.items()}
        _FORMATTERS[definition.fingerprint, python] = found
    return found


def _formatter_of(definition: FieldDefinition, python: bool) -> Format:
    """How a field's folded value is shown; sums and counts are numbers as they are."""
    if definition.reducer in ("sum", "count"):
        return lambda value: value
    return formatter(definition.node, python=python)
