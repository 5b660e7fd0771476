"""The workers of a data folder: several may share it, and each table is used by one worker; a worker with standbys
needs it alone.

Workers that share a folder find each other's tables when a partition moves. In a shared folder a standby would hold the
table that the next owner of its partition waits for.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from refold.avro.errors import InputError, LockedError, StorageError
from refold.streams.events import log_event
from refold.streams.worker.condition import Condition, CurrentCondition

NAME = "WORKERS"
FULL_BYTES = 1 << 20
"""A disk with less than this free takes no table's next write for certain."""

_log = logging.getLogger(__name__)


def folder_problem(folder: Path) -> str:
    """Return why tables cannot be written in a data folder; empty if they can, as far as known without writing."""
    try:
        if not (folder / NAME).exists():
            return f"{folder}: the folder of its tables is gone"
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder}: the folder of its tables cannot be looked at ({error.strerror})"
    return "" if free >= FULL_BYTES else f"{folder}: no space left for its tables ({free:,} bytes free)"


class FolderCondition:
    """Whether a data folder can be written to, checked on each call; a change is logged. For several threads."""

    def __init__(self, folder: Path, clock_ms: Callable[[], int]) -> None:
        self._folder = folder
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._now = CurrentCondition(clock_ms, "")

    def now(self) -> Condition:
        """Look."""
        why = folder_problem(self._folder)
        with self._lock:
            before, now = self._now.note(not why, why), self._now.now
        if why and before is not None:
            log_event(_log, "folder_unusable", logging.WARNING, why=why)
        elif before is not None and before.why:  # else it was not checked before
            after_s = round(before.seconds(self._clock_ms()), 1)
            log_event(_log, "folder_usable", folder=self._folder, after_s=after_s)
        return now


class DataFolder:
    """A data folder that this process holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def is_removed(self) -> bool:
        """Whether the folder, or WORKERS in it, was removed since this process took hold of it."""
        try:
            return not os.path.samestat(os.fstat(self._descriptor), (self.path / NAME).stat())
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # it cannot be read, which folder_problem reports
            return False

    def require_there(self, tables: Iterable[Path]) -> None:
        """Check that no folder of this worker was removed.

        Args:
            tables: the folders of the open tables.

        Raises:
            StorageError: The folder is no longer the one that this process locked, or a table's is missing.
        """
        gone = [self.path] if self.is_removed else [each for each in tables if not each.exists()]
        if gone:
            raise StorageError(
                f"{gone[0]}: this folder was removed while the worker ran; start the worker again: it rebuilds what "
                "was there, from snapshots and the log, and nothing is lost"
            )

    def reason(self, problem: BaseException, tables: Iterable[Path]) -> BaseException:
        """Why a worker ends: a table fails in many ways once its folder was removed."""
        if isinstance(problem, StorageError):
            try:
                self.require_there(tables)
            except StorageError as removed:
                return removed
        return problem


@contextmanager
def locked_folder(folder: Path, *, alone: bool) -> Iterator[DataFolder]:
    """Use a data folder, created if it is missing; it is free again when this process ends, in any way.

    LockedError if another worker needs it alone, or if it is shared and needed alone.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{folder}: no worker can keep its tables here: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"{folder}: another worker keeps its tables here, and one with --standby needs a folder to itself; "
                "give each one of its own, with --data"
            ) from None
        yield DataFolder(folder, descriptor)
    finally:
        os.close(descriptor)
