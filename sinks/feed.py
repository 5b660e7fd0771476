"""What changed in a log since a cut, as batches that a sink can take: states after, history, and the exact cut.

The changes of one partition come in order, and those of one fold share `through`, the offset behind it. So:
1. A batch ends, in each partition, where `through` changes: its cut is exact. Where everything up to the end was
   taken, the cut goes on to where the partition is folded: repeats and verdicts leave no change.
2. Definitions come first: where the log has more of them than the position, the types among them that had an older one
   are read again whole (`Load.types`), at the position's offsets; new types ask for nothing. From there on all states
   and history are by the new definition, whichever of the log's workers took it up already. So changes `redefined`
   tell a sink nothing.
3. A change that begins at the held state, and was made by the definition in force, takes the state on by its mutations.
   The held state is that of the last batch, or the sink's own. Any other change has its entity asked of the log at the
   batch's cut. So nobody has to trust that a sink holds what it says: the state hash tells.
4. Where an observation was set aside since, its type is read again as in 2; and of a change that was set aside, its
   entity is asked of the log as in 3. Where nobody knows whose change it was, as of a batch, so is every entity that
   has an observation in the batch's stretch of the log: the change tells of one of these.
5. In doubt nothing is remembered: who failed to write a batch begins again from the sink's position.

The states given out last, so that a busy entity is not read back from the store for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.observation import type_of
from refold.avro.quarantine import CHANGES, OBSERVATIONS
from refold.sinks.initial_load import change_history, definitions_at, load_of, told
from refold.sinks.port import Batch, EntityState, HistoryStep, Load
from refold.sinks.states import advance, begun, follows, is_exact, packed, unpacked
from refold.streams.changes import Change, Shown
from refold.streams.cut import Cut
from refold.streams.feed import ChangeReader, first_past
from refold.streams.log.port import LogPort
from refold.streams.rebuild.partition import Progress
from refold.streams.table.folds import Folds

CACHE_BYTES_MAX = 32 << 20


class Remembered:
    """States by name, those taken up longest ago leave first. Bounded by what was read for them, in encoded bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._states: dict[str, tuple[EntityState, int]] = {}
        self._bytes = 0

    def take(self, name: str) -> tuple[EntityState, int] | None:
        """What is known of an entity, and its weight; it is no longer remembered."""
        found = self._states.pop(name, None)
        if found is not None:
            self._bytes -= found[1]
        return found

    def keep(self, state: EntityState, weight: int) -> None:
        """Remember a state that is not remembered now."""
        self._states[state.entity] = state, weight
        self._bytes += weight
        while self._bytes > self._bytes_max:
            self.take(next(iter(self._states)))

    def clear(self) -> None:
        """Remember nothing."""
        self._states.clear()
        self._bytes = 0


Held = Callable[[Collection[str]], Mapping[str, bytes]]
CHANGES_MAX = 5_000
BYTES_MAX = 16 << 20


class Lag(NamedTuple):
    """changes: what is not in the sink yet; on Kafka ends of transactions count, too. oldest_ms: when the first record
    behind the position was taken by the log, None where nothing is missing."""

    changes: int
    oldest_ms: int | None


@dataclass(slots=True)
class _Taken:
    """Changes of a batch in the making, with their partition and bytes, and where they lead to.

    passed: entities whose changes were set aside on the way, with their partition.
    """

    changes: list[tuple[int, Change, int]] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
    passed: dict[str, int] = field(default_factory=dict)


