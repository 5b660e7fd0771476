"""A client's requests to workers: verify of any log content, found damage, pinned epochs, look-ups."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

import refold
from refold.avro.errors import InputError, NotAnswerable
from refold.streams.log.kafka.fold_position import is_emitted
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.lookups import IdMatches, IndexedHistory, IndexedRecords, TableClient
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.url import parse_url
from refold.streams.log.kafka.worker_client import Workers, WorkerTables
from refold.streams.log.port import Checkpoint, IndexedObservation, Record
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.rocks.families import Family
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.brokers import SharedKafka
from refold_tests.folding import append, history, opened, tables, url_of
from refold_tests.kafka_topics import Broker
from refold_tests.poison import bad_records, produce
from refold_tests.sample_types import THING, A, said, versions
from refold_tests.worker_pages import worker_with_pages

pytestmark = pytest.mark.timeout(600)


DAMAGED: Sequence[Family] = ("state", "timeline", "arrivals", "ids")


@pytest.fixture
def url(kafka: SharedKafka, prefix: str) -> str:
    return url_of(kafka.bootstrap, prefix)


def test_verify_finds_no_mismatch_in_a_log_with_every_feature(url: str, tmp_path: Path, seed: int) -> None:
    """Repeats, retractions, late records, verdicts, new definitions midway, epochs; also without workers, and if
    these lag."""
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        always = SnapshotSettings(epoch_records=1, chunk_bytes=500)
        with worker_with_pages(url, tmp_path, snapshots=always, epoch_every_ms=0), refold.open(url) as client:
            for definition in list(versions(3))[1:]:
                append(log, history(rng, 60))
                for partition in range(log.partitions):
                    produce(log, partition, rng.choice(bad_records(log, partition)))
                append(log, history(rng, 60))
                client.snapshot()
                log.register(definition)
                client.snapshot()
            whole = client.verify()
            assert (whole.mismatches, whole.unchecked) == ([], [])
            assert whole.root == client.rebuild(full=True).root
            assert len(client.snapshots()) > log.partitions
        append(log, history(rng, 20))
        with refold.open(url, read_only=True) as client:
            alone = client.verify()
            assert (alone.mismatches, len(alone.unchecked)) == ([], 1)
            assert alone.root == client.rebuild(full=True).root != whole.root


def test_damaged_tables_are_found_by_their_owner_and_remade(url: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append(log, history(rng, 200))
    with worker_with_pages(url, tmp_path), refold.open(url) as client:
        client.snapshot()
        assert client.verify().ok
    partition = rng.randrange(2)
    with contextlib.ExitStack() as ending:
        databases = {each: ending.enter_context(database) for each, database in tables(tmp_path, 2).items()}
        database = databases[partition]
        for family in DAMAGED:
            key, _ = rng.choice(list(database.scan(family)))
            write = database.batch()
            write.delete(family, key)
            database.write(write, sync=True)
    with worker_with_pages(url, tmp_path), refold.open(url) as client:
        found = client.verify()
        assert not found.ok
        assert {each.place for each in found.mismatches} >= {*DAMAGED}
        assert not found.unchecked
        source = client.recover()
        assert source["snapshot_epochs"]
        again = client.verify()
        assert (again.mismatches, again.unchecked, again.root) == ([], [], found.root)


def test_epochs_are_sealed_with_and_without_workers(url: str, tmp_path: Path) -> None:
    with opened(url) as log:
        log.register(THING)
        append(log, [said(f"{THING.name}/{number}", number) for number in range(40)])
        with worker_with_pages(url, tmp_path), refold.open(url) as client:
            epochs = client.snapshot()
            client.pin(epochs[:1])
            with pytest.raises(InputError, match="there is no snapshot"):
                client.pin([*epochs, Epoch(0, 1 << 40, 1)])
            assert [each.epoch for each in client.snapshots() if each.pinned_at is not None] == epochs[:1]
            assert [each.partition for each in client.collect(dry_run=True)] == [0, 1]
            # A process that does not fold takes the partitions, and the worker takes them back with the next records.
            with refold.open(url, worker="http://127.0.0.1:9") as alone:
                alone.pin(epochs[1:])
                alone.unpin(epochs[:1])
                assert [each.epoch for each in alone.snapshots() if each.pinned_at is not None] == epochs[1:]
            append(log, [said(f"{THING.name}/{number}", number + 100) for number in range(40)])
            client.port.refresh()
            client.port.recover(wait=True)  # every partition is started again: taken again at once
            later = client.snapshot(pin=True)
            assert all(each not in epochs for each in later)
            pinned = [each.epoch for each in client.snapshots() if each.pinned_at is not None]
            assert sorted(pinned) == sorted([*epochs[1:], *later])


def test_duplicate_change_breaks_its_chain(url: str, tmp_path: Path, kafka: SharedKafka, prefix: str) -> None:
    with opened(url) as log:
        log.register(THING)
        append(log, [said(A, number) for number in range(3)])
        with worker_with_pages(url, tmp_path), refold.open(url) as client:
            client.snapshot()
            assert client.verify().ok
            place = KafkaPartition(log.topics.changes, log.partition_of(A))
            last = log.reading.last(place, log.offsets.ends([place])[place], is_emitted)
            assert last is not None
            Broker(kafka.bootstrap, prefix).produce(place, [last.value], key=last.key, headers=last.headers)
            found = client.verify()
        assert not found.ok
        assert {(each.place.partition(" ")[0], each.entity) for each in found.mismatches} == {("changes", A)}


def test_lookups_match_the_log(url: str, tmp_path: Path, seed: int) -> None:
    with opened(url) as log:
        log.register(THING)
        append(log, history(random.Random(seed), 150, entities=4))
        append(log, [said(A, number) for number in range(40)])
        with worker_with_pages(url, tmp_path) as (_, pages), refold.open(url) as client:
            client.snapshot()
            log.refresh()
            rows = dict(rebuild(log, Points(log, 0).end(), full=True, parallel=False).rows())
            for given in (None, pages):
                workers = Workers(parse_url(url), None, given)
                workers.log_id = log.log_id
                asked = WorkerTables(workers)
                for name in rows:
                    partition = log.partition_of(name)
                    arrived = asked.arrivals(partition, name, 3, 1_000)
                    assert arrived is not None
                    assert list(arrived.arrivals) == list(log.arrivals(name, 1_000, 3))
                    assert arrived.through == log.ends()[partition]
                    qs = [each.q for each in arrived.arrivals]
                    held = asked.records_of(partition, name, qs)
                    assert held is not None
                    assert list(held.records) == list(log.records_of(name, qs))
                    places = asked.places_of(qs[0][-32:] if qs else bytes(32))
                    assert places.through == log.ends()
                    assert list(places.positions) == [(partition, each.offset) for each in arrived.arrivals[:1]]
                found = asked.checkpoint(log.partition_of(A), A, 1_000, 0)
                assert found is not None
                assert found.entity.version >= 16
                assert {name: packed for each in range(2) for name, packed in asked.entities(each)} == rows
                assert sum(asked.totals(each)[0] for each in range(2)) == len(rows)


class Behind(TableClient):
    """Tables with the records below an offset of each partition, which limit the size of each answer."""

    def __init__(self, log: KafkaLog, through: int) -> None:
        self._log = log
        self._through = through

    def arrivals(self, partition: int, entity: str, start: int, end: int) -> IndexedHistory | None:
        found = self._log.arrivals(entity, min(end, self._through), start)
        return IndexedHistory(self._through, list(found))

    def records_of(self, partition: int, entity: str, qs: Sequence[bytes]) -> IndexedRecords | None:
        first = {each.id: each for each in reversed(list(self._log.entity_records(entity, self._through)))}
        return IndexedRecords(self._through, [first.get(q[-32:]) for q in qs])

    def checkpoint(self, partition: int, entity: str, end: int, definition: int) -> Checkpoint | None:
        return None

    def places_of(self, observation_id: bytes) -> IdMatches:
        found = self._log.find(observation_id)
        places = [] if found is None or found.offset >= self._through else [(found.partition, found.offset)]
        return IdMatches(places, dict.fromkeys(range(self._log.partitions), self._through))

    def entities(self, partition: int) -> Iterator[tuple[str, bytes]]:
        raise NotImplementedError

    def totals(self, partition: int) -> tuple[int, int]:
        raise NotImplementedError


def test_records_newer_than_the_tables_are_read_from_the_log(url: str, seed: int) -> None:
    """Wherever the tables end, also past what the reader has read, every answer matches the log."""
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append(log, history(rng, 60, entities=3))
        names = {each.entity for partition, end in log.ends().items() for each in log.read(partition, 0, end)}
        ids = [each.id for partition, end in log.ends().items() for each in log.read(partition, 0, end)]
        for through in (0, 1, 7, 20, 1_000):
            with contextlib.closing(KafkaLog(parse_url(url), read_only=True, tables=Behind(log, through))) as reader:
                for name in names:
                    for end in (0, 5, 15, 100):
                        start = rng.randrange(end + 1)
                        assert firsts(reader.entity_records(name, end)) == firsts(log.entity_records(name, end))
                        expected: list[IndexedObservation] = list(log.arrivals(name, end, start))
                        assert list(reader.arrivals(name, end, start)) == expected
                        qs = [each.q for each in rng.sample(expected, len(expected))]
                        assert list(reader.records_of(name, qs)) == list(log.records_of(name, qs))
                for each in [*rng.sample(ids, 10), bytes(32)]:
                    assert reader.find(each) == log.find(each)


def test_worker_of_another_log_is_not_used(url: str, tmp_path: Path) -> None:
    other = url.replace("?", ".other?")
    with opened(url) as log, opened(other):
        log.register(THING)
        append(log, [said(A, 1)])
        with worker_with_pages(other, tmp_path) as (_, pages), refold.open(url, worker=pages) as client:
            assert client.state(A).version == 1
            with pytest.raises(NotAnswerable, match="a worker of the log"):
                client.snapshot()
            assert "a worker of the log" in client.verify().unchecked[0]


def firsts(records: Iterable[Record]) -> list[Record]:
    found: dict[bytes, Record] = {}
    for record in records:
        found.setdefault(record.id, record)
    return list(found.values())
