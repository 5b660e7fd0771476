"""Rebuilds partitions in child processes (child.py), for the caller in rebuild.py.

Python folds one partition at a time in a process, so a parallel rebuild uses several processes:

1. Make a temporary folder for the children, and start them (streams/job_process.py).
2. Send each the plan and then one partition after another: the next one when it has answered. It opens the log to
   read, by its URL.
3. It sends the numbers of further records read, and finally the partition's counts. The entities are in a temporary
   file without a name that both have open (result.py). Load them from there.
4. If a child fails at a partition or dies, the partition is left to the caller, with the reason, and the child gets no
   further one.
5. Whatever happens, at the end kill the children, wait for them and remove the folder.
"""

from __future__ import annotations

import selectors
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from refold.avro.errors import StorageError
from refold.streams.job_process import JobProcess, processes_for
from refold.streams.log.port import LogReader
from refold.streams.rebuild.partition import RecordsToRead, cold_entities_from_log
from refold.streams.rebuild.plan import PartitionRange, RebuildPlan
from refold.streams.rebuild.result import RebuiltPartition, read_entities
from refold.streams.snapshots.closed_entities import closed_in
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.folds import Folds
from refold.streams.temporary import TemporaryFolder

# Starting a child and loading its result costs about as much as folding 5,000 records.
RECORDS_MIN = 50_000
_MODULE = "refold.streams.rebuild.child"


def processes_worth(plan: RebuildPlan, parallel: bool | None) -> int:
    """Return how many child processes to start for a rebuild.

    Args:
        plan: The partitions to rebuild, and how many records they have.
        parallel: True to start at least one, False to start none, None to start several only if they are faster.

    Returns:
        The number of child processes; 0 if this process rebuilds alone.
    """
    return processes_for(len(plan.ranges), parallel, is_worth=plan.records >= RECORDS_MIN)


def rebuild_in_processes(
    log: LogReader, plan: RebuildPlan, processes: int, store: ChunkStore, known: RecordsToRead, memory_bytes: int
) -> tuple[dict[int, RebuiltPartition], dict[int, str]]:
    """Rebuild the plan's partitions in child processes.

    Args:
        log: The log. Each child opens it again by its URL.
        plan: The partitions and the cut.
        processes: How many children to start, at least 1.
        store: Where the entities are loaded to.
        known: Counts the records that the children read.
        memory_bytes: The memory of all children's entities together, in bytes.

    Returns:
        The rebuilt partitions by number, and for each partition that failed the reason. A partition in neither was not
        started, because no child was left.
    """
    # Popped from the end: the longest partition begins first, so that it does not run alone at the end.
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
                child = _Child(folder, setup, log, plan, store, known, ending)
            except OSError as error:
                failed[waiting[-1].partition] = f"no process for it could be started: {error}"
                break
            child.assign(waiting.pop())
            selector.register(child.out, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                child = key.data
                try:
                    part = child.part()
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


class _Child(JobProcess):
    """One child process, and the partition that it rebuilds now."""

    def __init__(
        self, folder: str, setup: Mapping[str, object], log: LogReader, plan: RebuildPlan, store: ChunkStore,
        known: RecordsToRead, ending: ExitStack,
    ) -> None:  # fmt: skip
        self._log = log
        self._plan = plan
        self._store = store
        self._known = known
        self._entities = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # it goes with the store
        store.keep(self._entities)
        file = self._entities.fileno()
        super().__init__(_MODULE, {**setup, "file": file}, folder, ending, [file])

    def assign(self, job: PartitionRange) -> None:
        """Let it rebuild a partition."""
        self.job = job
        self._total = job.end
        self._read = 0
        self.send({"partition": job.partition})

    def part(self) -> RebuiltPartition | None:
        """Wait for the child's next answers.

        Returns:
            The partition when it is rebuilt; None before.

        Raises:
            StorageError: The child failed.
        """
        try:
            for answer in self.receive():
                if "part" in answer:
                    return self._load(answer["part"])
                self._count(answer["read"], answer["total"])
        except StorageError:  # the records that it read have to be read again
            self._known.total += self.job.end - self._total + self._read
            raise
        return None

    def _count(self, read: int, total: int) -> None:
        self._known.total += total - self._total
        self._total = total
        self._read += read
        self._known.read(read)

    def _load(self, figures: dict[str, Any]) -> RebuiltPartition:
        epoch = None if figures["epoch"] is None else Epoch(*figures["epoch"])
        cold = None
        if epoch is not None:
            manifest = self._log.snapshots.manifest(epoch)
            folds = Folds(self._log.registry, self._plan.cut.schemas)
            fallback = cold_entities_from_log(
                self._log, manifest, folds, self._store, figures["fallbacks"], self._plan.memory
            )
            cold = closed_in(self._log.snapshots, manifest, fallback, open_chunks=self._store.open_chunks)
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
