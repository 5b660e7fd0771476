"""The owner's side of a `file:` log: the one place where records get their offsets and are folded.

A write, under the lock:
1. give each record its partition's next offset and recorded_at = max(clock, last);
2. fold them into the tables (streams/table/batch.py);
3. put records, tables, changes and progress into one batch and write it; sync when asked.
After a failed write the database refuses everything until the log is opened again, so what is in memory here never
runs ahead of what is stored.

A new definition of a type that has entities:
1. write the definition and the note "redefine", synced;
2. fold every entity of the type again, some at a time, each whose hash changes with a change `redefined`;
3. remove the note. A crash between leaves the note, and the next owner does 2 and 3 again: what was folded already
   folds to the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from threading import RLock
from typing import Any

from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import InputError, SchemaError
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.avro.registry import Registry, TypeVersion
from refold.reducers.entity import pack, unpack
from refold.reducers.state import hash_state
from refold.streams.changes import Change
from refold.streams.log.file import records
from refold.streams.log.file.batch import Batch
from refold.streams.log.file.database import Database
from refold.streams.log.file.scan import Row
from refold.streams.log.port import Marked, Record
from refold.streams.partition import partition_of
from refold.streams.table import keys
from refold.streams.table.batch import Arrived, TableWriter, stored_history
from refold.streams.table.folds import TypeFold

REDEFINED_AT_ONCE = 500
_U64 = struct.Struct(">Q")

Clock = Callable[[], int]
"""Milliseconds since 1970."""


class Owner:
    """Writes one log; several threads may call."""

    def __init__(self, database: Database, registry: Registry, partitions: int, clock_ms: Clock) -> None:
        self._database = database
        self._registry = registry
        self._partitions = partitions
        self._clock_ms = clock_ms
        self._tables = TableWriter(database, registry)
        self._lock = RLock()
        self._progress: records.Progress | None = records.read_progress(database, partitions)
        self._settled = False
        self._settle()

    def answer(self, op: str, payload: object) -> None:
        """What another process asks for."""
        given: Any = payload
        if op == "append":
            self.append_foreign([(observation_id, data) for observation_id, data in given])
        elif op == "flush":
            self.sync()
        elif op == "register":
            self.register(parse(given))
        elif op == "mark":
            self.mark(Marked(*given["marked"]), replace=given["replace"])
        else:
            raise InputError(f"the log's owner knows no question {op!r}; use the same release in both processes")

    def append(self, batch: Sequence[tuple[Observation, bytes, bytes]]) -> None:
        """Write and fold (observation, id, framed bytes): all, or none when one is refused. Durable after `sync`."""
        with self._lock:
            self._settle()
            progress = self._next_progress()
            now = progress.recorded_at
            write = self._database.batch()
            arrived = []
            for observation, observation_id, data in batch:
                partition = partition_of(observation.entity, self._partitions)
                offset = progress.observations[partition]
                progress.observations[partition] = offset + 1
                record = Record(partition, offset, now, observation.entity, observation_id, data)
                write.put("observations", keys.position_key(partition, offset), keys.record_value(record))
                arrived.append(Arrived(record, observation))
            self._tables.fold(arrived, write, progress.next_change)
            self._commit(write, progress, sync=False)

    def append_foreign(self, batch: Sequence[tuple[bytes, bytes]]) -> None:
        """`append` for (id, framed bytes) from another process, each held to the rules of the door again."""
        with self._lock:
            decoded = [(self._registry.decode(data), observation_id, data) for observation_id, data in batch]
            for observation, observation_id, _ in decoded:
                if identify(observation) != observation_id:
                    raise InputError(
                        f"{observation.entity}: the id sent with an observation is not the id of its content"
                    )
            self.append(decoded)

    def sync(self) -> None:
        """Return when all that was appended is durable."""
        self._database.sync()

    def mark(self, marked: Marked, *, replace: bool) -> None:
        """Keep a named cut, durable on return. The same again is no other: whoever got no answer asks twice."""
        with self._lock:
            key, value = records.marker_key(marked.name), records.marker_value(marked)
            if not replace and self._database.get("manifests", key) not in {None, value}:
                raise InputError(
                    f"the marker {marked.name!r} exists; choose another name, or replace it with --replace"
                )
            write = self._database.batch()
            write.put("manifests", key, value)
            self._database.write(write, sync=True)

    def register(self, definition: TypeDefinition) -> None:
        """Take up a definition, durable on return, its type's entities folded by it."""
        with self._lock:
            self._settle()
            if self._registry.find(definition) is not None:
                return
            self._registry.check(definition)
            offset = len(self._registry)
            self._require_foldable(TypeFold(TypeVersion(definition, offset, 0)))
            progress = self._next_progress()
            write = self._database.batch()
            write.put("schemas", records.schema_key(offset), records.schema_value(definition, progress.recorded_at))
            write.put("meta", records.REDEFINE, _U64.pack(offset))
            self._settled = False
            self._commit(write, progress, sync=True)
            self._settle()

    def _next_progress(self) -> records.Progress:
        """A copy to move on, its recorded_at that of what is written next: times never fall, nor do definitions'."""
        if self._progress is None:
            self._progress = records.read_progress(self._database, self._partitions)
        progress = self._progress.copy()
        progress.recorded_at = max(self._clock_ms(), progress.recorded_at)
        return progress

    def _commit(self, write: Batch, progress: records.Progress, *, sync: bool) -> None:
        write.put("meta", records.PROGRESS, progress.packed())
        # Not known while the write is under way: an interrupt may hide that it was done.
        self._progress = None
        self._database.write(write, sync=sync)
        self._progress = progress

    def _settle(self) -> None:
        """Take up what is registered but not yet folded by."""
        if self._settled:
            return
        records.read_schemas(self._database, self._registry)
        pending = self._database.get("meta", records.REDEFINE)
        if pending is not None:
            self._redefine(_U64.unpack(pending)[0])
        self._settled = True

    def _entities(self, type_name: str) -> Iterator[Row]:
        return self._database.scan("state", f"{type_name}/".encode(), f"{type_name}0".encode())

    def _require_foldable(self, type_fold: TypeFold) -> None:
        """Raise SchemaError, naming the entity, where a custom reducer fails on an entity that is there."""
        definition = type_fold.version.definition
        if all(field.reducer != "custom" for field in definition.fields.values()):
            return
        for key, _ in self._entities(definition.name):
            name = key.decode()
            try:
                type_fold.fold.from_nothing(name, list(stored_history(self._database, self._registry, name)))
            except SchemaError as error:
                raise SchemaError(f"{definition.name}: this version cannot fold {name}: {error}") from error

    def _redefine(self, offset: int) -> None:
        """Steps 3 and 4 of taking up a definition."""
        version = next(each for each in self._registry if each.offset == offset)
        type_fold = TypeFold(version)
        rows = self._entities(version.definition.name)
        while some := list(islice(rows, REDEFINED_AT_ONCE)):
            write, progress = self._database.batch(), self._next_progress()
            for key, packed in some:
                self._fold_again(type_fold, key.decode(), packed, write, progress)
            self._commit(write, progress, sync=False)
        write = self._database.batch()
        write.delete("meta", records.REDEFINE)
        self._database.write(write, sync=True)

    def _fold_again(
        self, type_fold: TypeFold, name: str, packed: bytes, write: Batch, progress: records.Progress
    ) -> None:
        before = unpack(name, packed)
        after = type_fold.fold.from_nothing(name, list(stored_history(self._database, self._registry, name)))
        after.state_hash = hash_state(type_fold.fold, after)
        write.put("state", name.encode(), pack(after))
        if after.state_hash == before.state_hash:
            return
        partition = partition_of(name, self._partitions)
        change = Change(
            name, type_fold.version.definition.fingerprint, after.version, after.version, before.state_hash,
            after.state_hash, progress.observations[partition], True, (),
        )  # fmt: skip
        position = keys.position_key(partition, progress.next_change(partition))
        write.put("changes", position, type_fold.changes.encode(change))
