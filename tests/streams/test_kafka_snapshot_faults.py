"""Snapshots on Kafka under kills, under pauses while another process takes over, and under compaction.

Every process is real, every kill is SIGKILL. A seed repeats the writes and the waiting times, but not what the
operating system does.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from refold.avro.errors import CorruptionError
from refold.streams.log.kafka.snapshots import KafkaSnapshotStore
from refold.streams.snapshots.garbage import GRACE_MS
from refold.streams.snapshots.manifest import Epoch, Manifest
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.retention_policy import MONTH_MS
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.snapshots.store import SnapshotReader
from refold.testing.kafka import Kafka
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.kafka_snapshots import Connection, make_topics
from refold_tests.opening import PARTITIONS
from refold_tests.sealing import Table
from refold_tests.world import LOG_ID, World, offsets

pytestmark = pytest.mark.faults

LENGTH = 100_000
NAMES = 60

# Continues after the last epoch. Its records are small, many and slow, so faults occur between them.
SEALER = """
import random, sys, time
from refold.avro.errors import StorageError
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.kafka_snapshots import Connection
from refold_tests.sealing import Table
from refold_tests.world import LOG_ID

bootstrap, prefix, seed, length, names, wait_s = *sys.argv[1:3], *map(int, sys.argv[3:6]), float(sys.argv[6])
with Connection({"bootstrap.servers": bootstrap}, prefix, 1) as connection:
    store = connection.store()
    append = store.append

    def slowly(*given):
        append(*given)
        time.sleep(wait_s)

    store.append = slowly
    try:
        store.take(0)
        table = Table(random.Random(seed), names)
        table.change_up_to(max((epoch.offset for epoch in store.epochs(0)), default=0))
        sealer = Sealer(store, LOG_ID, 1, settings=SnapshotSettings(chunk_bytes=300, changed_min=20))
        rng = random.Random(seed + table.offset)
        print("taken", table.offset, flush=True)
        while table.offset < length:
            table.change_up_to(table.offset + rng.choice((1, 10, 40)))
            sealer.seal(table.view())
            print("sealed", table.offset, flush=True)
    except StorageError as error:
        print("failed", error, flush=True)
        sys.exit(3)
