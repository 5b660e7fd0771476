"""A key ring in a folder of its own, one file per key: for development, and for a single machine.

    FOLDER/<SHA-256 of the key's id, hex>    {"key": hex, "key_id": text}

The folder has mode 0700 and its files 0600. To create or destroy a key:

1. Lock the folder (flock; the system releases the lock when a process dies).
2. create: if the file exists, its key is the one. Else write NAME.new, sync it, and rename it to NAME; so an id never
   has two keys. Nobody used a NAME.new that a killed process left, and the next process overwrites it.
   destroy: remove NAME.new and NAME.
3. Sync the folder, before anybody seals with the key or is told that it is destroyed. A process that finds the file in
   step 2 cannot know whether its creator got to this step, so it syncs too.

A key that is read repeatedly is cached in memory; each time, the file is checked for changes.

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

from refold.agents.keys.ring import KEY_BYTES, KeyDamage, new_key
from refold.avro.errors import KeyUnreadable, StorageError
from refold.avro.files import read_bounded
from refold.streams.durable import sync_file, sync_path

_NEW = ".new"


class FileKeyRing:
    """Keys in a folder, which is created with the first key; see KeyRing."""

    def __init__(self, folder: Path, make: Callable[[], bytes] = new_key) -> None:
        self.place = str(folder)
        self._folder = folder
        self._make = make
        self._held: tuple[str, Path, tuple[int, int, int], bytes] | None = None  # the key returned last, and its file

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
        held = self._held
        if held is not None and held[0] == key_id and _identity(held[1]) == held[2]:
            return held[3]
        path = self._path(key_id)
        file, found = _identity(path), self._read(path)
        if file is None or found is None:
            return None
        self._held = key_id, path, file, found[1]
        return found[1]

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
                read = self._read(path)
                found += [read[0]] if read is not None else []
        return sorted(found)

    def damaged(self, key_ids: Iterable[str]) -> list[KeyDamage]:
        """As KeyRing; a file's name tells which key it belongs to."""
        ids = {self._path(each): each for each in key_ids}
        found: list[KeyDamage] = []
        for path in sorted(self._paths()):
            try:
                self._read(path)
            except KeyUnreadable as error:
                found.append(KeyDamage(ids.get(path, ""), str(error)))
        return found

    def remaining(self) -> int:
        """Return 0: a file is removed with its key."""
        return 0

    def settle(self) -> None:
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
        return self._folder / hashlib.sha256(key_id.encode()).hexdigest()

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

    def _read(self, path: Path) -> tuple[str, bytes] | None:
        try:
            text = read_bounded(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeyUnreadable(
                f"{path}: the key cannot be read ({error.strerror}); give this user the right to, or restore it from a "
                "copy"
            ) from error
        key_id, key, is_its_own = "", b"", False
        try:
            found = json.loads(text)
            key_id, key = str(found["key_id"]), bytes.fromhex(found["key"])
            is_its_own = path == self._path(key_id)
        except (ValueError, KeyError, TypeError, RecursionError):  # RecursionError: nested too deeply
            pass
        if not is_its_own or len(key) != KEY_BYTES:
            raise KeyUnreadable(
                f"{path}: not a key of this ring: the file is damaged; restore it from a copy to read what it sealed, "
                "or remove it, and what it sealed is expired"
            )
        return key_id, key


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return what distinguishes a file from any other file of this name; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  # for each value that is opened
    except OSError:  # the caller that reads the file reports the error
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
