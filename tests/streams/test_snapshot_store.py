"""The embedded log's snapshot store with the suite for all snapshot stores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from refold.streams.log.file.log import FileLog
from refold.streams.log.file.snapshots import FileSnapshotStore
from refold.streams.rocks.database import Database
from refold.streams.rocks.layout import synced_number
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Pin, SnapshotStore, Tombstone
from refold_tests.child import children
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take
from refold_tests.snapshot_conformance import (
    PARTITIONS,
    OpenedStore,
    SnapshotStoreConformance,
)

KILLED = """
import os, signal, sys
from pathlib import Path
from refold.streams.rocks.database import Database
from refold.streams.log.file.snapshots import FileSnapshotStore
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Pin, Tombstone

store = FileSnapshotStore(Database.open(Path(sys.argv[1])), int(sys.argv[2]))
exec(sys.argv[3])
os.kill(os.getpid(), signal.SIGKILL)
"""


class FileOpenedStore(OpenedStore):
    """A store in a separate database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        Database.create(path).close()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[SnapshotStore]:
        with Database.open(self.path) as database:
            yield FileSnapshotStore(database, PARTITIONS)

    def killed_after(self, statement: str) -> None:
        with children() as start:
            assert start(KILLED, self.path, PARTITIONS, statement).end() == -9


@pytest.mark.outside
class TestFileStore(SnapshotStoreConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> OpenedStore:
        return FileOpenedStore(tmp_path / "log")


def sealed_for_certain(store: SnapshotStore, epoch: Epoch) -> None:
    store.seal(epoch, b"m")
    store.sync()


def test_acknowledged_epoch_is_on_the_device(tmp_path: Path) -> None:
    """A kill alone does not lose unsynced writes; the record of synced writes detects the loss."""
    path, epoch = tmp_path / "log", Epoch(1, 9, 2)
    with Database.create(path) as database:
        store = FileSnapshotStore(database, PARTITIONS)
        steps: list[Callable[[], object]] = [
            lambda: sealed_for_certain(store, epoch),
            lambda: store.pin(Pin(epoch, 5)),
            lambda: store.unpin(epoch),
            lambda: store.add_tombstone(Tombstone(epoch, 6, b"m")),
            lambda: store.clear(1, [], [epoch]),
        ]
        for step in steps:
            store.append(1, b"x")
            step()
            assert synced_number(path) == database.sequence


def test_requested_snapshot_is_on_the_device(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        take(log, random_history(seed, 50))
        log.snapshot()
        database = cast(FileLog, log.port).database
        assert synced_number(database.path) == database.sequence
