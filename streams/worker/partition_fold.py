"""The fold of one partition that a worker owns: fetched records, decided records, the next commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from refold.avro.errors import DamagedRecord, RegistryUnavailable, StorageError, UndecodableError
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import Registry
from refold.streams.deadletters import Verdict
from refold.streams.held_types import held
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.table.batch_fold import NotFolded
from refold.streams.table.checked import CheckedRecord, checked_records, last_record
from refold.streams.worker.advance import apply_without_fold, redefinition_overlay
from refold.streams.worker.fetcher import AtEnd, Fetched, UnreadableOffsets
from refold.streams.worker.partition_table import PartitionTable
from refold.streams.worker.pending_commit import NextBatch, Overlay, PendingCommit
from refold.streams.worker.verdicts import Decider

DAMAGE_RETRY_S = 2.0


@dataclass(slots=True)
class Counts:
    """Counters of one partition since its fold started in this process."""

    records: int = 0
    observations: int = 0
    entities: int = 0
    late: int = 0
    reopened: int = 0
    changes: int = 0
    deadletters: int = 0
    batches: int = 0
    redefinitions: int = 0


class PartitionFold:
    """A partition that this worker folds.

    1. `receive` adds fetched records.
    2. `decide` decides each: an observation or a dead letter.
    3. `next_commit` folds the decided records. The service emits the result (emission.py).
    4. `complete` writes the emitted result to the table.
    """

    def __init__(
        self, number: int, table: PartitionTable, registry: Registry, decider: Decider,
        now_s: Callable[[], float], rebuild_s: float,
    ) -> None:  # fmt: skip
        """Take up a partition at its table's position.

        Args:
            number: The partition's number.
            table: Its table, open for writing.
            registry: The log's definitions and rulings.
            decider: Decides records of this partition.
            now_s: A clock that never goes back, in seconds.
            rebuild_s: How long opening the table took, in seconds.
        """
        self.number = number
        self.table = table
        self.counts = Counts()
        self.is_caught_up = False
        self._is_at_end = self._was_at_end = False
        self.end = table.position.at.offset
        self.refused: RegistryUnavailable | None = None
        self._damage: DamagedRecord | None = None
        self._unread: DamagedRecord | None = None
        self._damage_retry_at_s = 0.0
        self.registry_retry_at_s = 0.0
        self._now_s = now_s
        self._rebuild_s = rebuild_s
        self._committed_at_s: float | None = None
        self._uncommitted_from_s: float | None = None
        self._registry = registry
        self._decider = decider
        self._waiting: deque[RawRecord | UnreadableOffsets] = deque()
        self._batch = NextBatch()
        self._pending: PendingCommit | None = None
        self._taken = self._next = table.position.at.offset
        self._recorded_at = table.position.recorded_at

    @property
    def waits_for(self) -> str:
        """Why the next record could not be decided at the last attempt; empty if it could."""
        return "" if self.refused is None else str(self.refused)

    @property
    def has_undecided(self) -> bool:
        """Whether fetched records are undecided; then no more are fetched."""
        return bool(self._waiting)

    @property
    def damage(self) -> str:
        """The damaged record that blocks the partition or its indexes; empty without one.

        A damaged old record is named before one that is to be fetched.
        """
        met = self._damage or self._unread
        return str(met) if met is not None else self.table.damage

    @property
    def _is_blocked(self) -> bool:
        """Whether a damaged record prevented the next commit, and it is too early to retry."""
        return self._damage is not None and self._now_s() < self._damage_retry_at_s

    @property
    def pending_count(self) -> int:
        """The number of decided records in the next commit; 0 while a damaged record blocks it."""
        return 0 if self._is_blocked else len(self._batch)

    @property
    def pending_bytes(self) -> int:
        """The size of these records in bytes."""
        return self._batch.size_bytes

    def reached_end(self, offset: int) -> None:
        """Note that the partition's end is at this offset for now."""
        self.end = offset
        self._unread = None
        self._is_at_end = self._was_at_end = True
        self.is_caught_up = self.is_caught_up or not self.lag

    def ends_at(self, offset: int) -> None:
        """Note that the partition reaches at least this offset."""
        self.end = max(self.end, offset)

    def receive(self, found: Fetched) -> bool:
        """Add a fetched item.

        Args:
            found: Records in order, skipped offsets, a damaged record, or the partition's end.

        Returns:
            False if the item only reports the partition's end.
        """
        if isinstance(found, list):
            self._add(found)
        elif isinstance(found, AtEnd):
            self.reached_end(found.offset)
            return False
        elif isinstance(found, DamagedRecord):
            self.note_unreadable(found)
        else:
            self.pass_over(found)
        return True

    def _add(self, raws: list[RawRecord]) -> None:
        self._waiting += raws
        self._taken = raws[-1].offset + 1
        self._unread = None
        self._is_at_end = False

    def pass_over(self, passed: UnreadableOffsets) -> None:
        """Skip offsets that are set aside and cannot be read."""
        self._waiting.append(passed)
        self._taken = passed.end
        self._unread = None
        self._is_at_end = False

    def note_unreadable(self, error: DamagedRecord) -> None:
        """Note that the next batch cannot be read; cleared when a record arrives or the end is reached."""
        self._unread = error
        self._is_at_end = False

    def decide(self) -> None:
        """Decide the waiting records, up to one that first needs a definition, or an answer that is unavailable now."""
        self.refused = None
        if not self.lag:
            self._uncommitted_from_s = None
        elif self._uncommitted_from_s is None:
            self._uncommitted_from_s = self._now_s()
        if self._damage is not None:
            return
        waiting, batch, decide = self._waiting, self._batch, self._decider.decide
        aside = self._registry.rulings.of(OBSERVATIONS, self.number)
        known, is_behind = len(self._registry), self._is_behind
        decided_ahead = iter(() if aside or is_behind else self._decide_plain())
        while waiting:
            raw = waiting[0]
            if isinstance(raw, UnreadableOffsets):
                waiting.popleft()
                self._next = raw.end
                batch.set_aside += raw.end - raw.start
                decided_ahead = iter(())  # the kernel's decisions ended before these offsets
                continue
            if is_behind and self._needs_definitions(raw):
                return
            recorded_at = max(self._recorded_at, raw.timestamp)
            if raw.offset in aside:
                waiting.popleft()
                self._next, self._recorded_at = raw.offset + 1, recorded_at
                batch.set_aside += 1
                continue
            try:
                decided = next(decided_ahead, None) or decide(raw, recorded_at)
            except RegistryUnavailable as error:
                self.refused = error
                return
            if len(self._registry) != known:
                known, is_behind = len(self._registry), self._is_behind
                decided_ahead = iter(())
                if self._needs_definitions(raw):
                    return  # a new definition was read: apply it first
            waiting.popleft()
            self._next, self._recorded_at = raw.offset + 1, recorded_at
            batch.size_bytes += len(raw.value or b"")
            if isinstance(decided, Verdict):
                batch.verdicts.append(decided)
            else:
                batch.add(decided)

    def _decide_plain(self) -> list[CheckedRecord | None]:
        """Return the kernel's decisions on the waiting records; empty if it decided all of them, the usual case."""
        found = self._decider.decide_plain(self._waiting, self._recorded_at)
        if found is None:
            return []
        last = last_record(found)
        if last is None or not found.is_plain or len(found) != len(self._waiting):
            return checked_records(found)
        self._batch.add_decided(found)
        self._batch.size_bytes += found.size_bytes
        self._next, self._recorded_at = last.offset + 1, last.recorded_at
        self._waiting.clear()
        return []

    def _needs_definitions(self, raw: RawRecord) -> bool:
        """Whether definitions must be applied before this record is decided."""
        schemas = self.table.position.at.schemas
        if schemas == len(self._registry):
            return False
        if not self.table.is_filling:
            return True
        try:
            writer = self._registry.writer(raw.value or b"")
        except UndecodableError:
            return False
        if writer is None:
            return False
        return writer.offset >= schemas or held(self._registry, writer.definition.name, schemas) is not None

    @property
    def is_due(self) -> bool:
        """Whether a commit is due at once, because definitions are to be applied."""
        return self._is_behind and not self.table.is_filling and not self._is_blocked

    @property
    def _is_behind(self) -> bool:
        """Whether there are definitions that are not applied yet."""
        return self.table.position.at.schemas < len(self._registry)

    def next_commit(self) -> PendingCommit | None:
        """Fold the decided records, or apply definitions if there are none.

        Returns:
            The result, to be emitted and then passed to `complete`. None if nothing is due, or if a damaged record is
            needed (`damage`); that is retried after DAMAGE_RETRY_S.

        Raises:
            StorageError: A record's custom code is not registered in this process.
        """
        if self._is_blocked:
            return None
        batch = self._batch
        try:
            commit = self._next_commit()
        except DamagedRecord as error:
            self._batch, self._damage = batch, error
            self._damage_retry_at_s = self._now_s() + DAMAGE_RETRY_S
            return None
        self._damage = None
        self._pending = commit
        return commit

    def _next_commit(self) -> PendingCommit | None:
        if self._batch:
            batch, self._batch = self._batch, NextBatch()
            try:
                overlay = self._folded(batch)
            except NotFolded as error:
                raise StorageError(
                    f"{error}. Provide what this process lacks, then start it again. If the definition is not yours: "
                    f"refold quarantine add 0={error.definition}"
                ) from error
            self.counts.records += len(batch)
            return PendingCommit(self.number, overlay, batch.verdicts)
        if self.is_due:
            version = apply_without_fold(self.table, self._registry, len(self._registry))
            if version is not None:
                self.counts.redefinitions += 1
                return PendingCommit(self.number, redefinition_overlay(self.table, version), ())
        return None

    def _folded(self, batch: NextBatch) -> Overlay:
        if batch.decided:
            return self.table.fold_decided(batch.decided, self._next, self._recorded_at)
        return self.table.fold(batch.observations, self._next, self._recorded_at)

    def is_pending(self, commit: PendingCommit) -> bool:
        """Whether `commit` is this partition's pending one. False if the partition was restarted since."""
        return self._pending is commit

    def complete(self, commit: PendingCommit, deadletters_end: int | None) -> None:
        """Write an emitted commit to the table.

        Args:
            commit: The pending commit. Its transaction is committed.
            deadletters_end: The next offset of the partition's dead letters; None if it emitted none.

        Raises:
            StorageError: The table cannot be written.
        """
        overlay = commit.overlay
        if deadletters_end is not None:
            overlay.stored = replace(overlay.stored, deadletters=deadletters_end)
        self.table.write(overlay)
        self._pending = None
        # Under constant load something is always pending. Seeing the end once since the last commit is caught up.
        self.is_caught_up, self._was_at_end = self._was_at_end, self._is_at_end
        self._committed_at_s = self._now_s()
        self._uncommitted_from_s = self._committed_at_s if self.lag else None
        self.counts.batches += 1
        self.counts.observations += overlay.distinct
        self.counts.entities += overlay.entities
        self.counts.late += overlay.late
        self.counts.reopened += overlay.reopened
        self.counts.changes += len(overlay.changes)
        self.counts.deadletters += len(commit.verdicts)

    @property
    def lag(self) -> int:
        """The number of offsets that are not folded yet; 0 if only holes are left."""
        if self._is_at_end and not self._batch and not self._waiting and self._pending is None:
            return 0
        return max(self.end, self._taken) - self.table.position.at.offset

    def status(self) -> dict[str, Any]:
        """Return the partition's status, for `/status` and metrics. Callable from any thread.

        Returns:
            JSON values. Names with `_bytes` are bytes, names with `_s` seconds. Some need an explanation:
            `lacking`: how many records may have no index entries yet.
            `followed`: how many records the table lagged when it was opened.
            `last_commit_s`: the age of the last commit; None before the first one.
            `uncommitted_s`: for how long records have been waiting for a commit.
        """
        at, lacking = self.table.position.at, self.table.lacking
        committed_at_s, uncommitted_from_s = self._committed_at_s, self._uncommitted_from_s
        now_s = self._now_s()
        return {
            "offset": at.offset,
            "end": max(self.end, self._taken),
            "lag": self.lag,
            "schemas": at.schemas,
            "caught_up": self.is_caught_up
            and not self._waiting
            and not self._damage
            and not self._unread
            and not (lacking == 0 and self._is_behind),
            "timeline_complete": lacking == 0,
            "lacking": lacking,
            "followed": self.table.followed,
            "kernel_records": self.table.kernel_records,
            "waits_for": self.waits_for,
            "damage": self.damage,
            "table_bytes": self.table.size_bytes,
            "rebuild_s": round(self._rebuild_s, 3),
            "last_commit_s": None if committed_at_s is None else round(now_s - committed_at_s, 3),
            "uncommitted_s": 0.0 if uncommitted_from_s is None else round(now_s - uncommitted_from_s, 3),
            **asdict(self.counts),
        }
