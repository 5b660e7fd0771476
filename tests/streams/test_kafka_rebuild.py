"""Rebuilding a log on Kafka from its snapshots: by a plain consumer, no worker running, no disk but temporary files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold.avro.ids import identify
from refold.reducers.entity import stored_hash
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.open import process_context
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.snapshots.store import Tombstone
from refold.testing.kafka import Kafka
from refold_tests.brokers import SharedKafka
from refold_tests.clock import FileClock
from refold_tests.epochs import SMALL_EPOCHS
from refold_tests.full_replay import assert_full_replay
from refold_tests.kafka_epochs import Flipping, Sealing
from refold_tests.kafka_snapshots import Connection
from refold_tests.tree import ROOT
from refold_tests.varied_logs import TYPES, Past, hashes_of, mixed_history, random_cut, records_of, reference_at

PARTITIONS = 2
LENGTH = 300


@contextmanager
def opened(kafka: SharedKafka, prefix: str, *, read_only: bool = False) -> Iterator[Log]:
    """The log, opened by a client."""
    port = KafkaLog(parse_url(f"kafka://{kafka.bootstrap}/{prefix}?partitions={PARTITIONS}"), read_only=read_only)
    with Log(port, {name: versions[0] for name, versions in TYPES.items()}, set(), process_context()) as log:
        yield log


def port_of(log: Log) -> KafkaLog:
    assert isinstance(log.port, KafkaLog)
    return log.port


class KafkaPast(Past):
    """Sealed by itself, and timed by the broker."""

    def __init__(self, log: Log, folder: Path, rng: random.Random, sealing: Sealing) -> None:
        super().__init__(log, FileClock(folder / "clock"), rng)
        self.sealing = sealing

    def snapshot(self) -> None:
        self.log.flush()
        self.sealing.seal()
        self.snapshots += 1


@pytest.fixture
def past(kafka: SharedKafka, prefix: str, tmp_path: Path, seed: int) -> Iterator[KafkaPast]:
    """A log of some length and epochs, its records late, twice, retracted, its definitions changed."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    with opened(kafka, prefix) as log, Sealing(port_of(log), settings=SMALL_EPOCHS) as sealing:
        past = KafkaPast(log, tmp_path, rng, sealing)
        past.run(mixed_history(seed, LENGTH, 40), snapshots=0.3, redefined=0.05)
        past.snapshot()
        past.run(mixed_history(seed + 1, 20, 40), snapshots=0)
        yield past


def assert_same(log: Log, cut: Cut, *, parallel: bool = False) -> dict[str, object]:
    """Check that a rebuild equals the full replay, byte for byte; returns its sources."""
    return assert_full_replay(log.port, cut, parallel=parallel, may_fall_back=True).source()


def test_rebuild_equals_the_full_replay_at_random_cuts(kafka: SharedKafka, prefix: str, past: KafkaPast) -> None:
    used: set[object] = set()
    with opened(kafka, prefix, read_only=True) as reader:
        every = records_of(reader)
        assert sum(map(len, every.values())) > LENGTH
        for number in range(25):
            cut = reader.point().cut if number == 0 else random_cut(reader, past.rng, every)
            source = assert_same(reader, cut)
            assert source["fallbacks"] == []
            epochs = source["snapshot_epochs"]
            assert isinstance(epochs, dict)
            used.update(epochs.items())
            if number % 5 == 0:
                hashes = hashes_of(reference_at(reader, cut, every))
                assert {name: stored_hash(packed) for name, packed in rebuild(reader.port, cut).rows()} == hashes
        assert len(used) > PARTITIONS
        replayed = reader.rebuild().source["replayed"]
        assert isinstance(replayed, int)
        assert replayed <= 40


def test_several_processes_rebuild_the_same(kafka: SharedKafka, prefix: str, past: KafkaPast) -> None:
    with opened(kafka, prefix, read_only=True) as reader:
        every = records_of(reader)
        for cut in (reader.point().cut, *(random_cut(reader, past.rng, every) for _ in range(2))):
            source = assert_same(reader, cut, parallel=True)
            assert source["fallbacks"] == []
            assert source["apart"] == PARTITIONS


def test_child_processes_connect_as_their_parent(kafka_cluster: Callable[..., Kafka], seed: int) -> None:
    """With settings given in Python that are in no URL and no environment."""
    secured = kafka_cluster(secure=True)
    address = parse_url(f"kafka://{secured.bootstrap}/agents?partitions={PARTITIONS}")
    port = KafkaLog(address, config=secured.client_config())
    with Log(port, {name: versions[0] for name, versions in TYPES.items()}, set(), process_context()) as log:
        for each in mixed_history(seed, 60, 10):
            log.append(each, identify(each), TYPES[each.type][0], {})
        log.flush()
        with Sealing(port, settings=SMALL_EPOCHS) as sealing:
            epochs = sealing.seal()
        source = assert_same(log, log.point().cut, parallel=True)
        assert (source["fallbacks"], source["apart"]) == ([], PARTITIONS)
        assert source["snapshot_epochs"] == {str(epoch.partition): epoch.offset for epoch in epochs}


