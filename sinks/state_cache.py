"""The states given out last, so that a busy entity is not read back from the store for each batch."""

from __future__ import annotations

from refold.sinks.port import EntityState

BYTES_MAX = 32 << 20


class Remembered:
    """States by name, those taken up longest ago leave first. Bounded by what was read for them, in encoded bytes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._states: dict[str, tuple[EntityState, int]] = {}
        self._bytes = 0

    def take(self, name: str) -> tuple[EntityState, int] | None:
        """What is known of an entity, and its weight; it is no longer remembered."""
        found = self._states.pop(name, None)
        if found is not None:
            self._bytes -= found[1]
        return found

    def keep(self, state: EntityState, weight: int) -> None:
        """Remember a state that is not remembered now."""
        self._states[state.entity] = state, weight
        self._bytes += weight
        while self._bytes > self._bytes_max:
            self.take(next(iter(self._states)))

    def clear(self) -> None:
        """Remember nothing."""
        self._states.clear()
        self._bytes = 0
