"""Computes the chains of changes again from the observations, and compares them byte for byte with the stored changes.

Of each change:
1. its entity has observations, and its definition is in the log;
2. it begins at the version and hash where the previous change ended;
3. its steps are the entity's next distinct observations, with the mutations that the fold makes;
4. `through` is after its steps, and no later batch begins before it. Each chain must end at the entity's state.
The native kernel, if there is one, checks most changes first (confirmed_changes.py).

Exceptions: the chain of an entity with a change that is set aside is not checked. With an observation that is set
aside, it is not checked from that observation on. With an observation that was set aside and restored, changes may have
been made without it, so the chain is not checked from its offset on. The entities of a batch of changes that is set
aside are unknown: after it a chain with a gap is not checked from there on, and no chain's end is checked. For a change
by a definition whose custom code is missing only its place in the chain is checked.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from refold.avro.errors import CorruptionError, DamagedRecord, SchemaError, StorageError, UndecodableError
from refold.avro.quarantine import CHANGES, OBSERVATIONS
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Fold, Seen
from refold.reducers.state import hash_state
from refold.streams.change_reader import ChangeReader
from refold.streams.changes import Change, ChangeStep
from refold.streams.history import seen_in
from refold.streams.log.port import ChangeRecord, LogReader, Mismatch, Record
from refold.streams.log.port import firsts as firsts_of
from refold.streams.table.confirming import Choose
from refold.streams.table.folds import TypeFold
from refold.streams.verify.confirmed_changes import BEGIN, ChangeConfirmer, ConfirmedChange, Firsts, Reached
from refold.streams.verify.stored_records import StoredRecords, in_batches

BATCH_RECORDS = 1000


def check_changes(log: LogReader, partition: int, end: int, firsts: Firsts, hashes: Mapping[str, bytes] | None,
                  records: StoredRecords, checks: Choose) -> Iterator[Mismatch]:  # fmt: skip
    """Check the changes of one partition against the records below `end`.

    Args:
        hashes: Of the states there, if known.
        records: The log's records.
        checks: Selects the entities that Python checks even if the kernel confirms their changes.
    """
    chains = _Chains(log, partition, end, firsts, records.at)
    confirmer = ChangeConfirmer(log.registry, firsts, records, checks)
    try:
        for some in in_batches(log.read_changes(partition, 0), BATCH_RECORDS):
            confirmer.begin([] if chains.has_exceptions else some)
            for record in some:
                confirmed = confirmer.next(chains.reached)
                if confirmed is None:
                    yield from chains.check(record)
                else:
                    yield from chains.take(record, confirmed)
    except DamagedRecord as error:  # nothing after it can be checked
        yield Mismatch(f"changes {partition}={error.offset}", str(error))
        return
    yield from chains.check_end()
    for name in firsts:
        if name in chains.aside or name in chains.taken_back or chains.unknown_from is not None:
            continue
        if hashes is not None and chains.reached.get(name, BEGIN).hash != hashes.get(name):
            yield Mismatch("changes", "the chain does not end at the entity's state", name)


def check_change(log: LogReader, partition: int, offset: int) -> list[Mismatch]:
    """Return the mismatches of one change with its entity's observations and the earlier changes.

    Args:
        log: The log.
        partition: The change's partition.
        offset: Its offset in `.changes`.

    Raises:
        LookupError: There is no change at the offset.
    """
    reader = ChangeReader(log)
    record = next(log.read_changes(partition, offset), None)
    if record is None or record.offset != offset:
        raise LookupError(offset)
    try:
        name = reader.decode(record.data).entity
    except (UndecodableError, StorageError) as error:
        return [Mismatch(f"changes {partition}={offset}", str(error))]
    end = log.ends()[partition]
    offsets = array("Q", (each.offset for each in firsts_of(log.entity_records(name, end))))
    chains = _Chains(log, partition, end, {name: offsets}, log.record_at)
    for each in log.read_changes(partition, 0):
        try:
            is_mine = reader.decode(each.data).entity == name
        except (UndecodableError, StorageError):
            continue
        found = list(chains.check(each)) if is_mine else []
        if each.offset == offset:
            return found
    return []


class _Chains:
    """The chains of one partition, up to the last checked change."""

    def __init__(
        self, log: LogReader, partition: int, end: int, firsts: Firsts,
        record_at: Callable[[int, int], Record | None],
    ) -> None:  # fmt: skip
        self.reached: dict[str, Reached] = {}
        aside = log.registry.rulings.of(CHANGES, partition)
        self.aside = {entity for entity in aside.values() if entity}
        self.unknown_from = min((offset for offset, entity in aside.items() if not entity), default=None)
        self._set_aside = log.registry.rulings.of(OBSERVATIONS, partition)
        self.taken_back = _taken_back(log, partition, firsts)
        self._log = log
        self._partition = partition
        self._end = end
        self._firsts = firsts
        self._record_at = record_at
        self._reader = ChangeReader(log)
        self._versions = {each.definition.fingerprint: each for each in log.registry}
        self._folds: dict[bytes, TypeFold | None] = {}
        self._next = 0
        self._through = 0
        self._batch_begin = 0

    @property
    def has_exceptions(self) -> bool:
        """Whether chains may be left out, because something is or was set aside."""
        return bool(self.aside or self._set_aside or self.taken_back or self.unknown_from is not None)

    def take(self, record: ChangeRecord, confirmed: ConfirmedChange) -> Iterator[Mismatch]:
        """Take the next change, which is confirmed apart from its place."""
        yield from self._check_offset(record)
        entity, through, first, last, reached = confirmed
        self.reached[entity] = reached
        if not self._fits(through, first, last):
            yield _misplaced(f"changes {self._partition}={record.offset}", entity, through)

    def _check_offset(self, record: ChangeRecord) -> Iterator[Mismatch]:
        if record.offset != self._next and self._log.is_dense:
            yield Mismatch(f"changes {self._partition}={self._next}", f"missing; the next there is {record.offset}")
        self._next = record.offset + 1

    def check(self, record: ChangeRecord) -> Iterator[Mismatch]:
        """Check the next change."""
        place = f"changes {self._partition}={record.offset}"
        yield from self._check_offset(record)
        try:
            change = self._reader.decode(record.data)
            is_past = change.through > self.taken_back.get(change.entity, change.through)
            if is_past or any(step.offset in self._set_aside for step in change.steps):
                self.aside.add(change.entity)
            yield from self._check_place(change, place)
            if self._may_lack_changes(change, record.offset):
                self.aside.add(change.entity)
            yield from self._check_chain(change, record.data, place)
        except (UndecodableError, StorageError) as error:
            command = self._log.registry.rulings.command(CHANGES, self._partition, record.offset)
            yield Mismatch(place, f"{error}; {command}" if command else str(error))

    def _may_lack_changes(self, change: Change, offset: int) -> bool:
        """Whether a change may follow a missing one, because changes of unknown entities were set aside."""
        if self.unknown_from is None or offset < self.unknown_from:
            return False
        return (change.from_version, change.hash_before) != self.reached.get(change.entity, BEGIN)[:2]

    def check_end(self) -> Iterator[Mismatch]:
        """Check the log's next offset."""
        end = self._log.changes_end(self._partition)
        if end != self._next and self._log.is_dense:
            place = f"changes {self._partition}={self._next}"
            yield Mismatch(place, f"the log's next offset there is {end}, and the last change is before this one")

    def _check_place(self, change: Change, place: str) -> Iterator[Mismatch]:
        offsets = [step.offset for step in change.steps]
        first, last = (min(offsets), max(offsets)) if offsets else (None, None)
        if not self._fits(change.through, first, last):
            yield _misplaced(place, change.entity, change.through)

    def _fits(self, through: int, first: int | None, last: int | None) -> bool:
        """Whether a change with these steps can be of the batch that ended at `through`."""
        if through > self._through:
            self._batch_begin, self._through = self._through, through
        fits = first is None or last is None or (self._batch_begin <= first and last < through)
        return fits and through == self._through and through <= self._end

    def _check_chain(self, change: Change, data: bytes, place: str) -> Iterator[Mismatch]:
        name, before = change.entity, self.reached.get(change.entity, BEGIN)
        if name in self.aside:
            return
        offsets = self._firsts.get(name)
        if offsets is None:
            yield Mismatch(place, "a change of an entity that has no observation in this partition", name)
            return
        if change.definition not in self._versions:
            yield Mismatch(place, "made by a definition this log does not hold", name)
            return
        if (change.from_version, change.hash_before) != before[:2]:
            yield Mismatch(place, f"does not follow v{before.version}", name)
        if not change.from_version <= change.to_version <= len(offsets):
            yield Mismatch(place, f"reaches v{change.to_version}; there are {len(offsets)} observations", name)
            return
        type_fold = self._fold_of(change.definition)
        if type_fold is None:
            self.reached[name] = Reached(change.to_version, change.hash_after, change.definition, None)
            return
        expected, entity = self._computed(change, before, offsets, type_fold)
        self.reached[name] = Reached(entity.version, entity.state_hash, change.definition, pack(entity))
        if type_fold.changes.encode(expected) != data:
            yield from _differences(expected, change, place)

    def _fold_of(self, definition: bytes) -> TypeFold | None:
        if definition not in self._folds:
            try:
                self._folds[definition] = TypeFold(self._versions[definition])
            except SchemaError:  # the code of its custom reducer changed
                self._folds[definition] = None
        return self._folds[definition]

    def _computed(
        self, change: Change, before: Reached, offsets: array[int], type_fold: TypeFold
    ) -> tuple[Change, Entity]:
        """The change computed from the observations, and the entity after it."""
        fold = type_fold.fold
        entity = self._entity_at(change, before, offsets, fold)
        redefined = change.from_version == change.to_version
        hash_before = before.hash if redefined else entity.state_hash or None
        steps = []
        for number in range(change.from_version, change.to_version):
            offset = offsets[number]
            seen, recorded_at = self._observation_at(offset)
            entity, mutations = fold.step(entity, seen, partial(self._history, offsets[:number]))
            stated = seen.observation
            steps.append(
                ChangeStep(offset, number + 1, seen.id, stated.observed_at, recorded_at, stated.source, mutations)
            )
        entity.state_hash = hash_state(fold, entity)
        return change._replace(hash_before=hash_before, hash_after=entity.state_hash, redefined=redefined,
                       steps=steps), entity  # fmt: skip

    def _entity_at(self, change: Change, before: Reached, offsets: array[int], fold: Fold) -> Entity:
        """The entity at the version a change begins with, by the change's own definition."""
        if (before.version, before.definition) == (change.from_version, change.definition) and before.packed:
            return unpack(change.entity, before.packed)
        if not change.from_version:
            return Entity(change.entity)
        entity = fold.from_nothing(change.entity, self._history(offsets[: change.from_version]))
        entity.state_hash = hash_state(fold, entity)
        return entity

    def _history(self, offsets: array[int]) -> list[Seen]:
        return [self._observation_at(offset)[0] for offset in offsets]

    def _observation_at(self, offset: int) -> tuple[Seen, int]:
        record = self._record_at(self._partition, offset)
        if record is None:
            raise CorruptionError(f"the observation {self._partition}={offset} is found by a scan but not by its key")
        return seen_in(record, self._log.registry), record.recorded_at


