"""A log as its tests hold it: opened twice, written to, and held to what a naive fold says."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Observation
from refold.reducers.entity import unpack
from refold.streams.changes import Change
from refold.streams.feed import ChangeReader
from refold.streams.log.port import LogPort, LogReader, Record
from refold.streams.point import Points
from refold.streams.rebuild.workers import rebuild
from refold.testing.sink_samples import append
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.histories import random_history
from refold_tests.reference import reference_hash, reference_state
from refold_tests.sample_types import NAMES, OTHER, THING, reference_definition, said

PARTITIONS = 4


class Handles(NamedTuple):
    """One log: where it is written, where it is read."""

    write: LogPort
    read: LogPort


class Opened(ABC):
    """A log of PARTITIONS partitions in a place of its own, opened and closed as often as a test wants."""

    clock: FileClock | None = None
    """What the log takes its times from; None where it has a clock of its own."""
    has_workers = False
    """Whether a worker is at work on it."""

    @abstractmethod
    def __call__(self) -> AbstractContextManager[Handles]:
        """The log open until the end of the block; made when it is not there."""

    def set_clock(self, later_ms: int) -> None:
        """From now on it is so long after BEGIN_MS."""
        assert self.clock is not None
        self.clock.set(BEGIN_MS + later_ms)


def put(log: LogPort, observations: Iterable[Observation], definition: TypeDefinition = THING) -> None:
    """Append under a definition (of OTHER's type: under that), registered if it is not."""
    for each in observations:
        append(log, each, OTHER if each.type == OTHER.name else definition)


def mixed(seed: int) -> list[Observation]:
    """A random history, and among it plain observations of entities with awkward names."""
    rng = random.Random(seed)
    observations = random_history(seed, 150)
    for number in range(100):
        observations.insert(rng.randrange(len(observations)), said(rng.choice(NAMES), number))
    return observations


def written(handles: Handles, observations: Iterable[Observation]) -> None:
    """Append, flush, and let the reader see it."""
    put(handles.write, observations)
    handles.write.flush()
    handles.read.refresh()


def everything(log: LogReader) -> dict[int, list[Record]]:
    """All records by partition."""
    return {partition: list(log.read(partition, 0, end)) for partition, end in log.ends().items()}


def changes_of(log: LogReader) -> dict[str, list[Change]]:
    """All changes by entity."""
    reader = ChangeReader(log)
    found: dict[str, list[Change]] = defaultdict(list)
    for partition in range(log.partitions):
        for record in log.read_changes(partition, 0):
            change = reader.decode(record.data)
            found[change.entity].append(change)
    return found


def assert_folded(log: LogReader, observations: Sequence[Observation], definition: TypeDefinition = THING) -> None:
    """The table and the chains of changes are those of the observations, as the naive fold has them."""
    reference = reference_definition(definition)
    states = {name: unpack(name, packed) for name, packed in log.stored_entities()}
    assert states.keys() == {each.entity for each in observations}
    chains = changes_of(log)
    for name, entity in states.items():
        expected = reference_state(reference, name, list(enumerate(observations)))
        assert entity.version == expected["version"]
        assert entity.state_hash == reference_hash(expected)
        assert_chain(chains[name])
        assert (chains[name][-1].to_version, chains[name][-1].hash_after) == (
            entity.version,
            entity.state_hash,
        )


def assert_rebuilt(log: LogReader, observations: Sequence[Observation], definition: TypeDefinition = THING) -> None:
    """What the log rebuilds to at its end is what the observations fold to, as the naive fold has them."""
    rebuilt = rebuild(log, Points(log, 0).end(), parallel=False)
    states = {name: unpack(name, packed) for name, packed in rebuilt.rows()}
    assert states.keys() == {each.entity for each in observations}
    for name, entity in states.items():
        expected = reference_state(reference_definition(definition), name, list(enumerate(observations)))
        assert (entity.version, entity.state_hash) == (expected["version"], reference_hash(expected))


def assert_chain(changes: Sequence[Change]) -> None:
    """Versions without gaps from 0, hashes that meet."""
    assert (changes[0].from_version, changes[0].hash_before) == (0, None)
    for before, after in pairwise(changes):
        assert (after.from_version, after.hash_before) == (before.to_version, before.hash_after)
    for each in changes:
        versions = [step.version for step in each.steps]
        assert versions == list(range(each.from_version + 1, each.to_version + 1))
        assert all(step.offset < each.through for step in each.steps)
