"""Measures folding on the embedded log: observations a second through the whole path, and its memory.

One process: observe (checks, id, Avro), then the log record, state, timeline, arrivals, id index and change in one
write. Creating the observations is not counted. Each case runs in a separate process, whose peak memory is read.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from new_process import in_new_process
from workload import observations, uniform, zipf

import refold
from refold.avro.kernel import SWITCH

AT_ONCE = 10_000
SEED = 7


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    count: int
    entities: int
    zipf: bool = False
    rebuild: bool = False


class Figures(NamedTuple):
    """The figures of a case. cpu_us: CPU time of the whole process per observation."""

    per_second: float
    cpu_us: float
    slowest_per_second: float
    peak_mb: float
    bytes_per_observation: float
    rebuilt_per_second: float


def measure(case: Case, folder: Path, *, uses_kernel: bool = True) -> Figures:
    """Run a case in a new process. uses_kernel: whether the native kernel may be used, if it is installed."""
    return in_new_process(_run, case, str(folder), uses_kernel)


def _run(case: Case, folder: str, uses_kernel: bool) -> Figures:
    if not uses_kernel:
        os.environ[SWITCH] = "0"
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    draw = (zipf if case.zipf else uniform)(case.entities, SEED)
    source = observations(case.count, draw)
    spent: list[float] = []
    cpu_s = 0.0
    with refold.open(f"file:{path}/log") as log:
        while some := list(islice(source, AT_ONCE)):
            begin, begin_cpu_s = time.perf_counter(), time.process_time()
            for each in some:
                log.observe(**each)
            log.flush()
            spent.append(time.perf_counter() - begin)
            cpu_s += time.process_time() - begin_cpu_s
        rebuilt = _rebuild(log, case) if case.rebuild else 0.0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    shutil.rmtree(path)
    peak_mb = peak / 1024 if sys.platform == "linux" else peak / 1024**2
    rates = [AT_ONCE / each for each in spent]
    slowest = median(sorted(rates)[: max(1, len(rates) // 10)])
    return Figures(case.count / sum(spent), cpu_s / case.count * 1e6, slowest, peak_mb, size / case.count, rebuilt)


def _rebuild(log: Any, case: Case) -> float:
    begin = time.perf_counter()
    view = log.rebuild()
    assert view.observations == case.count
    return case.count / (time.perf_counter() - begin)