def _misplaced(place: str, entity: str, through: int) -> Mismatch:
    return Mismatch(place, f"`through` is {through}, which its batch cannot have reached", entity)


def _taken_back(log: LogReader, partition: int, firsts: Firsts) -> dict[str, int]:
    """Entities with observations that were set aside and count again, each with the first one's offset."""
    ruled: set[int] = set()
    for each in log.registry.rulings.between(0, len(log.registry)):
        if (each.topic, each.partition) == (OBSERVATIONS, partition):
            ruled.update(range(each.offset, each.offset + each.length))
    ruled.difference_update(log.registry.rulings.of(OBSERVATIONS, partition))
    if not ruled:
        return {}
    found = ((name, min(ruled.intersection(offsets), default=None)) for name, offsets in firsts.items())
    return {name: offset for name, offset in found if offset is not None}


def _differences(expected: Change, change: Change, place: str) -> Iterator[Mismatch]:
    """The mismatches of a change that differs from the computed one."""
    name = change.entity
    found = False
    for part in ("hash_before", "hash_after", "redefined"):
        if getattr(expected, part) != getattr(change, part):
            found = True
            yield Mismatch(place, f"its {part} is not what its observations give", name)
    if len(expected.steps) != len(change.steps):
        found = True
        yield Mismatch(place, "its steps are not its versions", name)
    for should, step in zip(expected.steps, change.steps, strict=False):
        for part in ("offset", "version", "observation", "observed_at", "recorded_at", "source"):
            if getattr(should, part) != getattr(step, part):
                found = True
                yield Mismatch(place, f"v{should.version}: its {part} is not the observation's", name)
        fields = {each.field for each in (*should.mutations, *step.mutations)}
        for field in sorted(fields):
            made = [each for each in should.mutations if each.field == field]
            if made != [each for each in step.mutations if each.field == field]:
                found = True
                yield Mismatch(place, f"v{should.version}: not the mutations its observation makes", name, field)
    if not found:
        yield Mismatch(place, "not the bytes that say it", name)
