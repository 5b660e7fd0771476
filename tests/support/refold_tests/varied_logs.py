"""Logs with a varied past: several types, some of which close, changing definitions, and epochs at arbitrary
moments.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from refold.avro.definition import TypeDefinition
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.histories import SOURCES, TYPE, Plan, Regime, build, drawn_plan
from refold_tests.reference import Definition, State, reference_hash, reference_state
from refold_tests.sample_types import defined, document, reference_definition

DAY_MICROS = 24 * 3_600 * 1_000_000


def variants(name: str, closed_by: str = "") -> list[TypeDefinition]:
    """Return a type's definition and its later versions; the second one folds differently. closed_by: what closes
    it, if any.
    """
    closing = {"refold.closed_by": closed_by} if closed_by else {}
    greatest = {"last": {"type": "long", "refold.reducer": "max"}}
    more = {**greatest, "more": {"type": "string", "refold.reducer": "latest"}}
    found = [{**document(name, **fields), **closing} for fields in ({}, greatest, more)]
    other = "" if closed_by == "last" else "last"
    found.append({**document(name, **more), **({"refold.closed_by": other} if other else {})})
    return [defined(each) for each in found]


TYPES = {
    TYPE: variants(TYPE),
    "job": variants("job", "start"),
    "task": variants("task", "attrs"),
    "duty": variants("duty", "folded"),
}


def mixed_history(seed: int, length: int, entities: int = 12) -> list[Observation]:
    """Return observations of all TYPES in arrival order, with duplicates, over some months."""
    rng = random.Random(seed)
    regime = Regime.draw(rng)
    names = [f"{rng.choice(list(TYPES))}/{number}" for number in range(entities)]
    sources = [*SOURCES, *((f"agent-{number}", "r") for number in range(60))][: regime.sources]
    made: list[Plan] = []
    now = 0
    for index in range(length):
        now += rng.choice((0, 1, DAY_MICROS)) if rng.random() < regime.tick_chance else 0
        made.append(drawn_plan(rng, regime, index, now, rng.choice(names), rng.choice(sources)))
    return build(made)


class Past:
    """A log whose past is being created."""

    def __init__(self, log: Log, clock: FileClock, rng: random.Random) -> None:
        self.log = log
        self.clock = clock
        self.rng = rng
        self.current = {name: versions[0] for name, versions in TYPES.items()}
        self.snapshots = 0
        self._now_ms = BEGIN_MS

    def take(self, observations: Sequence[Observation]) -> None:
        """Record observations at a later time, durable on return."""
        self._now_ms += self.rng.choice((0, 1, 60_000))
        self.clock.set(self._now_ms)
        for each in observations:
            self.log.append(each, identify(each), self.current[each.type], {})
        self.log.flush()

    def snapshot(self) -> None:
        """Seal an epoch of every partition."""
        self.log.snapshot()
        self.snapshots += 1

    def redefine(self) -> None:
        """Give one type its next definition, if it has one."""
        name = self.rng.choice(list(TYPES))
        later = TYPES[name][TYPES[name].index(self.current[name]) + 1 :]
        if later:
            self.current[name] = later[0]
            self.log.register(later[0])

    def run(self, observations: Sequence[Observation], *, snapshots: float, redefined: float = 0.0) -> None:
        """Record all observations. snapshots, redefined: the chance of a snapshot and of a new definition after each
        flush.
        """
        done = 0
        while done < len(observations):
            size = self.rng.choice((1, 3, 9, 30))
            self.take(observations[done : done + size])
            done += size
            if self.rng.random() < snapshots:
                self.snapshot()
            if self.rng.random() < redefined:
                self.redefine()


def records_of(log: Log) -> dict[int, list[Observation]]:
    """Return every record's observation, in order, by partition."""
    registry = log.port.registry
    return {
        partition: [registry.decode(each.data) for each in log.port.read(partition, 0, end)]
        for partition, end in log.port.ends().items()
    }


def random_cut(log: Log, rng: random.Random, every: dict[int, list[Observation]]) -> Cut:
    """Return a cut with random next offsets, and random definitions that know the types before them."""
    registry = log.port.registry
    ends = {partition: len(records) for partition, records in every.items()}
    offsets = {partition: rng.choice((end, rng.randint(0, end))) for partition, end in ends.items()}
    types = {each.type for partition, end in offsets.items() for each in every[partition][:end]}
    least = max((registry.versions(name)[0].offset + 1 for name in types), default=0)
    schemas = rng.choice((len(registry), rng.randint(least, len(registry))))
    return Cut(log.port.log_id, offsets, schemas, registry.digest(schemas))


def cuts_below(end: Cut, rng: random.Random, count: int) -> list[Cut]:
    """Return `count` cuts up to a cut, with random offsets, under its definitions."""
    return [
        replace(end, offsets={partition: rng.randint(0, offset) for partition, offset in end.offsets.items()})
        for _ in range(count)
    ]


Fold = Callable[[Definition, str, list[tuple[int, Observation]]], State | None]


def reference_at(
    log: Log, cut: Cut, every: dict[int, list[Observation]], fold: Fold = reference_state
) -> dict[str, State]:
    """Return the naive fold's state of every entity before a cut, under the cut's definitions."""
    by_entity: dict[str, list[tuple[int, Observation]]] = defaultdict(list)
    for partition, end in cut.offsets.items():
        for offset, each in enumerate(every[partition][:end]):
            by_entity[each.entity].append((offset, each))
    found = {}
    for name, own in by_entity.items():
        definition = log.port.registry.newest(name.partition("/")[0], cut.schemas).definition
        state = fold(reference_definition(definition), name, own)
        if state is not None:
            found[name] = state
    return found


def hashes_of(states: dict[str, State]) -> dict[str, bytes]:
    """Return state hashes, computed by the reference."""
    return {name: reference_hash(state) for name, state in states.items()}
