"""Records that a broker's disk damaged, under real workers: what needs one waits and says so, what is set aside is as
if it had never been recorded, and what is taken back is needed again."""

from __future__ import annotations

import random
import shlex
import shutil
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.errors import CorruptionError, DamagedRecord, InputError
from refold.avro.observation import Observation
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.quarantine import restore_record, set_record_aside
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.worker.host.health import health_of, readiness_of
from refold.testing.kafka import Kafka
from refold_tests.bitrot import Rot, rot, without_compression
from refold_tests.command import refold_command
from refold_tests.folding import Running, append, await_folded, history, opened, running, url_of
from refold_tests.kafka_topics import Broker
from refold_tests.sample_types import THING, A, said
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true
from refold_tests.worker_pages import worker_with_pages
from refold_tests.worker_process import starting

pytestmark = pytest.mark.timeout(600)

NOW_MS = 1_700_000_000_000


@pytest.fixture
def url(rotting: Kafka, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    without_compression(monkeypatch)
    return url_of(rotting.bootstrap, f"log{abs(hash(request.node.nodeid)) % 10**8}")


def records_of(log: KafkaLog, topic: str) -> list[tuple[int, Any]]:
    """(partition, record) of a topic."""
    found = []
    for partition in range(log.partitions):
        place = KafkaPartition(topic, partition)
        found += [(partition, raw) for raw in log.reading.records(place, 0, log.offsets.ends([place])[place])]
    return found


def damage(kafka: Kafka, log: KafkaLog, partition: int, raw: Any) -> Rot:
    """Damage an observation so that it is unreadable."""
    return rot(kafka, log.topics.observations, partition, raw.value, raw.value[:5] + b"\xff" * (len(raw.value) - 5))


def single(log: KafkaLog, rng: random.Random) -> tuple[int, Any]:
    """An observation whose bytes are in the log once."""
    found = records_of(log, log.topics.observations)
    values = [raw.value for _, raw in found]
    return rng.choice([each for each in found if values.count(each[1].value) == 1])


def root(log: KafkaLog, *, full: bool = False) -> str:
    log.refresh()
    return rebuild(log, Points(log, 0).end(), full=full, parallel=False).root().hex()


def root_without(url: str, log: KafkaLog, aside: set[tuple[int, int]]) -> str:
    """The root of a log that never had the records at some places."""
    records = [
        (log.registry.decode(raw.value), raw.value)
        for partition, raw in records_of(log, log.topics.observations)
        if (partition, raw.offset) not in aside
    ]
    prefix = f"other{time.monotonic_ns()}"
    with opened(url.replace(f"/{log.topics.prefix}?", f"/{prefix}?")) as other:
        other.register(THING)
        append(other, [each for each, _ in records])
        return root(other, full=True)


def page_of(url: str) -> str:
    """Return the content of a worker's page."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def observations(rng: random.Random, length: int) -> list[Observation]:
    return history(rng, length)


def status_of(worker: Running, partition: int) -> Mapping[str, Any]:
    return worker.service.status().get(partition, {})


def refused_tail(url: str) -> str:
    """The one line that ends `refold tail`."""
    done = refold_command("tail", log=url)
    assert (done.status, done.err.count("\n")) == (2, 1), done
    return done.err.strip()


def await_folding(worker: Running) -> None:
    """Wait until a worker folds every partition."""
    await_true(lambda: all(status_of(worker, each).get("state") == "folding" for each in range(2)))


def await_damage(worker: Running, partition: int) -> str:
    """Return the position at which a worker reports that a partition waits."""
    await_true(lambda: bool(status_of(worker, partition).get("damage")), "the worker does not say so")
    worker.look()
    return str(status_of(worker, partition)["damage"])


def test_damaged_observation_is_named_set_aside_and_restored(
    rotting: Kafka, url: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append(log, observations(rng, 60))
        tables = tmp_path / "tables"
        with worker_with_pages(url, tables) as (worker, page), refold.open(url) as client:
            await_folded(log, worker)
            client.snapshot()
            append(log, observations(rng, 20))
            await_folded(log, worker)
            whole = root(log, full=True)
            partition, raw = single(log, rng)
            expected = root_without(url, log, {(partition, raw.offset)})
            assert expected != whole
            entity = raw.key.decode()
            wound = damage(rotting, log, partition, raw)

            # Every reader that needs it gets its place and the command.
            refused = refold_command("rebuild", "--full", log=url).refused()
            name = f"{log.topics.prefix}.observations"
            assert f"{name} {partition}={raw.offset}: the record of {entity} is damaged" in refused
            command = refused[refused.index("refold quarantine add") :].strip()
            assert command == f"refold quarantine add {name}/{partition}/{raw.offset} --log {log.url}"
            assert command.split(" --log")[0] in refold_command("verify", log=url).out
            for suffix, more in ((".jsonl", ()), (".avro", ()), (".avro", ("--archive",))):
                target = tmp_path / f"refused{suffix}"
                said = refold_command("export", target, *more, log=url).refused()
                assert f"{name} {partition}={raw.offset}: the record of {entity} is damaged" in said
                assert said.strip().endswith(command)
                assert not target.exists()
            words = shlex.split(command)[1:]
            dry = refold_command(*words, "--dry-run", "--json")
            assert (dry.status, dry.json["aside"], dry.json["entity"]) == (0, False, entity), dry
            with pytest.raises(DamagedRecord):
                root(log, full=True)
            done = refold_command(*words, "--json")
            assert (done.status, done.json["aside"]) == (0, True), done
            assert "it is set aside" in refold_command(*words).refused()

            # From here on it is as if it had never been recorded, at every point and for every reader.
            assert root(log) == root(log, full=True) == expected
            await_true(lambda: status_of(worker, partition).get("state") == "folding")
            await_folded(log, worker)
            checked = client.verify()
            assert (checked.mismatches, checked.root, checked.unchecked) == ([], expected, [])
            assert [(each.topic, each.records) for each in checked.set_aside] == [("observations", 1)]
            metrics = page_of(f"{page}/metrics")
            assert f'refold_set_aside_records{{log="{log.topics.prefix}",topic="observations"}} 1.0' in metrics
            findings = refold_command("doctor", "--json", log=url).json["findings"]
            assert any("1 damaged record set aside" in each["finding"] for each in findings)
            export, archive = tmp_path / "export.jsonl", tmp_path / "log.avro"
            assert refold_command("export", export, log=url).status == 0
            assert f'"id":"{raw.header("refold-id").hex()}"' not in export.read_text(encoding="utf-8")
            assert refold_command("export", archive, "--archive", log=url).status == 0
            client.snapshot()
            assert root(log) == expected
            history_ids = [each.observation for each in client.history(entity)] if raw.offset else []
            assert raw.header("refold-id").hex() not in history_ids

            # After restoring, it is needed again: the worker waits at it and says so; the other partition continues.
            assert refold_command("quarantine", "remove", words[2], log=url).status == 0
            with pytest.raises(DamagedRecord):
                root(log, full=True)
            assert f"{name} {partition}={raw.offset}" in await_damage(worker, partition)
            status, condition = worker.service.status(), worker.service.condition()
            health, ready = health_of(status, condition), readiness_of(status, condition)
            assert health["healthy"]
            assert "is damaged" in health["partitions"][partition]["damage"]
            assert not ready["ready"]
            assert "is damaged" in ready["why"]
            metrics = page_of(f"{page}/metrics")
            assert f'refold_damaged_waiting{{log="{log.topics.prefix}",partition="{partition}"}} 1.0' in metrics
            append(log, observations(rng, 30))
            other = 1 - partition
            await_true(lambda: status_of(worker, other).get("lag") == 0)

            # The brokers' data is restored: everything is as before.
            wound.heal()
            await_folded(log, worker)
            after = root(log, full=True)
            assert root(log) == after
            assert client.verify().ok
        imported = tmp_path / "imported"
        assert refold_command("import", archive, "--format", "archive", "--log", f"file:{imported}").status == 0
        assert refold_command("rebuild", "--json", log=f"file:{imported}").json["root"] == expected


def test_worker_without_its_table_waits_at_a_damaged_record(
    rotting: Kafka, url: str, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append(log, observations(rng, 40))
        with running(url, tmp_path) as worker:
            await_folded(log, worker)
        partition, raw = single(log, rng)
        expected = root_without(url, log, {(partition, raw.offset)})
        damage(rotting, log, partition, raw)
        shutil.rmtree(tmp_path / str(partition))
        with running(url, tmp_path) as worker:
            found = await_damage(worker, partition)
            assert "refold quarantine add" in found
            assert "refold quarantine add" in caplog.text
            append(log, [said(f"everything/{number}", 50_000 + number, last=1) for number in range(20)])
            await_true(lambda: status_of(worker, 1 - partition).get("caught_up", False))
            with pytest.raises(InputError, match="can be set aside: 0 to 1"):
                set_record_aside(log, "observations", 7, raw.offset, NOW_MS, apply=True)
            set_record_aside(log, "observations", partition, raw.offset, NOW_MS, apply=True)
            await_true(lambda: status_of(worker, partition).get("state") == "folding", within_s=300)
            await_folded(log, worker)
            assert not status_of(worker, partition)["damage"]
        assert root(log) == root(log, full=True)
        restore_record(log, "observations", partition, raw.offset, NOW_MS, apply=True)
        with pytest.raises(CorruptionError):
            root(log, full=True)
    assert expected


def test_undamaged_record_is_not_set_aside(rotting: Kafka, url: str, tmp_path: Path) -> None:
    with opened(url) as log:
        log.register(THING)
        append(log, [said(A, number) for number in range(3)])
        partition = log.partition_of(A)
        log.refresh()
        with pytest.raises(InputError, match="no worker has decided it yet"):
            set_record_aside(log, "observations", partition, 1, NOW_MS, apply=True)
        with running(url, tmp_path) as worker:
            await_folded(log, worker)
        log.refresh()
        with pytest.raises(InputError, match="it is not damaged"):
            set_record_aside(log, "observations", partition, 1, NOW_MS, apply=True)
        with pytest.raises(InputError, match="it is not damaged"):
            set_record_aside(log, "changes", partition, 0, NOW_MS, apply=True)
        with pytest.raises(InputError, match="there is no record"):
            set_record_aside(log, "observations", partition, 999, NOW_MS, apply=True)
        with pytest.raises(InputError, match="it is not set aside"):
            restore_record(log, "observations", partition, 1, NOW_MS, apply=True)


def test_damaged_change_is_skipped_once_set_aside(rotting: Kafka, url: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with opened(url) as log:
        log.register(THING)
        append(log, observations(rng, 60))
        with running(url, tmp_path / "tables") as worker:
            await_folded(log, worker)
        log.refresh()
        partition, raw = rng.choice(records_of(log, log.topics.changes))
        rot(rotting, log.topics.changes, partition, raw.value, raw.value[:5] + b"\xff" * (len(raw.value) - 5))
        name = f"{log.topics.prefix}.changes"
        refused = refused_tail(url)
        assert f"{name} {partition}={raw.offset}: the record is damaged" in refused
        words = shlex.split(refused[refused.index("refold quarantine add") :])[1:]
        assert refold_command("verify", log=url).status == 1
        done = refold_command(*words, "--json")
        assert (done.status, done.json["entity"]) == (0, raw.key.decode()), done
        assert refold_command("tail", log=url).status == 0
        checked = refold_command("verify", "--json", log=url)
        assert (checked.json["mismatches"], checked.status) == ([], 0), checked
        assert [each["topic"] for each in checked.json["set_aside"]] == ["changes"]
        store = tmp_path / "store"
        assert refold_command("sink", "parquet", "--once", "--to", f"file://{store}", log=url).status == 0
        assert refold_command("quarantine", "remove", words[2], log=url).status == 0
        assert f"{name} {partition}={raw.offset}" in refused_tail(url)


AGENT = """
from pathlib import Path

from refold.streams.worker.agents import changes_agent


@changes_agent("document")
def sees(change, log):
    with Path(__file__).with_suffix(".txt").open("a", encoding="utf-8") as file:
        file.write(f"{change.entity} v{change.to_version}\\n")
"""


def test_agents_skip_changes_that_are_set_aside_and_foreign_records(
    rotting: Kafka, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent's worker ends at a damaged change, and names the command; then it continues from there."""
    module = tmp_path / "seeing.py"
    module.write_text(AGENT, encoding="utf-8")
    said_by_agent = module.with_suffix(".txt")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'tests' / 'support'}")
    names = [f"document/{number}" for number in range(6)]
    with opened(url) as log, refold.open(url) as client:
        for name in names[:5]:
            client.observe(name, {"fields": {"a": 1}}, source="one")
        client.flush()
        with running(url, tmp_path / "w") as worker:
            await_folded(log, worker)
        log.refresh()
        partition, raw = next(each for each in records_of(log, log.topics.changes) if each[1].key == names[2].encode())
        rot(rotting, log.topics.changes, partition, raw.value, raw.value[:5] + b"\xff" * (len(raw.value) - 5))
        Broker(rotting.bootstrap, log.topics.prefix).produce(KafkaPartition(log.topics.changes, partition), [b"junk"])
        with starting(url, tmp_path) as start:
            status, last = start("w", "--agents", "seeing").ended(300)
            assert (status, f"{log.topics.changes}/{partition} offset {raw.offset} cannot be read" in last) == (2, True)
            assert f"refold quarantine add {log.topics.changes}/{partition}/{raw.offset} --log {log.url}" in last
            set_record_aside(log, "changes", partition, raw.offset, NOW_MS, apply=True)
            again = start("w", "--agents", "seeing")
            client.observe(names[5], {"fields": {"a": 1}}, source="one")
            client.flush()
            expected = {f"{name} v1" for name in names if name != names[2]}
            await_true(lambda: {*said_by_agent.read_text(encoding="utf-8").splitlines()} >= expected, within_s=120)
            assert again.stop()[0] == 0
    assert {*said_by_agent.read_text(encoding="utf-8").splitlines()} == expected


