"""Snapshots on Kafka: the suite for all snapshot stores, additional tests of transactions, and of damage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from refold.avro.errors import StorageError
from refold.streams.log.kafka.clients import MESSAGE_BYTES_MAX, Clients
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.manifests import FORGOTTEN_S, ManifestMap
from refold.streams.log.kafka.offsets import Offsets
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.transactions import QUEUED_KB
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Pin, SnapshotStore, Tombstone
from refold_tests.brokers import SharedKafka
from refold_tests.child import children
from refold_tests.kafka_snapshots import Connection, make_topics
from refold_tests.snapshot_conformance import EPOCHS, PARTITIONS, OpenedStore, SnapshotStoreConformance, records

KILLED = """
import os, signal, sys
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Pin, Tombstone
from refold_tests.kafka_snapshots import Connection

with Connection({"bootstrap.servers": sys.argv[1]}, sys.argv[2], int(sys.argv[3])) as connection:
    store = connection.store()
    exec(sys.argv[4])
    os.kill(os.getpid(), signal.SIGKILL)
"""


class KafkaOpenedStore(OpenedStore):
    """A store on separate topics."""

    keeps_unsealed = False
    removes_at_once = False

    def __init__(self, kafka: SharedKafka, prefix: str) -> None:
        self.kafka = kafka
        self.prefix = prefix
        make_topics(kafka.client_config(), prefix, PARTITIONS)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[SnapshotStore]:
        with Connection(self.kafka.client_config(), self.prefix, PARTITIONS) as connection:
            yield connection.store()

    def killed_after(self, statement: str) -> None:
        with children() as start:
            assert start(KILLED, self.kafka.bootstrap, self.prefix, PARTITIONS, statement).end() == -9


class TestKafkaStore(SnapshotStoreConformance):
    @pytest.fixture
    def opened(self, kafka: SharedKafka, prefix: str) -> OpenedStore:
        return KafkaOpenedStore(kafka, prefix)


@pytest.fixture
def connection(kafka: SharedKafka, prefix: str) -> Iterator[Connection]:
    """A store with PARTITIONS partitions."""
    make_topics(kafka.client_config(), prefix, PARTITIONS)
    with Connection(kafka.client_config(), prefix, PARTITIONS) as found:
        yield found


def test_epoch_becomes_visible_at_once(connection: Connection) -> None:
    store, reader = connection.store(), connection.reader()
    store.append(1, b"a")
    store.append(1, b"b")
    assert records(store) == {0: b"a", 1: b"b"}
    reader.refresh()
    assert (records(reader), reader.epochs(1)) == ({}, [])
    store.seal(EPOCHS[0], b"m")
    assert records(reader) == {0: b"a", 1: b"b"}
    reader.refresh()
    assert list(reader.epochs(1)) == EPOCHS[:1]
    store.append(1, b"c")
    store.abandon(1)
    store.append(1, b"d")
    begin = store.end(1) - 1
    store.seal(EPOCHS[1], b"n")
    reader.refresh()
    assert records(reader) == {0: b"a", 1: b"b", begin: b"d"}


def test_new_writer_of_a_partition_fences_the_former(connection: Connection) -> None:
    first, second = connection.store(), connection.store()
    first.append(1, b"sealed")
    first.seal(EPOCHS[0], b"m")
    first.append(1, b"open")
    first.append(2, b"open")
    second.take(1)
    assert list(second.epochs(1)) == EPOCHS[:1]
    second.append(1, b"next")
    second.seal(EPOCHS[1], b"n")
    before = connection.ends(committed=False)
    attempts: list[Callable[[], object]] = [
        lambda: first.seal(EPOCHS[2], b"o"),
        lambda: first.append(1, b"late"),
        lambda: first.pin(Pin(EPOCHS[0], 1)),
        lambda: first.unpin(EPOCHS[0]),
        lambda: first.add_tombstone(Tombstone(EPOCHS[0], 1, b"m")),
        lambda: first.clear(1, [], []),
        lambda: first.take(1),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match="partition 1, are written by another process now"):
            attempt()
        first.abandon(1)
    assert connection.ends(committed=False) == before
    first.seal(Epoch(2, 1, 1), b"p")
    assert records(connection.reader(), 2) == {0: b"open"}
    first.drop(1)
    first.append(1, b"again")
    first.seal(EPOCHS[2], b"q")
    reader = connection.reader()
    assert list(reader.epochs(1)) == EPOCHS[:3]
    assert list(records(reader).values()) == [b"sealed", b"next", b"again"]
    with pytest.raises(StorageError, match="another process"):
        second.seal(EPOCHS[3], b"r")


def test_partition_of_another_worker_is_not_written(connection: Connection) -> None:
    mine = {1}
    store = connection.store(owns=mine.__contains__)
    store.append(1, b"x")
    with pytest.raises(StorageError, match="partition 2 belongs to another worker"):
        store.append(2, b"y")
    mine.clear()
    with pytest.raises(StorageError, match="partition 1 belongs to another worker"):
        store.append(1, b"y")
    store.abandon(1)
    mine.add(1)
    begin = store.end(1)
    store.append(1, b"z")
    store.seal(EPOCHS[0], b"m")
    assert records(connection.reader()) == {begin: b"z"}


def test_transaction_that_takes_too_long_is_abandoned(connection: Connection) -> None:
    """The coordinator checks for these only now and then; the store notices at its next write."""
    store = connection.store(transaction_timeout_ms=1_000)
    store.append(1, b"x")
    assert records(store) == {0: b"x"}
    place = connection.topics.snapshots
    deadline = time.monotonic() + 60
    while not connection.ends(committed=True)[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(StorageError, match="took longer than it may"):
        store.seal(EPOCHS[0], b"m")
    assert connection.stored(place, 1) == {}
    store.drop(1)
    store.append(1, b"y")
    store.seal(EPOCHS[0], b"m")
    assert list(records(connection.reader()).values()) == [b"y"]


def test_foreign_write_among_the_records_is_detected(connection: Connection) -> None:
    store = connection.store()
    store.append(1, b"a")
    assert len(records(store)) == 1
    connection.write(connection.topics.snapshots, 1, b"strange", b"x")
    store.append(1, b"b")
    with pytest.raises(StorageError, match="another process writes there; nothing was sealed"):
        store.seal(EPOCHS[0], b"m")
    begin = store.end(1)
    store.append(1, b"c")
    store.seal(EPOCHS[0], b"m")
    reader = connection.reader()
    assert records(reader) == {begin: b"c"}
    assert list(reader.epochs(1)) == EPOCHS[:1]


def test_epoch_larger_than_the_clients_queue_is_written(connection: Connection) -> None:
    store = connection.store()
    data = bytes(range(256)) * 1_024
    for number in range(4 * QUEUED_KB // 256):
        store.append(1, data + b"%d" % number)
    store.seal(EPOCHS[0], b"m")
    found = list(connection.reader().records(1, 0, 1 << 40))
    assert found == [(number, data + b"%d" % number) for number in range(4 * QUEUED_KB // 256)]


def test_largest_record_is_written(connection: Connection) -> None:
    store, largest = connection.store(), bytes(MESSAGE_BYTES_MAX - 1_024)
    store.append(1, b"x")
    store.append(1, largest)
    store.seal(EPOCHS[0], b"m")
    assert records(connection.reader()) == {0: b"x", 1: largest}


def test_record_that_is_too_large_fails_only_its_epoch(connection: Connection) -> None:
    store = connection.store()
    with pytest.raises(StorageError, match=r"could not be written: .*too large"):
        store.append(1, bytes(MESSAGE_BYTES_MAX + 1))
    store.abandon(1)
    store.append(1, b"x")
    store.seal(EPOCHS[0], b"m")
    assert list(records(connection.reader()).values()) == [b"x"]


def test_stale_map_is_read_again(kafka: SharedKafka, prefix: str) -> None:
    """Records that compaction removed meanwhile leave no visible trace."""
    make_topics(kafka.client_config(), prefix, 1)
    now_s = 0.0
    clients = Clients(kafka.client_config(), prefix)
    offsets, reading = Offsets(clients.admin(), 30), LogReaders(clients, 30)
    followed = ManifestMap(f"{prefix}.manifests", 1, offsets, reading, lambda: now_s, ForeignRecords())
    with Connection(kafka.client_config(), prefix, 1) as connection:
        store = connection.store()
        store.pin(Pin(Epoch(0, 1, 1), 1))
        followed.refresh()
        (pinned,) = followed.scan(0, b"pin/")
        followed._values[0][b"pin/forgotten"] = b"as if compaction had taken what removed it"
        for passed_s, seen in ((FORGOTTEN_S, 2), (FORGOTTEN_S + 1, 1)):
            now_s += passed_s
            followed.refresh()
            assert len(followed.scan(0, b"pin/")) == seen
        assert followed.scan(0, b"pin/") == [pinned]
    reading.close()
