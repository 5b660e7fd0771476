"""Compressed batches damaged on a broker's disk, with real workers: Kafka's client never returns any of their
records. A reader that needs one reports it; a batch that is set aside counts as never recorded."""

from __future__ import annotations

import copy
import random
import shlex
import shutil
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest

import refold
from refold.avro.errors import DamagedRecord, InputError
from refold.reducers.entity import stored_hash
from refold.sinks.feed import Feed
from refold.sinks.port import Batch, EntityState, Load
from refold.sinks.states import packed
from refold.streams.cut import Cut
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.quarantine import restore_record, set_record_aside
from refold.streams.log.kafka.url import parse_url
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold.testing.kafka import Kafka
from refold_tests.bitrot import batch_of, rot_batch, rot_length
from refold_tests.command import refold_command
from refold_tests.folding import await_folded, opened, running, url_of
from refold_tests.rotten_logs import (
    NOW_MS,
    append_batches,
    await_damage,
    await_ruling,
    compressing,
    page_of,
    records_of,
    root,
    root_of,
    status_of,
    without,
)
from refold_tests.sample_types import THING
from refold_tests.waiting import await_true
from refold_tests.worker_pages import worker_with_pages

pytestmark = pytest.mark.timeout(600)
SILENT_S = 2.0


@pytest.fixture
def url(rotting: Kafka, request: pytest.FixtureRequest) -> str:
    return url_of(rotting.bootstrap, f"log{abs(hash(request.node.nodeid)) % 10**8}")


@pytest.mark.parametrize(("codec", "keeps_crc"), [("lz4", False), ("zstd", True), ("gzip", False), ("snappy", True)])
def test_damaged_batch_is_named_set_aside_whole_and_restored(
    rotting: Kafka, url: str, seed: int, monkeypatch: pytest.MonkeyPatch, codec: str, keeps_crc: bool
) -> None:
    """No worker ever ran: undecided batches cannot be read either. The checksum is wrong, or right."""
    rng = random.Random(seed)
    compressing(monkeypatch, codec)
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 4)
        found = records_of(log, log.topics.observations)
        whole = root(log, full=True)
        partition, raw = rng.choice(found)
        wound = rot_batch(rotting, log.topics.observations, partition, raw.offset, keeps_crc=keeps_crc)
        assert wound.last > wound.first
        expected = root_of(url, log, without(log, found, partition, wound))
        place = KafkaPartition(log.topics.observations, partition)
        end = log.offsets.ends([place])[place]
        with pytest.raises(DamagedRecord, match="its batch cannot be read") as refused:
            root(log, full=True)
        damaged = refused.value
        assert (damaged.topic, damaged.partition, damaged.offset) == ("observations", partition, wound.first)
        command = f"refold quarantine add {log.topics.observations}/{partition}/{wound.first} --log {log.url}"
        assert str(damaged).endswith(command)
        # Its bounds are the same for each of its offsets; the records around it can be read.
        for offset in {wound.first, rng.randint(wound.first, wound.last), wound.last}:
            batch = log.reading.unreadable_at(place, offset, end)
            assert batch is not None
            assert (batch.first, batch.end) == (wound.first, wound.last + 1)
        for offset in {max(0, wound.first - 1), min(end - 1, wound.last + 1)} - {wound.first, wound.last}:
            assert log.reading.unreadable_at(place, offset, end) is None
        offset = rng.randint(wound.first, wound.last)
        entry = set_record_aside(log, "observations", partition, offset, NOW_MS, apply=True)
        assert (entry.offset, entry.records, entry.is_aside) == (wound.first, wound.last + 1 - wound.first, True)
        assert root(log, full=True) == expected
        # The broker cannot decompress it either when it searches for a time.
        times = {each.offset: each.timestamp for at, each in found if at == partition}
        left = {each: time for each, time in times.items() if not wound.first <= each <= wound.last}
        after = [each for each, time in left.items() if time >= times[wound.first]]
        with closing(KafkaLog(parse_url(url))) as fresh:
            assert fresh.first_after(partition, times[wound.first] - 1) == min(after, default=end)
            before = [time for each, time in left.items() if each < wound.first]
            assert fresh.recorded_below(partition, wound.last + 1) == max(before, default=0)
        with pytest.raises(InputError, match="it is set aside"):
            set_record_aside(log, "observations", partition, wound.last, NOW_MS, apply=True)
        taken = restore_record(log, "observations", partition, wound.last, NOW_MS, apply=True)
        assert (taken.offset, taken.records, taken.is_aside) == (wound.first, entry.records, False)
        with pytest.raises(DamagedRecord):
            root(log)
        wound.heal()
        assert root(log, full=True) == whole


