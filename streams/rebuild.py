"""Rebuilding the state of a whole log at a cut, by full replay.

Per partition:
1. read the records below the cut in order; one that is certainly new folds directly onto its entity;
2. an entity whose next record cannot fold directly (it may be a repeat, or asks for reopening) is set aside, and no
   more of its records are folded;
3. one more pass over the partition collects the records of those set aside (keys are compared, nothing else is
   decoded), and each is folded from nothing.
An observed-clock cut sets every entity aside, for what counts depends on all of its retractions.

Only the entities folded last are held as objects; the rest stand packed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Seen
from refold.reducers.state import hash_state
from refold.streams.cut import Cut
from refold.streams.history import seen_in
from refold.streams.log.port import LogPort
from refold.streams.table.folds import Folds

HELD = 20_000

Progress = Callable[[int], None]
"""Told how many more records were read."""


@dataclass(slots=True)
class Rebuilt:
    """The entities at a cut, packed, and how they came about."""

    entities: dict[str, bytes] = field(default_factory=dict)
    observations: int = 0
    replayed: int = 0
    reopened: int = 0
    scanned: int = 0

    def source(self) -> dict[str, object]:
        """How it was rebuilt: epochs begun from, records replayed, entities reopened, records scanned for them."""
        return {
            "snapshot_epochs": {},
            "replayed": self.replayed,
            "reopened": self.reopened,
            "scanned": self.scanned,
        }


class Replay:
    """A full replay of one log to one cut."""

    def __init__(self, log: LogPort, cut: Cut, progress: Progress = lambda read: None) -> None:
        self._log = log
        self._cut = cut
        self._progress = progress
        self._folds = Folds(log.registry, cut.schemas)
        self._held: dict[str, Entity] = {}
        self._rebuilt = Rebuilt()

    def run(self) -> Rebuilt:
        """Every entity at the cut, with its hash."""
        for partition, end in sorted(self._cut.offsets.items()):
            aside = self._directly(partition, end)
            self._pack_down(0)
            self._from_nothing(partition, end, aside)
        self._finish()
        return self._rebuilt

    def _directly(self, partition: int, end: int) -> set[str]:
        """Step 1 and 2: the entities set aside."""
        aside: set[str] = set()
        by_observed = self._cut.observed_until is not None
        read = 0
        for record in self._log.read(partition, 0, end):
            read += 1
            if read % 1000 == 0:
                self._progress(1000)
            if by_observed or record.entity in aside:
                aside.add(record.entity)
                continue
            seen = seen_in(record, self._log.registry)
            entity = self._take(record.entity)
            known = seen.id in entity.residue.last_ids
            if known:
                continue
            new = entity.residue.certainly_new(seen.q)
            if not new or self._folds.of_entity(record.entity).fold.directly(entity, seen) is None:
                aside.add(record.entity)
                del self._held[record.entity]
        self._rebuilt.replayed += read
        self._progress(read % 1000)
        return aside

    def _from_nothing(self, partition: int, end: int, aside: set[str]) -> None:
        """Step 3."""
        if not aside:
            return
        histories: dict[str, dict[bytes, Seen]] = {name: {} for name in aside}
        for record in self._log.read(partition, 0, end):
            self._rebuilt.scanned += 1
            history = histories.get(record.entity)
            if history is not None and record.id not in history:
                history[record.id] = seen_in(record, self._log.registry)
        for name, history in histories.items():
            fold = self._folds.of_entity(name).fold
            entity = fold.from_nothing(name, list(history.values()), self._cut.observed_until)
            if entity.version:
                self._rebuilt.entities[name] = pack(entity)
        self._rebuilt.reopened += len(aside)

    def _take(self, name: str) -> Entity:
        entity = self._held.get(name)
        if entity is None:
            packed = self._rebuilt.entities.pop(name, None)
            entity = Entity(name) if packed is None else unpack(name, packed)
            self._held[name] = entity
            if len(self._held) > 2 * HELD:
                self._pack_down(HELD)
        return entity

    def _pack_down(self, keep: int) -> None:
        """Pack the entities that came first, all but `keep`."""
        for name in list(self._held)[: len(self._held) - keep]:
            self._rebuilt.entities[name] = pack(self._held.pop(name))

    def _finish(self) -> None:
        """Give every entity its hash, which only its last version has."""
        entities = self._rebuilt.entities
        for name, packed in entities.items():
            entity = unpack(name, packed)
            entity.state_hash = hash_state(self._folds.of_entity(name).fold, entity)
            entities[name] = pack(entity)
            self._rebuilt.observations += entity.version
