"""The fold: computes one state from a set of observations, in any order, one by one or from nothing.

A certainly new observation is folded directly into cells and dedup state, unless it retracts, clears out of order, or
asserts an in-order field (append, custom) out of order. An observation that was retracted before it arrived is folded
directly: it only increments the version. Everything else reopens the entity:

1. take all its distinct observations in log order, the new one last;
2. leave out every observation that any of them retracts, including those that retracted observations retract;
3. find the greatest clear of each field among the rest, and drop the assertions below it;
4. fold the remaining assertions in Q order;
5. replay the dedup state in log order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from refold.avro.canonical import ID_HEAD, in_key_order
from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.observation import ID_BYTES, Observation
from refold.reducers.arithmetic import Count, Sum
from refold.reducers.cells import AssertionEnvelope, Cell, Mutation, Reducer, new_tuple
from refold.reducers.collection import Append, Map, Union
from refold.reducers.custom import Custom, code_of
from refold.reducers.dedup_state import PENDING_HELD
from refold.reducers.entity import Entity
from refold.reducers.links import fold_link, link_differences
from refold.reducers.order import FIRST
from refold.reducers.registered import NotRegistered, function_of
from refold.reducers.scalar import First, Greatest, Latest, Least

SIMPLE: dict[str, Callable[[str], Reducer]] = {
    "latest": Latest,
    "first": First,
    "min": Least,
    "max": Greatest,
    "sum": Sum,
    "count": Count,
    "union": Union,
    "map": Map,
}


ORDERS_HELD = 4096
Ordered: TypeAlias = tuple[str, bytes, bytes, Reducer, bool]
"""A field, the CBOR of its key, the same followed by a holder id's CBOR header, its reducer, whether that has a
winner."""


class Seen(NamedTuple):
    """A distinct observation of one entity, its offset in its partition, and its order key."""

    offset: int
    q: bytes
    observation: Observation

    @property
    def id(self) -> bytes:
        """The observation's id."""
        return self.q[-32:]


def envelope_of(seen: Seen) -> AssertionEnvelope:
    """Return the common part of an observation's assertions."""
    observation = seen.observation
    q = seen.q
    parts = (observation.priority, q, q[-ID_BYTES:], observation.observed_at, observation.source)
    return new_tuple(AssertionEnvelope, parts)


def reducer_of(field: FieldDefinition) -> Reducer:
    """Return the reducer that a field names.

    Raises:
        NotRegistered: A custom one is not registered in this process with the definition's code.
    """
    if field.reducer == "append":
        return Append(field.first_name, field.limit)
    if field.reducer != "custom":
        return SIMPLE[field.reducer](field.first_name)
    name = str(field.code["name"])
    found = code_of(name)
    if found != field.code:
        raise NotRegistered(
            f"the custom reducer {name} is not the code this log was written with (version {field.code['version']}); "
            "raise its refold_version and register the type again, or restore the old code"
        )
    return Custom(field.first_name, function_of(name), field.node)


