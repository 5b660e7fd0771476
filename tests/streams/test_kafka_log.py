"""The log on Kafka: the conformance suite on a real broker, and tests of Kafka-specific behaviour."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, NotAnswerable, SchemaError, ValidationError
from refold.avro.ids import identify
from refold.avro.registry import WireIds
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.schemas import ID_SPACE, schema_record
from refold.streams.log.kafka.url import parse_url
from refold.streams.log.port import Marked
from refold.streams.open import open_kafka
from refold.streams.snapshots.manifest import Epoch
from refold_tests.brokers import SharedKafka
from refold_tests.kafka_topics import Broker
from refold_tests.log_conformance import LogConformance
from refold_tests.log_handles import PARTITIONS, Handles, Opened, assert_rebuilt, mixed, put
from refold_tests.sample_types import OTHER, THING, A, defined, document, said, versions

NOBODY = "http://127.0.0.1:9"
"""A URL on which nothing listens."""


class KafkaOpened(Opened):
    """One log on the shared broker."""

    def __init__(self, kafka: SharedKafka, prefix: str, folder: Path) -> None:
        self.prefix = prefix
        self.url = f"kafka://{kafka.bootstrap}/{prefix}?partitions={PARTITIONS}&blobs={(folder / 'blobs').as_uri()}"

    def log(self, *, read_only: bool = False) -> KafkaLog:
        return KafkaLog(parse_url(self.url), read_only=read_only)


class Alone(KafkaOpened):
    """Written and read by one client."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with contextlib.closing(self.log()) as log:
            yield Handles(log, log)


class Beside(KafkaOpened):
    """Written by one client, read by another; contents are in the log's topic."""

    def __init__(self, kafka: SharedKafka, prefix: str, folder: Path) -> None:
        super().__init__(kafka, prefix, folder)
        self.url = self.url.partition("&")[0]

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with contextlib.closing(self.log()) as log, contextlib.closing(self.log(read_only=True)) as reader:
            yield Handles(log, reader)


class TestAlone(LogConformance):
    @pytest.fixture
    def opened(self, kafka: SharedKafka, prefix: str, tmp_path: Path) -> Opened:
        return Alone(kafka, prefix, tmp_path)


class TestBeside(LogConformance):
    @pytest.fixture
    def opened(self, kafka: SharedKafka, prefix: str, tmp_path: Path) -> Opened:
        return Beside(kafka, prefix, tmp_path)


# Specific to this log


@pytest.fixture
def opened(kafka: SharedKafka, prefix: str, tmp_path: Path) -> KafkaOpened:
    return Alone(kafka, prefix, tmp_path)


def test_recorded_at_never_falls_when_the_brokers_clock_steps_back(
    kafka: SharedKafka, opened: KafkaOpened, seed: int
) -> None:
    """Simulates a broker whose clock steps, by letting producers set timestamps while the log is open."""
    rng = random.Random(seed)
    broker = Broker(kafka.bootstrap, opened.prefix)
    with contextlib.closing(opened.log()) as log:
        put(log, [said(A, 0)])
        log.flush()
        place = KafkaPartition(log.topics.observations, log.partition_of(A))
        version = log.registry.newest(THING.name)
        first = log.record_at(place.partition, 0)
        assert first is not None
        broker.alter(place.topic, "message.timestamp.type", "CreateTime")
        stamps = [first.recorded_at]
        for number in range(1, 40):
            stamps.append(stamps[-1] + rng.choice((0, 1, 7, 1_000, -1, -900, -50_000)))
            observation = said(A, number)
            headers = [("refold-id", identify(observation))]
            value = version.codec.encode_observation(observation)
            broker.produce(place, [value], key=A.encode(), headers=headers, timestamp=stamps[-1])
        broker.alter(place.topic, "message.timestamp.type", "LogAppendTime")
    expected = list(accumulate(stamps, max))
    with contextlib.closing(opened.log()) as log:
        assert [each.recorded_at for each in log.read(place.partition, 0, 40)] == expected
        for time_ms in set(stamps):
            first_after = next((at for at, time in enumerate(expected) if time > time_ms), 40)
            assert log.first_after(place.partition, time_ms) == first_after
    for start in rng.sample(range(40), 8):
        with contextlib.closing(opened.log(read_only=True)) as log:
            assert [each.recorded_at for each in log.read(place.partition, start, 40)] == expected[start:]
            assert [each.recorded_at for each in log.entity_records(A, start + 1)] == expected[: start + 1]
            assert log.recorded_below(place.partition, start + 1) == expected[start]


