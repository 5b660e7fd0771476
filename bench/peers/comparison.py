"""`make bench`'s table of the worker and its peers: rates, ratios to the limit and to Kafka Streams, peak memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from page import note, titled_table
from peers.contenders import ALL, COMMIT_MS, Contender
from peers.runs import LONGEST_S, Measured, measure
from peers.topics import Place, broker
from peers.workloads import PARTITIONS, Workload
from results import Figure
from rich.console import Console
from rich.table import Table

from refold.testing.kafka import missing
from refold.testing.processes import ServerFailed, ServerMissing

RUNS = 3
COUNT = 1_000_000
LIMIT, STREAMS = "bare", "kafka-streams"
# The workers that are compared, each with its allocator.
OWN = {"refold-kernel": "", "refold-kernel-jemalloc": " with jemalloc"}
COLUMNS = (
    "peer", "observations", "a second", "lowest", "highest", "to the limit", "to Kafka Streams", "CPU us each",
    "peak MB", "load",
)  # fmt: skip


class Goal(NamedTuple):
    """The goal for the worker with the kernel: multiples of a peer's rate, and of its rate per CPU second; with each a
    moonshot. No goal: the peer is compared without one.
    """

    rate: float | None
    moonshot: float
    per_cpu: float | None = None
    per_cpu_moonshot: float | None = None


COMPARED = (("uniform", 1), ("zipf", 1), ("uniform", 2), ("zipf", 2))
"""Each workload and number of threads that is compared."""
# By peer, then by workload and threads.
GOALS = {
    "kafka-streams": {
        ("uniform", 1): Goal(1.5, 2.5, 1.2, 2), ("zipf", 1): Goal(1.3, 2.5, 1.1, 2),
        ("uniform", 2): Goal(1.7, 3), ("zipf", 2): Goal(1.4, 3),
    },
    "quix-streams": {("uniform", 1): Goal(3.5, 8)},
    "faust": {("uniform", 1): Goal(20, 60)},
    "flink": dict.fromkeys(COMPARED, Goal(1, 2)),
    # It is not exactly once.
    "pathway": dict.fromkeys(COMPARED, Goal(None, 2)),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The runs of one peer on one workload."""

    contender: Contender
    runs: list[Measured]

    @property
    def per_second(self) -> float:
        return median(each.per_second for each in self.runs)

    @property
    def records(self) -> int:
        return min(each.records for each in self.runs)

    @property
    def load(self) -> float:
        return max(each.load for each in self.runs)

    @property
    def cpu_us(self) -> float | None:
        known = [each.cpu_us for each in self.runs if each.cpu_us is not None]
        return median(known) if known else None

    @property
    def peak_mb(self) -> float | None:
        known = [each.peak_mb for each in self.runs if each.peak_mb is not None]
        return max(known, default=None)


