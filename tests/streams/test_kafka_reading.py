"""Reading ranges of a partition on a real broker: in order, and always ending, with any records at their ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import pytest
from confluent_kafka import TopicPartition

from refold.avro.errors import CorruptionError, StorageError
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.recorded_at import Times
from refold_tests.kafka_topics import Broker


@pytest.fixture
def reading(broker: Broker) -> Iterator[LogReaders]:
    with broker.reading() as reading:
        yield reading


def offsets_of(reading: LogReaders, place: KafkaPartition, start: int, end: int) -> list[int]:
    return [each.offset for each in reading.records(place, start, end)]


def test_range_is_read_from_its_start_to_before_its_end(broker: Broker, reading: LogReaders) -> None:
    place = KafkaPartition(broker.topic("plain", 2), 1)
    broker.produce(place, [b"%d" % number for number in range(7)], key=b"k", headers=[("h", b"\0")])
    assert broker.end(place) == 7
    for start in range(8):
        for end in range(start, 8):
            found = list(reading.records(place, start, end))
            assert [(each.offset, each.value) for each in found] == [(n, b"%d" % n) for n in range(start, end)]
            assert all(each.key == b"k" and each.header("h") == b"\0" and each.header("x") is None for each in found)
            first = reading.first(place, start, end)
            assert (None if first is None else first.offset) == (start if start < end else None)


def test_ranges_with_holes_end(broker: Broker, reading: LogReaders) -> None:
    """Committed 0-1, its marker 2, aborted 3-4, its marker 5, plain 6, aborted 7, its marker 8."""
    place = KafkaPartition(broker.topic("holes"), 0)
    broker.transaction(place, [b"a", b"b"])
    broker.transaction(place, [b"x", b"x"], end="abort")
    broker.produce(place, [b"c"])
    broker.transaction(place, [b"x"], end="abort")
    end = broker.end(place)
    assert end == 9
    there = [0, 1, 6]
    for start in range(end + 1):
        for stop in range(start, end + 1):
            assert offsets_of(reading, place, start, stop) == [each for each in there if start <= each < stop]


def test_open_transaction_hides_later_records(broker: Broker, reading: LogReaders) -> None:
    place = KafkaPartition(broker.topic("open"), 0)
    broker.produce(place, [b"a"])
    hanging = broker.transaction(place, [b"b"], end="open")
    broker.produce(place, [b"c"])
    assert broker.end(place) == 1
    assert broker.offsets.ends([place], committed=False)[place] == 3
    assert offsets_of(reading, place, 0, broker.end(place)) == [0]
    hanging.commit_transaction(20)
    broker.settle(place)
    assert offsets_of(reading, place, 0, broker.end(place)) == [0, 1, 2]


def test_read_in_progress_is_unaffected_by_others(broker: Broker, reading: LogReaders) -> None:
    place = KafkaPartition(broker.topic("many"), 0)
    broker.transaction(place, [b"%d" % number for number in range(5_000)])
    first, second = reading.records(place, 0, 5_000), reading.records(place, 100, 4_000)
    for number in range(100):
        assert next(first).offset == number
        assert next(second).offset == 100 + number
        if number % 20 == 0:
            assert offsets_of(reading, place, 4_990, 5_000) == list(range(4_990, 5_000))
    second.close()
    assert [each.offset for each in first] == list(range(100, 5_000))


def test_deleted_records_are_reported_missing(broker: Broker, reading: LogReaders) -> None:

    place = KafkaPartition(broker.topic("cut"), 0)
    broker.produce(place, [b"a", b"b", b"c"])
    for done in broker.admin.delete_records([TopicPartition(place.topic, 0, 2)]).values():
        done.result()
    with pytest.raises(CorruptionError, match=r"cut/0: the records from offset 0 on are missing"):
        list(reading.records(place, 0, 3))
    assert offsets_of(reading, place, 2, 3) == [2]


def test_closed_reader_reads_no_more(broker: Broker) -> None:
    place = KafkaPartition(broker.topic("closed"), 0)
    broker.produce(place, [b"a", b"b"])
    with broker.reading() as reading:
        under_way = reading.records(place, 0, 2)
        assert next(under_way).offset == 0
    assert [each.offset for each in under_way] == [1]
    with pytest.raises(StorageError, match="closed"):
        next(reading.records(place, 0, 2))


def test_unreachable_broker_is_an_error_in_time() -> None:
    nobody = Broker("127.0.0.1:1", "none")
    with nobody.reading(timeout_s=1) as reading, pytest.raises(StorageError, match=r"127\.0\.0\.1:1 sent nothing for"):
        next(reading.records(KafkaPartition("none.x", 0), 0, 1))


def test_times_are_running_maxima_when_the_clock_steps_back(broker: Broker, reading: LogReaders, seed: int) -> None:
    """Timestamps set by producers simulate a broker whose clock steps; some records are never committed."""
    rng = random.Random(seed)
    # Kept for ever, because these times are older than the broker's retention.
    topic = broker.topic("times", 2, message_timestamp_type="CreateTime", retention_ms="-1")
    for partition in range(2):
        place = KafkaPartition(topic, partition)
        now = 1_000_000
        stamps: dict[int, int] = {}
        for _ in range(rng.randrange(20, 40)):
            now += rng.choice((0, 1, 1, 5, 1_000, -1, -500, -100_000))
            offset = broker.offsets.ends([place], committed=False)[place]
            kind = rng.choice(("plain", "plain", "plain", "plain", "commit", "abort"))
            count = rng.randrange(1, 4)
            if kind == "plain":
                broker.produce(place, [b"x"] * count, timestamp=now)
            else:
                broker.transaction(place, [b"x"] * count, end=kind, timestamp=now)
            if kind != "abort":
                stamps |= dict.fromkeys(range(offset, offset + count), now)
        end = broker.end(place)
        maxima = dict(zip(stamps, accumulate(stamps.values(), max), strict=True))
        for offset in range(end + 1):
            below = max((time for at, time in stamps.items() if at < offset), default=0)
            assert Times(place, broker.offsets, reading).below(offset) == below, (partition, offset)
        times = Times(place, broker.offsets, reading)
        for time_ms in {each + more for each in stamps.values() for more in (-1, 0, 1)} | {0, 10**12}:
            expected = next((at for at, greatest in maxima.items() if greatest > time_ms), end)
            assert times.first_after(time_ms, end) == expected, (partition, time_ms)
