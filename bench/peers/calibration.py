"""Checks that this implementation of a peer does not slow the peer down: compares its ratio on a plain fold with an
earlier measurement.

The earlier figures were measured before refold was written, with other programs: 400 k records, 20 k entities, 4
partitions, the last write wins, one thread, start-up included (except for the bare loop). Machines differ, so ratios to
the bare loop are compared. A peer with at least TOLERATED of its earlier ratio is as fast as it should be; the table
says which peers are not.

The base is the bare loop that was measured then, not the sum of a loop's parts that were measured separately. The loop
here takes less than that sum (15.3 us of CPU next to other work, against 19.3). So nobody ran a loop that takes
the sum, and a ratio to it says how good the bare loop is, not the peer. The measured loop read records of another size,
so the table also shows the ratio by the parts, which is stricter, and the rate relative to the earlier rate.

Flink was not measured then: its row has only the ratio to the bare loop. Pathway has no row: on the plain fold it
writes nothing, and it commits no offsets, so nothing shows its progress.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from page import titled_table
from peers.comparison import LIMIT, RUNS, Row, on_broker, ready, rows_of, shown
from peers.contenders import ALL, EARLIER_BARE, EARLIER_PARTS
from peers.workloads import Workload
from rich.console import Console

TOLERATED = 0.8
COUNT, ENTITIES = 400_000, 20_000
COLUMNS = (
    "peer", "records", "a second", "to the limit", "earlier: a second", "earlier: to the limit", "now to earlier",
    "by the parts", "by the rate", "CPU us each", "load",
)  # fmt: skip


def calibrate(console: Console, folder: Path, share: int, keys: Collection[str], runs: int = RUNS) -> None:
    """Print the table of the peers with these keys, and of the limit."""
    workload = Workload("plain", "plain fold", COUNT // share, ENTITIES // share, is_plain=True)
    wanted = [each for each in ALL if each.folds_plain and each.key in {*keys, LIMIT}]
    with on_broker(console, workload.name) as place:
        if place is None:
            return
        rows = rows_of(console, ready(console, wanted), workload, place, folder, runs)
    limit = next((row for row in rows if row.contender.key == LIMIT), None)
    table = titled_table(f"{workload.name}: {COUNT // share:,} records, {ENTITIES // share:,} entities, "
                         f"start-up included (medians of {runs})", *COLUMNS)  # fmt: skip
    for row in rows:
        table.add_row(*_cells(row, limit))
    console.print(table)


def _cells(row: Row, limit: Row | None) -> list[str]:
    is_limit = row.contender.key == LIMIT
    earlier = row.contender.earlier_rate
    cells = [row.contender.name, f"{row.records:,}", f"{row.per_second:,.0f}"]
    if earlier is None:  # not measured then: its ratio to the limit is all that there is
        ratio = f"{row.per_second / limit.per_second:.3f}" if limit is not None else "-"
        return [*cells, ratio, "-", "-", "-", "-", "-", shown(row.cpu_us, ".1f"), f"{row.load:.1f}"]
    told = [f"{row.per_second / earlier:.2f}", shown(row.cpu_us, ".1f"), f"{row.load:.1f}"]
    if limit is None:
        return [*cells, "-", f"{earlier:,.0f}", f"{earlier / EARLIER_BARE:.3f}", "-", "-", *told]
    ours, theirs = row.per_second / limit.per_second, earlier / EARLIER_BARE
    verdict = "" if ours >= TOLERATED * theirs else ", TOO SLOW"
    by_parts = "-" if is_limit else f"{ours * EARLIER_PARTS / earlier:.2f}"
    return [*cells, f"{ours:.3f}", f"{earlier:,.0f}", f"{theirs:.3f}", f"{ours / theirs:.2f}{verdict}", by_parts, *told]
