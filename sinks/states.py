"""Applies mutations to states, and encodes states for stores. Pure functions.

"Replaying mutations gives `fields` at every version": a change whose `hash_before` is the held state's hash, and that
was made by the definition in force, advances the held state without reading the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from refold.avro.canonical import encode
from refold.avro.definition import TypeDefinition
from refold.reducers.cells import Mutation
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold
from refold.reducers.links import FIELD as LINKS
from refold.reducers.links import without_holders
from refold.reducers.state import state_tree
from refold.sinks.port import EntityState
from refold.streams.changes import Change

FORMAT = 1
EXACT_MAX = 2**53
"""Above this a change's sum, a double, may differ from the state's, an integer."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class _Folding(NamedTuple):
    """The reducers of a type's fields, by first name, and the fields that are sums."""

    reducers: Mapping[str, str]
    sums: frozenset[str]


# By fingerprint, because it is needed for every change.
_FOLDING: dict[bytes, _Folding] = {}


def _folding(definition: TypeDefinition) -> _Folding:
    found = _FOLDING.get(definition.fingerprint)
    if found is None:
        reducers = {each.first_name: each.reducer for each in definition.fields.values()}
        found = _Folding(reducers, frozenset(name for name, each in reducers.items() if each == "sum"))
        _FOLDING[definition.fingerprint] = found
    return found


def is_exact(change: Change, definition: TypeDefinition) -> bool:
    """Whether history and state can be derived from a change: it was made by the definition, and no sum is rounded."""
    if change.definition != definition.fingerprint:
        return False
    sums = _folding(definition).sums
    return not sums or all(
        abs(value) < EXACT_MAX
        for step in change.steps
        for each in step.mutations
        if each.field in sums
        for value in (each.old, each.new)
        if isinstance(value, int | float)
    )


def begun(entity: str, definition: TypeDefinition, partition: int) -> EntityState:
    """Return an entity before its first observation: version 0."""
    return EntityState(entity, definition, partition, -1, 0, 0, b"", {}, [], {})


def follows(state: EntityState, change: Change) -> bool:
    """Whether a change begins at this state."""
    return state.version == change.from_version and state.state_hash == (change.hash_before or b"")


def advance(state: EntityState, change: Change) -> None:
    """Apply a change that follows a state, in place."""
    reducers = _folding(state.definition).reducers
    for step in change.steps:
        apply(state, step.mutations, reducers)
    if change.steps:
        state.offset, state.recorded_at = change.steps[-1].offset, change.steps[-1].recorded_at
    state.version, state.state_hash = change.to_version, change.hash_after


def apply(state: EntityState, mutations: Iterable[Mutation], reducers: Mapping[str, str]) -> None:
    """Apply mutations to a state's fields and links, in place.

    Args:
        state: The state.
        mutations: The mutations, in order.
        reducers: The reducer of each field, by first name.
    """
    fields = state.fields
    for mutation in mutations:
        field, key, new = mutation.field, mutation.key, cast(Any, mutation.new)
        if field == LINKS:
            _link(state.links, key, new)
            continue
        reducer = reducers[field]
        if reducer == "map":
            _map(fields, field, key, new)
        elif reducer == "union":
            _union(fields, mutation)
        elif reducer == "append":
            _append(state, mutation)
        elif new is None:
            fields.pop(field, None)
        else:
            fields[field] = new


def _map(fields: dict[str, Any], field: str, key: str, new: Any) -> None:
    held = fields.setdefault(field, {})
    if new is None:
        held.pop(key, None)
    else:
        held[key] = new
    if not held:
        del fields[field]


def _union(fields: dict[str, Any], mutation: Mutation) -> None:
    """Elements are ordered by their CBOR."""
    held = fields.setdefault(mutation.field, [])
    element = mutation.old if mutation.new is None else mutation.new
    at = bisect_left(held, encode(element), key=encode)
    if mutation.new is not None:
        held.insert(at, element)
    else:
        del held[at]
    if not held:
        del fields[mutation.field]


def _append(state: EntityState, mutation: Mutation) -> None:
    field = mutation.field
    held, places = state.fields.setdefault(field, []), state.element_keys.setdefault(field, [])
    place = tuple(mutation.key)
    at = bisect_left(places, place)
    if mutation.op == "remove":
        del held[at], places[at]
    elif mutation.op == "add":
        held.insert(at, mutation.new)
        places.insert(at, place)
    else:
        held[at] = mutation.new
    if not held:
        del state.fields[field], state.element_keys[field]


def _link(links: list[dict[str, Any]], key: tuple[str, str], validity: Mapping[str, Any] | None) -> None:
    """Links are ordered by the CBOR of [relation, target]."""
    at = bisect_left(links, encode(key), key=_link_key)
    if at < len(links) and (links[at]["relation"], links[at]["target"]) == tuple(key):
        del links[at]
    if validity is not None:
        links.insert(at, {"relation": key[0], "target": key[1], **validity})


def _link_key(link: Mapping[str, Any]) -> bytes:
    return encode((link["relation"], link["target"]))


def state_of(entity: Entity, fold: Fold, definition: TypeDefinition, partition: int, recorded_at: int) -> EntityState:
    """Return a folded entity in the form of sinks.

    Args:
        entity: The entity, with its hash.
        fold: The fold of its type.
        definition: The definition in force.
        partition: Its partition.
        recorded_at: The log's time of its latest distinct observation, in milliseconds.
    """
    tree: dict[str, Any] = dict(state_tree(fold, entity))
    reducers = _folding(definition).reducers
    places = {
        name: [(q, index) for _, q, index in entity.cells[name]]
        for name in tree["fields"]
        if reducers[name] == "append"
    }
    return EntityState(
        entity.name, definition, partition, entity.dedup_state.highest_offset, recorded_at, entity.version,
        entity.state_hash, tree["fields"], without_holders(tree["links"]), places,
    )  # fmt: skip


def packed(state: EntityState) -> bytes:
    """Encode a state for a store, which keeps it next to a row; `unpacked` decodes it."""
    return _encode([
        FORMAT, state.partition, state.offset, state.recorded_at, state.version, state.state_hash, state.fields,
        state.links, state.element_keys,
    ])  # fmt: skip


def unpacked(entity: str, definition: TypeDefinition, data: bytes) -> EntityState | None:
    """Decode a state that `packed` encoded.

    Args:
        entity: `type/id`.
        definition: The definition in force.
        data: What the store has.

    Returns:
        The state; None if this release cannot read it. The entity is then read from the log.
    """
    try:
        form, partition, offset, recorded_at, version, state_hash, fields, links, places = _decode(data)
        if form != FORMAT:
            return None
        found = {name: [(q, index) for q, index in each] for name, each in places.items()}
        return EntityState(
            entity, definition, partition, offset, recorded_at, version, state_hash, fields, links, found
        )
    except (msgspec.DecodeError, TypeError, ValueError, AttributeError):
        return None
