"""The folder of a `file:` log, and how it is created.

    FORMAT           "refold-file 1": this folder is a log. "refold-table 1": it is the table of one partition that a
                     worker folds, without the last two
    FORMAT.creating  the same, while the log is being made
    SYNCED           the number of the last write known to be on the device
    db/              RocksDB
    blobs/           large values, unless
    BLOBS            the URL of another store is kept for them (streams/blobs/url.py)
    keys/            the keys of what is sealed, unless another place is named for them (agents/keys/)
    owner.sock       where the owner answers

FORMAT.creating is renamed to FORMAT when everything else is on the device, so creation is atomic.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Literal
from zlib import crc32

from refold.avro.errors import InputError, LockedError, StorageError
from refold.streams.durable import sync_path

FORMAT_NUMBER = 1
OPENERS_FILE = "rocksdict-config.json"
"""The file that rocksdict writes into db/ whenever it opens a database, even to read."""
Kind = Literal["file", "table"]
"""The kind of a folder: a log, or the table of one partition."""


def url_of(path: Path) -> str:
    """Return the URL of the log at a path. Any process on this machine can open the log by it."""
    whole = "/" + str(path.absolute()).lstrip("/")
    return "file:" + whole.replace("%", "%25").replace("?", "%3F")


def is_log(path: Path, kind: Kind = "file") -> bool:
    """Whether `path` holds a log (or a folder of another `kind`) that this release can read.

    False: nothing is there, or an unfinished creation. Does not open RocksDB.

    Raises:
        InputError: Something else or a newer release's log is there.
    """
    try:
        text = _format_text(path)
        if text is None:
            if not path.exists() or (path.is_dir() and (_unfinished(path, kind) or not any(path.iterdir()))):
                return False
            # Another process may have finished the creation between the two checks.
            text = _format_text(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if text is None:
        raise InputError(f"{path}: not a refold log; give the path of one, or a new or empty folder")
    found = re.fullmatch(rf"refold-{kind} ([0-9]{{1,9}})\n", text)
    if found is None:
        what = "a refold log" if kind == "file" else "a worker's table"
        raise InputError(f"{path}: not {what}: its FORMAT file holds {text[:40]!r}")
    number = int(found[1])
    if number > FORMAT_NUMBER:
        raise InputError(
            f"{path}: file format {number}; this release reads up to {FORMAT_NUMBER}: "
            "install the newer refold that wrote it"
        )
    return True


def require_log(path: Path, kind: Kind = "file") -> None:
    """Raise InputError unless `path` holds a log (or a folder of another `kind`)."""
    if not is_log(path, kind):
        raise InputError(f"{path}: there is no refold log here; create it first")


@contextmanager
def creating(path: Path, kind: Kind = "file") -> Iterator[None]:
    """Create a log (or a folder of another `kind`) at `path` if the body, which fills `db/`, succeeds.

    One process at a time; safe to kill. If the body fails, the folders that were made for it are removed.

    Raises:
        InputError: A log or something else is there.
        LockedError: Another process is creating it.
    """
    if is_log(path, kind):
        raise InputError(f"{path}: there is a refold log here already; open it")
    marker = path / "FORMAT.creating"
    made = list(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{path}: a log cannot be created here: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{path}: another process is creating this log; open it in a moment") from None
        if not _is_at(descriptor, marker) and not (path / "FORMAT").exists():
            # The other process failed between our open and our lock, and removed the marker.
            raise LockedError(f"{path}: another process was creating this log, and failed; try again")
        if (path / "FORMAT").exists():
            # The other process finished between our check and our lock; the marker may be a new one.
            marker.unlink(missing_ok=True)
            raise InputError(f"{path}: there is a refold log here already; open it")
        os.pwrite(descriptor, _text_of(kind).encode(), 0)
        os.fsync(descriptor)
        sync_path(path)
        _clear(path)
        try:
            yield
        except BaseException:
            _clear(path)
            marker.unlink(missing_ok=True)
            _remove_empty(made)
            raise
        sync_path(path)
        marker.rename(path / "FORMAT")
        sync_path(path)
        sync_path(path.parent)
    except OSError as error:
        raise StorageError(f"{path}: this cannot be created: {error.strerror}; mend that, then try again") from error
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still names this open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove empty folders, the innermost first."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _clear(path: Path) -> None:
    """Remove the files of an unfinished creation."""
    for folder in ("db", "blobs"):
        shutil.rmtree(path / folder, ignore_errors=True)
    for name in ("SYNCED", "BLOBS"):
        (path / name).unlink(missing_ok=True)


class SyncedNote:
    """The file SYNCED: the highest write number known to be synced, so that a log that lost acknowledged writes is
    refused.

    It is written after each sync and not synced itself: after a power cut it may be too old, but never too new. RocksDB
    alone cannot distinguish a truncated write-ahead log from a torn one, or a missing one from none.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path / "SYNCED", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise _not_a_file(path / "SYNCED", error) from error

    def write(self, number: int) -> None:
        body = struct.pack(">Q", number)
        try:
            os.pwrite(self._descriptor, body + struct.pack(">I", crc32(body)), 0)
        except OSError:
            # The writes are on the device; an older note is a weaker check, but still valid.
            return

    def close(self) -> None:
        os.close(self._descriptor)


def _not_a_file(file: Path, error: OSError) -> StorageError:
    if error.errno == errno.ELOOP:
        return StorageError(
            f"{file}: a symbolic link, which refold does not follow: it writes this file; remove the link, and put the "
            "file itself there if it has been moved"
        )
    return StorageError(f"{file}: cannot be opened: {error.strerror}")


def synced_number(path: Path) -> int:
    """The number in the note; 0 (no check) if it is absent or torn.

    Raises:
        StorageError: It is a symbolic link, which is not followed, or cannot be read.
    """
    try:
        descriptor = os.open(path / "SYNCED", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _not_a_file(path / "SYNCED", error) from error
    try:
        record = os.read(descriptor, 13)
    finally:
        os.close(descriptor)
    if len(record) != 12 or struct.unpack(">I", record[8:])[0] != crc32(record[:8]):
        return 0
    number: int = struct.unpack(">Q", record[:8])[0]
    return number


def may_write(path: Path) -> bool:
    """Whether this user may write the database of the log at `path`; also False on a read-only file system."""
    written = path / "db" / OPENERS_FILE
    return os.access(path / "db", os.W_OK) and (not written.exists() or os.access(written, os.W_OK))


def _format_text(path: Path) -> str | None:
    try:
        with (path / "FORMAT").open("rb") as file:
            return file.read(64).decode("ascii", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _text_of(kind: Kind) -> str:
    return f"refold-{kind} {FORMAT_NUMBER}\n"


def _unfinished(path: Path, kind: Kind) -> bool:
    try:
        return _text_of(kind).encode().startswith((path / "FORMAT.creating").read_bytes())
    except OSError:
        return False
