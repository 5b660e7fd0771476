"""`refold deadletters` on a real broker, on the archive of a log from there, and on logs without dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.ids import identify
from refold.avro.registry import TypeVersion
from refold.avro.times import parse_time
from refold.explorer.cli.main import run
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.records import ID
from refold_tests.brokers import SharedKafka
from refold_tests.folding import append, fold_all, opened, running, url_of
from refold_tests.poison import bad_records, framed, produce
from refold_tests.sample_types import OTHER, THING, A, said

pytestmark = pytest.mark.timeout(300)

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def log(kafka: SharedKafka, prefix: str) -> Iterator[KafkaLog]:
    with opened(url_of(kafka.bootstrap, prefix)) as found:
        found.register(THING)
        yield found


@pytest.fixture
def ask(log: KafkaLog, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run `refold deadletters ... --json` on the log; return its exit status and its output."""

    def asked(*words: str, url: str = log.url) -> tuple[int, Any]:
        status = run(["deadletters", *words, "--json", "--log", url])
        out = capsys.readouterr()
        assert status in (0, 1), out.err
        return status, json.loads(out.out)

    return asked


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["deadletters", *words]) == 2
    return capsys.readouterr().err


def named(log: KafkaLog, partition: int, offset: int) -> dict[str, int]:
    return {"partition": partition, "offset": offset}


