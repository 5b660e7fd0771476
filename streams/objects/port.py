"""The interface of an object store: objects by name below one URL.

A put is atomic, also if it replaces an object, and visible to every later read. One suite tests a folder, S3 and memory
(tests/streams/objects/test_objects.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple


class ObjectInfo(NamedTuple):
    """A stored object: its name below the store's URL, its size in bytes, and the time of its put.

    Attributes:
        put_ms: The time in milliseconds since 1970, by the store's clock; some stores round down to whole seconds.
    """

    name: str
    size: int
    put_ms: int


class Objects(ABC):
    """A store. Every method raises StoreUnavailable if the store gives no answer, StoreRefused for a permanent error.

    Attributes:
        url: The store's URL, without any secret.
    """

    url: str

    @abstractmethod
    def prepare(self) -> None:
        """Create the store if necessary. Only in an existing store a missing object is known to be absent."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return an object, or None if an existing store has none of this name."""

    @abstractmethod
    def stat(self, name: str) -> ObjectInfo | None:
        """Return an object's information without reading it, or None as `get` does."""

    @abstractmethod
    def names(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder; nothing if there is no such folder."""

    @abstractmethod
    def folders(self, folder: str) -> Iterator[str]:
        """Yield the names of the folders in a folder, without their parents."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write an object, or replace it; durable on return."""

    @abstractmethod
    def put_file(self, name: str, path: Path) -> None:
        """Like `put`, for a local file of `scratch`, which may be moved."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write an object if none exists, durable on return. Returns False, and writes nothing, if one exists.

        If several processes create one name at once with different bytes, exactly one gets True, and its bytes are
        stored.
        """

    @abstractmethod
    def copy(self, name: str, to: str) -> None:
        """Copy an object to another name; durable on return."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object. Idempotent."""

    @abstractmethod
    def remove(self, folder: str) -> None:
        """Delete everything in a folder and below. After a kill a repeated call removes the rest."""

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Path]:
        """A local folder for files to put, removed after the block."""
