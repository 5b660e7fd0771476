"""Folds the same batches with Python alone and with the kernel, each into its own table, and compares every byte.

The kernel folds them twice: given as records, and as the records that it decided itself, as in a worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from refold.avro.ids import identify
from refold.avro.kernel import SWITCH, DecidedRecords, find_kernel
from refold.avro.observation import Observation
from refold.avro.registry import Registry, TypeVersion
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.records import ID
from refold.streams.log.port import Record
from refold.streams.partitioner import placed
from refold.streams.rocks.batch import WriteSet
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Family
from refold.streams.table.batch_fold import BatchFold, EntityChange
from refold.streams.table.checked import CheckedRecord
from refold.streams.table.folds import Folds
from refold.streams.table.native import replay
from refold.streams.worker.verdicts import Decider, MissingSchema

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
    decided: Database


@contextmanager
def open_databases(folder: Path) -> Iterator[Databases]:
    """Create the databases in a folder; close them at the end."""
    with ExitStack() as opened:
        yield Databases(*(
            opened.enter_context(Database.create(folder / name, kind="table")) for name in Databases._fields
        ))  # fmt: skip


class _Table:
    def __init__(self, database: Database, registry: Registry, *, kernel: bool) -> None:
        self.database = database
        with switched(on=kernel):
            self.writer = BatchFold(database, registry, lambda partition, start, end: iter(()))

    def fold(self, records: Sequence[CheckedRecord]) -> Said:
        """Fold a batch; return the rows it puts, sorted, and what it reports. After an error return the error;
        nothing is written.
        """
        return self._said(lambda write, noted: self.writer.fold(records, write, noted))

    def fold_decided(self, decided: Sequence[DecidedRecords], through: int) -> Said:
        """Like `fold`, of the kernel's records of partition 0."""
        return self._said(lambda write, noted: self.writer.fold_decided(decided, {0: through}, write, noted))

    def _said(self, fold: Callable[[WriteSet, _Noted], None]) -> Said:
        write, noted = _NotedWriteSet(self.database.batch()), _Noted()
        try:
            fold(write, noted)
        except Exception as error:  # damage may cause any exception
            return (type(error).__name__, str(error))
        self.database.write(write, sync=False)
        return (sorted(write.rows), noted.changes, noted.sums)


def _unknown(wire_id: int) -> MissingSchema:
    raise AssertionError(f"schema {wire_id} is asked for, but Python decides nothing here")


def _raw(checked: CheckedRecord) -> RawRecord:
    """The record as a broker would have it."""
    record = checked.record
    return RawRecord(record.offset, record.recorded_at, record.entity.encode(), record.data, [(ID, record.id)])


class BothFolds:
    """Tables of one partition that are given the same records.

    Attributes:
        replayed: How many entities of batches the kernel has also folded the way a rebuild does.
        decided_batches: How many batches the kernel decided as a whole.
    """

    def __init__(self, databases: Databases, registry: Registry) -> None:
        self.python = _Table(databases.python, registry, kernel=False)
        self.native = _Table(databases.native, registry, kernel=True)
        self.decided = _Table(databases.decided, registry, kernel=True)
        with switched(on=True):
            self._decider = Decider(registry, _unknown, 0, 1)
        self._offset = 0
        self._folds = Folds(registry)
        self.replayed = self.decided_batches = 0

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
        """Fold a batch with Python and with the kernel.

        They must have the same result, and so must the kernel's replay, which rebuilds use.
        """
        grouped: dict[str, list[Record]] = {}
        for record, _ in records:
            grouped.setdefault(record.entity, []).append(record)
        stored = {name: self.python.database.get("state", placed(name)) for name in grouped}
        said = self.native.fold(records)
        assert said == self.python.fold(records)
        assert said == self._fold_decided(records)
        if isinstance(said[0], str):  # an error
            return
        kernel = find_kernel().kernel
        assert kernel is not None
        entities = [(name, stored[name], records) for name, records in grouped.items()]
        for name, (state, _) in replay(kernel, self._folds, entities).items():
            assert (state or stored[name]) == self.python.database.get("state", placed(name))
            self.replayed += 1

    def _fold_decided(self, records: Sequence[CheckedRecord]) -> Said:
        """Let the kernel decide a batch, in two parts, and fold what it decided; fold the records if it left one."""
        half = len(records) // 2
        parts = [self._decider.decide_plain(map(_raw, some), 0) for some in (records[:half], records[half:]) if some]
        decided = [each for each in parts if each is not None and each.is_plain]
        if not decided or sum(map(len, decided)) < len(records):
            return self.decided.fold(records)
        self.decided_batches += 1
        return self.decided.fold_decided(decided, records[-1].record.offset + 1)

    def fold_in_batches(self, records: Sequence[CheckedRecord], sizes: Iterable[int]) -> None:
        """Fold all records, in batches of these sizes, in order."""
        start = 0
        for size in sizes:
            self.fold(records[start : start + size])
            start += size
        assert start >= len(records)

    def put_state(self, key: bytes, packed: bytes) -> None:
        """Put a stored state, valid or not, into all tables."""
        for table in (self.python, self.native, self.decided):
            write = table.database.batch()
            write.put("state", key, packed)
            table.database.write(write, sync=False)
