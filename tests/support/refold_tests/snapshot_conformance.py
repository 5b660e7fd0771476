"""The contract of every log's snapshots: a mixin of `LogConformance` for the log, and a suite for the underlying
store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice, pairwise

import pytest

from refold.avro.errors import CorruptionError, InputError, StorageError
from refold.streams.log.port import LogPort
from refold.streams.partitioner import SLOTS
from refold.streams.snapshots.manifest import Epoch, OffsetSpan
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import Pin, SnapshotReader, SnapshotStore, Tombstone

PARTITIONS = 4
EPOCHS = [Epoch(1, 9, 2), Epoch(1, 10, 2), Epoch(1, 10, 3), Epoch(1, 300, 1)]


def assert_sealed(log: LogPort, epochs: list[Epoch]) -> None:
    """Check that the epochs exist, and that each is readable and belongs to this log."""
    for epoch in epochs:
        assert epoch in log.snapshots.epochs(epoch.partition)
        manifest = log.snapshots.manifest(epoch)
        assert (manifest.log_id, manifest.epoch) == (log.log_id, epoch)
        assert len(manifest.slots) == SLOTS // log.partitions
        layers = read_epoch(log.snapshots, manifest, log.partitions, ChunkStore())
        held = {name: packed for name, packed in log.stored_entities() if log.partition_of(name) == epoch.partition}
        if epoch.offset == log.ends()[epoch.partition]:
            assert dict(layers.rows()) == held
            assert manifest.entities == len(held)


class OpenedStore(ABC):
    """A store of PARTITIONS partitions in its own place. A test may open and close it as often as it wants."""

    keeps_unsealed = True
    """Whether records that were not sealed are kept, and the offset after an epoch is the next epoch's."""
    removes_at_once = True
    """Whether a removed record becomes unreadable at once."""

    @abstractmethod
    def __call__(self) -> AbstractContextManager[SnapshotStore]:
        """Open the store until the end of the block."""

    @abstractmethod
    def killed_after(self, statement: str) -> None:
        """Run a statement that may use `store`, `Epoch`, `Pin` and `Tombstone`, in a process that then kills itself."""


def records(store: SnapshotReader, partition: int = 1) -> dict[int, bytes]:
    return dict(store.records(partition, 0, 1 << 40))