class Feed:
    """The batches of one log for one sink; `held` asks it what it keeps. history: whether it wants rows of it."""

    def __init__(self, log: LogPort, held: Held, *, history: bool = True, changes_max: int = CHANGES_MAX) -> None:
        self._log = log
        self._held = held
        self._history = history
        self._changes_max = changes_max
        self._reader = ChangeReader(log)
        self._places: dict[int, int] = {}
        self._looked: dict[int, tuple[int, int]] = {}
        self._remembered = Remembered()
        self._shown: dict[bytes, Shown] = {}

    def forget(self) -> None:
        """Remember nothing of what was given out: it may not stand in the sink."""
        self._places.clear()
        self._looked.clear()
        self._remembered.clear()

    def first(self, progress: Progress = lambda more, total: None) -> Load:
        """Everything there is by now."""
        self._log.refresh()
        folded = self._folded()
        cut = self._cut(folded, len(self._log.registry))
        return load_of(self._log, None, cut, None, history=self._history, progress=progress)

    def next(self, position: Cut) -> Batch | Load | None:
        """What follows a position: a batch as full as it may be, or types that were defined anew; None at the end."""
        folded = self._folded()
        schemas = len(self._log.registry)
        types = self._redefined(position.schemas, schemas)
        if types:
            self._remembered.clear()
            cut = self._cut(position.offsets, schemas)
            return load_of(self._log, position, cut, types, history=self._history)
        taken = _Taken()
        for partition in sorted(position.offsets):
            if not self._is_full(taken):
                self._take(taken, partition, position.offsets[partition], folded[partition])
        cut = self._cut({**position.offsets, **taken.offsets}, schemas)
        if cut == position:
            return None
        return self._batch(position, cut, taken)

    def lag(self, position: Cut) -> Lag:
        """How far a position is behind, as of the log's last refresh. Of a sink that is followed: cheap."""
        log, changes, times = self._log, 0, []
        ends = log.ends()
        for partition, offset in position.offsets.items():
            missing = log.changes_end(partition) - self._past(partition, offset) if offset < ends[partition] else 0
            if missing > 0:
                changes += missing
                times.append(log.recorded_below(partition, offset + 1))
        return Lag(changes, min(times, default=None))

    def _past(self, partition: int, offset: int) -> int:
        """The first change past an offset, those that only reach it left out; looked for once for each offset."""
        known = self._looked.get(partition)
        if known is None or known[0] != offset:
            place = self._place(partition, offset)
            for record in self._log.read_changes(partition, place):
                if self._reader.read(record).through > offset:
                    break
                place = record.offset + 1
            self._looked[partition] = known = offset, place
        return known[1]

    def _place(self, partition: int, floor: int) -> int:
        """The first change past an offset that was not taken yet."""
        if partition not in self._places:
            self._places[partition] = first_past(self._log, self._reader, partition, floor) if floor else 0
        return self._places[partition]

    def _folded(self) -> dict[int, int]:
        """How far each partition is folded; all changes up to there show behind this call."""
        folded = {partition: each.offset for partition, each in self._log.folded().items()}
        self._log.refresh()
        return folded

    def _redefined(self, before: int, schemas: int) -> frozenset[str]:
        """The types that had another definition before."""
        registry = self._log.registry
        if before == schemas:
            return frozenset()
        known, now = registry.fingerprints(before), registry.fingerprints(schemas)
        again = {name for name, each in now.items() if known.get(name, each) != each}
        for ruling in registry.rulings.between(before, schemas):
            if ruling.topic == OBSERVATIONS:  # what it was folded to changes, and no change says so
                again.update([type_of(ruling.entity)] if ruling.entity else now)
        return frozenset(again & now.keys())

    def _cut(self, offsets: Mapping[int, int], schemas: int) -> Cut:
        return Cut(self._log.log_id, dict(sorted(offsets.items())), schemas, self._log.registry.digest(schemas))

    def _is_full(self, taken: _Taken) -> bool:
        return len(taken.changes) >= self._changes_max or taken.bytes >= BYTES_MAX

    def _take(self, taken: _Taken, partition: int, floor: int, folded: int) -> None:
        """Add a partition's changes past the position's offset, up to the end or to where the batch is full."""
        log, reader = self._log, self._reader
        through, end = floor, log.changes_end(partition)
        begin = self._place(partition, floor)
        for record in log.read_changes(partition, begin):
            change = reader.read(record)
            if change.through > through:
                if self._is_full(taken):
                    self._places[partition] = record.offset
                    break
                through = change.through
            self._places[partition] = record.offset + 1
            if change.through > floor and not change.redefined:
                taken.changes.append((partition, change, len(record.data)))
                taken.bytes += len(record.data)
        else:
            self._places[partition] = max(end, self._places[partition])
            through = max(through, folded)
        taken.offsets[partition] = through
        aside = log.registry.rulings.of(CHANGES, partition)
        passed = {entity for offset, entity in aside.items() if begin <= offset < self._places[partition]}
        if "" in passed:
            passed.update(record.entity for record in log.read(partition, floor, through))
        taken.passed.update(dict.fromkeys(passed - {""}, partition))

    def _batch(self, position: Cut, cut: Cut, taken: _Taken) -> Batch:
        """States and history of what was taken."""
        if any(cut.offsets[partition] > end for partition, end in self._log.ends().items()):
            self._log.refresh()  # changes may show before the records they are of do
        definitions = definitions_at(self._log.registry, cut.schemas)
        states, weights = self._states_before(taken, definitions)
        asked: set[str] = set(taken.passed)
        for _, change, size in taken.changes:
            name, state = change.entity, states[change.entity]
            weights[name] = weights.get(name, 0) + size
            if name in asked:
                continue
            if follows(state, change) and is_exact(change, state.definition):
                advance(state, change)
            else:
                asked.add(name)
        history: list[HistoryStep] = []
        if self._history:
            for partition, change, _ in taken.changes:
                if change.entity not in asked:
                    history += change_history(self._shown_of(states[change.entity].definition), change, partition)
        for each in told(self._log, Folds(self._log.registry, cut.schemas), asked, cut) if asked else ():
            state = states[each.entity] = each.state()
            weights[each.entity] = len(packed(state))
            if self._history:
                history += each.history(self._shown_of(state.definition), position.offsets[state.partition])
        for name, state in states.items():
            self._remembered.keep(state, weights[name])
        return Batch(position, cut, list(states.values()), history, len(taken.changes), definitions)

    def _states_before(
        self, taken: _Taken, definitions: Mapping[str, TypeDefinition]
    ) -> tuple[dict[str, EntityState], dict[str, int]]:
        """Each changed entity as it is held, or begun where nothing is known of it; and what each weighs."""
        states: dict[str, EntityState] = {}
        weights: dict[str, int] = {}
        missing: list[str] = []
        for partition, change, _ in taken.changes:
            name = change.entity
            if name in states:
                continue
            definition = definitions[type_of(name)]
            known = self._remembered.take(name)
            states[name], weights[name] = known or (begun(name, definition, partition), 0)
            if known is None and change.from_version:
                missing.append(name)
        for name, data in self._held(missing).items() if missing else ():
            found = unpacked(name, definitions[type_of(name)], data)
            if found is not None:
                states[name], weights[name] = found, len(data)
        return states, weights

    def _shown_of(self, definition: TypeDefinition) -> Shown:
        found = self._shown.get(definition.fingerprint)
        if found is None:
            found = self._shown[definition.fingerprint] = Shown(definition, python=False)
        return found
