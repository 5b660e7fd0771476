"""Logs of a broker whose files tests damage: their contents, their root, and what workers report about them."""

from __future__ import annotations

import random
import urllib.request
from functools import partial
from typing import Any

import pytest

from refold.avro.observation import Observation
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold_tests.bitrot import BatchRot
from refold_tests.folding import Running, append, history, opened
from refold_tests.sample_types import THING
from refold_tests.waiting import await_true

NOW_MS = 1_700_000_000_000


def compressing(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Make producers of this process compress with a codec."""
    made = Clients.producer
    monkeypatch.setattr(
        Clients, "producer", lambda clients, **more: made(clients, **{**more, "compression.type": codec})
    )


def records_of(log: KafkaLog, topic: str) -> list[tuple[int, Any]]:
    """Return (partition, record) of a topic, once no transaction is open there.

    A broker ends a transaction in one topic after another: a worker's offsets may be visible before its changes.
    """
    places = [KafkaPartition(topic, partition) for partition in range(log.partitions)]
    await_true(
        lambda: log.offsets.ends(places) == log.offsets.ends(places, committed=False), "a transaction stays open"
    )
    ends = log.offsets.ends(places)
    return [(place.partition, raw) for place in places for raw in log.reading.records(place, 0, ends[place])]


def append_batches(log: KafkaLog, rng: random.Random, batches: int) -> None:
    """Append observations in batches of several records for each partition."""
    for _ in range(batches):
        append(log, history(rng, 30))


def root(log: KafkaLog, *, full: bool = False) -> str:
    log.refresh()
    return rebuild(log, Points(log, 0).end(), full=full, parallel=False).root().hex()


def root_of(url: str, log: KafkaLog, observations: list[Observation], name: str = "other") -> str:
    """Return the root of a new log with only these observations. name: distinguishes the logs of one test."""
    prefix = f"{log.topics.prefix}{name}"
    with opened(url.replace(f"/{log.topics.prefix}?", f"/{prefix}?")) as other:
        other.register(THING)
        append(other, observations)
        return root(other, full=True)


def without(log: KafkaLog, found: list[tuple[int, Any]], partition: int, wound: BatchRot) -> list[Observation]:
    """Return all recorded observations except those in one batch of a partition."""
    return [
        log.registry.decode(raw.value)
        for each, raw in found
        if each != partition or not wound.first <= raw.offset <= wound.last
    ]


def status_of(worker: Running, partition: int) -> dict[str, Any]:
    return dict(worker.service.status().get(partition, {}))


def await_damage(worker: Running, partition: int) -> str:
    """Wait until a worker reports damage in a partition; return the damage."""
    await_true(lambda: bool(status_of(worker, partition).get("damage")), "the worker does not say so")
    worker.look()
    return str(status_of(worker, partition)["damage"])


def await_ruling(log: KafkaLog, worker: Running, partition: int) -> None:
    """Return once a worker folds a partition by the current rulings. Until then its table is by the previous ones."""
    log.refresh()
    now = partial(status_of, worker, partition)
    await_true(lambda: now().get("state") == "folding" and now().get("schemas", 0) >= len(log.registry))


def page_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
