"""The entity table of one partition that a worker folds: a database in its own folder.

Opening it:
1. A missing folder is created. A damaged folder, or one whose write-ahead log lost its end, is removed and created.
2. A table of another log, partition or number of partitions is refused by name. So is one past the log's end, or one
   whose last observation differs from the log's at that offset (start.py): the log lost records.
3. A table is lost if it has another format or fold version, if its creation was interrupted, or if its point is not on
   the partition's sequence of points. It is rebuilt (streams/worker/start.py).

Its writes are not synced. After a power failure, lost writes are folded again from the log up to the emitted point, and
nothing is emitted (streams/worker/start.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock

from refold.avro.errors import CorruptionError, DamagedRecord, InputError, LockedError
from refold.avro.kernel import DecidedRecords
from refold.avro.registry import Registry
from refold.streams.cut import FOLD_VERSION
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.port import Record
from refold.streams.partitioner import place_in
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Memory
from refold.streams.rocks.layout import is_log
from refold.streams.rocks.scan import Row
from refold.streams.table import keys
from refold.streams.table.batch_fold import BatchFold, fold_again
from refold.streams.table.checked import CheckedRecord, last_record
from refold.streams.table.folds import TypeFold
from refold.streams.table.index_backfill import Filler
from refold.streams.table.index_gaps import ReadRecords, read_gaps
from refold.streams.table.limits import DEFAULT_TABLE_LIMITS, TableLimits
from refold.streams.worker.pending_commit import Overlay, StoredPosition, read_stored

LOCK_WAIT_S = 0.1
FILL_AGAIN_S = 2.0
LOST_RECORDS_REMEDY = (
    "records that were acknowledged are gone from the log. Restore the brokers' data; or go on with what is left in a "
    "new log: `refold export` this one, and `refold import` it under another prefix"
)

_log = logging.getLogger(__name__)


class PartitionTable:
    """One partition's table. Batches are folded into overlays; `write` puts one into it, in the order of creation.

    For one thread, except for the one that fills its indexes and those that only read (own_tables.py).

    Attributes:
        stored: The position that the database stores; None while the table is lost.
        followed: How many records it folded without emitting since it was opened, because they were emitted before.
        made_from: The source of its rebuild, if it was rebuilt (Rebuilt.source).
    """

    def __init__(
        self, database: Database, registry: Registry, read: ReadRecords, stored: StoredPosition | None,
        limits: TableLimits = DEFAULT_TABLE_LIMITS,
    ) -> None:  # fmt: skip
        self.database = database
        self.limits = limits
        self.stored = stored
        self.followed = 0
        self.made_from: Mapping[str, object] | None = None
        self._writer = BatchFold(database, registry, read)
        self._lock = RLock()
        self._aside: Mapping[int, str] | None = None
        self._fill_again_s = 0.0
        self._filler = Filler(database, read, registry, self._writer, self._lock, limits)
        if stored is not None:
            self.adopt(stored)

    @property
    def position(self) -> StoredPosition:
        """The table's stored position; only while it is not lost."""
        assert self.stored is not None
        return self.stored

    @property
    def is_filling(self) -> bool:
        """Whether its indexes have gaps. Filling is started again if it stopped because the log could not be read."""
        if not self._writer.gaps:
            return False
        if not self._filler.is_filling:
            problem = self._filler.problem
            if isinstance(problem, CorruptionError) and not isinstance(problem, DamagedRecord):
                raise problem
            if problem is None or time.monotonic() >= self._fill_again_s:
                self._fill_again_s = time.monotonic() + FILL_AGAIN_S
                self._filler.begin()
        return bool(self._writer.gaps)

    @property
    def damage(self) -> str:
        """The damaged record at which filling the indexes stopped; empty without one."""
        problem = self._filler.problem if self._writer.gaps else None
        return str(problem) if isinstance(problem, DamagedRecord) else ""

    def adopt_rulings(self, aside: Mapping[int, str]) -> bool:
        """Adopt the current rulings, if the table leaves out exactly what they set aside.

        Returns:
            Whether they are adopted; if not, the table must be rebuilt for them.
        """
        if aside is self._aside:
            return True
        if not self.position.leaves_out(aside):
            return False
        self._aside = aside
        self.stored = replace(self.position, aside=tuple(sorted(aside)))
        return True

    @property
    def kernel_records(self) -> int:
        """How many records the kernel folded since the table was opened."""
        return self._writer.kernel_records

    @property
    def size_bytes(self) -> int:
        """Its size on disk in bytes. May be called from any thread, even while the table is closed."""
        return bytes_on_disk(self.database.path)

    @property
    def indexed(self) -> int:
        """The offset below which the indexes are complete. May be called from any thread."""
        offset = self.position.at.offset
        return min([offset, *(gap.start for gap in self._writer.gaps.values())])

    @property
    def lacking(self) -> int:
        """The number of records whose index entries may be missing."""
        return sum(gap.end - gap.start for gap in self._writer.gaps.values())

    def adopt(self, stored: StoredPosition) -> None:
        """Adopt the position that the database stores."""
        self.stored = stored
        self._aside = None
        self._writer.fold_below(stored.at.schemas)
        self._filler.begin()

    def stop_filling(self) -> None:
        """Stop filling the indexes."""
        self._filler.stop()

    def apply_up_to(self, schemas: int) -> None:
        """Apply definitions that fold no entity again; the next written overlay stores that."""
        self.stored = replace(self.position, at=PartitionPoint(self.position.at.offset, schemas))
        self._writer.fold_below(schemas)

    def fold(self, arrived: Sequence[CheckedRecord], offset: int, recorded_at: int) -> Overlay:
        """Fold records into an overlay; the table stays as it is.

        Args:
            arrived: The records, in order.
            offset: The offset after the last decided record.
            recorded_at: The greatest time of the records below it, in milliseconds since 1970.

        Returns:
            The overlay, which leads to the offset.

        Raises:
            NotFolded: A custom reducer fails on a record.
        """
        overlay = self.empty_overlay()
        with self._lock:
            self._writer.fold(arrived, overlay.write, overlay, {self.position.partition: offset})
        return self._moved_to(overlay, arrived[-1].record if arrived else None, offset, recorded_at)

    def fold_decided(self, decided: Sequence[DecidedRecords], offset: int, recorded_at: int) -> Overlay:
        """Like `fold`, of observations that the kernel decided.

        Args:
            decided: The observations, in order; all of them are plain.
            offset, recorded_at: As for `fold`.

        Raises:
            NotFolded: A custom reducer fails on a record.
        """
        overlay = self.empty_overlay()
        with self._lock:
            self._writer.fold_decided(decided, {self.position.partition: offset}, overlay.write, overlay)
        return self._moved_to(overlay, last_record(decided[-1]), offset, recorded_at)

    def _moved_to(self, overlay: Overlay, last: Record | None, offset: int, recorded_at: int) -> Overlay:
        """Set the position that an overlay leads to, and return the overlay. last: the last of its observations."""
        if last is not None:
            overlay.stored = replace(overlay.stored, last=(last.offset, last.id))
        return overlay.to(PartitionPoint(offset, self.position.at.schemas), recorded_at)

    def fold_again(self, type_fold: TypeFold, rows: Iterable[Row], to: PartitionPoint) -> Overlay:
        """Fold entities again by the definition that is being applied.

        Args:
            type_fold: The definition and its fold.
            rows: The entities' rows.
            to: The point that the overlay leads to.

        Returns:
            The overlay; the table stays as it is.
        """
        here, overlay = self.position, self.empty_overlay()
        with self._lock:
            for row in rows:
                fold_again(self._writer, type_fold, row, here.partition, to.offset, overlay.write, overlay)
        return overlay.to(to, here.recorded_at)

    def empty_overlay(self) -> Overlay:
        """Return an empty overlay at the present position."""
        return Overlay(self.database.batch(), self.position)

    def write(self, overlay: Overlay) -> None:
        """Write an overlay to the table."""
        overlay.stored.put(overlay.write)
        self.database.write(overlay.write, sync=False)
        if overlay.stored.at.schemas != self.position.at.schemas:
            self._writer.fold_below(overlay.stored.at.schemas)
        self.stored = overlay.stored

    def close(self) -> None:
        """Stop filling the indexes, and close the database."""
        self._filler.stop()
        self.database.close()


