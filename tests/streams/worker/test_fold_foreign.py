"""Records that refold did not write, in every topic of a log: every reader, command and worker skips them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import refold
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.port import Position
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.brokers import SharedKafka
from refold_tests.command import refold_command
from refold_tests.folding import append, check_whole, fold_all, history, opened, url_of
from refold_tests.junk import NAMED, junk, write_junk
from refold_tests.kafka_topics import Broker
from refold_tests.sample_types import OTHER, THING, A, said
from refold_tests.worker_pages import worker_with_pages

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def url(kafka: SharedKafka, prefix: str) -> str:
    return url_of(kafka.bootstrap, prefix)


def test_junk_in_every_topic_ends_no_reader_or_worker_and_is_counted(url: str, tmp_path: Path, seed: int) -> None:
    """Before and after the valid records of each topic, with a running worker, and for new readers."""
    often = SnapshotSettings(epoch_records=1)
    rng = random.Random(seed)
    tables, export = tmp_path / "tables", tmp_path / "export.jsonl"
    with opened(url) as log:
        counts = write_junk(log)
        log.register(THING)
        acknowledged = append(log, history(rng, 60))
        with worker_with_pages(url, tables, snapshots=often, epoch_every_ms=0), refold.open(url) as client:
            client.snapshot()
            client.mark(NAMED)
            marked = client.rebuild(f"@{NAMED}").root
            for topic, records in write_junk(log).items():
                counts[topic] += records
            log.register(OTHER)
            acknowledged |= append(log, history(rng, 60))
            epochs = client.snapshot(pin=True)
            acknowledged |= append(log, [said(A, 10_000)])
            client.port.await_folded()  # type: ignore[attr-defined]  # a log on Kafka has it
            whole = client.verify()
            assert (whole.mismatches, whole.unchecked) == ([], [])
            assert {each.topic: each.records for each in whole.foreign} == counts
            assert whole.root == client.rebuild(full=True).root == client.rebuild().root
            assert client.rebuild(f"@{NAMED}").root == client.rebuild(f"@{NAMED}", full=True).root == marked
            assert [each.name for each in client.port.markers()] == [NAMED]
            assert {each.epoch for each in client.snapshots() if each.pinned_at is not None} >= {*epochs}
            assert not [each.problems for each in client.collect() if each.problems]
            assert client.recover()
        for topic, records in write_junk(log).items():
            counts[topic] += records
        for words in (
            ("state", A), ("history", A), ("rebuild",), ("verify",), ("doctor",), ("types",), ("markers",),
            ("deadletters", "list"), ("rebuild", "--at", f"@{NAMED}"), ("snapshot", "--list"), ("why", f"{A}.last"),
            ("diff", f"@{NAMED}", "now", A),
        ):  # fmt: skip
            done = refold_command(*words, "--json", log=url)
            assert done.status == (1 if words[0] == "diff" else 0), (words, done)  # 1: they differ
            if words == ("doctor",):
                found = [each["finding"] for each in done.json["findings"] if each["subject"].startswith("foreign")]
                assert len(found) == len(counts)
                assert all(f": {records:,} records not written by refold, the first at 0=" in "\n".join(found)
                           for records in counts.values())  # fmt: skip
        assert refold_command("export", export, log=url).status == 0
        assert len(export.read_text(encoding="utf-8").splitlines()) >= len(acknowledged)
        assert refold_command("observe", A, "last=7", log=url).status == 0
        assert refold_command("verify", log=url).status == 0
        acknowledged |= append(log, history(rng, 20))
        fold_all(log, tables)
        check_whole(log, tables, acknowledged)


@pytest.mark.parametrize("is_first", [True, False])
def test_junk_in_schemas_gives_every_reader_the_same_registry(kafka: SharedKafka, prefix: str, is_first: bool) -> None:
    """Also before the first definition: it cannot choose the log's id space."""
    broker = Broker(kafka.bootstrap, prefix)
    with opened(url_of(kafka.bootstrap, prefix)) as log:
        place = Position(0, 0)
        if not is_first:
            log.register(THING)
            place = Position(0, 1)
        producer = log.clients.producer(**{"message.max.bytes": 4 << 20})
        records = junk(log)[log.topics.schemas]
        for each in records:
            producer.produce(log.topics.schemas, each.value, each.key, 0, headers=each.headers)
        assert producer.flush(60) == 0
        log.register(THING)
        log.register(OTHER)
        (found,) = log.foreign()
        assert found == (log.topics.schemas, len(records), place)
        with opened(url_of(kafka.bootstrap, prefix)) as other:
            assert (other.registry.digest(), [*map(type, other.registry.entries())]) == (
                log.registry.digest(), [*map(type, log.registry.entries())]
            )  # fmt: skip
            assert not other.schemas.is_bound
        append(log, [said(A, 1)])
        assert broker.prefix == prefix
        assert _root(log) == _root(log)


def _root(log: KafkaLog) -> bytes:
    return rebuild(log, Points(log, 0).end(), parallel=False).root()
