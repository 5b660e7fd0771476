"""Seals epochs of the partitions that a worker folds, in a thread next to the fold.

1. When the fold of a partition begins, its snapshots are taken over: the process that wrote them before is fenced, and
   an epoch that was left open is aborted. Records folded since the partition's last epoch count, whichever worker
   folded them.
2. An epoch is sealed after `epoch_records`, at most every `epoch_every_ms` unless what is kept for epochs nears its
   limit, and with PACE while records are folded (streams/snapshots/snapshotter.py). Its view is taken without stopping
   the fold: read the table's point, pin the states, and read the point again. If it differs, an overlay was written in
   between: try again. A table that is in the middle of a definition is left for the next time.
3. When a partition is given up, every further write of its epoch is refused here, which ends the epoch; closing the
   table ends reading it. What is open is aborted, at the latest when the next owner fences this process.
4. A process that is fenced may have lost the partition without knowing. A committed fold of the partition shows that
   the process still owns it: only then does it take over the snapshots again.
What is sealed is a function of the log and of the epochs before, so it matters little which process sealed what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from refold.avro.errors import CorruptionError, RefoldError, StorageError
from refold.streams import runtime
from refold.streams.log.kafka.log import TIMEOUT_S, KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.snapshots import KafkaSnapshotStore
from refold.streams.partitioner import partition_of, placed
from refold.streams.rocks.scan import FamilySnapshot
from refold.streams.snapshots.closed_entities import closings
from refold.streams.snapshots.dirty_entities import DirtyEntities
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.sealing_process.sealer import ProcessSealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.snapshotter import Pace, Snapshotter
from refold.streams.snapshots.table import EpochState
from refold.streams.table.pinned import PinnedTable
from refold.streams.worker.partition_table import PartitionTable
from refold.streams.worker.pending_commit import Overlay, StoredPosition, read_stored

PACE = Pace(share=0.15, unsealed_max=100_000)
# A base is read in parts, and each part is in memory as fetched, unpacked and decoded: a small read-ahead is enough.
AHEAD_KB = 2 << 10

_logger = logging.getLogger(__name__)


class _FoldedPartition:
    """A partition that is folded here.

    Attributes:
        begun_at: The offset where its fold began.
        commits: The number of its commits.
        fenced_at: The number of commits when this process found that it was fenced; None if it is not.
    """

    def __init__(self, table: PartitionTable) -> None:
        self.database = table.database
        self.begun_at = table.position.at.offset
        self.commits = 0
        self.fenced_at: int | None = None


class Sealing:
    """Seals the partitions of one worker, in a thread. The fold reports by `begin`, `committed` and `end`."""

    def __init__(
        self, log: KafkaLog, clock_ms: Callable[[], int], every_ms: int, settings: SnapshotSettings
    ) -> None:  # fmt: skip
        """
        Args:
            log: The log of the worker.
            clock_ms: The clock, in milliseconds since 1970.
            every_ms: The least time from one epoch of a partition to the next, in milliseconds. An urgent partition is
                due sooner; see the module of Snapshotter.
            settings: When epochs are sealed and garbage is collected; see Snapshotter.
        """
        self._log = log
        self._folded_here: dict[int, _FoldedPartition] = {}
        self._touched = DirtyEntities()
        self._taken: dict[int, _FoldedPartition] = {}
        known = log.unreadable
        self._reading = LogReaders(log.clients, TIMEOUT_S, ahead_kb=AHEAD_KB, unreadable=known)
        self._uncommitted = LogReaders(log.clients, TIMEOUT_S, committed=False, ahead_kb=AHEAD_KB, unreadable=known)
        self._store = KafkaSnapshotStore(
            log.clients, log.topics, log.manifests, log.offsets, self._reading, self._uncommitted, owns=self._owns
        )
        sealer = ProcessSealer(
            self._store, log.log_id, log.partitions, runtime.release_freed_memory, settings=settings
        )  # fmt: skip
        self._sizes: dict[int, dict[Epoch, int]] = {}
        self._is_stopping = False
        self._snapshotter = Snapshotter(
            self._store, sealer, self._views, self._owned, clock_ms, every_ms=every_ms, prepare=self._prepare,
            touched=self._touched, pace=PACE, settings=settings,
        )  # fmt: skip

    # Called by the fold

    def begin(self, partition: int, table: PartitionTable) -> None:
        """Report that the fold of a partition begins."""
        self._folded_here[partition] = _FoldedPartition(table)
        self._snapshotter.wake()

    def committed(self, partition: int, begin: int, overlay: Overlay) -> None:
        """Note that an overlay is committed and written to the table.

        Args:
            partition: The partition.
            begin: The table's offset before it.
            overlay: The overlay.
        """
        folded, end = self._folded_here[partition], overlay.stored.at.offset
        if end > begin:
            self._touched.add(partition, begin, end, [(placed, state) for placed, state, _ in overlay.changes])
        elif overlay.changes:  # by another definition: after it a whole base is sealed
            self._touched.end(partition)
        folded.commits += 1
        self._snapshotter.folded(end - begin, partition)

    def end(self, partition: int) -> None:
        """Report that a partition is released; afterwards its table may be closed."""
        if self._folded_here.pop(partition, None) is not None:
            self._touched.end(partition)
            self._snapshotter.wake()

    def stop_soon(self) -> None:
        """Stop sealing, without waiting."""
        self._is_stopping = True
        self._snapshotter.stop_soon()

    def close(self) -> None:
        """Stop sealing; returns when the thread has ended and its open transactions are aborted."""
        self.stop_soon()
        self._snapshotter.stop()
        self._store.close()
        self._uncommitted.close()
        self._reading.close()

    # Called by any thread

    def status(self, partition: int, folded_to: int) -> dict[str, int]:
        """Return the size of a partition's snapshots in bytes, and how many offsets they lag the fold."""
        lag = max(0, folded_to - self.sealed_to(partition))
        return {"snapshot_bytes": self.size_bytes(partition), "snapshot_lag": lag}

    def size_bytes(self, partition: int) -> int:
        """Return the bytes written for a partition's existing epochs, as far as this process has seen them."""
        known = self._sizes.get(partition, {})
        # Manifests never change, so each is read once.
        sizes = {each: known[each] if each in known else self._size(each) for each in self._store.epochs(partition)}
        self._sizes[partition] = sizes
        return sum(sizes.values())

    def sealed_to(self, partition: int) -> int:
        """The offset of a partition's newest epoch, as far as this process has seen them; 0 without one."""
        return max((each.offset for each in self._store.epochs(partition)), default=0)

    def _size(self, epoch: Epoch) -> int:
        try:
            return self._store.manifest(epoch).size
        except CorruptionError:  # damaged, for verify to name; or removed just now
            return 0

    # Commands

    def seal(self, pinned_at: int | None) -> dict[int, Epoch | None]:
        """Seal an epoch of each partition folded here, durable on return. pinned_at (milliseconds): also pin it.

        Returns:
            The epochs by partition; None for a partition without records.

        Raises:
            StorageError: One of them cannot be sealed at the moment.
        """
        partitions = sorted(self._folded_here)
        sealed = {each.epoch.partition: each.epoch for each in self._snapshotter.seal(pinned_at)}
        for partition in partitions:
            folded = self._folded_here.get(partition)
            stored = None if folded is None else read_stored(folded.database)
            if partition not in sealed and (stored is None or stored.at.offset):
                raise StorageError(f"partition {partition} is moving to another worker, or a definition is being "
                                   "applied: nothing was sealed of it; ask again")  # fmt: skip
        return {partition: sealed.get(partition) for partition in partitions}

    def pin(self, epochs: Iterable[Epoch], pinned_at: int | None) -> list[Epoch]:
        """Pin the given epochs of partitions folded here, or unpin them if pinned_at is None; return these epochs.

        Raises:
            InputError: One of them does not exist; none is pinned.
        """
        own = [epoch for epoch in epochs if self._owns(epoch.partition)]
        if pinned_at is None:
            self._snapshotter.unpin(own)
        else:
            self._snapshotter.pin(own, pinned_at)
        return own

    def collect(self, *, dry_run: bool, damaged: bool) -> list[Collected]:
        """Collect garbage of the partitions folded here; with dry_run, only report it."""
        return self._snapshotter.collect(dry_run=dry_run, damaged=damaged)

    # The thread

    def _owns(self, partition: int) -> bool:
        folded = None if self._is_stopping else self._folded_here.get(partition)
        return folded is not None and (folded.fenced_at is None or folded.commits > folded.fenced_at)

    def _owned(self) -> list[int]:
        return [each for each in sorted(self._folded_here) if self._owns(each)]

    def _prepare(self) -> None:
        """Drop the snapshots of released and fenced partitions, and take over those of owned ones."""
        for partition in self._store.owned:
            folded = self._folded_here.get(partition)
            self._note_fenced(partition, folded)
            if folded is None or folded is not self._taken.get(partition) or folded.fenced_at is not None:
                self._store.drop(partition)
                self._taken.pop(partition, None)
        for partition in self._owned():
            folded = self._folded_here.get(partition)
            if folded is None or self._taken.get(partition) is folded:
                continue
            try:
                self._begin_writing(partition, folded)
            except StorageError as error:
                if self._owns(partition):
                    _logger.warning("partition %d: its snapshots are taken up later: %s", partition, error)

    def _begin_writing(self, partition: int, folded: _FoldedPartition) -> None:
        self._store.take(partition)
        is_new = folded.fenced_at is None
        folded.fenced_at = None
        self._taken[partition] = folded
        if is_new:
            self._snapshotter.folded(max(0, folded.begun_at - self.sealed_to(partition)), partition)

    def _note_fenced(self, partition: int, folded: _FoldedPartition | None) -> None:
        if folded is not None and folded.fenced_at is None and self._store.is_fenced(partition):
            folded.fenced_at = folded.commits

    @contextmanager
    def _views(self, partitions: Collection[int] | None) -> Iterator[Iterator[PinnedTable]]:
        with closing(self._pinned_tables(partitions)) as views:
            yield views

    def _pinned_tables(self, partitions: Collection[int] | None) -> Generator[PinnedTable]:
        for partition in self._owned():
            folded = self._folded_here.get(partition)
            if folded is None or (partitions is not None and partition not in partitions):
                continue
            try:
                found = self._pinned(partition, folded)
            except RefoldError:
                if self._folded_here.get(partition) is folded:
                    raise
                continue  # it was released and closed meanwhile
            if found is None:
                continue
            stored, states = found
            try:
                yield PinnedTable(
                    states, self._epoch_state(stored), stored.partitions, partial(self._touched_since, stored)
                )
            finally:
                states.release()
                self._note_fenced(partition, folded)

    def _pinned(self, partition: int, folded: _FoldedPartition) -> tuple[StoredPosition, FamilySnapshot] | None:
        """Return a table's position and its states at it; None if there is nothing to seal."""
        while self._folded_here.get(partition) is folded:
            stored = read_stored(folded.database)
            if stored is None or stored.at.offset == 0 or stored.at.place > 0:
                return None
            states = folded.database.pin("state")
            if read_stored(folded.database) == stored:
                return stored, states
            states.release()
        return None

    def _epoch_state(self, stored: StoredPosition) -> EpochState:
        at, registry = stored.at, self._log.registry
        return EpochState(
            epoch=Epoch(stored.partition, at.offset, at.schemas),
            entities=stored.entities,
            observations=stored.distinct,
            recorded_at=stored.recorded_at,
            deadletters=stored.deadletters,
            types=registry.fingerprints(at.schemas),
            closing=closings(registry, at.schemas),
            aside=stored.aside,
        )

    def _touched_since(self, stored: StoredPosition, start: int) -> Mapping[bytes, bytes]:
        known = self._touched.between(stored.partition, start, stored.at.offset)
        return dict.fromkeys(map(placed, self._entities_between(stored, start)), b"") if known is None else known

    def _entities_between(self, stored: StoredPosition, start: int) -> Iterator[str]:
        """Yield the entities that record keys name. Keys of dead letters are included; they change nothing."""
        place = KafkaPartition(self._log.topics.observations, stored.partition)
        for raw in self._reading.records(place, start, stored.at.offset):
            if not self._owns(stored.partition):
                raise StorageError(f"partition {stored.partition} was given up while its epoch was sealed")
            try:
                name = (raw.key or b"").decode()
            except UnicodeDecodeError:
                continue
            if partition_of(name, stored.partitions) == stored.partition:
                yield name
