"""Every record of a log, and every marker: what they say of themselves.

Offsets without gaps, recorded_at never falling, the partition its key's, the bytes an observation, the id the id of
that; every content a record names is in the store and is what its name says, or has expired. Each marker names a
point of this log.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator

from refold.avro.blob import references
from refold.avro.errors import InputError, StorageError, UndecodableError
from refold.avro.ids import identify
from refold.avro.quarantine import OBSERVATIONS
from refold.streams.cut import Cut, read_cut
from refold.streams.log.port import LogPort, Mismatch, Record, is_hole


def check_records(
    log: LogPort, partition: int, places: Iterable[Record], end: int, firsts: dict[str, array[int]]
) -> Iterator[Mismatch]:
    """The records of one partition (`LogPort.places` up to its end); the offset of each that is no repeat is added to
    its entity's in `firsts`."""
    expected, last = 0, 0
    known: set[bytes] = set()
    for record in places:
        place = f"observations {partition}={record.offset}"
        if record.offset != expected:
            yield Mismatch(f"observations {partition}={expected}", f"missing; the next one there is {record.offset}")
        if record.recorded_at < last:
            yield Mismatch(place, "recorded before the one in front of it", record.entity)
        expected, last = record.offset + 1, record.recorded_at
        if is_hole(record):
            continue
        yield from _check_record(log, record, place)
        if record.id not in known:
            known.add(record.id)
            firsts.setdefault(record.entity, array("Q")).append(record.offset)
    if expected != end:
        yield Mismatch(f"observations {partition}={expected}", f"missing; the log's next offset there is {end}")


def _check_record(log: LogPort, record: Record, place: str) -> Iterator[Mismatch]:
    command = log.registry.rulings.command(OBSERVATIONS, record.partition, record.offset)
    remedy = f"; {command}" if command else ""
    try:
        observation = log.registry.decode(record.data)
    except UndecodableError as error:
        yield Mismatch(place, f"no observation: {error}{remedy}", record.entity)
        return
    if observation.entity != record.entity or log.partition_of(observation.entity) != record.partition:
        yield Mismatch(place, f"misplaced: it is an observation of {observation.entity}{remedy}", record.entity)
    if identify(observation) != record.id:
        yield Mismatch(place, f"its id is not the id of its content{remedy}", record.entity)
    for blob in references(observation.patch.values(), lambda digest: _content(log, digest)):
        try:
            if log.blob(blob.hash) is None and not log.has_expired(blob.hash):
                yield Mismatch(f"blobs {blob.hash.hex()}", "missing", record.entity)
        except StorageError as error:
            yield Mismatch(f"blobs {blob.hash.hex()}", str(error), record.entity)


def check_markers(log: LogPort, cut: Cut) -> Iterator[Mismatch]:
    for marked in log.markers():
        try:
            named = read_cut(marked.cut)
        except InputError as error:
            yield Mismatch(f"markers @{marked.name}", str(error))
            continue
        below = named.log_id == cut.log_id and named.offsets.keys() == cut.offsets.keys()
        if not below or any(offset > cut.offsets[partition] for partition, offset in named.offsets.items()):
            yield Mismatch(f"markers @{marked.name}", "its cut is no point of this log")


def _content(log: LogPort, digest: bytes) -> bytes | None:
    with contextlib.suppress(StorageError):  # told where the content itself is checked
        return log.blob(digest)
    return None