class SnapshotStoreConformance:
    """Subclass it as a test class, with a fixture `opened` that returns an `OpenedStore`."""

    def test_new_store_is_empty(self, opened: OpenedStore) -> None:
        with opened() as store:
            for partition in range(PARTITIONS):
                assert (store.end(partition), list(store.epochs(partition)), records(store, partition)) == (0, [], {})
            assert (list(store.pins()), list(store.tombstones())) == ([], [])
            assert store.manifest_bytes(EPOCHS[0]) is None
            with pytest.raises(CorruptionError, match="manifest of epoch 1=9 is gone"):
                store.manifest(EPOCHS[0])

    def test_records_keep_their_append_order(self, opened: OpenedStore) -> None:
        expected = {}
        with opened() as store:
            for number in range(300):
                partition = number % 3
                assert store.end(partition) == number // 3
                store.append(partition, b"%d" % number * (number % 50))
                expected[partition, number // 3] = b"%d" % number * (number % 50)
            for partition in range(PARTITIONS):
                own = {offset: data for (where, offset), data in expected.items() if where == partition}
                assert records(store, partition) == own
                found = list(store.records(partition, 10, 20))
                assert found == [(offset, own[offset]) for offset in range(10, 20) if own]
                assert list(store.records(partition, 20, 10)) == []
            store.seal(EPOCHS[0], b"m")
        with opened() as store:
            assert {(1, offset): data for offset, data in records(store).items()} == {
                place: data for place, data in expected.items() if place[0] == 1
            }
            if opened.keeps_unsealed:
                assert [store.end(partition) for partition in range(PARTITIONS)] == [100, 100, 100, 0]
            else:
                assert records(store, 0) == records(store, 2) == {}
            begin = store.end(1)
            assert begin >= 100
            store.append(1, b"more")
            assert store.end(1) == begin + 1
            assert list(store.records(1, 99, begin + 1)) == [(99, expected[1, 99]), (begin, b"more")]
            store.extend(1, [])
            store.extend(1, [b"two", b"three"])
            assert store.end(1) == begin + 3
            assert [data for _, data in store.records(1, begin, begin + 3)] == [b"more", b"two", b"three"]

    def test_abandoned_records_are_in_no_manifest(self, opened: OpenedStore) -> None:
        with opened() as store:
            store.append(1, b"sealed")
            store.seal(EPOCHS[0], b"m")
            store.append(1, b"given up")
            store.append(2, b"another's")
            store.abandon(1)
            store.abandon(3)
            begin = store.end(1)
            store.append(1, b"next")
            store.seal(EPOCHS[1], b"n")
            kept = [(0, 1), (begin, begin + 1)]
            assert [data for start, end in kept for _, data in store.records(1, start, end)] == [b"sealed", b"next"]
            store.clear(1, kept, [])
            assert store.clear(1, kept, []) == (0, 0)
            assert records(store, 2) == {0: b"another's"}

    def test_epochs_are_ordered_by_offset_whenever_sealed(self, opened: OpenedStore) -> None:
        with opened() as store:
            for number, epoch in enumerate(reversed(EPOCHS)):
                store.seal(epoch, b"%d" % number)
            store.seal(Epoch(2, 5, 5), b"other")
            store.seal(EPOCHS[0], b"again")
        with opened() as store:
            assert list(store.epochs(1)) == sorted(EPOCHS) == EPOCHS
            assert list(store.epochs(2)) == [Epoch(2, 5, 5)]
            assert list(store.epochs(0)) == list(store.epochs(3)) == []
            assert [store.manifest_bytes(epoch) for epoch in EPOCHS] == [b"again", b"2", b"1", b"0"]

    def test_latest_epoch_is_the_newest_not_above(self, opened: OpenedStore) -> None:
        with opened() as store:
            for epoch in (*EPOCHS, Epoch(2, 5, 5)):
                store.seal(epoch, b"m")
            for epoch in EPOCHS:
                assert store.latest(epoch) == epoch
            untils = Epoch(1, 9, 1), Epoch(1, 10, 1), Epoch(1, 299, 9), Epoch(1, 1 << 40, 0)
            assert [store.latest(until) for until in untils] == [None, EPOCHS[0], EPOCHS[2], EPOCHS[3]]
            assert store.latest(Epoch(2, 5, 4)) is store.latest(Epoch(3, 9, 9)) is store.latest(Epoch(0, 9, 9)) is None

    def test_pins_and_tombstones(self, opened: OpenedStore) -> None:
        with opened() as store:
            for number, epoch in enumerate(EPOCHS):
                store.seal(epoch, b"%d" % number)
            store.pin(Pin(EPOCHS[0], 7))
            store.pin(Pin(EPOCHS[1], 8))
            store.pin(Pin(EPOCHS[0], 9))
            store.unpin(EPOCHS[1])
            store.unpin(EPOCHS[2])
            store.add_tombstone(Tombstone(EPOCHS[2], 11, b"2"), Tombstone(EPOCHS[3], 12, b"3"))
        with opened() as store:
            assert list(store.pins()) == [Pin(EPOCHS[0], 9)]
            assert list(store.tombstones()) == [Tombstone(EPOCHS[2], 11, b"2"), Tombstone(EPOCHS[3], 12, b"3")]
            assert list(store.epochs(1)) == EPOCHS[:2]
            assert store.manifest_bytes(EPOCHS[2]) is None

    def test_records_not_kept_are_removed_and_their_offsets_not_reused(self, opened: OpenedStore) -> None:
        with opened() as store:
            for number in range(20):
                store.append(1, b"x" * number)
                store.append(2, b"y")
            store.seal(EPOCHS[0], b"m")
            store.seal(Epoch(2, 1, 1), b"o")
            store.add_tombstone(Tombstone(EPOCHS[0], 1, b"m"))
            store.add_tombstone(Tombstone(EPOCHS[1], 2, b"n"))
            kept = {3, 4, 9, 10, 11}
            gone = (20 - len(kept), sum(range(20)) - sum(kept))
            intervals = [(9, 12), (3, 5), (3, 4), (10, 11)]
            assert store.clear(1, intervals, [EPOCHS[0]], dry_run=True) == gone
            assert list(store.tombstones()) == [Tombstone(EPOCHS[0], 1, b"m"), Tombstone(EPOCHS[1], 2, b"n")]
            assert len(records(store)) == 20
            assert store.clear(1, intervals, [EPOCHS[0]]) == gone
            assert store.clear(1, intervals, []) == (0, 0)
            assert {offset: data for offset, data in records(store).items() if offset in kept} == {
                offset: b"x" * offset for offset in kept
            }
            if opened.removes_at_once:
                assert records(store).keys() == kept
            assert list(store.tombstones()) == [Tombstone(EPOCHS[1], 2, b"n")]
            assert store.clear(1, [], []) == (len(kept), sum(kept))
        with opened() as store:
            if opened.removes_at_once:
                assert records(store) == {}
            assert store.clear(1, [], []) == (0, 0)
            assert len(records(store, 2)) == 20
            begin = store.end(1)
            assert begin >= 20
            store.append(1, b"new")
            assert list(store.records(1, begin, begin + 1)) == [(begin, b"new")]
            assert store.clear(1, [(begin, begin + 1)], []) == (0, 0)
            assert list(store.records(1, begin, begin + 1)) == [(begin, b"new")]

    def test_span_with_a_missing_record_is_an_error(self, opened: OpenedStore) -> None:
        with opened() as store:
            for number in range(5):
                store.append(1, b"%d" % number)
            assert [data for _, data in store.span(1, OffsetSpan(1, 4, b""))] == [b"1", b"2", b"3"]
            with pytest.raises(CorruptionError, match="the snapshot record 1=5 is gone"):
                list(store.span(1, OffsetSpan(3, 9, b"")))
            if opened.removes_at_once:
                for kept, gone in (([(0, 2), (3, 5)], 2), ([(0, 2)], 2)):
                    store.clear(1, kept, [])
                    with pytest.raises(CorruptionError, match=f"the snapshot record 1={gone} is gone"):
                        list(store.span(1, OffsetSpan(1, 4, b"")))

    def test_long_span_is_read_up_to_the_first_missing_record(self, opened: OpenedStore) -> None:
        with opened() as store:
            for number in range(40):
                store.append(1, b"%d" % number)
            for size in (0, 1, 15, 16, 17, 32, 33):
                assert list(store.span(1, OffsetSpan(3, 3 + size, b""))) == [
                    (number, b"%d" % number) for number in range(3, 3 + size)
                ]
            for end in (41, 60, 1 << 62):
                reading = store.span(1, OffsetSpan(0, end, b""))
                assert len(list(islice(reading, 40))) == 40
                with pytest.raises(CorruptionError, match="the snapshot record 1=40 is gone"):
                    next(reading)
            with pytest.raises(CorruptionError, match="the snapshot record 1=9 is gone"):
                list(store.span(1, OffsetSpan(9, 8, b"")))
            abandoned = store.span(1, OffsetSpan(0, 40, b""))
            assert next(abandoned) == (0, b"0")

    def test_read_in_progress_is_unaffected(self, opened: OpenedStore) -> None:
        with opened() as store:
            for number in range(600):
                store.append(1, b"%d" % number)
            reading = store.records(1, 0, 1000)
            assert next(reading) == (0, b"0")
            store.append(1, b"new")
            store.clear(1, [], [])
            assert [offset for offset, _ in reading] == list(range(1, 600))

    def test_sealed_epochs_and_records_appended_before_them_survive(self, opened: OpenedStore) -> None:
        """The process is killed right after `seal`, so only the guarantee of `seal` itself makes the data durable."""
        opened.killed_after("for n in range(50): store.append(1, b'%d' % n)\nstore.seal(Epoch(1, 9, 2), b'm')")
        with opened() as store:
            assert records(store) == {number: b"%d" % number for number in range(50)}
            assert store.manifest_bytes(EPOCHS[0]) == b"m"
        opened.killed_after(
            "store.pin(Pin(Epoch(1, 9, 2), 5))\nstore.add_tombstone(Tombstone(Epoch(1, 9, 2), 6, b'm'))"
        )
        with opened() as store:
            assert list(store.pins()) == [Pin(EPOCHS[0], 5)]
            assert list(store.tombstones()) == [Tombstone(EPOCHS[0], 6, b"m")]
        opened.killed_after("store.append(1, b'lost or not')")
        with opened() as store:
            found = records(store)
            assert len(found) in {50, 51}
            assert store.end(1) > max(found)
        opened.killed_after("store.clear(1, [(10, 20)], [Epoch(1, 9, 2)])")
        with opened() as store:
            assert records(store).keys() >= set(range(10, 20))
            assert store.clear(1, [(10, 20)], []) == (0, 0)
            assert list(store.tombstones()) == []
            if opened.removes_at_once:
                assert records(store).keys() == set(range(10, 20))

    def test_stopped_store_accepts_nothing(self, opened: OpenedStore) -> None:
        with opened() as store:
            store.append(1, b"x")
            store.stop()
            with pytest.raises(StorageError, match="closed"):
                store.append(1, b"y")
            assert records(store) == {0: b"x"}


Written = Callable[[], AbstractContextManager[tuple[LogPort, LogPort]]]
"""Opens a log: one handle to write it, one to read it."""


def check_snapshots_of_a_log(opened: Written, write: Callable[[LogPort, int], None]) -> None:
    """Test `snapshot`, `pin` and `snapshots` of a log. write(log, n) records the n-th batch in all partitions."""
    with opened() as (log, reader):
        assert list(log.snapshot()) == []
        epochs = []
        for number in range(4):
            write(log, number)
            sealed = list(log.snapshot())
            assert sealed == [Epoch(partition, end, len(log.registry)) for partition, end in sorted(log.ends().items())]
            assert list(log.snapshot()) == sealed, "nothing moved"
            reader.refresh()
            assert_sealed(reader, sealed)
            epochs += sealed
        pinned = list(log.snapshot(77))
        assert pinned == epochs[-PARTITIONS:]
        log.pin([epochs[0]], 78)
        log.pin(pinned[1:], None)
        with pytest.raises(InputError):
            log.pin([Epoch(0, 1 << 30, 1)], 79)
    with opened() as (log, reader):
        assert_sealed(reader, epochs)
        assert sorted(reader.snapshots.pins()) == sorted([Pin(epochs[0], 78), Pin(pinned[0], 77)])
        for partition in range(PARTITIONS):
            own = [reader.snapshots.manifest(epoch) for epoch in reader.snapshots.epochs(partition)]
            assert len(own) == 4
            assert all(after.previous == before.digest for before, after in pairwise(own))
        write(log, 9)
        assert_sealed(log, list(log.snapshot()))