"""


class Watch:
    """The known epochs of one partition: each is the complete table at its point, and stays."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection = connection
        self.told: set[int] = set()
        self.seen: dict[Epoch, Manifest] = {}
        self._reader = connection.reader()
        self._table = Table(random.Random(seed), NAMES)

    def receive(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "sealed" and rest.isdecimal():
            self.told.add(int(rest))

    def look(self) -> None:
        """Check that everything visible now is correct."""
        self._reader.refresh()
        epochs = list(self._reader.epochs(0))
        assert epochs[: len(self.seen)] == list(self.seen)
        for epoch in epochs[len(self.seen) :]:
            manifest = self._reader.manifest(epoch)
            self._table.change_up_to(epoch.offset)
            assert dict(read_epoch(self._reader, manifest, 1, ChunkStore()).rows()) == self._table.packed
            self.seen[epoch] = manifest
        for before, after in pairwise(self.seen.values()):
            assert after.previous == before.digest

    def finish(self) -> None:
        """Check that every acknowledged epoch exists, and that there are no records other than theirs."""
        self.look()
        assert self.told <= {epoch.offset for epoch in self.seen}
        records = self.connection.stored(self.connection.topics.snapshots, 0)
        assert offsets(self.seen.values()) <= {(0, offset) for offset in records}
        assert len(records) == sum(manifest.records for manifest in self.seen.values())


@pytest.fixture
def watch(kafka: SharedKafka, prefix: str, seed: int) -> Iterator[Watch]:
    print(f"seed {seed}")
    make_topics(kafka.client_config(), prefix, 1)
    with Connection(kafka.client_config(), prefix, 1) as connection:
        yield Watch(connection, seed)


def test_writer_killed_while_sealing_leaves_no_half_epoch_and_the_next_continues(
    kafka: SharedKafka, prefix: str, watch: Watch, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    rng = random.Random(seed)
    for _ in range(fault_rounds):
        writer = child(SEALER, kafka.bootstrap, prefix, seed, LENGTH, NAMES, 0.001)
        taken = writer.line()
        assert taken.startswith("taken ")
        assert int(taken.split()[1]) >= max(watch.told, default=0)
        for _ in range(rng.choice((0, 0, 1, 3))):
            watch.receive(writer.line())
        if rng.random() < 0.3:
            watch.look()
        time.sleep(rng.random() * rng.choice((0.01, 0.1)))
        writer.process.kill()
        while text := writer.line():
            watch.receive(text)
        assert writer.end() == -9
        watch.look()
    writer = child(SEALER, kafka.bootstrap, prefix, seed, max(watch.told, default=0) + 100, NAMES, 0)
    while text := writer.line():
        watch.receive(text)
    assert writer.end() == 0
    watch.finish()
    uncommitted = watch.connection.stored(watch.connection.topics.snapshots, 0, committed=False)
    decided = watch.connection.stored(watch.connection.topics.snapshots, 0)
    unsealed = len(uncommitted) - len(decided)
    print(f"{len(watch.seen)} epochs; {unsealed} records of {len(uncommitted)} were never sealed")


def test_fenced_writer_writes_nothing(
    kafka: SharedKafka, prefix: str, watch: Watch, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    """A writer is paused at any moment, another process takes the partition and seals, and the writer resumes."""
    rng = random.Random(seed)
    table = Table(random.Random(seed), NAMES)
    for _ in range(max(3, fault_rounds // 3)):
        zombie = child(SEALER, kafka.bootstrap, prefix, seed, LENGTH, NAMES, 0.002)
        assert zombie.line().startswith("taken ")
        for _ in range(rng.randrange(4)):
            watch.receive(zombie.line())
        time.sleep(rng.random() * 0.1)
        zombie.signal(signal.SIGSTOP)
        with Connection(kafka.client_config(), prefix, 1) as connection:
            store = connection.store()
            store.take(0)
            table.change_up_to(max((epoch.offset for epoch in store.epochs(0)), default=0))
            sealer = Sealer(store, LOG_ID, 1, settings=SnapshotSettings(chunk_bytes=300, changed_min=20))
            for _ in range(rng.randrange(1, 3)):
                table.change_up_to(table.offset + rng.choice((1, 30)))
                watch.told.add(sealer.seal(table.view()).epoch.offset)
            ends = connection.ends(committed=False)
            zombie.signal(signal.SIGCONT)
            lines = []
            while text := zombie.line():
                lines.append(text)
                watch.receive(text)
            assert zombie.end() == 3
            assert "are written by another process now" in lines[-1]
            assert connection.ends(committed=False) == ends
            table.change_up_to(table.offset + 1)
            watch.told.add(sealer.seal(table.view()).epoch.offset)
        watch.look()
    watch.finish()


# Compaction

# Segments that roll at once, and a cleaner that removes whatever it may.
SMALL = {
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "50",
    "delete.retention.ms": "50",
}


class KafkaWorld(World):
    """The stored records are those that were not removed, even before compaction has run."""

    def held(self) -> dict[tuple[int, int], int]:
        assert isinstance(self.store, KafkaSnapshotStore)
        return {
            (number, offset): size
            for number in range(PARTITIONS)
            for offset, size in self.store.loose(number, []).items()
        }


@pytest.fixture
def compacting(kafka_cluster: Callable[..., Kafka]) -> Iterator[Connection]:
    """On a separate broker whose cleaner runs often."""
    kafka = kafka_cluster()
    quicken(kafka)
    make_topics(kafka.client_config(), "small", PARTITIONS, SMALL)
    with Connection(kafka.client_config(), "small", PARTITIONS) as connection:
        yield connection


def quicken(kafka: Kafka) -> None:
    """The cleaner runs every 100 ms, not every 15 s."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    admin = AdminClient(kafka.client_config())
    often = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[often])]
    ).values():
        done.result()


def compact(connection: Connection, partition: int, gone: set[int]) -> None:
    """Wait until compaction has removed the records at these offsets; a segment rolls at a later record."""
    deadline = time.monotonic() + 120
    number = 0
    while gone & connection.stored(connection.topics.snapshots, partition).keys():
        assert time.monotonic() < deadline
        # As long as a record's key, but not an offset, so every store ignores it.
        connection.write(connection.topics.snapshots, partition, b"roll/%d" % (number % 3), b"")
        number += 1
        time.sleep(0.1)


def test_garbage_collection_and_compaction_never_remove_kept_epochs(
    compacting: Connection, seed: int, fault_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    settings = SnapshotSettings(changed_min=20, chunk_bytes=rng.choice((1, 2_000)), tombs_at_once=2)
    monkeypatch.setattr("refold.streams.snapshots.closed_entities.BUCKET_SLOTS", 64)
    world = KafkaWorld(rng, compacting.store, settings)
    held: set[tuple[int, int]] = set()
    for turn in range(2 * fault_rounds):
        for _ in range(rng.choice((1, 4))):
            world.step()
        held.update(world.held())
        world.collect()
        if turn % 5 == 4:
            take_away(compacting, world)
        world.assert_readable()
    for _ in range(2):  # with any drawn history: an unpinned base is dropped after the next base
        for table in world.tables:
            world.seal_base(table)
        world.now_ms += MONTH_MS + GRACE_MS
    held.update(world.held())
    for _ in range(2):
        world.collect()
        world.now_ms += GRACE_MS
    take_away(compacting, world)
    world.assert_readable(1_000)
    taken = held.difference(*(stored(compacting, partition) for partition in range(PARTITIONS)))
    assert taken
    print(f"compaction took {len(taken)} records")


def take_away(connection: Connection, world: KafkaWorld) -> None:
    """Let compaction remove the freed records. It may have run before."""
    held = world.held().keys()
    for partition in range(PARTITIONS):
        gone = stored(connection, partition) - held
        compact(connection, partition, {offset for _, offset in gone})
    world.open()  # the records written to roll segments belong to no store


def stored(connection: Connection, partition: int) -> set[tuple[int, int]]:
    """The places of a partition's records that have a value."""
    found = connection.stored(connection.topics.snapshots, partition)
    return {(partition, offset) for offset, (key, value) in found.items() if value and key == offset.to_bytes(8, "big")}


def test_overwritten_record_is_a_gap_after_compaction(compacting: Connection, seed: int) -> None:
    """Write another value for its key, as if someone had tried to repair it."""
    print(f"seed {seed}")
    table = Table(random.Random(seed), 15)
    table.change_up_to(40)
    store = compacting.store()
    manifest = Sealer(store, LOG_ID, 1).seal(table.view())
    victim = manifest.ranges[0].start
    table.change_up_to(60)
    assert dict(read_epoch(compacting.reader(), manifest, 1, ChunkStore()).rows())
    compacting.write(compacting.topics.snapshots, 0, victim.to_bytes(8, "big"), b"mended")
    compact(compacting, 0, {victim})
    reader: SnapshotReader = compacting.reader()
    with pytest.raises(CorruptionError, match=f"the snapshot record 0={victim} is gone"):
        read_epoch(reader, manifest, 1, ChunkStore())
