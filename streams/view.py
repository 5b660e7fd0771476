"""What a rebuild gives: a read-only view of every entity at a cut, each field with the observation behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from refold.avro.errors import InputError, UnknownEntity
from refold.avro.jsonform import shower
from refold.avro.observation import Source
from refold.avro.registry import TypeVersion
from refold.reducers.conflicts import Conflicts, conflicts
from refold.reducers.entity import Entity, unpack
from refold.reducers.state import state_tree
from refold.streams.cut import Cut
from refold.streams.digest import root_of
from refold.streams.history import Observed, observed_below
from refold.streams.log.port import LogPort
from refold.streams.rebuild import Rebuilt
from refold.streams.table.folds import Folds
from refold.streams.trace import Link, trace


@dataclass(frozen=True, slots=True)
class Holder:
    """The observation behind a value. observed_at in microseconds, recorded_at in milliseconds, id in hex."""

    observation: str
    observed_at: int
    recorded_at: int
    source: Source


class EntityView:
    """One entity at a cut. `fields` holds plain Python values by first name; `state_hash` is hexadecimal."""

    def __init__(self, log: LogPort, folds: Folds, cut: Cut, entity: Entity) -> None:
        self._log = log
        self._fold = folds.of_entity(entity.name)
        self._cut = cut
        self._entity = entity
        self.entity = entity.name
        self.version = entity.version
        self.state_hash = entity.state_hash.hex()

    @property
    def cut(self) -> Cut:
        """The point this is the state of."""
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
        definitions = self._fold.version.definition.by_first_name
        return {name: shower_of(definitions[name], python)(value) for name, value in self.tree["fields"].items()}

    @property
    def links(self) -> list[dict[str, Any]]:
        """The live links: {relation, target, by, valid_from?, valid_to?}, times in microseconds."""
        links: list[dict[str, Any]] = self.tree["links"]
        return links

    def why(self, field: str, key: str | None = None) -> list[Link]:
        """The chain from a field (of a map, one key) to the observations it rests on, nearest first."""
        return trace(self._log, self._cut, self.held_by(field, key))

    def held_by(self, field: str, key: str | None = None) -> list[bytes]:
        """The ids that hold a field's value; for sum, count and custom all that took part."""
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
        observed = self.history
        retracted = {target for each in observed for target in each.seen.observation.retracts}
        floor = self._entity.clears.get(field, b"")
        live = [each.seen for each in observed if each.seen.id not in retracted and each.seen.q >= floor]
        return [seen.id for seen in live if field in seen.observation.patch]

    @cached_property
    def history(self) -> list[Observed]:
        """The entity's distinct observations below the cut, in log order."""
        return observed_below(self._log, self.entity, self._cut)

    def holder(self, field: str) -> Holder:
        """The newest observation (in Q) that holds the field or one of its elements."""
        cell = self._entity.cells[field]
        q = max(element.q for element in self._fold.fold.reducers[field].elements(cell).values())
        return self._holders[q]

    def element_holders(self, field: str) -> list[tuple[Any, Any, Holder]]:
        """(key as mutations show it, value, holder) of each element of a collection."""
        reducer = self._fold.fold.reducers[field]
        return [(reducer.shown_key(key), element.value, self._holders[element.q])
                for key, element in reducer.elements(self._entity.cells[field]).items()]  # fmt: skip

    @cached_property
    def _holders(self) -> dict[bytes, Holder]:
        return {
            each.seen.q: Holder(
                each.seen.id.hex(), each.seen.observation.observed_at, each.recorded_at, each.seen.observation.source
            )
            for each in self.history
        }

    @cached_property
    def conflicts(self) -> Conflicts:
        """The agents whose last word lost; at most 8 listed, all counted."""
        return conflicts(self._fold.fold, self._entity, [each.seen for each in self.history])


class StateView:
    """Every entity of a log at a cut. `root` and hashes are hexadecimal; `observations` counts distinct ones."""

    def __init__(self, log: LogPort, cut: Cut, rebuilt: Rebuilt) -> None:
        self._log = log
        self._folds = Folds(log.registry, cut.schemas)
        self._entities = rebuilt.entities
        self.cut = cut
        self.observations = rebuilt.observations
        self.source = rebuilt.source()

    def __getitem__(self, entity: str) -> EntityView:
        packed = self._entities.get(entity)
        if packed is None:
            raise UnknownEntity(f"{entity}: no observation of it stands at {self.cut.short}")
        return EntityView(self._log, self._folds, self.cut, unpack(entity, packed))

    def __contains__(self, entity: object) -> bool:
        return entity in self._entities

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entities))

    def __len__(self) -> int:
        return len(self._entities)

    def entity_hashes(self) -> dict[str, bytes]:
        """Each entity's state hash."""
        return {name: unpack(name, packed).state_hash for name, packed in self._entities.items()}

    @cached_property
    def root(self) -> str:
        """The root over all entities' state hashes."""
        return root_of(self.entity_hashes().items()).hex()


def shower_of(definition: Any, python: bool) -> Any:
    """How a field's folded value is shown; sums and counts are numbers as they are."""
    if definition.reducer in ("sum", "count"):
        return lambda value: value
    return shower(definition.node, python=python)
