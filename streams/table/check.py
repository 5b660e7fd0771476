"""Compares the indexes of a table (timeline, arrivals, ids, checkpoints) with the log's records.

For each record: its timeline entry holds the bytes and the offset of its first occurrence, which is this record or an
earlier one of the same id (a repeat may be written by another definition); a first occurrence has its arrival and its
id entry. Each family must have as many entries as there are first occurrences; if there are more, those without a
record are reported. Checkpoints are compared with a fold.

The native kernel, if there is one, makes the entries of most records (confirming.py). Records whose entries are not
stored like that are checked here, one by one.

A checkpoint must equal the fold of its entity's arrivals up to its offset, by its definition.

Each entity with checkpoints is folded again by each of their definitions, in log order. After an arrival that does not
fold directly, the next checkpoint is compared with a fold from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress, groupby, islice
from operator import not_
from typing import Final

from refold.avro.errors import CorruptionError, SchemaError, UndecodableError
from refold.avro.kernel import TypeFolder, find_kernel
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.streams.log.port import IndexedObservation, Mismatch, Record, arrival_of, is_hole
from refold.streams.partitioner import partition_of
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Family
from refold.streams.table import indexes, keys
from refold.streams.table.batch_fold import stored_history
from refold.streams.table.checkpoints import checkpoint_of, checkpoint_value
from refold.streams.table.confirming import Choose, Confirmation, RecordConfirmer
from refold.streams.table.folds import TypeFold

PLACE: Final = "checkpoints"


def check_checkpoints(
    database: Database, registry: Registry, partitions: int, checks: Choose, wanted: Collection[int] | None = None
) -> Iterator[Mismatch]:
    """Yield every checkpoint that differs from the fold of the log, or whose offset has no arrival.

    Args:
        database: The table.
        registry: The log's types.
        partitions: Their number in the log.
        checks: Selects the entities that Python checks in any case.
        wanted: The partitions whose entities are checked; None for all.
    """
    confirmer = _CheckpointConfirmer(database, registry, partitions)
    for prefix, rows in groupby(database.scan(PLACE), lambda row: row[0].partition(b"\0")[0]):
        if wanted is not None and _partition_of_key(prefix, partitions) not in wanted:
            continue
        kept: dict[int, dict[int, bytes]] = {}
        name = ""
        for key, value in rows:
            try:
                name, offset, definition = keys.checkpoint_place(key)
                checkpoint_of(key, value)
            except CorruptionError as error:
                yield Mismatch(PLACE, str(error), name)
                continue
            if name.encode() != prefix:
                yield Mismatch(PLACE, f"the key {key.hex()[:200]} cannot be read")
                continue
            kept.setdefault(definition, {})[offset] = value
        for definition, some in kept.items():
            if not checks(name) and confirmer.confirms(name, definition, some):
                continue
            places = _Places(name, partition_of(name, partitions))
            try:
                yield from _compare(database, registry, places, definition, some)
            except (CorruptionError, UndecodableError, SchemaError) as error:
                yield Mismatch(PLACE, f"cannot be compared with the log: {error}", name)


def _partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of an entity's key; 0 for a key that is no name, so that one process reports it."""
    try:
        return partition_of(key.decode(), partitions)
    except UnicodeDecodeError:
        return 0


class _CheckpointConfirmer:
    """Lets the kernel compare checkpoints."""

    def __init__(self, database: Database, registry: Registry, partitions: int) -> None:
        self._database = database
        self._partitions = partitions
        self._kernel = find_kernel().kernel
        self._versions = {each.offset: each for each in registry}
        self._folders: dict[int, TypeFolder | None] = {}
        self._read: tuple[str, list[Record]] = ("", [])

    def confirms(self, name: str, definition: int, kept: Mapping[int, bytes]) -> bool:
        """Whether an entity's checkpoints by a definition, by offset, are certainly right."""
        folder = self._folder(name, definition)
        if folder is None:
            return False
        if self._read[0] != name:
            try:
                partition, prefix = partition_of(name, self._partitions), keys.entity_prefix(name)
                rows = self._database.scan("arrivals", prefix, keys.after_prefix(prefix))
                qs = [keys.arrival_of(*row).q for row in rows]
                found = indexes.records_of(self._database, partition, name, qs)
                self._read = name, [record for _, record in found if record is not None]
            except CorruptionError:
                return False  # Python names it
        offsets = sorted(kept)
        (values,) = folder.checkpoints([(name, self._read[1], offsets)])
        return values == [kept[offset] for offset in offsets]

    def _folder(self, name: str, definition: int) -> TypeFolder | None:
        version = self._versions.get(definition)
        if self._kernel is None or version is None or version.definition.name != type_of(name):
            return None
        if definition not in self._folders:
            self._folders[definition] = None
            with suppress(SchemaError):  # Python names it
                self._folders[definition] = TypeFold(version).native(self._kernel)
        return self._folders[definition]


