"""Standbys: tables that follow other workers' folds, and are taken over with little left to read."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState

from refold.avro.errors import InputError, LockedError
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.url import parse_url
from refold.streams.rocks.families import Family, Memory
from refold.streams.worker.data_folder import locked_folder
from refold.streams.worker.pending_commit import StoredPosition, read_stored
from refold.streams.worker.standby import StandbyTables
from refold.streams.worker.start import Starter
from refold_tests.brokers import SharedKafka, started
from refold_tests.child import Child
from refold_tests.folding import (
    INDEXES,
    PATIENCE_S,
    Running,
    append,
    await_folded,
    check_whole,
    drain,
    fold_all,
    history,
    last_changes,
    opened,
    running,
    tables,
    url_of,
    worker,
)
from refold_tests.kill_points import MOMENTS
from refold_tests.sample_types import THING, versions

pytestmark = pytest.mark.timeout(900)
PARTITIONS = 4


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


@contextmanager
def following(url: str, folder: Path, timeout_s: float = 30.0) -> Iterator[StandbyTables]:
    """Standbys of all partitions, without a worker around them."""
    with closing(KafkaLog(parse_url(url), timeout_s=timeout_s)) as log:
        found = StandbyTables(log, Starter(log, folder, Memory(log.partitions)))
        try:
            found.warm(lambda: False)
            yield found
        finally:
            found.close()
        found.check()


def await_true(holds: Callable[[], bool], *workers: Child | Running) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, [each.service.status() for each in workers if isinstance(each, Running)]
        for each in workers:
            if isinstance(each, Running):
                assert each.problem is None, each.problem
            else:
                assert each.process.poll() is None, "a worker ended"
        time.sleep(0.05)


def is_level(log: KafkaLog, standbys: StandbyTables) -> bool:
    """Return whether every table is at its partition's end, if everything is decided."""
    standbys.check()
    return {number: each["offset"] for number, each in standbys.status().items()} == log.ends()


def contents(
    folder: Path, partitions: int
) -> dict[int, tuple[StoredPosition | None, dict[Family, list[tuple[bytes, bytes]]]]]:
    """Return the position and the content of each table of a folder."""
    found = {}
    for number, database in tables(folder, partitions).items():
        with database:
            found[number] = (read_stored(database), {each: list(database.scan(each)) for each in INDEXES})
    return found


def all_ends(log: KafkaLog, *, committed: bool = False) -> dict[KafkaPartition, int]:
    """The ends of every partition of every topic, including uncommitted records unless `committed`."""
    admin = log.clients.admin()
    topics = admin.list_topics(timeout=30).topics
    mine = [name for name in topics if name.startswith(f"{log.topics.prefix}.")]
    assert len(mine) == 7
    places = [KafkaPartition(name, number) for name in mine for number in topics[name].partitions]
    return log.offsets.ends(places, committed=committed)


def is_empty(log: KafkaLog) -> bool:
    """Return whether the group has no member: a broker may keep one that left for a moment."""
    admin = log.clients.admin()
    (described,) = admin.describe_consumer_groups([log.topics.group]).values()
    return bool(described.result().state == ConsumerGroupState.EMPTY)


def spoil(log: KafkaLog) -> None:
    """A record in every partition that gets a verdict."""
    producer = log.clients.producer()
    for partition in range(log.partitions):
        producer.produce(log.topics.observations, key=b"any", value=b"thing", partition=partition)
    assert producer.flush(60) == 0


def states(each: Running) -> list[object]:
    """Return the role that a worker reports for each partition."""
    return [found["state"] for _, found in sorted(each.service.status().items())]


def is_warm(log: KafkaLog, each: Running, owned: int) -> bool:
    """Return whether it folds this many partitions, has the others as standbys, and its tables are complete."""
    status = each.service.status()
    return (
        states(each).count("folding") == owned
        and states(each).count("standby") == log.partitions - owned
        and all(found["offset"] == log.ends()[number] for number, found in status.items())
    )


