"""Compare one partition's table with a full fold while the fold continues; a worker does this for `refold verify`.

1. Open the table a second time, read-only: a snapshot at a point between two commits of the fold.
2. Compare its indexes with the log's records up to that point (streams/table/check.py).
3. Fold these records from nothing, by the definitions at that point, and compare every stored entity and the counts.

The check waits while a definition is being applied, while indexes are being filled, and while the table does not match
the current rulings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from refold.avro.errors import CorruptionError, RefoldError, StorageError
from refold.avro.quarantine import OBSERVATIONS
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.port import Mismatch
from refold.streams.rocks.database import Database
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table import keys
from refold.streams.table.check import IndexCheck
from refold.streams.table.confirming import some_entities
from refold.streams.table.index_gaps import read_gaps
from refold.streams.verify.refold import Refold
from refold.streams.verify.report import MISMATCHES_MAX
from refold.streams.verify.share import check_totals
from refold.streams.verify.stored_records import RecordSpool
from refold.streams.verify.table import check_table
from refold.streams.worker.pending_commit import StoredPosition, read_stored

WAIT_S = 60.0
POLL_S = 0.1


class TableCheckResult(NamedTuple):
    """The result for a partition's table at an offset: at most MISMATCHES_MAX mismatches."""

    partition: int
    offset: int
    mismatches: list[Mismatch]


def check_partition(log: KafkaLog, folder: Path, partition: int) -> TableCheckResult:
    """Check a partition's table.

    Args:
        log: The log, used by this thread only.
        folder: The folder of the worker's tables.
        partition: The partition.

    Returns:
        What differs, at most MISMATCHES_MAX.

    Raises:
        StorageError: There is no complete table to compare.
    """
    try:
        database, stored = _open_complete(log, folder / str(partition), partition)
    except CorruptionError as error:
        return TableCheckResult(partition, 0, [Mismatch(f"table {partition}", str(error))])
    with database, closing(RecordSpool()) as spool:
        log.refresh()
        found: list[Mismatch] = []
        try:
            for each in _check(log, database, stored, spool):
                found.append(each)
                if len(found) >= MISMATCHES_MAX:
                    break
        except RefoldError as error:
            found.append(Mismatch(f"table {partition}", f"cannot be compared: {error}"))
        return TableCheckResult(partition, stored.at.offset, found)


def _open_complete(log: KafkaLog, folder: Path, partition: int) -> tuple[Database, StoredPosition]:
    deadline = Deadline(WAIT_S)
    while True:
        database = Database.read(folder, kind="table")
        try:
            stored, gaps = read_stored(database), read_gaps(database)
            aside = log.registry.rulings.of(OBSERVATIONS, partition)
            is_whole = stored is not None and gaps is not None and not gaps and not stored.at.place
            if stored is not None and is_whole and stored.leaves_out(aside):
                return database, stored
        except BaseException:
            database.close()
            raise
        database.close()
        log.refresh()
        if deadline.is_past:
            raise StorageError(f"{folder}: the table is being made, or its indexes are being filled; verify again "
                               "when /status says timeline_complete")  # fmt: skip
        time.sleep(POLL_S)


def _check(log: KafkaLog, database: Database, stored: StoredPosition, spool: RecordSpool) -> Iterator[Mismatch]:
    partition, at = stored.partition, stored.at
    checks = some_entities(at.offset)
    check = IndexCheck(database, log.registry, log.partitions, spool.at, checks)
    yield from check.records(spool.through(log.read(partition, 0, at.offset)))
    yield from check.entries(check.distinct)
    yield from check.checkpoints()
    refold = Refold(log, partition, ChunkStore(), lambda more: None, checks)
    refold.to(at.offset, at.schemas)
    refold.require_all()
    entities = ((keys.entity_of(key), packed) for key, packed in database.scan("state"))
    yield from refold.misfolded()
    yield from check_table(entities, log.partitions, {partition: refold.layers})
    yield from check_totals(lambda _: (stored.entities, stored.distinct), {partition: refold})