def workloads(share: int) -> list[Workload]:
    """Return the compared workloads; a share of 10 is a tenth of the records and of the entities."""
    few, many = 200_000 // share, 1_000_000 // share
    return [
        Workload("uniform", f"uniform, {few:,} entities", COUNT // share, few),
        Workload("zipf", f"Zipf 1.1, {many:,} entities", COUNT // share, many, zipf=True),
    ]


@contextmanager
def on_broker(console: Console, what: str) -> Iterator[Place | None]:
    """Yield the broker. If this machine cannot run one, yield None, and print why the part is skipped."""
    if (reason := missing()) is not None and "KAFKA_BOOTSTRAP" not in os.environ:
        console.print(f"{what} was skipped: {reason}", markup=False)
        yield None
        return
    with broker() as bootstrap:
        yield Place(bootstrap)


def compare(
    key: str, threads: int, console: Console, folder: Path, share: int, keys: Collection[str], runs: int = RUNS
) -> None:
    """Print the table of the peers with these keys, on one workload and number of threads."""
    (workload,) = (each for each in workloads(share) if each.key == key)
    with on_broker(console, "The worker beside its peers") as place:
        if place is None:
            return
        contenders = [each for each in ALL if each.key in keys and (threads == 1 or each.takes_threads)]
        if able := ready(console, contenders):
            rows = rows_of(console, able, workload, place, folder, runs, threads, LONGEST_S / share)
            console.print(_table(workload, rows, runs, threads))
            for own, allocator in OWN.items():
                _note(console, rows, workload, threads, own, allocator)


def _note(console: Console, rows: Sequence[Row], workload: Workload, threads: int, key: str, allocator: str) -> None:
    """Collect the ratio of a worker with the kernel to each peer that it is compared with."""
    found = {row.contender.key: row for row in rows}
    own, bare = found.get(key), found.get(LIMIT)
    if own is None:
        return
    limit = "" if bare is None else f"{bare.contender.name}: {bare.per_second:,.0f} a second"
    processes = "1 thread" if threads == 1 else f"{threads} processes to threads"
    what = f"worker{allocator}, {workload.name}, {processes}"
    for peer_key, goals in GOALS.items():
        other, goal = found.get(peer_key), goals.get((workload.key, threads))
        if other is None or goal is None:
            continue
        peer = f"{other.contender.name}: {other.per_second:,.0f} a second, to {own.per_second:,.0f}"
        rate = own.per_second / other.per_second
        note(console, Figure(f"{what}: rate", rate, goal.rate, "times", peer, moonshot=goal.moonshot, limit=limit))
        if goal.per_cpu is not None and own.cpu_us and other.cpu_us:
            peer = f"{other.contender.name}: {other.cpu_us:.1f} us, to {own.cpu_us:.1f}"
            note(console, Figure(f"{what}: per CPU second", other.cpu_us / own.cpu_us, goal.per_cpu, "times", peer,
                                 moonshot=goal.per_cpu_moonshot))  # fmt: skip


def ready(console: Console, contenders: Sequence[Contender]) -> list[Contender]:
    """Return the peers that could be built; prints which could not, and why."""
    found = []
    for each in contenders:
        try:
            with console.status(f"building {each.name}"):
                each.prepare()
            found.append(each)
        except ServerMissing as error:
            console.print(f"{each.name} was skipped: {error}", markup=False)
    return found


def rows_of(
    console: Console, contenders: Sequence[Contender], workload: Workload, place: Place, folder: Path, runs: int,
    threads: int = 1, longest_s: float = LONGEST_S,
) -> list[Row]:  # fmt: skip
    """Return each peer's runs on the workload; a peer that fails is printed, and left out."""
    with console.status(f"{workload.name}: writing {workload.count:,} observations"):
        schema = place.make(workload)
    found: dict[Contender, list[Measured]] = {each: [] for each in contenders}
    # In turns, so that other load on the machine affects all of them.
    for number, each in itertools.product(range(runs), contenders):
        try:
            with console.status(f"{workload.name}: {each.name}, run {number + 1} of {runs}"):
                found[each].append(measure(each, workload, place, schema, folder, longest_s=longest_s, threads=threads))
        except ServerFailed as error:
            console.print(f"{workload.name}: {each.name} failed: {error}", markup=False)
    return [Row(each, measured) for each, measured in found.items() if measured]


def _table(workload: Workload, rows: Sequence[Row], runs: int, threads: int) -> Table:
    threading = "one thread each" if threads == 1 else f"{threads} threads (refold: processes) each"
    title = (f"{workload.name}: one Kafka, one topic of {workload.count:,} observations in {PARTITIONS} partitions, "
             f"{threading}, commits every {COMMIT_MS} ms (medians of {runs}, start-up excluded)")  # fmt: skip
    table = titled_table(title, *COLUMNS)
    rates = {each.contender.key: each.per_second for each in rows}
    for row in rows:
        all_rates = [each.per_second for each in row.runs]
        table.add_row(
            row.contender.name, f"{row.records:,}", f"{row.per_second:,.0f}",
            f"{min(all_rates):,.0f}", f"{max(all_rates):,.0f}", _ratio(row, rates.get(LIMIT)),
            _ratio(row, rates.get(STREAMS)),
            shown(row.cpu_us, ".1f"), shown(row.peak_mb, ",.0f"), f"{row.load:.1f}",
        )  # fmt: skip
    return table


def shown(value: float | None, form: str) -> str:
    """Format a figure; a dash if it is unknown."""
    return "-" if value is None else format(value, form)


def _ratio(row: Row, other: float | None) -> str:
    return "-" if other is None else f"{row.per_second / other:.3f}"
