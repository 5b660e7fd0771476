"""The entity table of one partition that a worker folds: a database in a folder of its own.

Opening it:
1. a folder that is not there is made; one that is damaged, or whose write-ahead log lost its end, is removed and made;
2. a table of another log, partition or number of partitions is refused by name, and so is one past the log's end, or
   with another last observation than the log has there (start.py): the log lost records;
3. one of another format or fold version, one that was being made when its process ended, and one that went another way
   than the log says, is lost: it is made again (streams/worker/start.py).

Its writes are not synced. What a power cut takes is folded again from the log, up to what was emitted, emitting
nothing (streams/worker/start.py).
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
from refold.avro.registry import Registry
from refold.streams.cut import FOLD_VERSION
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.fold_position import Reached
from refold.streams.partition import place_in
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Memory
from refold.streams.rocks.layout import is_log
from refold.streams.rocks.scan import Row
from refold.streams.table import keys
from refold.streams.table.batch import DecodedRecord, TableWriter, fold_again
from refold.streams.table.folds import TypeFold
from refold.streams.table.index_backfill import Filler
from refold.streams.table.index_gaps import Read, read_gaps
from refold.streams.worker.commit import Overlay, StoredPosition, read_stored

LOCK_WAIT_S = 0.1
FILL_AGAIN_S = 2.0
GONE = (
    "records that were acknowledged are gone from the log. Restore the brokers' data; or go on with what is left in a "
    "new log: `refold export` this one, and `refold import` it under another prefix"
)

_log = logging.getLogger(__name__)


class PartitionTable:
    """One partition's table. Steps are folded into overlays; `write` puts one into the table, in the order made.

    stored: None while the table is lost. followed: how many records it folded since it was opened without emitting, for
    that was done. made_from: how it was made again, if it was (Rebuilt.source). For one thread, but for the one that
    fills its indexes, and those that only read (streams/worker/tables.py).
    """

    def __init__(self, database: Database, registry: Registry, read: Read, stored: StoredPosition | None) -> None:
        self.database = database
        self.stored = stored
        self.followed = 0
        self.made_from: Mapping[str, object] | None = None
        self._writer = TableWriter(database, registry, read)
        self._lock = RLock()
        self._aside: Mapping[int, str] | None = None
        self._fill_again_s = 0.0
        self._filler = Filler(database, read, registry, self._writer, self._lock)
        if stored is not None:
            self.stand(stored)

    @property
    def here(self) -> StoredPosition:
        """Where the table stands; only while it is not lost."""
        assert self.stored is not None
        return self.stored

    @property
    def is_filling(self) -> bool:
        """Whether its indexes lack something. Filling them is begun again where the log could not be read."""
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
        """The damaged record that its indexes cannot be filled past; empty where there is none."""
        problem = self._filler.problem if self._writer.gaps else None
        return str(problem) if isinstance(problem, DamagedRecord) else ""

    def look_aside(self, aside: Mapping[int, str]) -> bool:
        """Note which observations are set aside by now; False where the table has to be made again for it."""
        if aside is self._aside:
            return True
        if not self.here.leaves_out(aside):
            return False
        self._aside = aside
        self.stored = replace(self.here, aside=tuple(sorted(aside)))
        return True

    @property
    def kernel_records(self) -> int:
        """How many records the kernel folded since the table was opened."""
        return self._writer.kernel_records

    @property
    def size_bytes(self) -> int:
        """How much of the disk it takes. Of any thread, also while the table is closed."""
        return bytes_on_disk(self.database.path)

    @property
    def indexed(self) -> int:
        """The next offset up to which the indexes hold everything; of any thread."""
        offset = self.here.at.offset
        return min([offset, *(gap.start for gap in self._writer.gaps.values())])

    @property
    def lacking(self) -> int:
        """How many records' entries the indexes may lack."""
        return sum(gap.end - gap.start for gap in self._writer.gaps.values())

    def stand(self, stored: StoredPosition) -> None:
        """Stand where the database does."""
        self.stored = stored
        self._aside = None
        self._writer.fold_below(stored.at.schemas)
        self._filler.begin()

    def stop_filling(self) -> None:
        """Leave the indexes as they are."""
        self._filler.stop()

    def take_up_to(self, schemas: int) -> None:
        """Take up definitions that fold nothing again; the next step to be written says so."""
        self.stored = replace(self.here, at=Reached(self.here.at.offset, schemas))
        self._writer.fold_below(schemas)

    def fold(self, arrived: Sequence[DecodedRecord], offset: int, recorded_at: int) -> Overlay:
        """Fold records up to an offset; recorded_at: the running maximum there, in milliseconds."""
        here, overlay = self.here, self.nothing()
        with self._lock:
            self._writer.fold(arrived, overlay.write, overlay, {here.partition: offset})
        if arrived:
            record = arrived[-1].record
            overlay.stored = replace(overlay.stored, last=(record.offset, record.id))
        return overlay.to(Reached(offset, here.at.schemas), recorded_at)

    def fold_again(self, type_fold: TypeFold, rows: Iterable[Row], to: Reached) -> Overlay:
        """Fold entities again by the definition that is being taken up, which leads to a point."""
        here, overlay = self.here, self.nothing()
        with self._lock:
            for row in rows:
                fold_again(self._writer, type_fold, row, here.partition, to.offset, overlay.write, overlay)
        return overlay.to(to, here.recorded_at)

    def nothing(self) -> Overlay:
        """A step that leads nowhere yet."""
        return Overlay(self.database.batch(), self.here)

    def write(self, overlay: Overlay) -> None:
        """Put a step into the table."""
        overlay.stored.put(overlay.write)
        self.database.write(overlay.write, sync=False)
        if overlay.stored.at.schemas != self.here.at.schemas:
            self._writer.fold_below(overlay.stored.at.schemas)
        self.stored = overlay.stored

    def close(self) -> None:
        """Let go of the database."""
        self._filler.stop()
        self.database.close()


def open_database(folder: Path, memory: Memory, wait_s: float, go_on: Callable[[], None]) -> Database:
    """Own the database in a folder, made where there is none or a damaged one.

    LockedError where another process has it for longer than wait_s: one that lost the partition is closing it.
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
            go_on()
            time.sleep(LOCK_WAIT_S)
        except CorruptionError as error:
            _log.warning("%s: this partition's table is made again: %s", folder, error)
            shutil.rmtree(folder)


def bytes_on_disk(folder: Path) -> int:
    """The sizes of all files in a folder; those that go meanwhile do not count."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(place, name).stat().st_size
    return size


def usable(database: Database, log_id: bytes, partition: int, partitions: int, end: int) -> StoredPosition | None:
    """Where the table in a database stands; None where it is lost. end: the partition's next offset.

    InputError where it is another one's, or past the log's end.
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
            f"ends at {end}: {GONE}"
        )
    if stored.fold_version != FOLD_VERSION:
        _log.warning("%s: folded by fold version %d; made again by %d", database.path, stored.fold_version,
                     FOLD_VERSION)  # fmt: skip
        return None
    return stored


def rows_by_place(
    database: Database, type_name: str, start: int, below: int | None, entities_max: int
) -> tuple[list[Row], int | None]:
    """A type's entities in whole places from one on, and the place behind them; None where these are the type's last.

    below: the place to end at in any case.
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
