"""Folds a range of one partition's log onto a view.

1. Read the records in order, a batch at a time. The kernel, if there is one, folds the entities that it takes.
2. For other entities, a record that is certainly new is folded directly onto its entity; one that is certainly a repeat
   is skipped. If the next record of an entity is neither, or requires reopening, the entity is postponed: no more of
   its records are folded.
3. At the end the records of the postponed entities are read (`LogReader.records_among`), for as many entities
   at a time as fit in memory, and each entity is folded from nothing.
An observed-clock fold postpones every entity, because all its retractions decide which observations count.

Python also folds some of the entities that the kernel took (`checks`). Where the two differ, Python's fold is used.

Only the entities that Python folded last are kept as objects; the others are kept encoded. An entity that Python folded
since its hash was computed carries UNHASHED, until `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from refold.avro.errors import SchemaError
from refold.avro.kernel import Replayed, find_kernel
from refold.avro.registry import Registry
from refold.reducers.entity import Entity, pack, stored_hash, stored_version, unpack
from refold.reducers.state import hash_state
from refold.streams.history import seen_in
from refold.streams.log.port import LogReader, Record, firsts
from refold.streams.rebuild.memory import DEFAULT_MEMORY, RebuildMemory
from refold.streams.snapshots.layers import Layers
from refold.streams.table import native
from refold.streams.table.confirming import Choose
from refold.streams.table.folds import Folds

BATCH_RECORDS = 4_000
UNHASHED = bytes(32)

OnRead = Callable[[int], None]
"""Called with the number of further records read."""
ReadRange = Callable[[int, int], Iterator[Record]]
"""Returns the records with start <= offset < end of the partition."""


class RangeFold:
    """The fold of a range of one partition onto entities.

    Args:
        wants: Selects the entities to fold, by name; None for all.
        checks: Selects the entities whose kernel fold Python checks; None for none.

    Attributes:
        folds: The definitions.
        misfolded: Entities for which the kernel's result differed from Python's.
        read_range: Reads the records to fold in order.
    """

    def __init__(
        self, log: LogReader, partition: int, layers: Layers, folds: Folds, read: OnRead,
        wants: Choose | None = None, checks: Choose | None = None, memory: RebuildMemory = DEFAULT_MEMORY,
    ) -> None:  # fmt: skip
        self._log = log
        self._partition = partition
        self.folds = folds
        self.read_range: ReadRange = partial(log.read, partition)
        self._read = read
        self._wants = wants
        self._checks = checks
        self._memory = memory
        self._kernel = find_kernel().kernel
        self._objects: dict[str, Entity] = {}
        self._let_go_unhashed: set[str] = set()
        self.layers = layers
        self.entities = 0
        self.observations = 0
        self.replayed = 0
        self.reopened = 0
        self.scanned = 0
        self.misfolded: set[str] = set()

    def advance(self, start: int, end: int, observed_until: int | None = None, postponed: Iterable[str] = ()) -> None:
        """Fold the records of a range onto the entities.

        Args:
            start: The first offset.
            end: The offset after the last one.
            observed_until: Leave out what was observed later, in microseconds since 1970; None for no limit.
            postponed: Entities to fold from nothing in any case.
        """
        counts = dict.fromkeys(postponed, 0)
        for name in counts:
            self._forget(name)
        self._fold_in_order(start, end, counts, observed=observed_until is not None)
        for some in _groups_of_entities(counts, self._memory.postponed_records):
            self._from_nothing(some, end, observed_until)

    def finish(self) -> None:
        """Compute the hash of every folded entity."""
        for entity in self._objects.values():
            if entity.state_hash == UNHASHED:
                self._put(entity)
        for name in sorted(self._let_go_unhashed):
            packed = self.layers.get(name)
            if packed is not None and stored_hash(packed) == UNHASHED:
                self._put(unpack(name, packed))
        self._let_go_unhashed.clear()
        self.layers.make_layer()

    def _put(self, entity: Entity) -> None:
        entity.state_hash = hash_state(self.folds.of_entity(entity.name).fold, entity)
        self.layers.put(entity.name, pack(entity))

    def _fold_in_order(self, start: int, end: int, counts: dict[str, int], *, observed: bool) -> None:
        registry, wants = self._log.registry, self._wants
        records = iter(self.read_range(start, end))
        while batch := list(islice(records, BATCH_RECORDS)):
            folded = {} if observed or self._kernel is None else self._by_kernel(batch, counts)
            for record in batch:
                name = record.entity
                if name in counts:
                    counts[name] += 1
                elif name in folded or (wants is not None and not wants(name)):
                    continue
                elif observed or not self._fold(record, registry):
                    counts[name] = 1
                    self._forget(name)
            self.replayed += len(batch)
            self._read(len(batch))

    def _by_kernel(self, batch: list[Record], counts: dict[str, int]) -> dict[str, Replayed]:
        """Let the kernel fold the entities that it can; returns their results."""
        assert self._kernel is not None
        grouped: dict[str, list[Record]] = {}
        for record in batch:
            name = record.entity
            known = grouped.get(name)
            if known is not None:
                known.append(record)
            elif name not in counts and name not in self._objects and (self._wants is None or self._wants(name)):
                grouped[name] = [record]
        stored = dict(zip(grouped, self.layers.get_each(list(grouped)), strict=True))
        folded = native.replay(self._kernel, self.folds, [(name, stored[name], grouped[name]) for name in grouped])
        for name in filter(self._checks, list(folded)) if self._checks is not None else ():
            if folded[name] != self._by_python(name, stored[name], grouped[name]):
                self.misfolded.add(name)
                del folded[name]
        for name, (state, steps) in folded.items():
            if state is not None:
                self.layers.put(name, state)
                self.entities += stored[name] is None
                self.observations += steps
        return folded

    def _by_python(self, name: str, packed: bytes | None, records: list[Record]) -> Replayed | None:
        """The expected result of `native.replay` for an entity; None if it has to be folded from nothing."""
        entity = Entity(name) if packed is None else unpack(name, packed)
        version_before = entity.version
        known: set[bytes] = set()  # repeats among these records are recognised without the timeline
        for record in records:
            if record.id not in known and self._fold_onto(entity, record, self._log.registry) is None:
                return None
            known.add(record.id)
        if entity.version == version_before:
            return None, 0
        entity.state_hash = hash_state(self.folds.of_entity(name).fold, entity)
        return pack(entity), entity.version - version_before

    def _fold(self, record: Record, registry: Registry) -> bool:
        """Fold one record; False when its entity has to be folded from nothing."""
        entity = self._objects.get(record.entity)
        if entity is None:
            entity = self._load(record.entity)
        is_new = self._fold_onto(entity, record, registry)
        if is_new:
            entity.state_hash = UNHASHED
            self.observations += 1
        return is_new is not None

    def _fold_onto(self, entity: Entity, record: Record, registry: Registry) -> bool | None:
        """Whether the record was new and is folded; None when its entity has to be folded from nothing."""
        dedup_state = entity.dedup_state
        if record.id in dedup_state.last_ids:
            return False
        seen = seen_in(record, registry)
        if not dedup_state.certainly_new(seen.q):
            return None
        fold = self.folds.of_entity(entity.name).fold
        try:
            mutations = fold.directly(entity, seen)
        except SchemaError:  # a custom reducer may fail on assertions that a clear hides in a fold from nothing
            return None
        return None if mutations is None else True

    def _load(self, name: str) -> Entity:
        """Return the entity as an object, decoded if it was not one."""
        packed = self.layers.get(name)
        if packed is None:
            entity = Entity(name)
            self.entities += 1
        else:
            entity = unpack(name, packed)
        if len(self._objects) >= 2 * self._memory.objects:
            self._let_go(self._memory.objects)
        self._objects[name] = entity
        return entity

    def _let_go(self, keep: int) -> None:
        """Encode the entities that have been kept as objects for longest, all but `keep`."""
        for name in list(self._objects)[: len(self._objects) - keep]:
            entity = self._objects.pop(name)
            if entity.state_hash == UNHASHED:
                self.layers.put(name, pack(entity))
                self._let_go_unhashed.add(name)

    def _forget(self, name: str) -> None:
        """Remove the entity from the counts: it will be folded from nothing."""
        entity = self._objects.pop(name, None)
        if entity is not None:
            self.entities -= 1
            self.observations -= entity.version
            return
        packed = self.layers.get(name)
        if packed is not None:
            self.entities -= 1
            self.observations -= stored_version(packed)

    def _from_nothing(self, names: list[str], end: int, observed_until: int | None) -> None:
        found: dict[str, list[Record]] = {name: [] for name in names}
        for record in self._log.records_among(self._partition, found.keys(), end, self._looked_at):
            found[record.entity].append(record)
        for name, records in found.items():
            fold = self.folds.of_entity(name).fold
            seen = [seen_in(record, self._log.registry) for record in firsts(records)]
            entity = fold.from_nothing(name, seen, observed_until)
            if entity.version:
                entity.state_hash = hash_state(fold, entity)
                self.layers.put(name, pack(entity))
                self.entities += 1
                self.observations += entity.version
        self.reopened += len(found)

    def _looked_at(self, records: int) -> None:
        self.scanned += records


def _groups_of_entities(counts: dict[str, int], records: int) -> Iterator[list[str]]:
    """The entities in groups of which none has many more than `records` records."""
    names: list[str] = []
    total = 0
    for name, count in counts.items():
        names.append(name)
        total += max(count, 1)
        if total >= records:
            yield names
            names, total = [], 0
    if names:
        yield names