def test_worker_waits_at_damaged_batches_and_continues_after_quarantine(
    rotting: Kafka, url: str, tmp_path: Path, seed: int
) -> None:
    """A batch that the worker folded before the damage, one that it reaches later, and one at the log's end."""
    rng = random.Random(seed)
    tables = tmp_path / "tables"
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 3)
        with worker_with_pages(url, tables) as (worker, page), refold.open(url) as client:
            await_folded(log, worker)
            client.snapshot()
            folded = records_of(log, log.topics.observations)
            partition, raw = rng.choice(folded)
            first = rot_batch(rotting, log.topics.observations, partition, raw.offset)
            refused = refold_command("verify", log=url)
            assert refused.status == 1, refused
            command = f"refold quarantine add {log.topics.observations}/{partition}/{first.first}"
            assert command in refused.out
            assert refold_command("rebuild", "--full", log=url).refused().count(command) == 1
            done = refold_command(*shlex.split(command)[1:], "--json", log=url)
            assert (done.json["aside"], done.json["records"]) == (True, first.last + 1 - first.first), done
            expected = root_of(url, log, without(log, folded, partition, first))
            assert root(log) == root(log, full=True) == expected
            await_ruling(log, worker, partition)
            await_folded(log, worker)
            checked = client.verify()
            assert (checked.mismatches, checked.root, checked.unchecked) == ([], expected, [])
        # No worker runs: the next one reaches a batch that it never read.
        behind = log.offsets.ends([place := KafkaPartition(log.topics.observations, partition)])[place]
        append_batches(log, rng, 3)
        second = rot_batch(rotting, log.topics.observations, partition, behind)
        with worker_with_pages(url, tables) as (worker, page):
            found = await_damage(worker, partition)
            command = f"refold quarantine add {log.topics.observations}/{partition}/{second.first}"
            assert command in found
            metrics = page_of(f"{page}/metrics")
            assert f'refold_damaged_waiting{{log="{log.topics.prefix}",partition="{partition}"}} 1.0' in metrics
            assert not status_of(worker, partition)["caught_up"]
            assert status_of(worker, partition)["lag"] > 0
            await_true(lambda: status_of(worker, 1 - partition).get("lag") == 0)
            assert refold_command(*shlex.split(command)[1:], log=url).status == 0
            await_folded(log, worker)
            assert not status_of(worker, partition)["damage"]
            # The last batch of a partition: nothing follows it.
            append_batches(log, rng, 1)
            await_folded(log, worker)
        before = log.offsets.ends([place])[place]
        append_batches(log, rng, 1)
        last = rot_batch(rotting, log.topics.observations, partition, before)
        with worker_with_pages(url, tables) as (worker, page), refold.open(url) as client:
            await_damage(worker, partition)
            assert refold_command("quarantine", "add", f"observations/{partition}/{last.last}", log=url).status == 0
            await_true(lambda: status_of(worker, partition).get("caught_up", False))
            client.snapshot()
            assert root(log) == root(log, full=True)
            assert client.verify().mismatches == []
            append_batches(log, rng, 1)
            await_folded(log, worker)
            # Restored and with the ruling removed, its records count again.
            last.heal()
            assert refold_command("quarantine", "remove", f"observations/{partition}/{last.last}", log=url).status == 0
            await_folded(log, worker)
            assert client.verify().mismatches == []
        left = {(partition, each) for wound in (first, second) for each in range(wound.first, wound.last + 1)}
        rest = [
            log.registry.decode(raw.value)
            for each, raw in records_of(log, log.topics.observations)
            if (each, raw.offset) not in left
        ]
        assert root(log, full=True) == root_of(url, log, rest)


