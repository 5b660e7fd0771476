"""The embedded log: the conformance suite over each way of having it open, and what is its own."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.streams.log.file.log import FileLog
from refold_tests.child import Child, children
from refold_tests.clock import FileClock

pytest.register_assert_rewrite("refold_tests.log_conformance")
from refold_tests.log_conformance import PARTITIONS, Handles, LogConformance, Opened  # noqa: E402

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


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    with children() as start:
        yield start


class FileOpened(Opened):
    """One `file:` log in a folder."""

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


class TestOwner(LogConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return Owned(tmp_path, child)


class TestRemoteWriter(LogConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return Remote(tmp_path, child)


class TestReader(LogConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return ReadOnly(tmp_path, child)
