"""Contents in a topic (streams/log/kafka/contents.py) with foreign records, killed processes and concurrency."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import refold
from refold.avro.errors import CorruptionError, StorageError
from refold.streams.blobs.store import GuardedStore
from refold.streams.blobs.url import open_store
from refold.streams.checksum import sealed
from refold.streams.log.kafka.content_index import PUT, REMOVING, TOKEN_BYTES, chunk_key, partition_of_content
from refold.streams.log.kafka.contents import CHUNK_BYTES, TopicContents
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.url import parse_url
from refold_tests.child import Child
from refold_tests.command import refold_command
from refold_tests.kafka_contents import forge
from refold_tests.kafka_topics import TIMEOUT_S, Broker
from refold_tests.waiting import answered_within, await_true

PARTITIONS = 2
LATER_MS = time.time_ns() // 1_000_000 + 3_600_000
BIG = bytes(range(256)) * (5 * CHUNK_BYTES // 512)
Opened = Callable[[], TopicContents]


def named(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@pytest.fixture
def url(broker: Broker) -> str:
    return f"kafka://{broker.bootstrap}/{broker.prefix}?partitions={PARTITIONS}"


@pytest.fixture
def opened(url: str) -> Iterator[Opened]:
    with contextlib.ExitStack() as ending:

        def store() -> TopicContents:
            log = ending.enter_context(contextlib.closing(KafkaLog(parse_url(url))))
            assert isinstance(log.blobs, GuardedStore)
            assert isinstance(log.blobs.store, TopicContents)
            return log.blobs.store

        yield store


def test_foreign_and_forged_records_are_ignored(opened: Opened, broker: Broker, url: str) -> None:
    store = opened()
    store.put(named(b"good"), b"good")
    store.put(named(BIG), BIG)
    topic = f"{broker.prefix}.contents"
    digest = named(b"good")
    at = partition_of_content(digest, PARTITIONS)
    wrong = KafkaPartition(topic, 1 - at)
    for place in (KafkaPartition(topic, each) for each in range(2 * PARTITIONS)):
        broker.produce(place, [b"junk", None, sealed(b"\x82\x01\x80")], key=b"junk")
        broker.produce(place, [b"junk", sealed(b"\x82\x01\x80")], key=PUT + digest + bytes(TOKEN_BYTES))
    broker.produce(wrong, [b"\x01"], key=b"expired/" + digest)
    forge(url, digest, b"evil")
    assert opened().get(digest) == b"good"
    assert opened().get(named(BIG)) == BIG
    assert not opened().has_expired(digest)
    offset = forge(url, named(b"lost"), b"evil")
    with pytest.raises(CorruptionError, match=named(b"lost").hex()):
        opened().get(named(b"lost"))
    for key in (b"junk", chunk_key(named(b"odd") + bytes(TOKEN_BYTES), 0)):
        offset = forge(url, named(b"odd"), b"odd", key=key)
        chunks = partition_of_content(named(b"odd"), PARTITIONS) + PARTITIONS
        with pytest.raises(CorruptionError, match=rf"{topic}/{chunks}, offset {offset}: chunk 0 of the content .*not"):
            opened().get(named(b"odd"))
    offset = forge(url, named(b"torn"), b"torn", is_sealed=False)
    with pytest.raises(
        CorruptionError, match=rf"offset {offset}: chunk 0 of the content {named(b'torn').hex()}.*checksum"
    ):
        opened().get(named(b"torn"))
    forge(url, named(b"beyond"), b"beyond", offset=1 << 40)

    def get_beyond() -> None:
        with pytest.raises(CorruptionError, match=f"offset {1 << 40}: .*is not there"):
            opened().get(named(b"beyond"))

    answered_within(TIMEOUT_S / 2, get_beyond)  # no record is waited for that there never was
    for content in (b"lost", b"odd", b"torn", b"beyond"):
        opened().put(named(content), content)
        assert opened().get(named(content)) == content
    with contextlib.closing(KafkaLog(parse_url(url))) as log:
        (found,) = [each for each in log.foreign(last=None) if each.topic == topic]
    # Five in each of the first P partitions, and the one in the wrong partition.
    assert found.records == 5 * PARTITIONS + 1


def test_open_transaction_delays_nobody(opened: Opened, broker: Broker) -> None:
    store = opened()
    topic = f"{broker.prefix}.contents"
    left = [broker.transaction(KafkaPartition(topic, each), [b"junk"], end="open") for each in range(2 * PARTITIONS)]
    store.put(named(b"a"), b"a")
    store.put(named(b"a"), b"a")
    assert opened().get(named(b"a")) == b"a"
    for each in left:
        each.abort_transaction(TIMEOUT_S)
    assert opened().get(named(b"a")) == b"a"


def test_concurrent_puts_of_one_content_store_it_and_one_removal_removes_it(opened: Opened, broker: Broker) -> None:
    stores = [opened() for _ in range(4)]
    start = threading.Barrier(len(stores))

    def put(store: TopicContents) -> None:
        start.wait()
        for content in (b"a", BIG):
            store.put(named(content), content)

    threads = [threading.Thread(target=put, args=[each]) for each in stores]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    reader = opened()
    assert (reader.get(named(b"a")), reader.get(named(BIG))) == (b"a", BIG)
    assert len([*reader.stored()]) == 2
    assert opened().remove([named(b"a"), named(BIG)], LATER_MS).contents == 2
    assert [opened().get(named(each)) for each in (b"a", BIG)] == [None, None]
    assert opened().has_expired(named(BIG))
    assert live_chunk_keys(broker) == set()


def live_chunk_keys(broker: Broker) -> set[bytes]:
    """Return the keys of the chunks that were not removed."""
    kept = set[bytes]()
    with broker.reading() as reading:
        for place in (KafkaPartition(f"{broker.prefix}.contents", PARTITIONS + each) for each in range(PARTITIONS)):
            for raw in reading.records(place, 0, broker.end(place)):
                (kept.discard if raw.value is None else kept.add)(raw.key or b"")
    return kept


class _Slow(LogProducer):
    """Stops before it removes what says that a content was put."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.clients)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def send(self, sent: OutgoingRecord) -> None:
        if sent.value is None and (sent.key or b"").startswith(PUT):
            self.reached.set()
            assert self.go_on.wait(300)
        super().send(sent)


