"""Compares the model of `refold plan` (explorer/capacity) with measured logs.

1. A worker folds three logs on Kafka: few entities, many entities, and one in between that is twice as long. Measured
   for each: CPU, memory, the sizes of the table, of the topics' segments and of the sealed snapshots, and rebuilds by a
   reader.
2. The constants are computed from the first two logs only: what grows with records and what grows with entities.
3. The model predicts the third log. The table shows the deviation from the measurement, which must be below LIMIT.

With `--write` the measured logs become explorer/capacity/measured.json, from which `refold plan` computes its
constants.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from page import record, titled_table
from peers.comparison import ready
from peers.contenders import ALL, Refold
from peers.runs import LONGEST_S, WARM, await_folded, measured, started
from peers.topics import Place
from peers.workloads import Workload
from results import Setting
from rich.console import Console
from rich.table import Table

import refold
from refold.agents.log import open_log
from refold.explorer.capacity.check import LIMIT, predictions
from refold.explorer.capacity.measured import FILE, Measured, MeasuredLog, MeasuredLogs, Measurement, constants
from refold.explorer.capacity.measured import measured as constants_of_release
from refold.streams.log.kafka.topics import Topics
from refold.testing.kafka import missing, start_kafka

COUNT = 1_000_000
FEW, MANY, BETWEEN = COUNT // 100, COUNT // 4, COUNT // 8
FOLD_S = 3_600.0
VALUE = "logs"
"""The name of the measured logs among a part's values."""


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
        points = {}
        for name, count, entities in (("few", COUNT, FEW), ("many", COUNT, MANY), ("between", 2 * COUNT, BETWEEN)):
            workload = Workload(f"scale-{name}", name, count // share, entities // share, in_order=True, each_once=True)
            with console.status(f"{workload.count:,} observations of {workload.entities:,} entities"):
                points[name] = _point(worker, workload, place, folder, kafka.folder)
            place.remove(workload.prefix)
    record(console, VALUE, points)
    few, many, between = points["few"], points["many"], points["between"]
    found = constants(few, many)
    console.print(_constants_table(found))
    basis = f"constants from {few.records:,} of {few.entities:,} and of {many.entities:,}"
    table = titled_table(
        f"The model of `refold plan`: {between.records:,} observations of {between.entities:,} entities, {basis}",
        "figure", "measured", "the model says", "deviation", f"within {LIMIT:.0%}",
    )  # fmt: skip
    for each in predictions(between, found):
        table.add_row(each.name, f"{each.measured:,.1f}", f"{each.predicted:,.1f}", f"{each.deviation:+.1%}",
                      "yes" if abs(each.deviation) <= LIMIT else "NO")  # fmt: skip
    console.print(table)


def write_logs(value: Any, here: Setting) -> Path:
    """Write the constants for `refold plan`, and return the file's path.

    Raises:
        ValueError: The model does not predict the log that was held back.
    """
    logs = msgspec.convert(value, MeasuredLogs)
    found = constants(logs.few, logs.many)
    wrong = [each.name for each in predictions(logs.between, found) if abs(each.deviation) > LIMIT]
    if wrong:
        raise ValueError(f"{FILE} is not written, for the model deviates by more than {LIMIT:.0%}: {', '.join(wrong)}")
    what = "; ".join(text for _, text in here.described())
    told = Measurement(f"{what}; {dt.datetime.now(dt.UTC):%Y-%m-%d}", found, logs)
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n")
    return FILE


def _point(worker: Refold, workload: Workload, place: Place, folder: Path, broker: Path) -> MeasuredLog:
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
    return MeasuredLog(
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


def _constants_table(found: Measured) -> Table:
    table = titled_table(
        "Constants of `refold plan` (explorer/capacity/measured.py)", "constant", "here", "in this release"
    )
    for name in Measured.__struct_fields__:
        table.add_row(name, f"{getattr(found, name):,.1f}", f"{getattr(constants_of_release(), name):,.1f}")
    return table