def test_embedded_log_has_none_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        log.observe("document/d", {"fields": {}}, source="s")
    assert run(["deadletters", "list", "--log", url]) == 0
    assert "an embedded log refuses" in capsys.readouterr().out
    assert run(["deadletters", "--log", url, "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"count": 0, "reasons": {}, "deadletters": []}
    assert "there is no dead letter on it" in refused(["show", "0=0", "--log", url], capsys)
    assert "PARTITION=OFFSET" in refused(["show", "0:0", "--log", url], capsys)
    assert "nothing to retry" in refused(["retry", "--all", "--apply", "--log", url], capsys)
    assert "which ones?" in refused(["retry", "--log", url], capsys)
    assert "either" in refused(["retry", "0=0", "--all", "--log", url], capsys)


def test_list_counts_by_reason_and_filters(
    log: KafkaLog, ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(log, [said(A, 1)])
    bad = {partition: bad_records(log, partition) for partition in range(log.partitions)}
    for partition, records in bad.items():
        for sent in records:
            produce(log, partition, sent)
    fold_all(log, tmp_path)
    log.refresh()
    expected = [(partition, reason) for partition, records in bad.items() for *_, reason in records]
    status, said_then = ask("list")
    assert (status, said_then["count"]) == (0, len(expected))
    assert [(each["position"]["partition"], each["reason"]) for each in said_then["deadletters"]] == expected
    by_reason = {reason: sum(each == reason for _, each in expected) for reason in {each for _, each in expected}}
    assert said_then["reasons"] == by_reason
    for each in said_then["deadletters"]:
        assert each["type"] in (THING.name, None)
        assert each["detail"]
        assert each["remedy"]
        assert parse_time(each["appended_at"], "appended_at") > 0
    for reason, count in by_reason.items():
        assert ask("list", "--reason", reason)[1]["count"] == count
    assert ask("list", "--type", "nothing")[1]["count"] == 0
    assert ask("list", "--type", THING.name)[1]["count"] > 0
    middle = said_then["deadletters"][5]["position"]["offset"]
    since, until = (f"offset:0={middle},1=0", "offset:0=3")
    assert ask("list", "--since", since)[1]["deadletters"][0]["position"]["offset"] == middle
    assert {each["position"]["partition"] for each in ask("list", "--until", until)[1]["deadletters"]} == {0}
    assert ask("list", "--since", "now")[1]["count"] == 0
    few = ask("list", "--limit", "3")[1]
    assert (few["count"], few["deadletters"]) == (len(expected), said_then["deadletters"][-3:])
    assert run(["deadletters", "list", "--limit", "3", "--log", log.url]) == 0
    text = capsys.readouterr().out
    assert f"{len(expected)} dead letters: " in text
    assert "are not shown" in text


def test_show_prints_everything_and_its_observation_can_be_imported(
    log: KafkaLog, ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observation = said(A, 1)
    value = framed(log, observation)
    headers: list[tuple[str, str | bytes | None]] = [(ID, bytes(32)), ("none", None)]
    partition = log.partition_of(A)
    produce(log, partition, (A.encode(), value, headers, ""))
    produce(log, partition, (b"\xff\0", b"\1nothing", [], ""))
    fold_all(log, tmp_path / "worker")
    status, shown = ask("show", f"{partition}=0")
    assert (status, shown["position"], shown["reason"]) == (0, named(log, partition, 0), "misidentified")
    assert (bytes.fromhex(shown["value"]), bytes.fromhex(shown["key"])) == (value, A.encode())
    assert shown["headers"] == [[ID, bytes(32).hex()], ["none", None]]
    assert (shown["schema_id"], shown["observation"]["id"]) == (
        int.from_bytes(value[1:5], "big"),
        identify(observation).hex(),
    )
    assert shown["retry"]["outcome"] == "refused"
    (tmp_path / "one.jsonl").write_text(json.dumps(shown["observation"]) + "\n")
    assert run(["import", str(tmp_path / "one.jsonl"), "--log", log.url]) == 0, "as its remedy says"
    capsys.readouterr()
    log.refresh()
    assert log.find(identify(observation)) is not None

    other = ask("show", f"{partition}=1")[1]
    assert (other["reason"], other["observation"], other["entity"], other["schema_id"]) == (
        "undecodable",
        None,
        None,
        None,
    )
    for offset, words in ((0, ("what to do", "misidentified", A, value[:16].hex(" "))), (1, ("0xff00", ".nothing"))):
        assert run(["deadletters", "show", f"{partition}={offset}", "--log", log.url]) == 0
        text = capsys.readouterr().out
        assert [word for word in words if word not in text] == []


@contextmanager
def mended(log: KafkaLog, folder: Path) -> Iterator[tuple[int, int]]:
    """Run a worker on a log with two dead letters. The first record's type is registered by now; the second one's is
    not.

    Yields the partition and offset of the first.
    """
    early = said(f"{OTHER.name}/early", 1)
    data = TypeVersion(OTHER, 0, 0).codec.encode_observation(early)
    partition = log.partition_of(early.entity)
    produce(log, partition, (early.entity.encode(), data, [], ""))
    produce(log, partition, (early.entity.encode(), b"\1no", [], ""))
    fold_all(log, folder)
    log.register(OTHER)
    with running(log.url, folder):
        yield partition, 0


def test_retry_appends_once_and_reports_the_result(
    log: KafkaLog, ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mended(log, tmp_path / "worker") as (partition, first):
        log.refresh()
        ends = log.ends()
        status, dry = ask("retry", "--all")
        assert (status, dry["applied"]) == (1, False)
        assert [each["outcome"] for each in dry["deadletters"]] == ["ready", "refused"]
        assert run(["deadletters", "retry", f"{partition}={first}", "--log", log.url]) == 0
        assert "dry run" in capsys.readouterr().out
        log.refresh()
        assert log.ends() == ends, "a dry run appends nothing"

        status, done = ask("retry", "--reason", "no_such_id", "--apply", "--wait", "60")
        (told,) = done["deadletters"]
        assert (status, done["applied"], told["outcome"], told["fate"]) == (0, True, "appended", "folded")
        log.refresh()
        assert log.ends() == {**ends, partition: ends[partition] + 1}
        assert told["at"] == named(log, partition, ends[partition])
        assert ask("show", f"{partition}={first}")[1]["retry"]["fate"] == "folded"
        assert [each["position"]["offset"] for each in ask("list", "--waiting")[1]["deadletters"]] == [first + 1]

        status, twice = ask("retry", f"{partition}={first}", "--apply")
        assert (status, twice["deadletters"][0]["outcome"], twice["deadletters"][0]["at"]) == (0, "retried", told["at"])
        log.refresh()
        assert log.ends()[partition] == ends[partition] + 1
        status, again = ask("retry", f"{partition}={first}", "--apply", "--again", "--wait", "60")
        assert (status, again["deadletters"][0]["fate"]) == (0, "folded")
        with refold.open(log.url, read_only=True) as reader:
            assert reader.state(f"{OTHER.name}/early").version == 1, "the same observation, however often it came"


def test_retry_without_a_worker_waits_and_says_so(
    log: KafkaLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mended(log, tmp_path / "worker") as (partition, first):
        pass
    words = ["deadletters", "retry", f"{partition}={first}", "--apply", "--wait", "0", "--log", log.url]
    assert run(words) == 0
    assert "wait for a worker" in capsys.readouterr().out


def test_archive_shows_its_origins_dead_letters_and_retries_none(
    log: KafkaLog, ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(log, [said(A, 1)])
    for sent in bad_records(log, 0):
        produce(log, 0, sent)
    fold_all(log, tmp_path / "worker")
    archive, copy = str(tmp_path / "x.avro"), f"file:{tmp_path / 'copy'}"
    assert run(["export", archive, "--archive", "--log", log.url]) == 0
    assert run(["import", archive, "--format", "archive", "--log", copy]) == 0
    capsys.readouterr()
    here, there = ask("list")[1], ask("list", url=copy)[1]
    assert there == here
    position = "0={offset}".format(**here["deadletters"][0]["position"])
    shown = ask("show", position, url=copy)[1]
    assert (shown["value"], shown["retry"]) == (ask("show", position)[1]["value"], None)
    for words in (["retry", position], ["list", "--waiting"]):
        assert "ask the log on Kafka" in refused([*words, "--log", copy], capsys)
