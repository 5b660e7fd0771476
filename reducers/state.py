"""The state of an entity and its hash: a function of the set of observations and the type's definition alone."""

from __future__ import annotations

import hashlib

from refold.avro.canonical import encode, map_head
from refold.avro.observation import Value
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold
from refold.reducers.links import links_tree

STATE_FORMAT = 1

BY = map_head(6) + encode("by")
LINKS = encode("links")
NO_LINKS = encode([])
ENTITY = encode("entity")
FIELDS = encode("fields")
FORMAT = encode("format") + encode(STATE_FORMAT)
VERSION = encode("version")


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
    """SHA-256 of the state's canonical CBOR: 32 bytes.

    Joined in the order of the keys (by, links, entity, fields, format, version) instead of building the tree, which
    the encoder would have to sort again: this runs once for every entity a batch touches.
    """
    fields: list[bytes] = []
    holders: list[bytes] = []
    for name, key in fold.ordered:
        cell = entity.cells.get(name)
        if cell is not None:
            reducer = fold.reducers[name]
            if reducer.present(cell):
                fields += key, encode(reducer.value(cell))
                holders += key, encode(reducer.holders(cell))
    head = map_head(len(fields) >> 1)
    parts = [BY, head, *holders, LINKS, encode(links_tree(entity.links)) if entity.links else NO_LINKS,
             ENTITY, encode(entity.name), FIELDS, head, *fields, FORMAT, VERSION, encode(entity.version)]  # fmt: skip
    return hashlib.sha256(b"".join(parts)).digest()
