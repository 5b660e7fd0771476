"""One entity while it is folded: its cells, its links and its residue, and how they are stored.

The stored form is one MessagePack array, told apart by FORMAT and never hashed; docs/FORMAT.md says what stands where,
for whoever reads snapshots without refold. It is a function of the log below it: keys stand in order, however the
entity came to be folded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from refold.avro.errors import CorruptionError
from refold.reducers.dedup_state import DedupState
from refold.reducers.links import Links

FORMAT = 3

# MessagePack's bytes of 32 bytes of binary.
_HASH_HEAD = b"\xc4\x20"
_NO_HEAD = "a stored state does not begin with its format, version, hash and offset; run refold verify"

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
    residue: DedupState = field(default_factory=DedupState)
    state_hash: bytes = b""


def pack(entity: Entity) -> bytes:
    """The stored form."""
    residue, cells, links, clears = entity.residue, entity.cells, entity.links, entity.clears
    pending = None if residue.pending is None else sorted(residue.pending) if residue.pending else []
    return _encode(
        [
            FORMAT,
            entity.version,
            entity.state_hash,
            residue.highest_offset,
            {name: _in_order(cell) if type(cell) is dict else cell for name, cell in sorted(cells.items())},
            [[*key, *cell] for key, cell in sorted(links.items())] if links else [],
            _in_order(clears) if clears else clears,
            residue.greatest,
            [*residue.sources],
            [*residue.sources.values()],
            residue.floor,
            residue.last_ids,
            pending,
            residue.lowest_offset,
        ]
    )


def _in_order(cell: dict[Any, Any]) -> dict[Any, Any]:
    return dict(sorted(cell.items())) if len(cell) > 1 else cell


def unpack(name: str, data: bytes) -> Entity:
    """The entity behind its stored form; raises CorruptionError where it is none."""
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
    """The version in a stored form, without reading the rest."""
    return _integer(packed, 2)[0]


def stored_hash(packed: bytes) -> bytes:
    """The state hash in a stored form, without reading the rest; CorruptionError where none stands there."""
    if packed[3:5] == _HASH_HEAD and packed[2] < 0x80 and len(packed) >= 37:
        return packed[5:37]  # so most of them: sealing asks for every one
    at = _integer(packed, 2)[1]
    if packed[at : at + 2] != _HASH_HEAD or len(packed) < at + 34:
        raise CorruptionError(_NO_HEAD)
    return packed[at + 2 : at + 34]


def stored_highest(packed: bytes) -> int:
    """The offset of the latest distinct observation in a stored form, without reading the rest."""
    at = _integer(packed, 2)[1]
    return _integer(packed, at + 34)[0]


def _integer(packed: bytes, at: int) -> tuple[int, int]:
    """An unsigned MessagePack integer, and where it ends: one byte, or a tag and 1, 2, 4 or 8 of them."""
    head = packed[at] if at < len(packed) else 0xFF
    if head < 0x80:
        return head, at + 1
    if not 0xCC <= head <= 0xCF:
        raise CorruptionError(_NO_HEAD)
    end = at + 1 + (1 << (head - 0xCC))
    return int.from_bytes(packed[at + 1 : end], "big"), end