def test_concurrent_writers_register_each_type_once(opened: KafkaOpened) -> None:
    """Of definitions that exclude each other, one is registered and the other refused, in either order."""
    forbidden = defined(document(last={"type": "double", "refold.reducer": "latest"}))
    many = list(versions(6))
    opened.log().close()
    barrier = threading.Barrier(4)

    def register(definitions: Sequence[TypeDefinition]) -> list[str]:
        refused = []
        with contextlib.closing(opened.log()) as log:
            barrier.wait()
            for each in definitions:
                try:
                    log.register(each)
                except SchemaError as error:
                    refused.append(str(error))
                assert log.registry.find(each) is not None or refused
        return refused

    with ThreadPoolExecutor(4) as pool:
        asked = [[THING, *many], [THING, *reversed(many)], [forbidden, *many], [forbidden, *many]]
        refused = list(pool.map(register, asked))
    with contextlib.closing(opened.log(read_only=True)) as log:
        found = [each.definition.fingerprint for each in log.registry]
        assert len(found) == len(set(found))
        assert (THING.fingerprint in found) != (forbidden.fingerprint in found)
        assert (
            len(log.registry)
            == log.offsets.ends([KafkaPartition(log.topics.schemas, 0)])[KafkaPartition(log.topics.schemas, 0)]
        )
        digest = log.registry.digest()
        if THING.fingerprint in found:
            assert [len(each) for each in refused] == [0, 0, 1, 1]
            assert set(found) == {THING.fingerprint, *(each.fingerprint for each in many)}
    with contextlib.closing(opened.log(read_only=True)) as log:
        assert log.registry.digest() == digest


def test_one_of_two_concurrent_markers_of_a_name_is_refused(opened: KafkaOpened) -> None:
    opened.log().close()
    barrier = threading.Barrier(4)

    def mark(number: int) -> list[str]:
        done = []
        with contextlib.closing(opened.log()) as log:
            for name in "abcdef":
                barrier.wait()
                with contextlib.suppress(InputError):
                    log.mark(Marked(name, f"cut:{number}", number), replace=False)
                    done.append(name)
        return done

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(mark, range(4)))
    with contextlib.closing(opened.log(read_only=True)) as log:
        for marked in log.markers():
            assert [number for number in range(4) if marked.name in done[number]] == [marked.marked_at]
        assert sorted(each.name for each in log.markers()) == list("abcdef")


def test_invalid_registration_is_a_hole_for_everyone(kafka: SharedKafka, opened: KafkaOpened) -> None:
    broker = Broker(kafka.bootstrap, opened.prefix)
    with contextlib.closing(opened.log()) as log:
        place = KafkaPartition(log.topics.schemas, 0)
        broker.transaction(place, [b"x"], end="abort")
        broker.produce(place, [b"a stranger's", None])
        log.register(THING)
        offset = broker.end(place) - 1
        broker.produce(place, [b"{}"], headers=[(ID_SPACE, b"registry")])
        sent = schema_record(place, THING, None)
        broker.produce(place, [sent.value], headers=sent.headers)
        broker.transaction(place, [b"x"], end="abort")
        log.register(OTHER)
        assert [each.offset for each in log.registry] == [offset, broker.end(place) - 1]
        digest, size = log.registry.digest(), len(log.registry)
        with contextlib.closing(opened.log(read_only=True)) as reader:
            assert (reader.registry.digest(), len(reader.registry)) == (digest, size)
        broker.produce(place, [b'{"newer": true}'], headers=[(ID_SPACE, b"embedded")])
        log.refresh()
        assert (log.registry.digest(), len(log.registry)) == (digest, size + 1)


def test_log_has_one_id_space(opened: KafkaOpened) -> None:
    class Ids:
        def register(self, prefix: str, definition: TypeDefinition) -> WireIds:
            assert prefix == opened.prefix
            return WireIds(*(100 + 3 * registered.index(definition) + each for each in range(3)))

        def close(self) -> None: ...

    registered = [THING, OTHER]

    def bound(**given: Any) -> KafkaLog:
        return KafkaLog(parse_url(opened.url), schema_ids=Ids(), **given)  # type: ignore[arg-type]  # as one is

    with contextlib.closing(bound()) as log:
        put(log, [said(A, 0)])
        log.flush()
        assert [each.wire_ids for each in log.registry] == [WireIds(100, 101, 102)]
        record = log.record_at(log.partition_of(A), 0)
        assert record is not None
        assert record.data[:5] == b"\0\0\0\0\x64"
    with contextlib.closing(opened.log()) as log:
        put(log, [said(A, 1)])
        log.flush()
        assert_rebuilt(log, [said(A, 0), said(A, 1)])
        with pytest.raises(InputError, match=r"everythings: this log's schemas are registered with a Schema Registry"):
            log.register(OTHER)
    with contextlib.closing(bound()) as log:
        log.register(OTHER)
    other = parse_url(opened.url.replace(opened.prefix, f"{opened.prefix}.embedded"))
    with contextlib.closing(KafkaLog(other)) as log:
        log.register(THING)
    with pytest.raises(InputError, match="open it without REFOLD_SCHEMA_REGISTRY"):
        KafkaLog(other, schema_ids=Ids())  # type: ignore[arg-type]