def test_content_put_during_its_removal_exists_in_the_end(opened: Opened, broker: Broker) -> None:
    opened().put(named(b"a"), b"a")
    remover, slow = opened(), _Slow(broker)
    remover._outgoing = slow
    removing = threading.Thread(target=lambda: remover.remove([named(b"a")], LATER_MS))
    removing.start()
    assert slow.reached.wait(300)
    opened().put(named(b"a"), b"a")
    slow.go_on.set()
    removing.join()
    assert opened().get(named(b"a")) == b"a"
    (found,) = opened().stored()
    assert found.size == 1


def test_content_put_before_the_removers_announcement_is_kept(opened: Opened, broker: Broker) -> None:
    store, other = opened(), opened()
    store.put(named(b"a"), b"a")
    first = other._outgoing

    class Late(LogProducer):
        """Writes what says that a content is being removed after somebody put it again."""

        def send(self, sent: OutgoingRecord) -> None:
            if (sent.key or b"").startswith(REMOVING) and sent.value is not None:
                store.put(named(b"a"), b"a")
            super().send(sent)

    other._outgoing = Late(broker.clients)
    assert tuple(other.remove([named(b"a")], LATER_MS)) == (0, 0, 1)
    assert opened().get(named(b"a")) == b"a"
    first.close()
    store.put(named(b"a"), b"a")
    assert opened().remove([named(b"a")], LATER_MS).contents == 1, "nothing is left of the first removal"


