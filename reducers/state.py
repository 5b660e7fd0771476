"""The state of an entity and its hash: a function of the set of observations and the type's definition alone."""

from __future__ import annotations

import hashlib

from refold.avro.canonical import encode, encode_map
from refold.avro.observation import Value
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold
from refold.reducers.links import links_tree

STATE_FORMAT = 1


def state_tree(fold: Fold, entity: Entity) -> dict[str, Value]:
    """{format, entity, version, fields, by, links}; absent fields stand in neither fields nor by."""
    fields: dict[str, Value] = {}
    holders: dict[str, Value] = {}
    for name, cell in entity.cells.items():
        reducer = fold.reducers.get(name)
        if reducer is not None and cell is not None and reducer.present(cell):
            fields[name] = reducer.value(cell)
            holders[name] = reducer.holders(cell)
    return {
        "format": STATE_FORMAT,
        "entity": entity.name,
        "version": entity.version,
        "fields": fields,
        "by": holders,
        "links": links_tree(entity.links) if entity.links else [],
    }


def hash_state(fold: Fold, entity: Entity) -> bytes:
    """SHA-256 of the state's canonical CBOR: 32 bytes."""
    tree = state_tree(fold, entity)
    members = [(name, _encoded(value)) for name, value in tree.items()]
    return hashlib.sha256(encode_map(members, len(members))).digest()


def _encoded(value: Value) -> bytes:
    """A member's CBOR; a map's members one by one, which costs less than having the encoder sort them."""
    if isinstance(value, dict):
        return encode_map([(name, encode(each)) for name, each in value.items()], len(value))
    return encode(value)
