"""What a worker finds at its start: its table or another one, its offsets or none, open transactions or none."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from refold.avro.errors import InputError, StorageError
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.rocks.database import Database
from refold.streams.worker.pending_commit import StoredPosition, read_stored
from refold_tests.folding import append, check_whole, fold_all, history, last_changes, running
from refold_tests.sample_types import versions
from refold_tests.waiting import await_true

pytestmark = pytest.mark.timeout(600)


def forget_offsets(log: KafkaLog) -> None:
    """Delete the group, and so its offsets, once it is empty: a broker may keep a member that left for a session."""
    admin = log.clients.admin()

    def is_deleted() -> bool:
        (done,) = admin.delete_consumer_groups([log.topics.group]).values()
        try:
            done.result(60)
        except KafkaException as failed:
            if failed.args[0].code() == KafkaError.NON_EMPTY_GROUP:
                return False
            raise
        return True

    await_true(is_deleted)


def put_stored(folder: Path, partition: int, **changed: object) -> None:
    """Change a table's metadata."""
    with Database.open(folder / str(partition), kind="table") as database:
        stored = read_stored(database)
        assert stored is not None
        write = database.batch()
        replace(stored, **changed).put(write)  # type: ignore[arg-type]
        database.write(write, sync=True)


def count_changes(log: KafkaLog) -> int:
    log.refresh()
    return sum(1 for partition in range(log.partitions) for _ in log.read_changes(partition, 0))


def test_empty_log_and_log_without_records_are_folded_from_nothing(log: KafkaLog, tmp_path: Path) -> None:
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, set())


def test_worker_continues_where_it_stopped(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    observations = history(random.Random(seed), 300)
    acknowledged = append(log, observations[:200])
    fold_all(log, tmp_path)
    acknowledged |= append(log, observations[200:])
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, acknowledged)
    before = count_changes(log)
    fold_all(log, tmp_path)
    assert count_changes(log) == before


def test_deleted_offsets_emit_nothing_again(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    observations = history(random.Random(seed), 300)
    acknowledged = append(log, observations[:200])
    fold_all(log, tmp_path)
    forget_offsets(log)
    shutil.rmtree(tmp_path / "0")  # that partition has neither a table nor an offset
    acknowledged |= append(log, observations[200:])
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, acknowledged)


def test_lost_folder_is_remade_and_emits_nothing_again(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    acknowledged = append(log, history(random.Random(seed), 300))
    fold_all(log, tmp_path / "one")
    before = last_changes(log), count_changes(log)
    fold_all(log, tmp_path / "other")
    assert (last_changes(log), count_changes(log)) == before
    check_whole(log, tmp_path / "other", acknowledged)


def test_lagging_table_catches_up_without_emitting(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    """As after a power cut, or with a copied disk."""
    observations = history(random.Random(seed), 300)
    acknowledged = append(log, observations[:100])
    fold_all(log, tmp_path / "now")
    shutil.copytree(tmp_path / "now", tmp_path / "then")
    for definition in list(versions(3))[1:]:
        log.register(definition)
        acknowledged |= append(log, observations[100:200])
        fold_all(log, tmp_path / "now")
    before = count_changes(log)
    fold_all(log, tmp_path / "then")
    assert count_changes(log) == before
    check_whole(log, tmp_path / "then", acknowledged, list(versions(3))[-1])


@pytest.mark.parametrize("lost", ["fold_version", "format", "path"])
def test_unusable_table_is_remade(log: KafkaLog, tmp_path: Path, seed: int, lost: str) -> None:
    acknowledged = append(log, history(random.Random(seed), 200))
    fold_all(log, tmp_path)
    if lost == "fold_version":
        put_stored(tmp_path, 1, fold_version=0)
    elif lost == "path":
        put_stored(tmp_path, 1, at=PartitionPoint(1, 7))
    else:
        with Database.open(tmp_path / "1", kind="table") as database:
            write = database.batch()
            write.delete("meta", b"position")
            database.write(write, sync=True)
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, acknowledged)


def test_damaged_table_is_remade(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    acknowledged = append(log, history(random.Random(seed), 200))
    fold_all(log, tmp_path)
    for path in (tmp_path / "0" / "db").glob("MANIFEST-*"):
        path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, acknowledged)


def test_table_of_another_log_or_past_the_logs_end_is_refused_by_name(log: KafkaLog, tmp_path: Path) -> None:
    fold_all(log, tmp_path)
    put_stored(tmp_path, 0, log_id=bytes(16))
    with running(log.url, tmp_path) as found:
        problem = found.failed()
    assert isinstance(problem, InputError)
    assert log.log_id.hex() in str(problem)
    put_stored(tmp_path, 0, log_id=log.log_id, at=PartitionPoint(5, 1))
    with running(log.url, tmp_path) as found:
        problem = found.failed()
    assert isinstance(problem, InputError)
    assert "the log ends at 0" in str(problem)


def test_offsets_past_the_logs_end_are_refused(log: KafkaLog, tmp_path: Path) -> None:
    """As for a log that lost its records with its brokers' disks."""
    at = PartitionPoint(9, 1)
    consumer = log.clients.reader(**{"group.id": log.topics.group})
    consumer.commit(offsets=[TopicPartition(log.topics.observations, 0, at.offset, at.metadata)], asynchronous=False)
    consumer.close()
    with running(log.url, tmp_path) as found:
        problem = found.failed()
    assert isinstance(problem, StorageError)
    assert "gone from the log" in str(problem)


@pytest.mark.faults
def test_open_and_aborted_transactions_at_the_ends_are_awaited_and_skipped(
    log: KafkaLog, tmp_path: Path, seed: int
) -> None:
    observations = history(random.Random(seed), 300)
    acknowledged = append(log, observations[:200])
    fold_all(log, tmp_path)
    short = {"transaction.timeout.ms": 4_000, "message.timeout.ms": 4_000}
    for number in range(3):
        for end in (Producer.abort_transaction, Producer.commit_transaction):
            producer = log.clients.producer(**{"transactional.id": f"{log.topics.prefix}.stray.{number}", **short})
            producer.init_transactions()
            producer.begin_transaction()
            for partition in range(log.partitions):
                if end is Producer.abort_transaction:
                    for topic in (log.topics.changes, log.topics.deadletters):
                        for _ in range(20):
                            producer.produce(topic, value=b"aborted", key=b"aborted", partition=partition)
            producer.flush()
            end(producer)
    left_open = log.clients.producer(
        **{
            "transactional.id": f"{log.topics.prefix}.open",
            "transaction.timeout.ms": 4_000,
            "message.timeout.ms": 4_000,
        }
    )
    left_open.init_transactions()
    left_open.begin_transaction()
    for partition in range(log.partitions):
        left_open.produce(log.topics.changes, value=b"open", partition=partition)
    left_open.flush()
    forget_offsets(log)
    acknowledged |= append(log, observations[200:])
    fold_all(log, tmp_path)
    check_whole(log, tmp_path, acknowledged)


def test_stored_position_round_trips(tmp_path: Path) -> None:
    stored = StoredPosition(b"l" * 16, 3, 8, PartitionPoint(5, 2, 77), 123, 4, 9, 6)
    with Database.create(tmp_path / "t", kind="table") as database:
        assert read_stored(database) is None
        write = database.batch()
        stored.put(write)
        database.write(write, sync=False)
        assert read_stored(database) == stored