PUTTING = """
import hashlib, os, sys
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url

store = KafkaLog(parse_url(sys.argv[1])).blobs
seed, later_ms = int(sys.argv[2]), int(sys.argv[3])
print("open", flush=True)
for number in range(10**6):
    content = hashlib.sha256(b"%d %d" % (seed, number)).digest() * 40_000
    digest = hashlib.sha256(content).digest()
    store.put(digest, content)
    print("put", number, flush=True)
    if number % 2:
        print("removing", number, flush=True)
        store.remove([digest], later_ms)
        print("removed", number, flush=True)
"""


@pytest.mark.faults
def test_killed_process_leaves_its_acknowledged_contents_and_nothing_unlisted(
    opened: Opened, url: str, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    for each in range(max(2, fault_rounds // 2)):
        process = child(PUTTING, url, seed + each, LATER_MS)
        assert process.line() == "open"
        said = [process.line().split() for _ in range(1 + (seed + each * 5) % 9)]
        time.sleep((seed * 7 + each * 13) % 40 / 1000)
        process.kill()
        store = opened()
        fates = {int(number): what for what, number in said}
        for number in range(max(fates, default=-1) + 3):
            content = hashlib.sha256(b"%d %d" % (seed + each, number)).digest() * 40_000
            digest = named(content)
            found = store.get(digest)
            assert found in (None, content), (number, seed)
            assert found is not None or fates.get(number) != "put" or number % 2, (number, seed)
            assert found is None or fates.get(number) != "removed", (number, seed)
            store.put(digest, content)
            assert store.get(digest) == content
            store.remove([digest], LATER_MS)
            assert store.get(digest) is None
        found_left = store.sweep(LATER_MS, dry_run=True)
        assert store.sweep(LATER_MS, dry_run=False) == found_left
        assert store.sweep(LATER_MS, dry_run=True) == 0


def test_partial_put_is_swept_and_a_whole_one_is_not(opened: Opened, broker: Broker) -> None:
    store = opened()
    store.put(named(BIG), BIG)
    chunks = KafkaPartition(f"{broker.prefix}.contents", PARTITIONS)
    version = bytes(len(named(b"")) + TOKEN_BYTES)
    for number in range(3):
        broker.produce(chunks, [sealed(b"part")], key=chunk_key(version, number))
    assert store.sweep(time.time_ns() // 1_000_000 - 60_000, dry_run=False) == 0, "it may be on its way"
    assert store.sweep(LATER_MS, dry_run=True) == 1
    assert store.sweep(LATER_MS, dry_run=False) == 1
    assert store.sweep(LATER_MS, dry_run=False) == 0
    assert opened().get(named(BIG)) == BIG


def test_topic_that_would_lose_contents_is_refused_by_name(opened: Opened, broker: Broker, url: str) -> None:
    opened().put(named(b"a"), b"a")
    topic = f"{broker.prefix}.contents"
    broker.alter(topic, "max.message.bytes", "1000")
    with pytest.raises(StorageError, match=rf"{topic} has max.message.bytes=1000, and a log needs .*kafka-configs"):
        KafkaLog(parse_url(url))
    with contextlib.closing(KafkaLog(parse_url(f"{url}&blobs=file:///tmp/elsewhere"))) as elsewhere:
        assert elsewhere.has_store, "who has another store is not held up"
    broker.alter(topic, "max.message.bytes", str(2 << 20))
    broker.alter(topic, "cleanup.policy", "delete")
    with pytest.raises(StorageError, match=rf"{topic} has cleanup.policy=delete, and a log needs compact"):
        KafkaLog(parse_url(url))


def test_record_too_large_for_the_broker_is_named(opened: Opened, broker: Broker) -> None:
    store = opened()
    broker.alter(f"{broker.prefix}.contents", "max.message.bytes", "1000")
    incompressible = b"".join(named(b"%d" % each) for each in range(300))
    with pytest.raises(StorageError, match=f"the content {named(incompressible).hex()}: .*(?i:too large|size)"):
        store.put(named(incompressible), incompressible)


COPYING = """
import sys
from refold.explorer.cli.main import run

print("begun", flush=True)
sys.exit(run(["blobs", "--copy-to", sys.argv[1], "--log", sys.argv[2]]))
"""


@pytest.mark.faults
def test_contents_move_to_a_folder_and_back_and_a_killed_copy_continues(
    opened: Opened, broker: Broker, url: str, tmp_path: Path, child: Callable[..., Child], seed: int
) -> None:
    store, folder = opened(), (tmp_path / "contents").as_uri()
    contents = [b"content %d" % each for each in range(60)] + [BIG]
    for content in contents:
        store.put(named(content), content)
    store.remove([named(contents[0])], LATER_MS)
    forge(url, named(b"lost"), b"evil")
    target = open_store(folder)
    process = child(COPYING, folder, url)
    assert process.line() == "begun"
    await_true(lambda: sum(1 for _ in target.stored()) > seed % 30)
    process.kill()
    done = refold_command("blobs", "--copy-to", folder, "--json", log=url)
    assert done.status == 1, done.err
    found = done.json
    assert found["contents"] + found["there"] == len(contents) - 1
    assert found["there"] > 0, "the killed copy's work is used"
    assert [*found["damaged"]] == [named(b"lost").hex()]
    assert {each.digest for each in target.stored()} == {named(each) for each in contents[1:]}
    assert target.get(named(BIG)) == BIG
    assert target.has_expired(named(contents[0]))

    target.put(named(b"new"), b"new")
    moved = f"{url}&blobs={folder}"
    back = refold_command("blobs", "--copy-to", "own", "--json", log=moved).json
    assert (back["contents"], back["there"], back["damaged"]) == (1, len(contents) - 1, {})
    assert opened().get(named(b"new")) == b"new"
    assert "are there already" in refold_command("blobs", "--copy-to", folder, log=moved).refused()
    assert _doctor(moved) == (False, f"they are in {folder} here, and the topic {broker.prefix}.contents has some too")
    assert _doctor(url) == (True, f"they are in kafka://{broker.bootstrap}/{broker.prefix}.contents")


def _doctor(url: str) -> tuple[bool, str]:
    """Return the doctor's findings on a log's contents."""
    findings = refold_command("doctor", "--json", log=url).json["findings"]
    ((is_ok, said),) = [(each["ok"], each["finding"]) for each in findings if each["subject"] == "contents"]
    return is_ok, said


def test_command_counts_removes_and_names_what_is_not_erased(url: str, broker: Broker) -> None:
    text = "x" * 300_000
    with refold.open(url) as log:
        log.observe("document/a", {"fields": {"text": text}})
        log.flush()
        log.port.blobs.put(named(b"unnamed"), b"unnamed")
    chunks = KafkaPartition(f"{broker.prefix}.contents", PARTITIONS)
    broker.produce(chunks, [sealed(b"part")], key=chunk_key(bytes(len(named(b"")) + TOKEN_BYTES), 0))
    found = refold_command("blobs", "--grace", 0, "--json", log=url).json
    assert [found[each] for each in ("contents", "unnamed", "parts", "remaining")] == [2, 1, 1, 0]
    done = refold_command("blobs", "--apply", "--grace", 0, log=url).out
    assert "1 content and 7 bytes removed" in done
    assert "1 part of contents whose put was not finished: removed" in done
    assert "1 removed content still on the brokers' disks" in done
    found = refold_command("blobs", "--grace", 0, "--json", log=url).json
    assert [found[each] for each in ("contents", "unnamed", "parts", "remaining")] == [1, 0, 0, 1]
    assert refold_command("retain", "--check", log=url).status == 1
    assert refold_command("verify", log=url).status == 0