def open_database(folder: Path, memory: Memory, wait_s: float, check_cancelled: Callable[[], None]) -> Database:
    """Open the database in a folder as its owner. It is created if it is missing or damaged.

    Args:
        folder: The folder.
        memory: RocksDB's memory.
        wait_s: How long to wait for another process, in seconds.
        check_cancelled: Raises to stop waiting.

    Raises:
        LockedError: Another process held it for longer. A process that lost the partition closes it soon.
    """
    deadline = Deadline(wait_s)
    while True:
        try:
            if is_log(folder, "table"):
                return Database.open(folder, kind="table", memory=memory)
            return Database.create(folder, kind="table", memory=memory)
        except LockedError as error:
            if deadline.is_past:
                raise LockedError(
                    f"{folder}: another process holds this partition's table; end it, or give this worker a folder of "
                    "its own"
                ) from error
            check_cancelled()
            time.sleep(LOCK_WAIT_S)
        except CorruptionError as error:
            _log.warning("%s: this partition's table is made again: %s", folder, error)
            shutil.rmtree(folder)


def bytes_on_disk(folder: Path) -> int:
    """Return the total size of the files in a folder, without files that are removed meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(place, name).stat().st_size
    return size


def stored_position_of(
    database: Database, log_id: bytes, partition: int, partitions: int, end: int
) -> StoredPosition | None:
    """Return the position of the table in a database; None if the table is lost.

    Args:
        end: The partition's next offset.

    Raises:
        InputError: The table is of another log or partition, or past the log's end.
    """
    if read_gaps(database) is None:
        return None
    stored = read_stored(database)
    if stored is None:
        return None
    if stored.log_id != log_id:
        raise InputError(
            f"{database.path}: this is the table of the log {stored.log_id.hex()}, and the log here is {log_id.hex()}; "
            "give this log's worker another data folder, or remove this one"
        )
    if (stored.partition, stored.partitions) != (partition, partitions):
        raise InputError(
            f"{database.path}: this is the table of partition {stored.partition} of {stored.partitions}, not of "
            f"{partition} of {partitions}; move it back, or remove it"
        )
    if stored.at.offset > end:
        raise InputError(
            f"{database.path}: the table is folded to offset {stored.at.offset} of partition {partition}, but the log "
            f"ends at {end}: {LOST_RECORDS_REMEDY}"
        )
    if stored.fold_version != FOLD_VERSION:
        _log.warning("%s: folded by fold version %d; made again by %d", database.path, stored.fold_version,
                     FOLD_VERSION)  # fmt: skip
        return None
    return stored


def rows_by_place(
    database: Database, type_name: str, start: int, below: int | None, entities_max: int
) -> tuple[list[Row], int | None]:
    """Read a type's entities in the order of the table.

    Args:
        database: The table.
        type_name: The type.
        start: The first place.
        below: A place at which to stop in any case; None for none.
        entities_max: Stop at the next place after this number of entities.

    Returns:
        The entities' rows, in whole places, and the next place. None for it if these are the type's last.
    """
    rows: list[Row] = []
    prefix = f"{type_name}/"
    last = start
    for row in database.scan("state", keys.place_key(start), None if below is None else keys.place_key(below)):
        place = place_in(row[0])
        if place != last and len(rows) >= entities_max:
            return rows, place
        last = place
        if keys.entity_of(row[0]).startswith(prefix):
            rows.append(row)
    return rows, below
