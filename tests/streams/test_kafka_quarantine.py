"""Definitions that an administrator sets aside and takes back, on a real broker: every reader decides alike, cuts
before are answered as they were, nothing that observations need is set aside, and a producer decides nothing."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.definition import document_text
from refold.avro.errors import InputError, SchemaError, StorageError
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.quarantine import entries, restore_definition, set_aside
from refold.streams.log.kafka.quarantine_records import HEADER, TOKEN_BYTES
from refold.streams.log.kafka.range_reader import Headers
from refold.streams.log.kafka.url import parse_url
from refold.streams.log.port import AppendedObservation
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold_tests.brokers import SharedKafka
from refold_tests.command import refold_command
from refold_tests.folding import append, await_folded, fold_all, opened, url_of
from refold_tests.kafka_topics import Broker
from refold_tests.sample_types import A, defined, document, said
from refold_tests.worker_pages import worker_with_pages

pytestmark = pytest.mark.timeout(300)

NOW_MS = 1_700_000_000_000
KNOWN = defined(document(last={"type": "long", "refold.reducer": "max"}))
UNWANTED = defined(document(last={"type": "long", "refold.reducer": "min"}))
WIDER = defined(
    document(
        more={"type": ["null", "string"], "refold.reducer": "latest"}, last={"type": "long", "refold.reducer": "max"}
    )
)
ODD = defined(document("odds", more={"type": "string", "refold.reducer": "latest"}))
RIGHT = defined(document("odds", more={"type": "long", "refold.reducer": "latest"}))


@pytest.fixture
def url(kafka: SharedKafka, prefix: str) -> str:
    return url_of(kafka.bootstrap, prefix)


def root(log: KafkaLog, *, full: bool = False) -> str:
    return rebuild(log, Points(log, 0).end(), full=full, parallel=False).root().hex()


def place_of(log: KafkaLog) -> KafkaPartition:
    return KafkaPartition(log.topics.schemas, 0)


def test_unwanted_definition_is_set_aside_and_restored(
    url: str, tmp_path: Path, kafka: SharedKafka, prefix: str
) -> None:
    broker = Broker(kafka.bootstrap, prefix)
    with opened(url) as log:
        log.register(KNOWN)
        append(log, [said(A, number) for number in (3, 1, 2)])
        with worker_with_pages(url, tmp_path) as (worker, _), refold.open(url) as client:
            client.snapshot()
            before, at_first = client.rebuild().root, client.mark("first")
            log.register(UNWANTED)
            (unwanted,) = [each for each in entries(log) if each.fingerprint == UNWANTED.fingerprint]
            client.snapshot()
            by_it, meanwhile = client.rebuild().root, client.mark("meanwhile")
            assert by_it != before

            dry = set_aside(log, unwanted.offset, NOW_MS, apply=False)
            assert not dry.is_aside
            size = broker.end(place_of(log))
            done = set_aside(log, unwanted.offset, NOW_MS, apply=True)
            assert (done.is_aside, done.decided_at) == (True, NOW_MS)
            assert broker.end(place_of(log)) == size + 1
            client.snapshot()
            await_folded(log, worker)
            for when, expected in (("now", before), (str(at_first), before), (str(meanwhile), by_it)):
                assert client.rebuild(when).root == client.rebuild(when, full=True).root == expected
            whole = client.verify()
            assert (whole.mismatches, whole.foreign) == ([], [])
            assert client.state(A).fields["last"] == 3

            # A producer cannot register a set-aside definition again, nor decide anything.
            with pytest.raises(SchemaError, match="was set aside by an administrator"):
                log.register(UNWANTED)
            token = next(each for each in log.schemas._tokens if log.manifests.decision_of(each))
            headers: list[Headers] = [[(HEADER, token)], [(HEADER, secrets.token_bytes(TOKEN_BYTES))], [(HEADER, b"x")]]
            for each in headers:
                broker.produce(place_of(log), [None], headers=each)
            log.refresh()
            assert [(each.records, each.first.offset) for each in log.foreign()] == [(3, size + 1)]
            assert root(log) == root(log, full=True) == before

            log.register(WIDER)
            with opened(url) as other:
                assert other.registry.digest() == log.registry.digest()
                assert [each.is_aside for each in entries(other)] == [False, True, False, False]
                assert not restore_definition(other, unwanted.offset, NOW_MS + 1, apply=True).is_aside
                assert root(other) == root(other, full=True) != before
            await_folded(log, worker)
            assert client.verify().ok
            assert client.rebuild().root == root(log)
        fold_all(log, tmp_path)


def test_definition_in_use_is_not_set_aside(url: str, kafka: SharedKafka, prefix: str) -> None:
    with opened(url) as log:
        log.register(KNOWN)
        log.register(WIDER)
        version = log.registry.newest(WIDER.name)
        observation = said(A, 1, more="x")
        log.append(AppendedObservation(A, bytes(32), version.codec.encode_observation(observation)))
        log.flush()
        end = Broker(kafka.bootstrap, prefix).end(place_of(log))
        with pytest.raises(InputError, match=r"the observation at .*=0 is written by this definition .* needs it"):
            set_aside(log, version.offset, NOW_MS, apply=True)
        for offset, problem in ((end, "there is no record"), (7_000, "there is no record")):
            with pytest.raises(InputError, match=problem):
                set_aside(log, offset, NOW_MS, apply=True)
        Broker(kafka.bootstrap, prefix).produce(place_of(log), [b"{}"])
        with pytest.raises(InputError, match="every reader skips it already"):
            set_aside(log, end, NOW_MS, apply=True)
        with pytest.raises(InputError, match="is not set aside"):
            restore_definition(log, version.offset, NOW_MS, apply=True)


def test_type_defined_only_by_a_stranger_becomes_free_again(url: str, tmp_path: Path) -> None:
    """With the commands in docs/OPERATIONS.md."""

    with opened(url) as log:
        log.register(KNOWN)
        log.register(ODD)
        (entry,) = [each for each in entries(log) if each.type_name == "odds"]
    position = f"0={entry.offset}"

    def command(*words: str) -> Any:
        done = refold_command("quarantine", *words, "--json", log=url)
        assert done.status == 0, done
        return done.json

    for _ in range(2):  # a dry run changes nothing
        with opened(url) as log, pytest.raises(SchemaError, match=rf"prevents it.* refold quarantine add {position}$"):
            log.register(RIGHT)
        assert command("add", position, "--dry-run")["aside"] is False
    file = tmp_path / "odds.avsc"
    file.write_text(document_text(RIGHT), encoding="utf-8")
    refused = refold_command("types", "--register", file, log=url).refused()
    assert refused.endswith(f"prevents it. If that definition is wrong and no observation needs it: refold "
                            f"quarantine add {position}")  # fmt: skip
    assert command("add", position)["aside"] is True
    assert "it is set aside" in refold_command("quarantine", "add", position, log=url).refused()
    with opened(url) as log:
        with pytest.raises(SchemaError, match="unknown type 'odds'"):
            log.registry.newest("odds")
        assert set(log.registry.fingerprints()) == {KNOWN.name}
        log.register(RIGHT)
    assert "cannot follow" in refold_command("quarantine", "remove", position, log=url).refused()
    assert [each["aside"] for each in command("list")] == [False, True, False]
    assert refold_command("doctor", log=url).status == refold_command("verify", log=url).status == 0
    for wrong in ("1=0", "41", "0=x", ""):
        assert "0=OFFSET" in refold_command("quarantine", "add", wrong, log=url).refused()
    assert "only a log on Kafka" in refold_command("quarantine", "list", "--log", "file:/nothing").refused()


def test_log_of_a_later_format_is_refused(url: str, kafka: SharedKafka, prefix: str) -> None:
    with opened(url) as log:
        log.register(KNOWN)
        Broker(kafka.bootstrap, prefix).produce(KafkaPartition(log.topics.manifests, 0), [b"2"], key=b"format/schemas")
        with pytest.raises(StorageError, match=r"format/schemas: a newer release .*; use the newer one"):
            log.refresh()
    with pytest.raises(StorageError, match="a newer release"):
        KafkaLog(parse_url(url))
