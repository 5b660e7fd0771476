"""A broker that loses and gets back the lead of its partitions: clients that were there before go on, unasked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.streams.worker.config import FoldConfig
from refold.testing.kafka import Kafka
from refold_tests.folding import Running, await_folded, check_whole, history, opened, url_of
from refold_tests.load import feeding
from refold_tests.things import THING

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

# Longer than the broker's session with its controller, which fences it then.
FENCED_S = 14.0


def test_a_broker_that_was_fenced(kafka_cluster: Callable[..., Kafka], tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    kafka = kafka_cluster()
    url = url_of(kafka.bootstrap, "b")
    with opened(url) as log:
        log.register(THING)
        running = Running(FoldConfig(url, tmp_path, "w", session_ms=40_000))
        with feeding(url, history(rng, 200), rng) as fed:
            fed.await_more()
            kafka.pause(1)
            time.sleep(FENCED_S)
            kafka.resume(1)
            fed.await_more()
            acknowledged = fed.finish()
        await_folded(log, running)
        running.drain()
        check_whole(log, tmp_path, acknowledged)
