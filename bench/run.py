"""`make bench`: every figure refold promises, measured here and printed as one table.

python -P bench/run.py [--quick] [--only TABLE ...] [--peers PEER ...] [--folder DIR] [--write] [--minutes N]
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from pathlib import Path

import asof
import capturing
import deciding
import exploring
import flat
import parquet_sink
import postgres_sink
import receiving
import recording_table
import saver
import searching
from folding import Case, Figures, measure
from page import PageConsole, write
from peers.calibration import calibrate
from peers.comparison import compare
from peers.contenders import ALL
from peers.rebuilding_log import rebuild_from_kafka
from peers.restoring import resident, restore
from rebuild_table import add_rebuild, rebuild_table
from rebuilding import RUNS, closed, rebuilding, snapshot_cost
from rich.console import Console
from rich.table import Table
from scaling import scale

from refold.avro.kernel import find_kernel

WIDTH = 160
CASES = [
    Case("uniform, 200 k entities", 400_000, 200_000, rebuild=True),
    Case("Zipf 1.1, 1 M entities", 400_000, 1_000_000, zipf=True, rebuild=True),
    Case("uniform, 200 k entities, memory", 2_000_000, 200_000),
]
REBUILT, REBUILT_ENTITIES = 3_000_000, 200_000
SNAPSHOT_COST = 400_000
ENDED_RUNS, STEPS = (2_500, 5_000, 10_000), 30
QUICK = [Case(case.name, case.count // 10, case.entities, case.zipf, case.rebuild) for case in CASES[:2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the observations, without the memory case")
    parser.add_argument("--only", choices=sorted({**PARTS, **PEER_PARTS}), nargs="+", help="these tables, not all")
    peers = [each.key for each in ALL]
    parser.add_argument("--peers", choices=peers, nargs="+", default=peers, help="on Kafka, these peers, not all")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the logs are made")
    parser.add_argument("--write", action="store_true", help="write docs/reference/figures.md and its pictures")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no table after so many minutes")
    options = parser.parse_args()
    console = PageConsole()
    console.width = max(console.width, WIDTH)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    console.print(f"{machine}, {find_kernel().text}, logs in {options.folder}")
    share = 10 if options.quick else 1
    begin_s, left_out = time.monotonic(), []
    command = f"make bench ARGS={shlex.quote(shlex.join(sys.argv[1:]))}"
    # The most important parts come first, in case the time runs out.
    for name in ("worker", "flat", *(each for each in (*PARTS, *PEER_PARTS) if each not in {"worker", "flat"})):
        if options.only and name not in options.only:
            continue
        if time.monotonic() - begin_s > options.minutes * 60:
            left_out.append(f"{name} (its time was over)")
        else:
            try:
                _part(name, console, options, share)
            except Exception as problem:  # the other parts are still measured
                traceback.print_exc()
                left_out.append(f"{name} ({type(problem).__name__})")
        if options.write:
            write(console, command, left_out)
    if left_out:
        console.print(f"Left out: {', '.join(left_out)}", markup=False)
    if options.write:
        print(write(console, command, left_out))


def _part(name: str, console: Console, options: argparse.Namespace, share: int) -> None:
    if name in PARTS:
        PARTS[name](console, options.folder, share)
    else:
        PEER_PARTS[name](console, options.folder, share, options.peers)


def _folds(console: Console, folder: Path, share: int) -> None:
    table = Table(title="Folding on the embedded log (one process, timeline, arrivals, ids and changes on)")
    for column in (
        "workload",
        "observations",
        "a second",
        "slowest tenth",
        "peak MB",
        "bytes each",
        "full rebuild, a second",
    ):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for case in QUICK if share > 1 else CASES:
        for name, uses_kernel in ((case.name, True), (f"{case.name}, without the kernel", False)):
            if find_kernel().kernel is None and uses_kernel:
                continue
            with console.status(name):
                figures = measure(case, folder, uses_kernel=uses_kernel)
            table.add_row(*_row(name, case, figures))
    console.print(table)


def _asof(console: Console, folder: Path, _share: int) -> None:
    table = _table(f"One entity of {asof.OBSERVATIONS:,} observations as it was (1 % repeats, 1 % late)",
                   "asked for", "p50, ms", "p99, ms")  # fmt: skip
    with console.status("one entity as it was"):
        for each in asof.measure(folder):
            table.add_row(each.name, f"{each.p50:.2f}", f"{each.p99:.2f}")
    console.print(table)


def _rebuilds(console: Console, folder: Path, share: int) -> None:
    table = rebuild_table(f"Rebuilding at 95 % of a log of {REBUILT_ENTITIES:,} entities")
    for name, is_disturbed in (("in order", False), ("1 % repeats, 1 % late", True)):
        with console.status(name):
            found = rebuilding(REBUILT // share, REBUILT_ENTITIES // share, is_disturbed=is_disturbed, folder=folder)
        add_rebuild(table, name, found)
    console.print(table)


def _closed(console: Console, folder: Path, share: int) -> None:
    table = _table(f"Ended runs of {STEPS} steps, rebuilt at the end (medians of {RUNS})", "ended runs", "entities",
                   "rebuild, s", "longest, s", "replayed")  # fmt: skip
    with console.status("ended runs"):
        for each in closed([runs // share for runs in ENDED_RUNS], STEPS, folder):
            table.add_row(
                f"{each.runs:,}",
                f"{each.entities:,}",
                f"{each.rebuilt_s:.2f}",
                f"{each.longest_s:.2f}",
                f"{each.replayed:,}",
            )
    console.print(table)


def _snapshots(console: Console, folder: Path, share: int) -> None:
    with console.status("the cost of snapshots"):
        cost = snapshot_cost(SNAPSHOT_COST // share, REBUILT_ENTITIES // share, folder)
    console.print(f"Snapshots cost the fold {cost:.1%} of its throughput (median of {RUNS} pairs)")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _row(name: str, case: Case, figures: Figures) -> list[str]:
    rebuilt = f"{figures.rebuilt_per_second:,.0f}" if figures.rebuilt_per_second else "-"
    return [name, f"{case.count:,}", f"{figures.per_second:,.0f}", f"{figures.slowest_per_second:,.0f}",
            f"{figures.peak_mb:,.0f}", f"{figures.bytes_per_observation:,.0f}", rebuilt]  # fmt: skip


PARTS = {
    "folding": _folds,
    "flat": flat.show,
    "asof": _asof,
    "snapshots": _snapshots,
    "closed": _closed,
    "rebuilds": _rebuilds,
    "agents": recording_table.show,
    "saver": saver.show,
    "parquet": parquet_sink.show,
    "postgres": postgres_sink.show,
    "policy": deciding.show,
    "search": searching.show,
    "explorer": exploring.show,
    "capture": capturing.show,
    "otlp": receiving.show,
}
PEER_PARTS = {
    "worker": compare,
    "calibration": calibrate,
    "restore": restore,
    "resident": resident,
    "kafka-rebuilds": rebuild_from_kafka,
    "scale": scale,
}

if __name__ == "__main__":
    main()
