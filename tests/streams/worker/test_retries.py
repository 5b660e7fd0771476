"""Retried dead letters: judged by current definitions, appended once, folded as if they had been valid at first."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from refold.avro.ids import identify
from refold.avro.registry import Registry, TypeVersion
from refold.streams.deadletters import RETRY_OF, Verdict, dead_letters, describe_dead_letter
from refold.streams.log.kafka.deadletter_retry import Refused, RetryReady, fates, judge, retried, retry
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.records import ID
from refold.streams.log.port import Position
from refold.streams.partitioner import partition_of
from refold_tests.folding import append, check_whole, fold_all, history, last_changes, opened
from refold_tests.poison import bad_records, framed, produce, verdicts
from refold_tests.sample_types import OTHER, THING, A, said

pytestmark = pytest.mark.timeout(300)


def ready_of(log: KafkaLog) -> list[RetryReady]:
    """Return the log's dead letters that would be observations now."""
    judged = [judge(log.registry, log.partitions, each) for each in verdicts(log)]
    return [each for each in judged if isinstance(each, RetryReady)]


def test_each_retry_is_judged_by_the_workers_rules_and_todays_definitions() -> None:
    registry = Registry()
    observation = said(A, 1)
    data = TypeVersion(THING, 0, 0).codec.encode_observation(observation)
    headers: list[tuple[str, str | bytes | None]] = [(ID, identify(observation)), ("any", b"thing")]
    verdict = Verdict(0, 7, "no_such_id", "", A.encode(), data, headers, 1_000)

    def judged(**given: object) -> RetryReady | Refused:
        return judge(registry, 4, verdict._replace(**given))  # type: ignore[arg-type]

    refused = judged()
    assert isinstance(refused, Refused)
    assert refused.reason == "no_such_id"
    registry.add(THING)
    there = RetryReady(verdict, partition_of(A, 4), A)
    assert judged() == there
    assert there.of == Position(0, 7)
    # With any key and partition: the bytes say where it belongs.
    for key in (None, b"\xff", b"document/other"):
        assert judged(key=key, partition=3) == there._replace(verdict=verdict._replace(key=key, partition=3))
    # An id that contradicts the bytes cannot be fixed.
    for value, given, reason in (
        (data, [(ID, bytes(32))], "misidentified"), (data[:-1], [], "undecodable"), (None, [], "undecodable"),
        (b"\0\0\0\0\7" + data[5:], [], "no_such_id"),
    ):  # fmt: skip
        found = judged(value=value, headers=given)
        assert isinstance(found, Refused)
        assert (found.reason, bool(found.detail)) == (reason, True)


