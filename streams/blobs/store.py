"""The interface of a content store: bytes by their SHA-256. A content is put before an observation that names it is
appended.

A process that is killed between the two leaves a content that nothing names, which garbage.py finds, but never an
observation that names a missing content. One suite tests every store (tests/streams/blobs/test_stores.py).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from refold.avro.blob import Blob
from refold.avro.errors import CorruptionError, Expired, InputError, RefoldError


class RemovalResult(NamedTuple):
    """The result of a removal: the number of contents, their bytes, and the number kept because they were put
    recently.
    """

    contents: int
    bytes: int
    left: int


class StoredContent(NamedTuple):
    """A stored content: its SHA-256, its size in bytes, and the time of its last put, in milliseconds since 1970."""

    digest: bytes
    size: int
    put_ms: int


class ContentStore(ABC):
    """Contents of one log. Every method may raise StorageError, or StoreUnavailable if the store gives no answer.

    Attributes:
        url: The store's URL, without any secret.
        erases_later: Whether a removed content's bytes stay on disks for some time.
    """

    url: str
    erases_later = False

    @abstractmethod
    def put(self, digest: bytes, content: bytes) -> None:
        """Store a content, durable on return. The marker of an expired content (avro/blob.py) is stored as such.

        Putting an existing content updates its put time.
        """

    @abstractmethod
    def get(self, digest: bytes) -> bytes | None:
        """Return a content, or None if it does not exist.

        Raises:
            CorruptionError: It does not match its name.
        """

    @abstractmethod
    def size(self, digest: bytes) -> int | None:
        """Return a content's size in bytes, or None if it does not exist."""

    @abstractmethod
    def has_expired(self, digest: bytes) -> bool:
        """Whether a missing content of this name was removed because it had expired."""

    @abstractmethod
    def stored(self) -> Iterator[StoredContent]:
        """Yield the stored contents; those put meanwhile may or may not be included."""

    @abstractmethod
    def expired(self) -> Iterator[bytes]:
        """The names of contents that were removed because they had expired; some may have been put again."""

    @abstractmethod
    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> RemovalResult:
        """Remove contents that were put before a time (milliseconds since 1970); durable on return.

        Args:
            is_expiry: Note them as expired. After a kill in between, a repeated call removes the rest.
        """

    def remaining(self) -> int:
        """The number of removed contents whose bytes are still in the underlying storage."""
        return 0

    def erase_removed(self) -> None:
        """Make the underlying storage drop the bytes of removed contents."""
        return None

    def sweep(self, before_ms: int, *, dry_run: bool) -> int:
        """Remove the remains of unfinished puts that began before a time (milliseconds since 1970).

        Returns the number of contents, or of parts of one.
        """
        return 0

    def has(self, digest: bytes) -> bool:
        """Whether a content of this name exists or has expired."""
        return self.size(digest) is not None or self.has_expired(digest)


class GuardedStore(ContentStore):
    """A log's store: before each change it checks whether the log may be written."""

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

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> RemovalResult:
        self._require_writable()
        return self.store.remove(digests, before_ms, is_expiry=is_expiry)

    def remaining(self) -> int:
        return self.store.remaining()

    def erase_removed(self) -> None:
        self.store.erase_removed()

    def sweep(self, before_ms: int, *, dry_run: bool) -> int:
        if not dry_run:
            self._require_writable()
        return self.store.sweep(before_ms, dry_run=dry_run)


class NoStore(ContentStore):
    """The store of a log without one: it is empty, and a put raises an error that says why."""

    url = ""

    def __init__(self, missing: Callable[[], RefoldError]) -> None:
        """
        Args:
            missing: Makes the error that is raised.
        """
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

    def remove(self, digests: Iterable[bytes], before_ms: int, *, is_expiry: bool = True) -> RemovalResult:
        raise self._missing()


def whole(digest: bytes, content: bytes, place: str) -> bytes:
    """Return the content if it matches its name.

    Args:
        digest: Its name: its SHA-256, 32 bytes.
        content: What the store holds under that name.
        place: Where it was read, for the error.

    Raises:
        CorruptionError: It does not match.
    """
    if hashlib.sha256(content).digest() != digest:
        raise CorruptionError(f"{place}: the content does not match its name; restore it from a copy")
    return content


def in_batches(digests: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    """Yield the digests in lists of `count`."""
    rest = iter(digests)
    while lot := [*islice(rest, count)]:
        yield lot


def content_of(store: ContentStore, reference: Blob | str) -> bytes:
    """Return the content that a reference names.

    Args:
        store: The log's content store.
        reference: The Blob, or its SHA-256 in hex.

    Raises:
        Expired: The content was removed by retention.
        InputError: The store has no such content, or the reference is neither.
    """
    try:
        digest = reference.hash if isinstance(reference, Blob) else bytes.fromhex(reference)
    except (TypeError, ValueError):
        raise InputError(f"{reference!r:.80}: give a content's Blob, or its SHA-256 in hex") from None
    content = store.get(digest)
    if content is None and store.has_expired(digest):
        raise Expired(f"{digest.hex()}: the content has expired; it was removed from the log's store")
    if content is None:
        raise InputError(f"{digest.hex()}: no such content in this log's store")
    return content
