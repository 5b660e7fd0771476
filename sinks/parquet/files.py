"""One partition's entities as Parquet files, one a type.

Entities come in no order of type. Those of a type wait until they are COLUMNS_ROWS, and become columns: few enough that
Python's garbage collector has little to walk through. The columns wait until they are a row group's worth, or until all
that waits is WAITING_BYTES: then the largest goes into its file. So memory is bounded, however many entities and types
there are; a file is open for each type that was met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from refold.avro.observation import type_of
from refold.reducers.entity import unpack_state
from refold.reducers.links import links_tree
from refold.reducers.scalar import Winner
from refold.sinks.parquet.columns import OWN_COLUMNS, Column, columns_of, json_array
from refold.streams.table.folds import Folds, TypeFold

COLUMNS_ROWS = 2_048
GROUP_ROWS = 65_536
WAITING_BYTES = 64 << 20
COMPRESSION = "zstd"
PROGRESS_ROWS = 5_000


class Written(NamedTuple):
    """A file that is whole: of which type, its rows, and the definition's fingerprint in hex."""

    type: str
    path: Path
    rows: int
    definition: str


@dataclass(slots=True)
class _Waiting:
    """A type's entities on their way into its file."""

    columns: list[Column]
    type_fold: TypeFold
    file: pq.ParquetWriter
    path: Path
    rows: int = 0
    size: int = 0
    stored: list[tuple[str, bytes]] = field(default_factory=list)
    columnar: list[pa.RecordBatch] = field(default_factory=list)
    columnar_rows: int = 0


def write_partition(
    stored: Iterator[tuple[str, bytes]], folds: Folds, folder: Path, metadata: Mapping[str, str],
    wrote: Callable[[int], None],
) -> list[Written]:  # fmt: skip
    """The files, in a folder. stored: (entity, encoded); metadata: into each file, with its type and definition.

    wrote: told how many more entities were taken. OSError where the folder's disk is full.
    """
    types: dict[str, _Waiting] = {}
    size = count = 0
    with ExitStack() as ending:
        for name, packed in stored:
            type_name = type_of(name)
            waiting = types.get(type_name)
            if waiting is None:
                waiting = types[type_name] = _begun(type_name, folds, folder, metadata, ending)
            waiting.stored.append((name, packed))
            waiting.size += len(packed)
            size += len(packed)
            count += 1
            if len(waiting.stored) >= COLUMNS_ROWS:
                _turn(waiting)
                if waiting.columnar_rows >= GROUP_ROWS:
                    size -= _write(waiting)
            if size >= WAITING_BYTES:
                size -= _write(max(types.values(), key=lambda each: each.size))
            if count % PROGRESS_ROWS == 0:
                wrote(PROGRESS_ROWS)
        for waiting in types.values():
            _write(waiting)
    wrote(count % PROGRESS_ROWS)
    return [
        Written(name, each.path, each.rows, each.type_fold.version.definition.fingerprint.hex())
        for name, each in sorted(types.items())
    ]


def _begun(
    type_name: str, folds: Folds, folder: Path, metadata: Mapping[str, str], ending: ExitStack
) -> _Waiting:  # fmt: skip
    type_fold = folds.of(type_name)
    definition = type_fold.version.definition
    columns = columns_of(definition)
    own = {**metadata, "refold.type": type_name, "refold.definition": definition.fingerprint.hex()}
    schema = pa.schema([*OWN_COLUMNS, *(each.arrow for each in columns)], own)
    path = folder / f"{type_name}.parquet"
    file = ending.enter_context(pq.ParquetWriter(path, schema, compression=COMPRESSION, compression_level=1))
    return _Waiting(columns, type_fold, file, path)


def _turn(waiting: _Waiting) -> None:
    """Make columns of the entities that wait."""
    if waiting.stored:
        waiting.columnar.append(_columns_of(waiting.stored, waiting))
        waiting.columnar_rows += len(waiting.stored)
        waiting.stored = []


def _write(waiting: _Waiting) -> int:
    """A row group of what waits; the bytes it was in encoded form."""
    _turn(waiting)
    size = waiting.size
    if waiting.columnar:
        waiting.file.write_table(pa.Table.from_batches(waiting.columnar), row_group_size=waiting.columnar_rows)
        waiting.rows += waiting.columnar_rows
        waiting.columnar, waiting.columnar_rows, waiting.size = [], 0, 0
    return size


def _columns_of(stored: list[tuple[str, bytes]], waiting: _Waiting) -> pa.RecordBatch:
    """Column by column, so that what differs by type is decided once and not for each value."""
    versions, hashes, cells, links = zip(*[unpack_state(*each) for each in stored], strict=True)
    arrays = [
        pa.array([name for name, _ in stored], pa.string()),
        pa.array(versions, pa.int64()),
        pa.array(hashes, pa.binary(32)),
        json_array([_shown_links(each) if each else None for each in links]),
    ]
    reducers, said = waiting.type_fold.fold.reducers, set[str]().union(*cells)
    for name, arrow, array in waiting.columns:
        if name not in said:
            arrays.append(pa.nulls(len(stored), arrow.type))
            continue
        reducer = reducers[name]
        if isinstance(reducer, Winner):  # most are, and a call for each value costs as much as all else here
            try:
                values = [each[name][0] for each in cells]
            except (KeyError, TypeError):  # some entities have no value
                values = [None if (cell := each.get(name)) is None else cell[0] for each in cells]
        else:
            present, value = reducer.present, reducer.value
            values = [None if (cell := each.get(name)) is None or not present(cell) else value(cell) for each in cells]
        arrays.append(array(values))
    return pa.RecordBatch.from_arrays(arrays, schema=waiting.file.schema)


def _shown_links(links: Any) -> list[dict[str, Any]]:
    tree: Any = links_tree(links)
    return [{name: each[name] for name in each if name != "by"} for each in tree]