def test_nothing_is_left_on_disk(kafka: SharedKafka, prefix: str, past: KafkaPast, tmp_path: Path) -> None:
    """The command, in a folder where it can write nothing, but for temporary files that it removes."""
    temporary, here = tmp_path / "temporary", tmp_path / "here"
    temporary.mkdir()
    here.mkdir(mode=0o555)
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "refold.explorer.cli.main", "rebuild", "--log", url, "--json"],
        env={**os.environ, "TMPDIR": str(temporary), "HOME": str(here), "PYTHONPATH": str(ROOT / "tests" / "support")},
        cwd=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    with opened(kafka, prefix, read_only=True) as reader:
        full = reader.rebuild(full=True)
        assert (answer["root"], answer["entities"]) == (full.root, len(full))
    assert answer["source"]["snapshot_epochs"]
    assert list(temporary.iterdir()) == list(here.iterdir()) == []


def test_flipped_bytes_are_detected_and_an_older_epoch_is_used(
    kafka: SharedKafka, prefix: str, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    with opened(kafka, prefix) as log, Sealing(port_of(log), Flipping, SMALL_EPOCHS) as sealing:
        past = KafkaPast(log, tmp_path, rng, sealing)
        past.run(mixed_history(seed, 100, 20), snapshots=0)
        good = dict.fromkeys(map(str, range(PARTITIONS)), 0)
        good.update((str(epoch.partition), epoch.offset) for epoch in sealing.seal())
        past.run(mixed_history(seed + 1, 100, 20), snapshots=0)
        assert isinstance(sealing.store, Flipping)
        sealing.store.is_flipping = True
        bad = sealing.seal()
        log.port.refresh()
        source = assert_same(log, log.point().cut)
        assert source["snapshot_epochs"] == {key: offset for key, offset in good.items() if offset}
        fallbacks = source["fallbacks"]
        assert isinstance(fallbacks, list)
        assert {text.partition(" was not used: ")[0] for text in fallbacks} == {f"epoch {epoch}" for epoch in bad}
        apart = assert_same(log, log.point().cut, parallel=True)
        assert (apart["snapshot_epochs"], apart["fallbacks"]) == (source["snapshot_epochs"], fallbacks)


def test_overwritten_or_removed_manifests_are_not_needed(kafka: SharedKafka, prefix: str, past: KafkaPast) -> None:
    rng = past.rng
    with opened(kafka, prefix, read_only=True) as reader, Connection(kafka.client_config(), prefix, 2) as connection:
        for _ in range(4):
            partition = rng.randrange(PARTITIONS)
            epochs = list(reader.port.snapshots.epochs(partition))
            last = epochs[-1]
            whole = reader.port.snapshots.manifest_bytes(last)
            assert whole is not None
            flipped = bytearray(whole)
            flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            damaged = rng.choice((bytes(flipped), whole[: rng.randrange(len(whole))], b"", None))
            connection.write(connection.topics.manifests, partition, last.key, damaged)
            reader.port.refresh()
            source = assert_same(reader, reader.point().cut)
            told = [text for text in map(str, source["fallbacks"]) if text.startswith(f"epoch {last} was")]  # type: ignore[call-overload]
            assert len(told) == (damaged is not None)
            connection.write(connection.topics.manifests, partition, last.key, whole)
            reader.port.refresh()
        assert assert_same(reader, reader.point().cut)["fallbacks"] == []


def test_garbage_unknown_to_a_reader_does_not_mislead_it(kafka: SharedKafka, prefix: str, past: KafkaPast) -> None:
    """Removed records stay readable until compaction, and a reader that refreshes starts elsewhere."""
    with opened(kafka, prefix, read_only=True) as reader:
        cut = reader.point().cut
        before = assert_same(reader, cut)
        store = past.sealing.store
        for partition in range(PARTITIONS):
            for epoch in store.epochs(partition):
                data = store.manifest_bytes(epoch)
                assert data is not None
                store.add_tombstone(Tombstone(epoch, 1, data))
            store.clear(partition, [], [tomb.epoch for tomb in store.tombstones() if tomb.epoch.partition == partition])
        assert assert_same(reader, cut) == before
        reader.port.refresh()
        after = assert_same(reader, cut)
        assert (after["snapshot_epochs"], after["fallbacks"]) == ({}, [])
