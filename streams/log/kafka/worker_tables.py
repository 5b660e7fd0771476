"""What stands with a log's workers: the tables of the partitions that they fold, and the folding itself.

A client of a Kafka log has neither. It asks the workers over their pages (worker_client.py); in a worker's own process
they are at hand (streams/worker/tables.py). What tables say is a short cut: each answer tells up to which offset it
holds, the log is read for the rest, and for all of it where no worker answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from refold.streams.log.port import Checkpoint, Elsewhere, IndexedObservation, Record
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch


class IndexedHistory(NamedTuple):
    """The distinct observations of an entity that a table's indexes hold; all of them below the offset `through`."""

    through: int
    arrivals: Sequence[IndexedObservation]


class IndexedRecords(NamedTuple):
    """Records in the order in which they were asked for, None for what the indexes lack; `through` as in Arrived."""

    through: int
    records: Sequence[Record | None]


class Places(NamedTuple):
    """(partition, offset) of records whose ids begin as the one asked for.

    through: the offset below which that is all, of the partitions that were looked at.
    """

    places: Sequence[tuple[int, int]]
    through: Mapping[int, int]


class TableClient(ABC):
    """The tables of a log, asked for what they hold of an entity, with its partition.

    None where nobody who folds that answers.
    """

    @abstractmethod
    def arrivals(self, partition: int, entity: str, start: int, end: int) -> IndexedHistory | None:
        """An entity's observations with start <= offset < end."""

    @abstractmethod
    def records_of(self, partition: int, entity: str, qs: Sequence[bytes]) -> IndexedRecords | None:
        """The first record of each of an entity's observations, by order key."""

    @abstractmethod
    def checkpoint(self, partition: int, entity: str, end: int, definition: int) -> Checkpoint | None:
        """LogPort.checkpoint; None also where there is none."""

    @abstractmethod
    def places_of(self, observation_id: bytes) -> Places:
        """Where an id may stand."""

    @abstractmethod
    def entities(self, partition: int) -> Iterator[tuple[str, bytes]]:
        """A partition's table as it is stored: (entity, packed). StorageError where nobody answers."""

    @abstractmethod
    def totals(self, partition: int) -> tuple[int, int]:
        """How many entities, and distinct observations, a partition's table counts. StorageError likewise."""


class Folding(ABC):
    """The workers, as what they are told to do. StorageError says what to do where they do not answer."""

    @abstractmethod
    def await_folded(self, offsets: Mapping[int, int], schemas: int) -> None:
        """Return when everything below the offsets is folded, and the definitions below `schemas` are taken up."""

    @abstractmethod
    def snapshot(self, pinned_at: int | None) -> Sequence[Epoch]:
        """Seal an epoch of every partition that has records where its fold stands; see LogPort.snapshot."""

    @abstractmethod
    def pin(self, epochs: Iterable[Epoch], pinned_at: int | None) -> None:
        """LogPort.pin, of epochs that are there."""

    @abstractmethod
    def collect(self, *, dry_run: bool, damaged: bool) -> Sequence[Collected]:
        """LogPort.collect."""

    @abstractmethod
    def recover(self, *, wait: bool) -> Mapping[str, object]:
        """LogPort.recover."""

    @abstractmethod
    def verify(self) -> Elsewhere:
        """Have every table compared with a full replay, by the worker that keeps it."""