class Fold:
    """Folds entities of one type by one definition."""

    def __init__(self, definition: TypeDefinition) -> None:
        self.definition = definition
        self.reducers = {each.first_name: reducer_of(each) for each in definition.fields.values()}
        self._ordered: dict[tuple[str, ...], list[Ordered]] = {}
        self._in_order = frozenset(name for name, reducer in self.reducers.items() if reducer.in_order)

    def in_order_of_keys(self, cells: Mapping[str, Cell]) -> list[Ordered]:
        """Return the fields that have cells, by their keys' bytes, the order in which a state's maps are encoded."""
        names = tuple(cells)
        found = self._ordered.get(names)
        if found is None:
            if len(self._ordered) >= ORDERS_HELD:
                self._ordered.clear()
            found = self._ordered[names] = [
                (name, key, key + ID_HEAD, self.reducers[name], self.reducers[name].has_winner)
                for name, key in in_key_order(names)
                if name in self.reducers
            ]
        return found

    def directly(self, entity: Entity, seen: Seen) -> list[Mutation] | None:
        """Fold a new observation into the entity; None, with the entity unchanged, if it must be reopened."""
        observation, dedup_state = seen.observation, entity.dedup_state
        if observation.retracts or dedup_state.pending is None:
            return None
        out: list[Mutation] = []
        if dedup_state.pending and seen.id in dedup_state.pending:
            dedup_state.pending.discard(seen.id)
        else:
            in_order = seen.q > dedup_state.greatest
            if not in_order and (observation.cleared or not self._in_order.isdisjoint(observation.patch)):
                return None
            self._apply(entity, seen, out)
        entity.version += 1
        dedup_state.note(seen.q, seen.offset)
        return out

    def _apply(self, entity: Entity, seen: Seen, out: list[Mutation]) -> None:
        observation, q, cells = seen.observation, seen.q, entity.cells
        if observation.link is not None:
            fold_link(entity.links, observation, q, out)
            return
        before, clears = {}, entity.clears
        for field in observation.cleared:
            clears[field] = q
            if field in self.reducers:
                before[field] = cells.pop(field, None)
        envelope = envelope_of(seen)
        for field, value in observation.patch.items():
            reducer = self.reducers.get(field)
            if reducer is None or (clears and q < clears.get(field, FIRST)):
                continue
            cells[field] = reducer.fold(cells.get(field), value, envelope, [] if field in before else out)
        for field, cell in before.items():
            self.reducers[field].difference(cell, cells.get(field), seen.id, out)

    def from_nothing(self, name: str, history: Sequence[Seen], until: int | None = None) -> Entity:
        """Compute an entity from its distinct observations.

        Args:
            name: the entity's name.
            history: its distinct observations, in log order.
            until: fold only the observations at or before this time (microseconds) that no observation in `history`
                retracts; version counts these.
        """
        entity = Entity(name)
        retracted = {target for seen in history for target in seen.observation.retracts}
        live = sorted((seen for seen in history if seen.id not in retracted), key=lambda seen: seen.q)
        within = history
        if until is not None:
            within = live = [seen for seen in live if seen.observation.observed_at <= until]
        for seen in live:
            for field in seen.observation.cleared:
                entity.clears[field] = seen.q
        discarded: list[Mutation] = []
        for seen in live:
            self._assert_live(entity, seen, discarded)
        for seen in within:
            entity.version += 1
            entity.dedup_state.note(seen.q, seen.offset)
        pending = retracted - {seen.id for seen in history}
        entity.dedup_state.pending = pending if len(pending) <= PENDING_HELD else None
        return entity

    def _assert_live(self, entity: Entity, seen: Seen, out: list[Mutation]) -> None:
        observation, cells = seen.observation, entity.cells
        if observation.link is not None:
            fold_link(entity.links, observation, seen.q, out)
        envelope = envelope_of(seen)
        for field, value in observation.patch.items():
            reducer = self.reducers.get(field)
            if reducer is None or seen.q < entity.clears.get(field, FIRST):
                continue
            cells[field] = reducer.fold(cells.get(field), value, envelope, out)
        out.clear()

    def differences(self, before: Entity, after: Entity, by: bytes) -> list[Mutation]:
        """Return the mutations by the observation `by`, from the folds before and after it."""
        out: list[Mutation] = []
        for field, reducer in self.reducers.items():
            old, new = before.cells.get(field), after.cells.get(field)
            if old is not new:
                reducer.difference(old, new, by, out)
        link_differences(before.links, after.links, by, out)
        return out

    def step(self, entity: Entity, seen: Seen, history: Callable[[], Iterable[Seen]]) -> tuple[Entity, list[Mutation]]:
        """Fold one new observation, directly or by reopening.

        Args:
            entity: the entity before; it may be modified and must not be used afterwards.
            seen: the new observation.
            history: returns the distinct observations before it, in log order.

        Returns:
            The entity after the observation, and the mutations.
        """
        mutations = self.directly(entity, seen)
        if mutations is not None:
            return entity, mutations
        reopened = self.from_nothing(entity.name, [*history(), seen])
        return reopened, self.differences(entity, reopened, seen.id)
