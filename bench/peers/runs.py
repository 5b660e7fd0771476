"""One run of one peer, measured from outside by its group's commits, so that all peers are measured in the same way.

1. Its group, its topics and its folder are new; refold's log is reset.
2. The peer starts. The clock starts at the first commit after WARM of the records, or for a slow peer WARM_S after its
   first commit: start-up, joining the group and the JVM's first compilations are left out for every peer.
3. The clock stops at the commit of the last record, or at the first commit after LONGEST_S: the rate is that of the
   records folded by then. So a slow peer is measured over less of the topic, with smaller tables, which favours it.
   A peer that commits no offsets is measured by the number of changes that it has written.
4. The peer is ended by SIGTERM, and its output is deleted. During the run its memory is sampled once a second: a sample
   takes some 10 ms for a gigabyte.

On plain records the measurement is the same as the earlier one (calibration.py): from the start of the process, with
the peers' start-up.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peers.contenders import Contender, Refold, Run
from peers.topics import Place, Progress, Written
from peers.workloads import Workload

from refold.testing.processes import ServerFailed, Supervised

WARM = 0.1
WARM_S = 30.0
LONGEST_S = 120.0
SILENT_S = 120.0
LOOK_S = 1.0
POLL_S = 0.02
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Measured:
    """The figures of a run. records: how many were folded while the clock ran. cpu_us: CPU time of the peer's process
    per record; more meaningful than the rate if the machine does other work. peak_mb: see Memory. load: the machine's
    load average at the end."""

    per_second: float
    records: int
    cpu_us: float | None
    peak_mb: float | None
    load: float


def measure(
    contender: Contender, workload: Workload, place: Place, schema: str, folder: Path, *,
    longest_s: float = LONGEST_S, threads: int = 1,
) -> Measured:  # fmt: skip
    """Measure one run of at most longest_s. ServerFailed shows the log's end of a peer that ended or was stuck."""
    with started(contender, workload, place, schema, folder, threads) as (process, run):
        warm = 0.0 if workload.is_plain and contender.earlier_has_start else WARM
        if contender.commits_offsets:
            progress: Progress | Written = place.progress(workload, contender.group(run))
            total = sum(place.ends(workload).values())
        else:  # a repeated observation gives no change
            progress, total = place.written(run.changes, workload.partitions), workload.count
        try:
            return measured(process, progress.committed, total, warm, longest_s)
        finally:
            progress.close()


def await_folded(process: Supervised, place: Place, workload: Workload, group: str, within_s: float) -> None:
    """Return once the whole workload is committed."""
    progress = place.progress(workload, group)
    try:
        deadline, total = time.monotonic() + within_s, sum(place.ends(workload).values())
        while progress.committed() < total:
            if not process.is_running or time.monotonic() > deadline:
                raise ServerFailed(f"it did not fold {total:,} records\n{process.tail()}")
            time.sleep(POLL_S)
    finally:
        progress.close()


@contextmanager
def started(
    contender: Contender, workload: Workload, place: Place, schema: str, folder: Path, threads: int = 1
) -> Iterator[tuple[Supervised, Run]]:
    """Yield the peer's process and its run; both are removed at the end of the block."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    name = f"bench-{contender.key}-{os.getpid()}-{next(_numbers)}"
    (path / "schema.avsc").write_text(schema, encoding="utf-8")
    run = Run(name, path / "data", place.bootstrap, workload.prefix, workload.topic, path / "schema.avsc",
              workload.is_plain, workload.partitions, threads)  # fmt: skip
    if isinstance(contender, Refold):
        place.reset(workload)
    else:
        place.create(run.changes, workload.partitions)
    process = Supervised(contender.name, path / "log", remove=path)
    try:
        process.launch(contender.command(run))
        yield process, run
    finally:
        process.stop()
        place.remove(name)
        shutil.rmtree(path, ignore_errors=True)


def measured(process: Supervised, committed: Callable[[], int], total: int, warm: float, longest_s: float) -> Measured:
    begin, done = time.monotonic(), 0
    first = None if warm else (begin, 0, 0.0)
    moved, warm_at = begin, math.inf
    memory = Memory(process)
    while True:
        memory.look()
        now, count = time.monotonic(), committed()
        has_moved = count != done
        if has_moved:
            warm_at = min(warm_at, now + WARM_S)
            done, moved = count, now
        if first is None and has_moved and (done > warm * total or now > warm_at):
            first = now, done, _cpu_s(process.pid)
            if done >= total:
                raise ServerFailed(f"it committed all {total:,} at once, which is too few to measure")
        if first is not None and (done >= total or (done > first[1] and now - first[0] > longest_s)):
            records = done - first[1]
            used = _cpu_s(process.pid) - first[2]
            return Measured(records / (moved - first[0]), records, used / records * 1e6 if used > 0 else None,
                            memory.peak_mb, os.getloadavg()[0])  # fmt: skip
        if not process.is_running:
            raise ServerFailed(f"it ended by itself\n{process.tail()}")
        if now - moved > SILENT_S:
            raise ServerFailed(
                f"it committed nothing for {SILENT_S:.0f} s, after {done:,} of {total:,}\n{process.tail()}"
            )
        time.sleep(POLL_S)


class Memory:
    """The peak resident memory of a process and its descendants, as the maximum of all samples.

    A shared page counts once, because the system divides it among the processes (Pss).
    """

    def __init__(self, process: Supervised, every_s: float = LOOK_S) -> None:
        self._process = process
        self._every_s = every_s
        self._looked = -math.inf
        self.peak_mb: float | None = None
        """None if the system does not report it."""

    def look(self) -> None:
        """Take a sample, unless the last one was just taken."""
        now = time.monotonic()
        if now - self._looked < self._every_s:
            return
        self._looked = now
        rollups = [_read(Path(f"/proc/{each}/smaps_rollup")) for each in _tree(self._process.pid)]
        lines = [line for rollup in rollups for line in rollup.splitlines() if line.startswith("Pss:")]
        if lines:
            self.peak_mb = max(self.peak_mb or 0.0, sum(int(line.split()[1]) for line in lines) / 1024)


def _cpu_s(pid: int | None) -> float:
    """Return the CPU seconds of all threads of a process and its descendants; 0 if the system does not report them."""
    # After the name, which may contain anything, utime and stime are the 12th and 13th fields.
    stats = [_read(Path(f"/proc/{each}/stat")).rpartition(")")[2].split()[11:13] for each in _tree(pid)]
    return sum(int(ticks) for found in stats for ticks in found) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int | str | None) -> Iterator[int | str]:
    """Yield a process and its descendants that are still running."""
    if pid is not None:
        yield pid
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for each in _read(children).split():
                yield from _tree(each)


def _read(path: Path) -> str:
    """Read a system file about a process; empty if the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
