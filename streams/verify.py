"""verify: the whole log folded again, and compared with everything that was stored beside it.

1. Every record: offsets without gaps, recorded_at never falling, its partition its key's, its bytes an observation,
   its id the id of that; and the indexes of each (the backend's own check).
2. A full replay; every stored entity equals its replayed one, values, residue and hash; none is missing or too many.
3. Every chain of changes: versions without gaps, hashes that meet, the last one the stored state's.
4. Every content a record names is in the store and is what its name says.
Each mismatch names entity, field and place; damaged storage is a mismatch too, not the end of the check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from refold.avro.blob import Blob, option_of
from refold.avro.errors import RefoldError, StorageError, UndecodableError
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.reducers.entity import unpack
from refold.streams.cut import Cut
from refold.streams.digest import root_of
from refold.streams.feed import ChangeReader
from refold.streams.log.port import LogPort, Mismatch, Record
from refold.streams.rebuild import Progress, Replay

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
    """Check everything below a cut at the log's end."""
    verdict = Verdict(cut)
    for partition, end in cut.offsets.items():
        verdict.add(_check_records(log, partition, end))
    verdict.add(log.check_indexes(cut.offsets))
    try:
        rebuilt = Replay(log, cut, progress).run()
    except RefoldError as error:
        verdict.mismatches.append(Mismatch("replay", str(error)))
        return verdict
    replayed = rebuilt.entities
    hashes = {name: unpack(name, packed).state_hash for name, packed in replayed.items()}
    verdict.root = root_of(hashes.items()).hex()
    verdict.observations, verdict.entities = rebuilt.observations, len(replayed)
    verdict.add(_check_table(log, replayed))
    verdict.add(_check_changes(log, hashes))
    return verdict


def _check_records(log: LogPort, partition: int, end: int) -> Iterator[Mismatch]:
    expected, last = 0, 0
    for record in log.read(partition, 0, end):
        place = f"observations {partition}={record.offset}"
        if record.offset != expected:
            yield Mismatch(f"observations {partition}={expected}", f"missing; the next one there is {record.offset}")
        if record.recorded_at < last:
            yield Mismatch(place, "recorded before the one in front of it", record.entity)
        expected, last = record.offset + 1, record.recorded_at
        yield from _check_record(log, record, place)
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
    for blob in _blobs(observation):
        try:
            if log.blob(blob.hash) is None:
                yield Mismatch(f"blobs {blob.hash.hex()}", "missing", record.entity)
        except StorageError as error:
            yield Mismatch(f"blobs {blob.hash.hex()}", str(error), record.entity)


def _blobs(observation: Observation) -> Iterator[Blob]:
    waiting: list[Any] = list(observation.patch.values())
    while waiting:
        value = waiting.pop()
        option = option_of(value)
        if isinstance(option, Blob):
            yield option
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _check_table(log: LogPort, replayed: dict[str, bytes]) -> Iterator[Mismatch]:
    stored = set()
    for name, packed in log.stored_entities():
        stored.add(name)
        expected = replayed.get(name)
        if expected is None:
            yield Mismatch("state", "stored, but no observation of it is in the log", name)
        elif packed != expected:
            yield from _compare(name, packed, expected)
    for name in replayed.keys() - stored:
        yield Mismatch("state", "missing", name)


def _compare(name: str, packed: bytes, expected: bytes) -> Iterator[Mismatch]:
    try:
        found, should = unpack(name, packed), unpack(name, expected)
    except StorageError as error:
        yield Mismatch("state", str(error), name)
        return
    for field_name in sorted(found.cells.keys() | should.cells.keys()):
        if found.cells.get(field_name) != should.cells.get(field_name):
            yield Mismatch("state", "another value or holder than the log folds to", name, field_name)
    for part in ("version", "links", "clears", "residue", "state_hash"):
        if getattr(found, part) != getattr(should, part):
            yield Mismatch("state", f"another {part} than the log folds to", name)


def _check_changes(log: LogPort, hashes: dict[str, bytes]) -> Iterator[Mismatch]:
    reader = ChangeReader(log)
    reached: dict[str, tuple[int, bytes]] = {}
    for partition in range(log.partitions):
        for record in log.read_changes(partition, 0):
            place = f"changes {partition}={record.offset}"
            try:
                change = reader.decode(record.data)
            except (UndecodableError, StorageError) as error:
                yield Mismatch(place, str(error))
                continue
            version, state_hash = reached.get(change.entity, (0, None))
            if (change.from_version, change.hash_before) != (version, state_hash):
                yield Mismatch(place, f"does not follow v{version}", change.entity)
            if not change.redefined and [step.version for step in change.steps] != list(
                range(change.from_version + 1, change.to_version + 1)
            ):
                yield Mismatch(place, "its steps are not its versions", change.entity)
            reached[change.entity] = (change.to_version, change.hash_after)
    for name, expected in hashes.items():
        if reached.get(name, (0, b""))[1] != expected:
            yield Mismatch("changes", "the chain does not end at the entity's state", name)