@pytest.mark.parametrize("number", range(2))
def test_random_damage_rulings_and_restarts_fold_as_an_undamaged_log_would(
    rotting: Kafka, url: str, tmp_path: Path, seed: int, number: int
) -> None:
    """At each moment a full replay and a rebuild from epochs give what a log without the set-aside ones folds to, or a
    record that is damaged and not set aside is named."""
    rng = random.Random(seed + number)
    tables = tmp_path / "tables"
    wounds: dict[tuple[int, int], Rot] = {}
    aside: set[tuple[int, int]] = set()
    with opened(url) as log, ExitStack() as ending:
        log.register(THING)
        append(log, observations(rng, 80))
        context = ending.enter_context(ExitStack())
        (worker, _), is_asked = context.enter_context(worker_with_pages(url, tables)), True
        client = ending.enter_context(refold.open(url))
        await_folded(log, worker)
        sound = {(p, raw.offset): log.registry.decode(raw.value) for p, raw in records_of(log, log.topics.observations)}
        for _ in range(12):
            chance = rng.random()
            if chance < 0.3:
                partition, raw = single(log, rng)
                if (partition, raw.offset) not in wounds:
                    wounds[partition, raw.offset] = damage(rotting, log, partition, raw)
            elif chance < 0.6 and wounds.keys() - aside:
                at = rng.choice(sorted(wounds.keys() - aside))
                set_record_aside(log, "observations", *at, NOW_MS, apply=True)
                aside.add(at)
            elif chance < 0.75 and wounds:
                at = rng.choice(sorted(wounds))
                wounds.pop(at).heal()
            elif chance < 0.85 and aside:
                at = rng.choice(sorted(aside))
                restore_record(log, "observations", *at, NOW_MS, apply=True)
                aside.discard(at)
            elif chance < 0.95:
                context.close()
                if rng.random() < 0.5:
                    shutil.rmtree(tables / str(rng.randrange(2)), ignore_errors=True)
                worker, is_asked = context.enter_context(running(url, tables)), False
            elif is_asked and not wounds.keys() - aside:
                await_folding(worker)
                client.snapshot()
            worker.look()
            if wounds.keys() - aside:
                with pytest.raises(DamagedRecord):
                    root(log, full=True)
            else:
                assert root(log, full=True) == root(log)
        for at in sorted(wounds.keys() - aside):
            set_record_aside(log, "observations", *at, NOW_MS, apply=True)
            aside.add(at)
        context.close()
        # A client without knowledge of earlier workers.
        with worker_with_pages(url, tables) as (last, _), refold.open(url) as asking:
            await_folded(log, last)
            whole = asking.verify()
            assert (whole.mismatches, whole.unchecked) == ([], [])
        with opened(url.replace(f"/{log.topics.prefix}?", f"/{log.topics.prefix}x?")) as other:
            other.register(THING)
            append(other, [each for at, each in sorted(sound.items()) if at not in aside])
            assert root(other, full=True) == root(log, full=True) == root(log) == whole.root
