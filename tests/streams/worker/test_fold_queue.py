"""A worker whose producer's queue is full: it waits for the broker, however long, and emits everything once. A worker
whose next batch is full commits it at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.worker.config import FoldConfig
from refold.streams.worker.emission import Emitter
from refold.testing.kafka import Kafka
from refold_tests.folding import (
    PATIENCE_S,
    Running,
    append,
    await_folded,
    check_whole,
    fold_all,
    history,
    opened,
    running,
    url_of,
)
from refold_tests.sample_types import THING, A, said
from refold_tests.waiting import await_true

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

QUEUED = 5
PAUSED_AT = 20


class Queue:
    """Producers of folds with room for a few messages; counts how often one was full, and once pauses the broker."""

    def __init__(self, kafka: Kafka) -> None:
        self.full = self.made = 0
        self.paused = threading.Event()
        self._kafka = kafka
        self._make = Clients.producer

    def producer(self, clients: Clients, **more: Any) -> Any:
        """As Clients.producer."""
        if ".fold." not in str(more.get("transactional.id")):
            return self._make(clients, **more)
        self.made += 1
        return Counting(self, self._make(clients, **more, **{"queue.buffering.max.messages": QUEUED}))

    def was_full(self) -> None:
        self.full += 1
        if self.full == PAUSED_AT:
            self._kafka.pause(1)
            self.paused.set()

    def await_full(self, more: int) -> None:
        """Wait until it was found full this many more times."""
        wanted, deadline = self.full + more, time.monotonic() + PATIENCE_S
        while self.full < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.05)


class Counting:
    """A producer that reports when its queue is full."""

    def __init__(self, queue: Queue, producer: Any) -> None:
        self._queue = queue
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def produce(self, *given: Any, **named: Any) -> None:
        try:
            self._producer.produce(*given, **named)
        except BufferError:
            self._queue.was_full()
            raise


@pytest.mark.parametrize("comes_back", [True, False], ids=["the broker comes back", "it does not in time"])
def test_full_queue_delays_the_fold_and_loses_nothing(
    kafka_cluster: Callable[..., Kafka], tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    print(f"seed {seed}")
    kafka = kafka_cluster()
    queue = Queue(kafka)

    def counted(clients: Clients, **more: Any) -> Any:
        return queue.producer(clients, **more)

    url = url_of(kafka.bootstrap, "b")
    with opened(url) as log:
        log.register(THING)
        acknowledged = append(log, history(random.Random(seed), 500, 200))
        with monkeypatch.context() as patched:
            patched.setattr(Clients, "producer", counted)
            transaction_ms = 120_000 if comes_back else 3_000
            running = Running(FoldConfig(url, tmp_path, "w", records_max=100, transaction_ms=transaction_ms))
            assert queue.paused.wait(PATIENCE_S), running.problem
            if comes_back:
                queue.await_full(3)
                kafka.resume(1)
            else:
                await_true(lambda: queue.made > 1 or running.problem is not None, "it begins no other transaction")
                kafka.resume(1)
                kafka.leader_of("b.observations")  # to a loaded machine's broker its controller comes back late
            await_folded(log, running)
            running.drain()
        fold_all(log, tmp_path)
        check_whole(log, tmp_path, acknowledged)
    print(f"{queue.full} times full")


def test_batch_that_became_full_during_an_emission_is_committed_without_a_further_record(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else ends the wait: a batch that is not full is committed after ten minutes."""
    emit, is_emitting, is_decided = Emitter.emit, threading.Event(), threading.Event()

    def emit_later(emitter: Emitter, *given: Any) -> Any:
        is_emitting.set()
        assert is_decided.wait(PATIENCE_S)
        return emit(emitter, *given)

    monkeypatch.setattr(Emitter, "emit", emit_later)
    with running(log.url, tmp_path, bytes_max=1, commit_ms=600_000) as worker:
        append(log, [said(A, 1)])
        assert is_emitting.wait(PATIENCE_S)
        append(log, [said(A, 2)])
        counts = worker.service._partitions.values
        await_true(
            lambda: sum(each.counts.records + each.pending_count for each in [*counts()]) == 2, "both are decided"
        )
        is_decided.set()
        await_folded(log, worker)
