"""The changes of a log since a cut, as batches for a sink: new states, history, and the exact cut.

The changes of one partition come in order. Changes of one fold batch share `through`, the offset after the batch. So:
1. In each partition a batch ends where `through` changes, so its cut is exact. If a batch contains all changes up to
   the end, its cut advances to the partition's folded offset, because repeats and verdicts leave no change.
2. Definitions come first. If the log has definitions after the position, each type that had an older one is read again
   whole (`Load.types`), at the position's offsets; new types need no load. From there on all states and history are by
   the new definition, whichever of the log's workers applied it already. So a sink ignores changes `redefined`.
3. If a change begins at the stored state, and was made by the definition in force, its mutations advance that state.
   The stored state is that of the last batch, or the sink's own. For any other change the entity is read from the log
   at the batch's cut. So the content of a sink need not be trusted: the state hash shows a wrong state.
4. If an observation was set aside or restored since, its type is read again as in 2. If a change was set aside, its
   entity is read from the log as in 3. If the entity of the change is unknown, as for a damaged batch, every entity
   with an observation in that range of the log is read: the change belongs to one of these.
5. After a failed write nothing is remembered: the next batch begins again from the sink's position.

The states of recent batches are cached, so that a busy entity is not read back from the store for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.observation import type_of
from refold.avro.quarantine import CHANGES, OBSERVATIONS
from refold.sinks.initial_load import change_history, definitions_at, load_of, recomputed
from refold.sinks.port import Batch, EntityState, HistoryStep, Load
from refold.sinks.states import advance, begun, follows, is_exact, packed, unpacked
from refold.streams.change_reader import ChangeReader, first_past
from refold.streams.changes import Change, MutationFormatter
from refold.streams.cut import Cut
from refold.streams.log.port import LogReader
from refold.streams.rebuild.partition import Progress
from refold.streams.table.folds import Folds

CACHE_BYTES_MAX = 32 << 20


class StateCache:
    """States by name. The least recently added leave first. Bounded by the bytes that were read for them, encoded."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._states: dict[str, tuple[EntityState, int]] = {}
        self._bytes = 0

    def take(self, name: str) -> tuple[EntityState, int] | None:
        """Return an entity's state and its weight in bytes, and forget it."""
        found = self._states.pop(name, None)
        if found is not None:
            self._bytes -= found[1]
        return found

    def keep(self, state: EntityState, weight: int) -> None:
        """Add a state that is not remembered now."""
        self._states[state.entity] = state, weight
        self._bytes += weight
        while self._bytes > self._bytes_max:
            self.take(next(iter(self._states)))

    def clear(self) -> None:
        """Forget every state."""
        self._states.clear()
        self._bytes = 0


Stored = Callable[[Collection[str]], Mapping[str, bytes]]
CHANGES_MAX = 5_000
BYTES_MAX = 16 << 20


class Lag(NamedTuple):
    """How far a sink is behind.

    Attributes:
        changes: The number of changes that are not in the sink yet; on Kafka the ends of transactions count, too.
        oldest_ms: When the first record after the position was recorded, in milliseconds since 1970; None if nothing is
            missing.
    """

    changes: int
    oldest_ms: int | None


@dataclass(slots=True)
class _UnfinishedBatch:
    """The changes of an unfinished batch, with their partition and bytes, and the offsets that they lead to.

    Attributes:
        passed: The entities whose changes in this range were set aside, with their partition.
    """

    changes: list[tuple[int, Change, int]] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
    passed: dict[str, int] = field(default_factory=dict)


