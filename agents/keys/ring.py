"""Where the keys of runs and subjects are kept: apart from the log, so that destroying one erases what it sealed.

A key is 64 random bytes (AES-256-SIV) under an id such as `run:7f3a`. What every ring promises:

1. `create` gives the id's one key, however many processes ask at once; it is durable before anybody can seal with it.
2. `destroy` is for ever: nobody can have the key again. Nothing is kept of it, so that a ring is as large as what it
   opens; whoever destroys a key sees to it that nothing more is sealed under its id (retention: the run has ended).
3. Both may be killed at any moment and done again.

Whoever can read a ring can read what was sealed with it: keep it apart from the log's copies, and back it up, for a
lost ring is lost content.

`MemoryKeyRing` ends with its process: for tests, and for content that nobody may read afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from threading import Lock
from typing import NamedTuple, Protocol

KEY_BYTES = 64


class Damage(NamedTuple):
    """A key that cannot be used. key_id: its id, empty where it is of none that was asked for. why: with its place."""

    key_id: str
    why: str


class KeyRing(Protocol):
    """Keys by id. May be used from any thread."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    def create(self, key_id: str) -> bytes:
        """The id's key, made and durable where there was none."""

    def get(self, key_id: str) -> bytes | None:
        """The id's key; None where it was destroyed, or never made here."""

    def destroy(self, key_id: str) -> None:
        """Let nobody have the key again, durable on return. Once more is nothing."""

    def ids(self) -> Iterable[str]:
        """The ids of the keys that are there and can be used, in their order."""

    def damaged(self, key_ids: Iterable[str]) -> list[Damage]:
        """The keys that are there and cannot be used. key_ids: those that they may be of."""

    def remaining(self) -> int:
        """How many destroyed keys are still in the storage below the ring, for whoever has its disks."""

    def settle(self) -> None:
        """Let the storage drop what `remaining` counts, as far as it takes anything to do; it may take its time."""

    def refresh(self) -> None:
        """See what other processes have made and destroyed by now."""

    def close(self) -> None:
        """Let go of it. Once more is nothing."""


def new_key() -> bytes:
    """A key from the system's randomness."""
    return secrets.token_bytes(KEY_BYTES)


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
