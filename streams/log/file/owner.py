"""The owner of a `file:` log: only here records get their offsets and are folded.

A write, under the lock:
1. give each record its partition's next offset and recorded_at = max(clock, last);
2. fold them into the tables (streams/table/batch_fold.py);
3. put records, tables, changes and progress into one batch and write it; sync when asked. After a failed write the
database refuses all calls until the log is opened again. So the state in memory is never ahead of the stored state.

A new definition of a type that has entities:
1. write the definition and the note "redefine", synced;
2. fold every entity of the type again, in groups; an entity whose hash changes gets a change `redefined`;
3. remove the note. After a crash in between the note remains, and the next owner repeats steps 2 and 3, which are
   idempotent.

`TableViews` is a consistent view of the table, for sealing epochs while the fold continues.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import RLock

from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, SchemaError, StorageError
from refold.avro.kernel import find_kernel
from refold.avro.registry import Registry, TypeVersion
from refold.reducers.failed import refusing
from refold.streams.cut import Cut
from refold.streams.log.file import records, requests
from refold.streams.log.file.numbering import decoded_in, numbered
from refold.streams.log.file.records import Progress
from refold.streams.log.file.snapshots import FileSnapshotStore
from refold.streams.log.port import AppendedObservation, LogPort, Marked
from refold.streams.log.stored_markers import marker_exists, marker_key, marker_value
from refold.streams.partitioner import partition_of, placed
from refold.streams.rebuild.result import Rebuilt
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.rocks.faults import archived_error
from refold.streams.snapshots.closed_entities import closings
from refold.streams.snapshots.dirty_entities import DirtyEntities
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.sealing_process.sealer import ProcessSealer
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.snapshotter import Snapshotter
from refold.streams.snapshots.table import EpochState
from refold.streams.table import keys
from refold.streams.table.batch_fold import BatchFold, fold_again, require_foldable, states_of_type
from refold.streams.table.folds import TypeFold
from refold.streams.table.index_backfill import Filler
from refold.streams.table.index_gaps import read_gaps
from refold.streams.table.limits import DEFAULT_TABLE_LIMITS, TableLimits
from refold.streams.table.pinned import PinnedTable
from refold.streams.table.recovery import recover


class TableViews:
    """The tables of all partitions at one moment between two batches. Call `release` at the end.

    Args:
        touched: The entities of the latest records.
    """

    def __init__(
        self, database: Database, registry: Registry, partitions: int, progress: Progress, touched: DirtyEntities
    ) -> None:
        self._database = database
        self._partitions = partitions
        self._progress = progress
        self._known = touched
        self._schemas = len(registry)
        self._types = registry.fingerprints()
        self._closing = closings(registry)
        self._states = database.pin("state")

    def each(self, partitions: Collection[int] | None) -> list[PinnedTable]:
        """A view of each partition with records, optionally of some partitions only."""
        return [
            PinnedTable(
                self._states,
                self._epoch_state(partition, offset),
                self._partitions,
                partial(self._touched, partition, end=offset),
            )
            for partition, offset in self._progress.observations.items()
            if offset and (partitions is None or partition in partitions)
        ]

    def release(self) -> None:
        """Release the views."""
        self._states.release()

    def _touched(self, partition: int, start: int, end: int) -> Mapping[bytes, bytes]:
        known = self._known.between(partition, start, end)
        return (
            dict.fromkeys(map(placed, self._entities_between(partition, start, end)), b"") if known is None else known
        )

    def _entities_between(self, partition: int, start: int, end: int) -> Iterator[str]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition, end)
        names = (keys.record_entity(value) for _, value in self._database.scan("observations", first, stop))
        return filter(None, names)  # a hole has no entity

    def _epoch_state(self, partition: int, offset: int) -> EpochState:
        key = keys.position_key(partition, offset - 1)
        last = keys.record_of(key, self._database.get("observations", key) or b"")
        first, stop = keys.position_key(partition, 0), keys.position_key(partition + 1, 0)
        dead = self._database.last("deadletters", first, stop)
        return EpochState(
            epoch=Epoch(partition, offset, self._schemas),
            entities=self._progress.entities[partition],
            observations=self._progress.distinct[partition],
            recorded_at=last.recorded_at,
            deadletters=0 if dead is None else keys.deadletter_position(dead[0])[1] + 1,
            types=self._types,
            closing=self._closing,
        )


_U64 = struct.Struct(">Q")
# Sealing waits until a batch is written to get views of the table, so it gets several at once.
_SEALED_AT_ONCE = 8
_MERGED_BYTES = 48 << 20

_log = logging.getLogger(__name__)

Clock = Callable[[], int]
"""Milliseconds since 1970."""


class Owner:
    """Writes one log; several threads may call."""

    def __init__(
        self, database: Database, registry: Registry, partitions: int, clock_ms: Clock,
        settings: SnapshotSettings = DEFAULT_SETTINGS, limits: TableLimits = DEFAULT_TABLE_LIMITS,
    ) -> None:  # fmt: skip
        self._database = database
        self._registry = registry
        self._partitions = partitions
        self._clock_ms = clock_ms
        merged_bytes = _MERGED_BYTES if settings.merged_bytes is None else settings.merged_bytes
        self._settings = replace(settings, merged_bytes=merged_bytes)
        self._limits = limits
        read = partial(records.read, database)
        self._tables = BatchFold(database, registry, read)
        self._kernel = find_kernel().kernel
        self._lock = RLock()
        self._progress: records.Progress | None = records.read_progress(database, partitions)
        identity = records.read_log_record(database)
        self._is_archive = identity is not None and identity.archived_at is not None
        self._identity = None if identity is None else identity.id
        self._has_applied = False
        self._filler = Filler(database, read, registry, self._tables, self._lock, limits)
        self._snapshotter: Snapshotter | None = None
        self._touched = DirtyEntities()

    def begin(self, log: LogPort) -> None:
        """Begin to own the log, which is read through `log`: make a lost table again, apply definitions, seal
        epochs.
        """
        if read_gaps(self._database) is None:
            _log.warning("%s: the log's table is made again from its snapshots and records", self._database.path)
            self.recover(log, wait=False)
        else:
            self._filler.begin()
        self._apply_definitions()
        store = FileSnapshotStore(self._database, self._partitions, self._settings)
        sealer = ProcessSealer(store, log.log_id, self._partitions, settings=self._settings)
        self._snapshotter = Snapshotter(
            store, sealer, self._views, lambda: range(self._partitions), self._clock_ms, touched=self._touched,
            at_once=_SEALED_AT_ONCE, settings=self._settings,
        )  # fmt: skip

    def recover(self, log: LogPort, *, wait: bool) -> dict[str, object]:
        """Delete the entity tables and make them again; durable on return.

        Args:
            log: The log to read from.
            wait: Whether to wait for the indexes too. Otherwise they are filled in the background.

        Returns:
            From what they were made; see `Rebuilt.source`.
        """
        self._filler.stop()
        with self._lock:
            self._progress = None
            rebuilt = recover(self._database, log, self._end_of(log), self._put_totals)
            self._has_applied = False
            self._filler.begin()
            self._apply_definitions()
        if wait:
            self._filler.wait()
        return rebuilt.source()

    def _end_of(self, log: LogPort) -> Cut:
        """The log's end, with the definitions that are applied; a definition that is not applied yet follows, with its
        changes.
        """
        pending = self._database.get("meta", records.REDEFINE)
        records.read_schemas(self._database, self._registry)
        schemas = len(self._registry) if pending is None else _U64.unpack(pending)[0]
        return Cut(log.log_id, log.ends(), schemas, self._registry.digest(schemas))

    def _put_totals(self, rebuilt: Rebuilt, write: WriteSet) -> None:
        progress = records.read_progress(self._database, self._partitions)
        for partition, part in rebuilt.parts.items():
            progress.entities[partition], progress.distinct[partition] = part.entities, part.observations
        write.put("meta", records.PROGRESS, progress.packed())

    def stop(self) -> None:
        """Stop sealing and background work."""
        self._filler.stop()
        if self._snapshotter is not None:
            self._snapshotter.stop()

    def answer(self, op: str, payload: object) -> object:
        """Answer a request of another process.

        Args:
            op: The operation: "append", "flush", "register", "mark", "snapshot", "pin" or "collect".
            payload: Its arguments, as received (requests.py).

        Returns:
            CBOR-encodable; None where the operation has no result.

        Raises:
            InputError: The operation is unknown or its arguments are invalid.
        """
        if op == "append":
            self.append_from_process(requests.appended(payload))
        elif op == "flush":
            requests.nothing(payload)
            self.sync()
        elif op == "register":
            self.register(requests.registered(payload))
        elif op == "mark":
            asked = requests.mark(payload)
            self._require_here(asked.cut)
            self.mark(asked.marked, replace=asked.replace)
        elif op == "snapshot":
            return [list(epoch) for epoch in self.snapshot(requests.pinned_at(payload))]
        elif op == "pin":
            self.pin(*requests.pin(payload))
        elif op == "collect":
            return [list(each) for each in self.collect(**requests.collect(payload))]
        else:
            raise InputError(f"the log's owner knows no question {op!r:.80}; use the same release in both processes")
        return None

    def append(self, batch: Sequence[AppendedObservation]) -> None:
        """Write and fold observations: all, or none when one is refused. Durable after `sync`."""
        with self._lock:
            self._require_not_archive()
            self._apply_definitions()
            progress = self._next_progress()
            now = progress.recorded_at
            write = self._database.batch()
            starts = progress.observations.copy()
            numbered_batch = numbered(self._kernel, batch, starts, now)
            progress.observations.update(numbered_batch.through)
            write.put_pairs("observations", numbered_batch.rows)
            outcome = records.BatchOutcome(progress, write)
            with refusing():
                if numbered_batch.decided is None:
                    self._tables.fold(numbered_batch.checked, write, outcome, numbered_batch.through)
                else:
                    decoded = partial(decoded_in, batch)
                    self._tables.fold_decided([numbered_batch.decided], numbered_batch.through, write, outcome, decoded)
            self._commit(write, progress, sync=False)
            for partition, end in numbered_batch.through.items():
                start = starts[partition]
                self._touched.add(partition, start, end, outcome.states[partition])
                if self._snapshotter is not None:
                    self._snapshotter.folded(end - start, partition)

    def append_from_process(self, batch: Sequence[tuple[bytes, bytes]]) -> None:
        """Append observations of another process; each is decoded and validated again.

        Args:
            batch: (id, framed bytes) of each.

        Raises:
            InputError: An id is not that of its observation. Nothing of the batch is appended.
        """
        with self._lock:
            decoded = []
            for observation_id, data in batch:
                observation, own_id = self._registry.identified(data)
                if own_id != observation_id:
                    raise InputError(
                        f"{observation.entity}: the id sent with an observation is not the id of its content"
                    )
                decoded.append(AppendedObservation(observation.entity, observation_id, data, observation))
            self.append(decoded)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within the block there is no write, and no definition is partly applied."""
        with self._lock:
            self._apply_definitions()
            yield

    @property
    def ends(self) -> dict[int, int] | None:
        """The next offset of each partition, from memory; None during a write, when only the database knows it."""
        progress = self._progress
        return None if progress is None else progress.observations.copy()

    @property
    def written(self) -> int:
        """The argument of `sync` that makes everything appended by now durable."""
        return self._database.sequence

    def sync(self, through: int | None = None) -> None:
        """Return when everything appended is durable, or everything appended up to the moment when `written` was
        `through`.
        """
        self._database.sync(through)

    def mark(self, marked: Marked, *, replace: bool) -> None:
        """Store a marker, durable on return. Idempotent, because a caller without an answer repeats the request."""
        with self._lock:
            key, value = marker_key(marked.name), marker_value(marked)
            if not replace and self._database.get("manifests", key) not in {None, value}:
                raise marker_exists(marked)
            write = self._database.batch()
            write.put("manifests", key, value)
            self._database.write(write, sync=True)

    def _require_here(self, cut: Cut) -> None:
        """Refuse a marker at a point that this log does not have."""
        with self._lock:
            self._apply_definitions()
            ends = records.read_progress(self._database, self._partitions).observations
            schemas = len(self._registry)
        lies_here = all(partition in ends and offset <= ends[partition] for partition, offset in cut.offsets.items())
        if cut.log_id != self._identity or not lies_here or cut.schemas > schemas:
            raise InputError(f"{self._database.path}: the cut of this marker is not a point of this log")

    def snapshot(self, pinned_at: int | None) -> list[Epoch]:
        """Seal an epoch of every partition, durable on return. pinned_at (milliseconds since 1970): also pin it."""
        return [manifest.epoch for manifest in self._sealing.seal(pinned_at)]

    def pin(self, epochs: Sequence[Epoch], pinned_at: int | None) -> None:
        """Pin epochs, or unpin them if pinned_at is None; durable on return."""
        if pinned_at is None:
            self._sealing.unpin(epochs)
        else:
            self._sealing.pin(epochs, pinned_at)

    def collect(self, *, dry_run: bool, damaged: bool) -> list[Collected]:
        """Collect the garbage of snapshots; see LogPort."""
        return self._sealing.collect(dry_run=dry_run, damaged=damaged)

    @property
    def _sealing(self) -> Snapshotter:
        if self._snapshotter is None:
            raise InputError(f"{self._database.path}: this log is not open for snapshots")
        return self._snapshotter

    @contextmanager
    def _views(self, partitions: Collection[int] | None) -> Iterator[list[PinnedTable]]:
        """The table of each partition with records, or of some partitions, all at one moment between two batches."""
        with self._lock:
            self._apply_definitions()
            views = TableViews(self._database, self._registry, self._partitions, self._next_progress(), self._touched)
        try:
            yield views.each(partitions)
        finally:
            views.release()

    def register(self, definition: TypeDefinition) -> None:
        """Register a definition and fold its type's entities by it; durable on return."""
        with self._lock:
            self._apply_definitions()
            if self._registry.find(definition) is not None:
                return
            self._require_not_archive()
            self._registry.check(definition)
            offset = len(self._registry)
            with refusing():
                require_foldable(self._database, self._tables, TypeFold(TypeVersion(definition, offset, 0)))
            progress = self._next_progress()
            write = self._database.batch()
            write.put("schemas", records.schema_key(offset), records.schema_value(definition, progress.recorded_at))
            if (
                self._registry.versions(definition.name)
                and next(states_of_type(self._database, definition.name), None) is not None
            ):
                write.put("meta", records.REDEFINE, _U64.pack(offset))
            self._has_applied = False
            self._commit(write, progress, sync=True)
            self._apply_definitions()

    def _require_not_archive(self) -> None:
        """Refuse to write to another log's archive."""
        if self._is_archive:
            raise archived_error(self._database.path)

    def _next_progress(self) -> records.Progress:
        """A copy of the progress for the next write, with its recorded_at: times of records and definitions never
        decrease.
        """
        if self._progress is None:
            self._progress = records.read_progress(self._database, self._partitions)
        progress = self._progress.copy()
        progress.recorded_at = max(self._clock_ms(), progress.recorded_at)
        return progress

    def _commit(self, write: WriteSet, progress: records.Progress, *, sync: bool) -> None:
        write.put("meta", records.PROGRESS, progress.packed())
        # Unknown during the write: an interrupt may hide that it succeeded.
        self._progress = None
        self._database.write(write, sync=sync)
        self._progress = progress

    def _apply_definitions(self) -> None:
        """Apply definitions that are registered but not yet folded by."""
        if self._has_applied:
            return
        records.read_schemas(self._database, self._registry)
        pending = self._database.get("meta", records.REDEFINE)
        if pending is not None:
            try:
                self._redefine(_U64.unpack(pending)[0])
            except (
                SchemaError
            ) as error:  # not caused by the present write: the definition was checked when it was registered
                raise StorageError(f"a definition cannot be applied: {error}") from error
        self._has_applied = True

    def _redefine(self, offset: int) -> None:
        """Steps 2 and 3 for a new definition."""
        version = next(each for each in self._registry if each.offset == offset)
        rows = states_of_type(self._database, version.definition.name)
        while some := list(islice(rows, self._limits.refolded_entities)):
            type_fold = TypeFold(version)  # only if there is an entity to fold: the type's code may be missing
            write, progress = self._database.batch(), self._next_progress()
            outcome = records.BatchOutcome(progress, write)
            for row in some:
                partition = partition_of(keys.entity_of(row[0]), self._partitions)
                through = progress.observations[partition]
                fold_again(self._tables, type_fold, row, partition, through, write, outcome)
            self._commit(write, progress, sync=False)
        write = self._database.batch()
        write.delete("meta", records.REDEFINE)
        self._database.write(write, sync=True)
