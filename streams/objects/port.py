"""What an object store is to everything above it: whole objects by name below one URL.

An object appears with all its bytes or not at all, replaces another of its name likewise, and whoever looks after that
sees it. One suite (tests/streams/objects/test_objects.py) holds a folder, S3 and memory to this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple


class ObjectInfo(NamedTuple):
    """An object that is there: its name below the store's URL, bytes, and when it was put.

    put_ms: milliseconds since 1970 by the store's own clock, perhaps in whole seconds: then it is the second's start.
    """

    name: str
    size: int
    put_ms: int


class Objects(ABC):
    """A store. Every method raises StoreUnavailable where it gives no answer, StoreRefused where it refuses for good.

    url: where it is, without any secret.
    """

    url: str

    @abstractmethod
    def prepare(self) -> None:
        """Make the store where it is not one yet, so that what is not found in it is known not to be there."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """An object, or None where there is none of this name in a store that is there."""

    @abstractmethod
    def stat(self, name: str) -> ObjectInfo | None:
        """What is known of an object without reading it, or None as `get`."""

    @abstractmethod
    def names(self, folder: str) -> Iterator[ObjectInfo]:
        """The objects in a folder, those in folders of it not among them; nothing where there is no such folder."""

    @abstractmethod
    def folders(self, folder: str) -> Iterator[str]:
        """The names of the folders in a folder, without what they are in."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write an object, or replace it; durable on return."""

    @abstractmethod
    def put_file(self, name: str, path: Path) -> None:
        """As `put`, of a local file of `scratch`, which may be gone afterwards."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write an object where there is none, durable on return; False, and nothing is written, where there is one.

        Of several who create one name at once, each with bytes of its own, one is told True, and its bytes stand.
        """

    @abstractmethod
    def copy(self, name: str, to: str) -> None:
        """Let an object stand under another name too; durable on return."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is removed already."""

    @abstractmethod
    def remove(self, folder: str) -> None:
        """Delete all that is in a folder and below; repeated, it removes what a killed one left of it."""

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Path]:
        """A local folder for files to be put, gone after the block."""
