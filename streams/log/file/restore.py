"""Writes a copy of another log: records keep partition, offset and recorded_at, and definitions keep registered_at.

The database is not a log until the end (Database.building), so a crash needs no repair. An archived log keeps the
origin's id and takes no appends, because otherwise one cut could mean different records than in the origin. A fork has
its own id, and continues:
1. in one write, give the log record the new id and the origin's as `forked_from`, each marker the new id, and remove
   the manifests, which are the origin's;
2. sync. The origin's cuts are refused from then on; markers, times, versions and offsets name the same points.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from refold.avro.errors import InputError, LockedError
from refold.avro.registry import Hole, Registry, TypeVersion
from refold.streams.cut import parse_cut
from refold.streams.log.file import records
from refold.streams.log.file.owner import Owner
from refold.streams.log.file.records import Identity
from refold.streams.log.port import DeadLetter, Marked, Record
from refold.streams.log.stored_markers import MARKER, marker_key, marker_value
from refold.streams.rocks.database import Database
from refold.streams.table import keys
from refold.streams.table.checked import CheckedRecord
from refold.streams.table.index_gaps import TABLE, table_record


class Restorer(Owner):
    """The owner of a log that is being restored.

    Args:
        log_id: The id for markers.
    """

    def __init__(self, database: Database, partitions: int, log_id: bytes) -> None:
        # Times come from the origin. Changes that a definition causes have the time of the last record.
        super().__init__(database, Registry(), partitions, lambda: 0)
        self._log_id = log_id

    def restore(self, places: Sequence[Record], arrived: Sequence[CheckedRecord]) -> None:
        """Write records in the order of recorded_at, each at its partition's next offset, and fold them, except
        holes.
        """
        progress = self._next_progress()
        progress.recorded_at = max(progress.recorded_at, *(record.recorded_at for record in places))
        write = self._database.batch()
        for record in places:
            progress.observations[record.partition] = record.offset + 1
            write.put("observations", keys.position_key(record.partition, record.offset), keys.record_value(record))
        self._tables.fold(arrived, write, records.BatchOutcome(progress, write))
        self._commit(write, progress, sync=False)

    def register_definitions(self, places: Sequence[TypeVersion | Hole]) -> None:
        """Register definitions at the next offsets, and fold by the last of each type."""
        progress = self._next_progress()
        write = self._database.batch()
        newest: dict[str, int] = {}
        for place in places:
            definition = place.definition if isinstance(place, TypeVersion) else None
            value = records.schema_value(definition, place.registered_at)
            write.put("schemas", records.schema_key(place.offset), value)
            if definition is None:
                self._registry.skip(place.registered_at)
            else:
                self._registry.add(definition, place.registered_at)
                newest[definition.name] = place.offset
        progress.recorded_at = max(progress.recorded_at, places[-1].registered_at)
        self._commit(write, progress, sync=False)
        for offset in newest.values():
            self._redefine(offset)

    def put_deadletter(self, item: DeadLetter) -> None:
        """Store a verdict at its original position."""
        write = self._database.batch()
        write.put("deadletters", keys.position_key(item.partition, item.offset), item.data)
        self._database.write(write, sync=False)

    def put_marker(self, marked: Marked) -> None:
        """Store a marker, at the same point of this log."""
        self.mark(_moved(marked, self._log_id), replace=True)

    def become(self, identity: Identity) -> None:
        """The last write: the log's identity."""
        write = self._database.batch()
        write.put("meta", records.LOG, records.log_record(identity))
        write.put("meta", TABLE, table_record({}))
        self._database.write(write, sync=True)


def forked(identity: Identity, new_id: bytes) -> Identity:
    """Return the identity of a fork of an archived log."""
    return Identity(new_id, identity.partitions, None, identity.id)


def fork(path: str | os.PathLike[str], new_id: bytes) -> Identity:
    """Fork an archived log: give it its own id (16 bytes), so that it takes appends; durable on return.

    Raises:
        InputError: It is not an archived log.
        LockedError: A process has it open to write.
    """
    try:
        database = Database.open(path)
    except LockedError as error:
        raise LockedError(f"{path}: a running process has this log open; end it, then fork again") from error
    with database:
        identity = records.read_log_record(database)
        if identity is None or identity.archived_at is None:
            raise InputError(
                f"{path}: this log was not imported from an archive, or is a fork: it already takes appends"
            )
        after = forked(identity, new_id)
        write = database.batch()
        write.put("meta", records.LOG, records.log_record(after))
        for key, _ in database.scan("manifests"):
            if not key.startswith(MARKER):
                write.delete("manifests", key)  # the origin's epochs; this log seals new ones
        for marked in records.read_markers(database):
            write.put("manifests", marker_key(marked.name), marker_value(_moved(marked, new_id)))
        database.write(write, sync=True)
    return after


def _moved(marked: Marked, log_id: bytes) -> Marked:
    """The same marker in a log with another id. A marker with an unreadable cut stays, so that verify reports it."""
    try:
        cut = parse_cut(marked.cut)
    except InputError:
        return marked
    return marked._replace(cut=str(replace(cut, log_id=log_id)))
