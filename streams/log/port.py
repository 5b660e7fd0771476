"""What a log is to everything above it: partitions of records in order, types, changes, markers and time.

One conformance suite (tests/support/refold_tests/log_conformance.py) holds every backend to this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Observation
from refold.avro.registry import Registry


class Record(NamedTuple):
    """One stored observation record. recorded_at in milliseconds, never falling within a partition."""

    partition: int
    offset: int
    recorded_at: int
    entity: str
    id: bytes
    data: bytes


class Position(NamedTuple):
    """Where a record stands."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}={self.offset}"


class ChangeRecord(NamedTuple):
    """One stored change: its own position in `.changes`, and the framed bytes."""

    partition: int
    offset: int
    data: bytes


class Marked(NamedTuple):
    """A named cut, by its text; marked_at in milliseconds."""

    name: str
    cut: str
    marked_at: int


class Mismatch(NamedTuple):
    """One thing that is not what it should be; entity and field are empty where they do not apply."""

    place: str
    problem: str
    entity: str = ""
    field: str = ""


class LogPort(ABC):
    """A log opened by one process. Reads see at least what this process flushed."""

    url: str
    log_id: bytes
    partitions: int
    registry: Registry

    # Writing

    @abstractmethod
    def register(self, definition: TypeDefinition) -> None:
        """Make a definition part of the log, durable on return; SchemaError where evolution forbids it."""

    @abstractmethod
    def append(self, observation: Observation, observation_id: bytes, data: bytes) -> None:
        """Take an observation's framed bytes; durable after `flush`. May write what came before it."""

    @abstractmethod
    def put_blob(self, digest: bytes, content: bytes) -> None:
        """Store a content by its SHA-256, durable on return."""

    @abstractmethod
    def flush(self) -> None:
        """Return when everything appended is durable and folded."""

    @abstractmethod
    def mark(self, marked: Marked, *, replace: bool) -> None:
        """Keep a named cut, durable on return; InputError when the name is taken and replace is False."""

    @abstractmethod
    def close(self) -> None:
        """Flush and let go of everything. Once more is nothing."""

    # Reading

    @abstractmethod
    def refresh(self) -> None:
        """See what other processes have written by now."""

    @abstractmethod
    def still(self) -> AbstractContextManager[LogPort]:
        """This log as it is now, to be read until the end of the block: what others write meanwhile does not show."""

    @abstractmethod
    def ends(self) -> dict[int, int]:
        """The next offset of each partition."""

    @abstractmethod
    def changes_end(self, partition: int) -> int:
        """The next offset of `.changes` in a partition."""

    @abstractmethod
    def read(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """The records with start <= offset < end, in order."""

    @abstractmethod
    def read_changes(self, partition: int, start: int) -> Iterator[ChangeRecord]:
        """The changes from an offset on, in order, to the present end."""

    @abstractmethod
    def blob(self, digest: bytes) -> bytes | None:
        """A content by its SHA-256, or None."""

    @abstractmethod
    def markers(self) -> Sequence[Marked]:
        """The named cuts, oldest first."""

    @abstractmethod
    def stored_entities(self) -> Iterator[tuple[str, bytes]]:
        """The entity table as it is stored: (entity, packed)."""

    @abstractmethod
    def check_indexes(self, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
        """What in the backend's own indexes is not what the records below the offsets say."""

    def record_at(self, partition: int, offset: int) -> Record | None:
        """The record at a position, or None."""
        return next(self.read(partition, offset, offset + 1), None)

    def first_after(self, partition: int, time_ms: int) -> int:
        """The offset of the first record with recorded_at > time_ms: recorded_at never falls, so by halving."""
        low, high = 0, self.ends()[partition]
        while low < high:
            middle = (low + high) // 2
            record = self.record_at(partition, middle)
            if record is None or record.recorded_at <= time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def entity_records(self, entity: str, end: int) -> Iterator[Record]:
        """The records of one entity below an offset of its partition, in order, repeats included or not."""
        partition = self.partition_of(entity)
        return (record for record in self.read(partition, 0, end) if record.entity == entity)

    def find(self, observation_id: bytes) -> Record | None:
        """The first record with this id in any partition, or None. Backends with an index answer at once."""
        for partition, end in self.ends().items():
            for record in self.read(partition, 0, end):
                if record.id == observation_id:
                    return record
        return None

    @abstractmethod
    def partition_of(self, entity: str) -> int:
        """The partition where an entity's records stand."""
