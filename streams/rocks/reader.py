"""Opens a reader's instance while an owner may write: a consistent state of the log, or an error.

It is a read-only instance, which is opened again to catch up. RocksDB's secondary instances are not used: in RocksDB
9.8 they return overwritten values (facebook/rocksdb#14444), and if a table file is gone they silently keep an older set
of tables.

A read-only instance reads the manifest, then the tables and the write-ahead logs that it names. The owner may remove
some of them meanwhile, but writes to the manifest first. So an opening counts only if the manifest did not change while
it lasted, and if it holds every write known to be synced. If opening fails repeatedly while the manifest does not
change, it is not a race with the owner but damage.

Reading needs only the right to read. rocksdict writes a small file next to the database that it opens. So if this user
may not write there, the database is opened by links to its files, in the reader's own folder. The links are made after
the manifest was read, so the same check covers them. RocksDB opens every file at once, and then the links are removed.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rocksdict import AccessType, Rdict

from refold.avro.errors import StorageError
from refold.avro.files import read_bounded
from refold.streams.rocks.families import reader_options
from refold.streams.rocks.faults import raise_fault, raise_lost, unreadable
from refold.streams.rocks.layout import OPENERS_FILE, Kind, may_write, synced_number

# Names and sizes of the files that the owner appends to: if they are equal, the owner wrote nothing.
Footprint = tuple[tuple[str, int], ...]

_OPENINGS_MAX = 500
_FAILURES_MAX = 5
_PAUSE_S = 0.01


def open_reader(path: Path, folder: str, kind: Kind = "file") -> Rdict:
    """Open the log as it is now, for reading.

    Args:
        path: The log's folder.
        folder: An own folder for RocksDB's messages.
        kind: Which families the database has.

    Raises:
        CorruptionError: It is damaged.
        StorageError: The device fails.
    """
    failures = 0
    for _ in range(_OPENINGS_MAX):
        synced = synced_number(path)
        before = _manifest(path)
        try:
            raw = _open(path, folder)
        except Exception as error:  # rocksdict raises plain Exception
            failures = failures + 1 if before == _manifest(path) else 0
            if isinstance(error, PermissionError) and error.filename:
                raise unreadable(path, Path(error.filename)) from error
            if failures == _FAILURES_MAX or "No such file or directory" not in str(error):
                raise_fault(error, path, "opening the log for reading", kind)
        else:
            found = raw.latest_sequence_number()
            if before == _manifest(path):
                if found >= synced:
                    return raw
                raw.close()
                raise_lost(path, found, synced, kind)
            raw.close()
        time.sleep(_PAUSE_S)
    raise StorageError(f"{path}: the owner rewrites its files faster than they are read; try again")


def footprint(path: Path) -> Footprint:
    """Return the footprint, taken before opening: if it is the same later, there is nothing new."""
    logs = []
    for file in (path / "db").glob("*.log"):
        try:
            logs.append((file.name, file.stat().st_size))
        except FileNotFoundError:
            continue
    return (_manifest(path), *sorted(logs))


def _open(path: Path, folder: str) -> Rdict:
    if may_write(path):
        return _open_as_secondary(path / "db", folder)
    with tempfile.TemporaryDirectory(prefix="db-", dir=folder) as links:
        for file in (path / "db").iterdir():
            if file.name != OPENERS_FILE:
                Path(links, file.name).symlink_to(file)
        return _open_as_secondary(Path(links), folder)


def _open_as_secondary(database: Path, folder: str) -> Rdict:
    tables = sum(1 for _ in database.glob("*.sst"))
    options, families = reader_options(folder, tables)
    access = AccessType.read_only(error_if_log_file_exist=False)
    return Rdict(str(database), options=options, column_families=families, access_type=access)


def _manifest(path: Path) -> tuple[str, int]:
    try:
        name = read_bounded(path / "db" / "CURRENT").decode("ascii").strip()
        return name, (path / "db" / name).stat().st_size
    except (OSError, ValueError):  # not text, or a name with a zero byte
        # RocksDB will report the problem, or find the next manifest.
        return "", 0
