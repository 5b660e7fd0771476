"""Measures the Parquet sink: complete commits of a table's entities into a folder, and separately the rebuild before.

CPU time is that of the whole process, including Arrow's threads. The second commit follows a change in one of four
partitions.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from page import titled_table
from rich.console import Console
from rich.table import Table
from workload import START_MICROS, observations

import refold
from refold import Source

ENTITIES, RUNS, PARTITIONS, GOAL = 200_000, 3, 4, 100_000
T = TypeVar("T")


def show(console: Console, folder: Path, share: int) -> None:
    """Print the table."""
    count = ENTITIES // share
    table = titled_table(
        f"The Parquet sink, {count:,} entities of 5 fields, medians of {RUNS} (goal: {GOAL:,})",
        "what", "entities a second", "s", "CPU us an entity", "MB",
    )  # fmt: skip
    place = Path(tempfile.mkdtemp(prefix="bench-parquet-", dir=folder))
    try:
        with console.status("recording what is committed"):
            log = _recorded(place, count)
        with log, console.status("committing"):
            _add(table, log, place, count)
    finally:
        shutil.rmtree(place)
    console.print(table)


def _recorded(place: Path, count: int) -> refold.Log:
    log = refold.open(f"file:{place / 'log'}?partitions={PARTITIONS}")
    numbers = iter(range(count))
    for each in observations(count, lambda: next(numbers)):
        log.observe(**each)
    log.flush()
    return log


def _add(table: Table, log: refold.Log, place: Path, count: int) -> None:
    from refold.sinks.parquet.sink import open_sink
    from refold.streams.runtime import tune_garbage_collector

    rebuilds, commits, size = [], [], 0
    for number in range(RUNS):
        view, *took = _timed(log.rebuild)
        rebuilds.append(took)
        lake = place / f"lake-{number}"
        sink = open_sink(lake.as_uri())
        with tune_garbage_collector():  # as in `refold sink`
            _, *took = _timed(lambda sink=sink, view=view: sink.commit(view))
        commits.append(took)
        size = sum(each.stat().st_size for each in lake.glob("commits/**/*.parquet"))
    _row(table, "rebuild", rebuilds, count, 0)
    _row(table, "commit", commits, count, size)
    log.observe("tool_config/entity-0000000", {"rate_limit": 1}, source=Source("bench", "more"),
                observed_at=START_MICROS)  # fmt: skip
    log.flush()
    view = log.rebuild()
    _, *took = _timed(lambda: sink.commit(view))
    _row(table, "commit after one change", [took], count, size)


def _timed(work: Callable[[], T]) -> tuple[T, float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    done = work()
    return done, time.perf_counter() - began, time.process_time() - cpu


def _row(table: Table, what: str, took: list[list[float]], count: int, size: int) -> None:
    wall, cpu = median(each[0] for each in took), median(each[1] for each in took)
    table.add_row(what, f"{count / wall:,.0f}", f"{wall:.2f}", f"{cpu / count * 1e6:.1f}",
                  f"{size / 1e6:.1f}" if size else "-")  # fmt: skip
