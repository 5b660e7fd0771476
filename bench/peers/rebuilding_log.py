"""A plain consumer rebuilds a log on Kafka: from a worker's snapshots, compared with full replay.

1. A worker folds the whole workload, seals epochs meanwhile, and is stopped in an orderly way.
2. This process, which has no table, rebuilds the log at 95 %, from snapshots and from the first record.
Records in order reopen nothing; the other row has the repeated and late records that all other tables have.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from peers.comparison import on_broker, ready
from peers.contenders import ALL, Refold
from peers.runs import await_folded, started
from peers.topics import Place
from peers.workloads import Workload
from rebuild_table import add_rebuild, rebuild_table
from rebuilding import RebuildFigures, rebuilt
from rich.console import Console

from refold.agents.log import open_log

COUNT, ENTITIES = 5_000_000, 200_000
FOLD_S = 7_200.0


def rebuild_from_kafka(console: Console, folder: Path, share: int, keys: Collection[str]) -> None:
    """Print the table. The worker uses the kernel if there is one, because the rebuild does not depend on it."""
    with on_broker(console, "Rebuilding from Kafka") as place:
        if place is None:
            return
        workers = ready(console, [each for each in ALL if isinstance(each, Refold) and each.key in keys])
        if not workers:
            return
        worker = max(workers, key=lambda each: each.uses_kernel)
        table = rebuild_table(f"A Kafka log of {ENTITIES // share:,} entities rebuilt at 95 % by a plain consumer")
        for key, name in (("ordered", "in order"), ("rebuilt", "1 % repeats, 1 % late")):
            workload = Workload(key, name, COUNT // share, ENTITIES // share, in_order=key == "ordered")
            with console.status(f"rebuilding from Kafka: {name}"):
                add_rebuild(table, name, _figures(worker, workload, place, folder))
            place.remove(workload.prefix)
    console.print(table)


def _figures(worker: Refold, workload: Workload, place: Place, folder: Path) -> RebuildFigures:
    schema = place.make(workload)
    with started(worker, workload, place, schema, folder) as (process, run):
        begin = time.monotonic()
        await_folded(process, place, workload, worker.group(run), FOLD_S)
        folded_s = time.monotonic() - begin
    with open_log(place.url(workload), read_only=True) as log:
        return rebuilt(log, folded_s)
