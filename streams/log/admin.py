"""The administration of a log, a part of its interface (port.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from refold.streams.blobs.store import ContentStore
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch


class LogAdmin(ABC):
    """The administration of a log: its snapshots, its tables and its store of contents."""

    @abstractmethod
    def snapshot(self, pinned_at: int | None = None) -> Sequence[Epoch]:
        """Seal an epoch of every partition that has records, durable on return.

        Args:
            pinned_at: When they are pinned, in milliseconds since 1970; None to pin none.
        """

    @abstractmethod
    def pin(self, epochs: Sequence[Epoch], pinned_at: int | None) -> None:
        """Pin or unpin sealed epochs, durable on return.

        Args:
            epochs: The epochs.
            pinned_at: When they are pinned, in milliseconds since 1970; None to unpin them.

        Raises:
            InputError: One of them does not exist. None is changed then.
        """

    @abstractmethod
    def collect(self, *, dry_run: bool = False, damaged: bool = False) -> Sequence[Collected]:
        """Remove the epochs that the retention policy does not keep. Returns the result by partition.

        Args:
            dry_run: Whether to remove nothing.
            damaged: Whether to also remove manifests that cannot be read.
        """

    @abstractmethod
    def recover(self, *, wait: bool) -> Mapping[str, object]:
        """Delete the entity tables and make them again; durable on return. Returns how (`Rebuilt.source`).

        Args:
            wait: Whether to wait for their indexes too, which are otherwise filled in the background.
        """

    def make_store(self) -> bool:
        """Create the log's own content store if it has none and can have one. Returns whether it was created."""
        return False

    @abstractmethod
    def other_store(self, url: str | None) -> AbstractContextManager[ContentStore]:
        """Open another store that could hold the log's contents, to copy them there.

        Args:
            url: In the form of blobs/url.py; None for the log's own store, if it was not created yet.
        """
