"""One entity while it is folded: its cells, its links and its dedup state, and their stored form.

The stored form is one MessagePack array that begins with FORMAT, and is never hashed; docs/FORMAT.md describes it, for
programs that read snapshots without refold. It is a function of the log below it: keys are sorted, whatever the order
in which the entity was folded. It has each order key (Q) once, and everything else refers to Q by its number: the
observation that set all fields of an entity is the holder of each of them, and the greatest of its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from refold.avro.errors import CorruptionError
from refold.avro.observation import ID_BYTES
from refold.reducers.dedup_state import DedupState, source_in
from refold.reducers.links import Links
from refold.reducers.order import FIRST

FORMAT = 4

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
    dedup_state, links, clears = entity.dedup_state, entity.links, entity.clears
    cells = sorted(entity.cells.items())
    keys = {dedup_state.greatest, dedup_state.floor, *dedup_state.sources.values(), *clears.values()}
    keys.update(cell[-1] for cell in links.values())
    for _, cell in cells:
        keys.update(_keys_in(cell))
    keys.discard(FIRST)
    in_order = sorted(keys)
    numbers: dict[bytes, int | None] = dict(zip(in_order, range(len(in_order)), strict=True))
    numbers[FIRST] = None
    by_id = {q[-ID_BYTES:]: numbers[q] for q in dedup_state.sources.values()}
    pending = None if dedup_state.pending is None else sorted(dedup_state.pending) if dedup_state.pending else []
    return _encode(
        [
            FORMAT,
            entity.version,
            entity.state_hash,
            dedup_state.highest_offset,
            in_order,
            {name: _numbered(cell, numbers) for name, cell in cells},
            [[*key, *cell[:-1], numbers[cell[-1]]] for key, cell in sorted(links.items())] if links else [],
            {name: numbers[q] for name, q in sorted(clears.items())} if clears else clears,
            numbers[dedup_state.greatest],
            [numbers[q] for q in dedup_state.sources.values()],
            numbers[dedup_state.floor],
            [by_id.get(each, each) for each in dedup_state.last_ids],
            pending,
            dedup_state.lowest_offset,
        ]
    )


# A cell is a dict of [..., Q], a list of [element, Q, index], or [..., Q] (reducers/collection.py, cells.py).


def _is_append(cell: list[Any]) -> bool:
    return not cell or type(cell[-1]) is list


def _keys_in(cell: Any) -> Iterable[bytes]:
    if type(cell) is dict:
        return [held[-1] for held in cell.values()]
    return [q for _, q, _ in cell] if _is_append(cell) else (cell[-1],)


def _numbered(cell: Any, numbers: Mapping[bytes, int | None]) -> Any:
    """Return a copy of a cell with the numbers of its order keys."""
    if type(cell) is dict:
        return {key: [*held[:-1], numbers[held[-1]]] for key, held in sorted(cell.items())}
    if _is_append(cell):
        return [[element, numbers[q], index] for element, q, index in cell]
    return [*cell[:-1], numbers[cell[-1]]]


def _put_keys(cell: Any, keys: Mapping[int | None, bytes]) -> None:
    """Replace the numbers in a cell by the order keys."""
    if type(cell) is dict:
        for held in cell.values():
            held[-1] = keys[held[-1]]
    elif _is_append(cell):
        for held in cell:
            held[1] = keys[held[1]]
    else:
        cell[-1] = keys[cell[-1]]


def unpack(name: str, data: bytes) -> Entity:
    """Decode an entity from its stored form.

    Raises:
        CorruptionError: the bytes are not a stored entity.
    """
    try:
        parts = _decode(data)
        if parts[0] != FORMAT:
            raise CorruptionError(f"the stored state of {name} has format {parts[0]}, not {FORMAT}; run refold verify")
        _, version, state_hash, high, in_order, cells, links, clears, *dedup_parts = parts
        greatest, sources, floor, last_ids, pending, low = dedup_parts
        # A dict refuses numbers that a list would take from its end.
        keys: dict[int | None, bytes] = dict(enumerate(in_order))
        keys[None] = FIRST
        for cell in cells.values():
            _put_keys(cell, keys)
        return Entity(
            name,
            version,
            cells,
            {(relation, target): [*cell, keys[number]] for relation, target, *cell, number in links},
            {field: keys[number] for field, number in clears.items()},
            DedupState(
                keys[greatest],
                {source_in(q): q for q in map(keys.__getitem__, sources)},
                keys[floor],
                [each if type(each) is bytes else keys[each][-ID_BYTES:] for each in last_ids],
                None if pending is None else set(pending),
                low,
                high,
            ),
            state_hash,
        )
    except (msgspec.DecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
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
