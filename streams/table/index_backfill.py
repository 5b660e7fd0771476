"""Fills the indexes of a recovered table in the background, between the batches of the fold."""

from __future__ import annotations

import logging
from threading import RLock, Thread

from refold.avro.errors import RefoldError
from refold.avro.registry import Registry
from refold.streams.rocks.database import Database
from refold.streams.table.batch_fold import BatchFold
from refold.streams.table.index_gaps import ReadRecords, fill, read_gaps
from refold.streams.table.limits import TableLimits

_log = logging.getLogger(__name__)


class Filler:
    """Runs one thread while there are gaps. It takes the fold's lock, so each step is between two batches."""

    def __init__(
        self, database: Database, read: ReadRecords, registry: Registry, tables: BatchFold, lock: RLock,
        limits: TableLimits,
    ) -> None:  # fmt: skip
        self._database = database
        self._read = read
        self._registry = registry
        self._tables = tables
        self._lock = lock
        self._records_max = limits.indexed_records
        self._stopping = False
        self._thread: Thread | None = None
        self.problem: RefoldError | None = None

    def begin(self) -> None:
        """Start to fill the gaps, if there are any."""
        self._tables.gaps = read_gaps(self._database) or {}
        if self._tables.gaps:
            self._stopping = False
            self.problem = None
            self._thread = Thread(target=self._run, name="refold-timeline", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop; the next owner fills the remaining gaps."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def is_filling(self) -> bool:
        """Whether the thread is running. If it is not and gaps remain, they could not be filled; `problem` says why."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Return when there are no more gaps."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping and self._step():
                pass
        except RefoldError as error:
            self.problem = error
            _log.warning("%s: the indexes could not be filled: %s", self._database.path, error)

    def _step(self) -> bool:
        with self._lock:
            write = self._database.batch()
            left = fill(self._database, self._read, self._registry, self._tables.gaps, self._records_max, write)
            self._database.write(write, sync=False)
            self._tables.gaps = left
            return bool(left)
