"""A key ring that ends with its process: for tests, and for what is to be readable by nobody afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock

from refold.agents.keys.ring import Damage, new_key


class MemoryKeyRing:
    """Keys in this process; see KeyRing."""

    def __init__(self, make: Callable[[], bytes] = new_key) -> None:
        self.place = "this process"
        self._make = make
        self._keys: dict[str, bytes] = {}
        self._lock = Lock()

    def create(self, key_id: str) -> bytes:
        """As KeyRing."""
        with self._lock:
            return self._keys.setdefault(key_id, self._make())

    def get(self, key_id: str) -> bytes | None:
        """As KeyRing."""
        return self._keys.get(key_id)

    def destroy(self, key_id: str) -> None:
        """As KeyRing."""
        self._keys.pop(key_id, None)

    def ids(self) -> list[str]:
        """As KeyRing."""
        return sorted(self._keys.copy())

    def damaged(self, key_ids: Iterable[str]) -> list[Damage]:
        """None."""
        return []

    def remaining(self) -> int:
        """None."""
        return 0

    def settle(self) -> None:
        """There is nothing to do."""

    def refresh(self) -> None:
        """Nobody else has it."""

    def close(self) -> None:
        """Nothing is held open."""
