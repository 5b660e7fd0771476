"""Folds the same batches with Python alone and with the kernel, each into its own table, and compares every byte."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from refold.avro.ids import identify
from refold.avro.kernel import SWITCH, find_kernel
from refold.avro.observation import Observation
from refold.avro.registry import Registry, TypeVersion
from refold.streams.log.port import Record
from refold.streams.partitioner import placed
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Family
from refold.streams.table.batch_fold import BatchFold, CheckedRecord, EntityChange
from refold.streams.table.folds import Folds
from refold.streams.table.native import replay

Said = tuple[object, ...]


@contextmanager
def switched(*, on: bool) -> Iterator[None]:
    """Choose whether everything that is created in the block uses the kernel."""
    before = os.environ.pop(SWITCH, None)
    if not on:
        os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH, None)
        if before is not None:
            os.environ[SWITCH] = before


class _NotedWriteSet(WriteSet):
    """A write set that also remembers what is put into it."""

    def __init__(self, batch: WriteSet) -> None:
        self.__dict__ = batch.__dict__
        self.rows: list[tuple[str, bytes, bytes]] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.rows.append((family, key, value))
        super().put(family, key, value)

    def put_rows(self, family: Family, rows: Iterable[tuple[bytes, bytes]]) -> None:
        some = list(rows)
        self.rows += ((family, *row) for row in some)
        super().put_rows(family, some)

    def put_keys(self, family: Family, keys: Sequence[bytes]) -> None:
        self.rows += ((family, key, b"") for key in keys)
        super().put_keys(family, keys)


@dataclass
class _Noted:
    """The reports of a fold: changes in order, and the sums of the numbers, by partition."""

    changes: list[tuple[int, EntityChange]] = field(default_factory=list)
    sums: dict[int, list[int]] = field(default_factory=dict)

    def changed(self, partition: int, changes: Sequence[EntityChange]) -> None:
        self.changes += [(partition, each) for each in changes]

    def folded(self, partition: int, *numbers: int) -> None:
        sums = self.sums.setdefault(partition, [0] * len(numbers))
        self.sums[partition] = [before + number for before, number in zip(sums, numbers, strict=True)]


class Databases(NamedTuple):
    """The database of each fold's table."""

    python: Database
    native: Database


@contextmanager
def open_databases(folder: Path) -> Iterator[Databases]:
    """Create two databases in a folder; close them at the end."""
    python, native = folder / "python", folder / "native"
    with Database.create(python, kind="table") as first, Database.create(native, kind="table") as second:
        yield Databases(first, second)


class _Table:
    def __init__(self, database: Database, registry: Registry, *, kernel: bool) -> None:
        self.database = database
        with switched(on=kernel):
            self.writer = BatchFold(database, registry, lambda partition, start, end: iter(()))

    def fold(self, records: Sequence[CheckedRecord]) -> Said:
        """Fold a batch; return the rows it puts, sorted, and what it reports. After an error return the error;
        nothing is written.
        """
        write, noted = _NotedWriteSet(self.database.batch()), _Noted()
        try:
            self.writer.fold(records, write, noted)
        except Exception as error:  # damage may cause any exception
            return (type(error).__name__, str(error))
        self.database.write(write, sync=False)
        return (sorted(write.rows), noted.changes, noted.sums)


class BothFolds:
    """Two tables of one partition that are given the same records.

    replayed: how many entities of batches the kernel has also folded the way a rebuild does.
    """

    def __init__(self, databases: Databases, registry: Registry) -> None:
        self.python = _Table(databases.python, registry, kernel=False)
        self.native = _Table(databases.native, registry, kernel=True)
        self._offset = 0
        self._folds = Folds(registry)
        self.replayed = 0

    def record(self, observation: Observation, observation_id: bytes, data: bytes) -> CheckedRecord:
        """Create the record of an observation, at the next offset."""
        self._offset += 1
        record = Record(0, self._offset, 1_000 + self._offset // 3, observation.entity, observation_id, data)
        return CheckedRecord(record, observation)

    def records(self, version: TypeVersion, observations: Iterable[Observation]) -> list[CheckedRecord]:
        """Create the records of observations of one type version, at the next offsets."""
        encode = version.codec.encode_observation
        return [self.record(each, identify(each), encode(each)) for each in observations]

    def fold(self, records: Sequence[CheckedRecord]) -> None:
        """Fold a batch with both. Both must have the same result, and so must the kernel's replay, which rebuilds
        use.
        """
        grouped: dict[str, list[Record]] = {}
        for record, _ in records:
            grouped.setdefault(record.entity, []).append(record)
        stored = {name: self.python.database.get("state", placed(name)) for name in grouped}
        said = self.native.fold(records)
        assert said == self.python.fold(records)
        if isinstance(said[0], str):  # an error
            return
        kernel = find_kernel().kernel
        assert kernel is not None
        entities = [(name, stored[name], records) for name, records in grouped.items()]
        for name, (state, _) in replay(kernel, self._folds, entities).items():
            assert (state or stored[name]) == self.python.database.get("state", placed(name))
            self.replayed += 1

    def fold_in_batches(self, records: Sequence[CheckedRecord], sizes: Iterable[int]) -> None:
        """Fold all records, in batches of these sizes, in order."""
        start = 0
        for size in sizes:
            self.fold(records[start : start + size])
            start += size
        assert start >= len(records)

    def put_state(self, key: bytes, packed: bytes) -> None:
        """Put a stored state, valid or not, into both tables."""
        for table in (self.python, self.native):
            write = table.database.batch()
            write.put("state", key, packed)
            table.database.write(write, sync=False)
