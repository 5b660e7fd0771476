"""Workers killed, paused and fenced on a real broker: each observation is folded once, each change emitted once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from refold.avro.observation import Observation
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.folding import append, await_folded, check_whole, drain, history, opened, url_of, worker
from refold_tests.kill_points import MOMENTS
from refold_tests.sample_types import THING

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def test_kills_at_any_moment(
    kafka: SharedKafka, prefix: str, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    """Kills also between the steps of the protocol, while records arrive."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    url = url_of(kafka.bootstrap, prefix)
    with opened(url) as log:
        log.register(THING)
        observations = iter(history(rng, 20 * fault_rounds + 40))
        acknowledged: set[bytes] = set()
        known: list[Observation] = []
        for _ in range(fault_rounds):
            moment = rng.choice(["", *MOMENTS])
            running = worker(child, url, tmp_path, moment=moment, count=rng.randrange(1, 4))
            ends_at = time.monotonic() + rng.random() * 2
            while running.process.poll() is None and (moment or time.monotonic() < ends_at):
                # Repeats keep the worker busy until it reaches the kill's moment.
                some = [*islice(observations, 8)] or rng.choices(known, k=3)
                known += some
                acknowledged |= append(log, some)
                time.sleep(rng.random() * 0.1)
            running.kill()
        last = worker(child, url, tmp_path)
        acknowledged |= append(log, observations)
        await_folded(log, last)
        drain(last)
        check_whole(log, tmp_path, acknowledged)
