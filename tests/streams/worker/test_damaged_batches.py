"""Compressed batches that a broker's disk damaged, under real workers: Kafka's client gives none of their records, for
ever. Who needs one says so, and what is set aside is as if the whole batch had never been recorded."""

from __future__ import annotations

import copy
import random
import shlex
import shutil
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.errors import CorruptionError, DamagedRecord, InputError
from refold.avro.observation import Observation
from refold.reducers.entity import stored_hash
from refold.sinks.feed import Feed
from refold.sinks.port import Batch, EntityState, Load
from refold.sinks.states import packed
from refold.streams.cut import Cut
from refold.streams.feed import ChangeReader
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.committed import CommittedOffsets
from refold.streams.log.kafka.fold_position import is_emitted
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import TopicPlace
from refold.streams.log.kafka.quarantine import set_record_aside, take_record_back
from refold.streams.log.kafka.url import parse_url
from refold.streams.point import Points
from refold.streams.rebuild.run import rebuild
from refold.testing.kafka import Kafka
from refold_tests.asked import asked_worker
from refold_tests.bitrot import BatchRot, rot_batch
from refold_tests.brokers import started
from refold_tests.command import refold_command
from refold_tests.folding import Running, append, await_folded, history, opened, running, url_of
from refold_tests.sample_types import THING
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true
from refold_tests.worker_process import starting

pytestmark = pytest.mark.timeout(600)

NOW_MS = 1_700_000_000_000
AGENTS_S = 600.0
"""Agents may have to come into their group several times."""


@pytest.fixture(scope="module")
def rotting() -> Iterator[Kafka]:
    """A broker whose files tests damage."""
    with started() as kafka:
        yield kafka


@pytest.fixture
def url(rotting: Kafka, request: pytest.FixtureRequest) -> str:
    return url_of(rotting.bootstrap, f"log{abs(hash(request.node.nodeid)) % 10**8}")


