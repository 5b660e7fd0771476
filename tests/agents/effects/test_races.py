"""Several processes with one task concurrently: each effect takes place once, and all get its result."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.nine_steps import FINISHED, LEASE_S, SLOW, STEPS, Lives, new_ledger, order_of
from refold_tests.third_party import third_party


def race(url: str, child: Callable[..., Child], seed: int, processes: int) -> None:
    """No process is killed. They reach each effect at the same moment, as far as the machine allows."""
    with third_party(child, seed, faults=0.1, slow_s=LEASE_S / 10) as service:
        racers = [Lives(child, url, service.port) for _ in range(processes)]
        starts_at = time.time() + 2
        for number, each in enumerate(racers):
            each.begin("race", f"run-{number}", starts_at=starts_at)
        for number, each in enumerate(racers):
            while (status := each.ended()) == SLOW:
                each.begin("race", f"run-{number}")
            assert status == FINISHED
        assert_nine(url, service.seen()["counts"])


def assert_nine(url: str, counts: dict[str, int]) -> None:
    assert counts == {order_of("race", "", step).key: 1 for step in range(1, STEPS + 1)}
    with refold.open(url) as log:
        found = new_ledger(log).list()
        assert {each.status for each in found} == {"done"}
        assert {each.times_done for each in found} == {1}
        assert log.verify().mismatches == []


def test_processes_race_on_a_file_log(tmp_path: Path, child: Callable[..., Child], seed: int) -> None:
    race(f"file:{tmp_path / 'log'}", child, seed, 4)


def test_processes_race_on_kafka(kafka: SharedKafka, prefix: str, child: Callable[..., Child], seed: int) -> None:
    race(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2", child, seed, 3)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_processes_race_and_are_killed(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"REFOLD_SEED={seed}")
    rng = random.Random(seed)
    for number in range(max(1, fault_rounds // 10)):
        url = f"file:{tmp_path / f'log-{number}'}"
        with third_party(child, seed + number, faults=0.3, slow_s=LEASE_S / 10) as service:
            racers = {f"run-{each}": Lives(child, url, service.port) for each in range(3)}
            while racers:
                for run, each in racers.items():
                    each.begin("race", run, dies_in=rng.randint(1, STEPS * 2), dies_at=rng.randrange(12))
                for run, status in [(run, each.ended()) for run, each in racers.items()]:
                    if status == FINISHED:
                        del racers[run]
                    else:
                        assert status in (SLOW, -signal.SIGKILL)
            assert_nine(url, service.seen()["counts"])
