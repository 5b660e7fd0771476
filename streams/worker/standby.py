"""Warm tables of the partitions that other workers fold, so that one which takes over finds little left to do.

A worker with `--standby` is a member of the group like any other, and may be given any partition. Beside its fold, a
thread keeps the tables of all partitions that it does not have:

1. Before it joins the group, every table is brought to where the partition is decided, WARM_PASSES times: others fold
   its share on meanwhile, and what is left after the second time is what they folded during it. However fast they
   are, that comes to an end.
2. Then, every EVERY_S: see what the group's committed offsets say, each with its point (fold_position.py) and with the
   verdicts below it. A transaction under way is not waited for: the offsets before it will do.
3. The table of each partition is brought to that point, as at a start (start.py): one that is lost is made again
   there, one that is behind follows, and nothing is emitted. So it never is past what was emitted.
4. When the group gives this worker the partition, its following ends between two writes and its table is closed. From
   there on it is a start like any other, which finds the table behind by what was committed since 2.
5. When the group takes the partition away again, the fold closes its table, and it is followed from there.

Nothing here has a producer, commits an offset or seals an epoch. A table has one writer, in this process the thread or
the fold; other processes are kept away from the whole data folder (data_folder.py).

What may pass, as a broker that does not answer, is tried again and said in the status. What does not, as a table of
another log or one that is past the end of this one, ends the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Condition, Event, Thread
from typing import Any

from refold.avro.errors import CorruptionError, DamagedRecord, LockedError, StorageError
from refold.streams.log.kafka.fold_position import BEGIN, Reached, committed_of
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.worker.condition import Waits
from refold.streams.worker.start import Cancelled, Starter
from refold.streams.worker.table import PartitionTable

EVERY_S = 0.5
WARM_PASSES = 2
_LOOK_S = 0.1


class Standbys:
    """Keeps the tables of the partitions that the fold has not. The fold says what it does by the first methods."""

    def __init__(self, log: KafkaLog, starter: Starter) -> None:
        self._log = log
        self._starter = starter
        self._tables: dict[int, PartitionTable] = {}
        self._aims: dict[int, Reached] = {}
        self._reached: set[int] = set()
        self._waits = Waits("standby of partition")
        # Guarded by the condition: what the fold has, and whose tables are open or being opened here.
        self._moved = Condition()
        self._folded: set[int] = set()
        self._open: set[int] = set()
        self._is_stopping = False
        self._is_warm = Event()
        self._problem: Exception | None = None
        self._thread = Thread(target=self._run, name="refold-standby", daemon=True)

    # Of the fold

    def warm(self, is_stopping: Callable[[], bool]) -> None:
        """Begin, and return when step 1 is done."""
        self._thread.start()
        while not self._is_warm.wait(_LOOK_S) and not is_stopping():
            pass
        self.check()

    def check(self) -> None:
        """Raise what ended the following."""
        if self._problem is not None:
            raise self._problem

    def leave(self, partition: int) -> None:
        """The fold has the partition from now on."""
        with self._moved:
            self._folded.add(partition)
            self._moved.notify_all()

    def await_left(self, partition: int, is_cancelled: Callable[[], bool]) -> None:
        """Return when the table is closed here. Cancelled where it is not wanted any more."""
        with self._moved:
            while partition in self._open:
                if is_cancelled():
                    raise Cancelled
                self._moved.wait(_LOOK_S)

    def take(self, partition: int) -> None:
        """The fold has given the partition up."""
        with self._moved:
            self._folded.discard(partition)

    def stop_soon(self) -> None:
        """Follow no more, without waiting."""
        with self._moved:
            self._is_stopping = True
            self._moved.notify_all()

    def close(self) -> None:
        """Follow no more; returns when all tables are closed."""
        self.stop_soon()
        if self._thread.ident is not None:
            self._thread.join()

    # Of any thread

    def status(self) -> dict[int, dict[str, Any]]:
        """By partition how its table stands; lag: offsets that are decided and not folded here."""
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

    # Of its own

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
        """Wait, letting go meanwhile of what the fold takes."""
        until_s = time.monotonic() + duration_s
        while not self._is_stopping and (left_s := until_s - time.monotonic()) > 0:
            with self._moved:
                self._moved.wait_for(lambda: self._is_stopping or self._folded & self._open, left_s)
            self._close_folded()

    def _pass(self) -> None:
        """Bring every table to where its partition is decided by now."""
        of_all = self._tried(self._starter.refresh)
        for number in range(self._log.partitions):
            self._waits.note(number, of_all or self._tried(partial(self._follow, number)))

    def _tried(self, call: Callable[[], None]) -> str:
        """Why it could not be done now; empty where it was."""
        try:
            call()
        except StorageError as error:
            # Before it is in the group it is a start, which ends the worker.
            if isinstance(error, DamagedRecord):  # waited for, as by the fold (quarantine.py)
                return str(error)
            if isinstance(error, (CorruptionError, LockedError)) or not self._is_warm.is_set():
                raise
            return str(error)
        return ""

    def _follow(self, number: int) -> None:
        aim = committed_of(*self._log.committed(number)) or BEGIN
        with self._moved:
            if self._is_stopping or number in self._folded:
                return
            self._open.add(number)
        self._aims[number] = aim

        def go_on() -> None:
            if self._is_stopping or number in self._folded:
                raise Cancelled
            self._close_folded(but=number)

        try:
            if number not in self._tables:
                self._tables[number] = self._starter.open(number, go_on)
            self._starter.bring(self._tables[number], number, aim, go_on)
            self._reached.add(number)
        except Cancelled:
            self._close(number)
        except BaseException:
            self._close(number)
            raise
        self._close_folded()

    def _close_folded(self, but: int | None = None) -> None:
        """Close what the fold has by now, without the table that is at work."""
        with self._moved:
            folded = self._folded & self._open
        for number in folded - {but}:
            self._close(number)

    def _close(self, number: int) -> None:
        """Let go of a table, and say so."""
        self._reached.discard(number)
        table = self._tables.pop(number, None)
        if table is not None:
            table.close()
        with self._moved:
            self._open.discard(number)
            self._moved.notify_all()