def test_repairable_dead_letters_are_folded_once_and_others_stay_out(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    observations = history(rng, 120)
    acknowledged = append(log, observations[:60])
    early = [said(f"{OTHER.name}/{number}", number) for number in range(6)]
    for each in early:
        data = TypeVersion(OTHER, 0, 0).codec.encode_observation(each)
        headers: list[tuple[str, str | bytes | None]] = [(ID, identify(each)), ("any", b"thing"), ("none", None)]
        produce(log, log.partition_of(each.entity), (each.entity.encode(), data, headers, ""))
    for partition in range(log.partitions):
        for sent in bad_records(log, partition):
            produce(log, partition, sent)
    acknowledged |= append(log, observations[60:])
    fold_all(log, tmp_path)
    reasons = {each.of: each.verdict.reason for each in ready_of(log)}
    assert set(reasons.values()) == {"misplaced"}
    log.register(OTHER)
    ready = ready_of(log)
    assert {each.verdict.reason for each in ready} == {"misplaced", "no_such_id"}
    assert retried(log, ready) == {}

    stands = retry(log, ready)
    assert stands.keys() == {each.of for each in ready}
    assert set(fates(log, stands.values()).values()) == {"waiting"}
    assert retried(log, ready) == stands
    fold_all(log, tmp_path)
    log.refresh()
    assert set(fates(log, stands.values()).values()) == {"folded"}
    assert retried(log, ready) == stands
    acknowledged |= {record.id for at in stands.values() if (record := log.record_at(*at)) is not None}
    assert {identify(each) for each in early} <= acknowledged
    check_whole(log, tmp_path, acknowledged)
    before = last_changes(log)

    again = retry(log, ready)  # by somebody who does not look
    assert all(again[at] > stands[at] for at in stands)
    fold_all(log, tmp_path)
    assert last_changes(log) == before
    check_whole(log, tmp_path, acknowledged)


def test_retry_keeps_bytes_and_headers_names_its_original_and_may_be_retried(log: KafkaLog, tmp_path: Path) -> None:
    observation = said(f"{OTHER.name}/early", 1)
    entity = observation.entity.encode()
    data = TypeVersion(OTHER, 0, 0).codec.encode_observation(observation)
    partition = log.partition_of(observation.entity)
    produce(
        log, partition, (entity, data, [("any", b"thing"), (RETRY_OF, b"not ours"), (ID, identify(observation))], "")
    )
    fold_all(log, tmp_path)
    (first,) = verdicts(log)
    assert describe_dead_letter(log.registry, 0, first).retry_of is None, "what stands in that header is no position"
    # Appended before its definition exists, as by a client with a newer definition: it gets a verdict again.
    unknown = retry(log, [RetryReady(first, partition, observation.entity)])
    fold_all(log, tmp_path)
    _, second = verdicts(log)
    assert (second.value, second.key) == (first.value, first.key)
    kept = [header for header in first.headers if header[0] != RETRY_OF]
    assert [header for header in second.headers if header[0] != RETRY_OF] == kept
    assert describe_dead_letter(log.registry, 1, second).retry_of == Position(partition, first.offset)
    assert unknown == {Position(partition, first.offset): Position(partition, second.offset)}
    log.refresh()
    assert set(fates(log, unknown.values()).values()) == {"refused"}
    log.register(OTHER)
    ready = ready_of(log)
    assert retried(log, ready) == unknown, "the second one was not retried yet"
    stands = retry(log, [each for each in ready if each.of not in unknown])
    fold_all(log, tmp_path)
    log.refresh()
    assert fates(log, stands.values()) == dict.fromkeys(stands.values(), "folded")
    check_whole(log, tmp_path, {identify(observation)})


def test_dead_letters_match_their_records(log: KafkaLog, tmp_path: Path) -> None:
    for sent in (records := bad_records(log, 0)):
        produce(log, 0, sent)
    fold_all(log, tmp_path)
    log.refresh()
    found = list(dead_letters(log))
    assert [each.number for each in found] == sorted(each.number for each in found)
    for each, (key, value, _, reason) in zip(found, records, strict=True):
        assert (each.verdict.key, each.verdict.value, each.verdict.reason) == (key, value, reason)
        assert each.remedy
        assert each.wire_id == (int.from_bytes(value[1:5], "big") if value and value[:1] == b"\0" else None)
        if each.observation is not None:
            assert framed(log, each.observation) == value
            assert each.entity == each.observation.entity
        else:
            assert each.entity.encode() == key
        assert each.type_name == THING.name


def test_retry_killed_between_append_and_report_has_retried(log: KafkaLog, tmp_path: Path) -> None:
    """A process ends after the flush: the next one finds what it appended, and repeats none of it."""
    for sent in bad_records(log, 1):
        produce(log, 1, sent)
    fold_all(log, tmp_path)
    ready = ready_of(log)
    done = ready[: len(ready) // 2]
    assert done
    retry(log, done)
    with opened(log.url) as other:
        before = retried(other, ready_of(other))
        assert before.keys() == {each.of for each in done}
        assert retry(other, [each for each in ready if each.of not in before]).keys() | before.keys() == {
            each.of for each in ready
        }
