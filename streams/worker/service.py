"""The fold service: each partition that the group `refold.<prefix>` assigns to this process is folded exactly once.

One batch covers all partitions:
1. Fold the fetched records into overlays, one a partition: changes, and a write to its table that is not made yet.
2. Begin a transaction. Produce the changes and dead letters, each with the point that the batch leads to.
3. Send those points as the group's offsets, with the membership as it is at this moment.
4. Commit. From here on the batch is decided, for every process that ever owns these partitions.
5. Write each overlay into its table, with the point, in one write.
6. Only then fold the next batch.

A process that ends between 4 and 5 leaves tables that lag: the next start folds them up to the committed point and
emits nothing again (start.py). A process that ends before 4 has emitted nothing. If the answer to 4 is lost, this
process does the same without ending: it releases the batch's partitions and takes them up again. Between two batches it
applies definitions, by commits that pass through 2 to 5 alike (advance.py).

Steps 2 to 4 run in a thread of their own. Meanwhile the records of the next batch are fetched and decided, no more:
- They are in memory alone: no table, offset or transaction knows of them. A process that ends loses nothing.
- Deciding does not read the tables (verdicts.py). If the transaction is aborted, the overlays of this batch are emitted
  again first, and the decided records of the next batch wait. Folding reads the tables, so it waits for 5.
- Between 2 and 4 no rebalance is handled. A partition that is given up, or is taken up again, drops them.
- If fetching fails, the worker ends once the transaction is over. If that is committed, its tables lag, as above.

Meanwhile a thread seals epochs of the tables (snapshots.py), and with --standby another one follows the partitions of
other workers (standby.py).

When the group revokes a partition, the service is between two batches, and fetched records of it that are not folded
are dropped. A partition that is lost in the middle of a batch is left out of it, because the broker refused its
emission. While no broker answers, the worker waits, and a partition that could not be taken up is retried. A partition
that needs a damaged record waits too (quarantine.py). Any other failure ends the worker, and its next start finds out
from the log what became of the batch.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

from refold.avro.errors import DamagedRecord, StorageError, Unanswered
from refold.streams.events import DeadLetterLog, SkippedRecordsLog, listed, log_event
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.registry.ids import SchemaIds
from refold.streams.rocks.families import Memory
from refold.streams.runtime import close_all
from refold.streams.worker.broker_watch import BrokerWatch
from refold.streams.worker.condition import CurrentCondition, StallLog, WorkerCondition
from refold.streams.worker.config import FoldConfig
from refold.streams.worker.data_folder import DataFolder, FolderCondition, locked_folder
from refold.streams.worker.emission import CommitUnknown, Emitter, NotEmitted, RefusalCount
from refold.streams.worker.fetcher import Fetcher
from refold.streams.worker.membership import GroupMember, Membership
from refold.streams.worker.partition_fold import PartitionFold
from refold.streams.worker.partition_table import PartitionTable
from refold.streams.worker.pending_commit import PendingCommit
from refold.streams.worker.quarantine import DamageWaits
from refold.streams.worker.schema_lookup import SchemaLookup
from refold.streams.worker.snapshots import Sealing
from refold.streams.worker.standby import StandbyTables
from refold.streams.worker.start import Starter, Starting, close_started
from refold.streams.worker.verdicts import Decider

STARTS_AT_ONCE = 2
IDLE_S = 0.1
# How long to wait for records while a transaction is under way, which may be over sooner.
AHEAD_S = 0.002
ENDED_POLL_S = 1.0
FOLDER_EVERY_S = 1.0
OUTAGE_RECENT_S = 120.0
FETCHED_AT_ONCE = 2_000

_logger = logging.getLogger(__name__)


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


class FoldService:
    """One worker's fold. Call `run` in a separate thread; `drain` and `status` may be called from any other."""

    def __init__(
        self, config: FoldConfig, now_s: Callable[[], float] = time.monotonic, clock_ms: Callable[[], int] = _clock_ms
    ) -> None:
        """Open the log, which is created if it does not exist.

        now_s: any clock that never goes back. clock_ms: milliseconds since 1970.
        """
        self._config = config
        self._now_s = now_s
        schema_ids = (
            None if config.registry is None else SchemaIds(config.registry, timeout_s=config.registry_s, retries=0)
        )
        address = parse_url(config.url)
        log = self._log = KafkaLog(address, config=config.kafka, silent_s=config.stuck_s, schema_ids=schema_ids)
        self._stopping = Event()
        self._has_ended = Event()
        self._memory = Memory(log.partitions)
        self._partitions: dict[int, PartitionFold] = {}
        self._starting: dict[int, Starting] = {}
        self._pool = ThreadPoolExecutor(STARTS_AT_ONCE, thread_name_prefix="refold-start")
        self._emitting = ThreadPoolExecutor(1, thread_name_prefix="refold-emit")
        transactional_id = f"{log.topics.group}.fold.{config.instance}"
        self._starter = Starter(log, config.folder, self._memory, config.table)
        self._lookup = SchemaLookup(log, self._starter)
        self._emitter = Emitter(
            log.clients, log.topics, transactional_id, config.transaction_ms, RefusalCount(now_s),
            self.was_outage_within,
        )  # fmt: skip
        watched = (log.topics.schemas, len(log.registry))
        self._fetcher = Fetcher(log.clients, log.topics.observations, log.unreadable, watched, config.stuck_s)
        self._sealing = Sealing(log, clock_ms, config.epoch_every_ms, config.snapshots)
        self._standbys = StandbyTables(log, self._starter) if config.is_standby else None
        self._waits = StallLog("partition")
        self._settling = DamageWaits(log.registry.rulings)
        self._membership: Membership | None = None
        self._clock_ms = clock_ms
        self._watch = BrokerWatch(log.clients, log.topics, address, log.partitions, clock_ms)
        self._group: CurrentCondition | None = None
        self._folder = FolderCondition(config.folder, clock_ms)
        self._failure = ""
        self._folder_looked_s = now_s()
        self._letters = DeadLetterLog(_logger)
        self._passed = SkippedRecordsLog(_logger)
        self._batch_from = 0.0
        self._to_recover: SimpleQueue[Future[list[int]]] = SimpleQueue()

    # Of any thread

    def drain(self) -> None:
        """Let `run` finish the batch under way, leave the group and return."""
        self._stopping.set()

    def status(self) -> dict[int, dict[str, Any]]:
        """Return the status of each partition; for a folded one: `PartitionFold.status`."""
        found = {} if self._standbys is None else self._standbys.status()
        found |= {
            number: {"state": "starting", "damage": self._settling.of(number)} for number in list(self._starting)
        }  # fmt: skip
        for number, partition in list(self._partitions.items()):
            own = partition.status()
            found[number] = {"state": "folding", **own, **self._sealing.status(number, own["offset"])}
        return found

    def condition(self) -> WorkerCondition:
        """Return the condition of brokers, group and folder, and the skipped records."""
        seen = self._watch.now
        group = None if self._group is None else self._group.now
        return WorkerCondition(
            seen.broker, group, self._folder.now(), self._failure, seen.brokers, seen.group_lag, seen.unfit,
            self._starter.held, len(self._log.registry.pending()), self._log.foreign(), self._log.passed_over(),
        )  # fmt: skip

    def was_outage_within(self, duration_s: float = OUTAGE_RECENT_S) -> bool:
        """Whether no broker answered at some time in the last so many seconds."""
        return self._watch.was_lost_within(duration_s)

    @property
    def log(self) -> KafkaLog:
        """The log that is folded, for readers that know what other threads may do with it."""
        return self._log

    @property
    def sealing(self) -> Sealing:
        """The snapshots of the partitions folded here."""
        return self._sealing

    def table(self, partition: int) -> PartitionTable | None:
        """The table of a partition that is folded here at this moment."""
        found = self._partitions.get(partition)
        return None if found is None else found.table

    def owns(self, partition: int) -> bool:
        """Whether a partition is this worker's: folded, or being taken up; for a moment between the two it is not."""
        return partition in self._starting or partition in self._partitions

    def recover(self) -> list[int]:
        """Delete the tables here, to be rebuilt; return the partitions that are started again. From any thread."""
        asked: Future[list[int]] = Future()
        self._to_recover.put(asked)
        while not wait([asked], ENDED_POLL_S).done:
            if self._has_ended.is_set():
                raise StorageError("the worker has ended; the next one rebuilds its tables if they are "
                                   "damaged, or missing")  # fmt: skip
        return asked.result()

    # For the thread that runs

    def run(self) -> None:
        """Fold until drained; raises a fatal error."""
        with locked_folder(self._config.folder, alone=self._config.is_standby) as folder:
            self._run(folder)

    def _run(self, folder: DataFolder) -> None:
        log_event(_logger, "started", url=self._config.url, data=self._config.folder, instance=self._config.instance)
        try:
            self._emitter.fence(self._stopping.is_set)
            if self._standbys is not None:
                self._standbys.warm(self._stopping.is_set)
            self._group = CurrentCondition(self._clock_ms, f"it is not a member of its group {self._log.topics.group}")
            self._membership = Membership(
                self._log.clients, GroupMember.of_fold(self._log.topics, self._config), self._start_partitions,
                self._release_partitions, self._note_membership, self._is_alone, self.was_outage_within,
            )  # fmt: skip
            while not self._stopping.is_set():
                self._check_folder(folder)
                self._run_once(self._membership)
            log_event(_logger, "draining", partitions=listed(self._partitions))
            self._commit(self._membership)
        except BaseException as problem:  # whatever it is, the partitions are given up in order
            reason = folder.reason(problem, self._tables())
            # The pages show it at once: giving everything up takes a while.
            self._failure = str(reason) or type(reason).__name__
            log_event(_logger, "failed", logging.ERROR, why=self._failure)
            self._has_ended.set()
            try:
                self._close()
            except Exception as further:  # the first one is the reason
                log_event(_logger, "failed_further", logging.WARNING, why=further)
            if reason is problem:
                raise
            raise reason from problem
        self._has_ended.set()
        self._close()
        log_event(_logger, "drained")

    def _check_folder(self, folder: DataFolder) -> None:
        """From time to time, check that the tables' folders exist and have room, and which records are skipped."""
        if self._now_s() - self._folder_looked_s > FOLDER_EVERY_S:
            folder.require_there(self._tables())
            self._folder.now()
            self._passed.update("foreign_records", self._log.foreign())
            self._passed.update("damaged_records", self._log.passed_over())
            self._folder_looked_s = self._now_s()

    def _tables(self) -> Iterator[Path]:
        return (each.table.database.path for each in self._partitions.values())

    def _is_alone(self) -> bool:
        """Whether a member was fenced without another worker under its name.

        Another worker fences the producer before it joins (`_run`). So does the coordinator, if a transaction took too
        long, as in an outage.
        """
        return not self._emitter.is_fenced() or self.was_outage_within()

    def _note_membership(self, is_in: bool) -> None:
        """Record whether this worker is a member of its group, and log a change."""
        assert self._group is not None
        group = self._log.topics.group
        before = self._group.note(is_in, "" if is_in else f"it is not a member of its group {group}")
        if before is not None:
            level = logging.INFO if is_in else logging.WARNING
            log_event(_logger, "group_joined" if is_in else "group_lost", level, group=group,
                      after_s=round(before.seconds(self._clock_ms()), 1))  # fmt: skip

    def _run_once(self, membership: Membership) -> None:
        self._letters.flush_if_due()
        self._emitter.begin()
        if self._standbys is not None:
            self._standbys.check()
        membership.serve()
        self._recover_requested()
        self._begin_folding()
        self._follow_definitions()
        if unsettled := self._settling.unsettled(self._partitions):
            self._restart_partitions(unsettled)
        self._take_records(self._fetch_timeout_s())
        if self._is_due():
            self._commit(membership)

    # Records

    def _take_records(self, timeout_s: float) -> None:
        """Fetch records, and decide those that wait."""
        self._fetch(timeout_s)
        for partition in self._partitions.values():
            self._decide(partition)

    def _fetch(self, timeout_s: float) -> None:
        left = self._config.records_max - sum(each.pending_count for each in self._partitions.values())
        fetched = set()
        for number, found in self._fetcher.fetch(max(1, min(left, FETCHED_AT_ONCE)), timeout_s):
            partition = self._partitions.get(number)
            if partition is not None and partition.receive(found):
                fetched.add(number)
        for number in fetched:
            self._partitions[number].ends_at(self._fetcher.end_of(number))

    def _fetch_timeout_s(self) -> float:
        """How long to wait for records."""
        if self._is_full() or any(each.is_due for each in self._partitions.values()):
            return 0
        if not self._has_decided():
            return IDLE_S
        return max(0.0, self._batch_from + self._config.commit_ms / 1000 - self._now_s())

    def _decide(self, partition: PartitionFold) -> None:
        had = self._has_decided()
        if partition.refused is None or self._now_s() >= partition.registry_retry_at_s:
            partition.decide()
            if partition.refused is not None:
                partition.registry_retry_at_s = self._now_s() + self._config.retry_s
        self._waits.note(partition.number, partition.waits_for or partition.damage)
        self._fetcher.set_paused(partition.number, is_paused=partition.has_undecided)
        if not had and self._has_decided():
            self._batch_from = self._now_s()

    def _has_decided(self) -> bool:
        return any(each.pending_count for each in self._partitions.values())

    def _is_due(self) -> bool:
        partitions = self._partitions.values()
        if any(each.is_due for each in partitions):
            return True
        is_time = self._now_s() >= self._batch_from + self._config.commit_ms / 1000
        return self._has_decided() and (is_time or self._is_full())

    def _is_full(self) -> bool:
        """Whether the next batch has as many records, or bytes, as one may have."""
        partitions = self._partitions.values()
        return (
            sum(each.pending_count for each in partitions) >= self._config.records_max
            or sum(each.pending_bytes for each in partitions) >= self._config.bytes_max
        )

    def _commit(self, membership: Membership) -> None:
        """One batch, by the steps of the protocol."""
        commits = [found for each in list(self._partitions.values()) if (found := each.next_commit()) is not None]
        stopping_from_s: float | None = None
        while commits:
            try:
                deadletters_ends = self._emit(commits, membership)
            except NotEmitted:
                membership.serve(IDLE_S)
                commits = [commit for commit in commits if self._still_owns(commit)]
                if self._stopping.is_set():
                    stopping_from_s = stopping_from_s or self._now_s()
                    if self._now_s() - stopping_from_s > self._config.transaction_ms / 1000:
                        raise Unanswered(
                            "the worker ends without having committed its last batch: no broker accepted it for "
                            f"{self._config.transaction_ms / 1000:.0f} s; nothing is lost, the next start folds it"
                        ) from None
                continue
            except CommitUnknown:
                self._restart_partitions([commit.partition for commit in commits])
                return
            for commit in commits:
                for verdict in commit.verdicts:
                    self._letters.log(commit.partition, verdict.offset, verdict.reason)
                partition = self._partitions[commit.partition]
                begin = partition.table.position.at.offset
                partition.complete(commit, deadletters_ends.get(commit.partition))
                self._sealing.committed(commit.partition, begin, commit.overlay)
            return

    def _emit(self, commits: Sequence[PendingCommit], membership: Membership) -> dict[int, int]:
        """Emit commits, and meanwhile fetch and decide the records of the next batch; see `Emitter.emit`."""
        emission = self._emitting.submit(self._emitter.emit, commits, membership.metadata)
        try:
            while not (emission.done() or self._stopping.is_set() or self._is_full()):
                self._take_records(AHEAD_S)
        finally:
            wait([emission])
        return emission.result()

    def _still_owns(self, commit: PendingCommit) -> bool:
        partition = self._partitions.get(commit.partition)
        return partition is not None and partition.is_pending(commit)

    # Definitions

    def _follow_definitions(self) -> None:
        if self._fetcher.schemas_moved or self._starter.is_activation_due:
            try:
                self._starter.refresh_and_activate()
            except Unanswered:
                return  # tried again at the next turn
            self._fetcher.schemas_moved = False

    # Partitions

    def _start_partitions(self, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        if numbers:
            log_event(_logger, "partitions_assigned", partitions=listed(numbers))
        for number in numbers:
            if self._standbys is not None:
                self._standbys.release(number)
            starting = self._starting[number] = Starting()
            starting.table = self._pool.submit(self._start, number, starting)

    def _start(self, number: int, starting: Starting) -> PartitionTable:
        begun_s = self._now_s()
        if self._standbys is not None:
            self._standbys.await_closed(number, starting.cancelled.is_set)
        table = self._starter.start(number, starting.cancelled.is_set)
        starting.took_s = self._now_s() - begun_s
        return table

    def _begin_folding(self) -> None:
        for number, starting in list(self._starting.items()):
            if starting.table is not None and starting.table.done():
                if starting.again_at_s is not None:
                    if self._now_s() >= starting.again_at_s and self._settling.is_over(number, self._now_s()):
                        starting.again_at_s = None
                        starting.table = self._pool.submit(self._start, number, starting)
                    continue
                try:
                    table = starting.table.result()
                except Unanswered as error:
                    starting.again_at_s = self._now_s() + self._config.retry_s
                    self._waits.note(number, str(error))
                    continue
                except DamagedRecord as error:
                    starting.again_at_s = self._now_s()
                    self._settling.wait(number, error, self._now_s())
                    self._waits.note(number, str(error))
                    continue
                del self._starting[number]
                self._settling.forget(number)
                self._waits.note(number, "")
                decider = Decider(self._log.registry, self._lookup, number, self._log.partitions)
                self._partitions[number] = PartitionFold(
                    number, table, self._log.registry, decider, self._now_s, starting.took_s
                )
                self._fetcher.begin(number, table.position.at.offset)
                self._sealing.begin(number, table)
                # What a table was made again from, where it was.
                rebuilt = table.made_from or None
                log_event(_logger, "partition_folding" if rebuilt is None else "partition_rebuilt", partition=number,
                          offset=table.position.at.offset, took_s=round(starting.took_s, 3), followed=table.followed,
                          made_from=rebuilt)  # fmt: skip

    def _release_partitions(self, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        if numbers:
            log_event(_logger, "partitions_revoked", partitions=listed(numbers))
        close_all(partial(self._drop, number) for number in numbers)

    def _drop(self, number: int) -> None:
        starting = self._starting.pop(number, None)
        self._settling.forget(number)
        if starting is not None:
            starting.cancelled.set()
            if starting.table is not None:
                starting.table.add_done_callback(close_started)
        self._end_folding(number)
        if self._standbys is not None:
            self._standbys.follow(number)

    def _end_folding(self, number: int) -> None:
        partition = self._partitions.pop(number, None)
        if partition is not None:
            self._sealing.end(number)
            self._waits.forget(number)
            close_all([partial(self._fetcher.end, number), partition.table.close])

    def _restart_partitions(self, numbers: Iterable[int]) -> None:
        """Close tables, as when the group revokes them, and take them up again: the log records their positions."""
        for number in numbers:
            self._end_folding(number)
        self._start_partitions(numbers)

    def _recover_requested(self) -> None:
        """Between two batches: close the tables, as when the group revokes them, and take the partitions up again."""
        while not self._to_recover.empty():
            asked, numbers = self._to_recover.get(), list(self._partitions)
            for number in numbers:
                self._end_folding(number)
                shutil.rmtree(self._config.folder / str(number))
            self._start_partitions(numbers)
            asked.set_result(numbers)

    def _close(self) -> None:
        """Give everything up, as far as that succeeds, and leave the group; the first failure is raised in the end."""
        close_all(self._cleanup_calls())

    def _cleanup_calls(self) -> Iterator[Callable[[], object]]:
        yield self._letters.end
        yield self._sealing.stop_soon
        if self._standbys is not None:
            yield self._standbys.stop_soon
        if self._membership is not None:
            yield self._membership.leave
        for number in [*self._starting, *self._partitions]:
            yield partial(self._drop, number)
        yield self._pool.shutdown
        yield self._emitting.shutdown
        yield self._sealing.close
        if self._standbys is not None:
            yield self._standbys.close
        yield from (self._fetcher.close, self._watch.close, self._log.close)
