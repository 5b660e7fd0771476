"""The interface of a log: partitions of records in order, types, changes, markers and time.

One conformance suite tests every backend (tests/support/refold_tests/log_conformance.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from refold.avro.definition import TypeDefinition
from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.observation import ID_BYTES, Observation
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import Registry
from refold.reducers.entity import Entity
from refold.reducers.order import order_key
from refold.streams.blobs.store import ContentStore
from refold.streams.log.admin import LogAdmin
from refold.streams.snapshots.store import SnapshotReader


class Record(NamedTuple):
    """One stored observation record. recorded_at in milliseconds; it never decreases within a partition."""

    partition: int
    offset: int
    recorded_at: int
    entity: str
    id: bytes
    data: bytes


HOLE_ID = bytes(ID_BYTES)


def _nothing() -> None:
    pass


def hole(partition: int, offset: int, recorded_at: int) -> Record:
    """Return the record without data that represents an offset without an observation.

    The offset has a verdict, or no record that readers get (streams/log/kafka/).

    Args:
        partition: The partition.
        offset: The offset.
        recorded_at: As of any record, in milliseconds.
    """
    return Record(partition, offset, recorded_at, "", HOLE_ID, b"")


def is_hole(record: Record) -> bool:
    """Whether a record represents an offset without an observation. A damaged record does not."""
    return not record.data and not record.entity and record.id == HOLE_ID


class IndexedObservation(NamedTuple):
    """The first record of a distinct observation of one entity, undecoded. q: its order key (reducers/order.py)."""

    offset: int
    recorded_at: int
    q: bytes
    retracts: bool


def observation_in(registry: Registry, record: Record) -> Observation:
    """Decode a record's observation.

    Raises:
        DamagedRecord: Its bytes are not one.
    """
    try:
        return registry.decode(record.data)
    except UndecodableError as error:
        partition, offset, _, entity, *_ = record
        raise registry.rulings.damaged(OBSERVATIONS, partition, offset, entity, str(error)) from error


def arrival_of(registry: Registry, record: Record) -> IndexedObservation:
    """Return a record that repeats no earlier one as an arrival."""
    observation = observation_in(registry, record)
    return IndexedObservation(
        record.offset, record.recorded_at, order_key(observation, record.id), bool(observation.retracts)
    )


class AppendedObservation(NamedTuple):
    """An observation to append: its entity, its id and its framed bytes; and itself, if the caller has it."""

    entity: str
    id: bytes
    data: bytes
    observation: Observation | None = None


def missing_observation(entity: str, q: bytes) -> CorruptionError:
    """The error for an observation that is missing although the log returned its order key."""
    return CorruptionError(f"{entity} lacks the observation {q[-ID_BYTES:].hex()}; run refold verify")


class Checkpoint(NamedTuple):
    """An entity's fold of its arrivals up to the one at `offset`, by the definition at an offset of `.schemas`.

    Its dedup state can only be used to continue the fold directly after it, and its state hash is empty.
    """

    offset: int
    definition: int
    entity: Entity


class Position(NamedTuple):
    """A record's position."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}={self.offset}"


class ChangeRecord(NamedTuple):
    """One stored change: its own position in `.changes`, and the framed bytes."""

    partition: int
    offset: int
    data: bytes


class DeadLetter(NamedTuple):
    """One stored verdict: its own position in `.deadletters`, and its bytes."""

    partition: int
    offset: int
    data: bytes


class Foreign(NamedTuple):
    """Records that refold did not write, in a topic or table of the log: their number, and the position of the
    first.
    """

    topic: str
    records: int
    first: Position


class SetAside(NamedTuple):
    """Damaged records of a topic that are set aside: their number, and the position of the first."""

    topic: str
    records: int
    first: Position


class Marked(NamedTuple):
    """A named cut, by its text; marked_at in milliseconds."""

    name: str
    cut: str
    marked_at: int


class Mismatch(NamedTuple):
    """One difference that verify found; entity and field are empty if they do not apply."""

    place: str
    problem: str
    entity: str = ""
    field: str = ""


class FoldPosition(NamedTuple):
    """The fold position of a partition: its next offset, and the next offset of `.schemas`."""

    offset: int
    schemas: int


class OtherTables(NamedTuple):
    """Mismatches in tables of other processes, and the tables that were not checked, with what to do about it."""

    mismatches: Sequence[Mismatch] = ()
    unchecked: Sequence[str] = ()


def firsts(records: Iterable[Record]) -> Iterator[Record]:
    """Skip records that repeat an earlier observation."""
    known: set[bytes] = set()
    for record in records:
        if record.id not in known:
            known.add(record.id)
            yield record


