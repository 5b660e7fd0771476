"""Key rings store the keys of runs and subjects outside of the log: destroying a key erases what it sealed.

A key is 64 random bytes (AES-256-SIV) under an id such as `run:7f3a`. Every ring promises:

1. `create` returns the one key of an id, however many processes call it at once. The key is durable before anybody can
   seal with it.
2. `destroy` is final: nobody can get the key again. The ring stores nothing about it, so that a ring is only as large
   as the keys it holds. The caller of `destroy` ensures that nothing more is sealed under the id (retention: the run
   has ended).
3. A process may be killed during either at any moment, and the call can be repeated.

Access to a ring gives access to everything that was sealed with it. So keep it apart from the log's copies, and back it
up: a lost ring is lost content.

`MemoryKeyRing` lives as long as its process: for tests, and for content that nobody may read afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from threading import Lock
from typing import NamedTuple, Protocol

KEY_BYTES = 64


class KeyDamage(NamedTuple):
    """A key that exists and cannot be used.

    Attributes:
        key_id: Its id; empty if it is not among the given ids.
        why: The reason, with the key's place.
    """

    key_id: str
    why: str


class KeyRing(Protocol):
    """Keys by id. May be used from any thread."""

    @property
    def place(self) -> str:
        """Where the ring is stored, for messages."""

    def create(self, key_id: str) -> bytes:
        """Return the id's key; create it, durably, if there is none.

        Raises:
            KeyUnreadable: The key exists and cannot be read.
            StorageError: The ring cannot be read or written.
        """

    def get(self, key_id: str) -> bytes | None:
        """Return the id's key; None if it was destroyed, or never created here.

        Raises:
            KeyUnreadable: The key exists and cannot be read.
        """

    def destroy(self, key_id: str) -> None:
        """Destroy the id's key, durably on return. Idempotent.

        Raises:
            StorageError: The ring cannot be written.
        """

    def ids(self) -> Iterable[str]:
        """Return the ids of the existing keys that can be used, in order."""

    def damaged(self, key_ids: Iterable[str]) -> list[KeyDamage]:
        """Return the existing keys that cannot be used.

        Args:
            key_ids: The ids that they may belong to.
        """

    def remaining(self) -> int:
        """Return how many destroyed keys the storage below the ring still has; they can be read from its disks."""

    def erase_removed(self) -> None:
        """Start whatever makes the storage drop what `remaining` counts; it may take effect later."""

    def refresh(self) -> None:
        """Read which keys other processes have created and destroyed."""

    def close(self) -> None:
        """Release all resources. Idempotent."""


def new_key() -> bytes:
    """Return a key from the system's random source."""
    return secrets.token_bytes(KEY_BYTES)


class MemoryKeyRing:
    """Keys in the memory of this process; see KeyRing."""

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

    def damaged(self, key_ids: Iterable[str]) -> list[KeyDamage]:
        """Return an empty list: no key can be damaged."""
        return []

    def remaining(self) -> int:
        """Return 0."""
        return 0

    def erase_removed(self) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Do nothing: no other process has this ring."""

    def close(self) -> None:
        """Do nothing."""
