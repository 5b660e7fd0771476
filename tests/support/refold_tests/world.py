"""A log's snapshots, sealed, pinned and collected at random, on any store, without a log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from refold.streams.snapshots.garbage import GRACE_MS, Collector
from refold.streams.snapshots.manifest import Epoch, Manifest
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.retention_policy import DAY_MS, HOUR_MS, MONTH_MS, EpochAge, kept
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import Pin, SnapshotReader, SnapshotStore
from refold_tests.clock import BEGIN_MS
from refold_tests.opening import PARTITIONS
from refold_tests.sealing import Table, View

LOG_ID = b"log" + bytes(13)
PASSED_MS = (0, 1_000, HOUR_MS // 3, HOUR_MS, GRACE_MS - 1, GRACE_MS, DAY_MS, 8 * DAY_MS, MONTH_MS)


@dataclass
class Reader:
    """A reader that read a manifest at some time, and the table that it must find."""

    manifest: Manifest
    view: View
    read_at_ms: int


@dataclass
class World:
    """Two partitions that are changed, sealed, pinned and collected at random, and what must be true of them."""

    rng: random.Random
    opened: Callable[[], SnapshotStore]
    settings: SnapshotSettings = DEFAULT_SETTINGS
    now_ms: int = BEGIN_MS
    tables: list[Table] = field(default_factory=list)
    views: dict[Epoch, View] = field(default_factory=dict)
    manifests: dict[Epoch, Manifest] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    pinned: set[Epoch] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tables = [Table(self.rng, self.rng.choice((3, 15)), number, PARTITIONS) for number in range(PARTITIONS)]
        self.open()

    def open(self) -> None:
        """Open the store, as a new owner."""
        self.store = self.opened()
        self.sealer = Sealer(self.store, LOG_ID, PARTITIONS, settings=self.settings)
        self.collector = Collector(self.store, GRACE_MS, self.settings)

    def step(self) -> None:
        """Do one random thing."""
        chosen = self.rng.choice(("seal",) * 6 + ("pass",) * 3 + ("read", "pin", "unpin", "end", "reopen"))
        table = self.rng.choice(self.tables)
        epochs = [each for number in range(PARTITIONS) for each in self.store.epochs(number)]
        if chosen == "seal":
            self.seal(table)
        elif chosen == "pass":
            self.now_ms += self.rng.choice(PASSED_MS)
        elif chosen == "end":  # a writer dies before it writes its manifest
            for _ in range(self.rng.randrange(4)):
                self.store.append(table.partition, self.rng.randbytes(20))
        elif chosen == "reopen":
            self.open()
        elif epochs:
            epoch = self.rng.choice(epochs)
            if chosen == "read":
                self.readers.append(Reader(self.store.manifest(epoch), self.views[epoch], self.now_ms))
            elif chosen == "pin":
                self.store.pin(Pin(epoch, self.now_ms))
                self.pinned.add(epoch)
            else:
                self.store.unpin(epoch)
                self.pinned.discard(epoch)

    def seal_base(self, table: Table) -> None:
        """Seal epochs of a table until one of them is a base."""
        while not self.seal(table).is_base:
            pass

    def seal(self, table: Table) -> Manifest:
        """Change a table, and seal an epoch of it."""
        for _ in range(self.rng.choice((1, 2, 9, 40))):
            table.change(0.3)
        view = table.view()
        view.epoch_state = replace(view.epoch_state, recorded_at=self.now_ms)
        manifest = self.sealer.seal(view)
        self.views[manifest.epoch], self.manifests[manifest.epoch] = view, manifest
        return manifest

    def collect(self) -> None:
        """Collect, and check that the result is as predicted."""
        rungs = [
            [EpochAge(each, self.manifests[each].recorded_at, self.manifests[each].is_base) for each in found]
            for found in map(self.store.epochs, range(PARTITIONS))
        ]
        expected = {number: kept(each, self.pinned, self.now_ms) for number, each in enumerate(rungs)}
        held = self.held()
        said = self.collector.collect(range(PARTITIONS), self.now_ms, dry_run=True)
        assert self.held() == held
        assert said == self.collector.collect(range(PARTITIONS), self.now_ms)
        for number, stay in expected.items():
            assert set(self.store.epochs(number)) == stay
            assert said[number].kept == len(stay)
        assert {pin.epoch for pin in self.store.pins()} == self.pinned
        left = self.held()
        assert sum(each.records for each in said) == len(held) - len(left)
        assert sum(each.removed_bytes for each in said) == sum(
            size for place, size in held.items() if place not in left
        )
        live = offsets(self.manifests[each] for number in range(PARTITIONS) for each in self.store.epochs(number))
        young = [tomb.epoch for tomb in self.store.tombstones()]
        assert left.keys() == live | offsets(self.manifests[each] for each in young)
        assert sum(each.waiting for each in said) == len(left) - len(live)

    def held(self) -> dict[tuple[int, int], int]:
        """Return the existing records, by position, with their sizes."""
        return {
            (number, offset): len(data)
            for number in range(PARTITIONS)
            for offset, data in self.store.records(number, 0, self.store.end(number))
        }

    def assert_readable(self, at_most: int = 6) -> None:
        """Check every existing epoch, and every one whose manifest a reader read within the grace period."""
        self.readers = [each for each in self.readers if self.now_ms - each.read_at_ms < GRACE_MS]
        there = [
            Reader(self.store.manifest(epoch), self.views[epoch], self.now_ms)
            for number in range(PARTITIONS)
            for epoch in self.store.epochs(number)
        ]
        for each in there:
            assert each.manifest == self.manifests[each.manifest.epoch]
        every = there + self.readers
        for each in self.rng.sample(every, min(len(every), at_most)):
            assert_reads(self.store, each.manifest, each.view)


def offsets(manifests: Iterable[Manifest]) -> set[tuple[int, int]]:
    """Return (partition, offset) of every record that the manifests name."""
    return {
        (manifest.epoch.partition, offset)
        for manifest in manifests
        for span in manifest.spans
        for offset in range(span.start, span.end)
    }


def assert_reads(store: SnapshotReader, manifest: Manifest, view: View) -> None:
    """Check that the epoch equals the table that it was sealed from, including closed entities."""
    layers = read_epoch(store, manifest, PARTITIONS, ChunkStore())
    assert dict(layers.rows()) == view.packed
