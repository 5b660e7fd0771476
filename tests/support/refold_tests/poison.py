"""Records that are not observations, written into `.observations`, and the verdicts on them."""

from __future__ import annotations

from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.streams.deadletters import Verdict, read_verdict
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.records import ID
from refold_tests.sample_types import THING, said

Sent = tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]], str]


def framed(log: KafkaLog, observation: Observation) -> bytes:
    return log.registry.newest(THING.name).codec.encode_observation(observation)


def bad_records(log: KafkaLog, partition: int) -> list[Sent]:
    """Return (key, value, headers, the verdict's reason) of records for a partition, at least one of each kind."""
    names = [f"{THING.name}/{number}" for number in range(99)]
    mine = next(name for name in names if log.partition_of(name) == partition)
    other = next(name for name in names if log.partition_of(name) != partition)
    good = framed(log, said(mine, 1))
    away = framed(log, said(other, 1))
    return [
        (mine.encode(), None, [], "undecodable"),
        (mine.encode(), b"", [], "undecodable"),
        (mine.encode(), b"\1" + good[1:], [], "undecodable"),
        (mine.encode(), good[:-1], [], "undecodable"),
        (mine.encode(), good + b"x", [], "undecodable"),
        (mine.encode(), b"\0\0\0\0\7" + good[5:], [("any", b"thing"), ("none", None)], "no_such_id"),
        (None, good, [], "misplaced"),
        (b"\xff\xfe", good, [], "misplaced"),
        (other.encode(), good, [], "misplaced"),
        (other.encode(), away, [(ID, identify(said(other, 1)))], "misplaced"),
        (mine.encode(), good, [(ID, bytes(32))], "misidentified"),
        (mine.encode(), good, [(ID, b"short")], "misidentified"),
    ]


def produce(log: KafkaLog, partition: int, sent: Sent) -> None:
    producer = log.clients.producer()
    key, value, headers, _ = sent
    producer.produce(log.topics.observations, key=key, value=value, headers=headers, partition=partition)
    assert producer.flush(60) == 0


def verdicts(log: KafkaLog) -> list[Verdict]:
    log.refresh()
    return [read_verdict(each.partition, each.data) for each in log.deadletters()]