def test_worker_without_its_table_waits_at_a_damaged_batch(rotting: Kafka, url: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 3)
        with running(url, tmp_path) as worker:
            await_folded(log, worker)
        partition, raw = rng.choice(records_of(log, log.topics.observations))
        wound = rot_batch(rotting, log.topics.observations, partition, raw.offset)
        shutil.rmtree(tmp_path / str(partition))
        with running(url, tmp_path) as worker:
            assert "refold quarantine add" in await_damage(worker, partition)
            append_batches(log, rng, 1)
            await_true(lambda: status_of(worker, 1 - partition).get("caught_up", False))
            set_record_aside(log, "observations", partition, wound.first, NOW_MS, apply=True)
            await_folded(log, worker)
            assert not status_of(worker, partition)["damage"]
        assert root(log) == root(log, full=True)


def test_record_with_a_damaged_length_is_set_aside_with_the_rest_of_its_batch(
    rotting: Kafka, url: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an uncompressed batch Kafka's client returns neither a record nor an error there."""
    rng = random.Random(seed)
    compressing(monkeypatch, "none")
    tables = tmp_path / "tables"
    with opened(url, silent_s=SILENT_S) as log:
        log.register(THING)
        append_batches(log, rng, 3)
        with running(url, tables, stuck_s=SILENT_S) as worker:
            await_folded(log, worker)
        found = records_of(log, log.topics.observations)
        whole = root(log, full=True)
        partition, raw = rng.choice(found)
        wound = rot_length(rotting, log.topics.observations, partition, raw.offset)
        command = f"refold quarantine add {log.topics.observations}/{partition}/"
        with pytest.raises(DamagedRecord, match="the length of a record may be damaged") as refused:
            root(log, full=True)
        assert str(refused.value).endswith(f"{command}{wound.first} --log {log.url}")
        shutil.rmtree(tables / str(partition))
        with running(url, tables, stuck_s=SILENT_S) as worker:
            # An epoch may end within the batch: then a worker needs the rest of it, and names its start.
            needed = int(await_damage(worker, partition).partition(command)[2].split()[0])
            assert wound.first <= needed <= wound.last
            # The other partition continues meanwhile.
            append_batches(log, rng, 1)
            await_true(lambda: status_of(worker, 1 - partition).get("caught_up", False))
            for offset in sorted({needed, wound.first}, reverse=True):
                entry = set_record_aside(log, "observations", partition, offset, NOW_MS, apply=True)
                assert (entry.offset, entry.records) == (offset, wound.last + 1 - offset)
            await_folded(log, worker)
            assert not status_of(worker, partition)["damage"]
        later = records_of(log, log.topics.observations)
        expected = root_of(url, log, without(log, later, partition, wound), "later")
        assert root(log) == root(log, full=True) == expected
        wound.heal()
        taken = restore_record(log, "observations", partition, wound.last, NOW_MS, apply=True)
        assert (taken.offset, taken.is_aside) == (wound.first, False)
        again = [log.registry.decode(each.value) for _, each in records_of(log, log.topics.observations)]
        assert len(again) == len(later) + wound.last + 1 - wound.first
        assert root(log, full=True) == root_of(url, log, again, "whole") != whole


class _Store:
    """The states of a feed, as a sink has them."""

    def __init__(self) -> None:
        self.states: dict[str, EntityState] = {}
        self.position: Cut | None = None

    def stored(self, names: Collection[str]) -> dict[str, bytes]:
        return {name: packed(self.states[name]) for name in names if name in self.states}

    def follow(self, log: KafkaLog) -> None:
        """Take everything there is, a few changes at a time."""
        feed = Feed(log, self.stored, history=False, changes_max=5)
        found: Batch | Load | None = feed.first() if self.position is None else feed.next(self.position)
        while found is not None:
            if isinstance(found, Load):
                again = {name for name, each in self.states.items() if found.types is None or each.type in found.types}
                self.states = {name: each for name, each in self.states.items() if name not in again}
                self.states.update((each.entity, each) for each in found.states())
            else:
                self.states.update((each.entity, copy.deepcopy(each)) for each in found.states)
            self.position = found.cut
            found = feed.next(found.cut)

    def hashes(self) -> dict[str, bytes]:
        return {name: each.state_hash for name, each in self.states.items()}


def hashes(log: KafkaLog) -> dict[str, bytes]:
    """The state hash of every entity."""
    log.refresh()
    return {name: stored_hash(row) for name, row in rebuild(log, Points(log, 0).end(), parallel=False).rows()}


def verified(url: str) -> None:
    found = refold_command("verify", "--json", log=url)
    assert (found.json["mismatches"], found.status) == ([], 0), found


def test_damaged_batch_of_changes_is_skipped_once_set_aside(
    rotting: Kafka, url: str, tmp_path: Path, seed: int
) -> None:
    """The entities of the changes are unknown: verify and sinks work without them."""
    rng = random.Random(seed)
    early, late = _Store(), _Store()
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 2)
        with running(url, tmp_path) as worker:
            await_folded(log, worker)
            early.follow(log)
            late.follow(log)
            log.refresh()
            seen = {each: log.changes_end(each) for each in range(2)}
            append_batches(log, rng, 2)
            await_folded(log, worker)
            fresh = [each for each in records_of(log, log.topics.changes) if each[1].offset >= seen[each[0]]]
            whole = [(each, batch_of(rotting, log.topics.changes, each, raw.offset)) for each, raw in fresh]
            # A batch of several changes, as most are: a worker on a slow machine may emit a single one.
            partition, batch = rng.choice([each for each in whole if each[1].last > each[1].first])
            append_batches(log, rng, 1)
            await_folded(log, worker)
            wound = rot_batch(rotting, log.topics.changes, partition, batch.first)
            command = f"refold quarantine add {log.topics.changes}/{partition}/{wound.first}"
            refused = refold_command("tail", log=url)
            assert (refused.status, command in refused.err) == (2, True), refused
            checked = refold_command("verify", log=url)
            assert (checked.status, command in checked.out) == (1, True), checked
            with pytest.raises(DamagedRecord):
                early.follow(log)
            assert refold_command(*shlex.split(command)[1:], log=url).status == 0
            assert refold_command("tail", log=url).status == 0
            verified(url)
            early.follow(log)
            assert early.hashes() == hashes(log)
            append_batches(log, rng, 1)
            await_folded(log, worker)
            verified(url)
        for store in (early, late):
            store.follow(log)
            assert store.hashes() == hashes(log)
        # A worker's start reads the last change.
        log.refresh()
        _, last = max((each for each in records_of(log, log.topics.changes) if each[0] == partition),
                      key=lambda each: each[1].offset)  # fmt: skip
        again = rot_batch(rotting, log.topics.changes, partition, last.offset)
        with running(url, tmp_path) as worker:
            assert f"{log.topics.changes}/{partition}/{again.first}" in await_damage(worker, partition)
            assert refold_command("quarantine", "add", f"changes/{partition}/{last.offset}", log=url).status == 0
            await_true(lambda: status_of(worker, partition).get("state") == "folding", within_s=300)
            log.refresh()
            late.follow(log)
            append_batches(log, rng, 1)
            await_folded(log, worker)
        verified(url)
        for store in (early, late):
            store.follow(log)
            assert store.hashes() == hashes(log)
