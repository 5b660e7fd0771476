"""What a rebuild keeps in memory before it is part of the view."""

from __future__ import annotations

from dataclasses import dataclass

from refold.streams.defaults import PUT_BYTES


@dataclass(frozen=True, slots=True)
class RebuildMemory:
    """Limits of the memory of a rebuild. Every value gives the same entities.

    Attributes:
        put_bytes: The size of folded entities at which a layer is made of them (streams/snapshots/layers.py).
        objects: The number of entities of each partition that stay objects. At twice as many, the others are encoded.
        postponed_records: The approximate number of records in a group of postponed entities, which is folded at once.
    """

    put_bytes: int = PUT_BYTES
    objects: int = 20_000
    postponed_records: int = 500_000


DEFAULT_MEMORY = RebuildMemory()