class _Places:
    """Mismatches of one entity's checkpoints."""

    def __init__(self, name: str, partition: int) -> None:
        self.name = name
        self._partition = partition

    def mismatch(self, offset: int, problem: str) -> Mismatch:
        return Mismatch(PLACE, f"{self._partition}={offset} {problem}", self.name)


def _compare(
    database: Database, registry: Registry, places: _Places, definition: int, kept: dict[int, bytes]
) -> Iterator[Mismatch]:
    """kept: stored values by offset; compared ones are removed from it."""
    name = places.name
    version = next((each for each in registry.versions(type_of(name)) if each.offset == definition), None)
    if version is None:
        for offset in kept:
            yield places.mismatch(offset, f"is by the definition {definition}, which is none of its type")
        return
    fold = Fold(version.definition)
    entity = Entity(name)
    folded: list[Seen] = []
    is_behind = False
    for seen in stored_history(database, registry, name):
        folded.append(seen)
        is_behind = is_behind or not _folds_directly(fold, entity, seen)
        value = kept.pop(seen.offset, None)
        if value is None:
            continue
        if is_behind:
            entity, is_behind = fold.from_nothing(name, folded), False
        if checkpoint_value(entity) != value:
            yield places.mismatch(seen.offset, "is not what the log folds to")
        if not kept:
            return
    for offset in kept:
        yield places.mismatch(offset, "is a checkpoint where nothing arrived")


def _folds_directly(fold: Fold, entity: Entity, seen: Seen) -> bool:
    """Whether an observation folded directly; if not, the entity is no longer valid."""
    try:
        return fold.directly(entity, seen) is not None
    except SchemaError:  # a custom reducer may fail on assertions that a clear hides in a fold from nothing
        return False


RECORDS_AT_ONCE = 500
INDEXES: tuple[Family, ...] = ("timeline", "arrivals", "ids")