def compressing(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Have producers of this process compress by a codec."""
    made = Clients.producer
    monkeypatch.setattr(
        Clients, "producer", lambda clients, **more: made(clients, **{**more, "compression.type": codec})
    )


def records_of(log: KafkaLog, topic: str) -> list[tuple[int, Any]]:
    """(partition, record) of a topic."""
    places = [TopicPlace(topic, partition) for partition in range(log.partitions)]
    ends = log.offsets.ends(places)
    return [(place.partition, raw) for place in places for raw in log.reading.records(place, 0, ends[place])]


def append_batches(log: KafkaLog, rng: random.Random, batches: int) -> None:
    """Observations in batches of several records for each partition."""
    for _ in range(batches):
        append(log, history(rng, 30))


def root(log: KafkaLog, *, full: bool = False) -> str:
    log.refresh()
    return rebuild(log, Points(log, 0).end(), full=full, parallel=False).root().hex()


def root_of(url: str, log: KafkaLog, observations: list[Observation]) -> str:
    """The root of a log that holds these observations and no others."""
    prefix = f"{log.topics.prefix}other"
    with opened(url.replace(f"/{log.topics.prefix}?", f"/{prefix}?")) as other:
        other.register(THING)
        append(other, observations)
        return root(other, full=True)


def without(log: KafkaLog, found: list[tuple[int, Any]], partition: int, wound: BatchRot) -> list[Observation]:
    """What was recorded, but for a batch of a partition."""
    return [
        log.registry.decode(raw.value)
        for each, raw in found
        if each != partition or not wound.first <= raw.offset <= wound.last
    ]


def status_of(worker: Running, partition: int) -> dict[str, Any]:
    return dict(worker.service.status().get(partition, {}))


def await_damage(worker: Running, partition: int) -> str:
    """What a worker says that a partition waits at."""
    await_true(lambda: bool(status_of(worker, partition).get("damage")), "the worker does not say so")
    worker.look()
    return str(status_of(worker, partition)["damage"])


def await_ruling(log: KafkaLog, worker: Running, partition: int) -> None:
    """Return when a worker folds a partition by what is set aside now: before, its table is that of before."""
    log.refresh()
    now = partial(status_of, worker, partition)
    await_true(lambda: now().get("state") == "folding" and now().get("schemas", 0) >= len(log.registry))


def page_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize(("codec", "keeps_crc"), [("lz4", False), ("zstd", True), ("gzip", False), ("snappy", True)])
def test_a_batch_is_named_set_aside_whole_and_taken_back(
    rotting: Kafka, url: str, seed: int, monkeypatch: pytest.MonkeyPatch, codec: str, keeps_crc: bool
) -> None:
    """No worker ever ran: what is not decided yet cannot be read either. With and without `check.crcs`."""
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
        place = TopicPlace(log.topics.observations, partition)
        end = log.offsets.ends([place])[place]
        with pytest.raises(DamagedRecord, match="its batch cannot be read") as refused:
            root(log, full=True)
        damaged = refused.value
        assert (damaged.topic, damaged.partition, damaged.offset) == ("observations", partition, wound.first)
        command = f"refold quarantine add {log.topics.observations}/{partition}/{wound.first} --log {log.url}"
        assert str(damaged).endswith(command)
        # Whichever of its offsets is asked for, its bounds are the same; what is around it can be read.
        for offset in {wound.first, rng.randint(wound.first, wound.last), wound.last}:
            batch = log.reading.unreadable_at(place, offset, end)
            assert batch is not None
            assert (batch.first, batch.end) == (wound.first, wound.last + 1)
        for offset in {max(0, wound.first - 1), min(end - 1, wound.last + 1)} - {wound.first, wound.last}:
            assert log.reading.unreadable_at(place, offset, end) is None
        with closing(KafkaLog(parse_url(url), config={"check.crcs": "true"})) as checking:
            with pytest.raises(DamagedRecord, match="its batch cannot be read") as refused:
                root(checking, full=True)
            assert refused.value.offset == wound.first
            entry = set_record_aside(checking, "observations", partition, rng.randint(wound.first, wound.last), NOW_MS,
                                     apply=True)  # fmt: skip
            assert (entry.offset, entry.records, entry.is_aside) == (wound.first, wound.last + 1 - wound.first, True)
            assert root(checking, full=True) == expected
        assert root(log, full=True) == expected
        # The broker cannot unpack it either, to look for a time.
        times = {each.offset: each.timestamp for at, each in found if at == partition}
        left = {each: time for each, time in times.items() if not wound.first <= each <= wound.last}
        after = [each for each, time in left.items() if time >= times[wound.first]]
        with closing(KafkaLog(parse_url(url))) as fresh:
            assert fresh.first_after(partition, times[wound.first] - 1) == min(after, default=end)
            before = [time for each, time in left.items() if each < wound.first]
            assert fresh.recorded_below(partition, wound.last + 1) == max(before, default=0)
        with pytest.raises(InputError, match="it is set aside"):
            set_record_aside(log, "observations", partition, wound.last, NOW_MS, apply=True)
        taken = take_record_back(log, "observations", partition, wound.last, NOW_MS, apply=True)
        assert (taken.offset, taken.records, taken.is_aside) == (wound.first, entry.records, False)
        with pytest.raises(DamagedRecord):
            root(log)
        wound.heal()
        assert root(log, full=True) == whole


def test_a_worker_waits_at_batches_and_goes_on_after_quarantine(
    rotting: Kafka, url: str, tmp_path: Path, seed: int
) -> None:
    """One that the worker folded before it was damaged, one that it comes to, and one at the end of the log."""
    rng = random.Random(seed)
    tables = tmp_path / "tables"
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 3)
        with asked_worker(url, tables) as (worker, page), refold.open(url) as client:
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
        # No worker runs: the next one comes to a batch that it never read.
        behind = log.offsets.ends([place := TopicPlace(log.topics.observations, partition)])[place]
        append_batches(log, rng, 3)
        second = rot_batch(rotting, log.topics.observations, partition, behind)
        with asked_worker(url, tables) as (worker, page):
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
            # The last batch of a partition: behind it nothing comes.
            append_batches(log, rng, 1)
            await_folded(log, worker)
        before = log.offsets.ends([place])[place]
        append_batches(log, rng, 1)
        last = rot_batch(rotting, log.topics.observations, partition, before)
        with asked_worker(url, tables) as (worker, page), refold.open(url) as client:
            await_damage(worker, partition)
            assert refold_command("quarantine", "add", f"observations/{partition}/{last.last}", log=url).status == 0
            await_true(lambda: status_of(worker, partition).get("caught_up", False))
            client.snapshot()
            assert root(log) == root(log, full=True)
            assert client.verify().mismatches == []
            append_batches(log, rng, 1)
            await_folded(log, worker)
            # Restored and taken back, its records count again.
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


def test_a_worker_without_its_table_waits_at_a_batch(rotting: Kafka, url: str, tmp_path: Path, seed: int) -> None:
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


class _Store:
    """The states that a feed says, as a sink holds them."""

    def __init__(self) -> None:
        self.states: dict[str, EntityState] = {}
        self.position: Cut | None = None

    def held(self, names: Collection[str]) -> dict[str, bytes]:
        return {name: packed(self.states[name]) for name in names if name in self.states}

    def follow(self, log: KafkaLog) -> None:
        """Take everything there is, a few changes at a time."""
        feed = Feed(log, self.held, history=False, changes_max=5)
        found: Batch | Load | None = feed.first() if self.position is None else feed.next(self.position)
        while found is not None:
            if isinstance(found, Load):
                again = {name for name, each in self.states.items() if found.types is None or each.type in found.types}
                self.states = {name: each for name, each in self.states.items() if name not in again}
                self.states.update((each.entity, each) for each in found.entities())
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


def test_a_batch_of_changes_is_passed_over_once_it_is_set_aside(
    rotting: Kafka, url: str, tmp_path: Path, seed: int
) -> None:
    """Nobody knows whose changes they were: verify and sinks do without."""
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
            partition, raw = rng.choice(fresh)
            append_batches(log, rng, 1)
            await_folded(log, worker)
            wound = rot_batch(rotting, log.topics.changes, partition, raw.offset)
            assert wound.last > wound.first
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


AGENT = """
from pathlib import Path

from refold.streams.worker.agents import changes_agent


@changes_agent()
def sees(change, log):
    with Path(__file__).with_suffix(".txt").open("a", encoding="utf-8") as file:
        file.write(f"{change.entity} v{change.to_version}\\n")
"""


@pytest.mark.timeout(1800)
def test_agents_name_a_batch_of_changes_and_pass_over_it_once_it_is_set_aside(
    rotting: Kafka, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """They are given every other change: also those that came in one fetch with the batch, of any partition."""
    rng = random.Random(seed)
    module = tmp_path / "seeing.py"
    module.write_text(AGENT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'tests' / 'support'}")
    with opened(url) as log:
        log.register(THING)
        partition, ends = rng.randrange(2), []
        with running(url, tmp_path / "w") as worker:
            for _ in range(4):
                append_batches(log, rng, 1)
                await_folded(log, worker)
                log.refresh()
                ends.append(log.changes_end(partition))
        reader = ChangeReader(log)
        changes = {
            (partition, raw.offset): reader.decode(raw.value)
            for partition, raw in records_of(log, log.topics.changes)
            if is_emitted(raw)
        }
        offsets = [offset for each, offset in changes if each == partition]
        third = min(offset for offset in offsets if offset >= ends[1])
        first, middle = (rot_batch(rotting, log.topics.changes, partition, each) for each in (offsets[0], third))
        assert first.last < ends[0] <= ends[1] <= middle.first <= middle.last < ends[2] <= offsets[-1]
        with starting(url, tmp_path) as start:
            begin = partial(start, "w", "--agents", "seeing")
            for wound in (first, middle):
                status, last = begin().ended(AGENTS_S)
                command = f"refold quarantine add {log.topics.changes}/{partition}/{wound.first}"
                assert (status, f"{command} --log {log.url}" in last) == (2, True), last
                assert "its batch cannot be read" in last
                assert refold_command(*shlex.split(command)[1:], log=url).status == 0
            left = {
                f"{each.entity} v{each.to_version}"
                for (at, offset), each in changes.items()
                if at != partition or not any(wound.first <= offset <= wound.last for wound in (first, middle))
            }
            last_of = {each: max(offset for at, offset in changes if at == each) for each in range(2)}
            group = f"{log.topics.group}.agents.seeing"
            seen = module.with_suffix(".txt")
            again = begin()
            await_true(
                lambda: seen.exists() and {*seen.read_text(encoding="utf-8").splitlines()} >= left, within_s=AGENTS_S
            )
            # What is acknowledged is past the batches: they do not come again.
            with CommittedOffsets(log.clients, group, log.topics.changes, stable=False) as asked:
                await_true(
                    lambda: all((at.offset or 0) > last_of[p] for p, at in asked.ask(last_of, 60).items()),
                    within_s=AGENTS_S,
                )
            assert again.stop()[0] == 0
            assert {*seen.read_text(encoding="utf-8").splitlines()} == left
            seen.unlink()
            append_batches(log, rng, 1)
            later = begin()
            await_true(seen.exists, within_s=AGENTS_S)
            assert later.stop()[0] == 0
            assert not {*seen.read_text(encoding="utf-8").splitlines()} & left


def test_a_batch_of_another_topic_is_named(rotting: Kafka, url: str, tmp_path: Path, seed: int) -> None:
    """What is never set aside is an error at once, and no reader waits."""
    with opened(url) as log:
        log.register(THING)
    wound = rot_batch(rotting, f"{parse_url(url).prefix}.schemas", 0, 0)
    with pytest.raises(CorruptionError, match=r"\.schemas 0=0: the batch is damaged") as refused, opened(url):
        pass
    assert not isinstance(refused.value, DamagedRecord)
    wound.heal()
    with opened(url) as log:
        assert log.registry.newest(THING.name) is not None
