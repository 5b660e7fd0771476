"""Starts a partition: finds its emitted point, and advances its table to that point without emitting.

Before that, once in a process: fence (`Emitter.fence`), so that no transaction of an earlier process of this id is
open.

1. Read the group's committed offset, a stable one: this waits for offsets in an open transaction.
2. Wait until the last stable offsets of `.changes` and `.deadletters` are their ends. Everything that another process
   produced is committed or aborted by then, and its later writes are refused (emission.py).
3. Search back from those ends, in doubling ranges, for the last committed record of a worker; the end may consist of
   markers, aborted records and foreign records.
4. These make the emitted point (`emitted_point` of streams/log/kafka/fold_position.py).
5. Open the table. A lost table is rebuilt at that point, by the code of a rebuild: the nearest snapshot and the records
   after it (streams/table/recovery.py); its indexes are filled in the background. A table that does not match the
   current rulings is also rebuilt, and again if a ruling is recorded meanwhile.
6. Fold the log from the table's point to exactly the emitted point, emitting nothing. Definitions are applied at their
   points (advance.py), and records with verdicts are left out, because a verdict is final.

Then the fold continues from there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

from confluent_kafka import KafkaException

from refold.avro.errors import CorruptionError, InputError, StorageError
from refold.avro.quarantine import OBSERVATIONS
from refold.streams.cut import Cut
from refold.streams.events import log_event
from refold.streams.held_types import held_types
from refold.streams.log.kafka.access import GROUP, READ, Grant
from refold.streams.log.kafka.committed import CommittedOffsets
from refold.streams.log.kafka.deadletters import is_verdict
from refold.streams.log.kafka.faults import error_of, is_denied, storage_error
from refold.streams.log.kafka.fold_position import (
    PartitionPoint,
    committed_point_of,
    emitted_point,
    is_emitted,
)
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.recorded_at import Times
from refold.streams.log.kafka.records import ID
from refold.streams.log.port import LogPort
from refold.streams.rebuild.result import Rebuilt
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.families import Memory
from refold.streams.table.limits import DEFAULT_TABLE_LIMITS, TableLimits
from refold.streams.table.recovery import recover
from refold.streams.worker.advance import follow, require_folded, store_deadletters_offset
from refold.streams.worker.partition_table import LOST_RECORDS_REMEDY, PartitionTable, open_database, stored_position_of
from refold.streams.worker.pending_commit import StoredPosition


def recover_table(
    table: PartitionTable, log: LogPort, stored: StoredPosition, check_cancelled: Callable[[], None]
) -> int:
    """Rebuild a table; the database's content is removed.

    Args:
        table: The partition's table.
        log: The log.
        stored: The point to rebuild it at. Its totals are counted again.
        check_cancelled: Raises to stop.

    Returns:
        The number of records that were folded.
    """
    at = PartitionPoint(stored.at.offset, stored.at.schemas)
    made = [stored]

    def put_totals(rebuilt: Rebuilt, write: WriteSet) -> None:
        part = rebuilt.parts[stored.partition]
        made[0] = replace(stored, at=at, entities=part.entities, distinct=part.observations)
        made[0].put(write)

    cut = Cut(log.log_id, {stored.partition: at.offset}, at.schemas, log.registry.digest(at.schemas))
    table.stop_filling()
    rebuilt = recover(table.database, log, cut, put_totals, lambda more, total: check_cancelled())
    table.made_from = rebuilt.source()
    if at.offset:
        _logger.info("%s: made again at %s: %s", table.database.path, at, table.made_from)
    table.adopt(made[0])
    return rebuilt.parts[stored.partition].replayed


STABLE_POLL_S = 0.05
OFFSETS_TIMEOUT_S = 2.0
LOCK_WAIT_S = 60.0
REFUSED_RETRY_S = 10.0

_logger = logging.getLogger(__name__)


class Cancelled(Exception):
    """The group revoked the partition, or the worker is stopping."""


class Starting:
    """A partition that a thread is starting.

    Attributes:
        took_s: How long the start took, in seconds, once it is done.
        again_at_s: When to retry a failed start; None if none is due.
    """

    def __init__(self) -> None:
        self.cancelled = Event()
        self.table: Future[PartitionTable] | None = None
        self.took_s = 0.0
        self.again_at_s: float | None = None


def close_started(table: Future[PartitionTable]) -> None:
    """Close the table of a start that is no longer needed."""
    if table.cancelled():
        return
    problem = table.exception()
    if problem is None:
        table.result().close()
    elif not isinstance(problem, Cancelled):
        # The next owner gets the same error, or it ends this worker: it is reported there.
        _logger.info("a released partition could not be started: %s", problem)


class Starter:
    """Starts partitions, several at a time, each in its own thread."""

    def __init__(self, log: KafkaLog, folder: Path, memory: Memory, limits: TableLimits = DEFAULT_TABLE_LIMITS) -> None:
        self._log = log
        self._clients, self._topics, self._reading, self._offsets = log.clients, log.topics, log.reading, log.offsets
        self._folder = folder
        self._memory = memory
        self._limits = limits
        self._lock = Lock()
        self.refused = ""
        """Why this worker could not write an activation at the last attempt; empty if it could."""
        self._refused_at_s = 0.0
        self.held = 0
        """How many types are held."""
        self._counted = 0

    def refresh_and_activate(self) -> None:
        """Refresh the log, and activate the versions whose code is registered here; one thread at a time."""
        with self._lock:
            self._log.refresh()
            self._activate()
            if len(self._log.registry) != self._counted:
                self.held, self._counted = len(held_types(self._log.registry)), len(self._log.registry)

    @property
    def is_activation_due(self) -> bool:
        """Whether it is time to retry an activation that could not be written."""
        return bool(self.refused) and time.monotonic() - self._refused_at_s > REFUSED_RETRY_S

    def _activate(self) -> None:
        """Start activations if the log has none, and activate (activations.py).

        A worker without the right to write them continues to fold, and names the right: only pending versions wait.
        """
        try:
            self._log.schemas.begin()
            for version in self._log.schemas.activate():
                log_event(_logger, "type_activated", type=version.definition.name, definition=version.offset)
        except StorageError as error:
            if not self.refused:
                log_event(_logger, "activation_refused", logging.WARNING, why=error)
            self.refused, self._refused_at_s = str(error), time.monotonic()
        else:
            self.refused = ""

    def start(self, partition: int, is_cancelled: Callable[[], bool]) -> PartitionTable:
        """Return a partition's table, at the emitted point.

        Args:
            partition: The partition.
            is_cancelled: Whether the table is no longer needed.

        Raises:
            Cancelled: It is no longer needed.
            Unanswered: No broker answered in time.
            DamagedRecord: A record that is needed is damaged.
        """

        def check_cancelled() -> None:
            if is_cancelled():
                raise Cancelled

        at, deadletters = self.read_emitted_point(partition, check_cancelled)
        self.refresh_and_activate()
        table = self.open(partition, check_cancelled)
        try:
            self.advance_to(table, partition, at, check_cancelled)
            require_folded(table, self._log.registry)
            store_deadletters_offset(table, deadletters)
        except BaseException:
            table.close()
            raise
        return table

    def read_emitted_point(self, partition: int, check_cancelled: Callable[[], None]) -> tuple[PartitionPoint, int]:
        """Steps 1 to 4: return the emitted point, and the next offset of `.deadletters`."""
        committed = self.committed(partition, check_cancelled)
        places = [KafkaPartition(self._topics.changes, partition), KafkaPartition(self._topics.deadletters, partition)]
        self._await_stable(places, check_cancelled)
        ends = self._offsets.ends(places)
        change = self._reading.last(places[0], ends[places[0]], is_emitted)
        letter = self._reading.last(places[1], ends[places[1]], is_verdict)
        return emitted_point(committed, (change, letter)), 0 if letter is None else letter.offset + 1

    def committed(self, partition: int, check_cancelled: Callable[[], None]) -> PartitionPoint | None:
        """Return the point at the group's committed offset."""
        topics = self._topics
        with CommittedOffsets(self._clients, topics.group, topics.observations, stable=True) as committed:
            while True:
                check_cancelled()
                try:
                    found = committed.ask([partition], OFFSETS_TIMEOUT_S).get(partition)
                except KafkaException as failed:
                    error = error_of(failed)
                    if error is None or is_denied(error):
                        raise self._refused(failed) from failed
                    continue
                if found is not None:
                    return None if found.offset is None else committed_point_of(found.offset, found.metadata)

    def _refused(self, failed: KafkaException) -> StorageError:
        needs = self._clients.denial_message(Grant(GROUP, self._topics.group, READ))
        return storage_error(f"the offsets of {self._topics.group} cannot be read", failed, needs=needs)

    def _await_stable(self, places: list[KafkaPartition], check_cancelled: Callable[[], None]) -> None:
        while self._offsets.ends(places) != self._offsets.ends(places, committed=False):
            check_cancelled()
            time.sleep(STABLE_POLL_S)

    def open(self, partition: int, check_cancelled: Callable[[], None]) -> PartitionTable:
        """Step 5, without the rebuild of a lost table."""
        database = open_database(self._folder / str(partition), self._memory, LOCK_WAIT_S, check_cancelled)
        try:
            stored = stored_position_of(
                database, self._log.log_id, partition, self._log.partitions, self._log.ends()[partition]
            )
            if stored is not None and stored.last is not None:
                self._require_same(database.path, partition, *stored.last)
            return PartitionTable(database, self._log.registry, self._log.read, stored, self._limits)
        except BaseException:
            database.close()
            raise

    def advance_to(
        self, table: PartitionTable, partition: int, at: PartitionPoint, check_cancelled: Callable[[], None]
    ) -> None:
        """Steps 5 and 6: bring a table to the emitted point.

        A table past the point stays there. That happens if committed offsets and records expired; nothing was emitted
        in between.

        Args:
            table: The table.
            partition: Its partition.
            at: The emitted point.
            check_cancelled: Raises to stop.
        """
        self._require_there(partition, at)
        rulings = self._log.registry.rulings
        while True:
            aside = rulings.of(OBSERVATIONS, partition)
            self._bring(table, partition, at, aside, check_cancelled)
            if rulings.of(OBSERVATIONS, partition) is aside:
                return

    def _bring(
        self,
        table: PartitionTable,
        partition: int,
        at: PartitionPoint,
        aside: Mapping[int, str],
        check_cancelled: Callable[[], None],
    ) -> None:
        stored = table.stored
        if stored is not None and not stored.leaves_out(aside):
            _logger.warning("%s: rulings changed since the table was built; it is rebuilt",
                         table.database.path)  # fmt: skip
            stored = None
        if stored is not None and stored.at != at and not stored.at.is_before(at) and not at.is_before(stored.at):
            _logger.warning("%s: the table is at %s, from which %s cannot be reached; it is rebuilt",
                         table.database.path, stored.at, at)  # fmt: skip
            stored = None
        if stored is None:
            recorded_at = self._times(partition).below(at.offset)
            begin = StoredPosition(
                self._log.log_id, partition, self._log.partitions, at, recorded_at, aside=tuple(sorted(aside))
            )  # fmt: skip
            table.followed += recover_table(table, self._log, begin, check_cancelled)
        table.adopt_rulings(aside)
        if table.position.at < at:
            table.followed += follow(table, self._log, at, check_cancelled)

    def _times(self, partition: int) -> Times:
        return Times(KafkaPartition(self._topics.observations, partition), self._offsets, self._reading)

    def _require_same(self, path: Path, partition: int, offset: int, observation_id: bytes) -> None:
        """Check that the log has the table's last observation at its offset."""
        if offset in self._log.registry.rulings.of(OBSERVATIONS, partition):
            return
        try:
            raw = self._reading.first(KafkaPartition(self._topics.observations, partition), offset, offset + 1)
        except CorruptionError as error:  # deleted on the broker; code that needs it raises
            _logger.warning("%s: its last observation cannot be read: %s", path, error)
            return
        found = None if raw is None else raw.header(ID)
        if raw is not None and found is None:  # written by another producer
            record = self._log.record_at(partition, offset)
            found = None if record is None else record.id
        if found != observation_id:
            raise InputError(
                f"{path}: the table has the observation {observation_id.hex()} at offset {offset} of partition "
                f"{partition}, and the log has {'none' if found is None else found.hex()} there: the log lost its "
                f"end, and continued without it: {LOST_RECORDS_REMEDY}"
            )

    def _require_there(self, partition: int, at: PartitionPoint) -> None:
        end = self._log.ends()[partition]
        if at.offset > end or at.schemas + (at.place > 0) > len(self._log.registry):
            raise CorruptionError(
                f"{self._topics.observations}/{partition} was folded to offset {at.offset}, by {at.schemas} "
                f"definitions; it ends at {end}, and there are {len(self._log.registry)}: {LOST_RECORDS_REMEDY}"
            )
