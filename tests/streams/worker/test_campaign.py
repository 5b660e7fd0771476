"""A campaign against a complete setup: real workers and a secured broker, while everything that can go wrong does.

An attacker with only a producer's rights writes junk into every topic that accepts it, the broker is
killed, stopped and paused, and a worker's disk fills. Meanwhile a client appends. What must hold:

1. The attacker is denied every topic that a producer does not write.
2. Each outage, each recovery, the attacker's records, and a full disk show in `/health`, `/metrics` and the log,
   and in `/ready` if they block something. The test prints how soon.
3. A worker ends only if its disk is full, with a line that names the disk. With space again, it continues.
4. Every acknowledged observation is folded once: states, changes and indexes are those of the reference fold.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refold.streams.log.kafka.log import KafkaLog
from refold.streams.worker.data_folder import FULL_BYTES
from refold.testing.kafka import Kafka
from refold_tests.brokers import started
from refold_tests.devices import fill, small_device
from refold_tests.folding import await_folded, check_whole, history, opened
from refold_tests.junk import junk
from refold_tests.load import Feeding, feeding
from refold_tests.poison import bad_records
from refold_tests.sample_types import THING
from refold_tests.secured import Secured
from refold_tests.waiting import await_true
from refold_tests.worker_process import Worker

pytestmark = [pytest.mark.faults, pytest.mark.kafka, pytest.mark.timeout(1800)]

PARTITIONS = 4
DEBUG = "REFOLD_KAFKA_DEBUG"
REDUCER = "refold_tests.histories:folded"
REDUCERS = {"REFOLD_REDUCERS": REDUCER}
SETTLED_S = 300.0
"""Within this time any machine reports the event, has restarted a broker and joined the group."""


class Stranger:
    """Writes junk with a producer's rights. denied: the topics that refused; written: records by topic."""

    def __init__(self, kafka: Kafka, log: KafkaLog, rng: random.Random) -> None:
        self.denied: set[str] = set()
        self.written: dict[str, int] = {}
        self._log = log
        self._rng = rng
        self._producer = Producer({**kafka.client_config("producer"), "message.max.bytes": 4 << 20})

    def write(self, times: int) -> None:
        """Write some records to each topic of the log, each to a random partition."""
        for topic, records in junk(self._log).items():
            partitions = 1 if topic == self._log.topics.schemas else PARTITIONS
            for each in self._rng.choices(records, k=times):
                self._send(topic, self._rng.randrange(partitions), each.key, each.value, each.headers)
        for _ in range(times):
            partition = self._rng.randrange(PARTITIONS)
            key, value, headers, _ = self._rng.choice(bad_records(self._log, partition))
            self._send(self._log.topics.observations, partition, key, value, headers)
        assert self._producer.flush(SETTLED_S) == 0

    def _send(self, topic: str, partition: int, key: Any, value: Any, headers: Any) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.written[topic] = self.written.get(topic, 0) + 1
            else:
                self._note_denied(topic, error)

        try:
            self._producer.produce(topic, value, key, partition, headers=headers, on_delivery=delivered)
        except KafkaException as failed:  # the client knows of the denial from an earlier record
            self._note_denied(topic, failed.args[0])

    def _note_denied(self, topic: str, error: KafkaError) -> None:
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
        self.denied.add(topic)


