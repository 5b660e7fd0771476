"""Opens the database of a `file:` log, to read it or to write it as its owner.

Several processes may open one log at a time, even while it is being created. Each waits until the log has its identity,
up to a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from refold.avro.errors import InputError, LockedError
from refold.streams.deadline import Deadline
from refold.streams.log.file import records
from refold.streams.log.file.records import Identity
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Memory
from refold.streams.rocks.layout import is_log
from refold.streams.table.index_gaps import TABLE, table_record

# The time between two checks of what another process is doing.
TAKEOVER_WAIT_S = 0.05


def open_to_read(path: Path, timeout_s: float) -> Database:
    """Open a reader's instance. Waits for a log that another process is creating.

    Args:
        path: The log's folder.
        timeout_s: How long to wait, in seconds.

    Raises:
        InputError: There is no log, or it still has no identity.
    """
    deadline = Deadline(timeout_s)
    while True:
        database = Database.read(path)
        if records.read_log_record(database) is not None:
            return database
        database.close()
        if deadline.is_past:
            raise InputError(f"{path}: the log has no identity yet; open it to write, which gives it one")
        time.sleep(TAKEOVER_WAIT_S)


def open_to_write(
    path: Path, partitions: int, timeout_s: float, new_id: Callable[[], bytes], memory: Memory | None = None
) -> Database:
    """Open the owner's instance, or a reader's if another process owns the log.

    Args:
        path: the log's folder. The log is created if there is none.
        partitions: the number of partitions of a new log.
        timeout_s: how long to wait for another process that is creating it.
        new_id: makes the id of a new log.
        memory: the memory of RocksDB if this process owns the log; None for its default.
    """
    deadline = Deadline(timeout_s)
    while True:
        try:
            database = Database.open(path, memory=memory) if is_log(path) else Database.create(path, memory=memory)
        except LockedError:
            if is_log(path):
                return open_to_read(path, timeout_s)
            if deadline.is_past:
                raise
            time.sleep(TAKEOVER_WAIT_S)
            continue
        except InputError:
            if not is_log(path):
                raise
            continue  # another process finished creating it between the two checks
        if records.read_log_record(database) is None:
            write = database.batch()
            write.put("meta", records.LOG, records.log_record(Identity(new_id(), partitions)))
            write.put("meta", TABLE, table_record({}))
            database.write(write, sync=True)
        return database