def test_standby_equals_the_owner_and_writes_nothing(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    """Append records, some with verdicts, and register definitions; then nothing more happens."""
    observations = history(random.Random(seed), 300)
    acknowledged = append(log, observations[:100])
    definitions = list(versions(3))[1:]
    with running(log.url, tmp_path / "owner") as owner, following(log.url, tmp_path / "standby") as standbys:
        for definition, some in zip(definitions, (observations[100:200], observations[200:]), strict=True):
            await_folded(log, owner)
            log.register(definition)
            acknowledged |= append(log, some)
            spoil(log)
        await_folded(log, owner)
        await_true(lambda: all(each["caught_up"] for each in owner.service.status().values()), owner)
        owner.drain()
        log.refresh()
        # Brokers write the end of a transaction after they have confirmed it.
        await_true(lambda: all_ends(log, committed=True) == all_ends(log))
        before = all_ends(log)
        await_true(lambda: is_level(log, standbys))
    assert all_ends(log) == before
    await_true(lambda: is_empty(log))
    owned, followed = contents(tmp_path / "owner", PARTITIONS), contents(tmp_path / "standby", PARTITIONS)
    for number, (stored, rows) in owned.items():
        assert stored is not None
        assert followed[number] == (replace(stored, deadletters=0), rows)
    fold_all(log, tmp_path / "standby")
    check_whole(log, tmp_path / "standby", acknowledged, definitions[-1])
    assert contents(tmp_path / "standby", PARTITIONS) == owned


def test_standby_takes_over_with_little_to_read_and_gives_back(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int
) -> None:
    observations = history(random.Random(seed), 500)
    killed = worker(child, log.url, tmp_path / "a", "a", is_standby=True)
    acknowledged = append(log, observations[:400])
    with running(log.url, tmp_path / "b", is_standby=True) as standby:
        await_folded(log, killed, standby)
        await_true(lambda: is_warm(log, standby, PARTITIONS // 2), killed, standby)
        theirs = [number for number, each in standby.service.status().items() if each["state"] == "standby"]
        acknowledged |= append(log, observations[400:420])
        killed.kill()
        await_folded(log, standby)
        await_true(lambda: states(standby) == ["folding"] * PARTITIONS, standby)
        status = standby.service.status()
        assert sum(status[number]["followed"] for number in theirs) <= 20
        check_chain(log)

        acknowledged |= append(log, observations[420:460])
        again = worker(child, log.url, tmp_path / "a", "a", is_standby=True)
        await_folded(log, again, standby)
        await_true(lambda: is_warm(log, standby, PARTITIONS // 2), again, standby)
        acknowledged |= append(log, observations[460:])
        await_folded(log, again, standby)
        await_true(lambda: is_warm(log, standby, PARTITIONS // 2), again, standby)
        drain(again)
    for name in ("a", "b"):
        fold_all(log, tmp_path / name)
        check_whole(log, tmp_path / name, acknowledged)


def test_offsets_in_an_open_transaction_are_not_followed_and_block_nothing(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int
) -> None:
    """The owner stops with its offsets sent and nothing committed."""
    observations = history(random.Random(seed), 200)
    acknowledged = append(log, observations[:100])
    fold_all(log, tmp_path / "a")
    log.refresh()
    decided = log.ends()
    stopped = worker(child, log.url, tmp_path / "a", "a", moment="sent", count=1, sent=signal.SIGSTOP)
    acknowledged |= append(log, observations[100:])
    await_true(lambda: stopped.is_stopped)
    with following(log.url, tmp_path / "b") as standbys:
        found = {number: each["offset"] for number, each in standbys.status().items()}
    assert found == decided
    stopped.kill()
    fold_all(log, tmp_path / "b")
    check_whole(log, tmp_path / "b", acknowledged)


@pytest.mark.kafka
def test_unavailable_broker_is_awaited(tmp_path: Path, seed: int) -> None:
    observations = history(random.Random(seed), 100)
    with started() as kafka:
        url = url_of(kafka.bootstrap, "away", 1)
        with opened(url) as log:
            log.register(THING)
            append(log, observations[:50])
            fold_all(log, tmp_path / "a")
        with following(url, tmp_path / "b", timeout_s=2) as standbys:
            kafka.kill(1)
            await_true(lambda: standbys.status()[0]["waits_for"] != "")
            standbys.check()
            kafka.restart(1)
            with opened(url) as log:
                append(log, observations[50:])
                fold_all(log, tmp_path / "a")
                log.refresh()
                await_true(lambda: is_level(log, standbys))
            assert standbys.status()[0]["waits_for"] == ""


@pytest.mark.faults
def test_standbys_join_leave_and_die_while_definitions_arrive(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = max(4, fault_rounds // 2)
    definitions = list(versions(rounds))
    observations = history(rng, 20 * rounds, entities=40)
    rest = iter(observations)
    acknowledged: set[bytes] = set()
    alive: dict[str, Child] = {}
    ending: dict[str, Child] = {}
    for number in range(rounds):
        name = rng.choice("abc")
        if name not in alive:
            if name in ending:
                ending.pop(name).end()
            moment = rng.choice(["", *MOMENTS])
            alive[name] = worker(child, log.url, tmp_path / name, name, static=rng.random() < 0.5, is_standby=True,
                                 moment=moment, count=rng.randrange(1, 30))  # fmt: skip
        elif rng.random() < 0.3:
            ending[name] = alive.pop(name)
            ending[name].signal(signal.SIGTERM)
        else:
            alive.pop(name).kill()
        if rng.random() < 0.5:
            log.register(definitions[number])
        for _ in range(4):
            acknowledged |= append(log, [*islice(rest, 5)])
            time.sleep(rng.random() * 0.5)
        if rng.random() < 0.3:
            spoil(log)
        alive = {each: running for each, running in alive.items() if running.process.poll() is None}
    for each in alive.values():
        each.signal(signal.SIGTERM)
    for each in (*alive.values(), *ending.values()):
        each.end()
    acknowledged |= append(log, rest)
    log.refresh()
    newest = log.registry.newest(THING.name).definition
    for name in "abc":
        fold_all(log, tmp_path / name, is_standby=rng.random() < 0.5)
        check_whole(log, tmp_path / name, acknowledged, newest)


def test_folder_with_standbys_belongs_to_one_worker(log: KafkaLog, tmp_path: Path) -> None:
    with locked_folder(tmp_path, alone=False), running(log.url, tmp_path) as beside:
        await_true(lambda: len(beside.service.status()) == PARTITIONS, beside)
        with running(log.url, tmp_path, is_standby=True) as refused:
            problem = refused.failed()
        assert isinstance(problem, LockedError)
        assert "--data" in str(problem)
    with locked_folder(tmp_path, alone=True), running(log.url, tmp_path) as refused:
        assert isinstance(refused.failed(), LockedError)


def test_standby_of_another_log_is_refused_by_name(log: KafkaLog, kafka: SharedKafka, tmp_path: Path) -> None:
    """The folder of a log on the same cluster, with another prefix."""
    append(log, history(random.Random(0), 50))
    fold_all(log, tmp_path)
    with opened(url_of(kafka.bootstrap, f"{log.topics.prefix}-other", PARTITIONS)) as other:
        other.register(THING)
        append(other, history(random.Random(0), 50))
        fold_all(other, tmp_path / "own")
        with running(other.url, tmp_path, is_standby=True) as refused:
            problem = refused.failed()
    assert isinstance(problem, InputError)
    assert log.log_id.hex() in str(problem)


def check_chain(log: KafkaLog) -> None:
    """Check that the changes so far are a chain without gaps or repeats."""
    log.refresh()
    last_changes(log)
