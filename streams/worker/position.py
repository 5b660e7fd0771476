"""What a worker's table says of itself, in its `meta`: where it stands, and of which log and partition it is.

It is put in the write that follows the commit of a step (streams/log/kafka/fold_position.py): so a table never is past
what was emitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import cbor2

from refold.avro.errors import CorruptionError
from refold.streams.cut import FOLD_VERSION
from refold.streams.log.kafka.fold_position import BEGIN, Reached
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database

POSITION = b"position"
FORMAT = 2


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """What a table says of itself. recorded_at: the running maximum, in milliseconds; deadletters: the next offset.

    entities, distinct: how many entities and distinct observations it is the fold of. last: offset and id of the last
    observation folded, by which a log that lost records and went on is known; None where none is, or nobody noted it.
    aside: the partition's observations that were set aside when it was last looked at: those below `at` are left out.
    """

    log_id: bytes
    partition: int
    partitions: int
    at: Reached = BEGIN
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
    """What the table says of itself; None where it says nothing, or in a format that this release does not read."""
    packed = database.get("meta", POSITION)
    if packed is None:
        return None
    try:
        tree = cbor2.loads(packed)
        if tree["format"] != FORMAT:
            return None
        partition, partitions = tree["partition"]
        entities, distinct = tree["totals"]
        at = Reached(*tree["at"])
        last = tree.get("last")
        return StoredPosition(
            bytes(tree["log"]), partition, partitions, at, tree["recorded_at"], entities, distinct,
            tree["deadletters"], tree["fold"], None if last is None else (last[0], bytes(last[1])),
            tuple(map(int, tree.get("aside", ()))),
        )  # fmt: skip
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError) as error:
        raise CorruptionError(f"{database.path}: the table's position cannot be read: {error}") from error
