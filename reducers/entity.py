"""One entity while it is folded: its cells, its links and its residue, and how they are stored.

The stored form is one MessagePack array; it is a table's own business, told apart by FORMAT, and never hashed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from refold.avro.errors import CorruptionError
from refold.reducers.links import Links
from refold.reducers.residue import Residue

FORMAT = 1

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(slots=True)
class Entity:
    """The fold of one entity so far. `clears`: per field the greatest Q of a live clear."""

    name: str
    version: int = 0
    cells: dict[str, Any] = field(default_factory=dict)
    links: Links = field(default_factory=dict)
    clears: dict[str, bytes] = field(default_factory=dict)
    residue: Residue = field(default_factory=Residue)
    state_hash: bytes = b""


def pack(entity: Entity) -> bytes:
    """The stored form."""
    residue = entity.residue
    pending = None if residue.pending is None else sorted(residue.pending)
    return _encode(
        [
            FORMAT,
            entity.version,
            entity.state_hash,
            entity.cells,
            [[*key, *cell] for key, cell in entity.links.items()],
            entity.clears,
            residue.greatest,
            list(residue.sources.items()),
            residue.floor,
            residue.last_ids,
            pending,
            residue.lowest_offset,
            residue.highest_offset,
        ]
    )


def unpack(name: str, data: bytes) -> Entity:
    """The entity behind its stored form; raises CorruptionError where it is none."""
    try:
        parts = _decode(data)
        if parts[0] != FORMAT:
            raise CorruptionError(f"the stored state of {name} has format {parts[0]}, not {FORMAT}; run refold verify")
        _, version, state_hash, cells, links, clears, greatest, sources, floor, last_ids, pending, low, high = parts
        return Entity(
            name,
            version,
            cells,
            {(relation, target): cell for relation, target, *cell in links},
            clears,
            Residue(greatest, dict(sources), floor, last_ids, None if pending is None else set(pending), low, high),
            state_hash,
        )
    except (msgspec.DecodeError, ValueError, TypeError, LookupError) as error:
        raise CorruptionError(f"the stored state of {name} cannot be read: {error}; run refold verify") from error
