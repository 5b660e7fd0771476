"""The rows of a `file:` log's database apart from the entity tables.

meta  "log"       CBOR {id: 16 bytes, partitions, archived_at, forked_from}: fixed at creation, except by a fork
meta  "progress"  CBOR Progress: rewritten in every write, so it always matches the other rows
meta  "table"     what the entity table lacks (streams/table/index_gaps.py)
meta  "redefine"  the offset of a definition whose entities are being folded again, while they are
schemas  offset u64          -> registered_at u64, a definition's JSON
manifests  the markers (streams/log/stored_markers.py)
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import cbor2

from refold.avro.definition import TypeDefinition, document_text, parse
from refold.avro.errors import CorruptionError
from refold.avro.registry import Registry
from refold.streams.log.port import Marked, Record, is_hole
from refold.streams.log.stored_markers import MARKER, oldest_first
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.snapshots.dirty_entities import State
from refold.streams.table import keys
from refold.streams.table.batch_fold import EntityChange

LOG, PROGRESS, REDEFINE = b"log", b"progress", b"redefine"
_U64 = struct.Struct(">Q")
T = TypeVar("T")


class Identity(NamedTuple):
    """A log's identity: its id (16 bytes) and number of partitions.

    Attributes:
        archived_at: The time in milliseconds, if this is the archive of another log and takes no appends.
        forked_from: The id of the archived log that this one continues.
    """

    id: bytes
    partitions: int
    archived_at: int | None = None
    forked_from: bytes | None = None


@dataclass(slots=True)
class Progress:
    """The next offsets by partition, the numbers of entities and of distinct observations folded, and the last assigned
    recorded_at in milliseconds.
    """

    observations: dict[int, int] = field(default_factory=dict)
    changes: dict[int, int] = field(default_factory=dict)
    recorded_at: int = 0
    entities: dict[int, int] = field(default_factory=dict)
    distinct: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Progress:
        """A separate copy, which becomes the log's progress when its write succeeded."""
        return Progress(
            dict(self.observations), dict(self.changes), self.recorded_at, dict(self.entities), dict(self.distinct)
        )

    def next_changes(self, partition: int, count: int) -> range:
        """Assign the next offsets of `.changes`."""
        offset = self.changes[partition]
        self.changes[partition] = offset + count
        return range(offset, offset + count)

    def folded(self, partition: int, entities: int, observations: int, *_: int) -> None:
        """See streams/table/batch_fold.py."""
        self.entities[partition] += entities
        self.distinct[partition] += observations

    def packed(self) -> bytes:
        """The stored form."""
        return cbor2.dumps([self.observations, self.changes, self.recorded_at, self.entities, self.distinct])


class BatchOutcome:
    """Adds a batch's results to its write.

    Attributes:
        states: The changed states, by partition.
    """

    def __init__(self, progress: Progress, write: WriteSet) -> None:
        self.states: defaultdict[int, list[State]] = defaultdict(list)
        self._progress = progress
        self._write = write
        self.folded = progress.folded

    def changed(self, partition: int, changes: Sequence[EntityChange]) -> None:
        """Put changes at the next offsets of `.changes`."""
        self.states[partition] += [(placed, state) for placed, state, _ in changes]
        offsets = self._progress.next_changes(partition, len(changes))
        rows = [(keys.position_key(partition, offset), each[2]) for offset, each in zip(offsets, changes, strict=True)]
        self._write.put_rows("changes", rows)


def read_progress(database: Database, partitions: int) -> Progress:
    """Read the log's progress; that of a new log is zero."""
    packed = database.get("meta", PROGRESS)
    if packed is None:
        zeros = dict.fromkeys(range(partitions), 0)
        return Progress(zeros, dict(zeros), 0, dict(zeros), dict(zeros))
    return _decoded(partial(_progress, packed, partitions), "progress")


def with_holes(database: Database, partition: int, start: int, end: int) -> Iterator[Record]:
    """Like `read`, with the holes that came with an archive."""
    first, stop = keys.position_key(partition, start), keys.position_key(partition, end)
    return (keys.record_of(*row) for row in database.scan("observations", first, stop))


def read(database: Database, partition: int, start: int, end: int) -> Iterator[Record]:
    """The observation records with start <= offset < end, in order."""
    return (record for record in with_holes(database, partition, start, end) if not is_hole(record))


def is_redefining(database: Database) -> bool:
    """Whether a definition is not yet applied to all entities of its type."""
    return database.get("meta", REDEFINE) is not None


def log_record(identity: Identity) -> bytes:
    """Return the record that makes a database a log."""
    return cbor2.dumps({name: value for name, value in identity._asdict().items() if value is not None})


def read_log_record(database: Database) -> Identity | None:
    """Read the log's identity; None if the database was never made a log."""
    packed = database.get("meta", LOG)
    if packed is None:
        return None
    return _decoded(partial(_identity, packed), "identity")


def schema_key(offset: int) -> bytes:
    """Return the key of a definition."""
    return _U64.pack(offset)


def read_schemas(database: Database, registry: Registry) -> None:
    """Add the definitions of `.schemas` that the registry does not have yet.

    Raises:
        CorruptionError: A stored definition cannot be read.
    """
    for key, value in database.scan("schemas", schema_key(len(registry))):
        try:
            place = f"the stored definition {_U64.unpack(key)[0]}"
            registered_at, text = _U64.unpack_from(value)[0], value[_U64.size :]
            if text:
                registry.add(parse(json.loads(text), place=place), registered_at)
            else:
                registry.skip(registered_at)
        except (ValueError, struct.error) as error:
            raise CorruptionError(f"the stored definition at {key.hex()} cannot be read: {error}") from error


def schema_value(definition: TypeDefinition | None, registered_at: int) -> bytes:
    """Encode a definition (None: a hole that came with an archive) and its registration time in milliseconds."""
    return _U64.pack(registered_at) + (b"" if definition is None else document_text(definition).encode())


def read_markers(database: Database) -> list[Marked]:
    """The markers, oldest first."""
    return oldest_first(database.scan("manifests", MARKER, MARKER[:-1] + b"0"))


def _progress(packed: bytes, partitions: int) -> Progress:
    observations, changes, recorded_at, *totals = cbor2.loads(packed)
    entities, distinct = totals or [dict.fromkeys(range(partitions), 0) for _ in range(2)]  # counted with the table
    if any(each.keys() != set(range(partitions)) for each in (observations, changes, entities, distinct)):
        raise ValueError(f"it is not of {partitions} partitions")
    return Progress(observations, changes, recorded_at, entities, distinct)


def _identity(packed: bytes) -> Identity:
    tree = cbor2.loads(packed)
    return Identity(bytes(tree["id"]), int(tree["partitions"]), tree.get("archived_at"), tree.get("forked_from"))


def _decoded(make: Callable[[], T], what: str) -> T:
    try:
        return make()
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(f"the log's {what} cannot be read: {error}; run refold verify") from error
