"""Artificial encoded entities, for tests of storage. Nothing is folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from hypothesis import strategies as st

from refold.reducers.dedup_state import DedupState
from refold.reducers.entity import Entity, pack
from refold_tests.reference_root import reference_bucket, reference_slot

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
HASHES = st.binary(min_size=32, max_size=32)


def encoded(name: str, version: int, state_hash: bytes, value: bytes = b"", *, highest: int = 0) -> bytes:
    """Return an entity with this header, and this value as one field's cell.

    Args:
        highest: The offset of its latest distinct observation; the kernel leaves a negative one to Python.
    """
    cells = {"field": [value]} if value else {}
    return pack(Entity(name, version, cells, dedup_state=DedupState(highest_offset=highest), state_hash=state_hash))


@lru_cache(maxsize=10_000)
def place(name: str) -> int:
    """Return slot and bucket, computed by the reference."""
    return reference_slot(name) << 8 | reference_bucket(name)


def grouped(
    rows: Iterable[tuple[str, bytes]], place: Callable[[str], int] = place
) -> list[tuple[int, list[tuple[bytes, bytes]]]]:
    """Group (name, value) rows as chunks take them: ordered by place, within a place by key. place: of a name."""
    places: dict[int, list[tuple[bytes, bytes]]] = {}
    for name, given in rows:
        places.setdefault(place(name), []).append((name.encode(), given))
    return [(each, sorted(places[each])) for each in sorted(places)]
