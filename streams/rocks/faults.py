"""RocksDB's failures as refold's errors. rocksdict raises a bare `Exception` whose text is all there is."""

from __future__ import annotations

import re
from collections.abc import Sized
from pathlib import Path
from typing import NoReturn

from rocksdict import DbClosedError

from refold.avro.errors import CorruptionError, InputError, LockedError, StorageError
from refold.streams.rocks.families import FAMILIES


def raise_fault(error: Exception, path: Path, doing: str) -> NoReturn:
    """Raise what `error` means to the log at `path`; `doing` completes "while ..." in the message.

    LockedError, CorruptionError (RocksDB's text names the file and offset), StorageError for a full device
    and other I/O errors. An error that is not RocksDB's (a key that is no bytes) is raised as it is.
    """
    if isinstance(error, DbClosedError):
        raise closed_error(path) from None
    if type(error) is not Exception:
        raise error
    text = str(error)
    if "Permission denied" in text:
        found = re.search(r"/[^:]*", text.replace(str(path), "", 1) if text.startswith(str(path)) else text)
        raise unreadable(path, Path(found[0]) if found else path) from error
    if "lock hold by current process" in text or "While lock file" in text:
        raise LockedError(
            f"{path}: the log is owned by a running process; append through it, or open the log for reading"
        ) from error
    if text.startswith("Corruption"):
        raise CorruptionError(
            f"{path}: stored bytes are damaged, found while {doing}: {text}; "
            "restore the log from a copy or import its archive; nothing was changed"
        ) from error
    if any(words in text for words in ("No such file", "does not exist", "Try again")):
        raise CorruptionError(
            f"{path}: a file of the log is missing, found while {doing}: {text}; "
            "restore the log from a copy or import its archive; nothing was changed"
        ) from error
    if "No space left on device" in text or "Disk quota exceeded" in text:
        raise StorageError(
            f"{path}: no space left while {doing}; free some and open the log again, then repeat what was "
            f"not acknowledged ({text})"
        ) from error
    raise StorageError(
        f"{path}: storage failed while {doing}: {text}; mend the device, open the log again and repeat what "
        "was not acknowledged"
    ) from error


def unreadable(path: Path, file: Path) -> StorageError:
    """What is raised where this user may not read a file of the log."""
    return StorageError(
        f"{path}: this user may not read {file}: give it the right to read everything there (chmod -R a+rX {path}), or "
        "run this as a user that has it"
    )


def unwritable(path: Path, place: Path) -> StorageError:
    """What is raised where the log is to be written, and this user, or the file system, does not allow it."""
    return StorageError(
        f"{path}: opened to write, and {place} cannot be written: the file system is read-only, or this user lacks the "
        f"right to write; commands that only read, such as state and verify, go on"
    )


def closed_error(path: Path) -> StorageError:
    """What every use of a closed database raises."""
    return StorageError(f"{path}: the log is closed; open it again")


def archived_error(path: Path) -> InputError:
    """What every append to an archived log raises."""
    return InputError(
        f"{path}: this log is the archive of another and takes no appends; let it go on under an id of its own with "
        f"`refold import --format archive --fork --log file:{path}`"
    )


def raise_key_error(path: Path, families: Sized, family: str, key: object) -> NoReturn:
    """What a KeyError of the binding means; `families` is empty once the database is closed."""
    if not families:
        raise closed_error(path) from None
    if family not in FAMILIES:
        raise InputError(f"{path}: no family {family!r}; there are {', '.join(FAMILIES)}") from None
    raise InputError(f"{path}: keys of {family} are bytes; given {key!r:.80}") from None


def raise_lost(path: Path, found: int, synced: int) -> NoReturn:
    """The log ends before a write that was acknowledged."""
    raise CorruptionError(
        f"{path}: the log ends at write {found}, but write {synced} was acknowledged: its write-ahead log "
        "(db/*.log) is damaged, cut short or gone; restore the log from a copy or import its archive; "
        "nothing was changed"
    )