class RecordRows(Protocol):
    """Compares indexes with the records of partitions: see IndexCheck of streams/table/check.py."""

    distinct: int

    def check(self, some: Sequence[Record], confirmation: Any) -> Iterator[Mismatch]:
        """Yield the mismatches of the next records."""

    def checkpoints(self, partitions: Collection[int] | None = None) -> Iterator[Mismatch]:
        """Yield the mismatches of the checkpoints of some partitions; None for all."""

    def entries(self, distinct: int) -> Iterator[Mismatch]:
        """Yield the entries without a record."""


class LogReader(ABC):
    """The reads of a log. They see at least everything that this process flushed.

    Attributes:
        archived_at: The time in milliseconds, if this is the archive of another log: it has that log's id, takes no
            appends, and answers for no later time.
        forked_from: The id of the log whose archive this one continues.
        blobs: The contents that are too large for a record.
        has_store: Whether contents can be stored.
        is_indexed: Whether `find`, one entity's records and single records are lookups, not passes over a partition.
        is_dense: Whether `.changes` has a change at every offset.
        has_tables: Whether the entity tables are in this process; otherwise `check_elsewhere` checks them.
        config: The settings, apart from the URL, that open the log in another process.
        keeps_order: Whether a lost observation implies that all later ones are lost too, in all partitions.
    """

    url: str
    log_id: bytes
    partitions: int
    registry: Registry
    snapshots: SnapshotReader
    archived_at: int | None = None
    forked_from: bytes | None = None
    has_store: bool = True
    blobs: ContentStore
    is_indexed: bool = True
    is_dense: bool = True
    has_tables: bool = True
    keeps_order: bool = True
    config: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def close(self) -> None:
        """Flush and close the log. Idempotent."""

    @abstractmethod
    def refresh(self) -> None:
        """Make everything that other processes have written by now visible."""

    @abstractmethod
    def frozen(self, *, is_verified: bool = False) -> AbstractContextManager[LogReader]:
        """A consistent view of the log as it is now, until the end of the block: later writes are not visible.

        Args:
            is_verified: Whether changes and epochs are of one point, too (`folded`).
        """

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

    def deadletters(self) -> Iterator[DeadLetter]:
        """The verdicts, in the order of partition and offset."""
        return iter(())

    def foreign(self, *, last: int | None = 0) -> Sequence[Foreign]:
        """The records that were skipped because refold did not write them, by topic, as far as this process read.

        Args:
            last: Of topics that are read on demand, first read this number of each partition's last offsets; None for
                all.
        """
        return ()

    def set_aside(self) -> Sequence[SetAside]:
        """The damaged records that are set aside, by topic, as of the last refresh."""
        return ()

    def passed_over(self) -> Sequence[SetAside]:
        """The records of unreadable batches that every reader skips, by topic, as far as was read. Either they are not
        required, or an operation that requires one raises an error.
        """
        return ()

    @abstractmethod
    def markers(self) -> Sequence[Marked]:
        """The named cuts, oldest first."""

    @abstractmethod
    def stored_entities(self) -> Iterator[tuple[str, bytes]]:
        """Yield the rows of the entity table: (entity, packed state)."""

    @abstractmethod
    def totals(self, partition: int) -> tuple[int, int]:
        """The log's counts of entities and of distinct observations in a partition."""

    @abstractmethod
    def check_indexes(self, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
        """Yield every misplaced row of the backend's tables, and every record at or past the offsets."""

    def record_rows(self, checks: Callable[[str], bool]) -> RecordRows | None:
        """Return a check of the indexes by the log's records; None if this process has no complete indexes.

        Args:
            checks: Selects the entities that Python checks even if the native kernel confirms them.
        """
        return None

    def check_elsewhere(self) -> OtherTables:
        """Let the processes that hold this log's tables check them. May be called from any thread."""
        return OtherTables()

    def folded(self) -> dict[int, FoldPosition]:
        """The fold position by partition: changes exist up to there."""
        schemas = len(self.registry)
        return {partition: FoldPosition(end, schemas) for partition, end in self.ends().items()}

    def record_at(self, partition: int, offset: int) -> Record | None:
        """The record at a position, or None."""
        return next(self.read(partition, offset, offset + 1), None)

    @abstractmethod
    def first_after(self, partition: int, time_ms: int) -> int:
        """The offset of the first record with recorded_at > time_ms, or the next offset. Verdicts do not affect it."""

    def read_with_holes(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """The records of a partition with start <= offset < end, and a hole at each offset without an observation."""
        return self.read(partition, start, end)

    def recorded_below(self, partition: int, offset: int) -> int:
        """The greatest recorded_at below an offset, in milliseconds; 0 if there is no record."""
        record = self.record_at(partition, offset - 1) if offset else None
        return 0 if record is None else record.recorded_at

    def entity_records(self, entity: str, end: int, start: int = 0) -> Iterator[Record]:
        """The records of one entity with start <= offset < end, in order, repeats included or not."""
        partition = self.partition_of(entity)
        return (record for record in self.read(partition, start, end) if record.entity == entity)

    def arrivals(self, entity: str, end: int, start: int = 0) -> Iterator[IndexedObservation]:
        """The distinct observations of one entity with start <= offset < end, in order."""
        for record in firsts(self.entity_records(entity, end)):
            if record.offset >= start:
                yield arrival_of(self.registry, record)

    def records_of(self, entity: str, qs: Iterable[bytes]) -> Iterator[Record]:
        """The first record of each of an entity's observations, by order key.

        Raises:
            CorruptionError: One is missing.
        """
        records = self.entity_records(entity, self.ends()[self.partition_of(entity)])
        first = {record.id: record for record in firsts(records)}
        for q in qs:
            if q[-ID_BYTES:] not in first:
                raise missing_observation(entity, q)
            yield first[q[-ID_BYTES:]]

    def checkpoint(self, entity: str, end: int, definition: int) -> Checkpoint | None:
        """The last checkpoint of an entity.

        Args:
            entity: `type/id`.
            end: Only checkpoints below this offset.
            definition: Only checkpoints by the definition at this offset of `.schemas`.

        Returns:
            The checkpoint; None if there is none.

        Raises:
            CorruptionError: It is damaged.
        """
        return None

    def records_among(
        self, partition: int, names: Collection[str], end: int, looked_at: Callable[[int], None]
    ) -> Iterator[Record]:
        """The records of some entities of one partition, those of one entity in order.

        This makes one pass over the partition that compares keys and decodes nothing. Backends with an index override
        it.

        Args:
            partition: The partition.
            names: The entities.
            end: Only records below this offset.
            looked_at: Called with the number of further records read.
        """
        for record in self.read(partition, 0, end):
            if record.entity in names:
                yield record
        looked_at(end)

    @property
    def has_id_index(self) -> bool:
        """Whether `find` is a lookup and does not read the log."""
        return False

    def find(self, observation_id: bytes) -> Record | None:
        """The first record with this id in any partition, or None. It is a lookup in backends with an index."""
        for partition, end in self.ends().items():
            for record in self.read(partition, 0, end):
                if record.id == observation_id:
                    return record
        return None

    def are_first(self, records: Sequence[Record]) -> list[bool]:
        """Whether each record is the first one with its id.

        Raises:
            CorruptionError: The log does not find a record's id.
        """
        return [self._is_first(each) for each in records]

    def _is_first(self, record: Record) -> bool:
        first = self.find(record.id)
        if first is None:
            place = f"observations {record.partition}={record.offset}"
            raise CorruptionError(f"{place}: the log does not find its own id; run refold verify")
        return (first.partition, first.offset) == (record.partition, record.offset)

    @abstractmethod
    def partition_of(self, entity: str) -> int:
        """The partition of an entity's records."""


class LogWriter(ABC):
    """The writes of a log: definitions, observations and markers."""

    @abstractmethod
    def register(self, definition: TypeDefinition) -> None:
        """Register a definition, durable on return.

        Raises:
            SchemaError: It is incompatible with earlier ones.
        """

    def append(self, observation: AppendedObservation) -> None:
        """Append a checked observation; durable after `flush`. May write earlier appended ones."""
        self.append_encoded([observation])

    @abstractmethod
    def append_encoded(self, observations: Sequence[AppendedObservation]) -> None:
        """Append checked observations, in their order; see `append`."""

    @abstractmethod
    def flush(self) -> None:
        """Return when everything appended is durable. A `file:` log has folded it by then, a log on Kafka may not."""

    def begin_flush(self) -> Callable[[], None]:
        """Begin a flush, and return a function that waits for its end, which other threads need not wait for.

        The default waits here, and returns a function that does nothing.
        """
        self.flush()
        return _nothing

    def publish(self) -> None:
        """Return when readers on this machine can see everything appended.

        In a `file:` log it is folded by then, and becomes durable with the next flush. On Kafka this is `flush`.
        """
        self.flush()

    @abstractmethod
    def mark(self, marked: Marked, *, replace: bool) -> None:
        """Store a marker, durable on return.

        Raises:
            InputError: The name is taken and `replace` is False.
        """


class LogPort(LogReader, LogWriter, LogAdmin):
    """A log that is open in one process: on a file, on Kafka, or an archive."""
