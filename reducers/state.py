"""The state of an entity and its hash: a function of the set of observations and the type's definition alone."""

from __future__ import annotations

import hashlib

from refold.avro.canonical import TEXT_HEADS, encode, map_head
from refold.avro.observation import ID_BYTES, Value
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold
from refold.reducers.links import links_tree

STATE_FORMAT = 1

BY = map_head(6) + encode("by")
LINKS = encode("links")
NO_LINKS = encode([])
ENTITY = encode("entity")
FIELDS = encode("fields")
FORMAT_VERSION = encode("format") + encode(STATE_FORMAT) + encode("version")
_SHORT = 256
_HASH = hashlib.sha256()


def state_tree(fold: Fold, entity: Entity) -> dict[str, Value]:
    """Return {format, entity, version, fields, by, links}; absent fields are in neither fields nor by."""
    fields: dict[str, Value] = {}
    holders: dict[str, Value] = {}
    for name, reducer in fold.reducers.items():  # in the type's order of fields
        cell = entity.cells.get(name)
        if cell is not None and reducer.present(cell):
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
    """Return the SHA-256 of the state's canonical CBOR: 32 bytes.

    The parts are joined in the order of the keys (by, links, entity, fields, format, version) without building the
    tree, which the encoder would have to sort: this runs once for every entity that a batch touches.
    """
    fields: list[bytes] = []
    holders: list[bytes] = []
    cells = entity.cells
    for name, key, held_by, reducer, has_winner in fold.in_order_of_keys(cells):
        cell = cells[name]
        if has_winner:  # most fields of most entities; saves a call
            value = cell[0]
            if type(value) is str and len(value) < _SHORT and value.isascii():
                fields.append(key + TEXT_HEADS[len(value)] + value.encode())
            else:
                fields.append(key + encode(value))
            holders.append(held_by + cell[2][-ID_BYTES:])
        elif reducer.present(cell):
            fields.append(key + encode(reducer.value(cell)))
            holders.append(key + encode(reducer.holders(cell)))
    head = map_head(len(fields))
    parts = [BY, head, *holders, LINKS, encode(links_tree(entity.links)) if entity.links else NO_LINKS,
             ENTITY, encode(entity.name), FIELDS, head, *fields, FORMAT_VERSION, encode(entity.version)]  # fmt: skip
    hashed = _HASH.copy()  # faster than hashlib.new, which looks the algorithm up by name each time
    hashed.update(b"".join(parts))
    return hashed.digest()
