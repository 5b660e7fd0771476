"""`make bench`: every figure refold promises, measured here and printed as one table.

python -P bench/run.py [--quick] [--only TABLE ...] [--peers PEER ...] [--folder DIR] [--write] [--minutes N]

A whole run takes hours. With --folder it may be done in pieces (results.py):

    make bench ARGS="--folder DIR --write --minutes 40"    # again and again, until nothing is left out
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import capturing
import deciding
import embedded
import exploring
import flat
import importing
import parquet_sink
import postgres_sink
import queueing
import receiving
import recording_table
import saver
import searching
from page import PageConsole, write
from peers.calibration import calibrate
from peers.comparison import COMPARED, compare
from peers.contenders import ALL
from peers.rebuilding_log import rebuild_from_kafka
from peers.restoring import resident, restore
from results import PartResult, Results, setting
from rich.console import Console
from scaling import VALUE, scale, write_logs

WIDTH = 160
Measure = Callable[[Console, Path, int, Sequence[str]], None]
"""Prints a part: on a console, with its logs in a folder, a share of the observations, on Kafka with some peers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the observations, without the memory case")
    parser.add_argument("--only", choices=sorted({*PARTS, *GROUPS}), nargs="+", help="these tables, not all")
    peers = [each.key for each in ALL]
    parser.add_argument("--peers", choices=peers, nargs="+", default=peers, help="on Kafka, these peers, not all")
    parser.add_argument("--folder", type=Path, help="where the logs are made, and where the results of parts are kept: "
                        "a part that is done there, by this commit on this machine, is not measured again")  # fmt: skip
    parser.add_argument("--write", action="store_true", help="write docs/reference/PERFORMANCE.md and its pictures")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no part after so many minutes")
    options = parser.parse_args()
    command = f"make bench ARGS={shlex.quote(shlex.join(sys.argv[1:]))}"
    here = setting(command, {"quick": options.quick, "peers": sorted(options.peers)})
    if options.folder is not None:
        options.folder = options.folder.absolute()  # some peers refuse a relative path
        options.folder.mkdir(parents=True, exist_ok=True)
    results = Results(options.folder, here)
    console = PageConsole()
    console.width = max(console.width, WIDTH)
    for what, value in here.described():
        print(f"{what}: {value}")
    chosen = [name for name in PARTS if not options.only or name in options.only or _group(name) in options.only]
    begin_s, done, left_out = time.monotonic(), dict[str, PartResult](), dict[str, str]()
    for name in chosen:
        kept = results.get(name)
        if kept is not None:
            done[name] = kept
            print(f"{name}: measured {kept.begun}, in {options.folder}")
        elif time.monotonic() - begin_s > options.minutes * 60:
            left_out[name] = "its time was over"
        else:
            try:
                done[name] = _measured(name, console, options)
            except Exception as problem:  # the other parts are still measured
                traceback.print_exc()
                left_out[name] = type(problem).__name__
                continue
            results.put(done[name])
            print(f"{name}: {done[name].seconds / 60:.1f} minutes", flush=True)
    missing = [f"{name} ({why})" for name, why in left_out.items()]
    if missing:
        print(f"Left out: {', '.join(missing)}")
    if options.write and done:
        print(write(list(done.values()), here, missing))
        for each in done.values():
            if VALUE in each.values:
                try:
                    print(write_logs(each.values[VALUE], here))
                except ValueError as problem:
                    print(problem)


def _measured(name: str, console: PageConsole, options: argparse.Namespace) -> PartResult:
    """Measure a part, and return what it printed."""
    console.begin()
    begun, begin_s, load = dt.datetime.now(dt.UTC), time.monotonic(), os.getloadavg()[0]
    PARTS[name](console, options.folder or Path(tempfile.gettempdir()), 10 if options.quick else 1, options.peers)
    return PartResult(
        name=name, begun=begun.isoformat(timespec="seconds"), seconds=time.monotonic() - begin_s, load_before=load,
        load_after=os.getloadavg()[0], blocks=console.blocks, pictures=console.pictures, figures=console.figures,
        values=console.values,
    )  # fmt: skip


def _alone(show: embedded.Show) -> Measure:
    """A part without peers on Kafka."""
    return lambda console, folder, share, _: show(console, folder, share)


def _group(name: str) -> str:
    """The name of the parts that are measured by one module."""
    return next((group for group, names in GROUPS.items() if name in names), name)


WORKER = {f"worker-{key}-{threads}": partial(compare, key, threads) for key, threads in COMPARED}
FLAT = {f"flat-{name}": partial(flat.show, name) for name in flat.GROWING}
GROUPS = {"worker": tuple(WORKER), "flat": tuple(FLAT)}
# In the order of the page; the goals come first.
PARTS: dict[str, Measure] = {
    **WORKER,
    "resident": resident,
    "folding": _alone(embedded.PARTS["folding"]),
    "import": _alone(importing.show),
    "rebuilds": _alone(embedded.PARTS["rebuilds"]),
    "asof": _alone(embedded.PARTS["asof"]),
    "queue": queueing.show,
    **{name: _alone(show) for name, show in FLAT.items()},
    "calibration": calibrate,
    "restore": restore,
    "kafka-rebuilds": rebuild_from_kafka,
    "scale": scale,
    "snapshots": _alone(embedded.PARTS["snapshots"]),
    "closed": _alone(embedded.PARTS["closed"]),
    "agents": _alone(recording_table.show),
    "saver": _alone(saver.show),
    "parquet": _alone(parquet_sink.show),
    "postgres": _alone(postgres_sink.show),
    "policy": _alone(deciding.show),
    "search": _alone(searching.show),
    "explorer": _alone(exploring.show),
    "capture": _alone(capturing.show),
    "otlp": _alone(receiving.show),
}

if __name__ == "__main__":
    main()
