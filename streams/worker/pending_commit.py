"""The unit of work of one partition: its records, its changes, and the position that it leads to.

1. `NextBatch`: the records of the next commit, each either folded or a dead letter.
2. `Overlay`: the changes to emit, the write to the table, and the `StoredPosition` that this write moves the table to.
3. `PendingCommit`: the overlay and the dead letters, emitted in one transaction (streams/worker/emission.py).

A table's position is stored in its `meta`, in the same write as the overlay. That write follows the commit of the
transaction (streams/log/kafka/fold_position.py), so a table is never ahead of what was emitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import cbor2

from refold.avro.errors import CorruptionError
from refold.avro.kernel import DecidedRecords
from refold.streams.cut import FOLD_VERSION
from refold.streams.deadletters import Verdict
from refold.streams.log.kafka.fold_position import BEGIN, PartitionPoint
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.table.batch_fold import EntityChange
from refold.streams.table.checked import CheckedRecord, checked_records

POSITION = b"position"
FORMAT = 3


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """A table's own position.

    Attributes:
        at: The point up to which it is folded.
        recorded_at: The greatest time of the records below it, in milliseconds since 1970.
        deadletters: The next offset of the partition of `.deadletters`.
        entities, distinct: How many entities and distinct observations are folded.
        last: The offset and id of the last folded observation, by which a log that lost records and continued is
            recognised; None before the first observation, or if it was not recorded.
        aside: The partition's observations that were set aside at the last check: those below `at` are left out.
    """

    log_id: bytes
    partition: int
    partitions: int
    at: PartitionPoint = BEGIN
    recorded_at: int = 0
    entities: int = 0
    distinct: int = 0
    deadletters: int = 0
    fold_version: int = FOLD_VERSION
    last: tuple[int, bytes] | None = None
    aside: tuple[int, ...] = ()

    def leaves_out(self, aside: Iterable[int]) -> bool:
        """Whether the table leaves out exactly these observations, as far as they are below its offset."""
        end = self.at.offset
        return {each for each in self.aside if each < end} == {each for each in aside if each < end}

    def put(self, write: WriteSet) -> None:
        """Put it where `read_stored` finds it."""
        tree = {
            "format": FORMAT,
            "log": self.log_id,
            "partition": [self.partition, self.partitions],
            "at": list(self.at),
            "recorded_at": self.recorded_at,
            "totals": [self.entities, self.distinct],
            "deadletters": self.deadletters,
            "fold": self.fold_version,
            "last": self.last,
            "aside": list(self.aside),
        }
        write.put("meta", POSITION, cbor2.dumps(tree))


def read_stored(database: Database) -> StoredPosition | None:
    """Return a table's position.

    Returns:
        The position; None if there is none, or one in a format that this release does not read.

    Raises:
        CorruptionError: It cannot be decoded.
    """
    packed = database.get("meta", POSITION)
    if packed is None:
        return None
    try:
        tree = cbor2.loads(packed)
        if tree["format"] != FORMAT:
            return None
        partition, partitions = tree["partition"]
        entities, distinct = tree["totals"]
        at = PartitionPoint(*tree["at"])
        last = tree.get("last")
        return StoredPosition(
            bytes(tree["log"]), partition, partitions, at, tree["recorded_at"], entities, distinct,
            tree["deadletters"], tree["fold"], None if last is None else (last[0], bytes(last[1])),
            tuple(map(int, tree.get("aside", ()))),
        )  # fmt: skip
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError) as error:
        raise CorruptionError(f"{database.path}: the table's position cannot be read: {error}") from error


@dataclass(slots=True)
class NextBatch:
    """The records of the next commit, decided.

    Attributes:
        decided: Its observations, if none of them was decided one by one. Then `observations` is empty.
        observations: Its observations, if one of them was decided one by one. Then `decided` is empty.
        set_aside: How many of their offsets are set aside.
    """

    decided: list[DecidedRecords] = field(default_factory=list)
    observations: list[CheckedRecord] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    set_aside: int = 0
    size_bytes: int = 0

    def __len__(self) -> int:
        return sum(map(len, self.decided)) + len(self.observations) + len(self.verdicts) + self.set_aside

    def add_decided(self, found: DecidedRecords) -> None:
        """Add plain observations that follow the others."""
        if self.observations:
            self.observations += filter(None, checked_records(found))
        else:
            self.decided.append(found)

    def add(self, record: CheckedRecord) -> None:
        """Add an observation that follows the others."""
        for found in self.decided:
            self.observations += filter(None, checked_records(found))
        self.decided.clear()
        self.observations.append(record)


class Overlay:
    """The result of a fold: changes to emit, and then a write to the table that moves it to `stored`."""

    def __init__(self, write: WriteSet, stored: StoredPosition) -> None:
        self.write = write
        self.stored = stored
        self.changes: list[EntityChange] = []
        self.entities = self.distinct = self.late = self.reopened = 0

    def changed(self, partition: int, changes: Sequence[EntityChange]) -> None:
        """See streams/table/batch_fold.py."""
        self.changes += changes

    def folded(self, partition: int, entities: int, observations: int, late: int, reopened: int) -> None:
        """See streams/table/batch_fold.py."""
        self.entities += entities
        self.distinct += observations
        self.late += late
        self.reopened += reopened

    def to(self, at: PartitionPoint, recorded_at: int) -> Overlay:
        """Set the position that the write leads to, and return the overlay."""
        stored = self.stored
        self.stored = replace(
            stored, at=at, recorded_at=max(recorded_at, stored.recorded_at),
            entities=stored.entities + self.entities, distinct=stored.distinct + self.distinct,
        )  # fmt: skip
        return self


class PendingCommit(NamedTuple):
    """What one partition has to emit."""

    partition: int
    overlay: Overlay
    verdicts: Sequence[Verdict]