class IndexCheck:
    """Compares one table's indexes with the records of its partitions.

    Call `records` or `check` for them, then `checkpoints` for the same partitions, and `entries` with the number of
    distinct observations of all partitions.

    Args:
        partitions: The number of partitions in the log.
        record_at: Returns the record at a partition and offset, or None.
        checks: Selects the entities that Python checks even if the kernel confirms them.

    Attributes:
        distinct: The number of distinct ones among those checked so far.
    """

    def __init__(
        self, database: Database, registry: Registry, partitions: int, record_at: Callable[[int, int], Record | None],
        checks: Choose,
    ) -> None:  # fmt: skip
        self._database = database
        self._checks = checks
        self._confirmer = RecordConfirmer(registry, partitions, checks)
        self._registry = registry
        self._partitions = partitions
        self._record_at = record_at
        self.distinct = 0

    def records(self, given: Iterable[Record]) -> Iterator[Mismatch]:
        """Yield the mismatches of some records, given in the order of each partition."""
        records = iter(given)
        while some := list(islice(records, RECORDS_AT_ONCE)):
            yield from self.check(some, self._confirmer.confirm(some, with_rows=True))

    def checkpoints(self, partitions: Collection[int] | None = None) -> Iterator[Mismatch]:
        """Yield the mismatches of the checkpoints of some partitions; None for all."""
        return check_checkpoints(self._database, self._registry, self._partitions, self._checks, partitions)

    def entries(self, distinct: int) -> Iterator[Mismatch]:
        """Yield the entries without a record, if there are more entries than distinct observations."""
        for family in INDEXES:
            entries = self._database.count(family)
            if entries != distinct:
                yield Mismatch(family, f"{entries} entries for {distinct} distinct observations")
            if entries > distinct:
                yield from self._without_record(family)

    def check(self, some: Sequence[Record], confirmation: Confirmation) -> Iterator[Mismatch]:
        """Yield the mismatches of the next records, of which some are confirmed with their rows.

        A confirmed record whose rows are stored is a first occurrence: each of these has an arrival and an id of its
        own.
        """
        are_confirmed, confirmed, rows = confirmation
        rest = [each for each in compress(some, map(not_, are_confirmed)) if not is_hole(each)]
        if rows is not None and confirmed:
            _, timeline_keys, timeline, arrival_keys, arrivals, id_keys = rows
            found = (
                self._database.multi_get("timeline", timeline_keys),
                self._database.multi_get("arrivals", arrival_keys),
                self._database.multi_get("ids", id_keys),
            )
            if found == (timeline, arrivals, [b""] * len(id_keys)):
                self.distinct += len(confirmed)
            else:
                entries = zip(*found, strict=True)
                for record, entry, should in zip(confirmed, entries, zip(timeline, arrivals, strict=True), strict=True):
                    if entry == (*should, b""):
                        self.distinct += 1
                    else:
                        rest.append(record)
                rest.sort()
        if rest:
            yield from self._check_some(rest)

    def _check_some(self, some: list[Record]) -> Iterator[Mismatch]:
        """Yield the mismatches of some records' entries, and count first occurrences."""
        ordered: list[tuple[Record, bytes, IndexedObservation]] = []
        for record in some:
            try:
                arrival = arrival_of(self._registry, record)
            except UndecodableError:
                continue  # reported by the check of the records
            ordered.append((record, keys.entity_prefix(record.entity), arrival))
        places = [prefix + arrival.q for _, prefix, arrival in ordered]
        firsts: list[tuple[Record, bytes, IndexedObservation]] = []
        for each, value in zip(ordered, self._database.multi_get("timeline", places), strict=True):
            record = each[0]
            problem = "is missing" if value is None else self._timeline_problem(record, value)
            if problem:
                yield Mismatch("timeline", f"{_place(record)} {problem}", record.entity)
            elif value is not None and keys.timeline_of(value)[0] == record.offset:
                firsts.append(each)
        arrived = [keys.arrival_key(prefix, record.offset) for record, prefix, _ in firsts]
        named = [keys.id_key(record.id, record.partition, record.offset) for record, _, _ in firsts]
        entries = zip(
            firsts, self._database.multi_get("arrivals", arrived), self._database.multi_get("ids", named), strict=True
        )
        for (record, _, arrival), value, entry in entries:
            if value != keys.arrival_value(arrival.recorded_at, arrival.q, arrival.retracts):
                yield Mismatch("arrivals", f"{_place(record)} is not what the log holds", record.entity)
            if entry != b"":
                problem = "is missing" if entry is None else "is not empty"
                yield Mismatch("ids", f"{_place(record)} {problem}", record.entity)
        self.distinct += len(firsts)

    def _timeline_problem(self, record: Record, value: bytes) -> str:
        """The problem of a record's timeline entry, or ""."""
        try:
            offset, recorded_at, data = keys.timeline_of(value)
        except CorruptionError:
            return "is no timeline entry"
        if offset > record.offset or (offset == record.offset and data != record.data):
            return "is not what the log holds"
        if offset == record.offset:
            return "" if recorded_at == record.recorded_at else "has another recorded_at"
        first = self._record_at(record.partition, offset)
        return "" if first is not None and first.id == record.id else f"is no repeat of offset {offset}"

    def _without_record(self, family: Family) -> Iterator[Mismatch]:
        """The entries of an index without a record."""
        for key, value in self._database.scan(family):
            try:
                entity, partition, offset, prefix = self._entry_of(family, key, value)
                record = self._record_at(partition, offset)
            except (CorruptionError, UnicodeDecodeError):
                yield Mismatch(family, f"the entry {key.hex()[:200]} cannot be read")
                continue
            if record is None or not record.id.startswith(prefix) or entity not in {"", record.entity}:
                yield Mismatch(family, f"an entry for {partition}={offset}, which is no such observation", entity)

    def _entry_of(self, family: Family, key: bytes, value: bytes) -> tuple[str, int, int, bytes]:
        """(entity or "", partition, offset, first bytes of the id) of an entry."""
        if family == "ids":
            return "", *keys.id_position(key), key[: keys.ID_PREFIX_BYTES]
        entity = key.partition(b"\0")[0].decode()
        partition = partition_of(entity, self._partitions)
        if family == "timeline":
            return entity, partition, keys.timeline_of(value)[0], key[-32:]
        arrival = keys.arrival_of(key, value)
        return entity, partition, arrival.offset, arrival.q[-32:]


def _place(record: Record) -> str:
    return f"{record.partition}={record.offset}"
