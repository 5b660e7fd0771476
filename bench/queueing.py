"""Measures how fast one thread observes on Kafka: the time of `Log.observe`, until its record is in the queue.

The limit is a bare producer with the same settings that queues the same bytes. Each round observes AT_ONCE records at a
time; the flush after them, which waits for the broker, is not counted. Creating the observations is not counted either.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from new_process import in_new_process
from page import note, titled_table
from peers.comparison import on_broker
from results import Figure
from rich.console import Console
from workload import observations, uniform

import refold

COUNT, ENTITIES, AT_ONCE = 200_000, 50_000, 10_000
ROUNDS = 3
SEED = 7
GOAL, MOONSHOT = 40_000, 80_000


def show(console: Console, folder: Path, share: int, keys: Collection[str]) -> None:
    """Print the table."""
    del folder, keys
    with on_broker(console, "Observing on Kafka") as place:
        if place is None:
            return
        own, bare = [], []
        for number in range(ROUNDS):
            prefix = f"bench-queue-{uuid.uuid4().hex[:8]}"
            with console.status(f"observing on Kafka, round {number + 1} of {ROUNDS}"):
                own.append(in_new_process(_observed, f"kafka://{place.bootstrap}/{prefix}", COUNT // share))
                bare.append(in_new_process(_produced, place.bootstrap, f"{prefix}.observations", COUNT // share))
            place.remove(prefix)
    table = titled_table(
        f"Observing on Kafka, one thread, {COUNT // share:,} observations (medians of {ROUNDS})",
        "what", "a second", "CPU us of the thread each",
    )  # fmt: skip
    rates = []
    for name, rounds in (("Log.observe", own), ("a bare producer, the same bytes", bare)):
        rate, cpu_us = (median(each[part] for each in rounds) for part in range(2))
        rates.append(rate)
        table.add_row(name, f"{rate:,.0f}", f"{cpu_us:.1f}")
    console.print(table)
    note(console, Figure("observe to queue on Kafka, one thread", rates[0], GOAL, "observations a second",
                         moonshot=MOONSHOT, limit=f"a bare producer, the same bytes: {rates[1]:,.0f}"))  # fmt: skip


def _observed(url: str, count: int) -> tuple[float, float]:
    """Return how many observations a second were queued, and the thread's CPU time of each in microseconds."""
    source, wall_s, cpu_s = observations(count, uniform(ENTITIES, SEED)), 0.0, 0.0
    with refold.open(url) as log:
        log.observe(**next(source))  # the type is registered, and the first connection made
        log.flush()
        done = 0
        while some := list(islice(source, AT_ONCE)):
            begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
            for each in some:
                log.observe(**each)
            wall_s += time.perf_counter() - begin_s
            cpu_s += time.thread_time() - begin_cpu_s
            done += len(some)
            log.flush()
    return done / wall_s, cpu_s / done * 1e6


def _produced(bootstrap: str, topic: str, count: int) -> tuple[float, float]:
    """The same for a bare producer, with what `_observed` wrote to the topic."""
    from confluent_kafka import Producer

    records = _records(bootstrap, topic, count)
    settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4"}
    producer, wall_s, cpu_s = Producer({"bootstrap.servers": bootstrap, **settings}), 0.0, 0.0
    producer.list_topics(topic, timeout=60)
    for start in range(0, len(records), AT_ONCE):
        some = records[start : start + AT_ONCE]
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        for key, value, headers in some:
            producer.produce(topic, key=key, value=value, headers=headers)
        wall_s += time.perf_counter() - begin_s
        cpu_s += time.thread_time() - begin_cpu_s
        producer.flush()
    return len(records) / wall_s, cpu_s / len(records) * 1e6


def _records(bootstrap: str, topic: str, count: int) -> list[tuple[Any, Any, Any]]:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found: list[tuple[Any, Any, Any]] = []
        while len(found) < count:
            found += [(each.key(), each.value(), each.headers()) for each in consumer.consume(10_000, 1.0)
                      if each.error() is None]  # fmt: skip
        return found
    finally:
        consumer.close()
