"""One run of one peer, measured from outside by what its group has committed, so that all are measured alike.

1. Its group, its topics and its folder are new; refold's log is reset.
2. It starts. The clock starts with the first commit past WARM of the records, or for a slow one WARM_S after its first
   commit: start-up, joining the group and the JVM's first compiling are left out for everybody.
3. It ends with the commit of the last record, or at the first one past LONGEST_S: the rate is that of what was folded.
   A slow one is so measured over less of the topic, its tables smaller, which is to its advantage.
4. It is ended by SIGTERM, and what it wrote is deleted. Meanwhile its memory is looked at once a second: a look
   takes some 10 ms for a gigabyte.

On plain records it is done as it was earlier (calibration.py): the peers' start-up included, from the start of the
process.
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
from peers.topics import Place
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
    """records: how many were folded while the clock ran. cpu_us: of the peer's process, a record; it says more than the
    rate where other work is done beside. peak_mb: see Memory. load: the machine's load average at the end."""

    per_second: float
    records: int
    cpu_us: float | None
    peak_mb: float | None
    load: float


def measure(
    contender: Contender, workload: Workload, place: Place, schema: str, folder: Path, *,
    longest_s: float = LONGEST_S, threads: int = 1,
) -> Measured:  # fmt: skip
    """One run, cut short after longest_s. ServerFailed shows the end of the log of a peer that ended or stood still."""
    with started(contender, workload, place, schema, folder, threads) as (process, run):
        progress = place.progress(workload, contender.group(run))
        try:
            warm = 0.0 if workload.is_plain and contender.earlier_has_start else WARM
            return measured(process, progress.committed, sum(place.ends(workload).values()), warm,
                             longest_s)  # fmt: skip
        finally:
            progress.close()


def await_folded(process: Supervised, place: Place, workload: Workload, group: str, within_s: float) -> None:
    """Return when all of the workload is committed."""
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
    """The peer's process and its run; both are gone at the end of the block."""
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
    """The most that a process and those it started had resident at one time, of what was seen at every look.

    A page that several of them have counts once, as the system shares it out among them (Pss).
    """

    def __init__(self, process: Supervised, every_s: float = LOOK_S) -> None:
        self._process = process
        self._every_s = every_s
        self._looked = -math.inf
        self.peak_mb: float | None = None
        """None where the system does not tell."""

    def look(self) -> None:
        """See how much it is now, unless that was done just before."""
        now = time.monotonic()
        if now - self._looked < self._every_s:
            return
        self._looked = now
        rollups = [_read(Path(f"/proc/{each}/smaps_rollup")) for each in _tree(self._process.pid)]
        lines = [line for rollup in rollups for line in rollup.splitlines() if line.startswith("Pss:")]
        if lines:
            self.peak_mb = max(self.peak_mb or 0.0, sum(int(line.split()[1]) for line in lines) / 1024)


def _cpu_s(pid: int | None) -> float:
    """The CPU time of all threads of a process and of those that it started; 0 where the system does not tell."""
    # Behind the name, which may hold anything, utime and stime are the 12th and 13th.
    stats = [_read(Path(f"/proc/{each}/stat")).rpartition(")")[2].split()[11:13] for each in _tree(pid)]
    return sum(int(ticks) for found in stats for ticks in found) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int | str | None) -> Iterator[int | str]:
    """A process and those it started, and they, that still run."""
    if pid is not None:
        yield pid
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for each in _read(children).split():
                yield from _tree(each)


def _read(path: Path) -> str:
    """A file of the system's about a process, which may end meanwhile."""
    try:
        return path.read_text()
    except OSError:
        return ""
