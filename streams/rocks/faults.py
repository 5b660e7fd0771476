"""Translates RocksDB's failures to refold's errors. rocksdict raises a bare `Exception` with only a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import NamedTuple, NoReturn

from rocksdict import DbClosedError

from refold.avro.errors import CorruptionError, InputError, LockedError, StorageError
from refold.streams.rocks.families import FAMILIES
from refold.streams.rocks.layout import Kind


class Remedy(NamedTuple):
    """What to do about a database that is damaged, whose device is full, or whose device fails."""

    damaged: str
    full: str
    failed: str


# A log is the only copy of its data. A worker's table can be made again from its log.
_REMEDIES: Mapping[Kind, Remedy] = {
    "file": Remedy(
        "restore the log from a copy or import its archive; nothing was changed",
        "free some and open the log again, then repeat what was not acknowledged",
        "mend the device, open the log again and repeat what was not acknowledged",
    ),
    "table": Remedy(
        "remove this folder and start the worker again: it makes the table again from the log, and nothing is lost",
        "free some space and start the worker again: it goes on where it was",
        "mend the device and start the worker again: it goes on where it was",
    ),
}
_NAMES: Mapping[Kind, str] = {"file": "log", "table": "table"}
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


def raise_fault(error: Exception, path: Path, doing: str, kind: Kind = "file") -> NoReturn:
    """Raise refold's error for an error of RocksDB.

    Args:
        error: the error of rocksdict. An error that is not RocksDB's (a key that is not bytes) is raised unchanged.
        path: the folder of the database.
        doing: completes "while ..." in the message.
        kind: the kind of database; the message ends with what to do.

    Raises:
        LockedError: another process owns the database.
        CorruptionError: stored bytes are damaged or missing; RocksDB's text names the file and the offset.
        StorageError: the device is full or fails.
    """
    remedy = _REMEDIES[kind]
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
            f"{path}: stored bytes are damaged, found while {doing}: {text}; {remedy.damaged}"
        ) from error
    if any(words in text for words in ("No such file", "does not exist", "Try again")):
        raise CorruptionError(
            f"{path}: a file of the {_NAMES[kind]} is missing, found while {doing}: {text}; {remedy.damaged}"
        ) from error
    if any(words in text for words in _FULL):
        raise no_space(path, doing, text, kind) from error
    raise StorageError(f"{path}: storage failed while {doing}: {text}; {remedy.failed}") from error


def no_space(path: Path, doing: str, text: str, kind: Kind) -> StorageError:
    """The error for a full device."""
    return StorageError(f"{path}: no space left while {doing}; {_REMEDIES[kind].full} ({text})")


def failed_before(path: Path, text: str, kind: Kind) -> StorageError:
    """The error for a write after a failed write."""
    if kind == "table" and any(words in text for words in _FULL):
        return no_space(path, "writing", text, kind)
    return StorageError(f"{path}: a write failed before ({text}); {_REMEDIES[kind].failed}")


def unreadable(path: Path, file: Path) -> StorageError:
    """The error for a file of the log that this user may not read."""
    return StorageError(
        f"{path}: this user may not read {file}: give it the right to read everything there (chmod -R a+rX {path}), or "
        "run this as a user that has it"
    )


def unwritable(path: Path, place: Path) -> StorageError:
    """The error for a log that is opened to write, if the user's rights or the file system do not allow it."""
    return StorageError(
        f"{path}: opened to write, and {place} cannot be written: the file system is read-only, or this user lacks the "
        f"right to write; commands that only read, such as state and verify, go on"
    )


def closed_error(path: Path) -> StorageError:
    """The error for every use of a closed database."""
    return StorageError(f"{path}: the log is closed; open it again")


def archived_error(path: Path) -> InputError:
    """The error for every append to an archived log."""
    return InputError(
        f"{path}: this log is the archive of another and takes no appends; let it go on under an id of its own with "
        f"`refold import --format archive --fork --log file:{path}`"
    )


def raise_key_error(path: Path, families: Sized, family: str, key: object) -> NoReturn:
    """Raise refold's error for a KeyError of rocksdict.

    Args:
        path: The database's folder.
        families: The open families; empty after the database was closed.
        family: The family that was read or written.
        key: What rocksdict raised it for.
    """
    if not families:
        raise closed_error(path) from None
    if family not in FAMILIES:
        raise InputError(f"{path}: no family {family!r}; there are {', '.join(FAMILIES)}") from None
    raise InputError(f"{path}: keys of {family} are bytes; given {key!r:.80}") from None


def raise_lost(path: Path, found: int, synced: int, kind: Kind = "file") -> NoReturn:
    """Raise the error for a database that ends before an acknowledged write.

    Args:
        path: The database's folder.
        found: The last sequence number in the database.
        synced: The last one that was acknowledged as durable.
        kind: Which families the database has, for the remedy.
    """
    raise CorruptionError(
        f"{path}: the {_NAMES[kind]} ends at write {found}, but write {synced} was acknowledged: its write-ahead log "
        f"(db/*.log) is damaged, truncated or missing; {_REMEDIES[kind].damaged}"
    )
