"""Warm tables of partitions that other workers own, so that this worker can take them over quickly.

A worker with `--standby` is an ordinary member of the group and may be assigned any partition. In addition to its
fold, a thread keeps tables of all partitions that it does not own:

1. Before it joins the group, every table is folded up to its partition's emitted point, WARM_PASSES times. Other
   workers continue to fold during the first pass, so the second pass folds only what was emitted during the first.
   The number of passes is fixed, so this ends.
2. Then, every EVERY_S, read the group's committed offsets, each with its point (fold_position.py) and the verdicts
   below it. Open transactions are not waited for: the offsets before them are used.
3. Advance the table of each partition to that point, as at a start (start.py): a lost table is remade, an older table
   catches up, and nothing is emitted. A table is therefore never past the emitted point.
4. When the group assigns the partition to this worker, following stops between two writes and the table is closed.
   The fold then starts as usual, and its table lacks only what was committed since step 2.
5. When the group revokes the partition, the fold closes its table, and following resumes from there.

This module has no producer, commits no offset and seals no epoch. A table has one writer: in this process the thread
or the fold; the lock of the data folder (data_folder.py) excludes other processes.

Temporary errors, such as a broker that does not answer, are retried and shown in the status. Permanent errors, such
as a table of another log or one past the end of this log, end the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Condition, Event, Thread
from typing import Any

from refold.avro.errors import CorruptionError, DamagedRecord, LockedError, StorageError
from refold.streams.log.kafka.fold_position import BEGIN, PartitionPoint, committed_point_of
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.worker.condition import StallLog
from refold.streams.worker.partition_table import PartitionTable
from refold.streams.worker.start import Cancelled, Starter

EVERY_S = 0.5
WARM_PASSES = 2
_LOOK_S = 0.1


class StandbyTables:
    """Keeps the tables of the partitions that the fold does not own. The fold reports changes by the first methods."""

    def __init__(self, log: KafkaLog, starter: Starter) -> None:
        self._log = log
        self._starter = starter
        self._tables: dict[int, PartitionTable] = {}
        self._aims: dict[int, PartitionPoint] = {}
        self._reached: set[int] = set()
        self._waits = StallLog("standby of partition")
        # Guarded by the condition: the partitions of the fold, and those whose tables are open or being opened here.
        self._moved = Condition()
        self._folded: set[int] = set()
        self._open: set[int] = set()
        self._is_stopping = False
        self._is_warm = Event()
        self._problem: Exception | None = None
        self._thread = Thread(target=self._run, name="refold-standby", daemon=True)

    # Called by the fold

    def warm(self, is_stopping: Callable[[], bool]) -> None:
        """Start the thread, and return when step 1 is done."""
        self._thread.start()
        while not self._is_warm.wait(_LOOK_S) and not is_stopping():
            pass
        self.check()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._problem is not None:
            raise self._problem

    def release(self, partition: int) -> None:
        """Stop following a partition, which the fold owns from now on."""
        with self._moved:
            self._folded.add(partition)
            self._moved.notify_all()

    def await_closed(self, partition: int, is_cancelled: Callable[[], bool]) -> None:
        """Return when this thread has closed a partition's table.

        Raises:
            Cancelled: The caller is cancelled.
        """
        with self._moved:
            while partition in self._open:
                if is_cancelled():
                    raise Cancelled
                self._moved.wait(_LOOK_S)

    def follow(self, partition: int) -> None:
        """Follow a partition that the fold released."""
        with self._moved:
            self._folded.discard(partition)

    def stop_soon(self) -> None:
        """Ask the thread to stop, without waiting."""
        with self._moved:
            self._is_stopping = True
            self._moved.notify_all()

    def close(self) -> None:
        """Stop the thread; returns when all tables are closed."""
        self.stop_soon()
        if self._thread.ident is not None:
            self._thread.join()

    # Called by any thread

    def status(self) -> dict[int, dict[str, Any]]:
        """Return the status of each table by partition. lag: offsets that are emitted and not folded here."""
        found = {}
        for number, aim in list(self._aims.items()):
            if number in self._folded:
                continue
            table = self._tables.get(number)
            stored = None if table is None else table.stored
            offset = 0 if stored is None else stored.at.offset
            found[number] = {
                "state": "standby",
                "offset": offset,
                "end": aim.offset,
                "lag": max(0, aim.offset - offset),
                "caught_up": number in self._reached,
                "waits_for": self._waits.of(number),
                "table_bytes": 0 if table is None else table.size_bytes,
            }
        return found

    # The thread

    def _run(self) -> None:
        passes = 0
        try:
            while not self._is_stopping:
                self._pass()
                passes += 1
                if passes >= WARM_PASSES:
                    self._is_warm.set()
                    self._rest(EVERY_S)
        except Exception as problem:  # raised again by the fold
            self._problem = problem
        finally:
            for number in list(self._open):
                self._close(number)
            self._is_warm.set()

    def _rest(self, duration_s: float) -> None:
        """Wait; meanwhile close the tables of partitions that the fold takes over."""
        until_s = time.monotonic() + duration_s
        while not self._is_stopping and (left_s := until_s - time.monotonic()) > 0:
            with self._moved:
                self._moved.wait_for(lambda: self._is_stopping or self._folded & self._open, left_s)
            self._close_folded()

    def _pass(self) -> None:
        """Advance every table to its partition's present emitted point."""
        of_all = self._tried(self._starter.refresh_and_activate)
        for number in range(self._log.partitions):
            self._waits.note(number, of_all or self._tried(partial(self._follow, number)))

    def _tried(self, call: Callable[[], None]) -> str:
        """Return the reason why a call failed temporarily; empty if it succeeded."""
        try:
            call()
        except StorageError as error:
            # Before the worker joins its group, an error ends it, as at any start.
            if isinstance(error, DamagedRecord):  # retried, as by the fold (quarantine.py)
                return str(error)
            if isinstance(error, (CorruptionError, LockedError)) or not self._is_warm.is_set():
                raise
            return str(error)
        return ""

    def _follow(self, number: int) -> None:
        aim = committed_point_of(*self._log.committed(number)) or BEGIN
        with self._moved:
            if self._is_stopping or number in self._folded:
                return
            self._open.add(number)
        self._aims[number] = aim

        def check_cancelled() -> None:
            if self._is_stopping or number in self._folded:
                raise Cancelled
            self._close_folded(but=number)

        try:
            if number not in self._tables:
                self._tables[number] = self._starter.open(number, check_cancelled)
            self._starter.advance_to(self._tables[number], number, aim, check_cancelled)
            self._reached.add(number)
        except Cancelled:
            self._close(number)
        except BaseException:
            self._close(number)
            raise
        self._close_folded()

    def _close_folded(self, but: int | None = None) -> None:
        """Close the tables that the fold owns by now, except the one in use."""
        with self._moved:
            folded = self._folded & self._open
        for number in folded - {but}:
            self._close(number)

    def _close(self, number: int) -> None:
        """Close a table, and notify the fold."""
        self._reached.discard(number)
        table = self._tables.pop(number, None)
        if table is not None:
            table.close()
        with self._moved:
            self._open.discard(number)
            self._moved.notify_all()
