"""Batches of the other topics damaged on a broker's disk: data that can be rebuilt, or whose loss is named, is
skipped; data on which answers depend is named, and set aside by an administrator."""

from __future__ import annotations

import hashlib
import random
import shlex
from pathlib import Path

import pytest

import refold
from refold.avro.errors import CorruptionError, DamagedRecord
from refold.streams.log.kafka.content_index import partition_of_content
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.url import parse_url
from refold.testing.kafka import Kafka
from refold_tests.bitrot import rot_batch
from refold_tests.command import refold_command
from refold_tests.folding import await_folded, opened, running, url_of
from refold_tests.poison import bad_records
from refold_tests.rotten_logs import append_batches, page_of, records_of, root
from refold_tests.sample_types import THING
from refold_tests.waiting import await_true
from refold_tests.worker_pages import worker_with_pages

pytestmark = pytest.mark.timeout(600)

MARKERS = ("first" * 40, "second" * 40)
"""Long enough for compressed records: otherwise the damage is detected only after a while."""


@pytest.fixture
def url(rotting: Kafka, request: pytest.FixtureRequest) -> str:
    return url_of(rotting.bootstrap, f"log{abs(hash(request.node.nodeid)) % 10**8}")


def digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def offsets_of(log: KafkaLog, topic: str) -> list[tuple[int, int]]:
    """The partition and offset of each record of a topic."""
    return [(partition, raw.offset) for partition, raw in records_of(log, topic)]


def refused(url: str, *arguments: str) -> str:
    """Return the output of a command that ends with exit status 2."""
    done = refold_command(*arguments, log=url)
    assert done.status == 2, done
    return done.err


def test_damaged_batch_of_definitions_is_named_set_aside_and_restored(
    rotting: Kafka, url: str, tmp_path: Path, seed: int
) -> None:
    """The ruling is after the batch in the unreadable topic: a reader that reaches the batch reads ahead for it."""
    rng = random.Random(seed)
    topic = f"{parse_url(url).prefix}.schemas"
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 1)
        with running(url, tmp_path) as worker:
            await_folded(log, worker)
        whole = root(log, full=True)
        entity = records_of(log, log.topics.observations)[0][1].key.decode()
    wound = rot_batch(rotting, topic, 0, 0)
    command = f"refold quarantine add {topic}/0/0 --log {url.partition('?')[0]}"
    with (
        pytest.raises(DamagedRecord, match=r"\.schemas 0=0: the record is damaged: its batch cannot") as met,
        opened(url),
    ):
        pass
    assert str(met.value).endswith(command)
    for arguments in (("state", "thing/1"), ("verify",), ("rebuild", "--full")):
        assert command in refused(url, *arguments)
    doctor = refold_command("doctor", log=url)
    assert command in doctor.out
    dry = refold_command("quarantine", "add", f"{topic}/0/0", "--dry-run", "--json", log=url)
    assert (dry.status, dry.json["topic"], dry.json["aside"], dry.json["records"]) == (0, "schemas", False, 1), dry
    assert command in refused(url, "verify")
    assert refold_command(*shlex.split(command)[1:]).status == 0
    # The definition is unknown now, and every reader that needs it reports that; registered again, it works as before.
    assert "no schema with id" in refused(url, "state", entity)
    with opened(url) as log:
        assert [(each.topic, each.records) for each in log.set_aside()] == [("schemas", 1)]
        with pytest.raises(DamagedRecord, match=r"\.observations "):
            root(log, full=True)
        log.register(THING)
        assert root(log, full=True) == whole
    listed = refold_command("quarantine", "list", "--json", log=url).json
    assert [(each["topic"], each["aside"]) for each in listed][-1:] == [("schemas", True)]
    wound.heal()
    assert refold_command("quarantine", "remove", f"{topic}/0/0", log=url).status == 0
    with opened(url) as log:
        assert root(log, full=True) == whole


def test_damaged_batch_of_markers_and_rulings_is_named_and_set_aside(
    rotting: Kafka, url: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    topic = f"{parse_url(url).prefix}.manifests"
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 1)
        with running(url, tmp_path) as worker:
            await_folded(log, worker)
        whole = root(log, full=True)
    with refold.open(url) as client:
        for name in MARKERS:
            client.mark(name)
    with opened(url) as log:
        at = max(offset for partition, offset in offsets_of(log, topic) if partition == 0)
    wound = rot_batch(rotting, topic, 0, at)
    command = f"refold quarantine add {topic}/0/{wound.first} --log {url.partition('?')[0]}"
    assert command in refused(url, "verify")
    assert refold_command(*shlex.split(command)[1:]).status == 0
    with opened(url) as log:
        assert [each.name for each in log.markers()] == [MARKERS[0]]
        assert root(log, full=True) == whole
    with running(url, tmp_path) as worker, opened(url) as log:
        append_batches(log, rng, 1)
        await_folded(log, worker)


