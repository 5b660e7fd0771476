"""Checkpoints: states of an entity with many versions after some of its arrivals, so that its past is not folded from
nothing.

1. From version FIRST on, the fold writes a checkpoint after every STEP-th version and after every reopening, in its own
   write. So arrivals between two checkpoints always fold directly onto the first.
2. A large state gets fewer: at most about PER_VERSION_BYTES a version, whatever the state's size, but always one when
   the version has doubled.
3. A new definition folds its entities again, and writes one checkpoint for each entity with many versions.

Stored form: the packed entity (reducers/entity.py) and a CRC-32C. It has only the part of the dedup state that folding
directly needs; its state hash is empty.
"""

from __future__ import annotations

from dataclasses import replace

from refold.avro.errors import CorruptionError
from refold.reducers.dedup_state import DedupState
from refold.reducers.entity import Entity, pack, unpack
from refold.streams.checksum import sealed, unsealed
from refold.streams.log.port import Checkpoint
from refold.streams.table import keys

FIRST = 16
STEP = 8
PER_VERSION_BYTES = 1024


def is_due(version: int, size: int) -> bool:
    """Whether a version that folded directly gets a checkpoint.

    Args:
        size: About the state's size in bytes.
    """
    if version < FIRST or version % STEP:
        return False
    step = STEP
    while step * PER_VERSION_BYTES < size:
        step *= 2
    return version % step == 0 or version & (version - 1) == 0


def checkpoint_value(entity: Entity) -> bytes:
    """The stored form of an entity's checkpoint."""
    held = entity.dedup_state
    dedup_state = DedupState(greatest=held.greatest, pending=held.pending, lowest_offset=held.lowest_offset,
                      highest_offset=held.highest_offset)  # fmt: skip
    return sealed(pack(replace(entity, dedup_state=dedup_state, state_hash=b"")))


def checkpoint_of(key: bytes, value: bytes) -> Checkpoint:
    """Decode a checkpoint from its key and value.

    Raises:
        CorruptionError: It is damaged.
    """
    name, offset, definition = keys.checkpoint_place(key)
    entity = unpack(name, unsealed(value, f"the checkpoint of {name} at offset {offset}"))
    if entity.dedup_state.highest_offset != offset:
        raise CorruptionError(
            f"the checkpoint of {name} at offset {offset} belongs to another entity; run refold verify"
        )
    return Checkpoint(offset, definition, entity)
