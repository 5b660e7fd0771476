"""One RocksDB per `file:` log or per partition of a worker: raw bytes in fixed column families, one owner, any number
of readers.

Guarantees:
1. A batch is atomic. After `write(batch, sync=True)` returned, it survives SIGKILL and a power cut.
2. After a failed write all further writes are refused until the log is opened again, because it is unknown what reached
   the device.
3. A log that lost an acknowledged write or holds damaged bytes raises CorruptionError; reads are never short.
4. `close()` moves everything into table files and releases the lock before it returns.

`close()` waits for calls in progress, and refuses later ones.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock, get_ident
from typing import NoReturn, cast

from rocksdict import ColumnFamily, Rdict

from refold.avro.errors import InputError
from refold.streams.rocks import layout
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.families import FAMILIES, Family, Memory, owner_options
from refold.streams.rocks.faults import (
    closed_error,
    failed_before,
    raise_fault,
    raise_key_error,
    raise_lost,
    unwritable,
)
from refold.streams.rocks.reader import Footprint, footprint, open_reader
from refold.streams.rocks.scan import Cursor, FamilySnapshot, Row, RowCounter, rows
from refold.streams.rocks.wal_limit import WalLimit
from refold.streams.temporary import TemporaryFolder

_PAUSE_S = 0.001
COUNTED_AT_ONCE = 10_000


class CallGate:
    """Counts calls in progress. Put `with gate:` around each use, without nesting, and call `shut()` once.

    rocksdict releases the GIL during long calls and refuses to close a handle in use, so closing must wait for those
    calls. An interrupt (Ctrl-C) may come between any two steps here. Uses are recorded by thread, so a missed exit does
    not block closing, and the thread's next use corrects it.
    """

    def __init__(self, refusal: Callable[[], Exception]) -> None:
        self._refusal = refusal
        self._lock = Lock()
        self._inside: set[int] = set()
        self._shut = False

    def __enter__(self) -> None:
        with self._lock:
            if self._shut:
                raise self._refusal()
            self._inside.add(get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside.discard(get_ident())

    def shut(self) -> bool:
        """Refuse new uses and wait until all others have ended. True for the one caller that shut it."""
        with self._lock:
            first = not self._shut
            self._shut = True
        while True:
            with self._lock:
                if self._inside <= {get_ident()}:
                    return first
            time.sleep(_PAUSE_S)


READER_PREFIX = "refold-read-"

# Ids are random, so 1 in 256 keys of their index begins with 0xFF; no key begins with 16 of them.
_ABOVE_ALL = b"\xff" * 16


class Database:
    """An open database. Made by `create`, `building`, `open` (owner) or `read` (reader); a context manager;
    thread-safe.
    """

    def __init__(
        self, path: Path, raw: Rdict, *, kind: layout.Kind = "file", note: layout.SyncedNote | None = None,
        folder: TemporaryFolder | None = None, wal_limit: WalLimit | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self._kind = kind
        self._raw = raw
        self._columns = _columns(raw)
        self._handles: dict[Family, ColumnFamily] = {}
        self._note = note  # the owner's
        self._wal_limit = wal_limit
        self._folder = "" if folder is None else folder.path  # a reader's
        self._footprint: Footprint = ()
        self._gate = CallGate(partial(closed_error, path))
        self._cursors: weakref.WeakSet[Cursor | RowCounter | FamilySnapshot] = weakref.WeakSet()
        self._lock = Lock()
        self._syncing = Lock()
        self._failure = ""
        self._noted = 0
        self._process = os.getpid()
        if note is not None:
            self._handles = {name: raw.get_column_family_handle(name) for name in FAMILIES}
        # Also runs at the interpreter's end, for a reader that was not closed.
        self._remove_folder = None if folder is None else weakref.finalize(self, folder.remove)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, kind: layout.Kind = "file", memory: Memory | None = None
    ) -> Database:
        """Create an empty log and own it.

        Args:
            memory: The memory that it shares with other databases of this process.

        Raises:
            InputError: A log or anything else exists there.
            LockedError: Another process is creating one.
        """
        place = Path(path).resolve()
        with layout.creating(place, kind):
            return cls._own(place, kind, create=True, memory=memory)

    @classmethod
    @contextmanager
    def building(cls, path: str | os.PathLike[str]) -> Iterator[Database]:
        """Create a log atomically: it exists when the body succeeded, and not at all if the body fails. Errors as in
        `create`.
        """
        place = Path(path).resolve()
        with layout.creating(place), cls._own(place, "file", create=True) as database:
            yield database

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, kind: layout.Kind = "file", memory: Memory | None = None,
        wal_limit: WalLimit | None = None,
    ) -> Database:  # fmt: skip
        """Open the log as its owner.

        Args:
            path: The log's folder.
            kind: A log, or a worker's table.
            memory: The memory that it shares with other databases of this process.
            wal_limit: When its write-ahead log is moved into table files.

        Raises:
            InputError: There is no log.
            LockedError: It has an owner.
            CorruptionError: It lost an acknowledged write, or holds damaged bytes.
            StorageError: It cannot be opened.
        """
        place = Path(path).resolve()
        layout.require_log(place, kind)
        return cls._own(place, kind, create=False, memory=memory, wal_limit=wal_limit)

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, kind: layout.Kind = "file") -> Database:
        """Open the log as it is now for reading, with or without an owner; `catch_up` advances.

        Raises InputError, CorruptionError and StorageError, as `open` does.
        """
        place = Path(path).resolve()
        layout.require_log(place, kind)
        folder = TemporaryFolder(READER_PREFIX)
        try:
            seen = footprint(place)
            raw = open_reader(place, folder.path, kind)
        except BaseException:
            folder.remove()
            raise
        reader = cls(place, raw, kind=kind, folder=folder)
        reader._footprint = seen
        return reader

    @classmethod
    def _own(
        cls, path: Path, kind: layout.Kind, *, create: bool, memory: Memory | None = None,
        wal_limit: WalLimit | None = None,
    ) -> Database:  # fmt: skip
        synced = layout.synced_number(path)
        if not create and not layout.may_write(path):
            raise unwritable(path, path / "db")
        try:
            options, families = owner_options(create=create, memory=memory)
            raw = Rdict(str(path / "db"), options=options, column_families=families)
        except Exception as error:  # rocksdict raises plain Exception
            raise_fault(error, path, "opening the log" if kind == "file" else "opening the table", kind)
        found = raw.latest_sequence_number()
        if found < synced:
            raw.close()
            raise_lost(path, found, synced, kind)
        # Only a log has readers; a worker's tables share a smaller limit.
        limit = (wal_limit or WalLimit()) if kind == "file" else None
        return cls(path, raw, kind=kind, note=layout.SyncedNote(path), wal_limit=limit)

    @property
    def is_owner(self) -> bool:
        """Whether this process may write."""
        return self._note is not None

    # Reading

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value, or None."""
        try:
            return cast("bytes | None", self._columns[family].get(key))
        except KeyError:
            raise_key_error(self.path, self._columns, family, key)
        except Exception as error:  # rocksdict raises plain Exception
            raise_fault(error, self.path, f"reading {family} key {key!r:.80}", self._kind)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of `keys`, None for a missing key. The GIL is released."""
        if not keys:
            return []
        with self._gate:
            try:
                return cast("list[bytes | None]", self._columns[family].get(list(keys)))
            except KeyError:
                raise_key_error(self.path, self._columns, family, keys)
            except Exception as error:  # rocksdict raises plain Exception
                raise_fault(
                    error,
                    self.path,
                    f"reading {len(keys)} keys of {family}, {min(keys)!r:.80} to {max(keys)!r:.80}",
                    self._kind,
                )

    def scan(
        self, family: Family, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        """Yield (key, value) with start <= key < stop.

        It reads a snapshot of the moment of this call: later writes and `catch_up` are not visible. It ends only at the
        end of the range, never early.

        Args:
            family: The column family.
            start: The first key.
            stop: The key after the last one; None for the end of the family.
            reverse: In descending order of keys.

        Raises:
            CorruptionError: A row is damaged.
            StorageError: The device fails, or the database is closed meanwhile.
        """
        with self._gate:
            cursor = self._cursor(family, start, stop, reverse=reverse)
        return rows(cursor, partial(self._step, family))

    def count(self, family: Family) -> int:
        """The number of rows of a family. Errors as in `scan`."""
        with self._gate:
            counter = RowCounter([self._columns[family].iter()])
            self._cursors.add(counter)
        try:
            while not self._step(family, counter, COUNTED_AT_ONCE)[1]:
                pass
            return counter.rows
        finally:
            counter.release()

    def last(self, family: Family, start: bytes = b"", stop: bytes | None = None) -> Row | None:
        """The row with the greatest key in start <= key < stop, or None."""
        with self._gate:
            cursor = self._cursor(family, start, stop, reverse=True)
        try:
            found, _ = self._step(family, cursor, 1)
        finally:
            cursor.release()
        return found[0] if found else None

    def pin(self, family: Family) -> FamilySnapshot:
        """Return a snapshot of a family at this moment. Any thread may read it, one at a time."""
        with self._gate:
            pinned = FamilySnapshot(self._columns[family].iter(), partial(self._step, family))
            self._cursors.add(pinned)
            return pinned

    @property
    def sequence(self) -> int:
        """The sequence number of the last visible write. It counts puts and deletes, and shows how far a reader is."""
        with self._gate:
            return self._raw.latest_sequence_number()

    def catch_up(self) -> int:
        """Make everything that the owner has written by now, synced or not, visible to this reader. Returns `sequence`.

        If the owner wrote anything, it opens the database again (25 ms and reading the write-ahead log); otherwise it
        is cheap. Scans in progress keep their snapshot. Does nothing on the owner. Raises CorruptionError or
        StorageError.
        """
        with self._gate, self._lock:
            if self._note is None and (seen := footprint(self.path)) != self._footprint:
                raw = open_reader(self.path, self._folder, self._kind)
                # The old instance is closed when the last call or scan that uses it ends.
                self._raw, self._columns, self._footprint = raw, _columns(raw), seen
            return self._raw.latest_sequence_number()

    # Writing

    def batch(self) -> WriteSet:
        self._require_writable()
        return WriteSet(self.path, self._handles)

    def write(self, batch: WriteSet, *, sync: bool) -> None:
        """Write the batch. With `sync`, return when it and all earlier ones are on the device.

        After StorageError the write is not acknowledged, and further writes are refused until the log is opened again.
        An unsynced write survives the end of the process, but not a power cut.
        """
        with self._gate:
            self._require_writable()
            contents = batch.take()
            is_long = self._wal_limit is not None and self._wal_limit.is_due(contents.size_in_bytes())
            try:
                self._raw.write(contents)
            except Exception as error:  # rocksdict raises plain Exception
                self._fail(error)
            if sync:
                self._sync()
            if is_long:
                self._start_flush()

    def sync(self, through: int | None = None) -> None:
        """Return when everything written is on the device. Errors as in `write`.

        If several threads call this at once, one syncs everything written by then, and the others wait for it.

        Args:
            through: a `sequence`. Does nothing if the writes up to it are on the device already.
        """
        if through is not None and self._noted >= through:
            return
        with self._gate:
            self._require_writable()
            self._sync(through)

    def clear(self, family: Family) -> None:
        """Remove every row of a family."""
        with self._gate:
            self._require_writable()
            try:
                self._columns[family].delete_range(b"", _ABOVE_ALL)
            except Exception as error:  # rocksdict raises plain Exception
                self._fail(error)

    def compact(self, family: Family, start: bytes | None = None, stop: bytes | None = None) -> None:
        """Compact a family's table files, or those in a range of keys, to free deleted and overwritten rows."""
        with self._gate:
            self._require_writable()
            try:
                self._columns[family].compact_range(start, stop)
            except Exception as error:  # rocksdict raises plain Exception
                raise_fault(error, self.path, f"compacting {family}", self._kind)

    # Closing

    def close(self) -> None:
        """Wait for calls in progress, flush to table files, end scans with an error, release the lock. Idempotent.

        Raises:
            StorageError: The flush failed; the database is closed then, and synced data is safe.
        """
        if not self._gate.shut():
            return
        for cursor in list(self._cursors):
            cursor.release()
        self._handles.clear()
        problem: Exception | None = None
        if self._note is not None and not self._failure:
            problem = self._flush()
        for database in (*self._columns.values(), self._raw):
            try:
                database.close()
            except Exception as error:  # rocksdict raises plain Exception
                problem = problem or error
        self._columns.clear()
        if self._note is not None:
            self._note.close()
        if self._remove_folder is not None:
            self._remove_folder()
        if problem is not None and not self._failure:
            raise_fault(problem, self.path, "closing", self._kind)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_flush(self) -> None:
        """Let RocksDB's threads move the write-ahead log into table files."""
        try:
            for column in self._columns.values():
                column.flush(wait=False)
        except Exception as error:  # rocksdict raises plain Exception
            self._fail(error)

    def _flush(self) -> Exception | None:
        try:
            number = self._raw.latest_sequence_number()
            for column in self._columns.values():
                column.flush(wait=True)
            self._write_note(number)
        except Exception as error:  # rocksdict raises plain Exception
            return error
        return None

    def _cursor(self, family: Family, start: bytes, stop: bytes | None, *, reverse: bool) -> Cursor:
        cursor = Cursor([self._columns[family].iter()], start, stop, reverse=reverse)
        self._cursors.add(cursor)
        return cursor

    def _step(self, family: Family, cursor: Cursor | RowCounter, rows_max: int = 256) -> tuple[list[Row], bool]:
        with self._gate:
            try:
                return cursor.step(rows_max)
            except Exception as error:  # rocksdict raises plain Exception
                raise_fault(error, self.path, f"scanning {family} {cursor}", self._kind)

    def _sync(self, through: int | None = None) -> None:
        through = self._raw.latest_sequence_number() if through is None else through
        with self._syncing:
            if self._noted >= through:
                return
            self._require_writable()
            number = self._raw.latest_sequence_number()
            self._sync_log()
            self._write_note(number)

    def _sync_log(self) -> None:
        try:
            # Not WriteOptions.sync: rocksdict would block every thread during the fsync.
            self._raw.flush_wal(sync=True)
        except Exception as error:  # rocksdict raises plain Exception
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        self._failure = str(error)
        raise_fault(error, self.path, "writing", self._kind)

    def _write_note(self, number: int) -> None:
        with self._lock:
            if self._note is not None and number > self._noted:
                self._note.write(number)
                self._noted = number

    def _require_writable(self) -> None:
        if self._note is None:
            raise InputError(f"{self.path}: opened for reading; write through the owner")
        if self._failure:
            raise failed_before(self.path, self._failure, self._kind)
        if os.getpid() != self._process:
            raise InputError(f"{self.path}: opened before this process was forked; open the log after the fork")


def _columns(raw: Rdict) -> dict[Family, Rdict]:
    return {name: raw.get_column_family(name) for name in FAMILIES}
