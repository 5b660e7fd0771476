"""Writes one partition's entities as Parquet files, one for each type.

Entities arrive in no order of type. They are read TAKEN_ROWS at a time and grouped by type. When COLUMNS_ROWS entities
of a type are buffered, they are converted to columns. Columns are written when they fill a row group, or when all
buffers together reach WAITING_BYTES: then the largest is written to its file. So memory is bounded, however many
entities and types there are. One file is open for each type seen so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from refold.avro.observation import type_of
from refold.reducers.columns import ColumnReader
from refold.sinks.parquet.columns import OWN_COLUMNS, ParquetColumn, columns_of, json_array
from refold.streams.table.folds import Folds, TypeFold

TAKEN_ROWS = 2_048
TAKEN_BYTES = 8 << 20
COLUMNS_ROWS = 2_048
GROUP_ROWS = 65_536
WAITING_BYTES = 64 << 20
COMPRESSION = "zstd"
Stored = tuple[str, bytes]
"""An entity's name, and its encoded state."""


class WrittenFile(NamedTuple):
    """A complete file: its type, its number of rows, and the definition's fingerprint in hex."""

    type: str
    path: Path
    rows: int
    definition: str


@dataclass(slots=True)
class _Waiting:
    """A type's buffered entities and its open file."""

    columns: list[ParquetColumn]
    reader: ColumnReader
    type_fold: TypeFold
    file: pq.ParquetWriter
    path: Path
    rows: int = 0
    size: int = 0
    stored: list[Stored] = field(default_factory=list)
    columnar: list[pa.RecordBatch] = field(default_factory=list)
    columnar_rows: int = 0


def write_partition(
    stored: Iterator[Stored], folds: Folds, folder: Path, metadata: Mapping[str, str], wrote: Callable[[int], None]
) -> list[WrittenFile]:
    """Write the files of one partition into a folder.

    Args:
        stored: The entities: (entity, encoded state).
        folds: The definitions at the cut.
        folder: The folder.
        metadata: Added to each file, with its type and definition.
        wrote: Called with the number of further entities read.

    Returns:
        The files.

    Raises:
        OSError: The disk is full.
    """
    types: dict[str, _Waiting] = {}
    size = 0
    with ExitStack() as ending:
        for by_type in _groups_by_type(stored):
            for type_name, some in by_type.items():
                waiting = types.get(type_name)
                if waiting is None:
                    waiting = types[type_name] = _open_file(type_name, folds, folder, metadata, ending)
                more = sum([len(packed) for _, packed in some])
                waiting.stored += some
                waiting.size += more
                size += more
                if len(waiting.stored) >= COLUMNS_ROWS:
                    _close_file(waiting)
                    if waiting.columnar_rows >= GROUP_ROWS:
                        size -= _write(waiting)
                if size >= WAITING_BYTES:
                    size -= _write(max(types.values(), key=lambda each: each.size))
            wrote(sum(map(len, by_type.values())))
        for waiting in types.values():
            _write(waiting)
    return [
        WrittenFile(name, each.path, each.rows, each.type_fold.version.definition.fingerprint.hex())
        for name, each in sorted(types.items())
    ]


def _groups_by_type(stored: Iterator[Stored]) -> Iterator[dict[str, list[Stored]]]:
    """Groups of entities, by type."""
    by_type: dict[str, list[Stored]] = {}
    prefix, some = "/", list[Stored]()  # of the type that came last: most often the next one's, too
    count = size = 0
    for each in stored:
        name, packed = each
        if not name.startswith(prefix):
            type_name = type_of(name)
            prefix, some = f"{type_name}/", by_type.setdefault(type_name, [])
        some.append(each)
        count += 1
        size += len(packed)
        if count == TAKEN_ROWS or size >= TAKEN_BYTES:
            yield by_type
            by_type, prefix = {}, "/"
            count = size = 0
    yield by_type


def _open_file(
    type_name: str, folds: Folds, folder: Path, metadata: Mapping[str, str], ending: ExitStack
) -> _Waiting:  # fmt: skip
    type_fold = folds.of(type_name)
    definition = type_fold.version.definition
    columns = columns_of(definition)
    own = {**metadata, "refold.type": type_name, "refold.definition": definition.fingerprint.hex()}
    schema = pa.schema([*OWN_COLUMNS, *(each.arrow for each in columns)], own)
    path = folder / f"{type_name}.parquet"
    file = ending.enter_context(pq.ParquetWriter(path, schema, compression=COMPRESSION, compression_level=1))
    return _Waiting(columns, ColumnReader(type_fold.fold.reducers), type_fold, file, path)


def _close_file(waiting: _Waiting) -> None:
    """Convert the buffered entities to columns."""
    if waiting.stored:
        waiting.columnar.append(_columns_of(waiting.stored, waiting))
        waiting.columnar_rows += len(waiting.stored)
        waiting.stored = []


def _write(waiting: _Waiting) -> int:
    """Write the buffered columns as a row group; returns their size in encoded form, in bytes."""
    _close_file(waiting)
    size = waiting.size
    if waiting.columnar:
        waiting.file.write_table(pa.Table.from_batches(waiting.columnar), row_group_size=waiting.columnar_rows)
        waiting.rows += waiting.columnar_rows
        waiting.columnar, waiting.columnar_rows, waiting.size = [], 0, 0
    return size


def _columns_of(stored: list[Stored], waiting: _Waiting) -> pa.RecordBatch:
    """The columns of entities. They are made column by column, so that decisions by type are made once and not for each
    value.
    """
    read = waiting.reader.read(stored)
    arrays = [
        pa.array([name for name, _ in stored], pa.string()),
        pa.array(read.versions, pa.int64()),
        pa.array(read.state_hashes, pa.binary(32)),
        json_array([each or None for each in read.links]),
    ]
    for name, arrow, array in waiting.columns:
        values = read.values[name]
        arrays.append(pa.nulls(len(stored), arrow.type) if values is None else array(values))
    return pa.RecordBatch.from_arrays(arrays, schema=waiting.file.schema)
