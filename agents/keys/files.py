"""A key ring in a folder of its own, one file per key: for development, and for a single machine.

    FOLDER/<SHA-256 of the key's id, hex>    {"key": hex, "key_id": text}

The folder has mode 0700 and its files 0600. To create or destroy a key:

1. Lock the folder (flock; the system releases the lock when a process dies).
2. create: if the file exists, its key is the one. Else write NAME.new, sync it, and rename it to NAME; so an id never
   has two keys. Nobody used a NAME.new that a killed process left, and the next process overwrites it.
   destroy: remove NAME.new and NAME.
3. Sync the folder, before anybody seals with the key or is told that it is destroyed. A process that finds the file in
   step 2 cannot know whether its creator got to this step, so it syncs too.

Keys that were read are held in memory, at most CACHED_MAX of them; each time one is used, its file is checked for
changes. A search over sealed content reads the keys of thousands of runs.

The system does not overwrite the blocks of a removed file. If that matters on a disk, encrypt the disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from refold.agents.keys.ring import KEY_BYTES, KeyDamage, new_key
from refold.avro.errors import KeyUnreadable, StorageError
from refold.streams.durable import sync_file, sync_path

CACHED_MAX = 10_000
_FILE_BYTES_MAX = 1 << 12
_FileIdentity: TypeAlias = tuple[int, int, int]
_NEW = ".new"


class _CachedKey(NamedTuple):
    """A key in memory.

    Attributes:
        file: What distinguishes its file from another one of this name.
    """

    path: str
    file: _FileIdentity
    key: bytes


class _ReadKey(NamedTuple):
    key_id: str
    key: bytes
    file: _FileIdentity


class _KeyFile(msgspec.Struct):
    key: str
    key_id: str


_decoder = msgspec.json.Decoder(_KeyFile)


class FileKeyRing:
    """Keys in a folder, which is created with the first key; see KeyRing."""

    def __init__(self, folder: Path, make: Callable[[], bytes] = new_key) -> None:
        self.place = str(folder)
        self._folder = folder
        self._make = make
        self._cached: dict[str, _CachedKey] = {}

    def create(self, key_id: str) -> bytes:
        """As KeyRing."""
        with self._locked() as sync:
            key = self.get(key_id)
            if key is None:
                key = self._make()
                self._write(key_id, key)
            sync()
        return key

    def get(self, key_id: str) -> bytes | None:
        """As KeyRing."""
        held = self._cached.get(key_id)
        if held is not None and _identity(held.path) == held.file:
            return held.key
        path = f"{self.place}/{_name_of(key_id)}"
        found = self._read(path)
        if found is None:
            self._cached.pop(key_id, None)
            return None
        if len(self._cached) >= CACHED_MAX:
            self._cached = {}
        self._cached[key_id] = _CachedKey(path, found.file, found.key)
        return found.key

    def destroy(self, key_id: str) -> None:
        """As KeyRing."""
        with self._locked() as sync:
            path = self._path(key_id)
            path.with_suffix(_NEW).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            sync()

    def ids(self) -> list[str]:
        """As KeyRing."""
        found: list[str] = []
        for path in self._paths():
            with suppress(KeyUnreadable):  # `damaged` reports it: one damaged file must not block the other keys
                read = self._read(str(path))
                found += [read.key_id] if read is not None else []
        return sorted(found)

    def damaged(self, key_ids: Iterable[str]) -> list[KeyDamage]:
        """As KeyRing; a file's name tells which key it belongs to."""
        ids = {self._path(each): each for each in key_ids}
        found: list[KeyDamage] = []
        for path in sorted(self._paths()):
            try:
                self._read(str(path))
            except KeyUnreadable as error:
                found.append(KeyDamage(ids.get(path, ""), str(error)))
        return found

    def remaining(self) -> int:
        """Return 0: a file is removed with its key."""
        return 0

    def erase_removed(self) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Do nothing: files are checked when a key is read."""

    def close(self) -> None:
        """Do nothing: no file is held open."""

    def _paths(self) -> list[Path]:
        try:
            return [each for each in self._folder.iterdir() if not each.suffix] if self._folder.is_dir() else []
        except OSError as error:
            raise StorageError(f"{self.place}: the key ring cannot be read ({error.strerror})") from error

    def _path(self, key_id: str) -> Path:
        return self._folder / _name_of(key_id)

    @contextmanager
    def _locked(self) -> Iterator[Callable[[], None]]:
        """Hold the folder's lock; yield a function that syncs the folder."""
        try:
            if not self._folder.is_dir():
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_path(self._folder.parent)
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield lambda: os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(
                f"{self.place}: the key ring cannot be written ({error.strerror}); free disk, or give this user the "
                "right to, then repeat"
            ) from error

    def _write(self, key_id: str, key: bytes) -> None:
        path = self._path(key_id)
        new = path.with_suffix(_NEW)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"key": key.hex(), "key_id": key_id}, file)
            sync_file(file)
        new.replace(path)

    def _read(self, path: str) -> _ReadKey | None:
        try:
            handle = os.open(path, os.O_RDONLY)  # a Path and its `open` cost more than the rest, for thousands of keys
            try:
                file, text = _identity_of(os.fstat(handle)), os.read(handle, _FILE_BYTES_MAX)
            finally:
                os.close(handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeyUnreadable(
                f"{path}: the key cannot be read ({error.strerror}); give this user the right to, or restore it from a "
                "copy"
            ) from error
        key_id, key, is_its_own = "", b"", False
        try:
            found = _decoder.decode(text)
            key_id, key = found.key_id, bytes.fromhex(found.key)
            is_its_own = path.rpartition("/")[2] == _name_of(key_id)
        except (ValueError, RecursionError):  # RecursionError: nested too deeply
            pass
        if not is_its_own or len(key) != KEY_BYTES:
            raise KeyUnreadable(
                f"{path}: not a key of this ring: the file is damaged; restore it from a copy to read what it sealed, "
                "or remove it, and what it sealed is expired"
            )
        return _ReadKey(key_id, key, file)


def _name_of(key_id: str) -> str:
    return hashlib.sha256(key_id.encode()).hexdigest()


def _identity(path: str) -> _FileIdentity | None:
    """Return what distinguishes a file from any other file of this name; None if there is none."""
    try:
        return _identity_of(os.stat(path))  # noqa: PTH116  # for each value that is opened
    except OSError:  # the caller that reads the file reports the error
        return None


def _identity_of(status: os.stat_result) -> _FileIdentity:
    return status.st_ino, status.st_mtime_ns, status.st_size