def test_table_queries_name_where_tables_are(opened: KafkaOpened) -> None:
    """Both if it would ask workers but there are none, and if it would not ask any."""
    for make in (opened.log, partial(open_kafka, opened.url), partial(open_kafka, opened.url, worker=NOBODY)):
        with contextlib.closing(make()) as log:
            put(log, [said(A, 0)])
            uses: list[Callable[[], object]] = [
                lambda: list(log.stored_entities()),
                lambda: log.totals(0),
                log.snapshot,
                log.collect,
                lambda: log.recover(wait=True),
            ]
            for use in uses:
                with pytest.raises(NotAnswerable, match="refold worker"):
                    use()
            assert "refold worker" in log.check_elsewhere().unchecked[0]
            for pinned_at in (1, None):
                log.pin([], pinned_at)
            with pytest.raises(InputError, match="there is no snapshot of epoch 0=1"):
                log.pin([Epoch(0, 1, 1)], 1)


def test_table_queries_read_the_log_without_workers(opened: KafkaOpened) -> None:
    with contextlib.closing(open_kafka(opened.url, worker=NOBODY)) as log:
        put(log, observations := [said(A, number) for number in (0, 1, 1, 2)])
        log.flush()
        assert [each.offset for each in log.entity_records(A, 9)] == [0, 1, 2, 3]
        assert [each.offset for each in log.arrivals(A, 9)] == [0, 1, 3]
        found = log.find(identify(observations[2]))
        assert found is not None
        assert found.offset == 1
        assert log.checkpoint(A, 9, 0) is None


def test_contents_without_a_store_are_refused_by_name(opened: KafkaOpened) -> None:
    digest = hashlib.sha256(b"x").digest()
    opened.log().close()  # created with another store, the log has no topic of contents
    with contextlib.closing(KafkaLog(parse_url(opened.url.partition("&")[0]))) as log:
        assert not log.has_store
        uses: list[Callable[[], object]] = [lambda: log.blobs.put(digest, b"x"), lambda: log.blobs.get(digest)]
        for use in uses:
            with pytest.raises(InputError, match=r"no store of contents: .*refold init.*REFOLD_BLOBS"):
                use()
    with refold.open(opened.url.partition("&")[0]) as client:
        with pytest.raises(ValidationError, match=r"patch\.input: over 1024 bytes needs a blob store"):
            client.observe("run/r", {"input": {"text": "x" * 2_000}})
        assert client.port.ends() == dict.fromkeys(range(PARTITIONS), 0)
    with refold.open(opened.url) as client:
        client.observe("run/r", {"input": {"text": "x" * 2_000}})
        client.flush()
        held = client.state("run/r").fields["input"]
        assert isinstance(held, refold.Blob)
        assert json.loads(client.blob(held)) == {"text": "x" * 2_000}
    with contextlib.closing(KafkaLog(parse_url(opened.url.partition("&")[0]))) as log:
        assert log.make_store()
        assert not log.make_store()
        log.blobs.put(digest, b"x")
        assert log.blobs.get(digest) == b"x"


def test_still_log_does_not_move(opened: KafkaOpened) -> None:
    with contextlib.closing(opened.log()) as writer, contextlib.closing(opened.log()) as log:
        put(writer, [said(A, 0)])
        writer.flush()
        with log.frozen() as still:
            put(writer, [said(A, 1)])
            writer.register(OTHER)
            writer.flush()
            still.refresh()
            log.refresh()
            assert sum(still.ends().values()) == 1
            assert len(list(still.read(still.partition_of(A), 0, 9))) == 1
        assert sum(log.ends().values()) == 2


def test_same_observations_fold_identically_on_kafka_and_in_a_folder(
    opened: KafkaOpened, tmp_path: Path, seed: int
) -> None:
    observations = mixed(seed)
    roots = []
    for url in (opened.url, f"file:{tmp_path / 'log'}?partitions={PARTITIONS}"):
        with refold.open(url) as log:
            put(log.port, observations)
            log.flush()
            roots.append((log.rebuild(parallel=False).root, log.rebuild(full=True, parallel=False).root))
            assert log.rebuild(parallel=True).root == roots[-1][0]
    assert len({each for pair in roots for each in pair}) == 1