def test_damaged_batch_of_verdicts_is_named_and_set_aside(rotting: Kafka, url: str, tmp_path: Path, seed: int) -> None:
    """Then each record with a lost verdict is named, because nobody knows any more that it does not count."""
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 1)
        key, value, headers, _ = bad_records(log, 0)[0]
        producer = log.clients.producer()
        producer.produce(log.topics.observations, value, key, 0, headers=headers)
        assert producer.flush(60) == 0
        with running(url, tmp_path) as worker:
            await_folded(log, worker)
        log.refresh()
        whole = root(log, full=True)
        topic = log.topics.deadletters
        ((partition, offset),) = offsets_of(log, topic)
        rot_batch(rotting, topic, partition, offset)
    command = f"refold quarantine add {topic}/{partition}/{offset} --log {url.partition('?')[0]}"
    assert command in refused(url, "verify")
    assert refold_command(*shlex.split(command)[1:]).status == 0
    said = refused(url, "rebuild", "--full")
    again = f"refold quarantine add {parse_url(url).prefix}.observations/0/"
    assert again in said
    assert refold_command(*shlex.split(said[said.index(again) :])[1:]).status == 0
    with opened(url) as log:
        assert root(log, full=True) == whole


def test_damaged_batches_of_epochs_are_skipped_and_counted(rotting: Kafka, url: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append_batches(log, rng, 2)
        with worker_with_pages(url, tmp_path) as (worker, page), refold.open(url) as client:
            await_folded(log, worker)
            client.snapshot()
            whole = root(log, full=True)
            assert root(log) == whole
            chunks = [each for each in offsets_of(log, log.topics.snapshots) if each[0] == 1]
            manifests = [each for each in offsets_of(log, log.topics.manifests) if each[0] == 1]
            for topic, (partition, offset) in ((log.topics.snapshots, chunks[0]), (log.topics.manifests, manifests[0])):
                rot_batch(rotting, topic, partition, offset)
            with opened(url) as fresh:
                assert root(fresh) == whole
                passed = {each.topic for each in fresh.passed_over()}
                assert log.topics.manifests in passed
            checked = refold_command("verify", "--json", log=url)
            assert {each["topic"] for each in checked.json["passed_over"]} == {
                log.topics.manifests,
                log.topics.snapshots,
            }
            doctor = refold_command("doctor", log=url)
            assert "in batches that cannot be read" in doctor.out
            # Epochs continue to be sealed.
            append_batches(log, rng, 1)
            await_folded(log, worker)
            client.snapshot()
        with worker_with_pages(url, tmp_path) as (worker, page):
            series = f'refold_damaged_records{{log="{log.topics.prefix}",topic="manifests"}}'
            await_true(lambda: f"{series} " in page_of(f"{page}/metrics"))
            line = next(each for each in page_of(f"{page}/metrics").splitlines() if each.startswith(series))
            assert float(line.rpartition(" ")[2]) > 0
            append_batches(log, rng, 1)
            await_folded(log, worker)


def test_damaged_batch_hides_only_its_own_contents(rotting: Kafka, url: str) -> None:
    with opened(url) as log:
        topic = log.topics.contents
        lost, kept, unknown = (number.to_bytes(4, "big") * 40_000 for number in range(3))
        for content in (lost, kept, unknown):
            log.blobs.put(digest(content), content)
        index = partition_of_content(digest(lost), log.partitions)
        rot_batch(rotting, topic, log.partitions + index, 0)
    with opened(url) as log:
        assert log.blobs.get(digest(kept)) == kept
        with pytest.raises(
            CorruptionError, match=rf"{topic}/{log.partitions + index}, offset 0: chunk 0 of the content"
        ):
            log.blobs.get(digest(lost))
        # Another put of the content replaces it.
        log.blobs.put(digest(lost), lost)
        assert log.blobs.get(digest(lost)) == lost
        place = KafkaPartition(topic, partition_of_content(digest(unknown), log.partitions))
        said = [raw.offset for raw in log.reading.records(place, 0, log.offsets.ends([place])[place])
                if raw.key and digest(unknown) in raw.key]  # fmt: skip
    wound = rot_batch(rotting, topic, place.partition, said[0])
    with opened(url) as log:
        assert log.blobs.get(digest(unknown)) is None
        assert log.blobs.get(digest(kept)) == kept
        assert {each.topic for each in log.passed_over()} == {topic}
        with pytest.raises(CorruptionError, match="it is unknown which chunks are named"):
            log.blobs.sweep(1 << 62, dry_run=True)
    wound.heal()
    with opened(url) as log:
        assert log.blobs.get(digest(unknown)) == unknown
