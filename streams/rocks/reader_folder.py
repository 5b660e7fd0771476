"""The folder of a reader, in the temporary folder: `refold-read-*`, for RocksDB's messages and links to its files.

1. A reader makes the folder, makes the file `lock` in it, and holds an exclusive flock on that file while it lives. If
   another process has the lock by then, or has removed the folder, it makes another.
2. A reader that ends removes its folder. One that is killed leaves it, without the lock.
3. A process that reads for the first time removes the folders of this user whose lock nobody holds. One without a lock
   file is left for a day: it may be in the making. Links are not followed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock

from refold.avro.errors import StorageError

PREFIX = "refold-read-"
_LOCK = "lock"
_UNLOCKED_MAX_S = 24 * 3600
_sweeping = Lock()
_swept: set[str] = set()


class ReaderFolder:
    """A folder that is there until `remove`, or until the process ends. StorageError where none can be made."""

    def __init__(self) -> None:
        _sweep_once()
        while True:
            try:
                self.path = tempfile.mkdtemp(prefix=PREFIX)
            except OSError as error:
                raise StorageError(
                    f"a reader needs a temporary folder, and none can be made: {error}; set TMPDIR to a folder that "
                    "this user may write"
                ) from error
            found = _locked(Path(self.path))
            if found is not None:
                self._descriptor = found
                return

    def remove(self) -> None:
        """Remove it; to be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def sweep(place: Path) -> None:
    """Remove from `place` the folders that this user's killed readers left."""
    with suppress(OSError):
        for folder in list(place.glob(PREFIX + "*")):
            with suppress(OSError):
                _remove_stale(folder)


def _remove_stale(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        if time.time() - found.st_mtime > _UNLOCKED_MAX_S:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its reader lives
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """The descriptor that holds the folder's lock; None where another process was faster."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (folder / _LOCK).stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    os.close(descriptor)
    return None


def _sweep_once() -> None:
    try:
        place = tempfile.gettempdir()
    except OSError:
        return  # said where a folder is made
    with _sweeping:
        if place in _swept:
            return
        _swept.add(place)
    sweep(Path(place))
