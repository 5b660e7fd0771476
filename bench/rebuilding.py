"""Measures rebuilds: from the nearest snapshot against full replay, the cost of snapshots, and closed entities.

Each case runs in a separate process, on a log that it creates. The large log is rebuilt by a reader that did not fold
it, like any reader that asks for a past point. A rebuild includes its root. Figures are medians of RUNS.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from new_process import in_new_process
from workload import disturbed, ended_runs, observations, uniform

import refold
from refold.streams.open import process_context
from refold.streams.snapshots.settings import SnapshotSettings

RUNS = 3
SEED = 7
AT_ONCE = 10_000
POINTS, POINT_RUNS = 5, 60


@dataclass(frozen=True)
class RebuildFigures:
    """Seconds, and the amounts read. ranges_s: the time for only reading the bytes of the snapshot ranges."""

    observations: int
    folded_per_second: float
    full_s: float
    full_per_second: float
    rebuilt_s: float
    ranges_s: float
    ranges_mb: float
    pass_s: float
    replayed: int
    reopened: int
    scanned: int
    snapshot_bytes_each: float
    same_root: bool


@dataclass(frozen=True)
class ClosedFigures:
    """Seconds to rebuild when about this many runs have ended: the median and the maximum of POINTS points.

    The amount changed since the last base differs from point to point, and so does the time.
    """

    runs: int
    entities: int
    rebuilt_s: float
    longest_s: float
    replayed: int


def rebuilding(count: int, entities: int, *, is_disturbed: bool, folder: Path) -> RebuildFigures:
    """Measure a rebuild at 95 % of a log of `count` observations."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    folded_s = in_new_process(_folded_log, count, entities, is_disturbed, str(path))
    figures: RebuildFigures = in_new_process(_read_only, str(path), folded_s)
    shutil.rmtree(path)
    return figures


def rebuilt(log: Any, folded_s: float) -> RebuildFigures:
    """Measure a rebuild at 95 % of a log whose fold took `folded_s` seconds."""
    ends = log.port.ends()
    where = ",".join(f"{partition}={end * 95 // 100}" for partition, end in ends.items())
    cut = log.point(f"offset:{where}").cut
    # If the log was folded just before, compaction and sealing have ended once these full replays have.
    fulls = [_rebuild(log, cut, full=True) for _ in range(RUNS)]
    views, ranges = [], []
    for _ in range(RUNS):
        views.append(_rebuild(log, cut))
        used = _used(log, cut, views[-1].source)
        ranges.append(_timed(partial(_read, log, used)))
    view, full = views[-1], fulls[0]
    full_s = median(each.seconds for each in fulls)
    passes = [_timed(lambda: _pass(log, cut)) for _ in range(RUNS)]
    written = sum(len(data) for p in cut.offsets for _, data in log.port.snapshots.records(p, 0, 1 << 40))
    count = sum(ends.values())
    return RebuildFigures(
        observations=count,
        folded_per_second=count / folded_s,
        full_s=full_s,
        full_per_second=cut.records / full_s,
        rebuilt_s=median(each.seconds for each in views),
        ranges_s=_median(ranges),
        ranges_mb=ranges[0][1] / 1e6,
        pass_s=_median(passes),
        replayed=view.source["replayed"],
        reopened=view.source["reopened"],
        scanned=view.source["scanned"],
        snapshot_bytes_each=written / count,
        same_root=view.root == full.root,
    )


def snapshot_cost(count: int, entities: int, folder: Path) -> float:
    """Return the share of throughput that snapshots cost the fold: the median of RUNS pairs, with and without."""
    ratios = []
    for _ in range(RUNS):
        without = in_new_process(_folding, count, entities, False, str(folder))
        ratios.append(in_new_process(_folding, count, entities, True, str(folder)) / without)
    return 1 - median(ratios)


def closed(runs: Iterable[int], steps: int, folder: Path) -> list[ClosedFigures]:
    """Measure rebuilds of a log that grows by ended runs, at each of the given numbers of runs."""
    return in_new_process(_closed, list(runs), steps, str(folder))


def _folded(log: Any, source: Iterable[dict[str, Any]]) -> float:
    """Record all observations, and return the seconds that took, without creating them."""
    spent = 0.0
    given = iter(source)
    while some := list(islice(given, AT_ONCE)):
        begin = time.perf_counter()
        for each in some:
            log.observe(**each)
        log.flush()
        spent += time.perf_counter() - begin
    return spent


def _folding(count: int, entities: int, snapshots: bool, folder: str) -> float:
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    settings = SnapshotSettings() if snapshots else SnapshotSettings(epoch_records=1 << 60)
    with refold.open(f"file:{path}/log", runtime=replace(process_context(), snapshots=settings)) as log:
        spent = _folded(log, observations(count, uniform(entities, SEED)))
    shutil.rmtree(path)
    return count / spent


def _folded_log(count: int, entities: int, is_disturbed: bool, folder: str) -> float:
    source: Iterable[dict[str, Any]] = observations(count, uniform(entities, SEED))
    with refold.open(f"file:{folder}/log") as log:
        return _folded(log, disturbed(source, SEED) if is_disturbed else source)


def _read_only(folder: str, folded_s: float) -> RebuildFigures:
    with refold.open(f"file:{folder}/log", read_only=True) as log:
        return rebuilt(log, folded_s)


def _closed(runs: list[int], steps: int, folder: str) -> list[ClosedFigures]:
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    found = []
    with refold.open(f"file:{path}/log") as log:
        done = 0
        for target in runs:
            points = []
            for _ in range(POINTS):
                _folded(log, ended_runs(done, done + POINT_RUNS if points else target, steps))
                done = done + POINT_RUNS if points else target
                log.snapshot()
                views = [_timed(lambda: _rooted(log.rebuild())) for _ in range(RUNS)]
                points.append(_median(views))
            view = views[0][1]
            found.append(ClosedFigures(target, len(view), median(points), max(points), view.source["replayed"]))
    shutil.rmtree(path)
    return found


@dataclass(frozen=True)
class _Rebuild:
    """The kept figures of one rebuild; keeping the views would make each next one take new memory from the system."""

    seconds: float
    root: bytes
    source: Any


def _rebuild(log: Any, cut: Any, *, full: bool = False) -> _Rebuild:
    seconds, view = _timed(lambda: _rooted(log.rebuild(cut, full=full)))
    return _Rebuild(seconds, view.root, view.source)


def _used(log: Any, cut: Any, source: Any) -> list[Any]:
    """Return the epochs from which a view started."""
    epochs = [each for p in cut.offsets for each in log.port.snapshots.epochs(p)]
    return [each for each in epochs if source["snapshot_epochs"].get(str(each.partition)) == each.offset]


def _rooted(view: Any) -> Any:
    assert view.root
    return view


def _read(log: Any, epochs: list[Any]) -> int:
    """Read the records of the epochs' ranges, and return their size in bytes."""
    total = 0
    for epoch in epochs:
        for span in log.port.snapshots.manifest(epoch).ranges:
            total += sum(len(data) for _, data in log.port.snapshots.records(epoch.partition, span.start, span.end))
    return total


def _pass(log: Any, cut: Any) -> int:
    """Make one pass over the observations for an entity that does not exist."""
    return sum(1 for p, end in cut.offsets.items() for record in log.port.read(p, 0, end) if record.entity == "")


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _median(timed: list[tuple[float, Any]]) -> float:
    return median(seconds for seconds, _ in timed)
