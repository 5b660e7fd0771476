"""Measures `Log.state` of one entity at a point of its past, on the embedded log.

The entity has 10,000 distinct observations, 1 % of them repeated and 1 % late (workload.disturbed), and the log has
nothing else. Points are cuts, drawn uniformly: known at (any offset), true at (any observed time, at the log's end),
and both at once (an observed time at an offset). Runs in a separate process.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from new_process import in_new_process
from workload import START_MICROS, disturbed, observations

import refold

OBSERVATIONS = 10_000
ASKED = 400
ROUNDS = 3
SEED = 11
WARM = 20


@dataclass(frozen=True)
class Latency:
    """Milliseconds; each is the median of ROUNDS rounds."""

    name: str
    p50: float
    p99: float


def measure(folder: Path, count: int = OBSERVATIONS) -> list[Latency]:
    """Measure in a new process."""
    return in_new_process(_run, str(folder), count)


def _run(folder: str, count: int) -> list[Latency]:
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    with refold.open(f"file:{path}/log") as log:
        for each in disturbed(observations(count, lambda: 0), SEED):
            log.observe(**each)
            entity = each["entity"]
        log.flush()
        found = _measure(log, entity, count)
    shutil.rmtree(path)
    return found


def _measure(log: Any, entity: str, count: int) -> list[Latency]:
    chosen = random.Random(SEED)
    now, partition = log.point().cut, log.port.partition_of(entity)

    def past() -> Any:
        return log.point(f"offset:{partition}={chosen.randint(1, now.records)}").cut

    def observed_time(until: float = 1.0) -> int:
        return START_MICROS + chosen.randrange(max(1, int(count * until))) * 1000

    def both() -> Any:
        cut = past()
        return cut.until(observed_time(cut.records / now.records))

    kinds: dict[str, Callable[[], Any]] = {
        "known at": past,
        "true at": lambda: now.until(observed_time()),
        "both at once": both,
    }
    return [_latency(log, entity, name, cut_of) for name, cut_of in kinds.items()]


def _latency(log: Any, entity: str, name: str, cut_of: Callable[[], Any]) -> Latency:
    rounds = []
    for _ in range(ROUNDS):
        cuts = [cut_of() for _ in range(WARM + ASKED)]
        spent = [_milliseconds(log, entity, cut) for cut in cuts][WARM:]
        rounds.append((median(spent), quantiles(spent, n=100)[98]))
    return Latency(name, median(p50 for p50, _ in rounds), median(p99 for _, p99 in rounds))


def _milliseconds(log: Any, entity: str, cut: Any) -> float:
    begin = time.perf_counter()
    with contextlib.suppress(refold.NotAnswerable):  # nothing had been observed by then
        log.state(entity, cut)
    return (time.perf_counter() - begin) * 1000
