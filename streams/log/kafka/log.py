"""The client of a `kafka:` log: it writes and reads the log's topics, and does not fold.

Answers are as of known ends of all partitions. The ends are read before everything else, so that the definitions of all
records below them are known. `refresh` reads them again; so does the first question after a write. Workers hold
the entity tables (lookups.py). The client looks up entities there if workers answer, and otherwise computes the answer
from the log. Operations that only workers can do are requested from them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from threading import RLock

from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, NotAnswerable, RegistryUnavailable, StorageError
from refold.avro.quarantine import CHANGES, Rulings
from refold.avro.registry import Registry
from refold.reducers.fold import Fold
from refold.streams.blobs.store import ContentStore, GuardedStore, NoStore
from refold.streams.log.kafka import fold_position
from refold.streams.log.kafka.activations import Activator
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.contents import LogStores, TopicContents
from refold.streams.log.kafka.damaged import UnreadableBatches, set_aside_in
from refold.streams.log.kafka.deadletters import DecidedOffsets
from refold.streams.log.kafka.entity_reader import EntityReader
from refold.streams.log.kafka.faults import closed_error
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.log_ends import LogEnds, read_ends
from refold.streams.log.kafka.lookups import IdMatches, TableClient, WorkerCommands
from refold.streams.log.kafka.manifests import ManifestMap, Markers
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.range_reader import SILENT_S, LogReaders
from refold.streams.log.kafka.recorded_at import Times
from refold.streams.log.kafka.records import Records, outgoing_observation
from refold.streams.log.kafka.rulings_ahead import rulings_ahead
from refold.streams.log.kafka.schemas import SchemaFollower
from refold.streams.log.kafka.settings import Settings
from refold.streams.log.kafka.snapshots import KafkaSnapshotReader, is_snapshot, pin_without_worker
from refold.streams.log.kafka.topics import TopicAdmin
from refold.streams.log.kafka.url import Address, merged
from refold.streams.log.port import (
    AppendedObservation,
    ChangeRecord,
    Checkpoint,
    DeadLetter,
    FoldPosition,
    Foreign,
    IndexedObservation,
    LogPort,
    Marked,
    Mismatch,
    OtherTables,
    Record,
    SetAside,
)
from refold.streams.partitioner import all_placed, partition_in, partition_of
from refold.streams.registry.ids import SchemaIds, UnknownId
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import no_such_epoch

TIMEOUT_S = 30.0


class KafkaLog(LogPort):
    """A log on Kafka. For one thread. Other threads may append, register and flush at the same time, one at a time."""

    def __init__(
        self,
        address: Address,
        *,
        config: Mapping[str, str] | None = None,
        read_only: bool = False,
        timeout_s: float = TIMEOUT_S,
        silent_s: float = SILENT_S,
        schema_ids: SchemaIds | None = None,
        tables: TableClient | None = None,
        folding: WorkerCommands | None = None,
        is_lenient: bool = False,
    ) -> None:
        """Open a log on Kafka.

        Args:
            address: The brokers and the log's prefix.
            config: Settings of Kafka's clients, which override REFOLD_KAFKA_CONFIG.
            read_only: Refuse to write.
            timeout_s: The timeout of requests, in seconds.
            silent_s: How long an offset may give no answer before it is taken to be damaged, in seconds.
            schema_ids: The Schema Registry, if any; closed with the log.
            tables: The client that looks entities up in the workers' tables, if used.
            folding: The client of the workers' operations, if used.
            is_lenient: Skip unreadable batches of all topics except `.observations` and `.changes`, for a process that
                sets them aside.
        """
        self.url = address.url
        self.config = Settings(config or {})
        self._address = address
        self._timeout_s, self._silent_s = timeout_s, silent_s
        self.registry = Registry(Rulings(address.prefix, address.url))
        self.is_indexed = self.is_dense = self.has_tables = self.keeps_order = False
        self.clients = Clients(merged(address, config), address.prefix)
        self.is_read_only = read_only
        self._tables = tables
        self._folding = folding
        self._is_closed = self._is_still = False
        self._folded: dict[int, PartitionPoint] | None = None
        admin = self.clients.admin()
        found = TopicAdmin(admin, timeout_s, self.clients).open(address, make=not read_only)
        self.topics, self.log_id, self.partitions = found.topics, found.log_id, found.partitions
        self.offsets = Offsets(admin, timeout_s, self.clients.admin)
        ahead = partial(rulings_ahead, self.topics, self.clients, self.offsets, timeout_s)
        self.unreadable = UnreadableBatches(self.topics, self.registry.rulings, ahead, is_lenient=is_lenient)
        self.reading = LogReaders(self.clients, timeout_s, unreadable=self.unreadable, silent_s=silent_s)
        self._outgoing = LogProducer(self.clients)
        observations = [KafkaPartition(self.topics.observations, each) for each in range(self.partitions)]
        self._times = [Times(place, self.offsets, self.reading) for place in observations]
        self._schema_ids = schema_ids
        give_ids = None if schema_ids is None else partial(schema_ids.register, address.prefix)
        self._foreign = ForeignRecords()
        self.stores = LogStores(address, found, self.clients, self.offsets, timeout_s, self._foreign, self.unreadable)
        self._use_store(self.stores.open())
        self.manifests = ManifestMap(
            self.topics.manifests, self.partitions, self.offsets, self.reading, time.monotonic, self._foreign
        )
        activator = Activator(self.clients, self.topics, self.registry, self.offsets)
        self.schemas = SchemaFollower(
            KafkaPartition(self.topics.schemas, 0), self.registry, self.offsets, self.reading, self._foreign,
            self.manifests, activator, give_ids,
        )  # fmt: skip
        self._decided = DecidedOffsets(
            self.topics, self.partitions, self.clients, self.offsets, self.reading, timeout_s, self._foreign
        )
        self._records = Records(
            self.topics.observations, self._times, self.registry, self._decided, self.reading, self.schemas.read_new
        )
        self._entities = EntityReader(tables, self._records, self.registry, self.partition_of)
        self._markers = Markers(self.topics.manifests, self.manifests, self.offsets, self.reading)
        self.snapshots: KafkaSnapshotReader = KafkaSnapshotReader(
            self.topics, self.manifests, self.offsets, self.reading
        )
        self._is_behind = True
        # The reading thread and recording threads refresh through the same readers.
        self._looking = RLock()
        self._known_ends = LogEnds({}, {})
        try:
            self.refresh()
        except BaseException:
            self._let_go()
            raise

    # Writing

    def unknown_id(self, wire_id: int) -> UnknownId | None:
        """Look up a wire id that is not in `.schemas` in the Schema Registry.

        Returns:
            Whether the registry knows the id; None if the log uses no registry.

        Raises:
            RegistryUnavailable: The registry gives no answer, or is not configured here.
        """
        if not self.schemas.is_bound:
            return None
        if self._schema_ids is None:
            raise RegistryUnavailable(
                f"a record names schema {wire_id}, which this log does not hold, and its Schema Registry is not "
                "known here; name it in REFOLD_SCHEMA_REGISTRY"
            )
        return self._schema_ids.unknown(wire_id)

    def register(self, definition: TypeDefinition) -> None:
        self._require_writable()
        self.flush()
        Fold(definition)  # raises SchemaError if this process cannot fold by it
        self._is_behind = True
        with self._looking:
            self.schemas.register(definition, self._outgoing)

    def append_encoded(self, observations: Sequence[AppendedObservation]) -> None:
        keys = all_placed([each.entity for each in observations])
        for key, (entity, observation_id, data, _) in zip(keys, observations, strict=True):
            place = KafkaPartition(self.topics.observations, partition_in(key, self.partitions))
            self.put(outgoing_observation(place, entity, observation_id, data))

    def put(self, sent: OutgoingRecord) -> None:
        """Write a record unchanged; durable after `flush`."""
        self._require_writable()
        self._is_behind = True
        self._outgoing.send(sent)

    def flush(self) -> None:
        """Return when everything appended is durable on the brokers. It is folded later (`await_folded`)."""
        self._require_open()
        if not self._outgoing.is_clean:
            self._outgoing.flush()

    def await_folded(self) -> None:
        """Return when the workers have folded everything that is in the log by now, and the changes can be read."""
        self.flush()
        self.refresh()
        self._workers_for("observations are folded").await_folded(self.ends(), len(self.registry))
        self._emitted()  # committed records become visible a moment later
        self._is_behind = True

    def mark(self, marked: Marked, *, replace: bool) -> None:
        self._require_writable()
        self._markers.mark(marked, self._outgoing, replace=replace)

    def snapshot(self, pinned_at: int | None = None) -> Sequence[Epoch]:
        self._require_writable()
        self.await_folded()
        found = self._workers_for("epochs are sealed").snapshot(pinned_at)
        self.snapshots.refresh()
        return found

    def pin(self, epochs: Sequence[Epoch], pinned_at: int | None) -> None:
        self._require_writable()
        self.snapshots.refresh()
        for epoch in epochs if pinned_at is not None else ():
            if self.snapshots.manifest_bytes(epoch) is None:
                raise no_such_epoch(epoch)
        try:
            self._workers_for("epochs are pinned").pin(epochs, pinned_at)
        except NotAnswerable:
            pin_without_worker(
                self.clients, self.topics, self.manifests, self.offsets, self.reading, self._timeout_s, epochs,
                pinned_at,
            )  # fmt: skip
        self.snapshots.refresh()

    def collect(self, *, dry_run: bool = False, damaged: bool = False) -> Sequence[Collected]:
        if not dry_run:
            self._require_writable()
        found = self._workers_for("old epochs are removed").collect(dry_run=dry_run, damaged=damaged)
        self.snapshots.refresh()
        return found

    def recover(self, *, wait: bool) -> Mapping[str, object]:
        self._require_writable()
        self.await_folded()
        return self._workers_for("entity tables are made again").recover(wait=wait)

    def check_elsewhere(self) -> OtherTables:
        try:
            return self._workers_for("entity tables are kept").verify()
        except (NotAnswerable, StorageError) as error:
            return OtherTables(unchecked=[f"the entity tables were not compared: {error}"])

    def close(self) -> None:
        if self._is_closed:
            return
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        self._outgoing.close()
        self._decided.close()
        self.reading.close()
        if isinstance(self._store, TopicContents):
            self._store.close()
        if self._schema_ids is not None:
            self._schema_ids.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise closed_error(self.url)

    def _require_writable(self) -> None:
        self._require_open()
        if self.is_read_only:
            raise InputError(f"{self.url}: opened for reading; open it to write, without read_only")

    def _workers_for(self, what: str) -> WorkerCommands:
        self._require_open()
        if self._folding is None:
            raise NotAnswerable(
                f"{self.url}: {what} by its workers (`refold worker`), which this process does not call"
            )
        return self._folding

    def _tables_for(self, what: str) -> TableClient:
        self._require_open()
        if self._tables is None:
            raise NotAnswerable(f"{self.url}: {what} are with the log's workers; `refold rebuild` computes the same "
                                "entities from the log, `refold worker` keeps them up to date")  # fmt: skip
        return self._tables

    def make_store(self) -> bool:
        self._require_writable()
        if self.has_store:
            return False
        self._use_store(self.stores.make())
        return True

    def _use_store(self, store: ContentStore | None) -> None:
        self._store, self.has_store = store, store is not None
        self.blobs = NoStore(self.stores.missing) if store is None else GuardedStore(store, self._require_writable)

    def other_store(self, url: str | None) -> AbstractContextManager[ContentStore]:
        self._require_writable()
        return self.stores.other(url)

    # Reading

    def refresh(self) -> None:
        self._require_open()
        if self._is_still:
            return
        with self._looking:
            self._is_behind = False  # later appends may not be visible
            try:
                found = read_ends(self.topics, self.partitions, self.offsets)
                self.schemas.read_new()
                self._decided.refresh()
                self.snapshots.refresh()
                self._known_ends = found
            except BaseException:
                self._is_behind = True
                raise

    @contextlib.contextmanager
    def frozen(self, *, is_verified: bool = False) -> Iterator[LogPort]:
        self.flush()
        reader = KafkaLog(
            self._address, config=self.config, read_only=True, timeout_s=self._timeout_s, silent_s=self._silent_s,
            folding=self._folding,
        )  # fmt: skip
        try:
            if is_verified:
                reader._freeze_folded()
            reader.schemas.stop()
            reader._is_still = True
            yield reader
        finally:
            reader.close()

    def _freeze_folded(self) -> None:
        """Freeze what is read: the present manifests and markers, and of the other topics everything that they may
        refer to, with changes up to the emitted offset at this call.
        """
        folded = fold_position.stable_points(self._emitted, self.topics.observations, self._timeout_s)
        for partition in folded:  # if the committed offset was lost, the last sealed epoch still shows it
            sealed = (PartitionPoint(each.offset, each.schemas) for each in self.snapshots.readable(partition))
            folded[partition] = max([folded[partition], *sealed])
        self._decided.refresh()
        self._known_ends = read_ends(self.topics, self.partitions, self.offsets)
        self.schemas.read_new()
        self._folded = folded

    def _emitted(self) -> dict[int, PartitionPoint]:
        committed = self._decided.ask_committed()
        return fold_position.read_emitted_points(self.topics, committed, self.offsets, self.reading, self._timeout_s)

    def folded(self) -> dict[int, FoldPosition]:
        return {each: FoldPosition(at.offset, at.schemas) for each, at in (self._folded or self._emitted()).items()}

    @property
    def _ends(self) -> LogEnds:
        """The ends up to which questions are answered: they include at least what this process flushed."""
        self._refresh_if_behind()
        return self._known_ends

    def _refresh_if_behind(self) -> None:
        self._require_open()
        if self._is_behind:
            self.refresh()

    def ends(self) -> dict[int, int]:
        return dict(self._ends.observations)

    def committed(self, partition: int) -> tuple[int, str]:
        """The workers' committed offset and its metadata, as of the last `refresh`; (0, "") without one."""
        self._require_open()
        return self._decided.committed(partition)

    def changes_end(self, partition: int) -> int:
        return self._ends.changes[partition]

    def read(self, partition: int, start: int, end: int) -> Iterator[Record]:
        return self._records.read(partition, start, min(end, self._ends.observations[partition]))

    def read_changes(self, partition: int, start: int) -> Iterator[ChangeRecord]:
        place = KafkaPartition(self.topics.changes, partition)
        aside = self.registry.rulings.of(CHANGES, partition)
        for raw in self.reading.records(place, start, self._ends.changes[partition]):
            point = fold_position.emitted_point_of(raw)
            if point is None:
                self._foreign.count_skipped(place, raw.offset)
                continue
            if raw.offset in aside:
                continue
            if self._folded is not None and point > self._folded[partition]:
                return
            yield ChangeRecord(partition, raw.offset, raw.value or b"")

    def deadletters(self) -> Iterator[DeadLetter]:
        self._require_open()
        return self._decided.letters()

    def foreign(self, *, last: int | None = 0) -> Sequence[Foreign]:
        rules = {self.topics.changes: fold_position.is_emitted, self.topics.snapshots: is_snapshot}
        if last is None and isinstance(self._store, TopicContents):
            self._store.read_new()
        return self._foreign.found(rules, self.partitions, self.offsets, self.reading, last)

    def set_aside(self) -> Sequence[SetAside]:
        return set_aside_in(self.registry.rulings)

    def passed_over(self) -> Sequence[SetAside]:
        return self.unreadable.passed_over()

    def decided_end(self, partition: int) -> int:
        """The offset below which workers have decided every record, as of the last `refresh`."""
        return self._decided.through(partition)

    def with_verdicts(self, partition: int) -> Set[int]:
        """The offsets with verdicts, as of the last `refresh`."""
        return self._decided.skipped(partition)

    def read_with_holes(self, partition: int, start: int, end: int) -> Iterator[Record]:
        return self._records.read_with_holes(partition, start, min(end, self._ends.observations[partition]))

    def record_at(self, partition: int, offset: int) -> Record | None:
        return self._records.at(partition, offset, self._ends.observations[partition])

    def first_after(self, partition: int, time_ms: int) -> int:
        return self._times[partition].first_after(time_ms, self._ends.observations[partition])

    def recorded_below(self, partition: int, offset: int) -> int:
        return self._times[partition].below(min(offset, self._ends.observations[partition]))

    def entity_records(self, entity: str, end: int, start: int = 0) -> Iterator[Record]:
        return self._entities.records(entity, start, self._seen_end(entity, end))

    def records_among(
        self, partition: int, names: Collection[str], end: int, looked_at: Callable[[int], None]
    ) -> Iterator[Record]:
        end = min(end, self._ends.observations[partition])
        yield from self._records.among(partition, names, end)
        looked_at(end)

    def find(self, observation_id: bytes) -> Record | None:
        ends = self._ends.observations
        known = IdMatches([], {}) if self._tables is None else self._tables.places_of(observation_id)
        for partition, offset in known.positions:
            record = self.record_at(partition, offset)
            if record is not None and record.id == observation_id:
                return record
        for partition, end in ends.items():
            found = self._records.find(partition, observation_id, end, known.through.get(partition, 0))
            if found is not None:
                return found
        return None

    def arrivals(self, entity: str, end: int, start: int = 0) -> Iterator[IndexedObservation]:
        return self._entities.arrivals(entity, start, self._seen_end(entity, end))

    def records_of(self, entity: str, qs: Iterable[bytes]) -> Iterator[Record]:
        return self._entities.records_of(entity, qs, self._ends.observations[self.partition_of(entity)])

    def checkpoint(self, entity: str, end: int, definition: int) -> Checkpoint | None:
        return self._entities.checkpoint(entity, end, definition)

    def _seen_end(self, entity: str, end: int) -> int:
        return min(end, self._ends.observations[self.partition_of(entity)])

    def markers(self) -> Sequence[Marked]:
        self._refresh_if_behind()
        return self._markers.all()

    def partition_of(self, entity: str) -> int:
        return partition_of(entity, self.partitions)

    def stored_entities(self) -> Iterator[tuple[str, bytes]]:
        tables = self._tables_for("entity tables")
        return chain.from_iterable(tables.entities(each) for each in range(self.partitions))

    def totals(self, partition: int) -> tuple[int, int]:
        return self._tables_for("counts of entities").totals(partition)

    def check_indexes(self, offsets: Mapping[int, int]) -> Iterator[Mismatch]:
        """Yield nothing: the workers check the indexes with their tables (`check_elsewhere`)."""
        return iter(())
