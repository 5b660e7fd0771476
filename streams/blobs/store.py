"""What a store of contents is to a log: bytes by their SHA-256, put before what names them is appended.

A process that is killed between the two leaves a content that nothing names, which garbage.py finds; never an
observation that names nothing. One suite (tests/streams/blobs/test_stores.py) holds every store to this.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from refold.avro.errors import CorruptionError, RefoldError


class Removed(NamedTuple):
    """What was removed: how many contents, their bytes, and how many were left because they were put just now."""

    contents: int
    bytes: int
    left: int


class StoredContent(NamedTuple):
    """A content that is there: its SHA-256, bytes, and when it was last put, in milliseconds since 1970."""

    digest: bytes
    size: int
    put_ms: int


class ContentStore(ABC):
    """Contents of one log. Every method raises StorageError, as StoreUnavailable where the store gives no answer.

    url: where it is, without any secret. erases_later: whether a removed content's bytes are on disks for some time.
    """

    url: str
    erases_later = False

    @abstractmethod
    def put(self, digest: bytes, content: bytes) -> None:
        """Store a content, durable on return; one that has expired (avro/blob.py) is remembered as such.

        One that is there already is from now on as one put now.
        """

    @abstractmethod
    def get(self, digest: bytes) -> bytes | None:
        """A content, or None where there is none; CorruptionError where it is not what its name says."""

    @abstractmethod
    def size(self, digest: bytes) -> int | None:
        """How many bytes a content has, or None where there is none."""

    @abstractmethod
    def has_expired(self, digest: bytes) -> bool:
        """Whether a content of this name, which is not there, was removed because it had expired."""

    @abstractmethod
    def stored(self) -> Iterator[StoredContent]:
        """The contents that are there; those put meanwhile may or may not be among them."""

    @abstractmethod
    def expired(self) -> Iterator[bytes]:
        """The names of contents that were removed because they had expired; some may have been put again."""

    @abstractmethod
    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> Removed:
        """Remove contents for good, but none put at this time or later (milliseconds since 1970); durable on return.

        is_expiry: remember that they expired. A process killed in between has not removed all; once more does the rest.
        """

    def remaining(self) -> int:
        """How many removed contents the storage below still has the bytes of."""
        return 0

    def settle(self) -> None:
        """Have the storage below drop what it still has of removed contents."""
        return None

    def sweep(self, before_ms: int, *, dry_run: bool) -> int:
        """Remove what is left of contents whose put ended before it was done, but nothing from this time on.

        Returns how many contents, or parts of one.
        """
        return 0

    def has(self, digest: bytes) -> bool:
        """Whether there is a content of this name, or was before it expired."""
        return self.size(digest) is not None or self.has_expired(digest)


class GuardedStore(ContentStore):
    """A store as a log has it: the log says before each change whether it may be changed."""

    def __init__(self, store: ContentStore, require_writable: Callable[[], None]) -> None:
        """Guard a store.

        Args:
            store: where the contents are.
            require_writable: raises the error of a log that may not be written.
        """
        self.url, self.erases_later = store.url, store.erases_later
        self.store = store
        self._require_writable = require_writable

    def put(self, digest: bytes, content: bytes) -> None:
        self._require_writable()
        self.store.put(digest, content)

    def get(self, digest: bytes) -> bytes | None:
        return self.store.get(digest)

    def size(self, digest: bytes) -> int | None:
        return self.store.size(digest)

    def has_expired(self, digest: bytes) -> bool:
        return self.store.has_expired(digest)

    def stored(self) -> Iterator[StoredContent]:
        return self.store.stored()

    def expired(self) -> Iterator[bytes]:
        return self.store.expired()

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> Removed:
        self._require_writable()
        return self.store.remove(digests, before_ms, is_expiry=is_expiry)

    def remaining(self) -> int:
        return self.store.remaining()

    def settle(self) -> None:
        self.store.settle()

    def sweep(self, before_ms: int, *, dry_run: bool) -> int:
        if not dry_run:
            self._require_writable()
        return self.store.sweep(before_ms, dry_run=dry_run)


class NoStore(ContentStore):
    """The store of a log that has none: it is empty, and whoever needs one is told why there is none."""

    url = ""

    def __init__(self, missing: Callable[[], RefoldError]) -> None:
        """missing: makes the error that is raised."""
        self._missing = missing

    def put(self, digest: bytes, content: bytes) -> None:
        raise self._missing()

    def get(self, digest: bytes) -> bytes | None:
        raise self._missing()

    def size(self, digest: bytes) -> int | None:
        return None

    def has_expired(self, digest: bytes) -> bool:
        return False

    def stored(self) -> Iterator[StoredContent]:
        return iter(())

    def expired(self) -> Iterator[bytes]:
        return iter(())

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> Removed:
        raise self._missing()


def whole(digest: bytes, content: bytes, place: str) -> bytes:
    """The content, if it is what its name says; else CorruptionError, by its place."""
    if hashlib.sha256(content).digest() != digest:
        raise CorruptionError(f"{place}: the content does not match its name; restore it from a copy")
    return content


def in_lots(digests: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    """The digests, so many at a time."""
    rest = iter(digests)
    while lot := [*islice(rest, count)]:
        yield lot
