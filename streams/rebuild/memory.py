"""What a rebuild keeps in memory before it is part of the view."""

from __future__ import annotations

from dataclasses import dataclass

from refold.streams.defaults import PUT_BYTES


@dataclass(frozen=True, slots=True)
class RebuildMemory:
    """Limits of the memory of a rebuild. Every value gives the same entities.

    put_bytes: the entities that were folded since a layer was made of them (streams/snapshots/layers.py).
    objects: in each partition so many entities stay objects when the others are encoded, which is done at twice as
    many.
    postponed_records: postponed entities are folded in groups of about so many records.
    """

    put_bytes: int = PUT_BYTES
    objects: int = 20_000
    postponed_records: int = 500_000


DEFAULT_MEMORY = RebuildMemory()
