"""A log that lost records, or is not the tables' log: the error names the problem and the remedy."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from refold.avro.errors import CorruptionError, InputError, RefoldError
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.rocks.database import Database
from refold.streams.worker.pending_commit import read_stored
from refold.testing.kafka import Kafka
from refold_tests.brokers import started
from refold_tests.command import SOURCE, refold_command
from refold_tests.folding import (
    PATIENCE_S,
    append,
    check_whole,
    fold_all,
    history,
    last_changes,
    opened,
    running,
    url_of,
)
from refold_tests.sample_types import THING
from refold_tests.tree import ROOT

pytestmark = pytest.mark.timeout(600)


def refusal(url: str, folder: Path, *, is_standby: bool = False) -> RefoldError:
    """Return the error with which a worker ends at its start."""
    with running(url, folder, is_standby=is_standby) as found:
        problem = found.failed()
    assert isinstance(problem, RefoldError)
    return problem


def delete_records(log: KafkaLog, below: dict[int, int]) -> None:
    """Delete records, as retention or an operator would."""
    admin = log.clients.admin()
    places = [TopicPartition(log.topics.observations, number, offset) for number, offset in below.items()]
    for done in admin.delete_records(places).values():
        done.result(60)


def delete_topics(log: KafkaLog, *names: str) -> None:
    admin = log.clients.admin()
    for done in admin.delete_topics(list(names)).values():
        done.result(60)
    deadline = time.monotonic() + PATIENCE_S
    while set(names) & set(admin.list_topics(timeout=30).topics):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("is_standby", [False, True], ids=["", "standby"])
def test_table_reports_deleted_records_that_it_needs(
    log: KafkaLog, tmp_path: Path, seed: int, is_standby: bool
) -> None:
    observations = history(random.Random(seed), 300)
    append(log, observations[:100])
    fold_all(log, tmp_path / "now")
    shutil.copytree(tmp_path / "now", tmp_path / "then")
    append(log, observations[100:])
    fold_all(log, tmp_path / "now")
    log.refresh()
    delete_records(log, log.ends())
    for name in ("then", "new"):
        problem = refusal(log.url, tmp_path / name, is_standby=is_standby)
        assert isinstance(problem, CorruptionError)
        assert "deleted on the broker, or it lost them: restore" in str(problem)
    append(log, observations[:20])
    fold_all(log, tmp_path / "now", is_standby=is_standby)  # it has all that it needs


def test_recreated_log_is_another_log(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    observations = history(random.Random(seed), 100)
    append(log, observations)
    fold_all(log, tmp_path / "old")
    names = list(log.topics.needed)
    delete_topics(log, log.topics.observations)
    with pytest.raises(InputError, match=r"of an earlier log, whose .* or under this one after all topics"):
        KafkaLog(parse_url(log.url))
    delete_topics(log, *(name for name in names if name != log.topics.observations))
    with opened(f"{log.url}?partitions={log.partitions}") as anew:
        anew.register(THING)
        acknowledged = append(anew, observations[:50])
        problem = refusal(log.url, tmp_path / "old")
        assert isinstance(problem, InputError)
        assert f"the log here is {anew.log_id.hex()}; give this log's worker another data folder" in str(problem)
        fold_all(anew, tmp_path / "new")
        check_whole(anew, tmp_path / "new", acknowledged)


def test_another_partitions_table_is_refused(log: KafkaLog, tmp_path: Path) -> None:
    fold_all(log, tmp_path)
    (tmp_path / "0").rename(tmp_path / "2")
    (tmp_path / "1").rename(tmp_path / "0")
    (tmp_path / "2").rename(tmp_path / "1")
    problem = refusal(log.url, tmp_path)
    assert isinstance(problem, InputError)
    assert "the table of partition" in str(problem)
    assert "move it back, or remove it" in str(problem)


def test_table_whose_last_observation_is_missing_in_the_log_is_refused(
    log: KafkaLog, tmp_path: Path, seed: int
) -> None:
    """As for a log that lost its end and has grown since: here the table is changed instead."""
    append(log, history(random.Random(seed), 100))
    fold_all(log, tmp_path)
    with Database.open(tmp_path / "0", kind="table") as database:
        stored = read_stored(database)
        assert stored is not None
        assert stored.last is not None
        write = database.batch()
        replace(stored, last=(stored.last[0], bytes(32))).put(write)
        database.write(write, sync=True)
    for is_standby in (False, True):
        problem = refusal(log.url, tmp_path, is_standby=is_standby)
        assert isinstance(problem, InputError)
        assert "the log lost its end, and continued without it" in str(problem)


@pytest.mark.kafka
def test_broker_that_lost_the_end_of_its_disk(tmp_path: Path, seed: int) -> None:
    """Its file is truncated while it is down. The remaining records move to a new log, as the messages say."""
    observations = history(random.Random(seed), 200)
    with started(data=tmp_path / "kafka") as kafka:
        url = url_of(kafka.bootstrap, "cut", 1)
        with opened(url) as log:
            log.register(THING)
            for start in range(0, 200, 10):
                append(log, observations[start : start + 10])
            fold_all(log, tmp_path / "worker")
            end = log.ends()[0]
        cut_end(kafka, tmp_path / "kafka", "cut.observations-0")
        with opened(url) as log:
            left = log.ends()[0]
            assert 0 < left < end
            for name, is_standby in (("worker", False), ("worker", True), ("new", False)):
                problem = refusal(url, tmp_path / name, is_standby=is_standby)
                assert "gone from the log. Restore the brokers' data; or go on with what is left" in str(problem)
            while log.ends()[0] < end:
                append(log, observations[:10])
            assert "continued without it" in str(refusal(url, tmp_path / "worker"))
        move(url, url_of(kafka.bootstrap, "left", 1), tmp_path)


def move(origin: str, to: str, folder: Path) -> None:
    """By export and import; a worker folds the new log, and both rebuild to one root."""
    code = {"PYTHONPATH": os.pathsep.join((SOURCE, str(ROOT / "tests" / "support")))}
    for url, word in ((origin, "export"), (to, "import")):
        done = refold_command(word, folder / "left.jsonl", log=url, more=code)
        assert done.status == 0, done.err
    with opened(to) as log:
        fold_all(log, folder / "left")
        assert len(last_changes(log)) > 1
    roots = {refold_command("rebuild", "--full", "--json", log=url, more=code).json["root"] for url in (origin, to)}
    assert len(roots) == 1


def cut_end(kafka: Kafka, data: Path, partition: str) -> None:
    """Kill the broker, remove the last third of a partition's file, and start it again."""
    kafka.kill(1)
    (folder,) = data.rglob(partition)
    (file,) = folder.glob("*.log")
    for each in folder.glob("*.*index"):
        each.unlink()
    with file.open("r+b") as opened_file:
        opened_file.truncate(file.stat().st_size * 2 // 3)
    kafka.restart(1)
