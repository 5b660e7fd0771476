"""Changes: the feed of what happened to each entity, as `.changes` holds it.

A change takes an entity from one version to a later one, with the hashes before and after, and one step for each
observation between; how steps are grouped into changes is not promised. A change without steps and with
`redefined` set says that the type's definition changed and the same observations now fold to another state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from refold.avro.definition import FieldDefinition
from refold.avro.derive import DOUBLE
from refold.avro.nodes import Node, nullable
from refold.avro.observation import Source
from refold.avro.registry import TypeVersion
from refold.avro.wire import from_wire, to_wire
from refold.reducers.cells import Mutation
from refold.reducers.links import FIELD as LINKS
from refold.reducers.order import order_key_of, place_of


@dataclass(frozen=True, slots=True)
class Step:
    """One observation and what it changed. observed_at in microseconds, recorded_at in milliseconds."""

    offset: int
    version: int
    observation: bytes
    observed_at: int
    recorded_at: int
    source: Source
    mutations: Sequence[Mutation]


@dataclass(frozen=True, slots=True)
class Change:
    """One entity from `from_version` to `to_version`; `through` is the next offset of the batch that made it."""

    entity: str
    definition: bytes
    from_version: int
    to_version: int
    hash_before: bytes | None
    hash_after: bytes
    through: int
    redefined: bool
    steps: Sequence[Step]


Adapters: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any] | None]]


class ChangeCodec:
    """Changes of one type version to and from framed bytes."""

    def __init__(self, version: TypeVersion) -> None:
        self._codec = version.changes
        fields = version.definition.fields.values()
        self._write = {each.first_name: (each.reducer, to_wire(_element(each))) for each in fields}
        self._read = {each.first_name: (each.reducer, from_wire(_element(each))) for each in fields}

    def encode(self, change: Change) -> bytes:
        """Framed bytes."""
        steps = [self._step_datum(step) for step in change.steps]
        return self._codec.encode(
            (change.entity, change.definition, change.from_version, change.to_version, change.hash_before,
             change.hash_after, change.through, change.redefined, steps)
        )  # fmt: skip

    def decode(self, data: bytes) -> Change:
        """The change behind framed bytes; raises UndecodableError."""
        datum = self._codec.decode(data)
        return Change(**{**datum, "steps": [self._step(step) for step in datum["steps"]]})

    def _step_datum(self, step: Step) -> tuple[Any, ...]:
        fields: dict[str, list[tuple[Any, ...]]] = {}
        links: list[tuple[Any, ...]] = []
        for mutation in step.mutations:
            if mutation.field == LINKS:
                links.append(_link_datum(mutation, step.observation))
            else:
                fields.setdefault(mutation.field, []).append(self._datum(mutation, step.observation))
        source = step.source
        said_by = (source.agent, source.run, source.step, source.tool, source.seq)
        return (step.offset, step.version, step.observation, step.observed_at, step.recorded_at, said_by, fields, links)

    def _datum(self, mutation: Mutation, own: bytes) -> tuple[Any, ...]:
        reducer, write = self._write[mutation.field]
        _, op, key, old, new, observation = mutation
        if write is not None:
            old, new = None if old is None else write(old), None if new is None else write(new)
        holder = None if observation == own else observation
        if reducer == "map":
            return (op, key, old, new, holder)
        if reducer == "append":
            return (op, (*place_of(key[0]), key[1]), old, new, holder)
        return (op, old, new, holder)

    def _step(self, datum: Mapping[str, Any]) -> Step:
        own = datum["observation"]
        mutations = [each for field, found in datum["fields"].items() for each in self._mutations(field, found, own)]
        for link in datum["links"]:
            old, new = (None if link[side] is None else _present(link[side]) for side in ("old", "new"))
            key = (link["relation"], link["target"])
            mutations.append(Mutation(LINKS, link["op"], key, old, new, link["observation"] or own))
        rest = {name: datum[name] for name in ("offset", "version", "observation", "observed_at", "recorded_at")}
        return Step(**rest, source=Source(**datum["source"]), mutations=mutations)

    def _mutations(self, field: str, found: Iterable[Mapping[str, Any]] | None, own: bytes) -> list[Mutation]:
        reducer, read = self._read[field]
        result = []
        for datum in found or ():
            key, old, new = datum.get("key"), datum["old"], datum["new"]
            if reducer == "append" and key is not None:
                place = dict(key)
                index = place.pop("index")
                key = (order_key_of(**place), index)
            if read is not None:
                old, new = None if old is None else read(old), None if new is None else read(new)
            result.append(Mutation(field, datum["op"], key, old, new, datum["observation"] or own))
        return result


def _element(field: FieldDefinition) -> Node:
    """What one mutation carries, or null; a sum and a count are numbers whatever the field's own type."""
    return nullable(DOUBLE if field.reducer in ("sum", "count") else field.element)


def _link_datum(mutation: Mutation, own: bytes) -> tuple[Any, ...]:
    relation, target = mutation.key
    holder = None if mutation.observation == own else mutation.observation
    return (mutation.op, relation, target, mutation.old, mutation.new, holder)


def _present(validity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in validity.items() if value is not None}
