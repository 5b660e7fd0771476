"""Records that are not observations, on a real broker: before and after a worker's verdict on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from refold.avro.errors import CorruptionError, NotAnswerable
from refold.avro.ids import identify
from refold.streams.deadletters import Verdict, read_verdict, verdict_value
from refold.streams.log.kafka.deadletters import offset_of_record, verdict_key, verdict_on
from refold.streams.log.kafka.fold_position import THROUGH, PartitionPoint, emitted_point_of
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.url import parse_url
from refold.streams.log.port import Record
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold_tests.kafka_topics import Broker, decide, deciding
from refold_tests.log_handles import assert_rebuilt, put
from refold_tests.poison import framed
from refold_tests.sample_types import A, said

B = f"{A}b"
PARTITIONS = 2
OWN = 0


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaLog]:
    url = f"kafka://{broker.bootstrap}/{broker.prefix}?partitions={PARTITIONS}"
    with contextlib.closing(KafkaLog(parse_url(url))) as log:
        yield log


def place(log: KafkaLog) -> KafkaPartition:
    """The place of A's records; B's are elsewhere."""
    assert log.partition_of(A) != log.partition_of(B)
    return KafkaPartition(log.topics.observations, log.partition_of(A))


def bad(log: KafkaLog) -> list[tuple[str, dict[str, Any]]]:
    """Each way of not being an observation: the verdict's reason, and what to produce."""
    good, other = said(A, 100), said(B, 100)
    return [
        ("undecodable", {"key": A.encode(), "value": b"{}"}),
        ("undecodable", {"key": A.encode(), "value": None}),
        ("undecodable", {"key": A.encode(), "value": framed(log, good)[:-1]}),
        ("undecodable", {"key": A.encode(), "value": framed(log, good) + b"x"}),
        ("misplaced", {"key": None, "value": framed(log, good)}),
        ("misplaced", {"key": b"\xff", "value": framed(log, good)}),
        ("misplaced", {"key": B.encode(), "value": framed(log, good)}),
        ("misplaced", {"key": B.encode(), "value": framed(log, other)}),
        ("misidentified", {"key": A.encode(), "value": framed(log, good), "headers": [("refold-id", b"\1" * 32)]}),
        ("misidentified", {"key": A.encode(), "value": framed(log, good), "headers": [("refold-id", b"")]}),
        ("no_such_id", {"key": A.encode(), "value": b"\0\0\0\0\7"}),
    ]


def test_undecided_record_stops_answers_and_names_its_offset(log: KafkaLog, broker: Broker) -> None:
    put(log, [said(A, 0), said(B, 0)])
    log.flush()
    where = place(log)
    for number, (_, given) in enumerate(bad(log)):
        offset = log.ends()[where.partition]
        value = given.pop("value")
        broker.produce(where, [value], **given)
        log.refresh()
        with pytest.raises(NotAnswerable, match=f"the nearest point .* offset:{where.partition}={offset}\\. A running"):
            list(log.read(where.partition, offset, offset + 1))
        with pytest.raises(NotAnswerable):
            rebuild(log, Points(log, 0).end(), parallel=False)
        # Up to there, and for the other partition and other keys, there is no doubt.
        assert [each.offset for each in log.read(where.partition, 0, offset - number)] == [0]
        rebuild(log, Points(log, 0).resolve(f"offset:{where.partition}=1").cut, parallel=False)
        assert [each.id for each in log.entity_records(B, 9)] == [identify(said(B, 0))]
        # A later repeat is at the same place, so this tests one bad record at a time.
        found = log.reading.first(where, offset, offset + 1)
        assert found is not None
        decide(broker, log.topics, where, offset + 1, [verdict_on(where.partition, found, "undecodable", "")])
        log.refresh()
    assert_rebuilt(log, [said(A, 0), said(B, 0)])


