"""The embedded log as processes use it: as its owner, next to its owner, and as a reader."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from refold.streams.log.file.log import FileLog
from refold.streams.log.port import LogPort, Record
from refold.streams.point import Points
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.verify.run import verify
from refold_tests.child import Child
from refold_tests.clock import FileClock
from refold_tests.log_handles import PARTITIONS, Handles, Opened, everything

OWNER = """
import sys, uuid
from pathlib import Path
from refold.streams.log.file.log import FileLog
from refold_tests.clock import FileClock

log = FileLog(Path(sys.argv[1]), clock_ms=FileClock(Path(sys.argv[2])), new_id=lambda: uuid.uuid4().bytes,
              partitions=int(sys.argv[3]))
assert log.database.is_owner
print("open", flush=True)
sys.stdin.readline()
log.close()
"""


class FileOpened(Opened):
    """A `file:` log in a folder."""

    clock: FileClock
    settings: SnapshotSettings = DEFAULT_SETTINGS
    """How this process seals snapshots if it owns the log."""

    def __init__(self, folder: Path, child: Callable[..., Child]) -> None:
        self.path = folder / "log"
        self.clock = FileClock(folder / "clock")
        self.child = child

    def file(self, *, read_only: bool = False) -> FileLog:
        """Open the log as this process may."""
        return FileLog(
            self.path,
            clock_ms=self.clock,
            new_id=lambda: uuid.uuid4().bytes,
            partitions=PARTITIONS,
            read_only=read_only,
            settings=self.settings,
        )

    @contextlib.contextmanager
    def owned_by_another(self) -> Iterator[Child]:
        """Run a process that owns the log until the end of the block."""
        owner = self.child(OWNER, self.path, self.clock.path, PARTITIONS)
        assert owner.line() == "open"
        yield owner
        if owner.process.poll() is None:
            owner.say("close")
        assert owner.end() in {0, -9}


class Owned(FileOpened):
    """The log is written and read by its owner."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with contextlib.closing(self.file()) as log:
            assert log.database.is_owner
            yield Handles(log, log)


class Remote(FileOpened):
    """The log is written and read by a process next to its owner."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with self.owned_by_another(), contextlib.closing(self.file()) as log:
            assert not log.database.is_owner
            yield Handles(log, log)
            assert not log.database.is_owner


class ReadOnly(FileOpened):
    """The log is written by its owner, and read by a following reader."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with (
            contextlib.closing(self.file()) as owner,
            contextlib.closing(self.file(read_only=True)) as reader,
        ):
            yield Handles(owner, reader)


def assert_verified(log: LogPort) -> None:
    """Check that every table, index and change matches the records."""
    with log.frozen() as still:
        assert verify(still, Points(still, 0).end()).mismatches == []


def records_of(log: LogPort) -> Iterator[Record]:
    """Yield all records, partition by partition."""
    for records in everything(log).values():
        yield from records
