"""What a log is to everything above it: partitions of records in order, types, changes, markers and time.

One conformance suite (tests/support/refold_tests/log_conformance.py) holds every backend to this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.observation import ID_BYTES, Observation
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import Registry
from refold.reducers.entity import Entity
from refold.reducers.order import order_key
from refold.streams.blobs.store import ContentStore
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import SnapshotReader


class Record(NamedTuple):
    """One stored observation record. recorded_at in milliseconds, never falling within a partition."""

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
    """What stands for an offset without an observation, where every offset is asked for: it has no data.

    A verdict is on it, or nothing is given out there (streams/log/kafka/). recorded_at as of any record.
    """
    return Record(partition, offset, recorded_at, "", HOLE_ID, b"")


def is_hole(record: Record) -> bool:
    """Whether it stands for no observation; a record that was damaged does not."""
    return not record.data and not record.entity and record.id == HOLE_ID


class IndexedObservation(NamedTuple):
    """A distinct observation of one entity where it first stands, undecoded; q is its order key (reducers/order.py)."""

    offset: int
    recorded_at: int
    q: bytes
    retracts: bool


def observation_in(registry: Registry, record: Record) -> Observation:
    """The observation in a record; DamagedRecord where its bytes are none."""
    try:
        return registry.decode(record.data)
    except UndecodableError as error:
        partition, offset, _, entity, *_ = record
        raise registry.rulings.damaged(OBSERVATIONS, partition, offset, entity, str(error)) from error


def arrival_of(registry: Registry, record: Record) -> IndexedObservation:
    """A record that repeats none before it, as an arrival."""
    observation = observation_in(registry, record)
    return IndexedObservation(
        record.offset, record.recorded_at, order_key(observation, record.id), bool(observation.retracts)
    )


def lacking(entity: str, q: bytes) -> CorruptionError:
    """What is said where the log has not the observation of an order key that it gave."""
    return CorruptionError(f"{entity} lacks the observation {q[-ID_BYTES:].hex()}; run refold verify")


class Checkpoint(NamedTuple):
    """An entity's fold of its arrivals up to the one at `offset`, by the definition at an offset of `.schemas`.

    Its residue only serves folding on directly, and its state hash is empty.
    """

    offset: int
    definition: int
    entity: Entity


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


class DeadLetter(NamedTuple):
    """One stored verdict: its own position in `.deadletters`, and its bytes."""

    partition: int
    offset: int
    data: bytes


class Foreign(NamedTuple):
    """Records that refold did not write, in a topic or table of the log: how many, and where the first one is."""

    topic: str
    records: int
    first: Position


class SetAside(NamedTuple):
    """Damaged records of a topic of the log that hold nothing: how many, and where the first one is."""

    topic: str
    records: int
    first: Position


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


class FoldPosition(NamedTuple):
    """How far a partition is folded: its next offset, and the next one of `.schemas`."""

    offset: int
    schemas: int


class Elsewhere(NamedTuple):
    """What was found wrong in tables that stand elsewhere, and what was not looked at, with what to do about it."""

    mismatches: Sequence[Mismatch] = ()
    unchecked: Sequence[str] = ()


def firsts(records: Iterable[Record]) -> Iterator[Record]:
    """Records without those that repeat an observation given before."""
    known: set[bytes] = set()
    for record in records:
        if record.id not in known:
            known.add(record.id)
            yield record


class LogPort(ABC):
    """A log opened by one process. Reads see at least what this process flushed.

    archived_at: in milliseconds, where this is another log's archive: it has that log's id, takes no appends, and
    answers no later time. forked_from: the id of the log whose archive this one goes on from. blobs: contents
    too large for a record. has_store: whether it takes any. is_indexed: whether `find`, one entity's records and
    single ones are look-ups, and no passes over a partition. is_dense: whether `.changes` has a change at every
    offset. has_tables: whether entity tables stand here; else `check_elsewhere` asks for those. config: what opens it
    again in another process, beside its url. keeps_order: whether what was appended first is never lost without what
    was appended after it, whatever partitions they are in.
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

    # Writing

    @abstractmethod
    def register(self, definition: TypeDefinition) -> None:
        """Make a definition part of the log, durable on return; SchemaError where evolution forbids it."""

    @abstractmethod
    def append(self, observation: Observation, observation_id: bytes, data: bytes) -> None:
        """Take an observation's framed bytes; durable after `flush`. May write what came before it."""

    def make_store(self) -> bool:
        """Give the log its own store of contents, where it has none and could have one; whether that was done."""
        return False

    @abstractmethod
    def other_store(self, url: str | None) -> AbstractContextManager[ContentStore]:
        """A store that the log's contents could be in, to copy them there.

        url: as blobs/url.py keeps it; None for the log's own, where it has none yet made.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when everything appended is durable and folded."""

    def flush_begun(self) -> Callable[[], None]:
        """Begin a flush, and return what waits for its end: that may be called while other threads use the log."""
        self.flush()
        return _nothing

    def hand_over(self) -> None:
        """Return when everything appended is folded, so that whoever reads the log here sees it; durable by `flush`."""
        self.flush()

    @abstractmethod
    def mark(self, marked: Marked, *, replace: bool) -> None:
        """Keep a named cut, durable on return; InputError when the name is taken and replace is False."""

    @abstractmethod
    def snapshot(self, pinned_at: int | None = None) -> Sequence[Epoch]:
        """Seal an epoch of every partition that has records, durable on return.

        pinned_at: in milliseconds, to keep these epochs for ever.
        """

    @abstractmethod
    def pin(self, epochs: Sequence[Epoch], pinned_at: int | None) -> None:
        """Keep sealed epochs for ever, from pinned_at (milliseconds) on; None: no longer. Durable on return.

        InputError, and none is pinned, where one is not there.
        """

    @abstractmethod
    def collect(self, *, dry_run: bool = False, damaged: bool = False) -> Sequence[Collected]:
        """Remove the epochs that the retention policy does not keep; returns what was done, by partition.

        dry_run: remove nothing. damaged: give up manifests that cannot be read too.
        """

    @abstractmethod
    def recover(self, *, wait: bool) -> Mapping[str, object]:
        """Throw the entity tables away and make them again; returns how (`Rebuilt.source`), durable on return.

        wait: return when their indexes are filled again too, which otherwise goes on in the background.
        """

    @abstractmethod
    def close(self) -> None:
        """Flush and let go of everything. Once more is nothing."""

    # Reading

    @abstractmethod
    def refresh(self) -> None:
        """See what other processes have written by now."""

    @abstractmethod
    def still(self, *, is_verified: bool = False) -> AbstractContextManager[LogPort]:
        """This log as it is now, to be read until the end of the block: what others write meanwhile does not show.

        is_verified: changes, and what was sealed, are those of one point too (`folded`).
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
        """The records passed over because refold did not write them, by topic, as far as this process read.

        last: of topics that are read on demand only, first read so many of each partition's last offsets; None: all.
        """
        return ()

    def set_aside(self) -> Sequence[SetAside]:
        """The damaged records that are set aside, by topic, as of what was seen last: they hold nothing."""
        return ()

    def passed_over(self) -> Sequence[SetAside]:
        """The records in batches that cannot be read, and that every reader passes over, by topic, as far as was read:
        nobody needs them, or who needs one says so."""
        return ()

    @abstractmethod
    def markers(self) -> Sequence[Marked]:
        """The named cuts, oldest first."""

    @abstractmethod
    def stored_entities(self) -> Iterator[tuple[str, bytes]]:
        """The entity table as it is stored: (entity, packed)."""

    @abstractmethod
    def totals(self, partition: int) -> tuple[int, int]:
        """How many entities, and distinct observations, the log counts in a partition."""

    @abstractmethod
    def check_indexes(self, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
        """What in the backend's own indexes is not what the records below the offsets say, or is out of place."""

    def check_elsewhere(self) -> Elsewhere:
        """What those who keep this log's tables find wrong in them. From any thread."""
        return Elsewhere()

    def folded(self) -> dict[int, FoldPosition]:
        """By partition, up to where changes were made of it."""
        schemas = len(self.registry)
        return {partition: FoldPosition(end, schemas) for partition, end in self.ends().items()}

    def record_at(self, partition: int, offset: int) -> Record | None:
        """The record at a position, or None."""
        return next(self.read(partition, offset, offset + 1), None)

    @abstractmethod
    def first_after(self, partition: int, time_ms: int) -> int:
        """The offset of the first record with recorded_at > time_ms, or the next offset. Verdicts change nothing."""

    def places(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """As `read`, with a hole at each offset that has no observation."""
        return self.read(partition, start, end)

    def recorded_below(self, partition: int, offset: int) -> int:
        """The greatest recorded_at below an offset, in milliseconds; 0 where nothing stands there."""
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
        """The first record of each of an entity's observations, by order key; CorruptionError where one is missing."""
        records = self.entity_records(entity, self.ends()[self.partition_of(entity)])
        first = {record.id: record for record in firsts(records)}
        for q in qs:
            if q[-ID_BYTES:] not in first:
                raise lacking(entity, q)
            yield first[q[-ID_BYTES:]]

    def checkpoint(self, entity: str, end: int, definition: int) -> Checkpoint | None:
        """The last checkpoint of an entity below an offset that was folded by a definition, if one is kept.

        definition: its offset in `.schemas`. CorruptionError where the checkpoint is damaged.
        """
        return None

    def records_among(
        self, partition: int, names: Collection[str], end: int, looked_at: Callable[[int], None]
    ) -> Iterator[Record]:
        """The records of some entities of one partition below an offset, those of one entity in order.

        One pass over the partition that compares keys and decodes nothing; backends with an index may do better.
        looked_at: told how many more records were read for it.
        """
        for record in self.read(partition, 0, end):
            if record.entity in names:
                yield record
        looked_at(end)

    @property
    def finds_at_once(self) -> bool:
        """Whether `find` costs a look-up and not a reading of the log."""
        return False

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
