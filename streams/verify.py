"""verify: the whole log folded again, and compared with everything that was stored beside it.

1. Every record: offsets without gaps, recorded_at never falling, its partition its key's, its bytes an observation,
   its id the id of that; every content it names is in the store and is what its name says.
2. The indexes of the records (the backend's own check), and the markers: each names a point of this log.
3. A full replay; every stored entity equals its replayed one, values, residue and hash; none is missing or too many.
4. Every chain of changes (verify_changes.py).
Each mismatch names entity, field and place; damaged storage is a mismatch too, not the end of the check.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cbor2

from refold.avro.blob import references
from refold.avro.errors import InputError, RefoldError, StorageError, UndecodableError
from refold.avro.ids import identify
from refold.reducers.entity import Entity, pack, unpack
from refold.streams.cut import Cut, parse_cut
from refold.streams.digest import root_of
from refold.streams.log.port import LogPort, Mismatch, Record
from refold.streams.rebuild import Progress, Replay
from refold.streams.verify_changes import check_changes

MISMATCHES_MAX = 1000


@dataclass(slots=True)
class Verdict:
    """The outcome: the root of the replay (hex), what was compared, and at most MISMATCHES_MAX mismatches."""

    cut: Cut
    root: str = ""
    observations: int = 0
    entities: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all is as it should be."""
        return not self.mismatches

    def add(self, found: Iterator[Mismatch]) -> None:
        """Take up mismatches; a storage error ends this part of the check as one more."""
        try:
            for each in found:
                if len(self.mismatches) >= MISMATCHES_MAX:
                    return
                self.mismatches.append(each)
        except StorageError as error:
            self.mismatches.append(Mismatch("storage", str(error)))


def verify(log: LogPort, cut: Cut, progress: Progress = lambda read: None) -> Verdict:
    """Check everything below a cut at the end of a log that stands still (`LogPort.still`)."""
    verdict = Verdict(cut)
    firsts: dict[int, dict[str, array[int]]] = {}
    for partition, end in cut.offsets.items():
        firsts[partition] = {}
        verdict.add(_check_records(log, partition, end, firsts[partition]))
    verdict.add(log.check_indexes(cut.offsets))
    verdict.add(_check_markers(log, cut))
    hashes = _check_replay(log, cut, verdict, progress)
    for partition, end in cut.offsets.items():
        verdict.add(check_changes(log, partition, end, firsts[partition], hashes))
    return verdict


def _check_replay(log: LogPort, cut: Cut, verdict: Verdict, progress: Progress) -> dict[str, bytes] | None:
    """The hashes of the replayed states, where the log could be replayed."""
    try:
        rebuilt = Replay(log, cut, progress).run()
    except RefoldError as error:
        verdict.mismatches.append(Mismatch("replay", str(error)))
        return None
    replayed = rebuilt.entities
    hashes = {name: unpack(name, packed).state_hash for name, packed in replayed.items()}
    verdict.root = root_of(hashes.items()).hex()
    verdict.observations, verdict.entities = rebuilt.observations, len(replayed)
    verdict.add(_check_table(log, replayed))
    return hashes


def _check_records(log: LogPort, partition: int, end: int, firsts: dict[str, array[int]]) -> Iterator[Mismatch]:
    """The records of one partition; the offset of each that is no repeat is added to its entity's in `firsts`."""
    expected, last = 0, 0
    known: set[bytes] = set()
    for record in log.read(partition, 0, end):
        place = f"observations {partition}={record.offset}"
        if record.offset != expected:
            yield Mismatch(f"observations {partition}={expected}", f"missing; the next one there is {record.offset}")
        if record.recorded_at < last:
            yield Mismatch(place, "recorded before the one in front of it", record.entity)
        expected, last = record.offset + 1, record.recorded_at
        yield from _check_record(log, record, place)
        if record.id not in known:
            known.add(record.id)
            firsts.setdefault(record.entity, array("Q")).append(record.offset)
    if expected != end:
        yield Mismatch(f"observations {partition}={expected}", f"missing; the log's next offset there is {end}")


def _check_record(log: LogPort, record: Record, place: str) -> Iterator[Mismatch]:
    try:
        observation = log.registry.decode(record.data)
    except UndecodableError as error:
        yield Mismatch(place, f"no observation: {error}", record.entity)
        return
    if observation.entity != record.entity or log.partition_of(observation.entity) != record.partition:
        yield Mismatch(place, f"misplaced: it is an observation of {observation.entity}", record.entity)
    if identify(observation) != record.id:
        yield Mismatch(place, "its id is not the id of its content", record.entity)
    for blob in references(observation.patch.values(), lambda digest: _content(log, digest)):
        try:
            if log.blob(blob.hash) is None:
                yield Mismatch(f"blobs {blob.hash.hex()}", "missing", record.entity)
        except StorageError as error:
            yield Mismatch(f"blobs {blob.hash.hex()}", str(error), record.entity)


def _check_markers(log: LogPort, cut: Cut) -> Iterator[Mismatch]:
    for marked in log.markers():
        try:
            named = parse_cut(marked.cut)
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


def _check_table(log: LogPort, replayed: dict[str, bytes]) -> Iterator[Mismatch]:
    stored = set()
    for name, packed in log.stored_entities():
        stored.add(name)
        expected = replayed.get(name)
        if expected is None:
            yield Mismatch("state", "stored, but no observation of it is in the log", name)
        elif packed != expected:
            yield from _compare(name, packed, expected)
    for name in sorted(replayed.keys() - stored):
        yield Mismatch("state", "missing", name)


def _compare(name: str, packed: bytes, expected: bytes) -> Iterator[Mismatch]:
    """What differs, part by part: the same state may be stored in another order of its fields."""
    try:
        found, should = unpack(name, packed), unpack(name, expected)
        parts, again = _parts(found), pack(found)
        field_names = found.cells.keys() | should.cells.keys()
    except (StorageError, TypeError, ValueError, LookupError, AttributeError) as error:
        yield Mismatch("state", f"cannot be read: {error}", name)
        return
    for field_name in sorted(field_names):
        if not _same(found.cells.get(field_name), should.cells.get(field_name)):
            yield Mismatch("state", "another value or holder than the log folds to", name, field_name)
    for part, value in _parts(should).items():
        if not _same(parts[part], value):
            yield Mismatch("state", f"another {part} than the log folds to", name)
    if again != packed:
        yield Mismatch("state", "not the bytes that say it", name)


def _parts(entity: Entity) -> dict[str, Any]:
    """What is stored beside the cells, as plain trees."""
    residue = entity.residue
    pending = None if residue.pending is None else sorted(residue.pending)
    return {
        "version": entity.version,
        "links": sorted([*key, *cell] for key, cell in entity.links.items()),
        "clears": entity.clears,
        "residue": [residue.greatest, list(residue.sources.items()), residue.floor, residue.last_ids, pending,
                    residue.lowest_offset, residue.highest_offset],
        "state_hash": entity.state_hash,
    }  # fmt: skip


def _same(found: Any, should: Any) -> bool:
    """Equal, and of equal types: Python takes 1, 1.0 and True for the same."""
    return found == should and cbor2.dumps(found, canonical=True) == cbor2.dumps(should, canonical=True)
