"""Compares the model of `refold plan` (explorer/capacity) with measured logs.

1. A worker folds three logs on Kafka: few entities, many entities, and one in between that is twice as long. Measured
   for each: CPU, memory, the sizes of the table, of the topics' segments and of the sealed snapshots, and rebuilds by a
   reader.
2. The constants are computed from the first two logs only: what grows with records and what grows with entities.
3. The model predicts the third log. The table shows the deviation from the measurement, which must be below LIMIT.

The printed constants are those of explorer/capacity/measured.py, for this machine.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any

from peers.comparison import ready
from peers.contenders import ALL, Refold
from peers.runs import LONGEST_S, WARM, await_folded, measured, started
from peers.topics import Place
from peers.workloads import Workload
from rich.console import Console
from rich.table import Table

import refold
from refold.agents.log import open_log
from refold.explorer.capacity.measured import MEASURED, Measured
from refold.explorer.capacity.model import rebuild_s, table_bytes
from refold.streams.log.kafka.topics import Topics
from refold.testing.kafka import missing, start_kafka

COUNT = 1_000_000
FEW, MANY, BETWEEN = COUNT // 100, COUNT // 4, COUNT // 8
FOLD_S = 3_600.0
LIMIT = 0.2
RAW_BYTES = 190


@dataclass(frozen=True)
class Point:
    """The measurements of a folded log. Sizes in bytes of all partitions; seconds of CPU time: a rebuild is CPU-bound.

    ranges: the size of the snapshots that a rebuild reads, as stored, compressed.
    """

    records: int
    entities: int
    rate: float
    cpu_us: float
    memory: float
    observations: int
    changes: int
    table: int
    ranges: float
    entities_read: int
    replayed: int
    rebuild_s: float
    replay_s: float


def scale(console: Console, folder: Path, share: int, keys: Collection[str]) -> None:
    """Print the constants, and the model's deviation from the log that was not used to compute them."""
    if (reason := missing()) is not None:
        console.print(f"The model of `refold plan` was skipped: {reason}", markup=False)
        return
    workers = ready(console, [each for each in ALL if isinstance(each, Refold) and each.key in keys])
    if not workers:
        return
    worker = max(workers, key=lambda each: each.uses_kernel)
    with start_kafka() as kafka:
        place = Place(kafka.bootstrap)
        points = []
        for name, count, entities in (("few", COUNT, FEW), ("many", COUNT, MANY), ("between", 2 * COUNT, BETWEEN)):
            workload = Workload(f"scale-{name}", name, count // share, entities // share, in_order=True, each_once=True)
            with console.status(f"{workload.count:,} observations of {workload.entities:,} entities"):
                points.append(_point(worker, workload, place, folder, kafka.folder))
            place.remove(workload.prefix)
    few, many, between = points
    constants = _constants(few, many)
    console.print(_constants_table(constants))
    basis = f"constants from {few.records:,} of {few.entities:,} and of {many.entities:,}"
    table = Table(
        title=f"The model of `refold plan`: {between.records:,} observations of {between.entities:,} entities, {basis}"
    )
    for number, column in enumerate(("figure", "measured", "the model says", "deviation", f"within {LIMIT:.0%}")):
        table.add_column(column, justify="right" if number else "left")
    for name, found, said in _held_back(between, constants):
        deviation = said / found - 1
        table.add_row(name, f"{found:,.1f}", f"{said:,.1f}", f"{deviation:+.1%}",
                      "yes" if abs(deviation) <= LIMIT else "NO")  # fmt: skip
    console.print(table)


def _point(worker: Refold, workload: Workload, place: Place, folder: Path, broker: Path) -> Point:
    schema = place.make(workload)
    with started(worker, workload, place, schema, folder) as (process, run):
        group = worker.group(run)
        progress = place.progress(workload, group)
        try:
            found = measured(process, progress.committed, workload.count, WARM, LONGEST_S)
        finally:
            progress.close()
        await_folded(process, place, workload, group, FOLD_S)
        process.stop()
        table = _size(run.folder, "*.sst")
    topics = Topics(workload.prefix)
    stored = _size(broker, f"{topics.snapshots}-*/*.log")
    with open_log(place.url(workload), read_only=True) as log:
        _rebuilt(log)  # the first imports and connections are not a cost of a longer log
        full_s, _ = _rebuilt(log, full=True)
        seconds, source = _rebuilt(log)
        epochs = [each for number in range(workload.partitions) for each in log.port.snapshots.epochs(number)]
        share = stored / max(1, sum(log.port.snapshots.manifest(each).size for each in epochs))
        used = [each for each in epochs if source["snapshot_epochs"].get(str(each.partition)) == each.offset]
        manifests = [log.port.snapshots.manifest(each) for each in used]
        ranges = sum(
            len(data) for each, manifest in zip(used, manifests, strict=True) for span in manifest.ranges
            for _, data in log.port.snapshots.records(each.partition, span.start, span.end)
        )  # fmt: skip
    return Point(
        records=workload.count, entities=workload.entities, rate=found.per_second, cpu_us=found.cpu_us or 0.0,
        memory=(found.peak_mb or 0.0) * (1 << 20), observations=_size(broker, f"{topics.observations}-*/*.log"),
        changes=_size(broker, f"{topics.changes}-*/*.log"), table=table, ranges=ranges * share,
        entities_read=sum(each.warm + each.changed for each in manifests), replayed=source["replayed"],
        rebuild_s=seconds, replay_s=full_s,
    )  # fmt: skip


def _rebuilt(log: refold.Log, *, full: bool = False) -> tuple[float, Any]:
    """Return the CPU seconds of a rebuild, including its root and its child processes, and its sources."""
    begin = _cpu_s()
    view = log.rebuild(full=full)
    assert view.root
    return _cpu_s() - begin, view.source


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its child processes that have ended."""
    return sum(os.times()[:4])


def _size(folder: Path, pattern: str) -> int:
    """Return the total size of all files below a folder that match a pattern."""
    return sum(each.stat().st_size for each in folder.rglob(pattern))


def _constants(few: Point, many: Point) -> Measured:
    """Compute the constants from two logs with equal numbers of records and different numbers of entities."""
    state = (many.table - few.table) / (many.entities - few.entities)
    replay_us = mean(each.replay_s / each.records for each in (few, many)) * 1e6
    # From the log with more entities: with few, the rest of a rebuild takes longer than the reading.
    read_us = max(0.0, many.rebuild_s * 1e6 - many.replayed * replay_us) / max(1, many.entities_read)
    return Measured(
        thread_rate=mean((few.rate, many.rate)),
        cpu_us=mean((few.cpu_us, many.cpu_us)),
        memory_bytes=mean((few.memory, many.memory)),
        raw_bytes=RAW_BYTES,
        observation_bytes=mean(each.observations / each.records for each in (few, many)),
        change_bytes=mean(each.changes / each.records for each in (few, many)),
        row_bytes=(few.table - few.entities * state) / few.records,
        state_bytes=state,
        chunk_bytes=mean(each.ranges / max(1, each.entities_read) for each in (few, many)),
        read_us=read_us,
        replay_us=replay_us,
    )


def _held_back(point: Point, constants: Measured) -> list[tuple[str, float, float]]:
    """Return each figure of a log: its name, the measured value, and the model's value."""
    return [
        ("worker: observations a second", point.rate, constants.thread_rate),
        ("worker: CPU, us an observation", point.cpu_us, constants.cpu_us),
        ("worker: memory, MB", point.memory / 1e6, constants.memory_bytes / 1e6),
        ("worker: table, MB", point.table / 1e6, table_bytes(point.records, point.entities, constants) / 1e6),
        (".observations, MB", point.observations / 1e6, point.records * constants.observation_bytes / 1e6),
        (".changes, MB", point.changes / 1e6, point.records * constants.change_bytes / 1e6),
        ("snapshots that a rebuild reads, MB", point.ranges / 1e6, point.entities_read * constants.chunk_bytes / 1e6),
        ("rebuild, s of CPU", point.rebuild_s, rebuild_s(point.entities_read, point.replayed, constants)),
        ("rebuild --full, s of CPU", point.replay_s, rebuild_s(0, point.records, constants)),
    ]


def _constants_table(constants: Measured) -> Table:
    table = Table(title="Constants of `refold plan` (explorer/capacity/measured.py)")
    for number, column in enumerate(("constant", "here", "in this release")):
        table.add_column(column, justify="right" if number else "left")
    for each in fields(constants):
        table.add_row(each.name, f"{getattr(constants, each.name):,.1f}", f"{getattr(MEASURED, each.name):,.1f}")
    return table
