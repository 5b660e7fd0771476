"""The embedded log as processes have it: as its owner, beside its owner, and as a reader."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from refold.streams.log.file.log import FileLog
from refold.streams.log.port import LogPort, Record
from refold.streams.point import Points
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
    """One `file:` log in a folder."""

    clock: FileClock

    def __init__(self, folder: Path, child: Callable[..., Child]) -> None:
        self.path = folder / "log"
        self.clock = FileClock(folder / "clock")
        self.child = child

    def file(self, *, read_only: bool = False) -> FileLog:
        """The log as this process may have it."""
        return FileLog(
            self.path,
            clock_ms=self.clock,
            new_id=lambda: uuid.uuid4().bytes,
            partitions=PARTITIONS,
            read_only=read_only,
        )

    @contextlib.contextmanager
    def owned_by_another(self) -> Iterator[Child]:
        """A process that owns the log, until the end of the block."""
        owner = self.child(OWNER, self.path, self.clock.path, PARTITIONS)
        assert owner.line() == "open"
        yield owner
        if owner.process.poll() is None:
            owner.say("close")
        assert owner.end() in {0, -9}


class Owned(FileOpened):
    """Written and read by its owner."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with contextlib.closing(self.file()) as log:
            assert log.database.is_owner
            yield Handles(log, log)


class Remote(FileOpened):
    """Written and read beside the process that owns it."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with self.owned_by_another(), contextlib.closing(self.file()) as log:
            assert not log.database.is_owner
            yield Handles(log, log)
            assert not log.database.is_owner


class ReadOnly(FileOpened):
    """Written by its owner, read by a reader that follows."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with (
            contextlib.closing(self.file()) as owner,
            contextlib.closing(self.file(read_only=True)) as reader,
        ):
            yield Handles(owner, reader)


def assert_verified(log: LogPort) -> None:
    """Every table, index and change is what the records say."""
    with log.still() as still:
        assert verify(still, Points(still, 0).end()).mismatches == []


def records_of(log: LogPort) -> Iterator[Record]:
    """All records, partition by partition."""
    for records in everything(log).values():
        yield from records
