"""The tables of the embedded log: folding, as-of, snapshots, ended runs, rebuilds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import asof
from folding import Case, Figures, measure
from page import note, titled_table
from rebuild_table import add_rebuild, rebuild_table
from rebuilding import RUNS, RebuildFigures, closed, rebuilding, snapshot_cost
from results import Figure
from rich.console import Console

from refold.avro.kernel import find_kernel

UNIFORM = Case("uniform, 200 k entities", 400_000, 200_000, rebuild=True)
CASES = [
    UNIFORM,
    Case("Zipf 1.1, 1 M entities", 400_000, 1_000_000, zipf=True, rebuild=True),
    Case("uniform, 200 k entities, memory", 2_000_000, 200_000),
]
QUICK = [Case(case.name, case.count // 10, case.entities, case.zipf, case.rebuild) for case in CASES[:2]]
# Of the first two cases. The third takes long, and shows the memory.
FOLD_RUNS = 3
FOLD_GOALS = {True: (40_000, 80_000), False: (12_000, None)}
"""Observations a second with and without the kernel: the goal and the moonshot."""
ASOF_GOALS_MS = {"known at": (1, 0.3), "true at": (20, 5)}
REBUILT, REBUILT_ENTITIES = 3_000_000, 200_000
REPLAYED_GOAL, RANGES_GOAL, RANGES_MOONSHOT = 120_000, 3, 2
SNAPSHOT_COST = 400_000
ENDED_RUNS, STEPS = (2_500, 5_000, 10_000), 30


def folds(console: Console, folder: Path, share: int) -> None:
    """Print what the fold does a second, with and without the kernel."""
    title = f"Folding on the embedded log (one process, timeline, arrivals, ids and changes on; medians of {FOLD_RUNS})"
    table = titled_table(title, "workload", "observations", "runs", "a second", "slowest tenth", "peak MB",
                         "bytes each", "full rebuild, a second")  # fmt: skip
    for number, case in enumerate(QUICK if share > 1 else CASES):
        found: dict[bool, Figures] = {}
        for uses_kernel in (True, False):
            if find_kernel().kernel is None and uses_kernel:
                continue
            name = case.name if uses_kernel else f"{case.name}, without the kernel"
            runs = FOLD_RUNS if case.rebuild else 1
            with console.status(name):
                found[uses_kernel] = _median([measure(case, folder, uses_kernel=uses_kernel) for _ in range(runs)])
            table.add_row(name, f"{case.count:,}", str(runs), *_row(found[uses_kernel]))
        if number == 0:
            _note_folds(console, found)
    console.print(table)


def _median(runs: list[Figures]) -> Figures:
    return Figures(*map(median, zip(*runs, strict=True)))


def _row(figures: Figures) -> list[str]:
    rebuilt = f"{figures.rebuilt_per_second:,.0f}" if figures.rebuilt_per_second else "-"
    return [f"{figures.per_second:,.0f}", f"{figures.slowest_per_second:,.0f}", f"{figures.peak_mb:,.0f}",
            f"{figures.bytes_per_observation:,.0f}", rebuilt]  # fmt: skip


def _note_folds(console: Console, found: dict[bool, Figures]) -> None:
    names = {True: "fold on `file:`, with the kernel", False: "fold on `file:`, plain Python"}
    for uses_kernel, figures in found.items():
        goal, moonshot = FOLD_GOALS[uses_kernel]
        other = found.get(not uses_kernel)
        peer = "" if other is None else f"{names[not uses_kernel]}: {other.per_second:,.0f}"
        note(console, Figure(names[uses_kernel], figures.per_second, goal, "observations a second", peer,
                             moonshot=moonshot))  # fmt: skip


def as_of(console: Console, folder: Path, _share: int) -> None:
    """Print how long one entity at a past point takes."""
    what = f"one entity of {asof.OBSERVATIONS:,} observations"
    table = titled_table(f"{what.capitalize()} as it was (1 % repeats, 1 % late)", "asked for", "p50, ms", "p99, ms")
    with console.status("one entity as it was"):
        for each in asof.measure(folder):
            table.add_row(each.name, f"{each.p50:.2f}", f"{each.p99:.2f}")
            if each.name in ASOF_GOALS_MS:
                goal, moonshot = ASOF_GOALS_MS[each.name]
                note(console, Figure(f"{each.name} a past point, {what}: p99", each.p99, goal, "ms", at_least=False,
                                     moonshot=moonshot))  # fmt: skip
    console.print(table)


def rebuilds(console: Console, folder: Path, share: int) -> None:
    """Print rebuilds of a large log."""
    table = rebuild_table(f"Rebuilding at 95 % of a log of {REBUILT_ENTITIES // share:,} entities")
    for name, is_disturbed in (("in order", False), ("1 % repeats, 1 % late", True)):
        with console.status(name):
            found = rebuilding(REBUILT // share, REBUILT_ENTITIES // share, is_disturbed=is_disturbed, folder=folder)
        add_rebuild(table, name, found)
        _note_rebuild(console, name, found)
    console.print(table)


def _note_rebuild(console: Console, name: str, found: RebuildFigures) -> None:
    what = f"{found.observations:,} observations, {name}"
    log_pass = f"reading the log: {found.observations * 0.95 / found.pass_s:,.0f}"
    note(console, Figure(f"rebuild --full, {what}", found.full_per_second, REPLAYED_GOAL, "observations a second",
                         limit=log_pass))  # fmt: skip
    note(console, Figure(f"rebuild from snapshots to reading their ranges, {what}", found.rebuilt_s / found.ranges_s,
                         RANGES_GOAL, "times", at_least=False, moonshot=RANGES_MOONSHOT,
                         limit=f"reading the ranges: {found.ranges_s:.2f} s"))  # fmt: skip


def ended_runs(console: Console, folder: Path, share: int) -> None:
    """Print what a rebuild takes as ended runs become more."""
    table = titled_table(f"Ended runs of {STEPS} steps, rebuilt at the end (medians of {RUNS})", "ended runs",
                         "entities", "rebuild, s", "longest, s", "replayed")  # fmt: skip
    with console.status("ended runs"):
        for each in closed([runs // share for runs in ENDED_RUNS], STEPS, folder):
            table.add_row(f"{each.runs:,}", f"{each.entities:,}", f"{each.rebuilt_s:.2f}", f"{each.longest_s:.2f}",
                          f"{each.replayed:,}")  # fmt: skip
    console.print(table)


def snapshots(console: Console, folder: Path, share: int) -> None:
    """Print what snapshots cost the fold."""
    with console.status("the cost of snapshots"):
        cost = snapshot_cost(SNAPSHOT_COST // share, REBUILT_ENTITIES // share, folder)
    console.print(f"Snapshots cost the fold {cost:.1%} of its throughput (median of {RUNS} pairs)")


Show = Callable[[Console, Path, int], None]
PARTS: dict[str, Show] = {
    "folding": folds, "asof": as_of, "rebuilds": rebuilds, "closed": ended_runs, "snapshots": snapshots,
}  # fmt: skip
