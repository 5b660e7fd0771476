"""One entity while it is folded: its cells, its links and its dedup state, and their stored form.

The stored form is one MessagePack array that begins with FORMAT, and is never hashed; docs/FORMAT.md describes it, for
programs that read snapshots without refold. It is a function of the log below it: keys are sorted, whatever the order
in which the entity was folded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from refold.avro.errors import CorruptionError
from refold.reducers.dedup_state import DedupState
from refold.reducers.links import Links

FORMAT = 3

# MessagePack's header of a binary value of 32 bytes.
_HASH_HEAD = b"\xc4\x20"
_NO_HEAD = "a stored state does not begin with its format, version, hash and offset; run refold verify"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(slots=True)
class Entity:
    """The fold of one entity so far. `clears`: for each field, the greatest Q of a live clear."""

    name: str
    version: int = 0
    cells: dict[str, Any] = field(default_factory=dict)
    links: Links = field(default_factory=dict)
    clears: dict[str, bytes] = field(default_factory=dict)
    dedup_state: DedupState = field(default_factory=DedupState)
    state_hash: bytes = b""


def pack(entity: Entity) -> bytes:
    """Encode an entity to its stored form."""
    dedup_state, cells, links, clears = entity.dedup_state, entity.cells, entity.links, entity.clears
    pending = None if dedup_state.pending is None else sorted(dedup_state.pending) if dedup_state.pending else []
    return _encode(
        [
            FORMAT,
            entity.version,
            entity.state_hash,
            dedup_state.highest_offset,
            {name: _in_order(cell) if type(cell) is dict else cell for name, cell in sorted(cells.items())},
            [[*key, *cell] for key, cell in sorted(links.items())] if links else [],
            _in_order(clears) if clears else clears,
            dedup_state.greatest,
            [*dedup_state.sources],
            [*dedup_state.sources.values()],
            dedup_state.floor,
            dedup_state.last_ids,
            pending,
            dedup_state.lowest_offset,
        ]
    )


def _in_order(cell: dict[Any, Any]) -> dict[Any, Any]:
    return dict(sorted(cell.items())) if len(cell) > 1 else cell


def unpack(name: str, data: bytes) -> Entity:
    """Decode an entity from its stored form.

    Raises:
        CorruptionError: the bytes are not a stored entity.
    """
    try:
        parts = _decode(data)
        if parts[0] != FORMAT:
            raise CorruptionError(f"the stored state of {name} has format {parts[0]}, not {FORMAT}; run refold verify")
        _, version, state_hash, high, cells, links, clears, greatest, sources, around, floor, last_ids, pending, low = (
            parts
        )
        return Entity(
            name,
            version,
            cells,
            {(relation, target): cell for relation, target, *cell in links},
            clears,
            DedupState(
                greatest,
                dict(zip(sources, around, strict=True)),
                floor,
                last_ids,
                None if pending is None else set(pending),
                low,
                high,
            ),
            state_hash,
        )
    except (msgspec.DecodeError, ValueError, TypeError, LookupError) as error:
        raise CorruptionError(f"the stored state of {name} cannot be read: {error}; run refold verify") from error


def stored_version(packed: bytes) -> int:
    """Return the version in a stored form, without reading the rest."""
    return _integer(packed, 2)[0]


def stored_hash(packed: bytes) -> bytes:
    """Return the state hash in a stored form, without reading the rest; CorruptionError if it has none."""
    if packed[3:5] == _HASH_HEAD and packed[2] < 0x80 and len(packed) >= 37:
        return packed[5:37]  # a short cut for most entities, because sealing reads the hash of every entity
    at = _integer(packed, 2)[1]
    if packed[at : at + 2] != _HASH_HEAD or len(packed) < at + 34:
        raise CorruptionError(_NO_HEAD)
    return packed[at + 2 : at + 34]


def stored_highest(packed: bytes) -> int:
    """Return the offset of the latest distinct observation in a stored form, without reading the rest."""
    at = _integer(packed, 2)[1]
    return _integer(packed, at + 34)[0]


def _integer(packed: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned MessagePack integer, and return it and its end: one byte, or a tag and 1, 2, 4 or 8 bytes."""
    head = packed[at] if at < len(packed) else 0xFF
    if head < 0x80:
        return head, at + 1
    if not 0xCC <= head <= 0xCF:
        raise CorruptionError(_NO_HEAD)
    end = at + 1 + (1 << (head - 0xCC))
    return int.from_bytes(packed[at + 1 : end], "big"), end
