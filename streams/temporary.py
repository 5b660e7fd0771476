"""A process's folders in the temporary folder. If the process is killed, the next process removes them.

| folder | holds |
|---|---|
| `refold-read-*` | RocksDB's messages, and links to the files of a log that is read |
| `refold-confined-*` | the files that a confined replay may write |
| `refold-import-*` | data from standard input or a pipe that is to be imported |
| `refold-rebuild-*` | files that the processes of a rebuild, and RocksDB in them, write |
| `refold-verify-*` | the same of the processes of `refold verify` |
| `refold-bisect-*` | work trees of `bisect`, and files that its probes write |
| `refold-scratch-*` | files that are created for a remote object store |

1. A process creates the folder and the file `lock` in it, and holds an exclusive flock on that file while it runs. If
   another process already has the lock, or has removed the folder, it creates another one. A child that inherits the
   descriptor holds the lock too: the folder is kept until both have ended.
2. A process that ends removes its folder. A killed process leaves it, without the lock.
3. A process that creates its first folder of a kind removes this user's folders of the same kind whose lock nobody
   holds. A folder without a lock file is kept for a day, because it may be under construction. Links are not followed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock

from refold.avro.errors import StorageError

_LOCK = "lock"
_UNLOCKED_MAX_S = 24 * 3600
_sweeping = Lock()
_swept: set[tuple[str, str]] = set()


class TemporaryFolder:
    """A folder that exists until `remove`, or until the process ends; as a context manager, until the block ends.

    Attributes:
        path: The folder.
        descriptor: The descriptor that holds the folder's lock.
    """

    def __init__(self, prefix: str) -> None:
        """Create the folder, after removing the folders of killed processes with this prefix.

        Args:
            prefix: the beginning of the folder's name.

        Raises:
            StorageError: no folder can be created.
        """
        _sweep_once(prefix)
        while True:
            try:
                self.path = tempfile.mkdtemp(prefix=prefix)
            except OSError as error:
                raise StorageError(
                    f"a temporary folder is needed, and none can be made: {error}; set TMPDIR to a folder that this "
                    "user may write"
                ) from error
            found = _locked(Path(self.path))
            if found is not None:
                self.descriptor = found
                return

    def __enter__(self) -> Path:
        return Path(self.path)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder; call it once."""
        _remove(Path(self.path))
        os.close(self.descriptor)


def sweep(place: Path, prefix: str) -> None:
    """Remove from `place` the folders with a prefix that this user's killed processes left."""
    with suppress(OSError):
        for folder in list(place.glob(prefix + "*")):
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
            _remove(folder)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process is still running
        _remove(folder)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder, even if a confined process created folders without access rights in it. Links are not followed,
    not even those created meanwhile, so nothing outside the folder changes."""
    if sys.platform == "linux":
        for _, folders, _, parent in os.fwalk(folder):
            for each in folders:
                with suppress(OSError):
                    _open_to_its_user(each, parent)
    shutil.rmtree(folder, ignore_errors=True)


def _open_to_its_user(folder: str, parent: int) -> None:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)  # noqa: PTH101  # of what was opened, whatever has its name now
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """Return the descriptor that holds the folder's lock; None if another process was faster."""
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


def _sweep_once(prefix: str) -> None:
    try:
        place = tempfile.gettempdir()
    except OSError:
        return  # creating the folder reports the error
    with _sweeping:
        if (place, prefix) in _swept:
            return
        _swept.add((place, prefix))
    sweep(Path(place), prefix)