class Feed:
    """The batches of one log for one sink."""

    def __init__(self, log: LogReader, stored: Stored, *, history: bool = True, changes_max: int = CHANGES_MAX) -> None:
        """Make the feed of a sink.

        Args:
            log: The log.
            stored: Reads packed states that the sink has stored; `Sink.stored`.
            history: Whether batches contain the history.
            changes_max: About how many changes a batch may have.
        """
        self._log = log
        self._stored = stored
        self._history = history
        self._changes_max = changes_max
        self._reader = ChangeReader(log)
        self._next_changes: dict[int, int] = {}
        self._lag_from: dict[int, tuple[int, int]] = {}
        self._remembered = StateCache()
        self._shown: dict[bytes, MutationFormatter] = {}

    def forget(self) -> None:
        """Forget every state that was handed out: the sink may not have stored it."""
        self._next_changes.clear()
        self._lag_from.clear()
        self._remembered.clear()

    def first(self, progress: Progress = lambda more, total: None) -> Load:
        """All entities at the present cut."""
        self._log.refresh()
        folded = self._folded()
        cut = self._cut(folded, len(self._log.registry))
        return load_of(self._log, None, cut, None, history=self._history, progress=progress)

    def next(self, position: Cut) -> Batch | Load | None:
        """Return what follows a position.

        Args:
            position: The position, as the cut that the sink has reached.

        Returns:
            A batch, or types that must be read again; None at the end. A batch is full at `changes_max` changes or at
            BYTES_MAX bytes of them, but it always takes all the changes that one batch of the fold made.
        """
        folded = self._folded()
        schemas = len(self._log.registry)
        types = self._types_to_reload(position.schemas, schemas)
        if types:
            self._remembered.clear()
            cut = self._cut(position.offsets, schemas)
            return load_of(self._log, position, cut, types, history=self._history)
        taken = _UnfinishedBatch()
        for partition in sorted(position.offsets):
            if not self._is_full(taken):
                self._take(taken, partition, position.offsets[partition], folded[partition])
        cut = self._cut({**position.offsets, **taken.offsets}, schemas)
        if cut == position:
            return None
        return self._batch(position, cut, taken)

    def lag(self, position: Cut) -> Lag:
        """Return how far a position is behind, as of the log's last refresh. Cheap for a sink that this feed
        follows.
        """
        log, changes, times = self._log, 0, []
        ends = log.ends()
        for partition, offset in position.offsets.items():
            missing = log.changes_end(partition) - self._past(partition, offset) if offset < ends[partition] else 0
            if missing > 0:
                changes += missing
                times.append(log.recorded_below(partition, offset + 1))
        return Lag(changes, min(times, default=None))

    def _past(self, partition: int, offset: int) -> int:
        """The first change after an offset, without changes that only reach it; searched once for each offset."""
        known = self._lag_from.get(partition)
        if known is None or known[0] != offset:
            first = self._next_change(partition, offset)
            for record in self._log.read_changes(partition, first):
                if self._reader.read(record).through > offset:
                    break
                first = record.offset + 1
            self._lag_from[partition] = known = offset, first
        return known[1]

    def _next_change(self, partition: int, floor: int) -> int:
        """The first change after an offset that is in no batch yet."""
        if partition not in self._next_changes:
            self._next_changes[partition] = first_past(self._log, self._reader, partition, floor) if floor else 0
        return self._next_changes[partition]

    def _folded(self) -> dict[int, int]:
        """The folded offset of each partition; all changes up to it are visible after this call."""
        folded = {partition: each.offset for partition, each in self._log.folded().items()}
        self._log.refresh()
        return folded

    def _types_to_reload(self, before: int, schemas: int) -> frozenset[str]:
        """The types that had another definition before, or had an observation set aside or restored since."""
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

    def _is_full(self, taken: _UnfinishedBatch) -> bool:
        return len(taken.changes) >= self._changes_max or taken.bytes >= BYTES_MAX

    def _take(self, taken: _UnfinishedBatch, partition: int, floor: int, folded: int) -> None:
        """Add a partition's changes after the position's offset, up to the end or until the batch is full."""
        log, reader = self._log, self._reader
        through, end = floor, log.changes_end(partition)
        begin = self._next_change(partition, floor)
        for record in log.read_changes(partition, begin):
            change = reader.read(record)
            if change.through > through:
                if self._is_full(taken):
                    self._next_changes[partition] = record.offset
                    break
                through = change.through
            self._next_changes[partition] = record.offset + 1
            if change.through > floor and not change.redefined:
                taken.changes.append((partition, change, len(record.data)))
                taken.bytes += len(record.data)
        else:
            self._next_changes[partition] = max(end, self._next_changes[partition])
            through = max(through, folded)
        taken.offsets[partition] = through
        aside = log.registry.rulings.of(CHANGES, partition)
        passed = {entity for offset, entity in aside.items() if begin <= offset < self._next_changes[partition]}
        if "" in passed:
            passed.update(record.entity for record in log.read(partition, floor, through))
        taken.passed.update(dict.fromkeys(passed - {""}, partition))

    def _batch(self, position: Cut, cut: Cut, taken: _UnfinishedBatch) -> Batch:
        """The batch of the collected changes: states and history."""
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
        for each in recomputed(self._log, Folds(self._log.registry, cut.schemas), asked, cut) if asked else ():
            state = states[each.entity] = each.state()
            weights[each.entity] = len(packed(state))
            if self._history:
                history += each.history(self._shown_of(state.definition), position.offsets[state.partition])
        for name, state in states.items():
            self._remembered.keep(state, weights[name])
        return Batch(position, cut, list(states.values()), history, len(taken.changes), definitions)

    def _states_before(
        self, taken: _UnfinishedBatch, definitions: Mapping[str, TypeDefinition]
    ) -> tuple[dict[str, EntityState], dict[str, int]]:
        """Each changed entity as the sink holds it, or empty if unknown; and the encoded size of each, in bytes."""
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
        for name, data in self._stored(missing).items() if missing else ():
            found = unpacked(name, definitions[type_of(name)], data)
            if found is not None:
                states[name], weights[name] = found, len(data)
        return states, weights

    def _shown_of(self, definition: TypeDefinition) -> MutationFormatter:
        found = self._shown.get(definition.fingerprint)
        if found is None:
            found = self._shown[definition.fingerprint] = MutationFormatter(definition, python=False)
        return found