class Seen(NamedTuple):
    """A worker's pages at one moment; None for pages that do not answer."""

    is_ready: bool
    health: dict[str, Any]
    metrics: str

    @property
    def is_connected(self) -> bool:
        """Whether a broker answers, by `/health`."""
        return bool(self.health["broker"]["connected"])

    @property
    def letters(self) -> int:
        """How many records got verdicts, by `/health`."""
        return sum(each.get("deadletters", 0) for each in self.health["partitions"].values())

    def value(self, name: str, label: str = "") -> float:
        """The sum over a metric's series, or over those with a label."""
        series = [line for line in self.metrics.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        series = [line for line in series if label in line]
        assert series, (name, label, self.metrics)
        return sum(float(line.rpartition(" ")[2]) for line in series)


def seen(worker: Worker) -> Seen:
    """Request each page once."""
    with urlopen(f"{worker.url}/metrics", timeout=SETTLED_S) as found:
        metrics = found.read().decode()
    return Seen(worker.get("/ready")[0] == 200, worker.get("/health")[1], metrics)


def await_seen(worker: Worker, holds: Callable[[Seen], bool], why: str) -> None:
    """Wait until a worker's pages show it, and print how long that took; fails if the worker ends."""

    def shown() -> bool:
        if worker.process.poll() is not None:
            pytest.fail("\n".join([why, *map(str, worker.ended()), *worker.logged[-20:]]))
        with suppress(ConnectionError, URLError):
            return holds(seen(worker))
        return False

    began_s = time.monotonic()
    await_true(shown, f"{why}: {worker.logged[-5:]}", within_s=SETTLED_S)
    print(f"{time.monotonic() - began_s:.1f} s, then no longer: {why}")


def await_event(worker: Worker, name: str, count: int) -> None:
    """Wait until a worker has logged an event this often."""
    await_true(lambda: len(worker.events(name)) >= count, f"{name}: {worker.logged[-10:]}", within_s=SETTLED_S)


@contextmanager
def running(secured: Secured, name: str, folder: Path) -> Iterator[Worker]:
    """A worker as its users start it."""
    support = os.pathsep.join(each for each in sys.path if each)
    environment = {**os.environ, **secured.environment("worker"), "PYTHONPATH": support, **REDUCERS}
    del environment[DEBUG]
    found = Worker("--data", folder, "--port", 0, "--instance", name, env=environment)
    try:
        yield found
    finally:
        found.kill()


def outages(rng: random.Random, rounds: int) -> list[str]:
    """The broker's faults. Starting a secured broker takes as long as everything else: two rounds share one."""
    found = ["pause", *rng.sample(["kill", "stop"], k=min(rounds - 1, 2))]
    rng.shuffle(found)
    return found


def outage(kafka: Kafka, how: str, workers: list[Worker], fed: Feeding) -> None:
    """The broker goes away and comes back; every worker shows both."""
    lost = [len(each.events("broker_lost")) for each in workers]
    back = [len(each.events("broker_back")) for each in workers]
    getattr(kafka, how)(1)
    for each, before in zip(workers, lost, strict=True):
        await_seen(
            each, lambda found: not found.is_ready and not found.is_connected
            and not found.value("refold_broker_connected"), f"{how}: it does not show that the broker is gone",
        )  # fmt: skip
        await_event(each, "broker_lost", before + 1)
        series = seen(each)
        assert f'partition="{PARTITIONS - 1}"' in series.metrics  # series stay while the broker is away
    (kafka.resume if how == "pause" else kafka.restart)(1)
    for each, before in zip(workers, back, strict=True):
        await_seen(each, lambda found: found.is_connected, f"{how}: it does not show that the broker is back")
        await_event(each, "broker_back", before + 1)
        await_seen(each, lambda found: found.is_ready, f"{how}: it is not ready again")
    fed.await_more()


def fill_up(worker: Worker, small: Path, fed: Feeding, log: KafkaLog) -> Path:
    """A worker's disk is full: the worker shows this while it has nothing to write, and ends at its next write."""
    fed.pause()
    await_true(
        lambda: all(each["lag"] == 0 for each in worker.folding.values()), "it folds no more", within_s=SETTLED_S
    )
    filler = fill(small)
    await_seen(
        worker, lambda found: not found.is_ready and not found.health["healthy"]
        and f"{small}: no space left" in found.health["why"] and found.value("refold_disk_free_bytes") < FULL_BYTES,
        "it does not show that its disk is full",
    )  # fmt: skip
    await_event(worker, "folder_unusable", 1)
    fed.go_on()
    status, said = worker.ended(SETTLED_S)
    assert status == 2, (said, worker.logged[-10:])
    assert "no space left" in said.lower(), said
    assert str(small) in said
    assert worker.events("failed")
    assert not [line for line in worker.logged if "ThreadHost" in line]  # what a library says of it is left out
    return filler


@contextmanager
def quiet() -> Iterator[None]:
    """Without librdkafka's own log in this process, and with the code of THING."""
    with patch.dict(os.environ, REDUCERS):
        del os.environ[DEBUG]
        yield


def test_no_fault_of_clients_brokers_and_disks_loses_doubles_hides_or_blocks(
    tmp_path: Path, seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = max(2, fault_rounds // 2)
    (tmp_path / "secured").mkdir()
    with started(secure=True) as kafka, small_device(tmp_path / "small") as small:
        secured = Secured(kafka, tmp_path / "secured")
        for user, role in (("producer", "producer"), ("worker", "worker"), ("manager", "admin")):
            secured.ask("admin", "acl", "apply", "--role", role, "--principal", f"User:{user}")
        secured.ask("admin", "acl", "apply", "--role", "producer", "--role", "reader", "--principal", "User:agent")
        url = f"{secured.url}?partitions={PARTITIONS}"
        secured.ask("manager", "init", "--log", url)
        with secured.as_user("agent"), quiet(), opened(url) as log:
            log.register(THING)
            stranger = Stranger(kafka, log, rng)
            with (
                running(secured, "sound", tmp_path / "sound") as sound,
                feeding(url, history(rng, 40 * rounds, 50), rng) as fed,
            ):
                with running(secured, "small", small) as full:
                    workers = [sound, full]
                    for each in workers:
                        await_seen(each, lambda found: found.is_ready, "it does not start")
                    for how in outages(rng, rounds):
                        print(how)
                        stranger.write(10)
                        fed.await_more()
                        outage(kafka, how, workers, fed)
                    filler = fill_up(full, small, fed, log)
                filler.unlink()
                with running(secured, "small", small) as full:
                    await_seen(full, lambda found: found.is_ready, "it does not go on with space")
                    assert full.stop()[0] == 0
                stranger.write(10)
                acknowledged = fed.finish()
                own = (log.topics.schemas, log.topics.observations)
                assert stranger.denied == {*junk(log)} - {*own}
                schemas = log.topics.schemas
                await_seen(
                    sound,
                    lambda found: found.health.get("foreign_records") == {schemas: stranger.written[schemas]}
                    and found.value("refold_foreign_records", 'topic="schemas"') == stranger.written[schemas]
                    and found.letters > 0 and found.value("refold_dead_letters_total") > 0,
                    "it does not show what the stranger wrote",
                )  # fmt: skip
                await_event(sound, "foreign_records", 1)
                await_event(sound, "dead_letter", 1)
                await_true(lambda: len(sound.folding) == PARTITIONS, "it does not take over", within_s=SETTLED_S)
                await_folded(log)
                status, said = sound.stop()
                assert status == 0, said
            assert len([*log.deadletters()]) == stranger.written[log.topics.observations]
            check_whole(log, tmp_path / "sound", acknowledged)
        verified = secured.ask("agent", "verify", "--json", "--reducers", REDUCER)
        assert verified["ok"] is True, verified