def test_offsets_with_verdicts_are_skipped_and_ids_below_are_trusted(log: KafkaLog, broker: Broker) -> None:
    put(log, [said(A, 0), said(B, 0)])
    log.flush()
    where = place(log)
    cases = bad(log)
    for number, (_, given) in enumerate(cases, 1):
        value = given.pop("value")
        broker.produce(where, [value], **given)
        put(log, [said(A, number)])
        log.flush()
    end = 1 + 2 * len(cases)
    assert log.ends()[where.partition] == end
    raws = [raw for raw in log.reading.records(where, 0, end) if raw.offset % 2]
    verdicts = [
        verdict_on(where.partition, raw, reason, f"case {number}")
        for number, (raw, (reason, _)) in enumerate(zip(raws, cases, strict=True))
    ]
    hanging = deciding(broker, log.topics, where, end, verdicts)
    log.refresh()
    with pytest.raises(NotAnswerable):
        list(log.read(where.partition, 0, end))  # not yet committed
    hanging.commit_transaction()
    broker.settle(KafkaPartition(log.topics.deadletters, where.partition))
    log.refresh()

    def check(log: KafkaLog) -> None:
        found = list(log.read(where.partition, 0, end))
        assert [each.offset for each in found] == list(range(0, end, 2))
        assert [each.id for each in found] == [identify(said(A, number)) for number in range(len(cases) + 1)]
        assert [each.offset for each in log.entity_records(A, end)] == list(range(0, end, 2))
        assert [log.record_at(where.partition, offset) is None for offset in range(4)] == [False, True, False, True]
        times = [raw.timestamp for raw in log.reading.records(where, 0, end)]
        assert [each.recorded_at for each in found] == [max(times[: each.offset + 1]) for each in found]
        for time_ms in set(times):
            expected = next((at for at, time in enumerate(times) if time > time_ms), end)
            assert log.first_after(where.partition, time_ms) == expected
        assert [read_verdict(each.partition, each.data) for each in log.deadletters()] == verdicts
        assert_rebuilt(log, [said(A, number) for number in range(len(cases) + 1)] + [said(B, 0)])

    check(log)
    with contextlib.closing(KafkaLog(parse_url(log.url), read_only=True)) as reader:
        check(reader)
        # A worker has checked the ids below: they come from the headers, without decoding.
        reader.registry.decode = None  # type: ignore[assignment, method-assign]
        records = list(reader.read(where.partition, 0, end))
        assert isinstance(records[0], Record)


def test_missing_verdict_below_the_committed_offset_is_named(log: KafkaLog, broker: Broker) -> None:
    put(log, [said(A, 0)])
    log.flush()
    where = place(log)
    broker.produce(where, [b"?"], key=A.encode())
    deciding(broker, log.topics, where, 2, []).commit_transaction()
    broker.settle(where)
    log.refresh()
    with pytest.raises(
        CorruptionError, match=rf"{where.partition}=1: .* is not an observation .*the workers have passed it"
    ):
        list(log.read(where.partition, 0, 2))


def test_record_is_a_verdict_by_its_key_and_both_headers() -> None:
    headers = PartitionPoint(41, 2).headers
    good = RawRecord(7, 0, bytes(8), b"", headers)
    assert (offset_of_record(good), emitted_point_of(good)) == (0, PartitionPoint(41, 2))
    for raw in (
        good._replace(headers=[]),
        good._replace(headers=headers[:1]),
        good._replace(headers=headers[1:]),
        good._replace(headers=[(THROUGH, b"short"), headers[1]]),
        good._replace(headers=[(THROUGH, None), headers[1]]),
    ):
        assert (offset_of_record(raw), emitted_point_of(raw)) == (None, None)
    for key in (None, b"text", (41).to_bytes(8, "big")):  # the last one claims a record that its batch did not reach
        assert offset_of_record(good._replace(key=key)) is None


def test_nothing_counts_as_decided_while_its_transaction_is_open(log: KafkaLog, broker: Broker) -> None:
    """The committed offset may be visible before its verdicts: until they are, it does not count."""
    put(log, [said(A, 0)])
    log.flush()
    where = place(log)
    letters = KafkaPartition(log.topics.deadletters, where.partition)
    broker.produce(where, [b"?"], key=A.encode())
    hanging = broker.transaction(letters, [b"any"], end="open")
    (found,) = (raw for raw in log.reading.records(where, 1, 2))
    deciding(
        broker, log.topics, where, 2, [verdict_on(where.partition, found, "undecodable", "no frame")]
    ).commit_transaction()
    log.refresh()
    with pytest.raises(NotAnswerable):
        list(log.read(where.partition, 0, 2))
    hanging.abort_transaction()
    broker.settle(letters)
    log.refresh()
    assert [each.offset for each in log.read(where.partition, 0, 2)] == [0]


def test_foreign_records_need_no_header(log: KafkaLog, broker: Broker) -> None:
    put(log, [said(A, 0)])
    log.flush()
    where = place(log)
    broker.produce(where, [framed(log, said(A, 1))], key=A.encode())
    log.refresh()
    for _ in range(2):
        assert [each.id for each in log.read(where.partition, 0, 2)] == [identify(said(A, n)) for n in range(2)]
        found = log.find(identify(said(A, 1)))
        assert found is not None
        assert found.offset == 1
        deciding(broker, log.topics, where, 2, []).commit_transaction()
        broker.settle(where)
        log.refresh()


def test_verdict_keeps_everything_of_its_record() -> None:
    verdict = Verdict(3, 41, "misplaced", "its key ...", None, b"\0", [("a", None), ("a", b"\xff")], 1_700_000_000_000)
    assert read_verdict(3, verdict_value(verdict)) == verdict
    assert verdict_key(verdict) == (41).to_bytes(8, "big")
    for damaged in (b"", b"\xff", verdict_value(verdict)[:-1], b"\xa1\x66format\x02"):
        with pytest.raises(CorruptionError):
            read_verdict(3, damaged)
