"""Export, import and archives between Kafka and folders: the same ids and roots, and unchanged cuts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.errors import RefoldError
from refold.avro.ids import identify
from refold.avro.shipped import shipped_types
from refold.avro.times import millis_text
from refold.streams.client import Log
from refold.streams.exchange.archive_export import write_archive
from refold.streams.exchange.archive_import import Archive
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.import_files import IncomingFiles
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Intake
from refold.streams.log.kafka.deadletters import verdict_on
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.point import Points
from refold_tests.command import SOURCE, Done, refold_command
from refold_tests.kafka_topics import Broker, decide
from refold_tests.log_handles import PARTITIONS, mixed, put
from refold_tests.sample_types import THING, A, defined, document, said
from refold_tests.tree import ROOT

CHANGED = defined(document(last={"type": "long", "refold.reducer": "max"}))


@pytest.fixture
def url(broker: Broker) -> Callable[[str], str]:
    """Return the URL of a separate log for this test, by a name."""
    return lambda name: f"kafka://{broker.bootstrap}/{broker.prefix}.{name}?partitions={PARTITIONS}"


def command(*arguments: object, log: str) -> Done:
    """A command that finds the types' custom reducers, and succeeds."""
    path = os.pathsep.join((SOURCE, str(ROOT / "tests" / "support")))
    done = refold_command(*arguments, log=log, more={"PYTHONPATH": path})
    assert done.status == 0, done.err
    return done


def filled(url: str, seed: int) -> None:
    with refold.open(url) as log:
        put(log.port, mixed(seed))
        for number in range(3):
            log.observe("tool_config/acme", {"rate_limit": number}, source="tester")
        log.flush()


def facts(url: str) -> tuple[str, int]:
    with refold.open(url, read_only=True) as log:
        view = log.rebuild()
        return view.root, view.observations


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.avro"])
@pytest.mark.parametrize("way", ["out of Kafka", "into Kafka"])
def test_exports_give_the_same_ids_and_roots(
    url: Callable[[str], str], tmp_path: Path, seed: int, name: str, way: str
) -> None:
    places = [url("a"), f"file:{tmp_path / 'log'}?partitions=2"]
    origin, target = places if way == "out of Kafka" else reversed(places)
    filled(origin, seed)
    origin, target = (each.partition("?")[0] for each in (origin, target))
    told = command("export", tmp_path / name, "--json", log=origin).json
    command("import", tmp_path / name, log=target)
    assert facts(target) == facts(origin)
    assert told["observations"] == facts(origin)[1]


def test_log_is_read_once_for_an_import(
    url: Callable[[str], str], tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any number of imported observations, even without a worker's index."""
    read = refreshed = 0
    own_records, own_refresh = KafkaLog.read, KafkaLog.refresh

    def counted(self: KafkaLog, *given: Any) -> Iterator[Any]:
        nonlocal read
        for record in own_records(self, *given):
            read += 1
            yield record

    def refresh(self: KafkaLog) -> None:
        nonlocal refreshed
        refreshed += 1
        own_refresh(self)

    filled(url("a"), seed)
    lines, count = tmp_path / "lines.jsonl", facts(url("a"))[1]
    command("export", lines, log=url("a"))
    monkeypatch.setattr(KafkaLog, "read", counted)
    monkeypatch.setattr(KafkaLog, "refresh", refresh)
    for new in (count, 0):
        read = refreshed = 0
        with refold.open(url("b")) as log:
            incoming = IncomingFiles([ExchangeFile(lines)], TypeCatalog(log.port.registry, {}, shipped_types()))
            incoming.check(lambda digest: True)
            intake = Intake(log)
            incoming.record(log, intake)
        assert (intake.read, intake.new) == (count, new)
        assert read <= 2 * count
        assert refreshed < 10


def unsettled(broker: Broker, log: Log, rng: random.Random) -> Iterator[str]:
    """Make a history of records, verdicts, transactions, definitions and markers; gives points to ask for."""
    port = log.port
    assert isinstance(port, KafkaLog)
    observations = mixed(rng.randrange(1 << 30))
    place = KafkaPartition(port.topics.observations, port.partition_of(A))
    put(port, [said(A, 0)])
    for number, start in enumerate(range(0, len(observations), 40)):
        put(port, observations[start : start + 40])
        log.flush()
        kind = rng.choice(("bad", "aborted", "committed", "nothing"))
        if kind == "bad":
            offset = log.port.ends()[place.partition]
            broker.produce(place, [b"?"], key=A.encode())
            (raw,) = port.reading.records(place, offset, offset + 1)
            decide(broker, port.topics, place, offset + 1, [verdict_on(place.partition, raw, "undecodable", "?")])
        elif kind != "nothing":
            version = port.registry.newest(THING.name)
            said_here = said(A, 500 + number)
            end = "abort" if kind == "aborted" else "commit"
            broker.transaction(place, [version.codec.encode_observation(said_here)], end=end, key=A.encode())
        port.refresh()
        if number == 2:
            broker.produce(KafkaPartition(port.topics.schemas, 0), [b"a stranger's"])
            log.register(CHANGED)
        log.mark(f"m{number}")
        yield f"@m{number}"
        yield str(log.point().cut)
        ends = port.ends()
        yield "offset:" + ",".join(f"{each}={rng.randrange(end + 1)}" for each, end in ends.items())


def answers(log: Log, whens: list[str]) -> list[Any]:
    """Return a log's answer at every point: its cut and root, or that there is none."""
    found: list[Any] = []
    for when in whens:
        try:
            view = log.rebuild(when, parallel=False)
            state = log.state(A, when)
            found.append((str(view.cut), view.root, view.observations, state.state_hash, state.version))
        except RefoldError as error:
            found.append(type(error))
    rows = [log.history(A), log.diff("@m0", "@m2"), log.diff("@m1", "now")]
    return [*found, rows, [each.cut for each in log.port.markers()], list(log.port.deadletters())]


def test_archive_of_a_kafka_log_answers_every_cut_the_same(
    broker: Broker, url: Callable[[str], str], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with refold.open(url("a")) as log:
        whens = list(unsettled(broker, log, rng))
        times = {
            record.recorded_at
            for each, end in log.port.ends().items()
            for record in log.port.read_with_holes(each, 0, end)
        }
        whens += [millis_text(time) for time in rng.sample(sorted(times), min(12, len(times)))]
        expected = answers(log, whens)
        now_ms = max(times) + 60_000
        with log.port.frozen() as port, (tmp_path / "log.avro").open("wb") as file:
            end = write_archive(file, port, Points(port, now_ms).end(), now_ms)
        assert end.observations == sum(log.port.ends().values())
        ids = {each: [record.id for record in log.port.read(each, 0, n)] for each, n in log.port.ends().items()}
        log_id = log.port.log_id
    Archive(ExchangeFile(tmp_path / "log.avro")).restore(tmp_path / "log")
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        assert log.port.log_id == log_id
        assert answers(log, whens) == expected
        assert {each: [r.id for r in log.port.read(each, 0, n)] for each, n in log.port.ends().items()} == ids
        assert log.verify().ok, log.verify().mismatches
        assert all(log.port.find(identify(each)) is not None for each in (said(A, 0),))
        with log.port.frozen() as port, (tmp_path / "again.avro").open("wb") as file:
            write_archive(file, port, Points(port, now_ms).end(), now_ms)
    assert (tmp_path / "again.avro").read_bytes() == (tmp_path / "log.avro").read_bytes()
