"""Measures the time from a lost disk until the worker has caught up, next to Kafka Streams' restore of the same state,
and the memory that a large table takes.

1. A peer folds the whole workload and is stopped in an orderly way.
2. Once its group is empty, so that no time is spent waiting for a lost member, its folder is deleted and it is started.
3. The clock runs from the start of the process until it reports that everything is restored: refold's worker by
   /ready, Kafka Streams by its state RUNNING. refold's indexes fill after that; the time until they are complete is
   shown too.
4. The same with the disk unchanged: the cost of a start alone.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.error import URLError
from urllib.request import urlopen

from page import note, titled_table
from peers.comparison import RUNS, on_broker, ready, workloads
from peers.contenders import ALL, Contender, Refold
from peers.runs import POLL_S, Memory, await_folded, measure, started
from peers.topics import Place
from peers.workloads import Workload
from results import Figure
from rich.console import Console

from refold.testing.processes import ServerFailed, Supervised

RESTORED = ("refold", "refold-kernel", "kafka-streams")
LOOK_S = 0.2  # a restore takes only seconds
RESTORE_S = 900.0
RESIDENT = Workload("resident", "1 M entities, 16 partitions", 1_500_000, 1_000_000, partitions=16, each_once=True)
RESIDENT_MB, RESIDENT_MOONSHOT_MB = 500, 300
_PAGES = re.compile(r"pages on (http://\S+)")


@dataclass(frozen=True)
class Restored:
    """Seconds from the start of the process; complete_s: until refold's indexes were complete too."""

    lost_s: float
    complete_s: float | None
    whole_s: float
    peak_mb: float | None


def restore(console: Console, folder: Path, share: int, keys: Collection[str], runs: int = RUNS) -> None:
    """Print the table."""
    workload = workloads(share)[0]
    table = titled_table(
        f"Lost disk to caught up: {workload.name}, {workload.count:,} observations (medians of {runs})",
        "peer", "lost disk, s", "indexes whole, s", "disk as it was, s", "peak MB",
    )  # fmt: skip
    with on_broker(console, "Lost disk to caught up") as place:
        if place is None:
            return
        contenders = ready(console, [each for each in ALL if each.key in RESTORED and each.key in keys])
        with console.status(f"writing {workload.count:,} observations"):
            schema = place.make(workload)
        for each in contenders:
            try:
                with console.status(f"lost disk: {each.name}"):
                    found = _restored(each, workload, place, schema, folder, runs)
            except ServerFailed as error:
                console.print(f"lost disk: {each.name} failed: {error}", markup=False)
                continue
            complete = [one.complete_s for one in found if one.complete_s is not None]
            peaks = [one.peak_mb for one in found if one.peak_mb is not None]
            table.add_row(
                each.name, f"{median(one.lost_s for one in found):.1f}", f"{median(complete):.1f}" if complete else "-",
                f"{median(one.whole_s for one in found):.1f}", f"{max(peaks):,.0f}" if peaks else "-",
            )  # fmt: skip
    console.print(table)


def resident(console: Console, folder: Path, share: int, keys: Collection[str]) -> None:
    """Print the memory of refold's worker with many entities in many partitions."""
    size = Workload(RESIDENT.key, RESIDENT.name, RESIDENT.count // share, RESIDENT.entities // share,
                    partitions=RESIDENT.partitions, each_once=True)  # fmt: skip
    with on_broker(console, f"A worker with {size.entities:,} entities") as place:
        if place is None:
            return
        for each in ready(console, [each for each in ALL if isinstance(each, Refold) and each.key in keys]):
            with console.status(f"{size.entities:,} entities: {each.name}"):
                found = measure(each, size, place, place.make(size), folder, longest_s=RESTORE_S)
            peak = "unknown here" if found.peak_mb is None else f"{found.peak_mb:,.0f} MB, to be under {RESIDENT_MB}"
            console.print(f"{each.name}, {size.entities:,} entities in {size.partitions} partitions, {size.count:,} "
                          f"observations: {found.per_second:,.0f} a second, peak memory {peak}")  # fmt: skip
            if found.peak_mb is not None and each.uses_kernel:
                what = f"resident, {size.entities:,} entities, {size.partitions} partitions"
                note(console, Figure(what, found.peak_mb, RESIDENT_MB, "MB", at_least=False,
                                     moonshot=RESIDENT_MOONSHOT_MB))  # fmt: skip


def _restored(
    contender: Contender, workload: Workload, place: Place, schema: str, folder: Path, runs: int
) -> list[Restored]:
    group_of = contender.group
    with started(contender, workload, place, schema, folder) as (process, run):
        await_folded(process, place, workload, group_of(run), RESTORE_S)
        found = []
        for _ in range(runs):
            process.stop()
            shutil.rmtree(run.folder)
            memory = Memory(process, LOOK_S)
            lost_s, complete_s = _start(contender, process, contender.command(run), place, group_of(run), memory)
            process.stop()
            whole_s, _ = _start(contender, process, contender.command(run), place, group_of(run), Memory(process))
            found.append(Restored(lost_s, complete_s, whole_s, memory.peak_mb))
        return found


def _start(
    contender: Contender, process: Supervised, command: list[str], place: Place, group: str, memory: Memory
) -> tuple[float, float | None]:
    place.await_empty(group)
    begin = time.monotonic()
    process.launch(command)
    if not isinstance(contender, Refold):
        return _until(process, lambda: "state RUNNING" in process.output(), begin, memory), None
    caught_up_s = _until(process, lambda: _all(process, "caught_up"), begin, memory)
    return caught_up_s, _until(process, lambda: _all(process, "timeline_complete"), begin, memory)


def _until(process: Supervised, holds: Callable[[], bool], begin: float, memory: Memory) -> float:
    """Return the seconds from `begin` until `holds` is true."""
    while not holds():
        memory.look()
        if not process.is_running or time.monotonic() - begin > RESTORE_S:
            raise ServerFailed(f"it was not restored\n{process.tail()}")
        time.sleep(POLL_S)
    return time.monotonic() - begin


def _all(process: Supervised, key: str) -> bool:
    """Return whether the worker reports `key` for all partitions; once it owns any, it owns all."""
    pages = _PAGES.search(process.output())
    if pages is None:
        return False
    try:
        with urlopen(f"{pages[1]}/status", timeout=RESTORE_S) as page:
            found = json.load(page)
    except (URLError, ConnectionError):
        return False
    partitions = found.get("partitions", found)
    return bool(partitions) and all(each.get(key) for each in partitions.values())
