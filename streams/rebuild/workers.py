"""Rebuilds a log at a cut: each partition separately (partition.py), in this process or in several (child.py).

Python folds one partition at a time in a process, so a parallel rebuild uses several processes:

1. Make a temporary folder for the children, and start them: separate interpreters (streams/child_process.py) that run
   streams/rebuild/child.py.
2. Send each, as JSON lines on its standard input, the plan and then one partition after another: the next one when
   it has answered. It opens the log to read, by its URL.
3. It sends, as JSON lines on its standard output, the numbers of further records read, and finally the partition's
   counts. The entities are in a temporary file without a name that both have open (result.py). Load them from there.
4. If a child fails at a partition or dies, the partition is left to the caller, with the reason, and the child gets no
   further one.
5. Whatever happens, at the end kill the children, wait for them and remove the folder. If this process is gone, a
   child's input ends; it then removes the folder and ends too.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from refold.avro.errors import StorageError
from refold.streams import child_process, runtime
from refold.streams.cut import Cut
from refold.streams.log.port import LogReader
from refold.streams.rebuild.partition import (
    BaseEpoch,
    Progress,
    RecordsToRead,
    cold_entities_from_log,
    rebuild_partition,
)
from refold.streams.rebuild.plan import PartitionRange, RebuildLimits, RebuildPlan, plan_rebuild
from refold.streams.rebuild.result import Rebuilt, RebuiltPartition, read_entities
from refold.streams.snapshots.closed_entities import closed_in
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.spill import VIEW_BYTES, ChunkStore
from refold.streams.table.folds import Folds
from refold.streams.temporary import TemporaryFolder

# Starting a child and loading its result costs about as much as folding 5,000 records.
RECORDS_MIN = 50_000
PROCESSES_MAX = 8
_MODULE = "refold.streams.rebuild.child"
_READ_BYTES = 65_536


def processes_worth(plan: RebuildPlan, parallel: bool | None) -> int:
    """Return the number of processes to start; 0 if this one rebuilds alone."""
    if parallel is False or not child_process.can_start():
        return 0
    processes = min(runtime.cores(), len(plan.ranges), PROCESSES_MAX)
    if parallel:
        return max(processes, min(len(plan.ranges), 1))
    return processes if processes > 1 and plan.records >= RECORDS_MIN else 0


def rebuild_in_processes(
    log: LogReader, plan: RebuildPlan, processes: int, store: ChunkStore, known: RecordsToRead, memory_bytes: int
) -> tuple[dict[int, RebuiltPartition], dict[int, str]]:
    """Return the partitions that child processes rebuilt, and the reason for each that failed. The children share
    memory_bytes.
    """
    # From the end: the longest first, so that it does not run alone at the end.
    waiting = sorted(plan.ranges.values(), key=lambda each: each.end)
    setup = {
        "url": log.url,
        "config": dict(log.config),
        "plan": plan.to_json(),
        "memory_bytes": memory_bytes // processes,
    }
    parts: dict[int, RebuiltPartition] = {}
    failed: dict[int, str] = {}
    with ExitStack() as ending, selectors.DefaultSelector() as selector:
        folder = str(ending.enter_context(TemporaryFolder("refold-rebuild-")))
        for _ in range(processes):
            try:
                child = _Child(folder, setup, log, plan.cut, store, known, ending)
            except OSError as error:
                failed[waiting[-1].partition] = f"no process for it could be started: {error}"
                break
            child.assign(waiting.pop())
            selector.register(child.out, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                child = key.data
                try:
                    part = child.receive()
                except StorageError as error:
                    failed[child.job.partition] = str(error)
                    selector.unregister(child.out)
                    child.end()
                    continue
                if part is not None:
                    parts[child.job.partition] = part
                    if waiting:
                        child.assign(waiting.pop())
                    else:
                        selector.unregister(child.out)
                        child.end()
    return parts, failed


class _Child:
    """One child process, and the partition that it rebuilds now."""

    def __init__(
        self, folder: str, setup: Mapping[str, object], log: LogReader, cut: Cut, store: ChunkStore,
        known: RecordsToRead, ending: ExitStack,
    ) -> None:  # fmt: skip
        self._log = log
        self._cut = cut
        self._store = store
        self._known = known
        self._said = b""
        self._entities = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # it goes with the store
        store.keep(self._entities)
        self._errors = ending.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115  # `ending` does
        self._process = child_process.start(
            _MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            pass_fds=[self._entities.fileno()], TMPDIR=folder,
        )  # fmt: skip
        ending.callback(self.end)
        self._tell({**setup, "file": self._entities.fileno(), "folder": folder})

    @property
    def out(self) -> int:
        """The file descriptor of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def assign(self, job: PartitionRange) -> None:
        """Let it rebuild a partition."""
        self.job = job
        self._total = job.end
        self._read = 0
        self._tell({"partition": job.partition})

    def _tell(self, tree: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading its output will report that it is gone
            self._process.stdin.write(json.dumps(tree).encode() + b"\n")

    def receive(self) -> RebuiltPartition | None:
        """Read its messages; returns the partition when it is done. Raises StorageError if the child failed."""
        data = os.read(self.out, _READ_BYTES)
        if not data:
            raise self._failed(self._why_it_ended())
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "failed" in said:
                raise self._failed(said["failed"])
            if "part" in said:
                try:
                    return self._taken_up(said["part"])
                except StorageError as error:
                    raise self._failed(str(error)) from error
            self._count(said["read"], said["total"])
        return None

    def _count(self, read: int, total: int) -> None:
        self._known.total += total - self._total
        self._total = total
        self._read += read
        self._known.read(read)

    def _failed(self, why: str) -> StorageError:
        """Return the error; the records that it read have to be read again."""
        self._known.total += self.job.end - self._total + self._read
        return StorageError(why)

    def _why_it_ended(self) -> str:
        how = f"the process for it {child_process.how_it_ended(self._process)}"
        if self._process.returncode is None or self._process.returncode < 0:
            return how
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"{how}: {last or 'it said nothing'}"

    def _taken_up(self, figures: dict[str, Any]) -> RebuiltPartition:
        epoch = None if figures["epoch"] is None else Epoch(*figures["epoch"])
        cold = None
        if epoch is not None:
            manifest = self._log.snapshots.manifest(epoch)
            folds = Folds(self._log.registry, self._cut.schemas)
            instead = cold_entities_from_log(self._log, manifest, folds, self._store, figures["fallbacks"])
            cold = closed_in(self._log.snapshots, manifest, instead)
        layers = Layers(self._store, cold)
        read_entities(self._entities, figures["start"], figures["end"], layers)
        return RebuiltPartition(
            layers,
            figures["entities"],
            figures["observations"],
            figures["replayed"],
            figures["reopened"],
            figures["scanned"],
            epoch,
            figures["fallbacks"],
            apart=True,
        )

    def end(self) -> None:
        """Kill it, and wait until it is gone. Idempotent."""
        self._process.kill()
        self._process.wait()
        for each in (self._process.stdin, self._process.stdout):
            if each is not None:
                each.close()


def rebuild(
    log: LogReader, cut: Cut, progress: Progress = lambda more, total: None, *, full: bool = False,
    limits: RebuildLimits | None = None, parallel: bool | None = None, memory_bytes: int | None = None,
) -> Rebuilt:  # fmt: skip
    """Return the entities at the cut, with their hashes; with `limits`, at least the wanted ones.

    full: begin at the first record and use no snapshots. parallel: in several processes or in this one; None for the
    faster. memory_bytes: the limit of the view's memory (None: VIEW_BYTES); the rest is in a file. None of these
    changes the entities.
    """
    plan = plan_rebuild(log, cut, limits, full=full)
    known = RecordsToRead(sum(each.end for each in plan.ranges.values()), progress)
    memory_bytes = VIEW_BYTES if memory_bytes is None else memory_bytes
    store = ChunkStore(memory_bytes)
    parts: dict[int, RebuiltPartition] = {}
    failed: dict[int, str] = {}
    processes = processes_worth(plan, parallel)
    if processes:
        parts, failed = rebuild_in_processes(log, plan, processes, store, known, memory_bytes)
    folds = Folds(log.registry, cut.schemas)
    with RunningHashes() as hashes:
        begun = [
            BaseEpoch(log, plan, partition, folds, store, hashes) for partition in plan.ranges if partition not in parts
        ]
        for base in begun:
            part = parts[base.partition] = rebuild_partition(log, plan, base, folds, known)
            if base.partition in failed:
                part.fallbacks.append(f"partition {base.partition} was folded here: {failed[base.partition]}")
    for partition in cut.offsets.keys() - parts.keys():
        parts[partition] = RebuiltPartition(Layers(store))
    return Rebuilt(dict(sorted(parts.items())), limits)
